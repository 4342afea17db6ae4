"""What each command does for somebody who uses it as meant: the host is this machine, nothing is faked."""

from __future__ import annotations

import json
import shutil
import signal
import sqlite3
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator import inventory
from orchestrator.agent import copy_command
from orchestrator.records import Host, digest_of, short
from orchestrator.store.migrations import MIGRATIONS, migrate
from tests.support.cli_project import KERNEL, SECOND, CliProject, cli_project
from tests.support.store_records import environment
from tests.support.waiting import wait_until

BASE = digest_of(KERNEL.encode())


@pytest.fixture
def project(tmp_path: Path) -> Iterator[CliProject]:
    """A project whose target has one file."""
    with cli_project(tmp_path) as made:
        yield made


@pytest.fixture
def two_files(tmp_path: Path) -> Iterator[CliProject]:
    """A project whose target has two files; the second holds no kernel."""
    with cli_project(tmp_path, n_files=2) as made:
        yield made


# ---- init


def test_init_writes_what_a_project_needs(project: CliProject) -> None:
    """The new inventory is valid as it is, its schema is JSON, and git leaves alone what orch makes."""
    ran = project.done("init", "new/kernel")
    folder = project.folder / "new" / "kernel"
    assert inventory.load(folder / "inventory.yaml").targets
    assert json.loads((folder / "inventory.schema.json").read_text())["properties"]
    assert {"results.db", "variants/", ".orch/"} <= set((folder / ".gitignore").read_text().split())
    assert "fill in new/kernel/inventory.yaml, then run `orch pull` in new/kernel" in ran.out


def test_init_keeps_the_users_edits(project: CliProject) -> None:
    """A second init leaves files as they are and says so; a missing one is written again."""
    project.done("init", "new")
    edited = project.folder / "new" / "inventory.yaml"
    edited.write_text("# mine\n")
    (project.folder / "new" / ".gitignore").unlink()
    ran = project.done("init", "new", "--json")
    assert edited.read_text() == "# mine\n"
    assert ran.document["written"] == [".gitignore"]
    assert ran.document["kept"] == ["inventory.yaml", "inventory.schema.json"]
    assert "kept   new/inventory.yaml" in project.done("init", "new").out


# ---- pull


def test_pull_records_the_baseline(project: CliProject) -> None:
    """The bytes are on record and in a read-only copy, and the output has the digest and the next step."""
    ran = project.done("pull")
    copy = project.variants / "baseline" / "flash_mla.py"
    assert copy.read_text() == KERNEL and not copy.stat().st_mode & stat.S_IWUSR
    assert project.query("select digest from baselines") == [{"digest": BASE}]
    assert short(BASE) in ran.out and "MOVED" not in ran.out
    assert ran.out.splitlines()[-1].startswith("next: `orch variant new V1")


def test_pull_says_when_the_baseline_moved(project: CliProject) -> None:
    """A second pull of other bytes shows the diff; one of the same bytes does not."""
    project.pulled()
    assert "MOVED" not in project.done("pull").out
    project.live.write_text(KERNEL + "# a new release\n")
    out = project.done("pull").out
    assert "THE BASELINE MOVED since" in out and "+# a new release" in out
    assert project.done("pull", "--json").document["has_moved"] is False


def test_pull_refuses_a_live_variant(project: CliProject) -> None:
    """While a variant is live no pull takes it for the baseline, not even with --force."""
    project.with_variant("V2").done("push", "--variant", "V2")
    for words in (["pull"], ["pull", "--force"]):
        ran = project.orch(*words)
        assert ran.code == 1
        assert "variant V2 is deployed" in ran.error and "run `orch revert`" in ran.error
    assert project.query("select digest from baselines") == [{"digest": BASE}]


def test_pull_refuses_a_leftover_edit(project: CliProject) -> None:
    """A file that is byte for byte a known variant is refused as a baseline, unless it is meant."""
    project.with_variant("V2")
    project.live.write_bytes((project.variants / "V2" / "flash_mla.py").read_bytes())
    ran = project.orch("pull")
    assert ran.code == 1
    assert "byte for byte variant V2: a leftover edit?" in ran.error and "`orch pull --force`" in ran.error
    assert "MOVED" in project.done("pull", "--force").out


# ---- variants


