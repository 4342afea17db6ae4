"""``check_remote`` on this machine behind the same seam: what it finds, and that it leaves the host as it was."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator import serve
from orchestrator.check.reference import MAX_FAILURES, read_document, reference_findings
from orchestrator.check.remote import check_remote
from orchestrator.errors import EngineError, HostWriteError, RemoteCommandError, UsageError
from orchestrator.host import supervised
from orchestrator.records import CheckSettings, Engine, Progress, SourceFile, Target, TargetFile, Variant
from orchestrator.verdicts import RemoteFinding, RemoteVerdict
from tests.support.fake_remote import FakeRemote
from tests.support.ssh_project import pids_of
from tests.support.tiny_host import TinyHost, until
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="the tests look into /proc"),
]

JUDGE = '''\
"""Right when VALUE is even; does what the file says before that."""
import json, os, runpy, sys
found = runpy.run_path(sys.argv[1])
passed = found["VALUE"] % 2 == 0
results = [{"name": "even", "passed": passed, "problem": None if passed else "odd"}]
print(json.dumps({"passed": passed, "results": results, "words": sys.argv[2:], "cwd": os.getcwd()}))
sys.exit(not passed)
'''


TARGET = Target(
    name="fast",
    host="fake",
    engine="tiny",
    files=(TargetFile(path="/live/fast.py", name="fast.py", module="fast"),),
    kernel="fast",
)
ENGINE = Engine(name="tiny", command=("python", "-m", "x"), python=sys.executable, base_url="http://127.0.0.1:1")


class Tried:
    """A host with a target that is a package's module, and a reference command that judges it."""

    def __init__(self, folder: Path) -> None:
        self.host = TinyHost(folder)
        self.site = self.host.site
        self.package = self.host.path.parent
        (self.package / "sizes.py").write_text("SIZE = 4\n")
        (self.package / "rows.py").write_text("ROWS = 64\n")
        (folder / "judge.py").write_text(JUDGE)
        self.judge = (sys.executable, str(folder / "judge.py"), "{file}")
        self.target = replace(self.host.target, check=CheckSettings(reference=self.judge))
        self.engine = self.host.engine()
        self.steps: list[Progress] = []

    def run(self, text: str, *, timeout_s: float = 60.0, **files: str) -> RemoteVerdict:
        """Checks a variant with this text; afterwards the host is as it was."""
        contents = {"fast.py": text, **{f"{name}.py": content for name, content in files.items()}}
        sources = tuple(SourceFile.of(name, content.encode()) for name, content in contents.items())
        variant = Variant("fast", "V1", sources, "sha256:0", "", (), (), "2026-01-01T00:00:00Z")
        before = self.state()
        try:
            return check_remote(
                self.host.remote,
                self.engine,
                self.target,
                variant,
                report=self.steps.append,
                import_timeout_s=timeout_s,
            )
        finally:
            assert self.state() == before
            assert self.leftovers() == []
            assert self.pids() == []

    def judged_by(self, *words: str, timeout_s: float = 60.0) -> None:
        """Another reference command."""
        self.target = replace(self.target, check=CheckSettings(reference=words, reference_timeout_s=timeout_s))

    @property
    def scratch(self) -> Path:
        """The host's scratch folder."""
        return Path(self.host.remote.scratch_dir())

    def pids(self) -> list[int]:
        """What runs for a check."""
        return pids_of(self.scratch / "orch-check-")

    def leftovers(self) -> list[str]:
        """What runs left in the scratch folder."""
        return [path.name for path in self.scratch.iterdir() if path.name.startswith("orch-check-")]

    def state(self) -> dict[str, object]:
        """Everything below the site folder: names, bytes, inode, mtime."""
        files = [path for path in self.site.rglob("*") if path.is_file()]
        return {str(path): (path.read_bytes(), path.stat().st_ino, path.stat().st_mtime_ns) for path in files}


@pytest.fixture
def tried(tmp_path: Path) -> Iterator[Tried]:
    """The host; nothing of it runs afterwards."""
    made = Tried(tmp_path)
    yield made
    made.host.close()


