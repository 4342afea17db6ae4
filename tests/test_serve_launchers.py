"""Engines that a unit, a container or their user starts: found, proved, stopped, and started again by nobody's hand.

The managers are stand-ins (``fake_systemd``, ``fake_docker``); processes, namespaces and control groups are real.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator import host, provenance, serve
from orchestrator.check.remote import check_remote
from orchestrator.errors import EngineDiedError, EngineError, NotReadyError, PortTakenError, UsageError
from orchestrator.host import engine_state, interpreter, launch_container, launch_manual, process_table
from orchestrator.host.launch_container import ContainerLauncher
from orchestrator.host.launching import LaunchError
from orchestrator.records import Engine, EngineProcess, Launcher
from orchestrator.session import silent
from tests.support import fake_control_group, fake_docker, store_records
from tests.support.fake_docker import FakeDocker
from tests.support.fake_remote import FakeRemote
from tests.support.fake_systemd import FakeSystemd
from tests.support.tiny_host import SUPPORT, TinyHost, is_alive, until

DIGEST = "sha256:" + "ab" * 32
UNIT = "tiny.service"

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the tests look into /proc"),
    pytest.mark.slow,  # real processes
]


@pytest.fixture
def here(tmp_path: Path) -> Iterator[TinyHost]:
    """This machine with a tiny engine; nothing of it is left afterwards."""
    host = TinyHost(tmp_path)
    yield host
    host.close()


@pytest.fixture
def systemd(here: TinyHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSystemd]:
    """A systemd on PATH, with no unit yet."""
    made = FakeSystemd(tmp_path / "systemd")
    monkeypatch.setenv("PATH", str(made.bin), prepend=os.pathsep)
    yield made
    made.close()


@pytest.fixture
def docker(here: TinyHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDocker]:
    """A docker on PATH, with no container yet."""
    if not fake_docker.can_run():
        pytest.skip("no mount namespace can be made here")
    made = FakeDocker(tmp_path / "docker")
    monkeypatch.setenv("PATH", str(made.bin), prepend=os.pathsep)
    yield made
    made.close()


def argv(here: TinyHost, *options: str, port: int | None = None) -> list[str]:
    """The command line of the tiny engine."""
    return [sys.executable, "-m", "tiny_engine", "--port", str(port or here.port), *options]


def kept(here: TinyHost, launcher: Launcher, **changes: Any) -> Engine:
    """An engine that a launcher keeps."""
    return here.engine(command=changes.pop("command", ()), cwd=changes.pop("cwd", None), launcher=launcher, **changes)


def unit(here: TinyHost, systemd: FakeSystemd, *options: str, is_restarted: bool = False, **changes: Any) -> Engine:
    """The engine as a unit."""
    env = {"PYTHONPATH": str(SUPPORT), "PYTHONDONTWRITEBYTECODE": "1"}
    systemd.install(UNIT, argv(here, *options), cwd=here.site, env=env, is_restarted=is_restarted)
    return kept(here, Launcher(kind="systemd", unit=UNIT, timeout_s=20.0), **changes)


def start_ready(here: TinyHost, engine: Engine, digest: str = DIGEST) -> EngineProcess:
    """The engine, ready."""
    process = serve.start(here.remote, engine, deployed_digest=digest)
    serve.wait_ready(here.remote, engine, process)
    return process


def run_script(here: TinyHost, engine: Engine) -> Any:
    """What the watcher's script says that it did."""
    script = here.folder / "restore.sh"
    script.write_text(serve.restore_script(engine, here.remote.scratch_dir()))
    done = subprocess.run(["/bin/sh", script], stdin=subprocess.DEVNULL, capture_output=True, check=True, cwd="/")
    return json.loads(done.stdout)


# ---- systemd


def test_a_unit_that_runs_already_makes_way(here: TinyHost, systemd: FakeSystemd) -> None:
    """What the user had started under the unit is ours to restart: another main process, known with its journal."""
    engine = unit(here, systemd)
    first = systemd.start(UNIT)
    assert serve.running(here.remote, engine) is None
    found = serve.present(here.remote, engine)
    assert found is not None and (found.pid, found.deployed_digest) == (first, None)
    process = start_ready(here, engine)
    assert process.pid == systemd.main_pid(UNIT) != first
    assert serve.running(here.remote, engine) == process
    assert serve.log_tail(here.remote, process) == ("tiny engine starts",)
    assert serve.ran_before(here.remote, engine)
    assert serve.stop(here.remote, engine)
    assert systemd.main_pid(UNIT) == 0
    assert serve.owes_start(here.remote, engine, digest=DIGEST, changed_s=None)


