"""Starting, awaiting and stopping: real small engines on this machine, through the same seam as a remote host."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator import serve
from orchestrator.errors import EngineDiedError, EngineError, NotReadyError, PortTakenError, RemoteCommandError
from orchestrator.host import process_table
from orchestrator.records import EngineProcess
from tests.support.tiny_host import TinyHost, is_alive, until

DIGEST = "sha256:" + "ab" * 32

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the tests look into /proc"),
    pytest.mark.slow,  # a quarter of a minute in all: real processes
]


@pytest.fixture
def here(tmp_path: Path) -> Iterator[TinyHost]:
    """This machine with a tiny engine; nothing of it is left afterwards."""
    host = TinyHost(tmp_path)
    yield host
    host.close()


def start_ready(here: TinyHost, *options: str, **changes: object) -> tuple[object, EngineProcess]:
    """A started engine that answers."""
    engine = here.engine(*options, **changes)
    process = serve.start(here.remote, engine, deployed_digest=DIGEST)
    serve.wait_ready(here.remote, engine, process)
    return engine, process


def record_of(here: TinyHost) -> Path:
    """The file in which orch remembers the engine."""
    return here.folder / "scratch" / "engines" / f"tiny-{here.port}" / "process.json"


# ---- start


def test_a_started_engine_is_found_again(here: TinyHost) -> None:
    """What start returned is what another controller finds: pid, start, log and the digest that was deployed."""
    engine = here.engine()
    process = serve.start(here.remote, engine, deployed_digest=DIGEST)
    assert serve.running(here.remote, engine) == process
    assert process.deployed_digest == DIGEST
    assert os.getsid(process.pid) == process.pid
    record = json.loads(record_of(here).read_text())
    assert record["argv"] == list(engine.command)
    assert record_of(here).stat().st_mode & 0o077 == 0


def test_an_engine_gets_its_own_and_the_starts_environment(here: TinyHost) -> None:
    """Variables of the inventory and of this start both reach the process, and the start's win."""
    engine = here.engine(env={"A": "inventory", "B": "inventory"})
    process = serve.start(here.remote, engine, deployed_digest=None, env={"B": "it's $HOME"})
    environment = process_table.environment_of(process.pid)
    assert environment is not None
    assert (environment["A"], environment["B"]) == ("inventory", "it's $HOME")


def test_a_taken_port_refuses_a_start_and_names_the_stranger(here: TinyHost) -> None:
    """Nothing is started while a stranger listens; the message has its pid and command line."""
    pid = here.stranger()
    with pytest.raises(PortTakenError, match=rf"did not start \(pid {pid}: .*http\.server") as caught:
        serve.start(here.remote, here.engine(), deployed_digest=DIGEST)
    assert caught.value.next_step
    assert not record_of(here).exists()
    assert is_alive(pid)


def test_an_engine_of_ours_refuses_a_second_start_and_names_its_digest(here: TinyHost) -> None:
    """A second start says that it is our own engine, and for which digest; also before it listens."""
    engine = here.engine("--never-ready")
    serve.start(here.remote, engine, deployed_digest=DIGEST)
    with pytest.raises(PortTakenError, match="started by orch for digest abababababab"):
        serve.start(here.remote, engine, deployed_digest=DIGEST)


def test_workers_of_a_dead_leader_refuse_a_start(here: TinyHost) -> None:
    """With the leader killed by hand and the port free, a left worker still keeps a second engine from starting."""
    engine, process = start_ready(here, "--own-session", "1")
    worker = serve.processes(here.remote, engine, process)[1]
    os.kill(process.pid, signal.SIGKILL)
    until(lambda: not is_alive(process.pid), "the leader is dead")
    assert serve.running(here.remote, engine) is None
    with pytest.raises(PortTakenError, match=rf"1 process\(es\) of it still live \(pid {worker}\)"):
        serve.start(here.remote, engine, deployed_digest=DIGEST)
    assert serve.stop(here.remote, engine)
    assert not is_alive(worker)


def test_a_start_truncates_the_log(here: TinyHost) -> None:
    """The log of a start holds nothing of the start before."""
    engine, process = start_ready(here, log=str(here.folder / "logs" / "engine.log"))
    serve.stop(here.remote, engine)
    Path(process.log_path).write_text("old\n" * 1000)
    again = serve.start(here.remote, engine, deployed_digest=DIGEST)
    serve.wait_ready(here.remote, engine, again)
    assert serve.log_tail(here.remote, again, 5) == ("tiny engine starts",)


