"""``orch doctor`` on this machine as host: what it says of a good chain, and of each thing that can be wrong in it."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator import serve
from orchestrator.doctor import gpu, host, host_facts, target
from orchestrator.doctor.host_facts import HostFacts
from orchestrator.project import Project
from orchestrator.records import Engine, EngineProcess, Host, Target, TargetFile
from orchestrator.session import open_session
from tests.support.cli_project import KERNEL, CliProject, cli_project
from tests.support.tiny_host import until

pytestmark = pytest.mark.slow  # half a minute in all: real processes, leases that end

NOBODY = 65534
IS_ROOT = os.getuid() == 0
ENGINE_NAMES = ["engine command", "engine folder", "engine url", "engine port", "module", "versions", "load client"]
HOST_NAMES = [
    *("round trip", "host tools", "clock", "scratch folder", "target file", "target disk", "live bytes", "kernel"),
    *("deployment", "kept files", "run folders", "engine process", "engine python", *ENGINE_NAMES, "gpu"),
]
NAMES = ["inventory", "ssh config", *HOST_NAMES, "workloads", "results.db", "workspace"]


class Report:
    """What one run of ``orch doctor --json`` said."""

    def __init__(self, code: int, document: dict[str, Any]) -> None:
        self.code = code
        self.document = document
        self.findings: list[dict[str, Any]] = document["findings"]
        for finding in self.findings:
            assert finding["status"] in ("ok", "warn", "fail", "skipped")
            assert finding["text"] and "\n" not in finding["text"]
            assert finding["next_step"] or finding["status"] != "fail", finding
        assert code == (1 if self.with_status("fail") else 0)

    def __getitem__(self, name: str) -> dict[str, Any]:
        """The only finding of a name."""
        (found,) = (finding for finding in self.findings if finding["name"] == name)
        return found

    def with_status(self, status: str) -> set[str]:
        """Names of the findings with a status."""
        return {finding["name"] for finding in self.findings if finding["status"] == status}


def doctor(project: CliProject, *words: str) -> Report:
    """Runs ``orch doctor --json``."""
    ran = project.orch("doctor", *words, "--json")
    assert ran.err == ""
    return Report(ran.code, ran.document)


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The machine that runs the tests may have a GPU: its nvidia-smi is hidden behind one that is not there."""
    if shutil.which("nvidia-smi"):
        tools = tmp_path / "tools-without-smi"
        link_tools(tools, [path.name for path in Path("/usr/bin").iterdir() if path.name != "nvidia-smi"])
        monkeypatch.setenv("PATH", str(tools))


@pytest.fixture
def project(tmp_path: Path) -> Iterator[CliProject]:
    """A project before its first pull; the host is this machine."""
    with cli_project(tmp_path) as made:
        yield made


def link_tools(folder: Path, names: list[str]) -> None:
    """A folder that holds exactly these programs of this machine."""
    folder.mkdir()
    for name in names:
        found = shutil.which(name)
        if found:
            (folder / name).symlink_to(found)


