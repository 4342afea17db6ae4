"""What a check asks of the compiler, and which facts it judges by. The compiler here answers at once, from a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from orchestrator.check.compiling import Described
from orchestrator.check.environments import TritonEnvironment
from orchestrator.check.offline import Question, check_offline, sweep_offline
from orchestrator.errors import CheckError, UsageError
from orchestrator.records import Change, CheckSettings, SourceFile, Target, TargetFile, digest_of
from orchestrator.verdicts import CachedKernel, CompiledKernel, CompileJob, KernelConfig, KernelSource
from tests.support.config_reports import buffers

TEXT = """\
import triton
import triton.language as tl


@triton.autotune(
    configs=[
        triton.Config({"BLOCK_T": 16}, num_warps=4, num_stages=2),
        triton.Config({"BLOCK_T": 32}, num_warps=8, num_stages=2),
    ],
    key=["n"],
)
@triton.jit
def decode(out_ptr, n, BLOCK_T: tl.constexpr, BLOCK_H: tl.constexpr):
    tl.store(out_ptr + tl.arange(0, BLOCK_T), n)


def launch(out):
    decode[(1,)](out, 3, BLOCK_H=16)
"""
ARGUMENTS = {"out_ptr": "*bf16", "n": "i32:16", "BLOCK_H": 16}
LIMIT_BYTES = 101_376  # of a block on sm_120


@dataclass
class FakeCompiler:
    """Gives each job what ``facts`` says of it, on top of a kernel that fits, and remembers the jobs.

    Attributes:
        binary: of a job; the same text is the same code.
    """

    facts: Callable[[CompileJob], dict[str, Any]] = lambda _: {}
    binary: Callable[[CompileJob], object] = lambda job: (job.source.digest, job.config)
    described: Described = field(default_factory=lambda: Described(None, None, None))
    before: list[CompileJob] = field(default_factory=list)
    asked: list[list[CompileJob]] = field(default_factory=list)
    n_described: int = 0
    environment: TritonEnvironment = field(default_factory=lambda: TritonEnvironment("3.9.0", None))

    def describe(self, sources: Sequence[KernelSource]) -> list[Described]:
        """The same for each."""
        self.n_described += len(sources)
        return [self.described for _ in sources]

    def compile(self, jobs: Sequence[CompileJob]) -> list[CompiledKernel]:
        """All of them."""
        self.asked.append(list(jobs))
        return [self._answer(job) for job in jobs]

    def known(self, jobs: Sequence[CompileJob]) -> list[CompiledKernel | None]:
        """Those of ``before``."""
        return [self._answer(job) if job in self.before else None for job in jobs]

    def _answer(self, job: CompileJob) -> CompiledKernel:
        well: dict[str, Any] = {
            "shared_bytes": 61_568,
            "n_registers": 128,
            "has_loop": True,
            "has_dot_in_loop": True,
            "buffers": buffers(job.config.num_stages),
            "binary_digest": digest_of(repr(self.binary(job)).encode()),
        }
        return CompiledKernel(job, "3.9.0", **{**well, **self.facts(job)})


def target(text: str = TEXT, **check: Any) -> Target:
    """A target of one file."""
    settings = CheckSettings(**{"arguments": ARGUMENTS, **check})
    files = (TargetFile(path="/site/decode.py", name="decode.py", module="decode"),)
    return Target(name="t", host="here", engine="stub", files=files, kernel="decode", check=settings)


def question(text: str = TEXT, base: str = TEXT, **changed: Any) -> Question:
    """The variant V2 with this text; the baseline when it is that one's."""
    mine, theirs = SourceFile.of("decode.py", text.encode()), SourceFile.of("decode.py", base.encode())
    asked = Question(
        target=target(),
        variant="baseline" if text == base else "V2",
        digest=mine.digest,
        base_digest=theirs.digest,
        files=(mine,),
        base_files=(theirs,),
        archs=(120,),
    )
    return replace(asked, **changed)


