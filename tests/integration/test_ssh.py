"""``SshRemote`` against a real sshd: host keys, logins, exact bytes, and a line that breaks in every way."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.connection import connect
from orchestrator.connection.ssh import SshRemote
from orchestrator.demo.ssh_host import ThrowawaySshHost, free_port
from orchestrator.errors import (
    HostKeyError,
    HostUnreachableError,
    LineLostError,
    LoginRefusedError,
    RemoteCommandError,
    RemoteTimeoutError,
)
from orchestrator.records import Host
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration


@pytest.fixture
def configured(ssh_host: ThrowawaySshHost, tmp_path: Path) -> Callable[..., Host]:
    """Makes a host whose ssh configuration is that of the running sshd with some lines put first."""

    def make(*lines: str, connect_timeout_s: float = 10.0) -> Host:
        path = tmp_path / "ssh_config"
        first = f"Host {ssh_host.alias}\n" + "".join(f"  {line}\n" for line in lines)
        path.write_text(first + ssh_host.ssh_config_path.read_text())
        scratch = str(tmp_path / "scratch")
        return Host(
            name="gpu-a",
            ssh=ssh_host.alias,
            ssh_config=str(path),
            scratch_dir=scratch,
            connect_timeout_s=connect_timeout_s,
        )

    return make


@pytest.fixture
def proxy(ssh_host: ThrowawaySshHost) -> Iterator[TcpProxy]:
    """A network in front of the sshd that a test can break."""
    with TcpProxy(ssh_host.port) as running:
        yield running


@pytest.fixture
def behind_proxy(configured: Callable[..., Host], proxy: TcpProxy, ssh_host: ThrowawaySshHost) -> Host:
    """The host through that network."""
    # the key is known under the real port; the alias says which line to look up
    known = ssh_host.known_hosts_path.read_text().split()
    path = ssh_host.folder / "known_through_proxy"
    path.write_text(f"through-proxy {known[1]} {known[2]}\n")
    return configured(f"Port {proxy.port}", "HostKeyAlias through-proxy", f"UserKnownHostsFile {path}")


def _new_key(path: Path, kind: str = "ed25519", passphrase: str = "") -> Path:
    subprocess.run(
        ["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-f", str(path)], check=True, stdin=subprocess.DEVNULL
    )
    return path


# ---- host keys


def test_unknown_host_key_is_refused_with_the_command_that_adds_it(
    configured: Callable[..., Host], ssh_host: ThrowawaySshHost, tmp_path: Path
) -> None:
    """No key is ever accepted by itself; after running the shown command the host is known."""
    known = tmp_path / "known"
    host = configured(f"UserKnownHostsFile {known}", "StrictHostKeyChecking no")
    with pytest.raises(HostKeyError, match="unknown") as caught:
        connect(host)
    shown = subprocess.run(
        ["ssh-keygen", "-lf", str(ssh_host.folder / "host_ed25519.pub")], check=True, capture_output=True, text=True
    )
    assert shown.stdout.split()[1] in caught.value.message
    assert not known.exists()
    assert caught.value.next_step
    command = caught.value.next_step.split("`")[-2]
    subprocess.run(["sh", "-c", command], check=True, capture_output=True)
    with connect(host) as remote:
        assert remote.run("echo in").stdout == b"in\n"


def test_changed_host_key_is_refused(
    configured: Callable[..., Host], ssh_host: ThrowawaySshHost, tmp_path: Path
) -> None:
    """Another key of the same type under the host's name: CHANGED, with file and line, and no login."""
    other = _new_key(tmp_path / "other").with_suffix(".pub").read_text().split()
    known = tmp_path / "known"
    known.write_text(f"# first line\n[127.0.0.1]:{ssh_host.port} {other[0]} {other[1]}\n")
    with pytest.raises(HostKeyError, match=rf"CHANGED.*{known}:2") as caught:
        connect(configured(f"UserKnownHostsFile {known}"))
    assert caught.value.message.count("SHA256:") == 2


