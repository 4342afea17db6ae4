"""Which keys are offered to a host, in which order, and what became of each: the login of one SSH hop.

The order is OpenSSH's: keys that the agent holds for the configured identity files, the agent's others (unless
IdentitiesOnly), then the identity files themselves. Keys only: nothing here asks for a password or a passphrase.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import paramiko
from paramiko.agent import AgentSSH

from orchestrator.connection.known_hosts import fingerprint
from orchestrator.connection.ssh_config import SshSettings
from orchestrator.errors import LoginRefusedError

AGENT_TIMEOUT_S = 10.0


class SocketAgent(AgentSSH):
    """The ssh-agent behind a given socket (paramiko's own looks at SSH_AUTH_SOCK only)."""

    def __init__(self, path: str) -> None:
        super().__init__()
        line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        line.settimeout(AGENT_TIMEOUT_S)  # a forwarded agent whose line died must not hold up the login for ever
        try:
            line.connect(path)
            self._connect(line)  # type: ignore[attr-defined]
        except BaseException:
            line.close()
            raise
        self._line = line

    def close(self) -> None:
        """Ends the conversation; keys got from here cannot sign any more."""
        self._line.close()


@dataclass(frozen=True, slots=True)
class Candidate:
    """One key to offer; ``name`` says in a message where it came from."""

    name: str
    key: paramiko.PKey


class KeyLogin:
    """Offers the keys of one hop to its host; handed to paramiko, which calls ``authenticate``.

    Attributes:
        tried: one line for each key that was offered or could not be, with what became of it.
    """

    def __init__(self, settings: SshSettings) -> None:
        self.settings = settings
        self.tried: list[str] = []
        self._agent: SocketAgent | None = None

    def authenticate(self, transport: paramiko.Transport) -> list[str]:
        """Logs in; the name of the key that was accepted.

        Raises:
            LoginRefusedError: no key was accepted; the evidence lists each.
            EOFError, SSHException: the line died meanwhile.
        """
        try:
            return self._offer_each(transport)
        finally:
            if self._agent is not None:
                self._agent.close()

    def _offer_each(self, transport: paramiko.Transport) -> list[str]:
        for candidate in self._candidates():
            try:
                wanted_too = transport.auth_publickey(self.settings.user, candidate.key)
            except paramiko.BadAuthenticationType as exc:
                raise self._refused(f"the host takes no keys, only {', '.join(exc.allowed_types)}") from exc
            except paramiko.AuthenticationException:
                if not transport.is_active() and not self.tried:  # no host ends a login after its first key
                    raise EOFError("the line died during the login") from None
                self.tried.append(f"{candidate.name}: refused")
                if not transport.is_active():
                    n = len(self.tried)
                    raise self._refused(f"the host ended the login after {n} keys (too many?)") from None
                continue
            if wanted_too:
                raise self._refused(f"{candidate.name} was accepted, and the host wants {' and '.join(wanted_too)} too")
            return [candidate.name]
        raise self._refused("no key was accepted")

    def _refused(self, why: str) -> LoginRefusedError:
        again = f"try `ssh {self.settings.alias}`; name the right key as identity (or user) of the host"
        if any("passphrase" in line for line in self.tried):
            again = "load the key into the agent with `ssh-add`, then try again"
        return LoginRefusedError(
            f"{self.settings.address} does not let {self.settings.user} in: {why} ({len(self.tried)} tried)",
            next_step=again,
            evidence=self.tried or ["there is no identity file and the agent holds no key"],
        )

    def _candidates(self) -> Iterator[Candidate]:
        held = self._agent_keys()
        identities = [(path, _public_blob(path)) for path in self.settings.identity_files]
        blobs = [blob for _, blob in identities if blob]
        first = sorted((c for c in held if c.key.asbytes() in blobs), key=lambda c: blobs.index(c.key.asbytes()))
        yield from first
        if not self.settings.identities_only:
            yield from (c for c in held if c not in first)
        offered = {c.key.asbytes() for c in first}
        for path, blob in identities:
            if blob is None or blob not in offered:
                yield from self._from_file(path)

    def _agent_keys(self) -> list[Candidate]:
        if self.settings.identity_agent is None:
            return []
        try:
            self._agent = SocketAgent(self.settings.identity_agent)
            keys: Sequence[Any] = self._agent.get_keys()
        except (OSError, paramiko.SSHException) as exc:
            self.tried.append(f"agent at {self.settings.identity_agent}: does not answer ({exc})")
            return []
        return [
            Candidate(f"agent: {key.comment or 'key'} ({key.get_name()} {fingerprint(key.asbytes())})", key)
            for key in keys
        ]

    def _from_file(self, path: str) -> Iterator[Candidate]:
        """The key in a file, first with each certificate that fits it, then bare."""
        try:
            key = paramiko.PKey.from_path(path)
        except FileNotFoundError:
            self.tried.append(f"{path}: no such file")
        except (paramiko.PasswordRequiredException, TypeError):  # cryptography's own word for it is TypeError
            self.tried.append(f"{path}: has a passphrase, and the agent does not hold it")
        except OSError as exc:
            self.tried.append(f"{path}: {exc.strerror}")
        except (paramiko.SSHException, ValueError, paramiko.pkey.UnknownKeyType) as exc:
            self.tried.append(f"{path}: not a key that can be used ({_one_line(exc)}); the agent may be able to")
        else:
            name = f"{path} ({key.get_name()} {fingerprint(_bare_blob(key))})"
            for certificate in self.settings.certificate_files:
                with contextlib.suppress(OSError, ValueError, paramiko.SSHException):
                    with_certificate = paramiko.PKey.from_path(path)
                    with_certificate.load_certificate(certificate)
                    yield Candidate(f"{name} with {certificate}", with_certificate)
            yield Candidate(name, key)


def _one_line(exc: Exception) -> str:
    return str(exc).partition("\n")[0][:120]


def _bare_blob(key: paramiko.PKey) -> bytes:
    return base64.b64decode(key.get_base64())


def _public_blob(path: str) -> bytes | None:
    """The public half that lies beside a private key; None when there is none (then the file itself is tried)."""
    try:
        fields = Path(path + ".pub").read_text("utf-8", "replace").split()
        return base64.b64decode(fields[1], validate=True)
    except (OSError, IndexError, binascii.Error):
        return None