def by_name(verdict: RemoteVerdict) -> dict[str, RemoteFinding]:
    """The findings."""
    return {finding.name: finding for finding in verdict.findings}


# ---- a variant that is right


def test_a_right_variant_passes(tried: Tried) -> None:
    """Imported under its name, judged by the command, and its document is kept; the live file is another one."""
    verdict = tried.run("VALUE = 2\n")
    found = by_name(verdict)
    assert verdict.passed
    assert found["import"].detail.startswith("imported as kernels.fast in ")
    assert found["reference"].detail.startswith("1 of 1 cases in ")
    assert found["CUDA graph"].passed is None
    assert verdict.report is not None
    assert verdict.report["cwd"] == str(tried.site)
    assert verdict.command is not None
    assert Path(verdict.command[2]).name == "fast.py"
    assert not Path(verdict.command[2]).exists()
    assert [step.text.partition(": ")[2].split(" (")[0] for step in tried.steps] == ["import", "reference command"]


def test_the_package_is_the_installed_one_and_the_targets_modules_the_variants(tried: Tried) -> None:
    """Relative imports see the live package; another file of the target, absolute or relative, is the variant's."""
    rows = TargetFile(path=str(tried.package / "rows.py"), name="rows.py", module="kernels.rows")
    tried.target = replace(tried.target, files=(*tried.target.files, rows))
    (tried.package / "__init__.py").write_text("from .rows import ROWS\n")
    text = """
from . import ROWS
from .sizes import SIZE
import kernels.rows
assert (ROWS, kernels.rows.ROWS, SIZE, __name__, __package__) == (65, 65, 4, "kernels.fast", "kernels")
VALUE = 2
"""
    found = by_name(tried.run(text, rows="ROWS = 65\n"))["import"]
    assert found.passed, found


def test_a_file_without_a_module_is_imported_by_its_path(tried: Tried) -> None:
    """No dotted name: the file itself is run as a module."""
    tried.target = replace(tried.target, files=(replace(tried.target.files[0], module=None),))
    assert by_name(tried.run("VALUE = 2\n"))["import"].detail.startswith("imported by its path in ")


def test_an_interpreter_like_the_engines_imports(tried: Tried) -> None:
    """Flags of the command, env of the inventory and the folder are the engine's; caches are the run's own."""
    command = (sys.executable, "-O", "-m", "tiny_engine")
    tried.engine = replace(tried.engine, command=command, env={**tried.engine.env, "TRITON_CACHE_DIR": "/live"})
    text = """
import os, sys
print("a banner that is no answer")
raise RuntimeError("|".join([str(sys.flags.optimize), os.getcwd(), str(sys.dont_write_bytecode),
    os.environ["TRITON_CACHE_DIR"], os.environ["TMPDIR"], sys.path[0], str("tiny" in os.environ["PYTHONPATH"])]))
"""
    words = by_name(tried.run(text))["import"].evidence[-1].removeprefix("RuntimeError: ").split("|")
    assert words[:3] == ["1", str(tried.site), "True"]
    assert all(word.startswith(str(tried.scratch) + "/orch-check-") for word in words[3:5])
    assert words[5] == str(tried.site)


def test_beside_a_running_engine_its_environment_counts_and_its_mark_does_not(tried: Tried) -> None:
    """What a launcher set in the engine is set for the import, and nothing of the run is taken for the engine's."""
    tried.engine = tried.host.engine(wrapper=("env", "SET_BY_LAUNCHER=yes"))
    process = serve.start(tried.host.remote, tried.engine, deployed_digest=tried.host.digest)
    serve.wait_ready(tried.host.remote, tried.engine, process)
    until(lambda: len(tried.host.own_pids()) == 1, "the engine runs")
    text = "import os\nraise RuntimeError([os.environ.get(n) for n in ('SET_BY_LAUNCHER', 'ORCH_ENGINE')])\n"
    detail = by_name(tried.run(text))["import"].detail
    assert detail == "RuntimeError: ['yes', None] (fast.py, line 2)"
    assert len(tried.host.own_pids()) == 1