def program(folder: Path, name: str, text: str) -> Path:
    """An executable sh script."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def edit(project: CliProject, before: str, after: str) -> None:
    """Changes inventory.yaml."""
    text = project.inventory.read_text()
    assert before in text
    project.inventory.write_text(text.replace(before, after))


def add_to_engine(project: CliProject, line: str) -> None:
    """Adds a key to the engine."""
    edit(project, "    stop_grace_s: 5\n", f"    stop_grace_s: 5\n    {line}\n")


# ---- a good chain


def test_a_good_chain_has_no_failure(project: CliProject) -> None:
    """Before the first pull everything is ok, every check has its name, and the JSON keys are the documented ones."""
    report = doctor(project)
    assert [finding["name"] for finding in report.findings] == NAMES
    assert report.code == 0
    assert report.with_status("fail") == set()
    assert report.with_status("warn") == set()
    assert report.with_status("skipped") == {"ssh config"}
    assert {key: report.document[key] for key in ("target", "host", "engine")} == {
        "target": "flash_mla",
        "host": "here",
        "engine": "stub",
    }
    counts = [report.document[f"n_{what}"] for what in ("ok", "warnings", "failures", "skipped")]
    assert counts == [len(NAMES) - 1, 0, 0, 1]
    assert set(report.findings[0]) == {"name", "status", "text", "next_step", "evidence"}


def test_values_are_told(project: CliProject) -> None:
    """A line has the values that were found, not only that they are fine."""
    report = doctor(project.pulled())
    assert "3 configs; BLOCK_T 16|32, num_warps 4|8, num_stages 2" in report["kernel"]["text"]
    assert f"{project.live}: {project.live.stat().st_size / 1024:.3g} KiB, mode 644" in report["target file"]["text"]
    assert report["module"]["text"] == f"kernels.flash_mla is {project.live}"
    assert report["engine python"]["text"].endswith("is Python " + ".".join(map(str, sys.version_info[:3])))
    assert report["live bytes"]["text"].startswith("baseline ")
    assert report["gpu"]["text"] == "no GPU seen (CPU host): fine for the demo engine"
    assert "free on" in report["scratch folder"]["text"]
    assert "variants: none" in report["workspace"]["text"]
    assert "0 engine starts" in report["results.db"]["text"]


def test_text_is_aligned_and_summed_up(project: CliProject) -> None:
    """For a person: status, name and text in columns, the next step below, and one line that counts."""
    (project.live.parent / ".orch.mutex").symlink_to("123.4.5.somewhere")
    ran = project.orch("doctor")
    lines = ran.out.splitlines()
    assert ran.code == 0
    assert lines[0].startswith("ok      inventory      ")
    at = next(i for i, line in enumerate(lines) if line.startswith("warn    kept files     a lock is there"))
    assert lines[at + 1].startswith(" " * 23 + "→ ")
    assert lines[-1] == f"{len(NAMES) - 2} ok, 1 warning, 0 failures, 1 skipped"
    assert "\x1b" not in ran.out
    assert "\x1b[33mwarn" in project.at_terminal("doctor").out


def test_it_changes_nothing(project: CliProject) -> None:
    """Looking leaves every file of host and project as it was, also with a variant deployed and an engine running."""
    project.with_variant("V2")
    project.done("push", "--variant", "V2")
    with running_engine(project):
        before = picture(project)
        doctor(project)
        assert picture(project) == before


def picture(project: CliProject) -> dict[str, tuple[int, int, int]]:
    """Every file and folder with inode, size and time of change. SQLite's own log files are nobody's content."""
    return {
        str(path): (path.lstat().st_ino, path.lstat().st_size, path.lstat().st_mtime_ns)
        for root in (project.folder, project.site, project.scratch)
        for path in root.rglob("*")
        if not path.name.endswith((".log", "-shm", "-wal")) and path.name not in ("__pycache__", "project")
    }


@contextlib.contextmanager
def running_engine(project: CliProject) -> Iterator[EngineProcess]:
    """The project's engine as orch starts it, stopped at the end."""
    opened = Project.open(project.inventory)
    with open_session(opened, None) as session:
        process = serve.start(session.remote, session.engine, deployed_digest=None)
    try:
        yield process
    finally:
        with open_session(opened, None) as session:
            serve.stop(session.remote, session.engine)


# ---- this machine


def test_a_wrong_inventory_is_a_failure(project: CliProject) -> None:
    """Its message names the line, and nothing else is tried."""
    edit(project, "transport: local", "transport: lokal")
    report = doctor(project)
    assert report.code == 1
    assert [finding["name"] for finding in report.findings] == ["inventory"]
    assert "transport" in report["inventory"]["text"] + "".join(report["inventory"]["evidence"])


def test_an_unknown_target_is_wrong_use(project: CliProject) -> None:
    """A target that is not in the inventory is refused with the names there."""
    ran = project.orch("doctor", "flash")
    assert ran.code == 2
    assert "flash_mla" in ran.error


def test_a_foreign_database(project: CliProject) -> None:
    """A results.db that is no database fails, and the host is looked at all the same."""
    project.db.write_text("hello\n" * 100)
    report = doctor(project)
    assert report.with_status("fail") == {"results.db"}
    assert "not an SQLite database" in report["results.db"]["text"]


def test_an_edited_baseline(project: CliProject) -> None:
    """A pristine copy that was edited is a failure that names `orch pull`."""
    project.pulled()
    copy = project.variants / "baseline" / "flash_mla.py"
    copy.chmod(0o644)
    copy.write_text("# edited\n")
    report = doctor(project)
    assert report.with_status("fail") == {"workspace"}
    assert "was edited" in report["workspace"]["text"]
    assert "orch pull" in report["workspace"]["next_step"]


def test_an_unreadable_variant(project: CliProject) -> None:
    """A variant whose record is gone is named."""
    project.with_variant("V2")
    (project.variants / "V2" / "variant.json").unlink()
    report = doctor(project)
    assert report.with_status("fail") == {"workspace"}
    assert "V2" in report["workspace"]["text"]


def test_a_workload_that_the_engine_cannot_take(project: CliProject) -> None:
    """A workload that flushes a cache which the engine cannot flush fails before any load."""
    edit(project, "    warmup_per_concurrency: 1\n", "    warmup_per_concurrency: 1\n    cache_policy: flush\n")
    report = doctor(project)
    assert report.with_status("fail") == {"workloads"}
    assert "cache_flush_path" in report["workloads"]["next_step"]


