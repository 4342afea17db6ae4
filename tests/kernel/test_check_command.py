"""``orch check`` with the real compiler: what the seed found, what goes wrong in a compile, and the host's cache."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

triton = pytest.importorskip("triton", reason="triton is not installed")

from orchestrator.check import compiling  # noqa: E402
from orchestrator.check.arguments import signature  # noqa: E402
from orchestrator.check.lift import lift  # noqa: E402
from orchestrator.records import SourceFile, digest_of  # noqa: E402
from orchestrator.store import Store  # noqa: E402
from orchestrator.verdicts import CachedKernel  # noqa: E402
from tests.kernel import seed_shape  # noqa: E402
from tests.support import store_records  # noqa: E402
from tests.support.check_project import KERNEL, SEED, bullets, check_project, edit, with_configs  # noqa: E402
from tests.support.cli_project import KERNEL as SMALL  # noqa: E402
from tests.support.cli_project import CliProject  # noqa: E402

pytestmark = [pytest.mark.kernel, pytest.mark.slow]
is_exact = pytest.mark.skipif(
    not triton.__version__.startswith(seed_shape.EXACT_WITH), reason="this Triton keeps other small buffers"
)

ONE_CONFIG = with_configs(KERNEL, 'triton.Config({"BLOCK_T": 16}, num_warps=4, num_stages=3)')
SMALL_ARGUMENTS = {
    "q_ptr": "*bf16",
    "kv_ptr": "*bf16",
    "out_ptr": "*bf16",
    "scale": "fp32",
    "n_heads": 16,
    "n_selected": "i32:16",
}

Point = dict[str, Any]


# ---- the seed's finding


@pytest.fixture(scope="module")
def seed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CliProject]:
    """A project with the seed's kernel and the list that it had."""
    with check_project(tmp_path_factory.mktemp("seed")) as project:
        yield project


@pytest.fixture(scope="module")
def points(seed: CliProject) -> list[Point]:
    """Every num_stages of the seed's list, on sm_120."""
    return list(seed.done("check", "--sweep", "num_stages=2..7", "--json").document["points"])


@pytest.fixture(scope="module")
def wide(seed: CliProject, points: list[Point]) -> list[Point]:
    """Twice the heads in a block, at one buffer and at three."""
    return list(seed.done("check", "--sweep", "num_stages=2,7", "BLOCK_H=32", "--json").document["points"])


@is_exact
def test_the_seeds_shared_memory(seed: CliProject, points: list[Point]) -> None:
    """60.12, 60.25, 70.50 and 80.75 KiB at stages 2, 3, 5 and 7, in the document and in the table."""
    assert {p["num_stages"]: p["shared_bytes"] for p in points} == seed_shape.SHARED_BYTES_BY_STAGES
    out = seed.done("check", "--sweep", "num_stages=2,3,5,7").out
    assert re.findall(r"^\d +\d +([\d.]+) ", out, re.MULTILINE) == ["60.12", "60.25", "70.50", "80.75"]


def test_every_second_stage_changes_nothing(points: list[Point]) -> None:
    """Stages 3 and 4, and 5 and 6, are one binary each and marked so; of six points three are worth GPU time."""
    marks = {p["num_stages"]: (p["verdict"], p["same_as"]) for p in points}
    assert marks == {
        2: ("baseline", None),
        3: ("new", None),
        4: ("same", 2),
        5: ("new", None),
        6: ("same", 4),
        7: ("new", None),
    }
    digests = {p["num_stages"]: p["binary_digest"] for p in points}
    assert digests[3] == digests[4] != digests[5] == digests[6]
    assert len({digests[2], digests[3], digests[5], digests[7]}) == 4


def test_each_further_buffer_costs_the_same(points: list[Point]) -> None:
    """One, two and three tiles in flight at stages 3, 5 and 7, and between them the same step of shared memory."""
    by_stages = {p["num_stages"]: p for p in points}
    assert [by_stages[n]["n_kv_buffers"] for n in (2, 3, 5, 7)] == [1, 1, 2, 3]
    first, second, third = (by_stages[n]["shared_bytes"] for n in (3, 5, 7))
    assert second - first == third - second
    assert all(p["can_launch"] for p in points)