def test_a_variant_is_made_by_knobs(project: CliProject) -> None:
    """--set leaves one config with the knobs that were set; every other line stays, and the reason is kept."""
    ran = project.pulled().done(
        "variant", "new", "V2", "--set", "num_stages=3", "--set", "BLOCK_T=64", "-m", "fewer, deeper"
    )
    text = (project.variants / "V2" / "flash_mla.py").read_text()
    assert 'triton.Config({"BLOCK_T": 64}, num_warps=4, num_stages=3),' in text and text.count("Config(") == 1
    assert set(text.splitlines()) - set(KERNEL.splitlines()) == {
        '        triton.Config({"BLOCK_T": 64}, num_warps=4, num_stages=3),'
    }
    assert "isolated: BLOCK_T 16 → 64, num_stages 2 → 3, configs 3 → 1" in ran.out
    assert ran.out.splitlines()[-1] == "next: `orch check --variant V2`"
    assert "hypothesis: fewer, deeper" in project.done("variant", "show", "V2").out


def test_a_variant_can_start_from_another(project: CliProject) -> None:
    """--from takes another variant's files; what it changes is still told against the baseline."""
    project.with_variant("V1", "BLOCK_T=64")
    project.done("variant", "new", "V2", "--from", "V1", "--set", "num_stages=3")
    assert project.done("variant", "show", "V2", "--json").document["summary"] == (
        "isolated: BLOCK_T 16 → 64, num_stages 2 → 3, configs 3 → 1"
    )


def test_knobs_can_be_set_in_an_edited_variant(project: CliProject) -> None:
    """--from with --set keeps the edit by hand beside the knobs, and says that it is not isolated."""
    project.pulled().done("variant", "new", "V3")
    path = project.variants / "V3" / "flash_mla.py"
    path.write_text(path.read_text().replace("* scale", "* scale * 1.0"))
    out = project.done("variant", "new", "V4", "--from", "V3", "--set", "num_stages=3").out
    assert "not isolated: num_stages 2 → 3" in out and "flash_mla_decode_kernel" in out
    text = (project.variants / "V4" / "flash_mla.py").read_text()
    assert "* scale * 1.0" in text and "num_stages=3" in text


def test_a_free_edit_names_the_function(project: CliProject) -> None:
    """A copy edited by hand is a variant too; it is not isolated, and the edited function is named."""
    ran = project.pulled().done("variant", "new", "V3")
    assert "unchanged" in ran.out and ran.out.splitlines()[-1] == "next: `orch variant edit V3`"
    path = project.variants / "V3" / "flash_mla.py"
    path.write_text(path.read_text().replace("* scale", "* scale * 1.0"))
    document = project.done("variant", "show", "V3", "--json").document
    assert (document["is_isolated"], document["edited_functions"]) == (False, ["flash_mla_decode_kernel"])
    assert document["summary"].startswith("not isolated: it changes flash_mla_decode_kernel")
    ran = project.done("push", "--variant", "V3")
    assert "warning: V3: not isolated: it changes flash_mla_decode_kernel" in ran.err


def test_the_editor_is_opened_on_the_working_copy(project: CliProject, monkeypatch: pytest.MonkeyPatch) -> None:
    """``variant edit`` runs $EDITOR on the file, then says what the variant changes."""
    project.pulled().done("variant", "new", "V3")
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", "sed -i s/num_stages=2/num_stages=4/")
    assert "num_stages 2 → 4" in project.done("variant", "edit", "V3").out


def test_listing_says_what_each_changes(project: CliProject) -> None:
    """``variant list`` names what every variant changes, also of one that is wrong, and tells broken ones apart."""
    project.with_variant("V1", "num_warps=8").done("variant", "new", "V2", "--set", "num_stages=3", "-m", "why not")
    project.done("variant", "new", "V3")
    (project.variants / "V3" / "flash_mla.py").write_text("def broken(:\n")
    (project.variants / "V4").mkdir()
    ran = project.done("variant", "list")
    rows = {line.split()[0]: line for line in ran.out.splitlines()}
    assert "num_warps 4 → 8" in rows["V1"] and rows["V2"].endswith("why not")
    assert "flash_mla.py:1" in rows["V3"]
    assert "warning: V4 cannot be read" in ran.err
    document = project.done("variant", "list", "--json").document
    assert [entry["name"] for entry in document["variants"]] == ["V1", "V2", "V3"]
    assert list(document["unreadable"]) == ["V4"]


def test_an_empty_list_says_how_to_begin(project: CliProject) -> None:
    """Without variants the list has the command that makes one."""
    assert "has no variants; make one with `orch variant new V1" in project.pulled().done("variant", "list").out