# ---- the target


def test_target_is_missing(project: CliProject) -> None:
    """A missing file fails with how far its path goes; what can still be checked is."""
    shutil.rmtree(project.live.parent)
    report = doctor(project)
    assert f"as far as {project.site} it can be seen" in report["target file"]["text"]
    assert report["kernel"]["status"] == "skipped"
    assert report["load client"]["status"] == "ok"
    assert report.with_status("fail") == {"target file", "module"}


@pytest.mark.parametrize("kind", ["folder", "link to nothing", "pipe"])
def test_target_is_no_file(project: CliProject, kind: str) -> None:
    """A folder, a dangling link and a pipe are each called what they are, and none of them is opened."""
    project.live.unlink()
    if kind == "folder":
        project.live.mkdir()
    elif kind == "pipe":
        os.mkfifo(project.live)
    else:
        project.live.symlink_to("nowhere.py")
    report = doctor(project)
    words = {"folder": "is a folder", "pipe": "is no regular file", "link to nothing": "is a symbolic link to nothing"}
    assert words[kind] in report["target file"]["text"]
    assert "files: of target flash_mla" in report["target file"]["next_step"]


def test_links_are_told(project: CliProject) -> None:
    """A symbolic link is shown with the file behind it, a hard link is counted; both are fine."""
    real = project.site / "real.py"
    project.live.rename(real)
    project.live.symlink_to(real)
    (project.site / "other.py").hardlink_to(real)
    text = doctor(project)["target file"]["text"]
    assert text.startswith(f"{project.live} → {real}: ")
    assert "2 hard links" in text


def facts_as(uid: int, *paths: Path, before: tuple[str, ...] = ()) -> HostFacts:
    """What the real script sees for another login."""
    words = ["", sys.executable, "/", "", "true", "", "cat", *map(str, paths)]
    become = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
    done = subprocess.run(
        [*before, *become, "/bin/sh", "-c", host_facts.SCRIPT, "orch", *words], capture_output=True, check=True
    )
    return HostFacts(host_facts.parse(done.stdout))


def target_of(*paths: Path) -> Target:
    """A target of these files."""
    files = tuple(TargetFile(path=str(path), name=path.name) for path in paths)
    return Target(name="t", host="gpu-a", engine="e", files=files, kernel="k")


@pytest.mark.skipif(not IS_ROOT, reason="needs another user to look as")
def test_rights_of_another_login() -> None:
    """Not readable, in a folder that may not be written, and another's file: each is told, with whom to log in as."""
    folder = Path(
        subprocess.run(["mktemp", "-d", "/tmp/orch-test-XXXXXX"], capture_output=True, check=True)
        .stdout.decode()
        .strip()
    )
    try:
        folder.chmod(0o777)
        (folder / "closed").mkdir()
        (folder / "closed").chmod(0o755)
        paths = [folder / "secret.py", folder / "closed" / "k.py", folder / "others.py", folder / "own.py"]
        for path in paths:
            path.write_text("x = 1\n")
        paths[0].chmod(0o600)
        os.chown(paths[3], NOBODY, NOBODY)
        found = list(target.check_files(target_of(*paths), facts_as(NOBODY, *paths)))
    finally:
        shutil.rmtree(folder)
    assert [finding.status for finding in found] == ["fail", "fail", "warn", "ok"]
    assert "may not read it" in found[0].text
    assert f"may not write its folder {folder / 'closed'}" in found[1].text
    assert "owner root:root" in found[2].text
    assert all("log in as root: set user: of host gpu-a" in str(finding.next_step) for finding in found[:3])


@pytest.mark.skipif(not IS_ROOT, reason="needs a mount")
def test_a_file_that_is_a_mount(tmp_path: Path) -> None:
    """A file that is bind-mounted cannot be replaced by a rename, and that is told before a push tries."""
    live, other = tmp_path / "k.py", tmp_path / "other.py"
    live.write_text("x = 1\n")
    other.write_text("x = 2\n")
    mount = f'mount --bind {shlex.quote(str(other))} {shlex.quote(str(live))} && exec "$@"'
    if subprocess.run(["unshare", "-m", "/bin/sh", "-c", mount, "sh", "true"], capture_output=True).returncode:
        pytest.skip("no mount can be made here")
    facts = facts_as(0, live, before=("unshare", "-m", "/bin/sh", "-c", mount, "sh"))
    (found,) = target.check_files(target_of(live), facts)
    assert (found.status, "is a mount of its own" in found.text) == ("fail", True)