def test_hashed_known_hosts_is_understood(
    configured: Callable[..., Host], ssh_host: ThrowawaySshHost, tmp_path: Path
) -> None:
    """A known_hosts file with hashed names lets us in."""
    known = tmp_path / "known"
    shutil.copyfile(ssh_host.known_hosts_path, known)
    subprocess.run(["ssh-keygen", "-H", "-f", str(known)], check=True, capture_output=True)
    with connect(configured(f"UserKnownHostsFile {known}")) as remote:
        assert remote.run("true").exit_code == 0


def test_the_known_type_is_asked_for(tmp_path: Path) -> None:
    """A host with two keys of which we know the RSA one shows that one, and not an unknown ed25519 key."""
    folder = tmp_path / "two keys"
    folder.mkdir()
    rsa = _new_key(folder / "host_rsa", "rsa")
    with ThrowawaySshHost(folder, sshd_options=[f'HostKey "{rsa}"']) as server:
        key = rsa.with_suffix(".pub").read_text().split()
        server.known_hosts_path.write_text(f"[127.0.0.1]:{server.port} {key[0]} {key[1]}\n")
        with connect(Host(name="a", ssh=server.alias, ssh_config=str(server.ssh_config_path))) as remote:
            assert remote.run("true").exit_code == 0


# ---- reaching and logging in


def test_no_such_name(configured: Callable[..., Host]) -> None:
    """A name that does not resolve is HostUnreachableError with a next step."""
    with pytest.raises(HostUnreachableError, match="no such name") as caught:
        connect(configured("HostName no-such-host.invalid"))
    assert caught.value.next_step


def test_refused_port(configured: Callable[..., Host]) -> None:
    """A port on which nobody listens is named with the reason."""
    port = free_port()
    with pytest.raises(HostUnreachableError, match=rf":{port}\) cannot be reached: Connection refused") as caught:
        connect(configured(f"Port {port}"))
    assert "ssh" in (caught.value.next_step or "")


def test_a_port_that_does_not_speak_ssh(configured: Callable[..., Host]) -> None:
    """Somebody else's server on that port is unreachable, within the time for connecting."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def greet() -> None:
            client, _ = listener.accept()
            with client:
                client.sendall(b"HTTP/1.0 400 Bad Request\r\n\r\n")

        greeter = threading.Thread(target=greet)
        greeter.start()
        with pytest.raises(HostUnreachableError, match="cannot be reached"):
            connect(configured(f"Port {listener.getsockname()[1]}"))
        greeter.join()


def test_a_silent_port_ends_within_the_time_for_connecting(configured: Callable[..., Host]) -> None:
    """A server that accepts and says nothing is given up on, not waited for."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host = configured(f"Port {listener.getsockname()[1]}", connect_timeout_s=0.5)
        with pytest.raises(HostUnreachableError, match=r"no answer within 0\.5 s"):
            connect(host)


def test_refused_login_says_which_keys_were_tried(configured: Callable[..., Host], tmp_path: Path) -> None:
    """Each key with its fate: refused, missing, or behind a passphrase."""
    stranger = _new_key(tmp_path / "stranger")
    locked = _new_key(tmp_path / "locked", passphrase="secret")
    host = replace(configured(f"IdentityFile {stranger}", f"IdentityFile {locked}"), ssh_config=None)
    config = tmp_path / "ssh_config"
    lines = [line for line in config.read_text().splitlines() if "id_ed25519" not in line]
    config.write_text("\n".join([*lines, f"  IdentityFile {tmp_path}/missing", ""]))
    with pytest.raises(LoginRefusedError, match="does not let") as caught:
        connect(replace(host, ssh_config=str(config)))
    evidence = "\n".join(caught.value.evidence)
    assert f"{stranger} (ssh-ed25519 SHA256:" in evidence
    assert "refused" in evidence
    assert f"{locked}: has a passphrase" in evidence
    assert f"{tmp_path}/missing: no such file" in evidence


