"""What a user can get wrong, or find wrong: one clear line, the right exit code, and nothing changed."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.store import SCHEMA_VERSION
from tests.support.cli_project import KERNEL, SECOND, CliProject, Ran, cli_project


@pytest.fixture
def project(tmp_path: Path) -> Iterator[CliProject]:
    """A project whose target has one file."""
    with cli_project(tmp_path) as made:
        yield made


@pytest.fixture
def two_files(tmp_path: Path) -> Iterator[CliProject]:
    """A project whose target has two files."""
    with cli_project(tmp_path, n_files=2) as made:
        yield made


def contents(folder: Path) -> dict[str, bytes | None]:
    """Every file and folder below one, to see that nothing changed; not what SQLite and .orch keep for themselves."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
        if path.name not in (".orch", "results.db-wal", "results.db-shm") and path.parent.name != ".orch"
    }


def refused(ran: Ran, code: int, *texts: str) -> None:
    """It failed with this code, in one line that holds these texts, and printed no result."""
    assert ran.code == code, (ran.out, ran.err)
    assert ran.out == ""
    missing = [text for text in texts if text not in ran.error]
    assert not missing, ran.error


# ---- the command line


@pytest.mark.parametrize(
    ("words", "texts"),
    [
        (["pul"], ["no command 'pul': did you mean pull?"]),
        (["frobnicate"], ["no command 'frobnicate': see `orch --help`"]),
        (["variant", "nwe", "V2"], ["no command 'nwe': did you mean new?"]),
        (["--inventroy", "x", "pull"], ["no such option", "--inventory"]),
        (["pull", "--froce"], ["no such option", "--froce", "`orch pull --help`"]),
        (["pull", "a", "b"], ["unexpected extra argument", "`orch pull --help`"]),
        (["push"], ["missing option '--variant'", "`orch push --help`"]),
        (["push", "--variant", "V2", "--ttl", "0"], ["'--ttl'", "`orch push --help`"]),
        (["push", "--variant", "V2", "--ttl", "soon"], ["'--ttl'", "soon"]),
        (["bench"], ["missing option '--concurrency'"]),
        (["variant", "new"], ["missing argument 'VARIANT'", "`orch variant new --help`"]),
        (["variant", "new", "--from-sweep", "3,x"], ["'3,x' is not a list of points, such as 3,7 or all"]),
        (["variant", "new", "--from-sweep", "1", "--from", "V1"], ["leave --set and --from out"]),
        (["check", "num_stages=3"], ["'num_stages=3' is a knob of a grid: add --sweep", "`orch check --help`"]),
        (["query", "select 1", "--json", "--csv"], ["--json and --csv exclude each other"]),
        (["--inventory", "nowhere.yaml", "pull"], ["nowhere.yaml: no such file", "`orch init`"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_wrong_use_is_one_line_and_2(project: CliProject, words: list[str], texts: list[str]) -> None:
    """A wrong command line is refused in one line that says where the help is; nothing is made."""
    before = contents(project.folder)
    refused(project.orch(*words), 2, *texts)
    assert contents(project.folder) == before


@pytest.mark.parametrize("group", [[], ["variant"]])
def test_a_group_without_a_command_shows_its_help(project: CliProject, group: list[str]) -> None:
    """``orch`` and ``orch variant`` alone list their commands."""
    ran = project.orch(*group)
    assert ran.code in (0, 2), "click says 2 since its 8.2"
    assert "Commands:" in ran.out + ran.err and "Error" not in ran.err


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("0", "'0' is not a concurrency"),
        ("-1", "'-1' is not a concurrency"),
        ("a", "'a' is not a concurrency"),
        ("1.5", "'1.5' is not a concurrency"),
        ("1e3", "'1e3' is not a concurrency"),
        ("1,1", "concurrency 1 is there twice"),
        ("8,1,08", "concurrency 8 is there twice"),
        ("1,,2", "'' is not a concurrency"),
        ("1,", "'' is not a concurrency"),
        ("", "'' is not a concurrency"),
        ("１", "'１' is not a concurrency"),
        ("1 2", "'1 2' is not a concurrency"),
    ],
)
def test_a_concurrency_is_a_whole_number_once(project: CliProject, text: str, why: str) -> None:
    """Anything but distinct whole numbers from 1 is refused before the host is asked."""
    ran = project.orch("bench", "--concurrency", text)
    refused(ran, 2, "'--concurrency'", why, "`orch bench --help`")
    assert "connecting" not in ran.err


@pytest.mark.parametrize(
    ("words", "texts"),
    [
        (["pull", "flash_mal"], ["no target 'flash_mal' in inventory.yaml: did you mean flash_mla?"]),
        (["status", "nix", "--offline"], ["no target 'nix' in inventory.yaml: targets: flash_mla"]),
        (["bench", "--concurrency", "1", "--workload", "shrot"], ["no workload 'shrot'", "did you mean short?"]),
        (["compare", "V1", "--metric", "ttft_p50"], ["no metric 'ttft_p50'", "did you mean", "ttft_ms_p50"]),
        (["compare", "V1", "--metric", "x"], ["no metric 'x': metrics: output_tokens_per_s, "]),
        (["compare", "V11"], ["no variant 'V11'", "did you mean V1"]),
        (["compare", "V1", "--to", "nix"], ["no variant 'nix'", "V1, other"]),
        (["push", "--variant", "ohter"], ["no variant 'ohter'", "did you mean other"]),
        (["variant", "show", "nix"], ["no variant 'nix'", "V1, other"]),
        (["variant", "diff", "nix"], ["no variant 'nix'"]),
        (["variant", "drop", "nix"], ["no variant 'nix'"]),
        (["variant", "edit", "nix"], ["no variant 'nix'"]),
        (["variant", "edit", "V1", "--file", "nix.py"], ["has no file 'nix.py': one of: flash_mla.py"]),
        (["variant", "new", "V2", "--from", "nix"], ["no variant 'nix'"]),
        (["diff", "nix"], ["no variant 'nix'"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_an_unknown_name_brings_the_nearest(project: CliProject, words: list[str], texts: list[str]) -> None:
    """Unknown targets, workloads, metrics, variants and files are refused with the names that there are."""
    project.with_variant("V1").with_variant("other", "num_warps=8")
    before = contents(project.folder)
    refused(project.orch(*words), 2, *texts)
    assert contents(project.folder) == before


# ---- the inventory


@pytest.mark.parametrize(
    ("old", "new", "texts"),
    [
        ("kernel:", "kernal:", ["inventory.yaml:17", "kernal", "did you mean kernel?"]),
        ("    files:", "    host: gpu-b\n    files:", ["inventory.yaml:16", "gpu-b", "here"]),
        ("stop_grace_s: 5", "stop_grace_s: soon", ["inventory.yaml:12", "stop_grace_s", "soon"]),
        ("hosts:", "hosts: [", ["inventory.yaml:"]),
        ("env: {", "env: {HF_TOKEN: hf_abcdefghijklmnopqrstuvwxyzabcdef, ", ["inventory.yaml:11", "HF_TOKEN"]),
        ("  flash_mla:", "  ../flash_mla:", ["inventory.yaml:15", "../flash_mla"]),
    ],
    ids=["unknown key", "unknown host", "wrong type", "not YAML", "secret", "name of a folder"],
)
def test_a_wrong_inventory_is_2_with_its_line(project: CliProject, old: str, new: str, texts: list[str]) -> None:
    """What is wrong in inventory.yaml is told with file and line, by every command, and nothing else happens."""
    text = project.inventory.read_text()
    assert old in text
    project.inventory.write_text(text.replace(old, new, 1))
    before = contents(project.folder)
    for words in (["pull"], ["status", "--offline"], ["variant", "list"], ["revert"]):
        ran = project.orch(*words)
        refused(ran, 2, *texts)
        assert "hf_abcdef" not in ran.err
    assert contents(project.folder) == before


# ---- variants


@pytest.mark.parametrize(
    ("setting", "code", "texts"),
    [
        ("num_stage=3", 4, ["no config of flash_mla_decode_kernel has a knob num_stage", "did you mean num_stages?"]),
        ("num_stages=deep", 4, ["num_stages=deep"]),
        ("num_warps=3", 4, ["num_warps takes a power of two"]),
        ("num_warps=0", 4, ["num_warps takes a whole number from 1"]),
        ("BLOCK_T=1.5", 4, ["BLOCK_T takes a whole number, and 1.5 is not"]),
        ("num_stages", 2, ["'num_stages' is not KNOB=VALUE, such as num_stages=3"]),
        ("=3", 2, ["'=3' is not KNOB=VALUE"]),
        ("num_stages=", 2, ["'num_stages=' is not KNOB=VALUE"]),
    ],
)
def test_a_wrong_knob(project: CliProject, setting: str, code: int, texts: list[str]) -> None:
    """A knob that is not there, or a value that does not fit, is refused, and no folder is left behind."""
    project.pulled()
    before = contents(project.folder)
    refused(project.orch("variant", "new", "V2", "--set", setting), code, *texts)
    assert contents(project.folder) == before


def test_a_knob_that_is_set_twice(project: CliProject) -> None:
    """Two values for one knob are refused; nobody guesses which was meant."""
    ran = project.pulled().orch("variant", "new", "V2", "--set", "num_stages=3", "--set", "num_stages=4")
    refused(ran, 2, "--set names num_stages twice")


def test_a_variant_that_changes_nothing(project: CliProject) -> None:
    """Setting what is set already is no variant: exit code 4, no folder. One left unedited is refused at push."""
    one_config = KERNEL.replace(
        KERNEL[KERNEL.index('        triton.Config({"BLOCK_T": 32}') : KERNEL.index("    ],")], ""
    )
    project.live.write_text(one_config)
    project.pulled()
    before = contents(project.folder)
    ran = project.orch("variant", "new", "V2", "--set", "num_stages=2", "--set", "BLOCK_T=16")
    refused(ran, 4, "variant V2 changes nothing", "set a knob to another value")
    assert contents(project.folder) == before
    project.done("variant", "new", "V3")
    ran = project.orch("push", "--variant", "V3")
    refused(ran, 4, "variant V3 changes nothing", "`orch variant edit V3`")
    assert project.live.read_text() == one_config


@pytest.mark.parametrize("words", [["push", "--variant", "V3"], ["variant", "show", "V3"]])
def test_a_variant_that_does_not_parse(project: CliProject, words: list[str]) -> None:
    """A broken edit is refused with file and line; the host is not asked, its file stays. Its diff can be seen."""
    project.pulled().done("variant", "new", "V3")
    path = project.variants / "V3" / "flash_mla.py"
    path.write_text(KERNEL.replace("row = tl.program_id(0)", "row = tl.program_id(0"))
    ran = project.orch(*words)
    refused(ran, 4, "flash_mla.py:")
    assert "connecting" not in ran.err and project.live.read_text() == KERNEL
    assert "-    row = tl.program_id(0)" in project.done("diff", "V3").out


def test_a_variant_whose_file_is_gone(project: CliProject) -> None:
    """A working copy without its file is told in one line by every command that needs it, and listed as unreadable."""
    project.with_variant("V2")
    (project.variants / "V2" / "flash_mla.py").unlink()
    for words in (["push", "--variant", "V2"], ["variant", "show", "V2"], ["diff", "V2"], ["compare", "V2"]):
        refused(project.orch(*words), 1, "V2", "flash_mla.py")
    assert "V2 cannot be read" in project.done("variant", "list").err
    assert "variant V2 cannot be read" in project.done("status", "--offline").err


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../V2", "a/b", ".hidden", "-x", "a b", "V\u0662", "baseline", "BASELINE"]
)
def test_a_name_that_cannot_be_one(project: CliProject, name: str) -> None:
    """A variant's name is a folder's name: nothing that leads elsewhere, hides, or is the baseline's."""
    project.pulled()
    before = contents(project.folder)
    ran = project.orch("variant", "new", "--set", "num_stages=3", "--", name)
    refused(ran, 2, "cannot")
    assert contents(project.folder) == before


@pytest.mark.parametrize("name", ["V2", "v2"])
def test_a_name_that_is_taken(project: CliProject, name: str) -> None:
    """A second variant of a name, in whatever case, is refused; the first stays as it was."""
    project.with_variant("V2")
    before = contents(project.folder)
    ran = project.orch("variant", "new", name, "--set", "num_stages=4")
    refused(ran, 1, "there is a variant V2 already", "`orch variant drop V2`")
    assert contents(project.folder) == before


def test_an_edited_pristine_copy(project: CliProject) -> None:
    """A pristine copy that somebody edited is not trusted; the next pull puts it aside and writes it anew."""
    project.pulled()
    copy = project.variants / "baseline" / "flash_mla.py"
    copy.chmod(0o644)
    copy.write_text("# edited\n")
    refused(project.orch("variant", "new", "V2", "--set", "num_stages=3"), 1, "was edited", "`orch pull flash_mla`")
    project.pulled()
    assert copy.read_text() == KERNEL
    project.with_variant("V2")


def test_an_editor_that_fails(project: CliProject, monkeypatch: pytest.MonkeyPatch) -> None:
    """An $EDITOR that is not there, or fails, is told in one line."""
    project.with_variant("V2")
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", "false")
    refused(project.orch("variant", "edit", "V2"), 1, "false", "failed")


@pytest.mark.parametrize("words", [["variant", "new", "V2"], ["push", "--variant", "V2"], ["diff"], ["drift"]])
def test_before_the_first_pull(project: CliProject, words: list[str]) -> None:
    """What needs a baseline says so and names ``orch pull``, or that there is no such variant."""
    ran = project.orch(*words)
    assert ran.code in (1, 2) and ran.out == ""
    assert "`orch pull" in ran.error or "has no variant 'V2'" in ran.error


# ---- the target on the host


def as_it_is(project: CliProject, *words: str) -> Ran:
    """Runs a command without root's right to read everything."""
    before: tuple[str, ...] = ()
    if os.geteuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("needs setpriv to give up root's right to read everything")
        caps = "-dac_override,-dac_read_search"
        before = ("setpriv", f"--inh-caps={caps}", f"--bounding-set={caps}")
    with project.process(*words, before=before) as process:
        out, err = process.communicate()
    return Ran(process.returncode, out, err)


@pytest.mark.parametrize("words", [["pull"], ["push", "--variant", "V2"]])
def test_a_missing_target(project: CliProject, words: list[str]) -> None:
    """A file that is not there is named; nothing is made in its place."""
    project.with_variant("V2")
    project.live.unlink()
    ran = project.orch(*words)
    refused(ran, 1, str(project.live))
    assert "missing" in ran.error or "no such file" in ran.error
    assert not project.live.exists()
    assert "a file is MISSING: restore it there" in project.done("status").out


@pytest.mark.parametrize("words", [["pull"], ["push", "--variant", "V2"], ["status"], ["revert"]])
def test_a_target_that_is_a_folder(project: CliProject, words: list[str]) -> None:
    """A folder in the target's place is refused by name."""
    project.with_variant("V2")
    project.live.unlink()
    project.live.mkdir()
    refused(project.orch(*words), 1, f"{project.live}: a directory", "inventory.yaml")


@pytest.mark.integration
@pytest.mark.parametrize("words", [["pull"], ["push", "--variant", "V2"]])
def test_an_unreadable_target(project: CliProject, words: list[str]) -> None:
    """A file that the login may not read is refused by name, and keeps its mode and bytes."""
    project.with_variant("V2")
    project.live.chmod(0)
    refused(as_it_is(project, *words), 1, f"{project.live}: not readable by this login")
    assert project.live.stat().st_mode & 0o777 == 0 and project.live.read_text() == KERNEL


@pytest.mark.integration
def test_a_folder_that_cannot_be_written(project: CliProject) -> None:
    """Where the login may not write beside the target the push is refused, and the target is untouched."""
    project.with_variant("V2")
    project.live.parent.chmod(0o555)
    refused(as_it_is(project, "push", "--variant", "V2"), 1, "could not write in", "the target is untouched")
    project.live.parent.chmod(0o755)
    assert project.live.read_text() == KERNEL


def test_a_symlinked_target(project: CliProject) -> None:
    """Through a symbolic link the real file is replaced and restored; the link stays a link."""
    real = project.live.with_name("real_flash_mla.py")
    project.live.rename(real)
    project.live.symlink_to(real.name)
    project.with_variant("V2")
    assert str(real) in project.done("push", "--variant", "V2").out
    assert project.live.is_symlink() and not real.is_symlink() and "num_stages=3" in real.read_text()
    assert f"{project.live} → {real}" in project.done("status").out
    project.done("revert")
    assert project.live.is_symlink() and real.read_text() == KERNEL


def test_a_link_to_nothing(project: CliProject) -> None:
    """A symbolic link whose file is gone is a missing target."""
    project.live.unlink()
    project.live.symlink_to("gone.py")
    refused(project.orch("pull"), 1, str(project.live))


def test_a_drifted_baseline_at_push(project: CliProject) -> None:
    """A file that changed since the pull is not overwritten: the diff, and what to run next."""
    project.with_variant("V2")
    project.live.write_text(KERNEL + "# a colleague was here\n")
    ran = project.orch("push", "--variant", "V2")
    refused(ran, 1, "nothing was written", "`orch drift`", "`orch pull`")
    assert "+# a colleague was here" in ran.evidence
    assert project.live.read_text() == KERNEL + "# a colleague was here\n"
    assert not list(project.live.parent.glob(".orch-*")), "no trace is left on the host"


def test_a_drifted_second_file_at_push(two_files: CliProject) -> None:
    """One drifted file of several stops the push of all."""
    two_files.with_variant("V2")
    two_files.second.write_text(SECOND + "# a colleague was here\n")
    ran = two_files.orch("push", "--variant", "V2")
    refused(ran, 1, "nothing was written")
    assert "+++ b/sizes.py" in ran.evidence
    assert two_files.live.read_text() == KERNEL


def test_a_long_diff_is_cut_and_says_so(project: CliProject) -> None:
    """Evidence is bounded; how much was left out is told."""
    project.with_variant("V2")
    project.live.write_text(KERNEL + "# a line\n" * 200)
    evidence = project.orch("push", "--variant", "V2").evidence
    assert len(evidence) == 61 and evidence[-1].startswith("… ") and evidence[-1].endswith(" more lines")


# ---- the record


def test_a_record_that_is_a_folder(project: CliProject) -> None:
    """A results.db that is a folder is refused by every command that records or reads."""
    project.db.mkdir()
    for words in (["pull"], ["status"], ["status", "--offline"], ["query", "select 1"], ["compare", "V2"]):
        refused(project.orch(*words), 1, "results.db is a folder")


def test_a_record_that_is_no_database(project: CliProject) -> None:
    """A results.db of another program is refused and left as it is."""
    project.db.write_text("notes of mine\n")
    for words in (["pull"], ["status", "--offline"], ["query", "select 1"]):
        refused(project.orch(*words), 1, "is not an SQLite database; it was left as it is")
    assert project.db.read_text() == "notes of mine\n"


def test_a_record_of_a_newer_orch(project: CliProject) -> None:
    """A results.db with a newer schema is refused, and the way out is to upgrade."""
    project.pulled()
    connection = sqlite3.connect(project.db)
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    connection.close()
    for words in (["pull"], ["status", "--offline"], ["query", "select 1"], ["drift", "--offline"]):
        refused(project.orch(*words), 1, f"has schema {SCHEMA_VERSION + 1}", "upgrade orch")


@pytest.mark.parametrize("words", [["query", "select 1"], ["drift", "--offline"]])
def test_no_record_yet(project: CliProject, words: list[str]) -> None:
    """Asking a record that is not there makes none, and names ``orch pull``."""
    refused(project.orch(*words), 1, "nothing has been recorded here yet", "`orch pull`")
    assert not project.db.exists()


@pytest.mark.parametrize(
    ("sql", "texts"),
    [
        ("selekt 1", ["the query is not understood", 'near "selekt"']),
        ("select nix from results", ["no such column: nix"]),
        ("select * from nix", ["no such table: nix", "results"]),
        ("", ["there is no statement in the query"]),
        ("select 1; select 2", ["more than one statement"]),
        ("delete from metrics", ["a query may only read", "delete from metrics"]),
        ("insert into trials default values", ["a query may only read", "insert into trials"]),
        ("drop view results", ["a query may only read"]),
        ("attach 'other.db' as other", ["a query may only read"]),
        ("pragma user_version = 99", ["a query may only read"]),
        ("vacuum", ["a query may only read"]),
        ("select cast(x'ff' as text)", ["UTF-8"]),
        ("select ?", ["binding"]),
    ],
)
def test_a_query_may_only_read(project: CliProject, sql: str, texts: list[str]) -> None:
    """SQL that is wrong or would write is refused in one line, prints nothing, and changes nothing."""
    project.pulled()
    before = contents(project.folder)
    for options in ([], ["--json"], ["--csv"]):
        refused(project.orch("query", sql, *options), 1, *texts)
    assert contents(project.folder) == before


# ---- the user's own disk


def test_a_folder_that_cannot_be_made(project: CliProject) -> None:
    """``orch init`` below a file is refused by name."""
    (project.folder / "file").write_text("")
    refused(project.orch("init", "file"), 2, "file")
    refused(project.orch("init", "file/sub"), 2, "file/sub cannot be made a folder")


@pytest.mark.integration
@pytest.mark.parametrize("words", [["pull"], ["init"], ["variant", "new", "V9", "--set", "num_stages=4"]])
def test_a_project_that_cannot_be_written(project: CliProject, words: list[str]) -> None:
    """A read-only project is refused in one line without a traceback; what only reads still works."""
    project.with_variant("V2")
    for folder in (project.folder, project.folder / ".orch", project.variants):
        folder.chmod(0o555)
    (project.folder / ".orch" / "flash_mla.lock").chmod(0o444)
    ran = as_it_is(project, *words)
    offline = as_it_is(project, "status", "--offline")
    for folder in (project.folder, project.folder / ".orch", project.variants):
        folder.chmod(0o755)
    refused(ran, 1)
    assert "Permission denied" in ran.error and "debug" not in ran.error
    assert offline.code == 0 and "V2" in offline.out


def test_a_load_that_cannot_be_made_is_refused_before_the_engine_starts(project: CliProject) -> None:
    """An engine of a kind that takes no load of ours: `orch bench` and `orch run` say so, and nothing is started."""
    project.inventory.write_text(
        project.inventory.read_text().replace("  stub:\n", "  stub:\n    kind: transformers\n")
    )
    project.done("pull")
    project.done("variant", "new", "V1", "--set", "num_stages=3")
    for words in (["bench", "--concurrency", "1"], ["run", "V1", "--concurrency", "1", "--pairs", "4", "--force"]):
        refused(project.orch(*words), 1, "engine stub is transformers: it takes no ignore_eos", "llama-server")
    assert project.done("query", "select count(*) as n from trials", "--json").document == [{"n": 0}]