def test_unknown_bytes_are_a_warning(project: CliProject) -> None:
    """An edit behind orch's back is told, with `orch drift`."""
    project.pulled()
    project.live.write_text(KERNEL + "# a colleague\n")
    found = doctor(project)["live bytes"]
    assert found["status"] == "warn"
    assert "unknown to this project" in found["text"]
    assert "`orch drift flash_mla`" in found["next_step"]


def test_a_leftover_edit_is_named(project: CliProject) -> None:
    """Bytes of a variant that orch did not push are called by its name."""
    project.with_variant("V2")
    shutil.copy(project.variants / "V2" / "flash_mla.py", project.live)
    found = doctor(project)["live bytes"]
    assert found["status"] == "warn"
    assert "byte for byte variant V2, which orch did not push" in found["text"]


@pytest.mark.parametrize(
    ("text", "status", "words"),
    [
        (KERNEL.replace("flash_mla_decode_kernel", "flash_decode_kernel"), "fail", "has no kernel"),
        (KERNEL.replace("@triton.autotune", "@other"), "ok", "3 configs"),
        ("@triton.jit\ndef flash_mla_decode_kernel(x):\n    pass\n", "warn", "has no @triton.autotune"),
        ("def broken(:\n", "fail", ""),
        (
            "@triton.autotune(configs=[triton.Config({'B': b}) for b in SIZES], key=[])\n"
            "@triton.jit\ndef flash_mla_decode_kernel(x):\n    pass\n",
            "warn",
            "its configs are computed, so `--set` must name every knob (B b)",
        ),
    ],
    ids=["another name", "wrapped", "no list", "no Python", "computed"],
)
def test_the_kernel(project: CliProject, text: str, status: str, words: str) -> None:
    """The kernel is looked for in the bytes that are live; without a list of knobs a person can still edit."""
    project.live.write_text(text)
    found = doctor(project)["kernel"]
    assert (found["status"], words in found["text"]) == (status, True), found


def test_each_file_of_a_target(tmp_path: Path) -> None:
    """With two files each has its finding, and the one that is missing is named."""
    with cli_project(tmp_path, n_files=2) as project:
        project.second.unlink()
        found = [finding for finding in doctor(project).findings if finding["name"] == "target file"]
    assert [finding["status"] for finding in found] == ["ok", "fail"]
    assert str(project.second) in found[1]["text"]


# ---- leftovers


def test_a_deployed_variant_and_its_lease(project: CliProject) -> None:
    """A pushed variant is a warning with who holds the lease; `orch revert` clears it."""
    project.with_variant("V2")
    project.done("push", "--variant", "V2")
    report = doctor(project)
    assert report.with_status("warn") == {"deployment"}
    assert str(project.live) in report["deployment"]["text"]
    assert "this project holds the lease" in report["deployment"]["text"]
    assert "`orch revert flash_mla`" in report["deployment"]["next_step"]
    assert "variant V2" in report["live bytes"]["text"]
    project.done("revert")
    assert doctor(project).with_status("warn") == set()


def test_somebody_elses_lease(project: CliProject) -> None:
    """Without the record the same lease is somebody else's, and the step is to wait or ask."""
    project.with_variant("V2")
    project.done("push", "--variant", "V2")
    project.db.rename(project.folder / "elsewhere.db")
    found = doctor(project)["deployment"]
    assert "somebody else holds the lease" in found["text"]
    assert found["next_step"].startswith("wait, or ask them")


def test_kept_edits_are_listed(project: CliProject) -> None:
    """An edit that a forced revert kept is told, with the command that removes it, which works."""
    project.with_variant("V2")
    project.done("push", "--variant", "V2")
    project.live.write_text("# a colleague\n")
    project.done("revert", "--force")
    found = doctor(project)["kept files"]
    assert found["status"] == "warn"
    (kept,) = found["evidence"]
    assert Path(kept).read_text() == "# a colleague\n"
    subprocess.run(found["next_step"].partition("`")[2].rstrip("`"), shell=True, check=True)
    assert doctor(project)["kept files"]["status"] == "ok"


def test_a_running_engine_of_orchs(project: CliProject) -> None:
    """An engine that orch left running is named with its pid, holds its port rightly, and `orch revert` stops it."""
    project.pulled()
    with running_engine(project) as process:
        until(lambda: "is held by" in doctor(project)["engine port"]["text"], "the engine listens")
        report = doctor(project)
        assert report.with_status("warn") == {"engine process"}
        assert f"stub pid {process.pid}" in report["engine process"]["text"]
        assert "`orch revert flash_mla`" in report["engine process"]["next_step"]
        assert f"orch started, pid {process.pid}" in report["engine port"]["text"]
        project.done("revert")
        assert doctor(project).with_status("warn") == set()


