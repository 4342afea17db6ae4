"""``check_remote`` over a real sshd: what it finds, broken lines, a full disk; our own kernel with its own check."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator import inventory
from orchestrator.check.remote import check_remote
from orchestrator.connection import connect
from orchestrator.errors import HostWriteError, LineLostError
from orchestrator.records import CheckSettings, SourceFile, Target, Variant
from orchestrator.verdicts import RemoteFinding, RemoteVerdict
from tests.support.ssh_project import CHECKOUT, KERNEL, RunningOrch, SshProject, behind_proxy, pids_of
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration

HELD = """
import os, subprocess, time
subprocess.Popen(["sleep", "1000"], start_new_session=True)
open(os.environ["ORCH_CHECK"] + "/holds", "w").close()
time.sleep(1000)
"""

CONTROLLER = """
import sys
from tests.integration.test_check_remote_ssh import check
check(sys.argv[1], sys.argv[2])
"""


def check(
    inventory_path: Path | str, text: str, *, settings: CheckSettings | None = None, timeout_s: float = 60.0
) -> RemoteVerdict:
    """A variant whose first file has this text."""
    known = inventory.load(inventory_path)
    target = known.targets["fast"]
    target = replace(target, check=settings or target.check)
    with connect(known.hosts[target.host]) as remote:
        return check_remote(
            remote,
            known.engines[target.engine],
            target,
            variant_of(target, text),
            report=lambda _: None,
            import_timeout_s=timeout_s,
        )


def variant_of(target: Target, text: str) -> Variant:
    """A variant with that text."""
    files = (SourceFile.of(target.files[0].name, text.encode()),)
    return Variant(target.name, "V1", files, "sha256:0", "", (), (), "2026-01-01T00:00:00Z")


def leftovers(project: SshProject) -> list[object]:
    """Folders and processes of checks on the host."""
    return [*project.scratch.glob("orch-check-*"), *pids_of(project.scratch / "orch-check-")]


def by_name(verdict: RemoteVerdict) -> dict[str, RemoteFinding]:
    """The findings."""
    return {finding.name: finding for finding in verdict.findings}


def begin_held(project: SshProject) -> RunningOrch:
    """A check as a process of its own, whose variant holds at its import."""
    running = RunningOrch([sys.executable, "-c", CONTROLLER, str(project.inventory), HELD], project.laptop)
    project.begun.append(running)
    wait_until(lambda: bool(list(project.scratch.glob("orch-check-*/holds"))), timeout_s=60.0)
    return running


def test_a_variant_is_tried_and_the_live_file_stays(project: SshProject) -> None:
    """Imported in its package beside the live one, judged with exit code 0 and 1; no trace is left."""
    before, folders = project.identity(), sorted(project.site.rglob("*"))
    for wanted, passed in (("num_stages=3", True), ("num_stages=9", False)):
        settings = CheckSettings(reference=("grep", "-q", wanted, "{file}"))
        verdict = check(project.inventory, KERNEL.replace("num_stages=2", "num_stages=3"), settings=settings)
        assert (verdict.passed, by_name(verdict)["reference"].passed) == (passed, passed)
        assert by_name(verdict)["import"].detail.startswith("imported as kernels.fast in ")
    assert (project.identity(), sorted(project.site.rglob("*"))) == (before, folders)
    assert leftovers(project) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_controller_that_ends_takes_everything_with_it(project: SshProject, number: signal.Signals) -> None:
    """Ctrl-C and kill -9: the host notices that nobody waits, kills the import with its child, removes the folder."""
    running = begin_held(project)
    running.signal(number)
    running.end()
    wait_until(lambda: leftovers(project) == [])


def test_a_lost_line_takes_everything_with_it(project: SshProject) -> None:
    """The line is cut while the variant is imported: an error here, nothing left there."""
    with behind_proxy(project) as proxy:
        running = begin_held(project)
        proxy.cut()
        assert LineLostError.__name__ in running.end().err
        wait_until(lambda: leftovers(project) == [])


def test_a_full_disk_is_told(project: SshProject, tmp_path: Path) -> None:
    """No space for the variant in the scratch folder: one error, and the folder is gone again."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", disk], check=False).returncode:
        pytest.skip("cannot mount here")
    try:
        project.write_inventory(host={"scratch_dir": str(disk)})
        with pytest.raises(HostWriteError, match=r"No space left on device.*look at the space"):
            check(project.inventory, KERNEL + "#" * 100_000)
        assert list(disk.iterdir()) == []
    finally:
        wait_until(lambda: subprocess.run(["umount", disk], capture_output=True, check=False).returncode == 0)