def test_a_stranger_on_the_port_of_a_unit_is_still_refused(here: TinyHost, systemd: FakeSystemd) -> None:
    """A process that is not the unit's holds the port: nothing is started, and it lives on."""
    engine = unit(here, systemd)
    pid = here.stranger()
    with pytest.raises(PortTakenError, match=rf"did not start \(pid {pid}"):
        serve.start(here.remote, engine, deployed_digest=DIGEST)
    assert is_alive(pid)
    assert systemd.calls("start") == []


def test_a_stranger_on_the_port_is_found_before_the_unit_is_ended(here: TinyHost, systemd: FakeSystemd) -> None:
    """A unit that serves elsewhere is not stopped for a start that cannot be made."""
    env = {"PYTHONPATH": str(SUPPORT)}
    systemd.install(UNIT, [sys.executable, "-c", "import time; time.sleep(60)"], cwd=here.site, env=env)
    first = systemd.start(UNIT)
    pid = here.stranger()
    with pytest.raises(PortTakenError, match=rf"did not start \(pid {pid}"):
        serve.start(here.remote, kept(here, Launcher(kind="systemd", unit=UNIT)), deployed_digest=DIGEST)
    assert is_alive(first)


def test_every_process_of_the_units_control_group_is_the_engines(here: TinyHost, systemd: FakeSystemd) -> None:
    """A worker without mark, parent or session in common is told by the group, and counted in the proof."""
    engine = unit(here, systemd, "--bare-daemon")
    process = start_ready(here, engine)
    group = json.loads((systemd.folder / f"{UNIT}.state").read_text())["group"]
    if not group:
        pytest.skip("no control group can be made here")
    daemon = max(until(lambda: len(own := fake_control_group.pids(group)) == 3 and own, "all run"), key=os.getsid)
    os.kill(next(pid for pid in fake_control_group.pids(group) if pid not in (daemon, process.pid)), signal.SIGKILL)
    (here.folder / "scratch" / "engines" / f"tiny-{here.port}" / "members.json").write_text("[]")
    assert daemon in serve.processes(here.remote, engine, process)
    expected = {"fast.py": here.digest}
    assert daemon in provenance.prove_loaded(here.remote, engine, here.target, process, expected).pids


def test_a_unit_that_systemd_starts_again_is_another_process(here: TinyHost, systemd: FakeSystemd) -> None:
    """Restart=always: what runs now is told, so that a start is seen as contaminated, and it is ours to stop."""
    engine = unit(here, systemd, is_restarted=True)
    process = start_ready(here, engine)
    os.kill(process.pid, signal.SIGKILL)
    until(lambda: not is_alive(process.pid), "it is dead")
    now = serve.running(here.remote, engine)
    assert now is not None and now.deployed_digest == DIGEST
    assert (now.pid, now.start_ticks) != (process.pid, process.start_ticks)
    serve.stop(here.remote, engine)
    assert serve.running(here.remote, engine) is None
    assert not is_alive(now.pid)


def test_a_unit_that_dies_brings_its_journal(here: TinyHost, systemd: FakeSystemd) -> None:
    """A start that ends at once says what systemd says, with the traceback out of the journal."""
    engine = unit(here, systemd, "--die")
    with pytest.raises(EngineDiedError) as caught:
        start_ready(here, engine)
    assert caught.value.evidence[-1].startswith("RuntimeError: no kernel image")


def test_a_unit_that_is_not_there_names_the_key(here: TinyHost, systemd: FakeSystemd) -> None:
    """A wrong unit is one clear line."""
    engine = kept(here, Launcher(kind="systemd", unit="nothing.service"))
    with pytest.raises(EngineError, match=r"systemd has no unit nothing.service.*see launcher: of engine tiny"):
        serve.start(here.remote, engine, deployed_digest=DIGEST)


def test_what_the_user_starts_later_is_not_ours_to_stop(here: TinyHost, systemd: FakeSystemd) -> None:
    """After orch stopped its own, a start by the user is left alone by a stop, and counts as having run before."""
    engine = unit(here, systemd)
    start_ready(here, engine)
    serve.stop(here.remote, engine)
    assert not serve.owes_start(here.remote, engine, digest=DIGEST, changed_s=None), "it did not run before"
    pid = systemd.start(UNIT)
    assert not serve.stop(here.remote, engine)
    assert is_alive(pid)
    start_ready(here, engine)
    assert serve.ran_before(here.remote, engine)