def test_a_program_that_is_not_there_is_one_clear_error(here: TinyHost) -> None:
    """A wrong command ends in one error, and a later start with the right one works."""
    with pytest.raises(RemoteCommandError, match="could not start"):
        serve.start(here.remote, here.engine(command=("/nonexistent/engine",)), deployed_digest=None)
    start_ready(here)


def test_a_python_that_is_not_there_names_the_key_to_correct(here: TinyHost) -> None:
    """A wrong interpreter path says which engine and which key to correct."""
    with pytest.raises(EngineError, match=r"/nonexistent/python.*correct python: of engine tiny"):
        serve.running(here.remote, here.engine(python="/nonexistent/python"))


# ---- wait


def test_waiting_ends_when_the_engine_answers(here: TinyHost) -> None:
    """Not ready while it answers 503, told so meanwhile, and ready as soon as it answers 200."""
    ready_file = here.folder / "ready"
    engine = here.engine("--ready-file", str(ready_file))
    process = serve.start(here.remote, engine, deployed_digest=DIGEST)
    waits: list[float] = []

    def on_wait(waited_s: float) -> None:
        waits.append(waited_s)
        ready_file.touch()

    ready_after_s = serve.wait_ready(here.remote, engine, process, on_wait=on_wait)
    assert len(waits) == 1
    assert ready_after_s >= waits[0] - 0.5


def test_a_death_at_start_brings_the_traceback(here: TinyHost) -> None:
    """An engine that dies at start ends the wait at once, with its traceback and without the secret in it."""
    engine = here.engine("--die", env={"HF_TOKEN": "hf_abcdefgh"})
    process = serve.start(here.remote, engine, deployed_digest=DIGEST)
    with pytest.raises(EngineDiedError, match="ended before it was ready") as caught:
        serve.wait_ready(here.remote, engine, process)
    assert caught.value.evidence[0] == "Traceback (most recent call last):"
    assert caught.value.evidence[-1] == "RuntimeError: no kernel image for this device, token ***"
    assert process.log_path in str(caught.value)


def test_a_silent_death_brings_the_end_of_the_log(here: TinyHost) -> None:
    """Without a traceback the evidence is the last 25 lines."""
    engine = here.engine("--die-silently")
    process = serve.start(here.remote, engine, deployed_digest=DIGEST)
    with pytest.raises(EngineDiedError) as caught:
        serve.wait_ready(here.remote, engine, process)
    assert caught.value.evidence == tuple(f"line {i}" for i in range(75, 100))


def test_never_ready_says_what_health_answered(here: TinyHost) -> None:
    """At the deadline the error has the last answer of /health; the engine is left for the caller to stop."""
    engine = here.engine("--never-ready", ready_timeout_s=0.8)
    process = serve.start(here.remote, engine, deployed_digest=DIGEST)
    with pytest.raises(NotReadyError, match=r"503.*still loading weights") as caught:
        serve.wait_ready(here.remote, engine, process)
    assert caught.value.evidence == ("tiny engine starts",)
    assert is_alive(process.pid)


def test_a_strangers_200_is_not_ours(here: TinyHost) -> None:
    """A 200 from a process that is not the engine's never counts, though the engine lives."""
    engine = here.engine(command=(sys.executable, "-c", "import time; time.sleep(60)"))
    process = serve.start(here.remote, engine, deployed_digest=DIGEST)
    pid = here.stranger()
    with pytest.raises(PortTakenError, match=f"pid {pid}"):
        serve.wait_ready(here.remote, engine, process)
    assert is_alive(process.pid)


def test_a_stranger_that_caused_our_death_is_named(here: TinyHost) -> None:
    """When the engine died because a stranger took the port after the check, the stranger is the message."""
    engine = here.engine(
        wrapper=("/bin/sh", "-c", f'while [ ! -e {here.folder}/go ]; do sleep 0.01; done; exec "$@"', "sh")
    )
    process = serve.start(here.remote, engine, deployed_digest=DIGEST)
    pid = here.stranger()
    (here.folder / "go").touch()
    until(lambda: not is_alive(process.pid), "the engine died")
    with pytest.raises(PortTakenError, match=f"pid {pid}") as caught:
        serve.wait_ready(here.remote, engine, process)
    assert "Address already in use" in caught.value.evidence[-1]


# ---- stop