def test_diff_shows_a_variant_and_the_live_file(project: CliProject) -> None:
    """``diff V2`` is ``variant diff V2``; without a name it is the live file against the baseline."""
    project.with_variant("V2")
    shown = project.done("diff", "V2").out
    assert shown == project.done("variant", "diff", "V2").out
    assert '+        triton.Config({"BLOCK_T": 16}, num_warps=4, num_stages=3),' in shown.splitlines()
    ran = project.done("diff")
    assert ran.out == "" and "the live file is the recorded baseline" in ran.err
    project.done("push", "--variant", "V2")
    assert project.done("diff").out == shown


def test_a_dropped_variant_is_kept_aside(project: CliProject) -> None:
    """``drop`` takes a variant out of the workspace, deletes nothing, and its name is free again."""
    project.with_variant("V2")
    kept = project.folder / project.done("variant", "drop", "V2", "--json").document["kept"]
    assert (kept / "flash_mla.py").is_file()
    assert project.done("variant", "list", "--json").document["variants"] == []
    project.done("variant", "new", "V2", "--set", "num_stages=4")


def test_a_variant_of_an_older_baseline_is_stale(project: CliProject) -> None:
    """After the baseline moved the variant is marked everywhere and still shows its own diff, but is not pushed."""
    project.with_variant("V2")
    before = project.done("diff", "V2").out
    project.live.write_text(KERNEL + "# a new release\n")
    project.pulled()
    assert "older baseline" in project.done("variant", "list").out
    assert "older baseline" in project.done("status", "--offline").out
    assert "the baseline is now" in project.done("variant", "show", "V2").out
    assert project.done("diff", "V2").out == before
    ran = project.orch("push", "--variant", "V2")
    assert ran.code == 4
    assert "was made from baseline" in ran.error and "`orch diff V2`" in ran.error
    assert project.live.read_text() == KERNEL + "# a new release\n"


# ---- several files


def test_a_target_of_two_files_goes_as_one(two_files: CliProject) -> None:
    """A variant that edits the second file is pushed and reverted with the first; the file is named."""
    two_files.pulled().done("variant", "new", "V2", "--set", "num_stages=3")
    edited = two_files.variants / "V2" / "sizes.py"
    edited.write_text(SECOND.replace("PAGE_TOKENS = 64", "PAGE_TOKENS = 128"))
    document = two_files.done("variant", "show", "V2", "--json").document
    assert not document["is_isolated"] and "sizes.py: module (PAGE_TOKENS)" in document["summary"]
    assert [change["file"] for change in document["changes"]] == ["flash_mla.py", "flash_mla.py", "sizes.py"]
    assert "b/flash_mla.py" in two_files.done("diff", "V2").out and "b/sizes.py" in two_files.done("diff", "V2").out
    two_files.done("push", "--variant", "V2")
    assert "PAGE_TOKENS = 128" in two_files.second.read_text() and "num_stages=3" in two_files.live.read_text()
    assert "live       V2" in two_files.done("status").out
    two_files.done("revert")
    assert (two_files.live.read_text(), two_files.second.read_text()) == (KERNEL, SECOND)


def test_only_the_second_file_may_change(two_files: CliProject) -> None:
    """A variant whose first file is the baseline's is one all the same; --file opens the second."""
    two_files.pulled().done("variant", "new", "V5")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("VISUAL", raising=False)
        patch.setenv("EDITOR", "sed -i s/64/32/")
        out = two_files.done("variant", "edit", "V5", "--file", "sizes.py").out
    assert "not isolated: it changes sizes.py: module (PAGE_TOKENS)" in out
    two_files.done("push", "--variant", "V5")
    assert two_files.live.read_text() == KERNEL and "PAGE_TOKENS = 32" in two_files.second.read_text()


# ---- push, status, revert


def test_status_upgrades_the_record_of_an_older_orch(project: CliProject) -> None:
    """What only reads refuses it and says to run ``orch status``; that does it. --offline still only reads."""
    connection = sqlite3.connect(project.db, isolation_level=None)
    migrate(connection, MIGRATIONS[:-1])
    connection.close()
    for words in (["history"], ["status", "--offline"]):
        refused = project.orch(*words)
        assert refused.code == 1 and "`orch status`): it upgrades the file" in refused.error
    assert "not recorded yet: run `orch pull`" in project.done("status").out
    assert "no experiment is on record" in project.done("history").out


