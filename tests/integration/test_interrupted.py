"""Ctrl-C, a polite kill and a closed terminal at every kind of moment: exit 130, nothing running, the truth told."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from orchestrator.demo.ssh_host import find_sshd
from tests.support.cli_project import Ran
from tests.support.ssh_project import CHECKOUT, RunningOrch, SshProject, pids_of
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration

PUTTING_BACK = "this is not interrupted, one moment"
each_signal = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])


def interrupted(running: RunningOrch) -> Ran:
    """Its end: exit 130, one line that says so, no traceback."""
    ran = running.end()
    assert ran.code == 130, ran.err
    assert "Traceback" not in ran.err
    assert any(line.startswith("orch: interrupted") for line in ran.err.splitlines()), ran.err
    return ran


@each_signal
def test_a_pull_ends_at_once_and_records_nothing(project: SshProject, number: signal.Signals) -> None:
    """While it waits for the host's bytes."""
    project.host.gate.touch()
    pull = project.begin("pull")
    pull.await_text("pull      pulling")
    pull.signal(number)
    interrupted(pull)
    assert project.query("select * from baselines") == []
    assert not (project.laptop / "variants" / "fast" / "baseline").exists()


@each_signal
def test_a_push_that_has_sent_its_bytes_is_undone(project: SshProject, number: signal.Signals) -> None:
    """The host has not written yet, and will not: the push that stands still there is ended, not only outrun."""
    before = project.identity()
    project.with_variants()
    project.host.set_fault("STOP", "transfer")
    push = project.begin("push", "--variant", "V1")
    project.host.await_stopped_agent()
    push.signal(number)
    assert "the push was undone" in interrupted(push).err
    project.host.let_go()
    wait_until(lambda: project.traces == [])
    assert project.identity() == before
    assert [row["status"] for row in project.query("select status from deployments")] == ["reverted"]


@pytest.mark.parametrize("already", ["baseline", "V2"])
def test_a_push_that_is_live_is_undone_and_a_second_signal_survived(project: SshProject, already: str) -> None:
    """The file is replaced already. A second Ctrl-C while it is put back is answered, and changes nothing."""
    before = project.identity()
    project.with_variants()
    if already != "baseline":
        project.done("push", "--variant", already)
    project.host.set_fault("STOP", "rename")
    push = project.begin("push", "--variant", "V1")
    project.host.await_stopped_agent()
    assert project.digest == project.digest_of("V1")
    push.signal(signal.SIGINT)
    project.host.await_waiting_agent()
    push.signal(signal.SIGINT)
    push.await_text(PUTTING_BACK)
    push.signal(signal.SIGTERM)
    push.await_text(PUTTING_BACK, count=2)
    project.host.let_go()
    interrupted(push)
    assert (project.identity(), project.traces) == (before, [])
    wait_until(lambda: project.host_pids() == [])
    assert {row["status"] for row in project.query("select status from deployments")} == {"reverted"}


@each_signal
def test_a_start_ends_with_the_engine_and_leaves_the_variant(project: SshProject, number: signal.Signals) -> None:
    """While it waits for a slow engine: the engine is gone, and what was pushed is said to stay under its lease."""
    project.write_inventory("--ready-file", str(project.ready_file))
    project.pushed("V1")
    bench = project.begin("bench", "--concurrency", "1")
    wait_until(project.is_serving, timeout_s=60.0)
    bench.signal(number)
    assert "V1 stays live" in interrupted(bench).err
    leaves_only_the_variant(project)


def leaves_only_the_variant(project: SshProject) -> None:
    """No engine, no load; V1 live under the project's lease with a watcher; the trial failed; revert works."""
    assert project.named_pids(b"serving_engine") == []
    wait_until(lambda: project.named_pids(b"loadgen.py") == [])
    assert len(project.named_pids(b"orch-watch")) == 1
    now = project.status()
    assert (now["name"], now["lease"]["is_ours"], now["engine"]) == ("V1", True, None)
    (trial,) = project.query("select status, reasons, ended_at from trials")
    assert (trial["status"], trial["reasons"]) == ("failed", '["interrupted"]') and trial["ended_at"]
    assert project.query("select * from results where status = 'ok'") == []
    project.done("revert")
    assert project.traces == []
    wait_until(lambda: project.host_pids() == [])