def test_a_key_in_the_agent_opens_though_its_file_is_locked(
    configured: Callable[..., Host], ssh_host: ThrowawaySshHost, tmp_path: Path
) -> None:
    """With IdentitiesOnly the agent signs for the configured file, and its other keys are not offered."""
    private = tmp_path / "mine"
    shutil.copyfile(ssh_host.identity_path, private)
    private.chmod(0o600)
    public = subprocess.run(["ssh-keygen", "-yf", str(private)], check=True, capture_output=True, text=True).stdout
    (tmp_path / "mine.pub").write_text(public)
    agent_socket = tmp_path / "a"
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(agent_socket)], stdout=subprocess.DEVNULL)
    try:
        wait_until(agent_socket.exists)
        environment = {**os.environ, "SSH_AUTH_SOCK": str(agent_socket)}
        other = _new_key(tmp_path / "other")
        for key in (other, private):
            subprocess.run(["ssh-add", "-q", str(key)], check=True, env=environment, capture_output=True)
        subprocess.run(["ssh-keygen", "-p", "-q", "-N", "secret", "-f", str(private)], check=True, capture_output=True)
        host = configured(f"IdentityFile {private}", f"IdentityAgent {agent_socket}")
        config = tmp_path / "ssh_config"
        config.write_text("\n".join(li for li in config.read_text().splitlines() if "id_ed25519" not in li) + "\n")
        with connect(host) as remote:
            assert remote.run("echo in").stdout == b"in\n"
    finally:
        agent.terminate()
        agent.wait()


def test_certificate_logs_in(configured: Callable[..., Host], tmp_path: Path) -> None:
    """A user key that only its certificate lets in is accepted when CertificateFile names it."""
    authority = _new_key(tmp_path / "authority")
    mine = _new_key(tmp_path / "mine")
    sign = ["ssh-keygen", "-q", "-s", str(authority), "-I", "me", "-n", os.environ.get("USER", "root"), f"{mine}.pub"]
    folder = tmp_path / "host"
    options = [f'TrustedUserCAKeys "{authority}.pub"']
    with ThrowawaySshHost(folder, sshd_options=options) as server:
        sign[sign.index("-n") + 1] = server.user
        subprocess.run(sign, check=True, capture_output=True)
        elsewhere = (tmp_path / "mine-cert.pub").rename(tmp_path / "certificate.pub")
        text = server.ssh_config_path.read_text().replace(str(server.identity_path), str(mine))
        server.ssh_config_path.write_text(f"{text}  CertificateFile {elsewhere}\n")
        with connect(Host(name="a", ssh=server.alias, ssh_config=str(server.ssh_config_path))) as remote:
            assert remote.run("true").exit_code == 0


def test_proxy_jump(configured: Callable[..., Host], ssh_host: ThrowawaySshHost) -> None:
    """Through another hop the bytes are the same; closing ends both."""
    host = configured("ProxyJump hop")
    path = Path(host.ssh_config or "")
    hop = ssh_host.ssh_config_path.read_text().replace(f"Host {ssh_host.alias}", "Host hop")
    path.write_text(hop + path.read_text())
    payload = os.urandom(1 << 20)
    with connect(host) as remote:
        assert remote.run("cat", stdin=payload).stdout == payload


def test_unreachable_behind_a_jump_names_the_hop(configured: Callable[..., Host], ssh_host: ThrowawaySshHost) -> None:
    """The hop lets us in and the host behind it does not answer: the message names both."""
    port = free_port()
    host = configured("ProxyJump hop", f"Port {port}")
    path = Path(host.ssh_config or "")
    hop = ssh_host.ssh_config_path.read_text().replace(f"Host {ssh_host.alias}", "Host hop")
    path.write_text(hop + path.read_text())
    with pytest.raises(HostUnreachableError, match=rf":{port}\) cannot be reached through .*:{ssh_host.port}"):
        connect(host)


def test_proxy_command(configured: Callable[..., Host]) -> None:
    """A ProxyCommand is the line; its process ends with the connection."""
    relay = (
        "import socket,sys,threading,os\n"
        "s=socket.create_connection((sys.argv[1],int(sys.argv[2])))\n"
        "def up():\n"
        "    while d:=os.read(0,65536): s.sendall(d)\n"
        "    os._exit(0)\n"
        "threading.Thread(target=up,daemon=True).start()\n"
        "while d:=s.recv(65536): os.write(1,d)\n"
    )
    host = configured()
    script = Path(host.ssh_config or "").parent / "relay.py"
    script.write_text(relay)
    host = configured(f"ProxyCommand python3 {script} %h %p")
    payload = os.urandom(1 << 20)
    with connect(host) as remote:
        assert remote.run("cat", stdin=payload).stdout == payload


