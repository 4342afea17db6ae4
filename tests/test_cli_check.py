"""``orch check`` as somebody uses it, with all that goes before and after: variants, pushes, the record.

The compile program is a stand-in that answers as the seed's kernel would, so none of this needs Triton; what the real
one says is in tests/kernel/test_check_command.py.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.check import compiling, environments
from orchestrator.records import digest_of
from orchestrator.store import Store
from orchestrator.verdicts import CachedKernel
from tests.support import store_records
from tests.support.check_project import (
    KERNEL,
    LAUNCHER,
    SEED_CHECK,
    STAND_IN,
    bullets,
    check_project,
    edit,
    with_configs,
)
from tests.support.cli_project import CliProject

BASE = digest_of(KERNEL.encode())
ONE_CONFIG = with_configs(KERNEL, 'triton.Config({"BLOCK_T": 16}, num_warps=4, num_stages=3)')
ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


@pytest.fixture(autouse=True)
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The stand-in in place of the compile program; the file in which it writes every request that it gets."""
    folder = tmp_path / "compiler"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "__main__.py").write_text(STAND_IN, encoding="utf-8")
    monkeypatch.setattr(compiling, "program_folder", lambda: folder)
    monkeypatch.setattr(environments, "own_version", lambda: "3.9.0")
    return folder / "seen"


@pytest.fixture
def project(tmp_path: Path) -> Iterator[CliProject]:
    """A project with the seed's kernel and its list of three configs."""
    with check_project(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CliProject]:
    """A project for questions that are refused before anything happens."""
    with check_project(tmp_path_factory.mktemp("untouched")) as made:
        yield made


@pytest.fixture
def one_config(tmp_path: Path) -> Iterator[CliProject]:
    """A project whose baseline has one config, with num_stages=3."""
    with check_project(tmp_path, ONE_CONFIG) as made:
        yield made


def n_starts(seen: Path) -> int:
    """How often the program was started."""
    return len(seen.read_text().splitlines()) if seen.exists() else 0


def asked(seen: Path) -> list[dict[str, Any]]:
    """Every job that the program was asked for."""
    return [job for line in seen.read_text().splitlines() for job in json.loads(line)["jobs"]]


def without_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on no compile program can be started."""
    monkeypatch.setattr(compiling, "_program", lambda _: pytest.fail("the compile program was started"))


# ---- one variant


def test_a_variant_is_checked_against_the_baseline(project: CliProject) -> None:
    """Tables, sentences, the choice of Triton, and the last line that says what to make of it; exit code 0."""
    project.with_variant("V2", "num_stages=5")
    ran = project.done("check", "--variant", "V2")
    assert "sparse_mla_decode, compiled from the source with Triton 3.9.0" in ran.out.splitlines()[0]
    assert re.search(r"^V2 +BLOCK_T=16 warps=4 stages=5 +70\.50 +1 +4 +shared", ran.out, re.MULTILINE)
    assert re.search(r"^V2 +255 +0 +0 +2× 16×512 fp8e4nv +mma\.sync m16n8k16 bf16 +1\.5$", ran.out, re.MULTILINE)
    assert "note: compiled with Triton 3.9.0; the host's version is not on record" in ran.out
    assert ran.out.splitlines()[-1] == "V2 can be measured"


@pytest.mark.slow
def test_what_num_stages_3_really_changes(project: CliProject) -> None:
    """No buffer of the large load more, one small index buffer, and the value that does add one."""
    (said,) = [
        text for text in bullets(project.with_variant().done("check", "--variant", "V2").out) if "3" in text[:14]
    ]
    assert said.startswith("num_stages=3 keeps one ")
    assert "(16×512 fp8e4nv, 8,192 B), as num_stages=2 does; 5 is the first with two" in said
    assert said.endswith("one more small buffer (16 i64, 128 B), which lets the index load start earlier")


def test_a_baseline_of_which_two_configs_cannot_launch(project: CliProject) -> None:
    """The seed's list: nobody was told that the autotuner had only one config left. Still worth measuring: exit 0."""
    ran = project.done("check")
    (said,) = [text for text in bullets(ran.out) if "cannot launch" in text]
    assert said.startswith("configs 1 and 2 of the baseline cannot launch on sm_120")
    assert said.endswith("104,704 B of shared memory and is allowed 101,376 B; the autotuner skips them without a word")
    assert len(re.findall(r"102\.25 .* does not fit", ran.out)) == 2