def test_an_engine_that_is_not_in_the_inventory_any_more(project: CliProject) -> None:
    """An engine under a name that is gone from the inventory is found, and the command given ends it."""
    project.pulled()
    with running_engine(project) as process:
        text = project.inventory.read_text()
        edit(project, "  stub:\n", "  other:\n")
        found = doctor(project)["engine process"]
        assert f"stub pid {process.pid}" in found["text"]
        subprocess.run(found["next_step"].partition("`")[2].rstrip("`"), shell=True, check=True)
        until(lambda: doctor(project)["engine process"]["status"] == "ok", "it has ended")
        project.inventory.write_text(text)


def test_run_folders(project: CliProject) -> None:
    """Folders of interrupted loads are counted, and the command given removes them."""
    run = project.scratch / "runs" / "flash_mla-1-c8"
    run.mkdir(parents=True)
    found = doctor(project)["run folders"]
    assert (found["status"], found["evidence"]) == ("warn", [str(run)])
    subprocess.run(found["next_step"].partition("`")[2].rstrip("`"), shell=True, check=True)
    assert doctor(project)["run folders"]["status"] == "ok"


# ---- the engine


def test_no_python(project: CliProject) -> None:
    """Without the engine's Python one thing fails, and what would need it is skipped."""
    edit(project, f"python: {json.dumps(sys.executable)}", "python: /opt/none/bin/python")
    report = doctor(project)
    assert "engine python" in report.with_status("fail")
    assert "as far as /opt it is there" in report["engine python"]["text"]
    assert {"engine port", "module", "versions", "load client", "engine process"} <= report.with_status("skipped")


@pytest.mark.parametrize(("says", "words"), [("3.6.9", "needs 3.8 or later"), ("hello", "is no Python (hello)")])
def test_a_python_that_will_not_do(project: CliProject, tmp_path: Path, says: str, words: str) -> None:
    """One that is too old, and a program that is none."""
    fake = program(tmp_path / "bin", "python", f"echo {says}")
    edit(project, f"python: {json.dumps(sys.executable)}", f"python: {fake}")
    report = doctor(project)
    assert words in report["engine python"]["text"]
    assert "engine python" in report.with_status("fail")


def test_a_python_that_dies(project: CliProject, tmp_path: Path) -> None:
    """One that tells its version and then cannot run anything."""
    fake = program(
        tmp_path / "bin", "python", 'case $4 in *version_info*) echo 3.11.0 ;; *) echo "no GIL" >&2; exit 9; esac'
    )
    edit(project, f"python: {json.dumps(sys.executable)}", f"python: {fake}")
    report = doctor(project)
    assert report["engine python"]["status"] == "fail"
    assert report["engine python"]["evidence"] == ["no GIL"]
    assert report["load client"]["status"] == "skipped"


def test_another_copy_is_imported(project: CliProject, tmp_path: Path) -> None:
    """Another copy of the module earlier on the engine's path is found before anything is measured with it."""
    other = tmp_path / "other" / "kernels"
    shutil.copytree(project.live.parent, other)
    edit(project, "env: {PYTHONPATH: ", f"env: {{PYTHONPATH: {json.dumps(str(other.parent))}, WAS: ")
    report = doctor(project)
    assert report.with_status("fail") == {"module"}
    assert f"would come from {other / 'flash_mla.py'}, not from {project.live}" in report["module"]["text"]


def test_a_module_that_is_not_found(project: CliProject) -> None:
    """A dotted name that the engine's Python does not find."""
    edit(project, "kernels.flash_mla", "kernels.fast_mla")
    report = doctor(project)
    assert report.with_status("fail") == {"module"}
    assert "does not find kernels.fast_mla" in report["module"]["text"]


def test_a_target_without_module(project: CliProject) -> None:
    """Without a dotted name there is no proof, which is a warning."""
    edit(project, ', "module": "kernels.flash_mla"', "")
    assert doctor(project).with_status("warn") == {"module"}