def test_failing_proxy_command_shows_what_it_said(configured: Callable[..., Host]) -> None:
    """Its standard error is the evidence."""
    with pytest.raises(HostUnreachableError, match="through `echo") as caught:
        connect(configured("ProxyCommand echo no route today >&2; exit 1"))
    assert "no route today" in caught.value.evidence


# ---- bytes


def test_random_bytes_both_ways(remote: SshRemote) -> None:
    """Sixteen megabytes go in and come out of both streams at once, to the byte."""
    payload = os.urandom(1 << 24)
    done = remote.run("tee /dev/fd/2", stdin=payload, timeout_s=60)
    assert done.stdout == payload
    assert done.stderr == payload


def test_file_of_sixteen_megabytes(remote: SshRemote, tmp_path: Path) -> None:
    """write, then read: the same file on the host and here."""
    payload = os.urandom(1 << 24)
    path = tmp_path / "big"
    remote.write(str(path), payload)
    assert path.read_bytes() == payload
    assert remote.read(str(path)) == payload


def test_unread_input_does_not_hold_up_the_answer(remote: SshRemote) -> None:
    """A script that ends without reading eight megabytes of input is answered."""
    done = remote.run("echo done; exit 5", stdin=b"x" * (1 << 23))
    assert (done.stdout, done.exit_code) == (b"done\n", 5)


@pytest.mark.parametrize("shell", ["bash", "dash", "zsh", "busybox", "tcsh", "fish"])
def test_any_login_shell_with_a_banner(tmp_path: Path, shell: str) -> None:
    """What the login shell prints on either stream is not part of the answer."""
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"{shell} is not installed")
    wrapper = tmp_path / "login"
    words = f"{path} sh" if shell == "busybox" else path
    wrapper.write_text(f'#!/bin/sh\necho Welcome; echo motd >&2; exec {words} -c "$SSH_ORIGINAL_COMMAND"\n')
    wrapper.chmod(0o755)
    with ThrowawaySshHost(tmp_path / "host", sshd_options=[f"ForceCommand {wrapper}"]) as server:
        host = Host(name="a", ssh=server.alias, ssh_config=str(server.ssh_config_path))
        with connect(host) as remote:
            done = remote.run('printf %s "$1"; cat; echo e >&2; exit 4', ["$HOME 'x' !y"], stdin=b"\0\xff")
    assert (done.stdout, done.stderr, done.exit_code) == (b"$HOME 'x' !y\0\xff", b"e\n", 4)


# ---- several at once, and deadlines


def test_twelve_threads_share_four_channels(remote: SshRemote, tmp_path: Path) -> None:
    """Every caller gets its own answer, and never more than four scripts run at once."""
    folder = tmp_path / "running"
    folder.mkdir()
    script = 'touch "$1/$2"; ls "$1" | wc -l; sleep 0.1; rm "$1/$2"; cat'

    def ask(i: int) -> tuple[int, bytes]:
        count, _, rest = remote.run(script, [str(folder), str(i)], stdin=b"%d" % i).stdout.partition(b"\n")
        assert rest == b"%d" % i
        return int(count), rest

    with ThreadPoolExecutor(12) as pool:
        counts = [count for count, _ in pool.map(ask, range(12))]
    assert 1 < max(counts) <= 4


def test_refused_channel_is_tried_again(tmp_path: Path) -> None:
    """On a host that allows one session, four callers wait for each other and all are answered."""
    with ThrowawaySshHost(tmp_path / "host", sshd_options=["MaxSessions 1"]) as server:
        host = Host(name="a", ssh=server.alias, ssh_config=str(server.ssh_config_path))
        with connect(host) as remote, ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda i: remote.run("cat; sleep 0.05", stdin=b"%d" % i).stdout, range(4)))
    assert answers == [b"0", b"1", b"2", b"3"]


def test_deadline(remote: SshRemote) -> None:
    """A command that takes too long is RemoteTimeoutError, and the connection is still good."""
    with pytest.raises(RemoteTimeoutError, match=r"0\.3 s"):
        remote.run("sleep 30", timeout_s=0.3)
    assert remote.run("echo next").stdout == b"next\n"