def test_push_status_revert(project: CliProject) -> None:
    """A push is live, seen by name with its lease, may be repeated and replaced, and is taken back byte for byte."""
    project.with_variant("V2").with_variant("V1", "num_warps=8")
    out = project.done("push", "--variant", "V2").out
    assert f"{short(BASE)} → " in out and "V2 is live on here until " in out
    assert "(already there)" in project.done("push", "--variant", "V2").out
    out = project.done("status").out
    assert "live       V2" in out and "lease      this project: " in out and "open       V2 pushed since" in out
    project.done("push", "--variant", "V1")
    assert "live       V1" in project.done("status").out
    assert "is restored" in project.done("revert").out
    assert project.live.read_text() == KERNEL
    assert "was clean already" in project.done("revert").out
    out = project.done("status").out
    assert "live       baseline" in out and "nobody holds it" in out and "open " not in out


def test_revert_with_nothing_deployed(project: CliProject) -> None:
    """Before any pull and any push, revert finds a clean host and says so."""
    ran = project.done("revert", "--json")
    assert ran.document["was_clean"] is True and ran.document["engine"] == "none"
    assert project.live.read_text() == KERNEL


def test_revert_needs_no_record(project: CliProject) -> None:
    """Without variants/ the host's own backup restores the file; without results.db it takes --force as well."""
    project.with_variant("V2").done("push", "--variant", "V2")
    shutil.rmtree(project.folder / "variants")
    assert f"is restored: {short(BASE)}" in project.done("revert").out
    assert project.live.read_text() == KERNEL
    project.with_variant("V2").done("push", "--variant", "V2")
    shutil.rmtree(project.folder / "variants")
    for path in project.folder.glob("results.db*"):
        path.unlink()
    ran = project.orch("revert")
    assert ran.code == 1 and "`orch revert --force`" in ran.error, "without the record the lease is a stranger's"
    assert f"is restored: {short(BASE)}" in project.done("revert", "--force").out
    assert project.live.read_text() == KERNEL


def test_a_foreign_edit_is_kept(project: CliProject) -> None:
    """An edit on top of a pushed variant is refused at revert; --force puts it aside on the host and restores."""
    project.with_variant("V2").done("push", "--variant", "V2")
    edit = project.live.read_text() + "# a colleague was here\n"
    project.live.write_text(edit)
    assert "UNKNOWN bytes" in project.done("status").out
    ran = project.orch("revert")
    assert ran.code == 1 and "edited by somebody else" in ran.error and "`orch revert --force`" in ran.error
    assert project.live.read_text() == edit
    (kept,) = project.done("revert", "--force", "--json").document["kept_foreign"]
    assert Path(kept).read_text() == edit and project.live.read_text() == KERNEL


def test_revert_leaves_an_edit_alone_when_nothing_is_deployed(project: CliProject) -> None:
    """An edit of the clean file is nobody's business to undo: refused, with what to do."""
    project.pulled()
    project.live.write_text("# a colleague was here\n")
    ran = project.orch("revert")
    assert ran.code == 1 and "somebody else's edit, left alone" in ran.error and "`orch pull`" in ran.error
    assert project.live.read_text() == "# a colleague was here\n"