# ---- an import that fails


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        ("VALUE = 2\ndef f(:\n", "SyntaxError: invalid syntax (fast.py, line 2)"),
        ("import absent_module\n", "ModuleNotFoundError: No module named 'absent_module' (fast.py, line 1)"),
        ("def f():\n    raise KeyError('a')\n\nf()\n", "KeyError: 'a' (fast.py, line 2)"),
        ("raise SystemExit(3)\n", "SystemExit: 3 (fast.py, line 1)"),
        ("import os\nos._exit(3)\n", "ended its process with exit code 3"),
        ("import os\nos.kill(os.getpid(), 9)\n", "killed by SIGKILL"),
        ("import os\n\nos.kill(os.getpid(), 11)\n", "killed by SIGSEGV (fast.py, line 3)"),
        ("import json\njson.loads('{')\n", "JSONDecodeError: Expecting property name enclosed in double quotes"),
    ],
)
def test_a_failing_import_is_one_line(tried: Tried, text: str, detail: str) -> None:
    """What happened and the variant's line that led there; the command is then not run."""
    verdict = tried.run(text)
    found = by_name(verdict)
    assert not verdict.passed
    assert found["import"].passed is False
    assert found["import"].detail.startswith(detail)
    assert "\n" not in found["import"].detail
    assert found["reference"] == RemoteFinding("reference", None, "not tried: the import failed")
    assert verdict.command is None


def test_an_import_that_does_not_end_is_killed_with_its_children(tried: Tried) -> None:
    """One line says where it was; a child in a session of its own ends with it (``run`` looks for it)."""
    text = """
import subprocess
subprocess.Popen(["sleep", "1000"], start_new_session=True)
while True:
    pass
"""
    found = by_name(tried.run(text, timeout_s=2.0))["import"]
    assert found.detail.startswith("did not end within 2 s and was killed (fast.py, line ")
    assert found.evidence


# ---- the reference command


def test_a_wrong_variant_fails(tried: Tried) -> None:
    """Exit code 1: the summary, and a finding for the result that failed."""
    verdict = tried.run("VALUE = 3\n")
    found = by_name(verdict)
    assert not verdict.passed
    assert found["import"].passed is True
    assert found["reference"].detail.startswith("exit code 1; 0 of 1 cases in ")
    assert found["even"] == RemoteFinding("even", False, "odd")


def test_a_target_without_a_reference_command_is_not_passed(tried: Tried) -> None:
    """The import alone proves little: the finding names the key of the inventory."""
    tried.target = replace(tried.target, check=CheckSettings())
    verdict = tried.run("VALUE = 2\n")
    assert not verdict.passed
    assert by_name(verdict)["reference"].passed is None
    assert "targets.fast.check.reference" in by_name(verdict)["reference"].detail


def test_other_braces_stay(tried: Tried) -> None:
    """Only {file} and {folder} are replaced, each word once."""
    tried.judged_by(*tried.judge, "{folder}/x", '{"a": {}}', "{other}")
    report = tried.run("VALUE = 2\n").report
    assert report is not None
    assert report["words"] == ["x", '{"a": {}}', "{other}"]  # the folder itself is gone, and not shown


def test_a_command_that_does_not_end_is_killed_with_its_children(tried: Tried) -> None:
    """At the deadline everything of it ends, and what it had printed is the evidence."""
    tried.judged_by("sh", "-c", "echo begun; setsid sleep 1000 & sleep 1000 & wait", "{file}", timeout_s=1.0)
    found = by_name(tried.run("VALUE = 2\n"))["reference"]
    assert found.passed is False
    assert found.detail.startswith("did not end within 1 s and was killed")
    assert found.evidence == ("begun",)


def test_what_a_command_leaves_running_ends_with_it(tried: Tried) -> None:
    """A background process that keeps the output open delays nothing and is killed."""
    tried.judged_by("sh", "-c", "setsid sleep 1000 & sleep 1000 & exit 0", "{file}")
    assert by_name(tried.run("VALUE = 2\n"))["reference"].passed