def test_a_variant_that_cannot_launch(project: CliProject) -> None:
    """The reason in numbers, the fatal sentence first, exit code 4."""
    ran = project.with_variant("V2", "BLOCK_T=32").orch("check", "--variant", "V2")
    assert ran.code == 4
    assert bullets(ran.out)[0].startswith("V2 cannot launch on sm_120: a block needs 104,704 B of shared memory")
    assert ran.out.splitlines()[-1] == "V2 is not worth GPU time: cannot launch"


def test_the_same_binary_as_the_baseline(one_config: CliProject) -> None:
    """Where num_stages=4 makes no other code than 3, the experiment cannot change anything: exit code 4."""
    ran = one_config.with_variant("V4", "num_stages=4").orch("check", "--variant", "V4")
    assert ran.code == 4
    assert bullets(ran.out)[0] == (
        "V4 compiles to the same binary as the baseline: this experiment cannot change anything"
    )
    assert one_config.done("query", "select status from checks", "--json").document == [{"status": "same-binary"}]


@pytest.mark.slow
def test_the_same_binary_as_another_variant(one_config: CliProject) -> None:
    """What was checked before is remembered: of two variants that are one binary one is enough."""
    one_config.with_variant("V5", "num_stages=5").with_variant("V6", "num_stages=6")
    assert "same binary" not in one_config.done("check", "--variant", "V5").out
    assert "V6 and V5 are the same binary: measure one of them" in bullets(
        one_config.done("check", "--variant", "V6").out
    )


@pytest.mark.slow
def test_an_edit_that_changes_no_binary_is_told_as_an_edit(one_config: CliProject) -> None:
    """A variant is not compared with its own name: what it was before the edit is told by its digest."""
    one_config.with_variant("V5", "num_stages=5").done("check", "--variant", "V5")
    edit(one_config, "V5", "LOG2E = ", "# a remark\nLOG2E = ")
    said = bullets(one_config.done("check", "--variant", "V5").out)
    assert any(
        re.fullmatch(r"V5 and V5 as it was \([0-9a-f]{12}\) are the same binary: measure one of them", text)
        for text in said
    )


@pytest.mark.slow
def test_a_crash_in_one_config_leaves_the_others(project: CliProject) -> None:
    """A compiler that crashes is one line and costs its own config alone."""
    project.done("variant", "new", "V2")
    edit(project, "V2", "LOG2E = ", "CRASHES = tl.constexpr(1)\nLOG2E = ")
    edit(project, "V2", "    split = tl.program_id(2)\n", "    split = tl.program_id(2) * CRASHES\n")
    ran = project.done("check", "--variant", "V2")
    assert "configs 1 and 2 of V2 do not compile for sm_120: crashed with SIGSEGV" in bullets(ran.out)
    assert re.search(r"^V2 0 +BLOCK_T=16 .* 60\.12 ", ran.out, re.MULTILINE)
    assert "Traceback" not in ran.out + ran.err


# ---- lists of other kinds


@pytest.mark.slow
def test_a_kernel_without_a_list(tmp_path: Path, seen: Path) -> None:
    """It has the launch options that the inventory names, and no program is asked for a list that is not there."""
    text = re.sub(r"@triton\.autotune\(\n.*?\n\)\n", "", KERNEL, flags=re.DOTALL)
    check = {**SEED_CHECK, "arguments": {**SEED_CHECK["arguments"], "BLOCK_T": 16, "num_warps": 8, "num_stages": 5}}
    with check_project(tmp_path, text, check=check) as project:
        (config,) = project.done("check", "--json").document["configs"]
        assert (config["num_warps"], config["num_stages"], config["shared_bytes"]) == (8, 5, 72_192)
        assert {job["do"] for job in asked(seen)} == {"compile"}


@pytest.mark.slow
def test_an_empty_list(tmp_path: Path) -> None:
    """Triton then runs its default of 4 warps and 3 stages; the value that no config sets is asked for by name."""
    with check_project(tmp_path, with_configs(KERNEL)) as project:
        ran = project.orch("check")
        assert ran.code == 2
        assert "it needs the value of BLOCK_T" in ran.error
        inventory = project.inventory.read_text()
        project.inventory.write_text(inventory.replace('"SPLITS": 8', '"SPLITS": 8, "BLOCK_T": 16'))
        (config,) = project.done("check", "--json").document["configs"]
        assert (config["num_warps"], config["num_stages"], config["constants"]) == (4, 3, {})


