"""The throwaway SSH host: it touches nothing of the user's, and ends with whoever started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.connection import connect
from orchestrator.demo.ssh_host import Server, ThrowawaySshHost, find_sshd
from orchestrator.errors import ConnectionError_, LineLostError, LoginRefusedError
from orchestrator.records import Host
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration


@pytest.fixture(params=["sshd", "asyncssh"])
def server(request: pytest.FixtureRequest) -> Server:
    """Each of the two servers."""
    if request.param == "sshd" and find_sshd() is None:
        pytest.skip("no sshd is installed here")
    if request.param == "asyncssh":
        pytest.importorskip("asyncssh")
    name: Server = request.param
    return name


def _inventory_host(throwaway: ThrowawaySshHost) -> Host:
    return Host(name="demo", ssh=throwaway.alias, ssh_config=str(throwaway.ssh_config_path))


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_runs_real_commands_byte_by_byte(server: Server, tmp_path: Path) -> None:
    """Both servers pass megabytes unchanged, keep the streams apart, and give sessions a home of their own."""
    payload = os.urandom(1 << 22)
    with ThrowawaySshHost(tmp_path / "a host", prefer=server) as throwaway:
        assert throwaway.server == server
        assert throwaway.description.startswith(server)
        with connect(_inventory_host(throwaway)) as remote:
            assert remote.run("cat", stdin=payload).stdout == payload
            done = remote.run('printf %s "$HOME"; echo e >&2; exit 9')
            assert done.stdout.decode() == str(throwaway.home_path)
            assert (done.stderr, done.exit_code) == (b"e\n", 9)
            assert remote.scratch_dir() == f"{throwaway.home_path}/.cache/orch"
            with pytest.raises(LineLostError):
                remote.run("kill -9 $$")


def test_only_its_own_key_gets_in(server: Server, tmp_path: Path) -> None:
    """A stranger's key is refused."""
    with ThrowawaySshHost(tmp_path / "host", prefer=server) as throwaway:
        for path in throwaway.folder.glob("id_ed25519*"):
            path.unlink()
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(throwaway.identity_path)], check=True)
        with pytest.raises(LoginRefusedError):
            connect(_inventory_host(throwaway))


def test_stop_ends_the_sessions_and_leaves_what_was_detached(server: Server, tmp_path: Path) -> None:
    """After stop no server and no session is left, and an engine that was spawned still runs; stop twice is fine."""
    throwaway = ThrowawaySshHost(tmp_path / "host", prefer=server)
    throwaway.start()
    with connect(_inventory_host(throwaway)) as remote:
        engine = remote.spawn(["sleep", "60"], log_path=str(tmp_path / "log"))
        throwaway.stop()
        try:
            assert not _is_alive(throwaway.pid)
            throwaway.stop()
            assert _is_alive(engine.pid)
            with pytest.raises(ConnectionError_):
                remote.run("true", timeout_s=10)
        finally:
            os.kill(engine.pid, signal.SIGKILL)


def test_server_ends_when_its_starter_is_killed(server: Server, tmp_path: Path) -> None:
    """kill -9 of the starter: nothing can run in it any more, and the server ends all the same."""
    program = (
        "import sys, time\nfrom pathlib import Path\nfrom orchestrator.demo.ssh_host import ThrowawaySshHost\n"
        f"host = ThrowawaySshHost(Path({str(tmp_path / 'host')!r}), prefer={server!r})\n"
        "host.start()\nprint(host.pid, flush=True)\ntime.sleep(600)\n"
    )
    starter = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert starter.stdout
    with starter.stdout:
        pid = int(starter.stdout.readline())
        assert _is_alive(pid)
        starter.kill()
        starter.wait()
    wait_until(lambda: not _is_alive(pid))


def test_a_lost_line_ends_the_pipes_of_its_command(server: Server, tmp_path: Path) -> None:
    """kill -9 of the client: a command that goes on writing is told, as it is under sshd."""
    seen = tmp_path / "told"
    command = f"trap '' PIPE; while echo x; do sleep 0.0517; done 2>/dev/null; echo told > {seen}"
    with ThrowawaySshHost(tmp_path / "host", prefer=server) as throwaway:
        program = (
            "from orchestrator.connection import connect\nfrom orchestrator.records import Host\n"
            f"host = Host(name='demo', ssh={throwaway.alias!r}, ssh_config={str(throwaway.ssh_config_path)!r})\n"
            "with connect(host) as remote:\n    print('connected', flush=True)\n"
            f"    remote.run({command!r}, timeout_s=300)\n"
        )
        client = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
        assert client.stdout
        with client.stdout:
            assert client.stdout.readline() == b"connected\n"
        wait_until(lambda: "sleep 0.0517" in _commands())
        client.kill()
        client.wait()
        wait_until(seen.exists)


def _commands() -> str:
    return subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout


def test_falls_back_where_there_is_no_sshd(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without sshd the server in Python is used, and says so."""
    pytest.importorskip("asyncssh")
    monkeypatch.setattr("orchestrator.demo.ssh_host.find_sshd", lambda: None)
    with ThrowawaySshHost(tmp_path / "host") as throwaway:
        assert throwaway.server == "asyncssh"


def test_nothing_of_the_users_ssh_folder_is_made(server: Server, tmp_path: Path) -> None:
    """No file appears in the home of whoever starts it."""
    with ThrowawaySshHost(tmp_path / "host", prefer=server) as throwaway, connect(_inventory_host(throwaway)) as remote:
        remote.run("true")
    assert not (Path.home() / ".ssh").exists()