def forced(num_warps: int = 4, num_stages: int = 2, block_t: int = 16) -> str:
    """The file with one config."""
    start, end = TEXT.index("        triton.Config"), TEXT.index("    ],")
    config = f'        triton.Config({{"BLOCK_T": {block_t}}}, num_warps={num_warps}, num_stages={num_stages}),\n'
    return TEXT[:start] + config + TEXT[end:]


def configs(jobs: Sequence[CompileJob]) -> list[tuple[object, ...]]:
    """What tells jobs of one text apart."""
    return [(job.arch, job.config.constants["BLOCK_T"], job.config.num_warps, job.config.num_stages) for job in jobs]


def kinds(found: Any) -> list[str]:
    """Kinds of the sentences."""
    return [sentence.kind for sentence in found.sentences]


# ---- what is compiled


def test_every_config_on_every_architecture() -> None:
    """The list is read without a process; each config is compiled with its constants and probed for further stages."""
    compiler = FakeCompiler()
    verdict = check_offline(question(archs=(90, 120)), compiler)  # type: ignore[arg-type]
    (jobs,) = compiler.asked
    assert configs(jobs) == [(90, 16, 4, 2), (90, 32, 8, 2), (120, 16, 4, 2), (120, 32, 8, 2)]
    assert {job.also_stages for job in jobs} == {(3, 4, 5, 6, 7, 8)}
    assert jobs[0].signature is not None
    assert jobs[0].signature.types == {
        "out_ptr": "*bf16",
        "n": "i32",
        "BLOCK_T": "constexpr",
        "BLOCK_H": "constexpr",
    }
    assert jobs[1].signature is not None
    assert jobs[1].signature.constants == {"BLOCK_T": 32, "BLOCK_H": 16}
    assert compiler.n_described == 0
    assert (verdict.n_configs, verdict.n_baseline_configs, verdict.baseline_configs) == (2, 2, ())


def test_only_configs_of_the_baseline_that_can_be_the_same_are_compiled() -> None:
    """Of the baseline those with the variant's meta-parameters, unprobed; another tile size is another launch."""
    compiler = FakeCompiler()
    verdict = check_offline(question(forced(num_stages=3)), compiler)  # type: ignore[arg-type]
    (jobs,) = compiler.asked
    assert configs(jobs) == [(120, 16, 4, 3), (120, 16, 4, 2)]
    assert jobs[0].also_stages and not jobs[1].also_stages
    assert [report.index for report in verdict.baseline_configs] == [0]


def test_what_an_earlier_check_compiled_of_the_baseline_is_shown() -> None:
    """Its other configs, as far as they are known, once each and in their order."""
    compiler = FakeCompiler()
    check_offline(question(), compiler)  # type: ignore[arg-type]
    again = FakeCompiler(before=[replace(job, also_stages=()) for job in compiler.asked[0]])
    verdict = check_offline(question(forced(block_t=32, num_warps=8, num_stages=3)), again)  # type: ignore[arg-type]
    assert [report.index for report in verdict.baseline_configs] == [0, 1]


def test_a_missing_argument_is_asked_for_by_name() -> None:
    """With the engine start that would do without it."""
    asked = question(target=target(arguments={"out_ptr": "*bf16"}))
    with pytest.raises(UsageError, match=r"it needs the type of n and the value of BLOCK_H") as caught:
        check_offline(asked, FakeCompiler())  # type: ignore[arg-type]
    assert "`orch bench`" in str(caught.value.next_step)


# ---- the list


def without_list(text: str = TEXT) -> str:
    """The file without its autotune decorator."""
    return text[: text.index("@triton.autotune")] + text[text.index("@triton.jit") :]