# ---- push


def test_push_refuses_the_same_binary(one_config: CliProject) -> None:
    """Exit code 4 and one line; the host is as it was, and no deployment is on record."""
    ran = one_config.with_variant("V4", "num_stages=4").orch("push", "--variant", "V4")
    assert (ran.code, ran.out) == (4, "")
    assert "this experiment cannot change anything; nothing was pushed" in ran.error and "--force" in ran.error
    assert one_config.live.read_text() == ONE_CONFIG
    assert [path.name for path in one_config.live.parent.iterdir() if "orch" in path.name] == []
    assert one_config.query("select id from deployments") == []


@pytest.mark.slow
@pytest.mark.parametrize(("setting", "status"), [("num_stages=4", "same-binary"), ("BLOCK_T=32", "cannot-launch")])
def test_force_pushes_what_is_refused_and_is_recorded(one_config: CliProject, setting: str, status: str) -> None:
    """With --force it goes live with a warning; the record has that, and the check that it went against."""
    one_config.with_variant("V4", setting)
    assert one_config.orch("push", "--variant", "V4").code == 4
    ran = one_config.done("push", "--variant", "V4", "--force", "--json")
    assert (ran.document["check"], ran.document["is_forced"]) == (status, True)
    assert f"warning: pushed against the check: {status.replace('-', ' ')}" in ran.err
    assert one_config.live.read_text() == (one_config.variants / "V4" / "flash_mla.py").read_text()
    assert one_config.query(
        "select is_forced, checks.status, checks.digest = deployments.digest as is_its"
        " from deployments join checks on checks.id = check_id"
    ) == [{"is_forced": 1, "status": status, "is_its": 1}]


@pytest.mark.slow
def test_force_on_a_good_variant_is_no_force(project: CliProject) -> None:
    """--force counts only against a refusal; the check of a good variant is recorded with its push."""
    ran = project.with_variant("V2", "num_stages=5").done("push", "--variant", "V2", "--force")
    assert "checked for sm_120 with Triton 3.9.0: ok" in ran.out
    assert project.query("select is_forced, check_id from deployments") == [{"is_forced": 0, "check_id": 1}]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("check", "why"),
    [
        ({"arguments": SEED_CHECK["arguments"]}, "no GPU architecture is known for host here"),
        ({"arch": "sm_120"}, "it needs the types of query_ptr, pool_fp8_ptr,"),
    ],
    ids=["no architecture", "no arguments"],
)
def test_what_cannot_be_checked_is_pushed_with_a_warning(tmp_path: Path, check: dict[str, Any], why: str) -> None:
    """A check that cannot be made says nothing against the variant: it is pushed, and the reason is told."""
    with check_project(tmp_path, ONE_CONFIG, check=check) as project:
        ran = project.with_variant("V4", "num_stages=4").done("push", "--variant", "V4", "--json")
        assert "warning: not checked before the push: " in ran.err and why in ran.err
        assert (ran.document["check"], ran.document["is_forced"]) == ("not-checked", False)
        assert project.live.read_text() != ONE_CONFIG
        assert project.query("select is_forced, check_id from deployments") == [{"is_forced": 0, "check_id": None}]
        assert project.query("select id from checks") == []


def test_another_launcher_with_the_same_kernel_is_an_experiment(one_config: CliProject) -> None:
    """An edit outside the kernel leaves its binary and changes the launch: said, not refused, and pushed."""
    one_config.done("variant", "new", "V2")
    edit(one_config, "V2", LAUNCHER, LAUNCHER.replace("(8, 1, 8)", "(8, 2, 8)"))
    ran = one_config.done("check", "--variant", "V2")
    assert "V2 has the same binary as the baseline: only the launcher differs" in bullets(ran.out)
    assert one_config.done("push", "--variant", "V2", "--json").document["check"] == "ok"
    assert "(8, 2, 8)" in one_config.live.read_text()


# ---- the cache