def test_a_load_ends_with_engine_and_client_and_a_second_signal_is_survived(project: SshProject) -> None:
    """In the middle of a load, and again while an engine that is slow to stop is being stopped."""
    project.write_inventory("--hold-file", str(project.hold_file), "--ignore-term", engine={"stop_grace_s": 1.0})
    project.pushed("V1")
    project.hold_file.touch()
    bench = project.begin("bench", "--concurrency", "2")
    project.await_held_load()
    bench.signal(signal.SIGINT)
    bench.await_text("stopping serving")
    bench.signal(signal.SIGINT)
    bench.await_text(PUTTING_BACK)
    assert "V1 stays live" in interrupted(bench).err
    leaves_only_the_variant(project)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_load_of_the_baseline_leaves_nothing_at_all(project: SshProject, number: signal.Signals) -> None:
    """Its lease is given back: no trace beside the file, no process."""
    before = project.identity()
    project.write_inventory("--hold-file", str(project.hold_file))
    project.done("pull")
    project.hold_file.touch()
    bench = project.begin("bench", "--concurrency", "1")
    project.await_held_load()
    bench.signal(number)
    assert "stays live" not in interrupted(bench).err
    wait_until(lambda: project.host_pids() == [])
    assert (project.identity(), project.traces) == (before, [])
    assert [row["status"] for row in project.query("select status from trials")] == ["failed"]
    assert project.query("select * from deployments where ended_at is null") == []


@pytest.mark.parametrize("step", ["restore-link", "restore-verify"])
def test_a_revert_is_finished_whatever_comes(project: SshProject, step: str) -> None:
    """Before and after the file is put back: three signals are answered, then it is restored and exits with 130."""
    before = project.identity()
    project.pushed("V1")
    project.host.set_fault("STOP", step)
    revert = project.begin("revert")
    project.host.await_stopped_agent()
    for count, number in enumerate((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), start=1):
        revert.signal(number)
        revert.await_text(PUTTING_BACK, count=count)
    project.host.let_go()
    interrupted(revert)
    assert (project.identity(), project.traces) == (before, [])
    wait_until(lambda: project.host_pids() == [])
    assert project.query("select * from deployments where ended_at is null") == []


@pytest.mark.kernel
@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("connect   connecting to demo-host", signal.SIGHUP),
        ("load      concurrency 1", signal.SIGINT),
        ("starting decode on V1", signal.SIGTERM),
    ],
)
def test_the_demo_can_be_interrupted_anywhere(tmp_path: Path, text: str, number: signal.Signals) -> None:
    """In its first connection, in a load, with a variant live: the host's file is back and nothing runs."""
    if find_sshd() is None:
        pytest.skip("no sshd is installed here")
    pytest.importorskip("torch")
    folder = tmp_path / "demo"
    demo = RunningOrch([sys.executable, "-m", "orchestrator", "demo", str(folder)], tmp_path)
    try:
        demo.await_text(text)
        demo.signal(number)
        if "V1" in text:  # and again while it puts everything back
            demo.await_text("putting the throwaway host back", name="stdout")
            demo.signal(number)
        assert "nothing of the demo is running" in interrupted(demo).err
    finally:
        demo.kill()
    live = folder / "host" / "kernel" / "sparse_mla_decode.py"
    assert live.read_bytes() == (CHECKOUT / "kernel" / "seed" / "sparse_mla_decode.py").read_bytes()
    assert list(live.parent.glob(".orch*")) == []
    wait_until(lambda: pids_of(folder) == [])
