"""``ThrowawaySshHost``: a real SSH host on this machine's loopback, with keys and a configuration of its own.

Everything lies in one folder; the user's ``~/.ssh`` is neither read nor written. sshd where it is installed, else a
server in Python. It ends with its starter, also when that is killed (see ``keeper.py``).
"""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from orchestrator.demo import keeper
from orchestrator.errors import HostUnreachableError, UsageError

Server = Literal["sshd", "asyncssh"]
START_TIMEOUT_S = 20.0
PORT_TRIES = 3

_SSHD_CONFIG = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host_ed25519"
PidFile none
AuthorizedKeysFile {token_folder}/authorized_keys"
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
Subsystem sftp internal-sftp
LogLevel VERBOSE
MaxStartups 100:30:200
SetEnv HOME={folder}/home"
"""

_SSH_CONFIG = """\
Host {alias}
  HostName 127.0.0.1
  Port {port}
  User {user}
  IdentityFile {token_folder}/id_ed25519"
  IdentitiesOnly yes
  IdentityAgent none
  UserKnownHostsFile {token_folder}/known_hosts"
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
  BatchMode yes
"""


class ThrowawaySshHost:
    """Use as a context manager; inside it the host answers.

    Args:
        folder: made when missing; keys, configuration and log go there and stay, and so does what sessions write
            below their HOME, which is ``home`` in it: the starter's own is left alone.
        alias: the Host of the ssh configuration.
        prefer: which server; sshd falls back to asyncssh where there is none.
        sshd_options: further lines of sshd_config.

    Attributes:
        ssh_config_path: names the host by ``alias``. identity_path, known_hosts_path, log_path, home_path: beside it.
        port: on 127.0.0.1, from ``start`` on.
    """

    def __init__(
        self, folder: Path, *, alias: str = "demo", prefer: Server = "sshd", sshd_options: Sequence[str] = ()
    ) -> None:
        self.folder = folder.absolute()
        self.alias = alias
        self.user = getpass.getuser()
        self.server: Server = prefer
        self.port = 0
        self.pid = 0
        self.ssh_config_path = self.folder / "ssh_config"
        self.known_hosts_path = self.folder / "known_hosts"
        self.identity_path = self.folder / "id_ed25519"
        self.log_path = self.folder / "server.log"
        self.home_path = self.folder / "home"
        self._sshd_options = tuple(sshd_options)
        self._keeper: subprocess.Popen[bytes] | None = None

    @property
    def description(self) -> str:
        """One line for people."""
        return f"{self.server} at {self.user}@127.0.0.1:{self.port}, configuration {self.ssh_config_path}"

    def __enter__(self) -> ThrowawaySshHost:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Makes the keys and starts the server; returns when it answers.

        Raises:
            UsageError: there is neither sshd nor asyncssh.
            HostUnreachableError: the server did not start; the evidence is its log.
        """
        sshd = find_sshd() if self.server == "sshd" else None
        if sshd is None:
            if find_spec("asyncssh") is None:
                raise UsageError(
                    "no SSH server can be started here",
                    next_step="install the OpenSSH server, or `pip install asyncssh`",
                )
            self.server = "asyncssh"
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.home_path.mkdir(exist_ok=True)
        for name in ("host_ed25519", "id_ed25519"):
            _make_key(self.folder / name)
        shutil.copyfile(self.folder / "id_ed25519.pub", self.folder / "authorized_keys")
        for tries_left in reversed(range(PORT_TRIES)):
            self.port = free_port()  # somebody else may take it before the server does
            self._write_configuration()
            if self._start_server(sshd, is_last_try=tries_left == 0):
                return

    def stop(self) -> None:
        """Ends the server and its sessions; what was detached on the host lives on. May be called twice."""
        running, self._keeper = self._keeper, None
        if running is None:
            return
        assert running.stdin and running.stdout
        running.stdin.close()
        try:
            running.wait(2 * keeper.GRACE_S)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()
        running.stdout.close()

    def _write_configuration(self) -> None:
        host_key = (self.folder / "host_ed25519.pub").read_text().split()
        self.known_hosts_path.write_text(f"[127.0.0.1]:{self.port} {host_key[0]} {host_key[1]}\n")
        words = {
            "port": self.port,
            "user": self.user,
            "alias": self.alias,
            "folder": f'"{self.folder}',
            "token_folder": '"' + str(self.folder).replace("%", "%%"),
        }
        options = "".join(f"{line}\n" for line in self._sshd_options)
        (self.folder / "sshd_config").write_text(_SSHD_CONFIG.format(**words) + options)
        self.ssh_config_path.write_text(_SSH_CONFIG.format(**words))

    def _start_server(self, sshd: str | None, *, is_last_try: bool) -> bool:
        if sshd is not None:
            if os.getuid() == 0:
                Path("/run/sshd").mkdir(mode=0o755, parents=True, exist_ok=True)  # sshd refuses to start without
            argv = [sshd, "-D", "-f", str(self.folder / "sshd_config"), "-E", str(self.log_path)]
        else:
            argv = [sys.executable, "-m", "orchestrator.demo.asyncssh_host", str(self.folder), str(self.port)]
        with self.log_path.open("ab") as log:
            self._keeper = subprocess.Popen(
                [sys.executable, str(Path(keeper.__file__)), *argv],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for orch, which then restores the host through this server
            )
        assert self._keeper.stdout
        self.pid = int(self._keeper.stdout.readline() or 0)
        if self._answers():
            return True
        self.stop()
        if is_last_try:
            raise HostUnreachableError(
                f"the throwaway {self.server} did not start on 127.0.0.1:{self.port}",
                next_step=f"read {self.log_path}",
                evidence=self.log_path.read_text("utf-8", "replace").splitlines()[-25:],
            )
        return False

    def _answers(self) -> bool:
        """Waits until the port greets as SSH; false when the server ended or the time is up."""
        assert self._keeper
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline and self._keeper.poll() is None:
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=1.0) as line:
                    if line.recv(4) == b"SSH-":
                        return self._keeper.poll() is None
            except OSError:
                time.sleep(0.02)
        return False


def find_sshd() -> str | None:
    """Absolute path of sshd, which is often outside of an ordinary user's PATH; None where it is not installed."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin", "/sbin", "/usr/libexec"])
    found = shutil.which("sshd", path=path)
    return str(Path(found).absolute()) if found and shutil.which("ssh-keygen") else None


def free_port() -> int:
    """A port of the loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _make_key(path: Path) -> None:
    """An ed25519 pair without a passphrase; one that is there is kept."""
    if path.exists():
        return
    if shutil.which("ssh-keygen"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "orch-throwaway", "-f", str(path)],
            stdin=subprocess.DEVNULL,
            check=True,
            capture_output=True,
        )
        return
    import asyncssh

    key = asyncssh.generate_private_key("ssh-ed25519", comment="orch-throwaway")
    key.write_private_key(str(path))
    path.chmod(0o600)
    key.write_public_key(f"{path}.pub")