# ---- our own kernel


class KernelProject:
    """The project whose target is our kernel in a copy of its package, judged by ``kernel.check``."""

    def __init__(self, project: SshProject) -> None:
        self.project = project
        self.checkout = project.site / "checkout"
        shutil.copytree(CHECKOUT / "kernel", self.checkout / "kernel", ignore=shutil.ignore_patterns("__pycache__"))
        project.live = self.checkout / "kernel" / "sparse_mla_decode.py"
        self.text = project.live.read_text()
        project.write_inventory(engine={"cwd": str(self.checkout)})
        text = project.inventory.read_text().replace(str(project.site / "kernels" / "fast.py"), str(project.live))
        project.inventory.write_text(text.replace("kernels.fast", "kernel.sparse_mla_decode"))

    def check(self, text: str, *, timeout_s: float = 60.0) -> RemoteVerdict:
        """What a variant with this text is found to be; the package is then as it was."""
        reference = (sys.executable, "-m", "kernel.check", "{file}", "--json", "--device", "cpu")
        before = sorted((path, path.stat().st_mtime_ns) for path in self.checkout.rglob("*"))
        settings = CheckSettings(reference=reference, reference_timeout_s=240.0)
        verdict = check(self.project.inventory, text, settings=settings, timeout_s=timeout_s)
        assert sorted((path, path.stat().st_mtime_ns) for path in self.checkout.rglob("*")) == before
        assert leftovers(self.project) == []
        return verdict


@pytest.fixture
def kernel_project(project: SshProject) -> KernelProject:
    """Our kernel on that host."""
    pytest.importorskip("torch", reason="torch is not installed")
    return KernelProject(project)


@pytest.mark.kernel
@pytest.mark.slow
def test_our_kernel_is_judged_by_its_own_check(kernel_project: KernelProject) -> None:
    """A changed knob passes every case of the file given; a path that forgets the mask fails where it must."""
    right = kernel_project.check(kernel_project.text.replace("num_stages=2", "num_stages=3"))
    assert right.passed, right.findings
    assert right.report is not None
    assert right.report["digest"] == right.digest
    assert by_name(right)["CUDA graph"].detail.startswith("not tried: no CUDA GPU on the host")

    line = "tokens = tokens[tokens >= 0]"
    assert line in kernel_project.text
    wrong = kernel_project.check(kernel_project.text.replace(line, "tokens = tokens.clamp_min(0)"))
    found = by_name(wrong)
    assert (wrong.passed, found["import"].passed, found["reference"].passed) == (False, True, False)
    assert any(name.startswith("-1 in between") for name in found)
    assert not any(name.startswith("plain") for name in found)


@pytest.mark.kernel
@pytest.mark.parametrize(
    ("added", "detail", "timeout_s"),
    [
        ("\ndef broken(:\n", "SyntaxError: invalid syntax (sparse_mla_decode.py, line ", 60.0),
        ("\nwhile True:\n    pass\n", "did not end within ", 5.0),
        ("\nos.kill(os.getpid(), 11)\n", "killed by SIGSEGV (sparse_mla_decode.py, line ", 60.0),
    ],
)
def test_our_kernel_broken_at_import(kernel_project: KernelProject, added: str, detail: str, timeout_s: float) -> None:
    """One line each, and the reference command is not run."""
    verdict = kernel_project.check(kernel_project.text + added, timeout_s=timeout_s)
    assert by_name(verdict)["import"].detail.startswith(detail)
    assert verdict.command is None