def test_killed_remote_shell_is_a_lost_line(remote: SshRemote) -> None:
    """A script whose shell is killed gives no exit code; the connection is still good."""
    with pytest.raises(LineLostError, match="closing line"):
        remote.run("echo begun; kill -9 $$")
    assert remote.run("echo next").stdout == b"next\n"


def test_run_after_close_is_refused(host: Host) -> None:
    """A closed connection stays closed, and may be closed twice."""
    remote = connect(host)
    remote.close()
    remote.close()
    with pytest.raises(LineLostError, match="closed"):
        remote.run("true")


# ---- a line that breaks


@pytest.mark.parametrize("direction", ["to_client", "to_server"])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.7, 0.98])
def test_cut_in_the_middle(behind_proxy: Host, proxy: TcpProxy, direction: str, share: float) -> None:
    """Wherever the line is cut, there is LineLostError or the whole answer, never a part; then all is well again."""
    payload = os.urandom(300_000)
    with connect(behind_proxy) as remote:
        proxy.reset_traffic()
        assert remote.run("cat", stdin=payload).stdout == payload
        n_bytes = max(1, int(getattr(proxy.traffic, direction) * share))
        proxy.cut_after(**{direction: n_bytes})
        try:
            answer = remote.run("cat", stdin=payload).stdout
        except LineLostError as exc:
            assert "lost before the answer was complete" in exc.message
        else:  # the next shell was still being prepared and met the cut: the request went out on a new line
            assert share < 0.1
            assert answer == payload
        assert remote.run("cat", stdin=payload).stdout == payload
        assert proxy.n_connections == 2


def test_a_line_that_died_while_idle_is_replaced(behind_proxy: Host, proxy: TcpProxy) -> None:
    """Nothing was under way, so nobody needs to know."""
    with connect(behind_proxy) as remote:
        proxy.cut()
        assert remote.run("echo again").stdout == b"again\n"
    assert proxy.n_connections == 2


@pytest.mark.parametrize("is_sending", [False, True], ids=["waiting", "sending"])
def test_frozen_line_is_noticed(behind_proxy: Host, proxy: TcpProxy, is_sending: bool) -> None:
    """A line that stays open and says nothing ends in LineLostError by the watchdog, not in a hang."""
    with SshRemote(behind_proxy, silence_limit_s=1.0) as remote:
        remote.run("true")
        if is_sending:
            proxy.freeze_after(to_server=1 << 20)
            with pytest.raises(LineLostError, match="no sign of life for 1 s"):
                remote.run("cat >/dev/null", stdin=os.urandom(1 << 24), timeout_s=60)
        else:
            threading.Timer(0.2, proxy.freeze).start()
            with pytest.raises(LineLostError, match="no sign of life for 1 s"):
                remote.run("sleep 30", timeout_s=60)
        proxy.thaw()
        assert remote.run("echo again").stdout == b"again\n"


def test_a_quiet_script_on_a_living_line_is_not_cut(behind_proxy: Host, proxy: TcpProxy) -> None:
    """A script that says nothing for longer than the limit is left alone: the host answers the watchdog."""
    with SshRemote(behind_proxy, silence_limit_s=0.5) as remote:
        assert remote.run("sleep 1.5; echo done").stdout == b"done\n"
    assert proxy.n_connections == 1


def test_spawned_process_outlives_the_connection(host: Host, tmp_path: Path) -> None:
    """After close, and after the line was cut, what was spawned still runs."""
    with connect(host) as remote:
        started = remote.spawn(["sh", "-c", "sleep 0.3; echo survived; exec sleep 60"], log_path=str(tmp_path / "log"))
    try:
        wait_until(lambda: (tmp_path / "log").read_text() == "survived\n")
        os.kill(started.pid, 0)
        assert os.getsid(started.pid) == started.pid
    finally:
        os.kill(started.pid, 9)


def test_spawn_reports_a_missing_program(remote: SshRemote, tmp_path: Path) -> None:
    """Over SSH as on this machine: an error with the shell's words."""
    with pytest.raises(RemoteCommandError, match="could not start"):
        remote.spawn(["/nonexistent"], log_path=str(tmp_path / "log"))