def test_output_without_end_is_bounded(tried: Tried) -> None:
    """Past the bound there is no document; the last lines are the evidence."""
    program = "import sys\nfor i in range(400000): print('line %d of too many' % i)\nsys.exit('bad')"
    tried.judged_by(sys.executable, "-c", program, "{file}")
    verdict = tried.run("VALUE = 2\n")
    assert verdict.report is None
    found = by_name(verdict)["reference"]
    assert found.detail.startswith("exit code 1: bad in ")
    assert found.evidence[-2:] == ("line 399999 of too many", "bad")
    assert len(found.evidence) == 25


def test_secrets_of_the_environment_are_masked(tried: Tried) -> None:
    """A token in env does not come back in evidence or in a document."""
    env = {**tried.engine.env, "HF_TOKEN": "hf_very_secret"}
    tried.engine = replace(tried.engine, env=env)
    program = "import os, json; print(json.dumps(dict(os.environ)))\nraise SystemExit(os.environ['HF_TOKEN'])"
    tried.judged_by(sys.executable, "-c", program, "{file}")
    assert "hf_very_secret" not in str(tried.run("VALUE = 2\n"))
    assert "hf_very_secret" not in str(tried.run("import os\nraise ValueError(os.environ['HF_TOKEN'])\n"))


def test_a_crash_leaves_no_core_file(tried: Tried) -> None:
    """Cores are off for what is run, whatever the login allows."""
    program = "import resource; print(resource.getrlimit(resource.RLIMIT_CORE)[0]); raise SystemExit(1)"
    tried.judged_by(sys.executable, "-c", program, "{file}")
    assert by_name(tried.run("VALUE = 2\n"))["reference"].evidence == ("0",)


# ---- what cannot be tried


def test_a_command_that_is_not_there_is_an_error(tried: Tried) -> None:
    """A mistake in the inventory is never called a wrong variant."""
    tried.judged_by("/absent/judge", "{file}")
    with pytest.raises(RemoteCommandError, match=r"could not judge variant V1 .*No such file.*targets\.fast\.check"):
        tried.run("VALUE = 2\n")


def test_a_command_that_cannot_judge_the_variant_is_refused(tried: Tried) -> None:
    """Without {file} or {folder} it would judge what is installed; nothing is done on the host."""
    tried.judged_by("python", "-m", "kernel.check")
    with pytest.raises(UsageError, match=r"it has no \{file\}"):
        tried.run("VALUE = 2\n")
    assert tried.steps == []


def test_a_missing_python_names_the_engine(tried: Tried) -> None:
    """As everywhere: the key to correct."""
    tried.engine = replace(tried.engine, python="/absent/python")
    with pytest.raises(EngineError, match="correct python: of engine tiny"):
        tried.run("VALUE = 2\n")


def test_a_missing_working_directory_is_an_error(tried: Tried) -> None:
    """The engine's cwd is not there: the message says so."""
    tried.engine = replace(tried.engine, cwd=str(tried.site / "absent"))
    with pytest.raises(RemoteCommandError, match=r"could not import variant V1 .*absent.*correct cwd"):
        tried.run("VALUE = 2\n")


def test_no_space_is_an_error_about_the_scratch_folder() -> None:
    """What the host could not write is said with its reason, and is not the variant's fault."""
    remote = FakeRemote()
    remote.answer("exec", json.dumps({"cannot_write": "/scratch/orch/x (9 bytes): No space left on device"}))
    source = SourceFile.of("fast.py", b"VALUE = 2\n")
    variant = Variant("fast", "V1", (source,), "sha256:0", "", (), (), "")
    with pytest.raises(HostWriteError, match=r"No space left.*permissions of /scratch/orch"):
        check_remote(remote, ENGINE, TARGET, variant, report=lambda _: None)


# ---- runs that are cut off


HELD = """
import os, subprocess, sys, time
subprocess.Popen(["sleep", "1000"], start_new_session=True)
open(os.environ["ORCH_CHECK"] + "/holds", "w").close()
time.sleep(1000)
"""