def test_an_engine_that_holds_older_bytes_has_to_be_started_again(here: TinyHost, systemd: FakeSystemd) -> None:
    """One that began before the file was put back owes a start, and so does one on another digest; others do not."""
    engine = unit(here, systemd)
    systemd.start(UNIT)
    found = serve.present(here.remote, engine)
    assert found is not None
    assert serve.owes_start(here.remote, engine, digest=DIGEST, changed_s=found.started_s + 1)
    assert not serve.owes_start(here.remote, engine, digest=DIGEST, changed_s=found.started_s - 1)
    assert not serve.owes_start(here.remote, engine, digest=DIGEST, changed_s=None)
    start_ready(here, engine)
    assert serve.owes_start(here.remote, engine, digest="sha256:" + "0" * 64, changed_s=None)
    assert not serve.owes_start(here.remote, engine, digest=DIGEST, changed_s=None)


def test_the_watcher_starts_a_unit_that_ran_before(here: TinyHost, systemd: FakeSystemd) -> None:
    """With no controller there: the unit is stopped, and runs again on what was restored, and nothing else does."""
    engine = unit(here, systemd)
    systemd.start(UNIT)
    here.deploy("VALUE = 2\n")
    start_ready(here, engine)
    assert here.get("/value")["value"] == 2
    here.deploy("VALUE = 1\n")
    done = run_script(here, engine)
    process = serve.running(here.remote, engine)
    assert process is not None and process.pid == done["started"] == systemd.main_pid(UNIT)
    serve.wait_ready(here.remote, engine, process)
    assert here.get("/value")["value"] == 1
    assert not serve.owes_start(here.remote, engine, digest=here.digest, changed_s=None), "it is as it was"


def test_the_watcher_only_stops_a_unit_that_did_not_run_before(here: TinyHost, systemd: FakeSystemd) -> None:
    """Where orch was the first to start it, the watcher leaves it stopped."""
    engine = unit(here, systemd)
    process = start_ready(here, engine)
    done = run_script(here, engine)
    assert (done["stopped"], done["started"]) == ([process.pid], None)
    assert systemd.main_pid(UNIT) == 0


# ---- containers


def container(
    here: TinyHost,
    docker: FakeDocker,
    mounts: dict[str, str],
    *,
    mode: str = "restart",
    published: tuple[int, int] | None = None,
) -> Engine:
    """The engine in a container that exists."""
    env = {"PYTHONPATH": "/opt/engine", "PYTHONDONTWRITEBYTECODE": "1"}
    command = argv(here, port=published[1] if published else None)
    docker.create(
        "tiny",
        ["sleep", "600"] if mode == "exec" else command,
        mounts={str(SUPPORT): "/opt/engine", **mounts},
        env=env,
        cwd="/srv",
        published=published,
    )
    launcher = Launcher(kind="container", name="tiny", python=sys.executable, timeout_s=20.0, mode=mode)
    inside = {"command": tuple(command), "cwd": "/srv"} if mode == "exec" else {}
    return kept(here, launcher, env={"PYTHONPATH": "/opt/engine"}, **inside)


@pytest.mark.parametrize("mode", ["restart", "exec"])
def test_a_published_port_is_no_strangers(here: TinyHost, docker: FakeDocker, mode: str) -> None:
    """Another port in a network of its own: the runtime's proxy holds ours, and the listener inside is proved."""
    engine = container(here, docker, {str(here.site): "/srv"}, mode=mode, published=(here.port, 8000))
    docker.start("tiny")
    for _ in range(2):
        process = start_ready(here, engine)
        assert proof_of(here, engine, process) == []
        assert here.get("/value")["pid"] == process.pid
        assert serve.stop(here.remote, engine)
        assert not is_alive(process.pid)


def proof_of(here: TinyHost, engine: Engine, process: EngineProcess) -> list[str]:
    """Why what is live is not proved to be loaded."""
    found = provenance.prove_loaded(here.remote, engine, here.target, process, {"fast.py": here.digest})
    return list(found.problems)


