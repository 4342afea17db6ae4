"""The bench station on this machine: real shell, real client, real server with a known truth."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator import bench
from orchestrator.clients import loadgen_adapter
from orchestrator.connection.base import DEFAULT_TIMEOUT_S, Completed, Spawned
from orchestrator.connection.local import LocalRemote
from orchestrator.errors import LeaseLostError, LineLostError, LoadError, RemoteCommandError
from orchestrator.records import Engine, Host, LoadProgress, LoadResult, Workload
from tests.support.stub_engine import RunningStub, running_stub
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow  # real loads, and deadlines that pass

WORKLOAD = Workload(
    name="small",
    input_tokens=8,
    output_tokens=4,
    prompts_per_concurrency=3,
    warmup_per_concurrency=1,
    request_timeout_s=10,
    load_timeout_s=60,
)
N_REQUESTS = 8  # at concurrency 2: six measured, two of warm-up


def local(tmp_path: Path) -> LocalRemote:
    """This machine, with its scratch folder inside the test's own."""
    return LocalRemote(Host(name="here", transport="local", scratch_dir=str(tmp_path / "scratch")))


def engine_at(stub: RunningStub, **fields: Any) -> Engine:
    """The stub as an engine of an inventory."""
    return Engine(name="stub", command=("stub",), base_url=stub.base_url, **{"python": sys.executable, **fields})


def load(tmp_path: Path, engine: Engine, workload: Workload = WORKLOAD, **named: Any) -> LoadResult:
    """One load at concurrency 2, watched closely."""
    remote = named.pop("remote", None) or local(tmp_path)
    return bench.run_load(remote, engine, workload, 2, run_dir=str(tmp_path / "run"), poll_s=0.05, **named)


def leader(tmp_path: Path) -> int:
    """Process group of the load, as its folder names it."""
    return int((tmp_path / "run" / "process").read_text().split()[0])


def group_is_alive(group: int) -> bool:
    """Whether any process of the group still runs (one that only waits to be reaped does not)."""
    listed = subprocess.run(["ps", "-e", "-o", "pgid=,stat="], capture_output=True, text=True, check=True).stdout
    return any(int(line.split()[0]) == group and line.split()[1][0] != "Z" for line in listed.splitlines())


def test_a_good_load_gives_every_metric_and_keeps_the_raw_result(tmp_path: Path) -> None:
    """A load through a real shell is ok, has the known truth in it, and keeps the client's file byte for byte."""
    seen: list[LoadProgress] = []
    with running_stub("--ttft-ms", 20, "--itl-ms", 5) as stub:
        result = load(tmp_path, engine_at(stub), on_progress=seen.append)
        assert len(stub.log()) == N_REQUESTS
    assert (result.status, result.reasons) == ("ok", ())
    assert result.metrics["n_ok"] == 6 and result.metrics["n_output_tokens"] == 24
    assert (result.metrics["ttft_ms_p50"] or 0) >= 20 and (result.metrics["tpot_ms_p50"] or 0) > 1
    assert result.raw == (tmp_path / "run" / "result.json").read_bytes()
    assert (result.client, result.client_version) == ("loadgen", loadgen_adapter.version())
    assert result.argv[0] == sys.executable and result.started_at < result.ended_at
    assert seen[-1] == LoadProgress(2, "load", 6, 6, 0, seen[-1].elapsed_s)
    assert not group_is_alive(leader(tmp_path))


def test_a_load_with_a_failed_request_is_invalid(tmp_path: Path) -> None:
    """One bad answer makes the load invalid; its reason names the number and the kind."""
    with running_stub("--ttft-ms", 1, "--skip", 2, faults=["3=error:2"]) as stub:
        result = load(tmp_path, engine_at(stub))
    assert (result.status, dict(result.metrics)) == ("invalid", {})
    assert result.reasons == ("1 of 6 requests failed: error inside a 200 answer ×1 (the scheduler fell over)",)


def test_an_interpreter_that_is_not_there(tmp_path: Path) -> None:
    """A wrong engine python is a failed load with the shell's own words."""
    with running_stub() as stub:
        result = load(tmp_path, engine_at(stub, python="/nowhere/python"))
    assert result.status == "failed" and result.raw is None
    assert result.reasons[0] == "loadgen ended with exit code 127, without a result"
    assert "not found" in result.reasons[1]