def test_a_kernel_without_a_list_has_the_inventorys_launch() -> None:
    """Launch options stand among the arguments; what is left out is Triton's default, and said to be."""
    told = {**ARGUMENTS, "BLOCK_T": 16, "num_warps": 8}
    text, compiler = without_list(), FakeCompiler()
    verdict = check_offline(question(text, text, target=target(arguments=told)), compiler)  # type: ignore[arg-type]
    ((job,),) = compiler.asked
    assert (job.config.num_warps, job.config.num_stages, job.config.constants) == (8, 3, {})
    assert compiler.n_described == 0, "there is nothing to describe"
    assert any("num_stages=3 is Triton's own" in caveat for caveat in verdict.caveats)


@pytest.mark.parametrize("value", [0, -1, 2.5, True, "four"])
def test_a_launch_option_must_be_a_number(value: object) -> None:
    """In one line, before anything is compiled."""
    asked = question(without_list(), target=target(arguments={**ARGUMENTS, "BLOCK_T": 16, "num_warps": value}))
    with pytest.raises(UsageError, match=r"num_warps is .* which is no whole number from 1"):
        check_offline(asked, FakeCompiler())  # type: ignore[arg-type]


def test_an_empty_list_is_tritons_default() -> None:
    """One config of 4 warps and 3 stages."""
    start, end = TEXT.index("        triton.Config"), TEXT.index("    ],")
    text, compiler = TEXT[:start] + TEXT[end:], FakeCompiler()
    told = target(arguments={**ARGUMENTS, "BLOCK_T": 16})
    verdict = check_offline(question(text, text, target=told), compiler)  # type: ignore[arg-type]
    assert [report.config for report in verdict.configs] == [KernelConfig()]


def computed() -> str:
    """The file with a list that has to be run."""
    start, end = TEXT.index("    configs=["), TEXT.index("    key=")
    return f"{TEXT[:start]}    configs=[triton.Config({{'BLOCK_T': b}}) for b in (16, 32)],\n{TEXT[end:]}"


def test_a_computed_list_is_described_once() -> None:
    """For the variant and for its baseline when both have one; the same text is asked for once."""
    listed = Described((KernelConfig(constants={"BLOCK_T": 16}),), ("n",), None)
    compiler = FakeCompiler(described=listed)
    verdict = check_offline(question(computed(), computed() + "\nX = 1\n"), compiler)  # type: ignore[arg-type]
    assert compiler.n_described == 1
    assert verdict.n_configs == verdict.n_baseline_configs == 1


def test_a_list_that_cannot_be_computed() -> None:
    """The variant's ends the check, with the reason; the baseline's only means that less can be said."""
    failed = Described(None, None, "ModuleNotFoundError: No module named 'sglang'")
    with pytest.raises(CheckError, match=r"autotune list of V2 .* cannot be computed .*No module named 'sglang'"):
        check_offline(question(computed()), FakeCompiler(described=failed))  # type: ignore[arg-type]
    compiler = FakeCompiler(described=failed)
    verdict = check_offline(question(forced(), computed()), compiler)  # type: ignore[arg-type]
    assert configs(compiler.asked[0]) == [(120, 16, 4, 2)]
    assert (verdict.status, verdict.n_baseline_configs, verdict.baseline_configs) == ("ok", None, ())


# ---- the evidence


def same_code(job: CompileJob) -> object:
    """num_stages makes no difference."""
    return job.source.digest, sorted(job.config.constants.items()), job.config.num_warps


def test_the_same_binary_needs_the_whole_list() -> None:
    """One of the baseline's two configs alone is another experiment; the same one of one is none."""
    compiler = FakeCompiler(binary=same_code)
    alone = check_offline(question(forced(num_stages=4)), compiler)  # type: ignore[arg-type]
    assert alone.status == "ok" and "same-binary" in kinds(alone)
    equal = check_offline(question(forced(num_stages=4), forced(num_stages=3)), compiler)  # type: ignore[arg-type]
    assert equal.status == "same-binary"