def test_a_python_without_what_the_client_needs(
    project: CliProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Python that cannot import ssl (built without OpenSSL) fails as load client, not under load."""
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "ssl.py").write_text("raise ImportError('No module named _ssl')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "broken"))
    report = doctor(project)
    assert "load client" in report.with_status("fail")
    assert "ssl (ImportError: No module named _ssl)" in report["load client"]["text"]


def test_a_program_that_is_not_there(project: CliProject) -> None:
    """The engine's program is looked for before it is started."""
    edit(project, f"command: [{json.dumps(sys.executable)}", "command: [no-such-engine")
    report = doctor(project)
    assert report["engine command"]["status"] == "fail"
    assert "no-such-engine is not there" in report["engine command"]["text"]


def test_a_program_of_a_moved_environment(project: CliProject, tmp_path: Path) -> None:
    """A script whose first line names an interpreter that is gone cannot be executed, whatever its mode says."""
    script = program(tmp_path / "bin", "serve", "")
    script.write_text("#! /old/venv/bin/python\n")
    edit(project, f"command: [{json.dumps(sys.executable)}", f"command: [{script}")
    assert "asks for /old/venv/bin/python" in doctor(project)["engine command"]["text"]


def test_the_engines_own_path_counts(project: CliProject, tmp_path: Path) -> None:
    """A program is looked for on the PATH that the engine gets."""
    script = program(tmp_path / "engine-bin", "serve-it", "")
    edit(project, f"command: [{json.dumps(sys.executable)}", "command: [serve-it")
    edit(project, "env: {", f"env: {{PATH: {json.dumps(str(script.parent))}, ")
    assert doctor(project)["engine command"] == {
        **dict.fromkeys(("next_step",)),
        "name": "engine command",
        "status": "ok",
        "text": str(script),
        "evidence": [],
    }


def test_two_pythons(project: CliProject, tmp_path: Path) -> None:
    """A command that runs another environment's Python than the inventory names is a warning."""
    other = program(tmp_path / "bin", "python3", "")
    edit(project, f"command: [{json.dumps(sys.executable)}", f"command: [{other}")
    found = doctor(project)["engine command"]
    assert (found["status"], "two environments?" in found["text"]) == ("warn", True)


def test_folder_and_log(project: CliProject) -> None:
    """A working directory that is not there, and a log that is a folder."""
    add_to_engine(project, f"cwd: {project.site}/none")
    add_to_engine(project, f"log: {project.site}")
    report = doctor(project)
    assert {"engine folder", "engine log"} <= report.with_status("fail")
    assert f"as far as {project.site} it is" in report["engine folder"]["text"]


def test_a_stranger_on_the_port(project: CliProject) -> None:
    """Somebody else's process on the engine's port is named with its pid, and the command given ends it."""
    argv = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(project.port)]
    stranger = subprocess.Popen(argv, cwd=project.site, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: doctor(project)["engine port"]["status"] == "fail", "the stranger listens")
        found = doctor(project)["engine port"]
        assert f"pid {stranger.pid}, {sys.executable} -m http.server" in found["text"]
        assert f"`kill {stranger.pid}`" in found["next_step"]
    finally:
        stranger.send_signal(signal.SIGTERM)
        stranger.wait()
    assert doctor(project)["engine port"]["status"] == "ok"


def test_two_ports(project: CliProject) -> None:
    """A command that listens on another port than the one that is asked would never get ready."""
    edit(project, f"http://127.0.0.1:{project.port}", "http://127.0.0.1:1")
    report = doctor(project)
    assert report.with_status("fail") == {"engine url"}
    assert report["engine url"]["text"] == f"the command listens on port {project.port}, base_url: says 1"


def test_an_address_elsewhere(project: CliProject) -> None:
    """An engine that is asked through the network is a warning: the load client runs on its own host."""
    edit(project, "http://127.0.0.1:", "http://gpu-a.example:")
    report = doctor(project)
    assert report.with_status("warn") == {"engine url"}
    assert f"http://127.0.0.1:{project.port}" in report["engine url"]["next_step"]


# ---- the host


def test_no_scratch_folder(project: CliProject) -> None:
    """A scratch folder that cannot be made fails, and everything that needs none is still looked at."""
    project.scratch.rmdir()
    project.scratch.write_text("a file\n")
    report = doctor(project)
    assert report.with_status("fail") == {"scratch folder"}
    assert "scratch_dir of host here" in report["scratch folder"]["next_step"]
    assert report["run folders"]["status"] == "skipped"
    assert report["module"]["status"] == "ok"