def test_a_host_that_cannot_be_restored(project: CliProject, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 5 with digests and the command that repairs it; that command repairs it."""
    project.with_variant("V2").done("push", "--variant", "V2")
    monkeypatch.setenv("ORCH_FAIL", "restore-rename")
    ran = project.orch("revert")
    monkeypatch.delenv("ORCH_FAIL")
    assert ran.code == 5 and "is NOT RESTORED" in ran.error
    command = ran.error.partition("repair it with: ")[2]
    assert str(project.live) in command
    subprocess.run(command, shell=True, check=True)
    assert project.live.read_text() == KERNEL
    project.done("revert")


def test_a_damaged_backup_is_told(project: CliProject) -> None:
    """Where the host's backup is damaged nothing is overwritten, and exit code 5 brings the command that repairs it."""
    project.with_variant("V2").done("push", "--variant", "V2")
    pushed = project.live.read_bytes()
    backup = project.live.parent / ".orch-flash_mla.py" / "base"
    backup.write_text("damaged")
    ran = project.orch("revert")
    assert ran.code == 5 and "NOT RESTORED" in ran.error and "missing or damaged" in ran.error
    assert project.live.read_bytes() == pushed
    assert "by hand" in ran.evidence[0]
    subprocess.run(ran.evidence[1], shell=True, check=True)
    assert project.live.read_text() == KERNEL
    assert "proved by digest" in project.done("revert").out


# ---- status and drift


def test_offline_status_without_anything(project: CliProject) -> None:
    """Before the first pull the offline status says so, and leaves no file behind."""
    before = sorted(project.folder.iterdir())
    out = project.done("status", "--offline").out
    assert "baseline   none: run `orch pull`" in out and "record     0 engine starts" in out
    assert sorted(project.folder.iterdir()) == before


def test_status_before_the_first_pull(project: CliProject) -> None:
    """Bytes that were never pulled are not called unknown: they are not recorded yet."""
    out = project.done("status").out
    assert f"live       {short(BASE)}, not recorded yet: run `orch pull`" in out and "UNKNOWN" not in out


def test_drift_shows_who_changed_what(project: CliProject) -> None:
    """drift has the diff and the next step, keeps the change on record, and gives 3 only when asked to."""
    project.pulled()
    assert "as it should be" in project.done("drift", "--exit-code").out
    assert "no unexpected change" in project.done("drift", "--offline").out
    project.live.write_text(KERNEL + "# a colleague was here\n")
    out = project.done("drift").out
    assert "DRIFTED" in out and "+# a colleague was here" in out and "next: `orch pull` if the change is meant" in out
    assert project.orch("drift", "--exit-code").code == 3
    project.live.write_text(KERNEL)
    out = project.done("drift", "--exit-code").out
    assert "as it should be" in out and "on record: " in out and "flash_mla.py" in out


def test_drift_of_a_deployed_variant(project: CliProject) -> None:
    """What should be live is the pushed variant; an edit on top of it is undone by ``revert --force``."""
    project.with_variant("V2").done("push", "--variant", "V2")
    assert "as it should be (V2 " in project.done("drift").out
    with project.live.open("a") as file:
        file.write("# a colleague was here\n")
    out = project.done("drift").out
    assert "want V2 " in out and "next: `orch revert --force`" in out


# ---- compare

DAY = "2026-03-01T{:02}:00:00Z"


def recorded(project: CliProject, order: str, **facts: str) -> str:
    """A baseline and V2 with good starts in this order (A is the baseline); returns V2's digest."""
    project.with_variant("V2")
    v2 = str(project.done("variant", "show", "V2", "--json").document["digest"])
    for i, letter in enumerate(order):
        arm, digest, value = ("baseline", BASE, 100.0) if letter == "A" else ("V2", v2, 110.0)
        known = environment(**facts) if letter == "B" else None
        project.record_start(arm, digest, {1: value, 8: 4 * value}, at=DAY.format(i), facts=known)
    return v2


def test_compare_shows_ratios_and_gives_no_verdict(project: CliProject) -> None:
    """The table has every value and the ratio; the order of the starts decides what is said about a verdict."""
    recorded(project, "AABB")
    ran = project.done("compare", "V2")
    rows = [line.split() for line in ran.out.splitlines()]
    assert ["1", "100.0", "100.0", "110.0", "110.0", "2+2", "1.100"] in rows
    assert "verdict: none" in ran.out and "not counterbalanced" in ran.out
    assert "next: `orch run V2 --concurrency 1,8`" in ran.out


def test_compare_with_another_variant(project: CliProject) -> None:
    """--to names the arm that is compared with; the ratio turns round with the arms."""
    v2 = recorded(project, "AB")
    project.with_variant("V1", "num_warps=8")
    v1 = project.done("variant", "show", "V1", "--json").document["digest"]
    project.record_start("V1", v1, {1: 55.0}, at=DAY.format(9))
    document = project.done("compare", "V2", "--to", "V1", "--json").document
    assert (document["baseline"], document["variant"]) == ({"arm": "V1", "digest": v1}, {"arm": "V2", "digest": v2})
    assert {row["concurrency_cap"]: row["ratio"] for row in document["rows"]} == {1: pytest.approx(2.0), 8: None}
    assert document["order"] == ["B", "A"]


def test_compare_by_another_metric(project: CliProject) -> None:
    """A metric whose direction is down says so."""
    recorded(project, "AB")
    out = project.done("compare", "V2", "--metric", "ttft_ms_p50").out
    assert "ttft_ms_p50 [ms], lower is better" in out and "a ratio below 1 is a gain" in out


def test_unlike_runs_are_refused(project: CliProject) -> None:
    """Starts under another driver are not compared; the key and both values are named."""
    recorded(project, "AB", driver_version="560.01")
    ran = project.orch("compare", "V2")
    assert ran.code == 1
    assert "not comparable" in ran.error and "driver_version (550.54 against 560.01)" in ran.error
    assert any("driver_version" in line for line in ran.evidence)


def test_compare_without_measurements(project: CliProject) -> None:
    """What is not measured yet is named, with the commands that measure it."""
    project.with_variant("V2")
    ran = project.orch("compare", "V2")
    assert ran.code == 1
    assert "no good measurement of baseline" in ran.error and "`orch bench --concurrency 1,8`" in ran.error
    project.record_start("baseline", BASE, {1: 100.0}, at=DAY.format(0))
    ran = project.orch("compare", "V2")
    assert "no good measurement of V2" in ran.error
    assert "`orch push --variant V2 && orch bench --concurrency 1,8`" in ran.error


def test_an_edited_variant_has_no_measurements_yet(project: CliProject) -> None:
    """Numbers belong to bytes: after an edit the old ones are not shown as those of the new content."""
    recorded(project, "AB")
    with (project.variants / "V2" / "flash_mla.py").open("a") as file:
        file.write("# edited\n")
    assert "no good measurement of V2" in project.orch("compare", "V2").error


# ---- two at once, and Ctrl-C


def test_one_orch_at_a_time(project: CliProject) -> None:
    """While one orch measures, a second is refused with the pid of the first, status still answers, and Ctrl-C at the
    first ends it with 130, its trial stored as failed and its engine stopped."""
    project.with_variant("V2")
    text = project.inventory.read_text()
    project.inventory.write_text(text.replace("stop_grace_s: 5", "stop_grace_s: 5\n    ready_path: /nowhere"))
    with project.process("bench", "--concurrency", "1") as first:
        lock = project.folder / ".orch" / "flash_mla.lock"
        wait_until(lambda: f"pid {first.pid}\n" in lock.read_text())
        ran = project.orch("push", "--variant", "V2")
        assert ran.code == 1
        assert f"pid {first.pid})" in ran.error and "is at work on flash_mla" in ran.error
        wait_until(lambda: project.orch("status", "--json").document["now"]["engine"] is not None)
        first.send_signal(signal.SIGINT)
        out, err = first.communicate()
    assert (first.returncode, out) == (130, "")
    assert "interrupted: the load and the engine were stopped" in err and "Traceback" not in err
    assert project.query("select status from trials") == [{"status": "failed"}]
    document = project.done("status", "--json").document
    assert (document["now"]["engine"], document["now"]["lease"]) == (None, None)
    assert project.live.read_text() == KERNEL


def test_ctrl_c_is_130(project: CliProject, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in any command ends in one line and exit code 130."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("orchestrator.experiment.status.host_status", interrupted)
    ran = project.orch("status")
    assert ran.code == 130 and "Traceback" not in ran.err
    assert ran.err.splitlines()[-1] == "orch: interrupted"


# ---- options of every command


def test_the_inventory_may_lie_elsewhere(project: CliProject, monkeypatch: pytest.MonkeyPatch) -> None:
    """--inventory and ORCH_INVENTORY name a project; its record lies beside it, wherever orch was started."""
    elsewhere = project.folder / "elsewhere"
    elsewhere.mkdir()
    inside = CliProject(project.folder.parent)
    inside.folder = elsewhere
    assert inside.done("--inventory", str(project.inventory), "pull").code == 0
    monkeypatch.setenv("ORCH_INVENTORY", str(project.inventory))
    assert short(BASE) in inside.done("status", "--offline").out
    assert project.db.is_file() and list(elsewhere.iterdir()) == []


def test_debug_shows_the_traceback(project: CliProject) -> None:
    """Only --debug shows where an error came from."""
    with project.process("--debug", "push", "--variant", "V9") as process:
        _, err = process.communicate()
    assert process.returncode == 1 and err.startswith("Traceback") and "UnknownNameError" in err


def test_the_copy_command_reaches_the_host(tmp_path: Path) -> None:
    """Over SSH the repair by hand writes this machine's file into the host's, whatever is in their names."""
    local, remote = tmp_path / "it's mine.py", tmp_path / "a $b 'c.py"
    local.write_text(KERNEL)
    ssh = tmp_path / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/words\nfor last; do :; done\nexec sh -c "$last"\n')
    ssh.chmod(0o755)
    command = copy_command(Host(name="gpu-a", user="ann", port=2222), str(local), str(remote))
    subprocess.run(command, shell=True, check=True, env={"PATH": f"{ssh.parent}:/usr/bin:/bin"})
    assert remote.read_text() == KERNEL
    assert (tmp_path / "words").read_text().startswith("-l ann -p 2222 gpu-a cat > ")