@pytest.mark.parametrize(
    ("whole_group", "reason"),
    [
        (False, "loadgen ended with exit code 137, without a result"),
        (True, "loadgen is gone from the host, without a result and without an exit code"),
    ],
)
def test_a_client_that_is_killed(tmp_path: Path, whole_group: bool, reason: str) -> None:
    """A client that is killed without leaving a result makes a failed load, not an endless wait."""
    with running_stub(faults=["all=stall:1"]) as stub:

        def kill() -> None:
            wait_until(lambda: len(stub.log()) == 2)
            group = leader(tmp_path)
            children = Path(f"/proc/{group}/task/{group}/children").read_text().split()
            if whole_group:
                os.killpg(group, signal.SIGKILL)
            else:
                os.kill(int(children[0]), signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        result = load(tmp_path, engine_at(stub))
        killer.join()
    assert (result.status, result.reasons[0]) == ("failed", reason)


def test_a_load_past_its_deadline_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that still runs at the deadline is stopped; the load is failed and nothing runs any more."""
    monkeypatch.setattr(loadgen_adapter, "GRACE_S", -59.0)
    with running_stub(faults=["all=stall:1"]) as stub:
        result = load(tmp_path, engine_at(stub))
    assert result.status == "failed"
    assert result.reasons[0] == "loadgen was stopped at its deadline, while it still ran"
    assert not group_is_alive(leader(tmp_path))


@pytest.mark.parametrize("error", [KeyboardInterrupt("SIGINT"), LeaseLostError("the lease was taken")])
@pytest.mark.parametrize("through", ["on_progress", "check"])
def test_an_interrupted_load_leaves_no_client(tmp_path: Path, error: BaseException, through: str) -> None:
    """Ctrl-C or a failed check ends the client on the host first, then goes on as it was."""
    with running_stub(faults=["all=stall:1"]) as stub:

        def interrupt(*_: object) -> None:
            if len(stub.log()) == 2:
                raise error

        with pytest.raises(type(error)) as caught:
            load(tmp_path, engine_at(stub), **{through: interrupt})
    assert caught.value is error
    assert not group_is_alive(leader(tmp_path))
    assert json.loads((tmp_path / "run" / "result.json").read_bytes())["stopped_by"] == "SIGTERM"


def test_a_client_that_ignores_term_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the grace comes KILL, so that not even a stuck client is left to disturb the next load."""
    monkeypatch.setattr(bench, "STOP_GRACE_S", 0.2)
    stubborn = tmp_path / "python"
    stubborn.write_text("#!/bin/sh\ntrap '' TERM\ntouch ready\nwhile :; do sleep 0.1; done\n")
    stubborn.chmod(0o755)

    def interrupt() -> None:
        if (tmp_path / "run" / "ready").exists():
            raise KeyboardInterrupt

    with running_stub() as stub, pytest.raises(KeyboardInterrupt):
        load(tmp_path, engine_at(stub, python=str(stubborn)), check=interrupt)
    wait_until(lambda: not group_is_alive(leader(tmp_path)))


class LosingRemote(LocalRemote):
    """This machine behind a line that dies at the n-th call, before the host acted or after."""

    def __init__(self, host: Host, lost: Sequence[int], *, after_acting: bool) -> None:
        super().__init__(host)
        self.lost = set(lost)
        self.after_acting = after_acting
        self.n_calls = 0

    def run(
        self, script: str, args: Sequence[str] = (), *, stdin: bytes = b"", timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> Completed:
        self.n_calls += 1
        is_lost = self.n_calls in self.lost
        if not is_lost or self.after_acting:
            done = super().run(script, args, stdin=stdin, timeout_s=timeout_s)
        if is_lost:
            raise LineLostError("the line died")
        return done


@pytest.mark.parametrize("after_acting", [False, True])
def test_a_line_that_dies_at_any_call_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after_acting: bool
) -> None:
    """Wherever the line dies, the load is made once, and its result is whole."""
    monkeypatch.setattr(bench, "RETRY_S", 0.01)
    host = local(tmp_path).host
    seen: list[LoadProgress] = []
    with running_stub("--ttft-ms", 1, "--itl-ms", 1) as stub:
        remote = LosingRemote(host, range(1, 100, 2), after_acting=after_acting)
        result = load(tmp_path, engine_at(stub), remote=remote, on_progress=seen.append)
        assert len(stub.log()) == N_REQUESTS
    assert result.status == "ok" and remote.n_calls > 10
    assert "line lost" in {progress.phase for progress in seen}


def test_a_host_that_never_answers_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the line stays dead for longer than the load can last, the error is the line's own."""
    monkeypatch.setattr(bench, "RETRY_S", 0.01)
    monkeypatch.setattr(bench, "LINE_PATIENCE_S", 0.1)
    monkeypatch.setattr(loadgen_adapter, "GRACE_S", -59.9)
    with running_stub("--ttft-ms", 1) as stub:
        remote = LosingRemote(local(tmp_path).host, range(6, 10_000), after_acting=False)
        with pytest.raises(LineLostError, match="the line died"):
            load(tmp_path, engine_at(stub), remote=remote)
        wait_until(lambda: (tmp_path / "run" / "exit").exists())


def test_a_load_can_be_joined_by_another_controller(tmp_path: Path) -> None:
    """What one controller started, another one follows to its end, while it runs and after."""
    remote, run_dir = local(tmp_path), str(tmp_path / "run")
    with running_stub("--ttft-ms", 30, "--itl-ms", 10) as stub:
        engine = engine_at(stub)
        first = threading.Thread(target=load, args=(tmp_path, engine))
        first.start()
        wait_until((tmp_path / "run" / "process").exists)
        joined = bench.follow_load(remote, engine, WORKLOAD, 2, run_dir=run_dir, poll_s=0.05)
        first.join()
        again = bench.follow_load(remote, engine, WORKLOAD, 2, run_dir=run_dir)
        assert len(stub.log()) == N_REQUESTS
    assert joined == again and joined.status == "ok"


class SlowToStart(LocalRemote):
    """A host on which a spawned program has not done anything yet when ``spawn`` returns."""

    def spawn(self, argv: Sequence[str], **named: Any) -> Spawned:
        return super().spawn(["/bin/sh", "-c", 'sleep 0.3; exec "$@"', "slow", *argv], **named)


def test_a_host_that_is_slow_to_start_the_client(tmp_path: Path) -> None:
    """A client that has not shown itself at the first look is waited for."""
    with running_stub("--ttft-ms", 1) as stub:
        result = load(tmp_path, engine_at(stub), remote=SlowToStart(local(tmp_path).host))
    assert result.status == "ok"


def test_joining_where_nothing_was_started(tmp_path: Path) -> None:
    """An empty folder is told as such, at once."""
    with running_stub() as stub, pytest.raises(LoadError, match="no load was started"):
        bench.follow_load(local(tmp_path), engine_at(stub), WORKLOAD, 2, run_dir=str(tmp_path / "run"))


def test_a_folder_is_used_for_one_load(tmp_path: Path) -> None:
    """An earlier load is kept under another name; one that still runs is not disturbed."""
    remote = local(tmp_path)
    with running_stub("--ttft-ms", 1, "--skip", 16, faults=["all=stall:1"]) as stub:
        first, second = load(tmp_path, engine_at(stub)), load(tmp_path, engine_at(stub))
        kept = list(tmp_path.glob("run.before-*/result.json"))
        assert [path.read_bytes() for path in kept] == [first.raw] and second.raw != first.raw

        def stalled_load() -> None:
            with contextlib.suppress(LeaseLostError):
                load(tmp_path, replace(engine_at(stub), name="stalls"), replace(WORKLOAD, seed=1), check=check)

        over = threading.Event()

        def check() -> None:
            if over.is_set():
                raise LeaseLostError("enough")

        running = threading.Thread(target=stalled_load)
        running.start()
        wait_until(lambda: len(stub.log()) == 18)
        with pytest.raises(LoadError, match="cannot start a load"):
            load(tmp_path, engine_at(stub))
        with pytest.raises(RemoteCommandError, match="could not remove"):
            bench.remove_load(remote, str(tmp_path / "run"))
        assert group_is_alive(leader(tmp_path))
        over.set()
        running.join()
    bench.remove_load(remote, str(tmp_path / "run"))
    bench.remove_load(remote, str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_only_a_folder_of_a_load_is_removed(tmp_path: Path) -> None:
    """remove_load refuses a folder that no load was started in."""
    (tmp_path / "precious").mkdir()
    with pytest.raises(RemoteCommandError) as caught:
        bench.remove_load(local(tmp_path), str(tmp_path / "precious"))
    assert "is not the folder of a load" in caught.value.evidence[0]
    assert (tmp_path / "precious").exists()


def test_a_stranger_with_the_same_pid_is_left_alone(tmp_path: Path) -> None:
    """A pid that now belongs to another process (another start time) is never signalled."""
    run_dir = tmp_path / "run"
    (run_dir / "started").mkdir(parents=True)
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as stranger:
        (run_dir / "process").write_text(f"{stranger.pid} 1 1700000000\n")
        bench.stop_load(local(tmp_path), str(run_dir))
        assert stranger.poll() is None
        stranger.kill()


def test_a_load_stopped_before_its_start_never_starts(tmp_path: Path) -> None:
    """stop_load in a claimed folder also stops a start that is still under way."""
    remote, run_dir = local(tmp_path), tmp_path / "run"
    run_dir.mkdir()
    bench.stop_load(remote, str(run_dir))
    argv = ["/bin/sh", "-c", bench.detached.WRAPPER, "orch-load", str(run_dir), "touch", str(tmp_path / "ran")]
    subprocess.run(argv, check=True, start_new_session=True)
    assert not (run_dir / "process").exists() and not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["CLAIM", "WRAPPER", "LOOK", "STOP", "REMOVE"])
def test_the_scripts_pass_shellcheck(name: str) -> None:
    """shellcheck has nothing to say about what runs on the host."""
    program = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if program is None:
        pytest.skip("shellcheck is not installed")
    script = getattr(bench.detached, name)
    done = subprocess.run([program, "-s", "sh", "-"], input=script, capture_output=True, text=True)
    assert done.stdout == "" and done.returncode == 0


@pytest.mark.parametrize("shell", ["dash", "busybox sh", "bash --posix"])
def test_the_scripts_run_in_every_common_shell(tmp_path: Path, shell: str) -> None:
    """A load is claimed, started, looked at, stopped and removed by whichever shell is the host's sh."""
    words = shell.split()
    if shutil.which(words[0]) is None:
        pytest.skip(f"{words[0]} is not installed")
    run_dir = str(tmp_path / "run")

    def sh(script: str, *args: str) -> str:
        done = subprocess.run([*words, "-c", script, "orch", *args], capture_output=True, text=True, timeout=30)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    sh(bench.detached.CLAIM, run_dir)
    assert sh(bench.detached.LOOK, run_dir, "", "25").startswith("none - ")
    argv = [*words, "-c", bench.detached.WRAPPER, "orch", run_dir, "sh", "-c", "echo last words; exec sleep 60"]
    with subprocess.Popen(argv, start_new_session=True):
        wait_until(lambda: sh(bench.detached.LOOK, run_dir, "", "25").startswith("running "))
        wait_until(lambda: (tmp_path / "run" / "client.log").read_text() == "last words\n")
        sh(bench.detached.STOP, run_dir, "50")
    seen = sh(bench.detached.LOOK, run_dir, "", "25").splitlines()
    assert seen[0].startswith("ended ") and seen[0].endswith(" 143") and seen[1:3] == ["", "last words"]
    sh(bench.detached.REMOVE, run_dir)
    assert not Path(run_dir).exists()


def test_workers_that_a_client_leaves_behind_are_ended(tmp_path: Path) -> None:
    """A client whose children outlive it does not disturb the next load."""
    client = tmp_path / "python"
    client.write_text("#!/bin/sh\nsleep 60 &\nexit 0\n")
    client.chmod(0o755)
    with running_stub() as stub:
        result = load(tmp_path, engine_at(stub, python=str(client)))
    assert result.reasons == ("loadgen ended with exit code 0, without a result",)
    wait_until(lambda: not group_is_alive(leader(tmp_path)))