def test_a_host_that_answers_nothing(project: CliProject, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that dies in the middle is one failure; what needs no host is still looked at."""
    monkeypatch.setattr(host_facts, "SCRIPT", "kill -9 $$")
    report = doctor(project)
    assert report.with_status("fail") == {"host tools"}
    assert [finding["name"] for finding in report.findings][-3:] == ["workloads", "results.db", "workspace"]


def test_missing_tools_are_named(project: CliProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host without tools that the agent runs fails with their names; what has a substitute is no failure."""
    wanted = [*host_facts.TOOLS, "sha256sum", "setsid", "df"]
    link_tools(tmp_path / "few", [name for name in wanted if name not in ("tr", "sync")])
    link_tools(tmp_path / "enough", wanted)
    monkeypatch.setenv("PATH", str(tmp_path / "few"))
    found = doctor(project)["host tools"]
    assert (found["status"], found["text"]) == ("fail", "here lacks sync, tr")
    monkeypatch.setenv("PATH", str(tmp_path / "enough"))
    report = doctor(project)
    assert report["host tools"]["status"] == "ok", report["host tools"]
    assert "no flock (a symbolic link serves as lock), setsid" in report["host tools"]["text"]


@pytest.mark.parametrize(("shift_s", "status"), [(0, "ok"), (120, "warn"), (-3600, "warn")])
def test_the_hosts_clock(
    project: CliProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shift_s: int, status: str
) -> None:
    """A host's clock that is off by more than a minute is a warning, for leases go by it."""
    date = shutil.which("date")
    program(tmp_path / "shifted", "date", f'exec {date} -d "{shift_s} seconds" "$@"')
    monkeypatch.setenv("PATH", f"{tmp_path / 'shifted'}:{os.environ['PATH']}")
    found = doctor(project)["clock"]
    assert found["status"] == status
    assert ("behind" in found["text"]) == (shift_s < 0) or shift_s == 0


def test_the_line_does_not_count_as_clock() -> None:
    """A slow exec widens the doubt, not the difference: it is taken from both ends."""
    values = {"began_s": ("1002.0",), "ended_s": ("1005.0",)}
    assert HostFacts(values, asked_s=1000.0, answered_s=1007.0).clock_offset_s == (0.0, 2.0)
    assert HostFacts({}).clock_offset_s is None


@pytest.mark.parametrize(
    ("line", "disk"),
    [
        ("/dev/sda1  100000 99000 1000  99% /data/with space", host_facts.Disk(1_024_000, "/data/with space")),
        ("map auto home 0 0 0 100% /home", host_facts.Disk(0, "/home")),
        ("tmpfs 10 0 10 - /t", None),
        ("", None),
    ],
)
def test_a_line_of_df(line: str, disk: host_facts.Disk | None) -> None:
    """Free space and mount point, whatever the device is called; what cannot be read is unknown."""
    assert HostFacts({"d": (line,)}).disk("d") == disk


@pytest.mark.parametrize(("free_kib", "scratch", "beside"), [(100, "fail", "fail"), (50_000, "warn", "warn")])
def test_full_disks(free_kib: int, scratch: str, beside: str) -> None:
    """A disk without room fails for logs and for a push, and one that is nearly full is a warning."""
    line = f"/dev/sda1 1000000 1 {free_kib} 99% /data"
    facts = HostFacts({"scratch_df": (line,), "df.0": (line,), "folder.0": ("/data/k",)})
    assert host.check_scratch(Host(name="gpu-a"), "/data/orch", facts).status == scratch
    (found,) = target.check_disks(target_of(Path("/data/k/x.py")), facts)
    assert (found.status, "on /data" in found.text) == (beside, True)


@pytest.mark.parametrize("shell", ["dash", "bash", "busybox sh", "zsh --emulate sh"])
def test_every_shell_sees_the_same(project: CliProject, shell: str) -> None:
    """The script that looks at the host says the same under every sh."""
    if shutil.which(shell.split()[0]) is None:
        pytest.skip(f"no {shell} here")

    def look(words: list[str]) -> dict[str, Any]:
        files = [str(project.live), str(project.site), "/none/at all"]
        args = [str(project.scratch), sys.executable, str(project.site), "", "cat", "", "cat no-such", *files]
        # with SHELL as a login sets it: where it is unset, bash alone fills it in from the user's entry
        environment = {**os.environ, "SHELL": "/bin/sh"}
        command = [*words, "-c", host_facts.SCRIPT, "orch", *args]
        done = subprocess.run(command, capture_output=True, check=True, env=environment)
        assert done.stderr == b""
        values = dict(host_facts.parse(done.stdout))
        assert float(values.pop("began_s")[0]) <= float(values.pop("ended_s")[0])
        # a shell with programs of its own (busybox of Debian) tells their names, and no paths
        values["program_path"] = tuple(Path(path).name for path in values["program_path"])
        return {key: value for key, value in values.items() if "df" not in key}

    found = look(shell.split())
    assert found == look(["/bin/sh"])
    assert (found["kind.0"], found["kind.1"], found["near.2"]) == (("file",), ("folder",), ("/",))
    assert found["has"] == ("cat",)


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="no shellcheck here")
@pytest.mark.parametrize("script", [host_facts.SCRIPT, gpu.SCRIPT], ids=["host_facts", "gpu"])
def test_scripts_pass_shellcheck(script: str) -> None:
    """Both scripts are POSIX sh without a finding."""
    done = subprocess.run(["shellcheck", "--shell=sh", "-"], input=script.encode(), capture_output=True)
    assert done.returncode == 0, done.stdout.decode()


# ---- GPUs