def test_stop_leaves_no_process(here: TinyHost) -> None:
    """Forked workers, workers in their own session and daemons with another parent all end, and nobody else does."""
    engine, process = start_ready(here, "--fork", "2", "--own-session", "2", "--daemon")
    bystander = subprocess.Popen(["sleep", "60"])
    try:
        alive = until(lambda: len(here.own_pids()) == 6 and here.own_pids(), "all workers run")
        assert set(serve.processes(here.remote, engine, process)) == set(alive)
        assert serve.processes(here.remote, engine, process)[0] == process.pid
        assert serve.stop(here.remote, engine)
        assert here.own_pids() == []
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_a_daemon_without_our_mark_ends_when_its_ancestry_was_seen(here: TinyHost) -> None:
    """A worker that cleared its environment and lost its parent was written down while the parent lived."""
    engine, process = start_ready(here, "--bare-daemon")
    pids = until(lambda: len(here.own_pids()) == 3 and here.own_pids(), "the daemon runs")
    serve.processes(here.remote, engine, process)
    daemon = max(pids, key=os.getsid)
    assert os.getsid(daemon) == daemon != process.pid
    for pid in pids:
        if pid != daemon:
            os.kill(pid, signal.SIGKILL)
    until(lambda: len(here.own_pids()) == 1, "only the daemon is left")
    assert serve.stop(here.remote, engine)
    assert here.own_pids() == []


def test_stop_finds_an_engine_whose_start_was_cut_off(here: TinyHost) -> None:
    """A controller that died between the start and the record leaves an engine that can still be found and stopped."""
    engine, process = start_ready(here)
    record = json.loads(record_of(here).read_text())
    record.update(pid=None, start=None, start_ticks=None, started_s=None)
    record_of(here).write_text(json.dumps(record))
    found = serve.running(here.remote, engine)
    assert found is not None
    assert (found.pid, found.start_ticks) == (process.pid, process.start_ticks)
    assert serve.stop(here.remote, engine)
    assert here.own_pids() == []


def test_an_engine_that_ignores_its_signal_is_killed_after_the_grace(here: TinyHost) -> None:
    """TERM ignored by the leader and its workers: KILL follows."""
    engine, _ = start_ready(here, "--ignore-term", "--own-session", "1", stop_grace_s=0.3)
    assert serve.stop(here.remote, engine)
    assert here.own_pids() == []


def test_stop_uses_the_engines_own_signal(here: TinyHost) -> None:
    """An engine that ignores TERM and has stop_signal INT ends by INT, as Python does, and not by KILL."""
    engine, process = start_ready(here, "--ignore-term", stop_signal="INT", stop_grace_s=20.0)
    assert serve.stop(here.remote, engine)
    assert serve.log_tail(here.remote, process, 1) == ("KeyboardInterrupt",)


def test_stop_may_be_repeated(here: TinyHost) -> None:
    """Nothing started: False. Stopped: True once, then False."""
    assert not serve.stop(here.remote, here.engine())
    engine, _ = start_ready(here)
    assert serve.stop(here.remote, engine)
    assert not serve.stop(here.remote, engine)
    assert serve.running(here.remote, engine) is None


def test_a_reused_pid_is_never_signalled(here: TinyHost) -> None:
    """A process with the recorded pid, and its whole session, is left alone when it started at another time."""
    engine, _ = start_ready(here)
    serve.stop(here.remote, engine)
    innocent = subprocess.Popen(["sh", "-c", "sleep 60 & wait"], start_new_session=True)
    try:
        until(lambda: len([p for p in process_table.processes() if p.session == innocent.pid]) == 2, "its child runs")
        record = json.loads(record_of(here).read_text())
        record.update(pid=innocent.pid, start="12345", start_ticks=12345, stopped_s=None)
        record_of(here).write_text(json.dumps(record))
        assert serve.running(here.remote, engine) is None
        assert not serve.stop(here.remote, engine)
        assert len([p for p in process_table.processes() if p.session == innocent.pid]) == 2
    finally:
        os.killpg(innocent.pid, signal.SIGKILL)
        innocent.wait()


def test_a_record_from_before_a_reboot_is_nobody(here: TinyHost) -> None:
    """After a reboot neither pid nor start means anything: nothing runs, nothing is stopped."""
    engine, process = start_ready(here)
    record = json.loads(record_of(here).read_text())
    record_of(here).write_text(json.dumps({**record, "boot_id": "another boot"}))
    assert serve.running(here.remote, engine) is None
    assert not serve.stop(here.remote, engine)
    assert is_alive(process.pid)


def test_processes_of_an_earlier_start_are_none(here: TinyHost) -> None:
    """After a restart the old record no longer stands for the new engine's processes."""
    engine, first = start_ready(here)
    serve.stop(here.remote, engine)
    _, second = start_ready(here)
    assert serve.processes(here.remote, engine, first) == ()
    assert serve.processes(here.remote, engine, second) == (second.pid,)