CONTROLLER = """
import sys
from orchestrator.check.remote import check_remote
from orchestrator.connection.local import LocalRemote
from orchestrator.records import Host, SourceFile, Variant
from tests.test_check_remote import ENGINE, TARGET
scratch, text = sys.argv[1:]
remote = LocalRemote(Host(name="here", transport="local", scratch_dir=scratch))
variant = Variant("fast", "V1", (SourceFile.of("fast.py", text.encode()),), "sha256:0", "", (), (), "")
check_remote(remote, ENGINE, TARGET, variant, report=print)
"""


def begin_held(tried: Tried) -> subprocess.Popen[bytes]:
    """Another ``orch`` whose variant holds at its import, with a child."""
    argv = [sys.executable, "-c", CONTROLLER, str(tried.scratch), HELD]
    process = subprocess.Popen(
        argv, cwd=Path(__file__).parents[1], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    )
    wait_until(lambda: bool(list(tried.scratch.glob("orch-check-*/holds"))), timeout_s=60.0)
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_check_that_is_cut_off_leaves_nothing(tried: Tried, number: signal.Signals) -> None:
    """Ctrl-C or kill -9 at the controller: the host ends the import with its children and removes the folder."""
    controller = begin_held(tried)
    controller.send_signal(number)
    controller.communicate()
    wait_until(lambda: tried.leftovers() == [] and tried.pids() == [])


def test_the_next_check_removes_what_a_killed_one_left(tried: Tried) -> None:
    """Killed on the host without any warning: the folder stays until the next check, then it and its processes go."""
    controller = begin_held(tried)
    (folder,) = tried.scratch.glob("orch-check-*")
    for pid in lock_holders(folder / "lock"):
        os.kill(pid, signal.SIGKILL)
    controller.communicate()
    assert folder.exists()
    assert tried.pids() != []
    tried.run("VALUE = 2\n")  # looks for leftovers


def test_a_running_check_is_left_alone(tried: Tried) -> None:
    """Two at once do not meet: the folder of one that lives is not removed by another."""
    controller = begin_held(tried)
    (folder,) = tried.scratch.glob("orch-check-*")
    source = SourceFile.of("fast.py", b"VALUE = 2\n")
    variant = Variant("fast", "V2", (source,), "sha256:0", "", (), (), "")
    verdict = check_remote(tried.host.remote, tried.engine, tried.target, variant, report=tried.steps.append)
    assert verdict.passed
    assert list(tried.scratch.glob("orch-check-*")) == [folder]
    assert controller.poll() is None
    controller.send_signal(signal.SIGINT)
    controller.communicate()
    wait_until(lambda: tried.leftovers() == [])