IDLE = "0, GPU-aaaa, NVIDIA H200, 570.1, 0, 143771, 700.00, 700.00, Enabled, 1980, 1980"
SECOND_GPU = "1, GPU-bbbb, NVIDIA H200, 570.1, 4, 143771, 500.00, 700.00, Disabled, 1980, [N/A]"


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts an nvidia-smi on the host's PATH that answers as told."""

    def install(gpus: str, processes: str = "", *, code: int = 0) -> None:
        program(
            tmp_path / "smi",
            "nvidia-smi",
            f'case $1 in --query-gpu=*) printf "%s\\n" {shlex.quote(gpus)}; exit {code} ;; esac\n'
            f'printf "%s" {shlex.quote(processes)}',
        )
        monkeypatch.setenv("PATH", f"{tmp_path / 'smi'}:{os.environ['PATH']}")

    return install


def test_an_idle_gpu(project: CliProject, smi: Callable[..., None]) -> None:
    """Name, memory, driver, power limit and clocks are told; nobody else is there."""
    smi(IDLE)
    report = doctor(project)
    assert report["gpu"]["text"] == "GPU 0 NVIDIA H200, 0 bytes of 140 GiB used; driver 570.1"
    assert report["gpu processes"] == {**report["gpu processes"], "status": "ok", "text": "none"}
    assert "power limit 700 W, persistence Enabled, at most 1980 MHz, applications 1980" in report["gpu clocks"]["text"]
    assert report["gpu clocks"]["status"] == "ok"


def test_other_processes_on_the_gpu(project: CliProject, smi: Callable[..., None]) -> None:
    """Whoever computes on the engine's GPU is named with pid and memory."""
    smi(IDLE, "GPU-aaaa, 4711, 70000, /usr/bin/python, with a comma\n")
    found = doctor(project)["gpu processes"]
    assert found["status"] == "warn"
    assert found["text"] == "pid 4711 (/usr/bin/python, with a comma) is on GPU 0 with 68.4 GiB"
    assert "`kill 4711`" in found["next_step"]


def test_memory_that_nobody_seems_to_hold(project: CliProject, smi: Callable[..., None]) -> None:
    """Memory in use by a process of another container, which nvidia-smi does not list."""
    smi(IDLE.replace("570.1, 0,", "570.1, 90000,"))
    found = doctor(project)["gpu processes"]
    assert (found["status"], "nobody that this host can see" in found["text"]) == ("warn", True)


def test_only_the_engines_gpus_count(project: CliProject, smi: Callable[..., None]) -> None:
    """CUDA_VISIBLE_DEVICES narrows all GPU checks; one that names no GPU of this host fails."""
    processes = "GPU-aaaa, 4711, 70000, python\n"
    smi(f"{IDLE}\n{SECOND_GPU}", processes)
    both = doctor(project)
    assert "GPU 1" in both["gpu"]["text"]
    assert "GPU 1 is limited to 500 of 700 W; persistence mode is off" in both["gpu clocks"]["text"]
    assert "`sudo nvidia-smi -i 1 -pl 700` and `sudo nvidia-smi -pm 1`" in both["gpu clocks"]["next_step"]
    edit(project, "env: {", 'env: {CUDA_VISIBLE_DEVICES: "1", ')
    report = doctor(project)
    assert report["gpu"]["text"].startswith("GPU 1 ")
    assert report["gpu processes"]["status"] == "ok"
    edit(project, 'CUDA_VISIBLE_DEVICES: "1"', 'CUDA_VISIBLE_DEVICES: "GPU-bb"')
    assert doctor(project)["gpu"]["text"].startswith("GPU 1 ")
    edit(project, "GPU-bb", "7")
    assert "gpu" in doctor(project).with_status("fail")


def test_a_driver_that_does_not_answer(project: CliProject, smi: Callable[..., None]) -> None:
    """An nvidia-smi that fails is a failure with its own words."""
    smi("Failed to initialize NVML: Driver/library version mismatch", code=18)
    found = doctor(project)["gpu"]
    assert (found["status"], "Driver/library version mismatch" in found["text"]) == ("fail", True)


def test_the_engines_own_process_is_no_stranger() -> None:
    """On its own GPU the engine disturbs nobody."""
    engine = Engine(name="e", command=("x",), python="/p", base_url="http://127.0.0.1:1")
    one = gpu.Gpu(dict(zip(gpu.COLUMNS, IDLE.split(", "), strict=True)))
    seen = gpu.Gpus((one,), (gpu.GpuProcess(one, 5, 100.0, "python"),))
    assert gpu.check_processes(engine, seen, (5,)).status == "ok"
    assert gpu.check_processes(engine, seen, ()).status == "warn"