def test_a_file_that_is_mounted_by_itself_is_refused_inside(here: TinyHost, docker: FakeDocker) -> None:
    """In a container that runs on, such a mount keeps the old file: refused, with the folder to mount instead."""
    engine = container(here, docker, {str(here.path): "/srv/kernels/fast.py"}, mode="exec")
    docker.start("tiny")
    here.deploy("VALUE = 2\n")
    problems = proof_of(here, engine, start_ready(here, engine))
    assert f"mounted there by itself, and keeps what it was; mount its folder {here.path.parent} instead" in problems[0]
    assert len(problems) == 1


def test_a_restart_binds_a_file_that_is_mounted_by_itself_anew(here: TinyHost, docker: FakeDocker) -> None:
    """Where the container is restarted, the same mount shows the new file: proved."""
    engine = container(here, docker, {str(here.path): "/srv/kernels/fast.py"})
    docker.start("tiny")
    here.deploy("VALUE = 2\n")
    assert proof_of(here, engine, start_ready(here, engine)) == []
    assert here.get("/value")["value"] == 2


def test_another_file_under_the_modules_name_is_refused(here: TinyHost, docker: FakeDocker, tmp_path: Path) -> None:
    """What the container imports is a copy in its image, not the target: no proof, though the bytes are equal."""
    copy = tmp_path / "image" / "kernels"
    copy.mkdir(parents=True)
    (copy / "__init__.py").write_text("")
    (copy / "fast.py").write_bytes(here.path.read_bytes())
    engine = container(here, docker, {str(copy.parent): "/srv"})
    docker.start("tiny")
    problems = proof_of(here, engine, start_ready(here, engine))
    assert problems[0] == f"module kernels.fast comes from /srv/kernels/fast.py, not from {here.path}"


def test_a_container_that_does_not_run_is_named_with_its_start(here: TinyHost, docker: FakeDocker) -> None:
    """Nothing can be started inside it: one line, with the command that starts it."""
    engine = container(here, docker, {str(here.site): "/srv"}, mode="exec")
    with pytest.raises(EngineError, match=r"container tiny does not run.*`docker start tiny` first"):
        serve.start(here.remote, engine, deployed_digest=DIGEST)


def test_the_watcher_ends_what_runs_inside_a_container(here: TinyHost, docker: FakeDocker) -> None:
    """By signals, and with restart_after_restore it is started there again; the container never stops."""
    engine = container(here, docker, {str(here.site): "/srv"}, mode="exec")
    first = docker.start("tiny")
    process = start_ready(here, engine)
    assert run_script(here, engine)["stopped"] == [process.pid]
    start_ready(here, engine)
    again = dataclasses.replace(engine, restart_after_restore=True)
    done = run_script(here, again)
    now = serve.running(here.remote, again)
    assert now is not None and now.pid == done["started"]
    serve.wait_ready(here.remote, again, now)
    assert docker.pid("tiny") == first


# ---- restarted by the user


def by_hand(here: TinyHost, script: str | None, **changes: Any) -> Engine:
    """An engine that a user's script restarts, or the user."""
    command = () if script is None else ("/bin/sh", "-c", script)
    return kept(here, Launcher(kind="manual", restart_command=command, timeout_s=20.0), **changes)


def launch_line(here: TinyHost, *options: str) -> str:
    """A line of sh that starts the engine and leaves it running, with its pid in a file."""
    line = f"PYTHONPATH={SUPPORT} {shlex.join(argv(here, *options))} >{here.folder}/user.log 2>&1 &"
    return f"cd {here.site}; {line} echo $! >{here.folder}/pid"


def end_line(here: TinyHost) -> str:
    """A line of sh that ends it."""
    return f"pid=$(cat {here.folder}/pid); kill $pid; while kill -0 $pid 2>/dev/null; do sleep 0.02; done"


def begin(here: TinyHost, *options: str) -> int:
    """The user starts it; its pid."""
    subprocess.run(["/bin/sh", "-c", launch_line(here, *options)], check=True)

    def answers() -> bool:
        try:
            return bool(here.get("/value"))
        except OSError:
            return False

    until(answers, "it serves")
    return int((here.folder / "pid").read_text())


def test_a_restart_is_proved_by_another_process_on_the_port(here: TinyHost) -> None:
    """The leader is who listens; stop leaves it running, for orch could not bring it back."""
    first = begin(here)
    engine = by_hand(here, f"{end_line(here)}; {launch_line(here)}", log=f"{here.folder}/user.log")
    process = start_ready(here, engine)
    assert process.pid != first and process.pid == here.get("/value")["pid"]
    assert proof_of(here, engine, process) == []
    assert serve.log_tail(here.remote, process) == ("tiny engine starts",)
    assert not serve.stop(here.remote, engine)
    assert is_alive(process.pid)