@pytest.mark.parametrize(
    ("where", "status"),
    [("launch", "ok"), ("module (IMPORTED)", "ok"), ("decode", "same-binary")],
)
def test_an_edit_outside_of_the_kernel_may_change_the_launch(where: str, status: str) -> None:
    """With the same binary that is still an experiment; an edit of the kernel that compiles alike is none."""
    change = Change("code", "decode.py", where, "body", None, None)
    text, base = forced() + "\n# edited\n", forced()
    verdict = check_offline(question(text, base, changes=(change,)), FakeCompiler())  # type: ignore[arg-type]
    assert verdict.status == status


def test_another_key_may_change_the_launch() -> None:
    """The autotuner then chooses at other times."""
    text = forced().replace('key=["n"]', 'key=["n", "BLOCK_H"]')
    assert check_offline(question(text, forced()), FakeCompiler()).status == "ok"  # type: ignore[arg-type]


def test_facts_of_the_edit_are_told() -> None:
    """The kernel that moved, the file that kept its size, the key without what varies."""
    text = "\n" + TEXT.replace('{"BLOCK_T": 16}, num_warps=4', '{"BLOCK_T":16}, num_warps=2')
    asked = question(text, target=target(varies=("n", "rows")))
    assert len(text) == len(TEXT)
    verdict = check_offline(asked, FakeCompiler())  # type: ignore[arg-type]
    told = {sentence.kind: sentence.text for sentence in verdict.sentences}
    assert "from line 13 to 14" in told["moved-function"]
    assert "keeps the size of decode.py" in told["same-size"]
    assert "lacks rows" in told["key-lacks-shape"]


def test_nothing_of_an_edit_is_told_of_the_baseline() -> None:
    """It is compared with nothing."""
    assert set(kinds(check_offline(question(), FakeCompiler()))) <= {  # type: ignore[arg-type]
        "may-switch-config",
        "stages-keep-buffers",
    }


def test_caveats() -> None:
    """Of the choice of Triton, of an architecture without known limits, and of decorators that were left out."""
    text = TEXT.replace("@triton.autotune", "@traced\n@triton.autotune").replace(
        "\n\n\n@", "\n\n\ntraced = print\n\n\n@", 1
    )
    asked = question(text, text, archs=(75, 999), caveats=("another Triton",))
    verdict = check_offline(asked, FakeCompiler())  # type: ignore[arg-type]
    assert verdict.caveats == (
        "another Triton",
        "the limits of sm_999 are not known here: whether it fits cannot be told",
        "compiled without the kernel's decorators traced, which are not Triton's",
    )


# ---- the host's Triton cache


def form(block_t: int, num_warps: int, *, note: str = "", version: str = "3.9.0") -> CachedKernel:
    """What the engine's Triton left of a config; the launch options tell which one."""
    metadata = {"num_warps": num_warps, "num_stages": 2}
    ttir = f"module {{ // {block_t} {note} }}"
    return CachedKernel(f"{block_t}{num_warps}{note}", "decode", ttir, metadata, version, "sha256:1")


FORMS = (form(16, 4), form(32, 8))


def test_the_hosts_forms_are_compiled_without_types() -> None:
    """No arguments are needed; each config is compiled from its own form, also with other launch options."""
    asked = question(forced(num_warps=8, num_stages=5), target=target(arguments={}), cached=FORMS)
    compiler = FakeCompiler()
    verdict = check_offline(asked, compiler)  # type: ignore[arg-type]
    (jobs,) = compiler.asked
    assert verdict.source == "host-cache" and verdict.caveats == ()
    assert [(job.source.kind, job.source.text, job.signature) for job in jobs] == [
        ("host-cache", FORMS[0].ttir, None)
    ] * 2


