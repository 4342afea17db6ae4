"""Which host key is trusted: known_hosts files, read the way OpenSSH reads them.

Plain and hashed names, ``[host]:port``, wildcards, negation, ``@revoked``. There is no way here to accept a key: an
unknown one is refused with its fingerprint and the command that adds it, a changed one with both fingerprints.
"""

from __future__ import annotations

import base64
import binascii
import fnmatch
import hashlib
import hmac
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.connection.ssh_config import SshSettings
from orchestrator.errors import HostKeyError


@dataclass(frozen=True, slots=True)
class KnownKey:
    """One line of a known_hosts file.

    Attributes:
        marker: ``@revoked``, ``@cert-authority`` or empty.
        names: the first field as it stands, hashed or a list of patterns.
        blob: the public key in SSH's wire format.
        where: ``file:line``.
    """

    marker: str
    names: str
    key_type: str
    blob: bytes
    where: str

    def is_for(self, name: str) -> bool:
        """Whether the line speaks of this name (``host`` or ``[host]:port``, lower case)."""
        if self.names.startswith("|1|"):
            return _hash_matches(self.names, name)
        patterns = self.names.lower().split(",")
        if any(_matches(name, pattern[1:]) for pattern in patterns if pattern.startswith("!")):
            return False
        return any(_matches(name, pattern) for pattern in patterns if not pattern.startswith("!"))


def fingerprint(blob: bytes) -> str:
    """``SHA256:…`` as ``ssh-keygen -l`` prints it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def read_known_hosts(paths: Iterable[str]) -> tuple[KnownKey, ...]:
    """Every usable line of the files, in order; a missing file has none, a malformed line is skipped as ssh does."""
    keys = []
    for path in paths:
        try:
            text = Path(path).read_text("utf-8", "replace")
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as exc:
            raise HostKeyError(f"cannot read {path}: {exc.strerror}", next_step="correct its permissions") from exc
        for number, line in enumerate(text.splitlines(), start=1):
            if key := _parse_line(line, f"{path}:{number}"):
                keys.append(key)
    return tuple(keys)


def known_keys(settings: SshSettings) -> tuple[KnownKey, ...]:
    """The lines that speak of this host, those of the user first.

    As with ssh, a key known under the bare name also counts for another port when ``[host]:port`` has none.
    """
    keys = read_known_hosts([*settings.user_known_hosts, *settings.global_known_hosts])
    name = lookup_name(settings)
    own = tuple(key for key in keys if key.is_for(name))
    if own or settings.host_key_alias or settings.port == 22:
        return own
    return tuple(key for key in keys if key.is_for(settings.hostname.lower()))


def lookup_name(settings: SshSettings) -> str:
    """The name under which known_hosts files know the host."""
    if settings.host_key_alias:
        return settings.host_key_alias.lower()
    hostname = settings.hostname.lower()
    return hostname if settings.port == 22 else f"[{hostname}]:{settings.port}"


def verify(settings: SshSettings, known: Sequence[KnownKey], key_type: str, blob: bytes) -> None:
    """Accepts the offered key only when it is one that is known for this host.

    Raises:
        HostKeyError: unknown, changed or revoked.
    """
    offered = f"{key_type} {fingerprint(blob)}"
    for key in known:
        if key.marker == "@revoked" and key.blob == blob:
            raise HostKeyError(
                f"the host key of {settings.alias} is revoked ({offered}, {key.where})",
                next_step="do not connect; ask whoever runs the host",
            )
    plain = [key for key in known if not key.marker]
    if any(key.blob == blob for key in plain):
        return
    changed = [key for key in plain if key.key_type == key_type]
    if changed:
        raise _changed(settings, changed[0], offered)
    raise _unknown(settings, known, key_type, blob)


def _changed(settings: SshSettings, known: KnownKey, offered: str) -> HostKeyError:
    path = known.where.rpartition(":")[0]
    remove = shlex.join(["ssh-keygen", "-R", lookup_name(settings), "-f", path])
    return HostKeyError(
        f"the host key of {settings.alias} ({settings.address}) has CHANGED: known is {known.key_type} "
        f"{fingerprint(known.blob)} ({known.where}), offered was {offered}",
        next_step="somebody may be in between; only when you know why it changed, remove the old one with "
        f"`{remove}` and connect again",
    )


def _unknown(settings: SshSettings, known: Sequence[KnownKey], key_type: str, blob: bytes) -> HostKeyError:
    evidence = [f"known of another type: {key.key_type} {fingerprint(key.blob)} ({key.where})" for key in known]
    if any(key.marker == "@cert-authority" for key in known):
        evidence.append("host certificates (@cert-authority) are not checked by orch: it needs the plain key")
    return HostKeyError(
        f"the host key of {settings.alias} ({settings.address}) is unknown: {key_type} {fingerprint(blob)}",
        next_step="compare that with `ssh-keygen -l` on the host, then add it with "
        f"`{add_command(settings, key_type, blob)}`",
        evidence=evidence,
    )


def add_command(settings: SshSettings, key_type: str, blob: bytes) -> str:
    """The command that makes this key known.

    ``ssh-keyscan`` where it can reach the host under the right name; behind a jump or with a HostKeyAlias the line
    itself, which also pins exactly the key that was seen.
    """
    path = shlex.quote(settings.user_known_hosts[0] if settings.user_known_hosts else "~/.ssh/known_hosts")
    if settings.host_key_alias or settings.proxy_jump or settings.proxy_command:
        line = f"{lookup_name(settings)} {key_type} {base64.b64encode(blob).decode()}"
        return f"echo {shlex.quote(line)} >> {path}"
    scan_type = re.sub(r"^ssh-|^ecdsa-.*", lambda match: "ecdsa" if match[0] != "ssh-" else "", key_type)
    return f"ssh-keyscan -p {settings.port} -t {scan_type} {shlex.quote(settings.hostname)} >> {path}"


def _parse_line(line: str, where: str) -> KnownKey | None:
    fields = line.split()
    if not fields or fields[0].startswith("#"):
        return None
    marker = fields.pop(0) if fields[0].startswith("@") else ""
    if len(fields) < 3:
        return None
    try:
        blob = base64.b64decode(fields[2], validate=True)
    except (binascii.Error, ValueError):
        return None
    return KnownKey(marker, fields[0], fields[1], blob, where)


def _hash_matches(hashed: str, name: str) -> bool:
    try:
        _, _, salt, digest = hashed.split("|")
        key, wanted = base64.b64decode(salt), base64.b64decode(digest)
    except (ValueError, binascii.Error):
        return False
    return hmac.compare_digest(hmac.new(key, name.encode(), hashlib.sha1).digest(), wanted)


def _matches(name: str, pattern: str) -> bool:
    """``*`` and ``?`` only: brackets are literal here, as in ``[host]:port``."""
    return fnmatch.fnmatchcase(name, pattern.replace("[", "[[]"))