def test_a_restart_command_that_fails_brings_what_it_said(here: TinyHost) -> None:
    """Its exit code is checked; the evidence is its own words."""
    begin(here)
    engine = by_hand(here, "echo the queue is full >&2; exit 3")
    with pytest.raises(EngineError, match="failed with exit code 3") as caught:
        serve.start(here.remote, engine, deployed_digest=DIGEST)
    assert caught.value.evidence == ("the queue is full",)


def test_a_restart_command_that_restarts_nothing_is_found_out(here: TinyHost) -> None:
    """Exit code 0, and the same process on the port: no start."""
    begin(here)
    engine = by_hand(here, "true", ready_timeout_s=0.5)
    with pytest.raises(NotReadyError, match=f"no new process listened on port {here.port}"):
        serve.start(here.remote, engine, deployed_digest=DIGEST)


def test_a_worker_that_was_not_restarted_spoils_the_proof(here: TinyHost) -> None:
    """Only the front was started again: its sibling of the same program, which holds the old bytes, is found."""
    supervisor = begin(here, "--supervise")
    front = here.get("/value")["pid"]
    here.deploy("VALUE = 2\n")
    engine = by_hand(here, f"kill {front}")
    process = start_ready(here, engine)
    assert here.get("/value")["value"] == 2
    assert supervisor in serve.processes(here.remote, engine, process)
    assert "began before" in proof_of(here, engine, process)[0]


def test_a_socket_whose_owner_is_dying_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a moment nobody has it: that is not called a listener of somebody else."""
    own = process_table.process(os.getpid())
    assert own is not None
    seen = [[process_table.Listener("00", ())], [process_table.Listener("00", (own.pid,))]]
    monkeypatch.setattr(process_table, "listeners", lambda _: seen.pop(0))
    assert launch_manual._listening(1, [own]) == [own]
    assert seen == []


def test_the_watcher_restarts_it_by_the_users_command(here: TinyHost) -> None:
    """With no controller there, the engine holds the restored file again."""
    begin(here)
    here.deploy("VALUE = 2\n")
    engine = by_hand(here, f"{end_line(here)}; {launch_line(here)}")
    process = start_ready(here, engine, here.digest)
    here.deploy("VALUE = 1\n")
    done = run_script(here, engine)
    now = serve.running(here.remote, engine)
    assert now is not None and now.pid == done["started"] != process.pid
    assert here.get("/value")["value"] == 1


def test_the_watcher_says_what_it_cannot_do(here: TinyHost) -> None:
    """Without a command nobody restarts it: it holds the old bytes still, which is told then and later."""
    begin(here)
    engine = by_hand(here, None)
    asked: list[str] = []

    def ask(text: str) -> None:
        asked.append(text)
        subprocess.run(["/bin/sh", "-c", f"{end_line(here)}; {launch_line(here)}"], check=True)

    process = serve.start(here.remote, engine, deployed_digest=DIGEST, ask=ask)
    assert len(asked) == 1
    assert "holds the other file in memory" in run_script(here, engine)["why_not_started"]
    assert is_alive(process.pid)
    assert serve.owes_start(here.remote, engine, digest="sha256:" + "0" * 64, changed_s=None)


# ---- as root


SUDO = """#!/bin/sh
[ "$1" = -n ] || exit 1
shift
echo "$*" >>"$(dirname "$0")/sudo.calls"
[ ! -e "$(dirname "$0")/refuses" ] || { echo "sudo: a password is required" >&2; exit 1; }
exec "$@"
"""


def test_sudo_is_asked_without_a_password_or_refused(here: TinyHost, systemd: FakeSystemd, tmp_path: Path) -> None:
    """All that orch runs for this engine goes through ``sudo -n``, the watcher's script too; a refusal says so."""
    sudo = systemd.bin / "sudo"
    sudo.write_text(SUDO)
    sudo.chmod(0o755)
    engine = unit(here, systemd)
    engine = dataclasses.replace(engine, launcher=dataclasses.replace(engine.launcher, sudo=True))
    start_ready(here, engine)
    calls = systemd.bin / "sudo.calls"
    calls.unlink()
    run_script(here, engine)
    assert calls.read_text().startswith(f"{sys.executable} -I -S -c")
    assert systemd.main_pid(UNIT) == 0
    (systemd.bin / "refuses").touch()
    with pytest.raises(EngineError, match="`sudo -n` is refused there: allow it without a password") as caught:
        serve.running(here.remote, engine)
    assert caught.value.evidence == ("sudo: a password is required",)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file away")