@pytest.mark.parametrize(
    ("text", "cached", "why"),
    [
        (forced(block_t=64), FORMS, "it holds no form with BLOCK_T=64"),
        (forced(num_stages=3), FORMS[1:], "it holds no form with BLOCK_T=16"),
        (forced().replace("BLOCK_T), n)", "BLOCK_T), n + 1)"), FORMS, "the kernel's code is not the baseline's"),
        (forced(num_stages=3), (form(16, 4, version="3.6.0"),), "Triton 3.6.0 wrote it, Triton 3.9.0 compiles"),
    ],
    ids=["another tile", "not all forms", "edited kernel", "another Triton"],
)
def test_when_the_source_is_compiled_all_the_same(text: str, cached: tuple[CachedKernel, ...], why: str) -> None:
    """The note says why what the host has does not serve."""
    compiler = FakeCompiler()
    verdict = check_offline(question(text, cached=cached), compiler)  # type: ignore[arg-type]
    assert verdict.source == "source"
    assert {job.source.kind for job in compiler.asked[0]} == {"source"}
    assert f"compiled from the source, not from the host's Triton cache: {why}" in verdict.caveats


def test_the_local_part_of_a_version_does_not_matter() -> None:
    """3.9.0 compiles what 3.9.0+git wrote."""
    cached = tuple(replace(one, triton_version="3.9.0+git0d4682f0") for one in FORMS)
    assert check_offline(question(cached=cached), FakeCompiler()).source == "host-cache"  # type: ignore[arg-type]


def test_several_forms_of_one_config_are_one_report() -> None:
    """Triton specialises on arguments: the form that needs most is shown, once, and the caveat says so."""
    cached = (*FORMS, form(16, 4, note="n is 1"))

    def facts(job: CompileJob) -> dict[str, Any]:
        return {"shared_bytes": LIMIT_BYTES + 1 if "n is 1" in job.source.text else 1_000}

    asked = question(forced(num_stages=3), cached=cached)
    verdict = check_offline(asked, FakeCompiler(facts))  # type: ignore[arg-type]
    assert [(report.index, report.compiled.shared_bytes) for report in verdict.configs] == [(0, LIMIT_BYTES + 1)]
    assert verdict.status == "cannot-launch"
    assert "up to 2 forms of one config" in verdict.caveats[0]


def test_the_same_binary_means_every_form() -> None:
    """One specialisation that differs makes two launches that can differ."""
    cached = (form(16, 4), form(16, 4, note="n is 1"))

    def but_one(job: CompileJob) -> object:
        return job.source.text, job.config.num_stages if "n is 1" in job.source.text else None

    asked = question(forced(num_stages=4), forced(num_stages=2), cached=cached)
    assert check_offline(asked, FakeCompiler(binary=but_one)).status == "ok"  # type: ignore[arg-type]
    alike = FakeCompiler(binary=lambda job: job.source.text)
    assert check_offline(asked, alike).status == "same-binary"  # type: ignore[arg-type]


# ---- grids


def test_a_grid_is_laid_over_the_first_config() -> None:
    """Every point once, not probed, with the baseline's configs that could be one of them."""
    compiler = FakeCompiler()
    found = sweep_offline(question(), ["num_stages=2,3", "BLOCK_T=16,64"], compiler)  # type: ignore[arg-type]
    (jobs,) = compiler.asked
    assert configs(jobs[:4]) == [(120, 16, 4, 2), (120, 64, 4, 2), (120, 16, 4, 3), (120, 64, 4, 3)]
    assert configs(jobs[4:]) == [(120, 16, 4, 2)]
    assert [row.words for row in found.rows] == ["= baseline", "new", "new", "new"]
    assert found.unsettable == ()


def test_a_knob_of_the_launcher_knows_the_baselines_value() -> None:
    """The inventory says what the launcher passes: that point is the baseline, and no config can set the knob."""
    found = sweep_offline(question(), ["BLOCK_H=16,32"], FakeCompiler(binary=same_code))  # type: ignore[arg-type]
    assert found.unsettable == ("BLOCK_H",)
    assert [row.words for row in found.rows] == ["= baseline", "new"]