def lock_holders(path: Path) -> list[int]:
    """Processes that have the file open."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and any(link.resolve() == path for link in (entry / "fd").iterdir()):
                found.append(int(entry.name))
    return found


def test_a_folder_that_only_looks_like_ours_is_left_alone(tried: Tried) -> None:
    """Without a lock inside, and young, it may be a run that has just begun."""
    young = tried.scratch / "orch-check-young"
    held = tried.scratch / "orch-check-held"
    for folder in (young, held):
        folder.mkdir()
    with (held / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        variant = Variant("fast", "V1", (SourceFile.of("fast.py", b"VALUE = 2\n"),), "sha256:0", "", (), (), "")
        check_remote(tried.host.remote, tried.engine, tried.target, variant, report=tried.steps.append)
        assert sorted(tried.leftovers()) == ["orch-check-held", "orch-check-young"]


# ---- reading what a command said


def seen(**changes: Any) -> dict[str, Any]:
    """How a command ended: well, with nothing said."""
    plain = {"exit_code": 0, "signal": None, "elapsed_s": 1.0, "stdout": "", "is_whole": True, "stderr": []}
    return {**plain, **changes}


def findings(document: dict[str, Any] | None, **changes: Any) -> dict[str, RemoteFinding]:
    """Findings by name."""
    found = reference_findings(seen(**changes), document, "sha256:" + "a" * 64, 60.0)
    return {finding.name: finding for finding in found}


@pytest.mark.parametrize(
    ("stdout", "expected"),
    [
        ('{"passed": true}', {"passed": True}),
        ('a warning\n{"passed": true}\n', {"passed": True}),
        ('{\n "passed": true\n}', {"passed": True}),
        ('{"error": Infinity}', {"error": "Infinity"}),
        ("[1]", None),
        ("12 passed", None),
        ("", None),
        ("[" * 100_000, None),
    ],
)
def test_the_document_is_all_of_the_output_or_its_last_line(stdout: str, expected: dict[str, Any] | None) -> None:
    """Anything else is no document."""
    assert read_document(seen(stdout=stdout)) == expected


def test_many_failures_are_counted() -> None:
    """The first ones each, then how many more; a name with its config."""
    results = [{"name": f"case {i}", "config": "w4", "passed": False, "problem": f"p{i}\nmore"} for i in range(13)]
    found = findings({"passed": False, "results": results}, exit_code=1)
    assert found["case 0 [w4]"].detail == "p0"
    assert sum(name.startswith("case") for name in found) == MAX_FAILURES
    assert found["more"].detail == "3 more results failed"


def test_the_summary_has_the_largest_errors() -> None:
    """Numbers only: what was not measured, or is no number, is left out."""
    results = [
        {"name": "a", "passed": True, "out_error": 1.8e-3, "lse_error": None},
        {"name": "b", "passed": True, "out_error": 2.5e-3, "lse_error": 4.2e-7},
        {"name": "c", "passed": True, "out_error": "Infinity", "lse_error": True},
        "no result",
        {"name": "d"},
    ]
    assert findings({"results": results})["reference"].detail == (
        "3 of 3 cases, largest error out 2.5e-03, lse 4.2e-07 in 1.0 s"
    )


def test_the_graph_finding() -> None:
    """Passed, failed with the reason, or why it was not tried."""
    right = {"name": "CUDA graph, first capture", "passed": True}
    wrong = {"name": "CUDA graph, second capture", "passed": False, "problem": "stale"}
    assert findings({"results": [right]})["CUDA graph"].passed is True
    failed = findings({"results": [right, wrong]})
    assert failed["CUDA graph"] == RemoteFinding("CUDA graph", False, "CUDA graph, second capture: stale")
    assert "CUDA graph, second capture" not in failed
    assert "no CUDA GPU" in findings({"device": "cpu"})["CUDA graph"].detail
    assert "reports no CUDA graph case" in findings({"device": "cuda"})["CUDA graph"].detail
    assert findings(None)["CUDA graph"].passed is None


@pytest.mark.parametrize(
    ("document", "changes", "detail"),
    [
        ({"passed": False}, {}, "exit code 0, but its document says that it did not pass"),
        ({"digest": "sha256:" + "b" * 64}, {}, "judged another file: bbbbbbbbbbbb, the variant's is aaaaaaaaaaaa"),
        (None, {"exit_code": -11, "signal": "SIGSEGV"}, "killed by SIGSEGV"),
        (None, {"exit_code": 2, "stderr": ["Traceback", "no torch", ""]}, "exit code 2: no torch"),
        ({"problem": "no triton"}, {"exit_code": 1}, "exit code 1: no triton"),
    ],
)
def test_why_it_is_not_right(document: dict[str, Any] | None, changes: dict[str, Any], detail: str) -> None:
    """Each way to be wrong is one line."""
    found = findings(document, **changes)["reference"]
    assert (found.passed, found.detail) == (False, f"{detail} in 1.0 s")


# ---- the supervisor


def test_a_closed_standard_output_ends_the_command() -> None:
    """Nobody listens any more: the command is killed at once, and the answer is given up."""
    program = f"""
import os, sys
sys.path.insert(0, {str(Path(supervised.__file__).parent)!r})
import supervised
read, write = os.pipe()
os.dup2(write, 1); os.close(write)
parent, own = os.pipe()
os.close(read)
nothing = "/dev/null"
try:
    supervised.run(["sleep", "1000"], cwd="/", env={{}}, stdin_path=nothing, timeout_s=100, parent=parent)
except supervised.LineLost:
    sys.exit(7)
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 7