def test_what_root_writes_belongs_to_the_login(tmp_path: Path) -> None:
    """The state that orch keeps as root can be read by the login, whose scratch folder it lies in."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    os.chown(scratch, 12345, -1)
    state_dir = scratch / "engines" / "tiny-1"
    engine_state.write_record(str(state_dir), {"boot_id": engine_state.boot_id()})
    made = [state_dir.parent, state_dir, state_dir / engine_state.RECORD_NAME]
    assert [path.stat().st_uid for path in made] == [12345] * 3
    assert [path.stat().st_mode & 0o077 for path in made] == [0] * 3


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become somebody else")
def test_root_asks_the_engines_python_as_its_own_user() -> None:
    """What runs in an interpreter like the engine's runs as the user whose engine it is, never as root."""
    python = shutil.which("python3", path="/usr/bin:/bin")
    if python is None:
        pytest.skip("no Python here that every user may run")
    with subprocess.Popen(["setpriv", "--reuid=12345", "--regid=12345", "--clear-groups", "sleep", "60"]) as child:
        until(lambda: Path(f"/proc/{child.pid}").stat().st_uid == 12345, "it is another user's")
        like_engine = interpreter.Interpreter(python, child.pid, None, ["-I"], "/", {}, "/")
        source = "import os\ndef main(request): return {'ids': [os.getuid(), os.getgid(), os.getgroups()]}\n"
        request = {"bootstrap": host.BOOTSTRAP, "inner_sources": [["ids", source]]}
        answer = interpreter.ask(like_engine, request, {})
        child.kill()
    assert answer == {"ids": [12345, 12345, []]}


# ---- what is asked of a container


def test_a_published_port_is_looked_for_in_the_containers_network(
    docker: FakeDocker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a network of its own, the listener is at the inner port, in that network; unpublished is refused."""
    launcher = ContainerLauncher({"kind": "container", "runtime": "docker", "name": "tiny", "timeout_s": 20.0})
    program = "import socket; s = socket.create_server(('127.0.0.1', 8000)); print('up', flush=True); input()"
    pipe = subprocess.PIPE
    with subprocess.Popen(
        ["unshare", "-n", "sh", "-c", 'ip link set lo up 2>/dev/null; exec "$@"', "sh", sys.executable, "-c", program],
        stdin=pipe,
        stdout=pipe,
    ) as inside:
        assert inside.stdout is not None
        if inside.stdout.readline() != b"up\n":
            pytest.skip("no network namespace can be made here")
        ports = {"8000/tcp": [{"HostIp": "0.0.0.0", "HostPort": "30000"}], "9000/tcp": None}
        monkeypatch.setattr(launcher, "_inspect", lambda template: json.dumps(ports))
        place = launcher._place(30000, inside.pid)
        assert place == (8000, inside.pid)
        found = engine_state.describe_listeners(place.port, ours=[inside.pid], network_of=place.pid)
        assert [(one["pid"], one["is_ours"]) for one in found] == [(inside.pid, True)]
        assert engine_state.describe_listeners(place.port, ours=()) == []
        with pytest.raises(LaunchError, match="publishes nothing as port 30001"):
            launcher._place(30001, inside.pid)
        inside.kill()


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/system.slice/docker-ab12.scope", "/system.slice/docker-ab12.scope"),
        ("/docker/ab12/init.scope", "/docker/ab12"),
        ("/machine.slice/libpod-ab12.scope/container", "/machine.slice/libpod-ab12.scope"),
    ],
)
def test_the_control_group_is_the_whole_containers(path: str, expected: str) -> None:
    """Also where the container's first process was put into a group of its own below it."""
    assert launch_container._up_to(path, "ab12") == expected


def test_a_variant_cannot_be_tried_inside_a_container(here: TinyHost) -> None:
    """orch check --remote says so before it touches the host."""
    launcher = Launcher(kind="container", name="tiny", python="/usr/bin/python3")
    variant, remote = store_records.variant("V1"), FakeRemote()
    with pytest.raises(UsageError, match="runs in container tiny, where the scratch folder is not"):
        check_remote(remote, kept(here, launcher), here.target, variant, report=silent)
    assert remote.calls == []