@is_exact
def test_three_buffers_reach_the_limit_at_twice_the_heads(points: list[Point], wide: list[Point]) -> None:
    """A block of 32 heads costs 18,432 B more; three buffers still fit, 98.75 of 99.00 KiB."""
    narrow = {p["num_stages"]: p["shared_bytes"] for p in points}
    assert [p["shared_bytes"] - narrow[p["num_stages"]] for p in wide] == [18_432, 18_432]
    one, three = wide
    assert three["can_launch"] and three["n_kv_buffers"] == 3
    assert (three["shared_bytes"], three["shared_limit_bytes"]) == (101_120, 101_376)
    assert one["shared_bytes"] == 80_000


def test_two_of_the_seeds_configs_cannot_launch(seed: CliProject) -> None:
    """Tiles of 32 tokens do not fit at two stages: the autotuner skips both configs without a word."""
    ran = seed.done("check")
    (said,) = [text for text in bullets(ran.out) if "cannot launch" in text]
    assert said.startswith("configs 1 and 2 of the baseline cannot launch on sm_120: ")
    assert said.endswith("; the autotuner skips them without a word")
    assert len(re.findall(r"does not fit$", ran.out, re.MULTILINE)) == 2
    stuck = seed.with_variant("wide", "BLOCK_T=32").orch("check", "--variant", "wide")
    assert stuck.code == 4
    assert bullets(stuck.out)[0].startswith("wide cannot launch on sm_120: a block needs ")


@is_exact
def test_what_num_stages_3_really_does(seed: CliProject) -> None:
    """The seed's variant keeps no tile more than the baseline; what changes is one small buffer of the index."""
    ran = seed.with_variant("V2", "num_stages=3", "num_warps=4", "BLOCK_T=16").done("check", "--variant", "V2")
    (said,) = [text for text in bullets(ran.out) if text.startswith("num_stages=3 ")]
    assert said.startswith("num_stages=3 keeps one ")
    assert "(16×512 fp8e4nv, 8,192 B), as num_stages=2 does; 5 is the first with two" in said
    assert said.endswith("one more small buffer (16 i64, 128 B), which lets the index load start earlier")


def test_a_variant_of_the_same_binary_is_refused(seed: CliProject, points: list[Point], tmp_path: Path) -> None:
    """num_stages=4 where the baseline has 3: refused by check and push; what was compiled once is not again."""
    assert points
    with check_project(tmp_path, ONE_CONFIG) as project:
        shutil.copytree(seed.folder / ".orch" / "compiled", project.folder / ".orch" / "compiled")
        ran = project.with_variant("V4", "num_stages=4").orch("check", "--variant", "V4", "--json")
        assert (ran.code, ran.document["status"]) == (4, "same-binary")
        assert ran.document["baseline_configs"][0]["is_cached"]
        assert project.orch("push", "--variant", "V4").code == 4
        assert project.live.read_text() == ONE_CONFIG


# ---- what goes wrong in a compile


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CliProject]:
    """A project with a small kernel, quick to compile, and its baseline checked."""
    check = {"arch": "sm_120", "arguments": SMALL_ARGUMENTS}
    folder = tmp_path_factory.mktemp("small")
    with check_project(folder, SMALL, kernel="flash_mla_decode_kernel", check=check) as project:
        project.done("check")
        yield project