def test_a_second_check_starts_nothing(project: CliProject, seen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same question is answered from .orch/compiled, without a process, and the answers are the same."""
    project.with_variant("V2", "num_stages=5")
    first = project.done("check", "--variant", "V2", "--json").document
    n_before = n_starts(seen)
    without_program(monkeypatch)
    again = project.done("check", "--variant", "V2", "--json").document
    assert n_starts(seen) == n_before
    assert [config.pop("is_cached") for config in first["configs"]] == [False]
    assert [config.pop("is_cached") for config in again["configs"]] == [True]
    for document in (first, again):
        del document["checked_at"], document["baseline_configs"]
    assert again == first


@pytest.mark.slow
def test_the_cache_may_go_at_any_time(project: CliProject, seen: Path) -> None:
    """Without .orch/compiled, or with files cut short, everything is compiled again."""
    project.done("check")
    folder = project.folder / ".orch" / "compiled"
    assert list(folder.rglob("*.json"))
    for path in folder.rglob("*.json"):
        path.write_text("{")
    project.done("check")
    shutil.rmtree(folder)
    project.done("check")
    assert n_starts(seen) == 3


@pytest.mark.slow
def test_an_edit_that_changes_no_code_is_not_compiled_again(
    project: CliProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel that moved, and a file that was reformatted, are the kernel that was compiled before."""
    project.done("check")
    without_program(monkeypatch)
    project.done("variant", "new", "V2")
    edit(project, "V2", "LOG2E = ", "UNUSED = 3\n\n# a remark\n\nLOG2E = ")
    edit(project, "V2", "    query_ptr,\n    pool_fp8_ptr,\n", "    query_ptr, pool_fp8_ptr,  # on one line\n")
    document = project.done("check", "--variant", "V2", "--json").document
    assert [config["is_cached"] for config in document["configs"]] == [True, True, True]
    texts = " ".join(sentence["text"] for sentence in document["sentences"])
    assert "the edit moves the kernel from line 36 to 40" in texts and "only the launcher differs" in texts


# ---- the record and the document

KEYS = """target variant digest base_digest kernel status source archs triton_version host_triton_version n_configs
n_baseline_configs configs baseline_configs sentences caveats checked_at"""
CONFIG_KEYS = """index arch constants num_warps num_stages num_ctas maxnreg error error_kind can_launch why_not n_warps
shared_bytes shared_limit_bytes n_registers spill_bytes stack_bytes blocks_per_sm warps_per_sm max_warps_per_sm limiters
tensor_cores has_loop has_dot_in_loop n_kv_buffers buffers stages_buffers binary_digest triton_version compile_s
is_cached"""


def test_the_document_is_stable_and_stored(project: CliProject) -> None:
    """--json has every key whatever is known, and is word for word what the record keeps."""
    project.with_variant("V2", "BLOCK_T=32")
    ran = project.orch("check", "--variant", "V2", "--json")
    assert (ran.code, ran.document["status"]) == (4, "cannot-launch")
    assert set(ran.document) == set(KEYS.split())
    for config in (*ran.document["configs"], *ran.document["baseline_configs"]):
        assert set(config) == set(CONFIG_KEYS.split())
    assert {frozenset(sentence) for sentence in ran.document["sentences"]} == {
        frozenset(("kind", "text", "is_fatal", "arch"))
    }
    (row,) = project.query("select verdict from checks")
    assert json.loads(row["verdict"]) == ran.document


@pytest.mark.slow
def test_a_check_is_in_the_record(project: CliProject) -> None:
    """One row a check, one a config, with the digest of the variant's bytes; a repeated check is another row."""
    project.with_variant("V2", "num_stages=5").done("check", "--variant", "V2")
    project.done("check", "--arch", "sm_90,sm_120")
    variant_digest = digest_of((project.variants / "V2" / "flash_mla.py").read_bytes())
    assert project.query("select variant, digest, base_digest, kind, status, source, triton_version from checks") == [
        {
            "variant": name,
            "digest": digest,
            "base_digest": BASE,
            "kind": "offline",
            "status": "ok",
            "source": "source",
            "triton_version": "3.9.0",
        }
        for name, digest in (("V2", variant_digest), ("baseline", BASE))
    ]
    rows = project.query(
        "select check_id, i, arch, num_stages, shared_bytes, can_launch, n_kv_buffers from check_configs"
        " where check_id = 1 or i = 2"
    )
    assert [tuple(row.values()) for row in rows] == [
        (1, 0, 120, 5, 72_192, 1, 2),
        (2, 2, 90, 2, 104_704, 1, 1),
        (2, 2, 120, 2, 104_704, 0, 1),
    ]


# ---- which architecture, which Triton


def record_host(project: CliProject, **facts: str) -> None:
    """An engine was ready on a host with these facts."""
    project.record_start(
        "baseline", BASE, {1: 100.0}, at="2026-01-02T00:00:00+00:00", facts=store_records.environment(**facts)
    )


@pytest.mark.slow
def test_the_recorded_architecture_counts_before_the_inventorys(project: CliProject) -> None:
    """What the host was seen to have wins over ``check.arch``; --arch wins over both."""
    archs = [project.done("check", "--json").document["archs"]]
    record_host(project, compute_capability="9.0")
    archs += [project.done("check", *words, "--json").document["archs"] for words in ([], ["--arch", "sm_100a"])]
    assert archs == [["sm_120"], ["sm_90"], ["sm_100"]]


@pytest.mark.slow
def test_the_hosts_other_triton_is_named(project: CliProject) -> None:
    """Compiled with what is here: the caveat names both versions and how to have the host's."""
    record_host(project, triton_version="3.6.0", compute_capability="12.0")
    ran = project.done("check", "--json")
    assert (ran.document["triton_version"], ran.document["host_triton_version"]) == ("3.9.0", "3.6.0")
    assert ran.document["caveats"] == [
        "compiled with Triton 3.9.0, the host has 3.6.0: registers and buffers can differ; "
        "`--triton 3.6.0` compiles with the host's"
    ]
    record_host(project, triton_version="3.9.0+git1234", compute_capability="12.0")
    assert project.done("check").out.count("note: ") == 1


def test_without_any_architecture(tmp_path: Path) -> None:
    """One line that says the three ways to name it."""
    with check_project(tmp_path, check={"arguments": SEED_CHECK["arguments"]}) as project:
        ran = project.orch("check")
        assert (ran.code, ran.out) == (1, "")
        assert "no GPU architecture is known" in ran.error
        assert all(way in ran.error for way in ("--arch sm_120", "arch: sm_120", "`orch bench`"))


@pytest.mark.slow
def test_the_hosts_forms_are_recorded_as_one_config(tmp_path: Path) -> None:
    """Two specialisations of one config in the host's Triton cache: no arguments needed, one row in the record."""
    digest, options = digest_of(ONE_CONFIG.encode()), {"num_warps": 4, "num_stages": 3}
    texts = ("module {}", "module { %n_is_1 }")
    forms = [CachedKernel(text, "sparse_mla_decode", text, options, "3.9.0", digest) for text in texts]
    with check_project(tmp_path, ONE_CONFIG, check={}) as project:
        facts = store_records.environment(triton_version="3.9.0", compute_capability="12.0")
        project.record_start("baseline", digest, {1: 100.0}, at="2026-01-02T00:00:00+00:00", facts=facts)
        with Store.open(project.db) as store:
            store.record_compiled_kernels(1, forms)
        ran = project.with_variant("V2", "num_stages=5").done("check", "--variant", "V2")
        assert "compiled from the host's Triton cache with Triton 3.9.0" in ran.out.splitlines()[0]
        assert "note: the engine's Triton compiled up to 2 forms of one config" in ran.out
        assert project.query("select i, arch, shared_bytes from check_configs") == [
            {"i": 0, "arch": 120, "shared_bytes": 72_192}
        ]


# ---- a grid


def test_a_grid_is_one_table(project: CliProject) -> None:
    """Numbered in the order of the knobs as typed; what does not fit, the baseline, and duplicates are marked."""
    ran = project.done("check", "--sweep", "num_stages=2..7", "BLOCK_T=16,32")
    title, header, _, *rows = ran.out.split("\n\n")[1].splitlines()
    assert title == "sm_120: 3 of 12 points new; 99.00 KiB of shared memory allowed a block"
    assert header.split()[:4] == ["#", "stages", "BLOCK_T", "shared"]
    marks = {int(row.split()[0]): re.split(r"  +", row.strip())[-1] for row in rows}
    assert [marks[i] for i in range(1, 13, 2)] == ["= baseline", "new", "= 3", "new", "= 7", "new"]
    assert {marks[i] for i in range(2, 13, 2)} == {"does not fit"}
    shared = [row.split()[3] for row in rows[::2]]
    assert shared == ["60.12", "60.25", "60.25", "70.50", "70.50", "80.75"]
    assert ran.out.splitlines()[-1].startswith("next: `orch variant new --from-sweep 3`")


def test_points_become_variants(project: CliProject) -> None:
    """``all`` makes those worth GPU time, numbers make what they name; the same point is not made twice."""
    project.done("check", "--sweep", "num_stages=2..7", "BLOCK_T=16,32")
    assert made(project.done("variant", "new", "--from-sweep", "all", "--json")) == [
        "s3-BLOCK_T16",
        "s5-BLOCK_T16",
        "s7-BLOCK_T16",
    ]
    text = (project.variants / "s7-BLOCK_T16" / "flash_mla.py").read_text()
    assert text == with_configs(KERNEL, 'triton.Config({"BLOCK_T": 16}, num_warps=4, num_stages=7)')
    again = project.done("variant", "new", "--from-sweep", "3,9")
    assert "s3-BLOCK_T16" in again.out and "made before from the same point" in again.out
    assert "s6-BLOCK_T16" in again.out
    assert made(project.done("variant", "new", "deep", "--from-sweep", "11", "--json")) == ["deep"]


def made(ran: Any) -> list[str]:
    """Names of the variants that a command made."""
    return [one["name"] for one in ran.document["variants"]]


@pytest.mark.slow
def test_a_point_that_is_not_there(project: CliProject) -> None:
    """No sweep, no such number, or one name for two points: refused in one line, and nothing is made."""
    assert "run `orch check --sweep num_stages=2..5` first" in project.orch("variant", "new", "--from-sweep", "1").error
    project.done("check", "--sweep", "num_stages=2..4")
    for words, text in (
        (["--from-sweep", "4"], "the last sweep has no point 4: it has 1 to 3"),
        (["X", "--from-sweep", "1,2"], "2 variants cannot all be called X"),
        (["--from-sweep", "0"], "'0' is not a list of points, such as 3,7 or all"),
        (["--from-sweep", "1", "--set", "num_warps=8"], "leave --set and --from out"),
    ):
        ran = project.orch("variant", "new", *words)
        assert (ran.code, ran.out) == (2, "")
        assert text in ran.error
    assert project.done("variant", "list", "--json").document["variants"] == []


@pytest.mark.slow
def test_no_point_is_worth_it(project: CliProject) -> None:
    """A grid of what is too large or there already says so; its points are made only by number."""
    ran = project.done("check", "--sweep", "num_stages=2", "BLOCK_T=16,32")
    last = ran.out.splitlines()[-1]
    assert last == "no point is worth GPU time: each is too large, or the same as another or the baseline"
    refusal = project.orch("variant", "new", "--from-sweep", "all")
    assert refusal.code == 2 and "no point of the last sweep is worth GPU time" in refusal.error
    assert made(project.done("variant", "new", "--from-sweep", "2", "--json")) == ["s2-BLOCK_T32"]


def test_a_knob_of_the_launcher_can_be_swept_but_not_set(project: CliProject) -> None:
    """BLOCK_H is no knob of the list: three buffers fit at 32 too, and no variant can be made of it by a knob."""
    ran = project.done("check", "--sweep", "num_stages=2,7", "BLOCK_H=16,32", "--json")
    points = {(p["num_stages"], p["constants"]["BLOCK_H"]): p for p in ran.document["points"]}
    assert ran.document["unsettable"] == ["BLOCK_H"]
    assert {key: (point["verdict"], point["shared_bytes"]) for key, point in points.items()} == {
        (2, 16): ("baseline", 61_568),
        (2, 32): ("new", 80_000),
        (7, 16): ("new", 82_688),
        (7, 32): ("new", 101_120),
    }
    refusal = project.orch("variant", "new", "--from-sweep", "4")
    assert refusal.code == 2
    assert "the knob BLOCK_H, which the kernel's launcher sets" in refusal.error


@pytest.mark.slow
def test_a_sweep_of_other_bytes_is_not_used(project: CliProject) -> None:
    """After the baseline moved, or the variant was edited, its points mean nothing any more."""
    project.with_variant("V1", "num_warps=8")
    project.done("check", "--sweep", "--variant", "V1", "num_stages=3,5")
    edit(project, "V1", "tl.exp2(top - new_top)", "tl.exp2(top - new_top) * 1.0")
    ran = project.orch("variant", "new", "--from-sweep", "1")
    assert ran.code == 1 and "V1 is not what the last sweep compiled" in ran.error
    project.done("check", "--sweep", "num_stages=3,5")
    project.live.write_text(KERNEL + "# a new release\n")
    project.done("pull")
    ran = project.orch("variant", "new", "--from-sweep", "1")
    assert ran.code == 1 and "baseline is not what the last sweep compiled" in ran.error


@pytest.mark.slow
def test_points_of_a_variants_grid_keep_its_edits(project: CliProject) -> None:
    """A grid over a variant makes variants of that variant's files."""
    project.done("variant", "new", "V1")
    edit(project, "V1", "tl.exp2(top - new_top)", "tl.exp2(top - new_top) * 1.0")
    project.done("check", "--sweep", "--variant", "V1", "num_stages=5")
    (name,) = made(project.done("variant", "new", "--from-sweep", "all", "--json"))
    text = (project.variants / name / "flash_mla.py").read_text()
    assert "tl.exp2(top - new_top) * 1.0" in text and "num_stages=5" in text


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--sweep"], "--sweep wants knobs such as num_stages=2..7"),
        (["num_stages=2..7"], "'num_stages=2..7' is a knob of a grid: add --sweep"),
        (["--sweep", "num_stages="], "'num_stages=' names no values of a knob"),
        (["--sweep", "num_stage=2"], "no knob 'num_stage': try num_stages"),
        (["--sweep", "num_stages=7..2"], "the range 7..2 of num_stages is empty: write 2..7"),
        (["--sweep", "num_warps=3"], "num_warps cannot be 3: it can be 1, 2, 4, 8, 16 or 32"),
        (["--sweep", "num_warps=4", "num_warps=8"], "num_warps is swept twice"),
        (["--sweep", "BLOCK_T=1..100000"], "has more than 4,096 values"),
        (["--sweep", "num_warps=4", "--remote"], "and no --remote"),
        (["--remote"], "--remote judges a variant"),
        (["--arch", "hopper"], "'hopper' is no GPU architecture: write it like --arch sm_120"),
        (["--triton", "newest"], "'newest' is not a version of Triton: write it like --triton 3.6.0"),
        (["--variant", "V9"], "no variant 'V9'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_wrong_question_is_one_line_and_2(untouched: CliProject, seen: Path, words: list[str], text: str) -> None:
    """Refused before anything is compiled or recorded."""
    ran = untouched.orch("check", *words)
    assert (ran.code, ran.out) == (2, "")
    assert text in ran.error
    assert not seen.exists() and untouched.query("select id from checks") == []


# ---- where it is shown


@pytest.mark.slow
def test_it_fits_a_terminal_of_80_columns(project: CliProject) -> None:
    """With one meta-parameter no table is folded or wider than 80; the progress line is taken back."""
    project.with_variant("V2", "num_stages=5")
    for words in (["check", "--variant", "V2"], ["check", "--sweep", "num_stages=2..7", "BLOCK_T=16,32"]):
        shown = project.at_terminal(*words)
        assert shown.code == 0 and "\x1b[1m" in shown.out
        lines = ANSI.sub("", shown.out).splitlines()
        rules = [i for i, line in enumerate(lines) if set(line) == {"-", " "}]
        assert len(rules) == (2 if "--variant" in words else 1)
        assert all(len(line) <= 80 for i in rules for line in lines[i - 2 : i + 3])
        assert all("sm_120: " in lines[i - 2] for i in rules), "the header takes one line"


def test_a_pipe_gets_plain_text_and_progress_goes_elsewhere(project: CliProject) -> None:
    """No colours in a pipe; --json is the document alone, with the progress on standard error."""
    ran = project.done("check")
    assert "\x1b" not in ran.out + ran.err
    shutil.rmtree(project.folder / ".orch" / "compiled")
    ran = project.done("check", "--json")
    assert ran.document["variant"] == "baseline"
    assert "compiling sparse_mla_decode with Triton 3.9.0" in ran.err