# ---- log


def test_a_log_that_is_not_there_has_no_lines(here: TinyHost) -> None:
    """No log yet is no error."""
    process = EngineProcess("tiny", "here", 1, 1, "", 0.0, str(here.folder / "none.log"), None)
    assert serve.log_tail(here.remote, process) == ()


def test_a_long_traceback_keeps_its_first_line_and_its_end() -> None:
    """Of two tracebacks the last one counts, and it is bounded."""
    first, last = "Traceback (most recent call last):", "(worker) Traceback (most recent call last):"
    lines = [first, "old", last, *(f"frame {i}" for i in range(200)), "RuntimeError: boom"]
    evidence = serve.log_evidence(lines)
    assert len(evidence) == serve.N_TRACEBACK_LINES
    assert (evidence[0], evidence[1], evidence[2]) == (last, "  … 143 lines …", "frame 143")
    assert evidence[-1] == "RuntimeError: boom"


# ---- the watcher's script


def write_script(here: TinyHost, engine: object) -> Path:
    """The watcher's script, as a file."""
    script = here.folder / "restore.sh"
    script.write_text(serve.restore_script(engine, here.remote.scratch_dir()))
    return script


def run_script(script: Path) -> dict[str, object]:
    """Runs it like the watcher does; what it says that it did."""
    done = subprocess.run(["/bin/sh", script], stdin=subprocess.DEVNULL, capture_output=True, check=True, cwd="/")
    return json.loads(done.stdout)


def test_the_restore_script_stops_the_engine(here: TinyHost) -> None:
    """Without any controller the script ends the engine with all its workers; twice is fine."""
    engine, process = start_ready(here, "--own-session", "1", "--daemon")
    script = write_script(here, engine)
    done = run_script(script)
    assert process.pid in done["stopped"]
    assert here.own_pids() == []
    assert run_script(script)["stopped"] == []


def test_the_restore_script_starts_the_engine_on_the_restored_file(here: TinyHost) -> None:
    """With restart_after_restore a new engine runs the restored code, is ours, and has a fresh log."""
    here.deploy("VALUE = 2\n")
    engine, first = start_ready(here, restart_after_restore=True)
    assert here.get("/value")["value"] == 2
    script = write_script(here, engine)
    here.deploy("VALUE = 1\n")
    done = run_script(script)
    second = serve.running(here.remote, engine)
    assert second is not None
    assert second.pid == done["started"] != first.pid
    serve.wait_ready(here.remote, engine, second)
    assert here.get("/value")["value"] == 1
    assert serve.stop(here.remote, engine)


def test_the_restore_script_starts_nothing_that_orch_had_not_started(here: TinyHost) -> None:
    """Where orch started no engine, none is started; where a stranger has the port, neither is."""
    engine = here.engine(restart_after_restore=True)
    script = write_script(here, engine)
    assert run_script(script)["started"] is None
    start_ready(here)
    serve.stop(here.remote, engine)
    pid = here.stranger()
    done = run_script(script)
    assert done["started"] is None
    assert str(pid) in str(done["why_not_started"])


def test_the_restored_engine_hears_interrupts(here: TinyHost) -> None:
    """Run from a background shell, which ignores INT, the engine that the script starts still ends by INT."""
    engine, _ = start_ready(here, restart_after_restore=True, stop_signal="INT", stop_grace_s=20.0)
    script = write_script(here, engine)
    subprocess.run(["/bin/sh", "-c", f'/bin/sh "{script}" >/dev/null & wait'], check=True)
    process = serve.running(here.remote, engine)
    assert process is not None
    serve.wait_ready(here.remote, engine, process)
    assert serve.stop(here.remote, engine)
    assert serve.log_tail(here.remote, process, 1) == ("KeyboardInterrupt",)


def test_the_restore_script_passes_shellcheck(here: TinyHost) -> None:
    """The script is POSIX sh without findings."""
    shellcheck = shutil.which("shellcheck") or shutil.which("shellcheck", path=str(Path(sys.executable).parent))
    if not shellcheck:
        pytest.skip("shellcheck is not installed")
    engine = here.engine(env={"X": 'it\'s "quoted" $HOME `id`'})
    done = subprocess.run(
        [shellcheck, "--shell=sh", "-"],
        input=serve.restore_script(engine, "/scratch with space"),
        text=True,
        capture_output=True,
    )
    assert done.stdout == ""