ROW = "    row = tl.program_id(0)\n"
BROKEN = {
    "import": ("import triton\n", "import nowhere.there\nimport triton\n", "    tl.static_assert(nowhere.there.X)\n"),
    "crash": (
        "import triton\n",
        "import ctypes\nimport triton\n\nX = ctypes.string_at(0)\n",
        "    tl.static_assert(X)\n",
    ),
    "endless": ("import triton\n", "import triton\n\nX = [None for _ in iter(int, 1)]\n", "    tl.static_assert(X)\n"),
    "wrong": ("import triton\n", "import triton\n\n", "    tl.static_assert(missing)\n"),
}
SAID = {
    "import": "needs the module nowhere.there, which is not installed",
    "crash": "crashed with SIGSEGV",
    "endless": "did not end within 2 s, killed",
    "wrong": "NameError('missing is not defined') at `tl.static_assert(missing)`",
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_kernel_that_cannot_be_compiled(small: CliProject, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An import that is not there, a crash, an endless loop, a mistake: one fatal line each, and push refuses."""
    monkeypatch.setitem(compiling.Compiler.__init__.__kwdefaults__, "deadline_s", 2.0 if name == "endless" else 60.0)
    head, replacement, line = BROKEN[name]
    small.done("variant", "new", name)
    edit(small, name, head, replacement)
    edit(small, name, ROW, ROW + line)
    ran = small.orch("check", "--variant", name)
    assert ran.code == 4
    assert bullets(ran.out)[0] == f"configs 0, 1 and 2 of {name} do not compile for sm_120: {SAID[name]}"
    assert "Traceback" not in ran.out + ran.err
    assert len(re.findall(r"^baseline \d .* warps$", ran.out, re.MULTILINE)) == 3
    if name == "wrong":
        push = small.orch("push", "--variant", name)
        assert push.code == 4 and SAID[name] in push.error


def test_one_config_that_does_not_compile(small: CliProject) -> None:
    """The other configs are reported as ever, and the variant can be measured."""
    small.done("variant", "new", "some")
    edit(small, "some", ROW, ROW + "    tl.static_assert(BLOCK_T < 32)\n")
    ran = small.orch("check", "--variant", "some")
    (said,) = [text for text in bullets(ran.out) if "compile" in text.partition(":")[0]]
    assert said.startswith("configs 1 and 2 of some do not compile for sm_120: ")
    assert re.search(r"^some 0 +BLOCK_T=16 warps=4 stages=2 +0\.50 ", ran.out, re.MULTILINE)


def test_a_list_that_is_computed(small: CliProject) -> None:
    """A comprehension is run where the compiler is; one that cannot be run here is told, and push goes on."""
    start, end = SMALL.index("    configs=["), SMALL.index('    key=["n_heads"')
    small.done("variant", "new", "computed")
    loop = '    configs=[triton.Config({"BLOCK_T": 16}, num_warps=w, num_stages=2) for w in (2, 4)],\n'
    edit(small, "computed", SMALL[start:end], loop)
    document = small.done("check", "--variant", "computed", "--json").document
    assert [(config["num_warps"], config["can_launch"]) for config in document["configs"]] == [(2, True), (4, True)]
    small.done("variant", "new", "foreign")
    edit(small, "foreign", "import triton\n", "import nowhere\nimport triton\n")
    edit(small, "foreign", SMALL[start:end], "    configs=nowhere.configs(),\n")
    ran = small.orch("check", "--variant", "foreign")
    assert (ran.code, ran.out) == (1, "")
    assert "the autotune list of foreign (flash_mla_decode_kernel) cannot be computed on this machine" in ran.error
    assert "No module named 'nowhere'" in ran.error
    pushed = small.done("push", "--variant", "foreign")
    assert "warning: not checked before the push: the autotune list of foreign" in pushed.err
    small.done("revert")


# ---- the host's Triton cache

COMPILE = """
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("engine_kernel", sys.argv[1])
module = importlib.util.module_from_spec(spec)
sys.modules["engine_kernel"] = module
spec.loader.exec_module(module)
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
asked = json.loads(sys.argv[3])
tuned = getattr(module, sys.argv[2])
attributes = {(tuned.arg_names.index(name),): [["tt.divisibility", 16]] for name in asked["divisible"]}
for config in tuned.configs:
    source = ASTSource(tuned.fn, asked["types"], {**asked["constants"], **config.kwargs}, attributes)
    options = {"num_warps": config.num_warps, "num_stages": config.num_stages}
    triton.compile(source, target=GPUTarget("cuda", 120, 32), options=options)
"""


def engine_forms(cache: Path) -> list[CachedKernel]:
    """What an engine's Triton leaves in its cache for the seed's kernel: a form for each config of its list."""
    lifted = lift([SourceFile.of("seed_kernel.py", SEED.encode())], seed_shape.KERNEL, modules={})
    known = signature(lifted, seed_shape.ARGUMENTS, given_by_config=("BLOCK_H", "BLOCK_T"), target="seed")
    asked = {"types": dict(known.types), "constants": dict(known.constants), "divisible": known.divisible_by_16}
    command = [sys.executable, "-c", COMPILE, str(seed_shape.FILE), seed_shape.KERNEL, json.dumps(asked)]
    subprocess.run(command, check=True, env={**os.environ, "TRITON_CACHE_DIR": str(cache)}, capture_output=True)
    return [
        CachedKernel(
            path.parent.name,
            seed_shape.KERNEL,
            path.with_suffix(".ttir").read_text(),
            json.loads(path.read_text()),
            triton.__version__,
            digest_of(SEED.encode()),
        )
        for path in sorted(cache.glob(f"*/{seed_shape.KERNEL}.json"))
    ]


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CliProject]:
    """A project whose inventory says nothing of the kernel's arguments, after a start of its engine."""
    forms = engine_forms(tmp_path_factory.mktemp("triton-cache"))
    assert len(forms) == 3
    with check_project(tmp_path_factory.mktemp("host"), SEED, check={}) as project:
        record_forms(project, forms)
        yield project


def record_forms(project: CliProject, forms: list[CachedKernel]) -> None:
    """An engine was ready with the baseline, and left these forms."""
    digest = digest_of(SEED.encode())
    version = forms[0].triton_version
    facts = store_records.environment(triton_version=version, compute_capability="12.0")
    project.record_start("baseline", digest, {1: 100.0}, at="2026-01-02T00:00:00+00:00", facts=facts)
    with Store.open(project.db) as store:
        trial_id = store.query("select max(id) from trials")[1][0][0]
        store.record_compiled_kernels(int(trial_id), forms)


def test_the_hosts_cache_serves_without_arguments(host: CliProject, seed: CliProject) -> None:
    """A variant of num_stages or num_warps is compiled from what the engine left, to the same as from the source."""
    ran = host.with_variant("V2", "num_stages=3").done("check", "--variant", "V2")
    assert f"compiled from the host's Triton cache with Triton {triton.__version__}" in ran.out.splitlines()[0]
    assert "note: " not in ran.out
    document = host.done("check", "--variant", "V2", "--json").document
    assert (document["source"], document["archs"]) == ("host-cache", ["sm_120"])
    (from_cache,) = document["configs"]
    (from_source,) = seed.done("check", "--sweep", "num_stages=3", "--json").document["points"]
    for key in ("shared_bytes", "n_registers", "spill_bytes", "binary_digest", "buffers", "tensor_cores"):
        assert from_cache[key] == from_source[key], key


def test_every_config_has_its_own_form(host: CliProject, seed: CliProject, wide: list[Point]) -> None:
    """A block of 16 heads and one of 32 are not taken for each other, though both have ranges of 16."""
    assert wide
    document = host.done("check", "--json").document
    assert document["source"] == "host-cache"
    assert [config["constants"]["BLOCK_H"] for config in document["configs"]] == [16, 32, 32]
    assert document["configs"][1]["binary_digest"] == wide[0]["binary_digest"]
    assert document["configs"][0]["binary_digest"] != document["configs"][1]["binary_digest"]


def test_a_tile_that_the_host_never_ran_needs_the_source(host: CliProject) -> None:
    """Its cache has no form of BLOCK_T 64, so that the arguments are asked for by name."""
    ran = host.with_variant("V64", "BLOCK_T=64").orch("check", "--variant", "V64")
    assert (ran.code, ran.out) == (2, "")
    assert "it needs the types of query_ptr," in ran.error and "the value of SPLITS" in ran.error


def test_an_edited_kernel_is_compiled_from_the_source(host: CliProject, tmp_path: Path) -> None:
    """What the host's cache holds is the baseline's code; the note says so."""
    with check_project(tmp_path, SEED, check={"arguments": seed_shape.ARGUMENTS}) as project:
        shutil.copytree(host.folder / ".orch" / "compiled", project.folder / ".orch" / "compiled")
        with Store.open(host.db) as store:
            forms = list(store.cached_kernels("flash_mla", digest_of(SEED.encode())))
        record_forms(project, forms)
        project.with_variant("V2", "num_stages=3")
        edit(project, "V2", "tl.exp2(top - new_top)", "tl.exp2(top - new_top) * 1.5")
        document = project.done("check", "--variant", "V2", "--json").document
        assert document["source"] == "source"
        assert document["caveats"] == [
            "compiled from the source, not from the host's Triton cache: the kernel's code is not the baseline's"
        ]
        assert document["configs"][0]["binary_digest"] is not None
