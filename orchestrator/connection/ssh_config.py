"""How a host is reached, as the user's own ``ssh`` would: ``ssh -G`` reads the configuration, this file its answer.

No second parser of ssh_config: paramiko's own ignores ``Include``, takes an unknown ``Match`` for true and chokes on
``ProxyJump none``. Opens no connection.
"""

from __future__ import annotations

import functools
import getpass
import logging
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from orchestrator.errors import HostUnreachableError, InventoryError, UsageError
from orchestrator.records import Host

SSH_CONFIG_TIMEOUT_S = 20.0
MAX_JUMPS = 8
DEFAULT_IDENTITIES = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SshSettings:
    """Everything that is needed to open one hop; paths are absolute, tokens are replaced.

    Attributes:
        alias: what was asked for, before any configuration.
        identity_files: private keys in the order in which they are tried; they need not exist.
        identities_only: offer no other key of the agent.
        identity_agent: socket of the agent; None when the configuration says ``none`` or there is no agent.
        user_known_hosts, global_known_hosts: files that may be missing.
        host_key_alias: the name to look up in known_hosts instead of the host's.
        proxy_jump: hops before this one, first to last, each with its own settings. Empty with ``proxy_command``.
        proxy_command: a line for ``/bin/sh`` whose standard input and output are the line.
        server_alive_interval_s: None when the configuration leaves it off.
        resolved_by: ``ssh -G``, or ``inventory`` where there is no ssh program and so no configuration was read.
    """

    alias: str
    hostname: str
    user: str
    port: int = 22
    identity_files: tuple[str, ...] = ()
    identities_only: bool = False
    identity_agent: str | None = None
    certificate_files: tuple[str, ...] = ()
    user_known_hosts: tuple[str, ...] = ()
    global_known_hosts: tuple[str, ...] = ()
    host_key_alias: str | None = None
    proxy_jump: tuple[SshSettings, ...] = ()
    proxy_command: str | None = None
    server_alive_interval_s: float | None = None
    server_alive_count_max: int = 3
    resolved_by: Literal["ssh -G", "inventory"] = "ssh -G"

    @property
    def address(self) -> str:
        """``user@hostname:port``, for messages."""
        name = f"[{self.hostname}]" if ":" in self.hostname else self.hostname
        return f"{self.user}@{name}:{self.port}"


def resolve(host: Host) -> SshSettings:
    """The settings of a host: the inventory's fields before the ssh configuration's.

    Raises:
        InventoryError: ``ssh_config`` is set and missing, or there is no ssh program that could read it.
        UsageError: ssh rejects its configuration; the evidence says where.
    """
    if host.ssh_config and not _expand(host.ssh_config).is_file():
        raise InventoryError(
            f"host {host.name}: ssh_config {host.ssh_config} is not there", next_step="correct the path"
        )
    if shutil.which("ssh") is None:
        return _resolve_from_inventory(host)
    overrides = []
    if host.user:
        overrides += ["-l", host.user]
    if host.port:
        overrides += ["-p", str(host.port)]
    if host.jump:
        overrides += ["-J", host.jump]
    settings = _resolve_alias(host.ssh or host.name, host.ssh_config, overrides)
    if host.identity:
        settings = replace(settings, identity_files=(str(_expand(host.identity)),), identities_only=True)
    if host.known_hosts:
        settings = replace(settings, user_known_hosts=(str(_expand(host.known_hosts)),))
    return settings


def parse_ssh_g(text: str) -> dict[str, list[str]]:
    """The answer of ``ssh -G``: lower-case keyword → its values, in order; a keyword may come several times."""
    values: dict[str, list[str]] = {}
    for line in text.splitlines():
        keyword, _, value = line.partition(" ")
        if keyword:
            values.setdefault(keyword.lower(), []).append(value.strip())
    return values


def _resolve_alias(
    alias: str, ssh_config: str | None, overrides: Sequence[str], *, jump: str | None = None, depth: int = 0
) -> SshSettings:
    if depth > MAX_JUMPS:
        raise UsageError(f"more than {MAX_JUMPS} ProxyJump hops, at {alias}", next_step="look for a loop in ssh_config")
    argv = ["ssh", "-G"]
    if ssh_config:
        argv += ["-F", str(_expand(ssh_config))]
    if jump is not None:
        argv += ["-J", jump]
    values = parse_ssh_g(_ask_ssh([*argv, *overrides, "--", alias]))
    settings = _from_values(alias, values)
    hops = _value(values, "proxyjump")
    if hops is None:
        return settings
    return replace(settings, proxy_command=None, proxy_jump=_resolve_jumps(hops, ssh_config, depth))


def _resolve_jumps(hops: str, ssh_config: str | None, depth: int) -> tuple[SshSettings, ...]:
    """``a,b`` reaches b through a. Only the first hop may have a ProxyJump of its own, as with ssh."""
    chain: list[SshSettings] = []
    for i, hop in enumerate(hops.split(",")):
        name, overrides = _split_jump(hop.strip())
        hop_settings = _resolve_alias(name, ssh_config, overrides, jump="none" if i else None, depth=depth + 1 + i)
        chain += [*hop_settings.proxy_jump, replace(hop_settings, proxy_jump=())]
    return tuple(chain)


def _split_jump(hop: str) -> tuple[str, list[str]]:
    """``[user@]host[:port]`` or ``ssh://…`` as a name and options of ssh."""
    match = re.fullmatch(r"(?:ssh://)?(?:(?P<user>.+)@)?(?P<host>\[[^]]+\]|[^:]+)(?::(?P<port>\d+))?/?", hop)
    if match is None:
        raise UsageError(f"not a jump host: {hop!r}", next_step="write [user@]host[:port]")
    overrides = ["-l", match["user"]] if match["user"] else []
    overrides += ["-p", match["port"]] if match["port"] else []
    return match["host"].strip("[]"), overrides


def _ask_ssh(argv: Sequence[str]) -> str:
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=SSH_CONFIG_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as exc:
        raise HostUnreachableError(
            f"`{shlex.join(argv)}` did not answer within {SSH_CONFIG_TIMEOUT_S:g} s",
            next_step="look at the Match exec lines of the ssh configuration",
        ) from exc
    if done.returncode:
        raise UsageError(
            f"ssh rejects its configuration (`{shlex.join(argv)}`, exit code {done.returncode})",
            next_step="correct the line that it names",
            evidence=done.stderr.decode("utf-8", "replace").splitlines()[-5:],
        )
    return done.stdout.decode("utf-8", "surrogateescape")


def _value(values: Mapping[str, list[str]], keyword: str) -> str | None:
    """The single value of a keyword; None when it is absent or says ``none``."""
    value = values.get(keyword, [""])[0]
    return None if value.lower() in ("", "none") else value


def _from_values(alias: str, values: Mapping[str, list[str]]) -> SshSettings:
    hostname = _value(values, "hostname") or alias
    user = _value(values, "user") or getpass.getuser()
    port = int(_value(values, "port") or 22)
    host_key_alias = _value(values, "hostkeyalias")
    tokens = _tokens(alias, hostname, user, port, host_key_alias)
    path = functools.partial(_path, tokens=tokens)
    command = _value(values, "proxycommand")
    interval = float(_value(values, "serveraliveinterval") or 0)
    return SshSettings(
        alias=alias,
        hostname=hostname,
        user=user,
        port=port,
        identity_files=tuple(path(v) for v in values.get("identityfile", []) if v != "none"),
        identities_only=_value(values, "identitiesonly") == "yes",
        identity_agent=_agent_socket(values.get("identityagent", ["SSH_AUTH_SOCK"])[0], tokens),
        certificate_files=tuple(path(v) for v in values.get("certificatefile", []) if v != "none"),
        user_known_hosts=_paths(values.get("userknownhostsfile", []), tokens),
        global_known_hosts=_paths(values.get("globalknownhostsfile", []), tokens),
        host_key_alias=host_key_alias,
        proxy_command=_replace_tokens(command, tokens) if command else None,
        server_alive_interval_s=interval or None,
        server_alive_count_max=int(_value(values, "serveralivecountmax") or 3),
    )


def _tokens(alias: str, hostname: str, user: str, port: int, host_key_alias: str | None) -> dict[str, str]:
    local_name = os.uname().nodename
    return {
        "%": "%",
        "d": str(Path.home()),
        "h": hostname,
        "i": str(os.getuid()),
        "k": host_key_alias or alias,
        "L": local_name.partition(".")[0],
        "l": local_name,
        "n": alias,
        "p": str(port),
        "r": user,
        "u": getpass.getuser(),
    }


def _replace_tokens(text: str, tokens: Mapping[str, str]) -> str:
    """``%h`` and the like; an unknown token stays as it is."""
    return re.sub(r"%(.)", lambda match: tokens.get(match[1], match[0]), text)


def _path(text: str, tokens: Mapping[str, str]) -> str:
    with_variables = re.sub(r"\$\{(\w+)\}", lambda match: os.environ.get(match[1], ""), text.strip('"'))
    return str(_expand(_replace_tokens(with_variables, tokens)))


def _paths(values: Sequence[str], tokens: Mapping[str, str]) -> tuple[str, ...]:
    """Several files in one value, split at blanks; ``ssh -G`` prints them without the quotes of the configuration."""
    texts: list[str] = []
    for value in values:
        whole = _path(value, tokens)
        texts += [whole] if Path(whole).is_file() else [_path(word, tokens) for word in value.split()]
    return tuple(text for text in texts if Path(text).name != "none")


def _agent_socket(value: str, tokens: Mapping[str, str]) -> str | None:
    if value == "none":
        return None
    if value == "SSH_AUTH_SOCK":
        return os.environ.get("SSH_AUTH_SOCK") or None
    if value.startswith("$") and not value.startswith("${"):
        return os.environ.get(value[1:]) or None
    return _path(value, tokens)


def _expand(path: str) -> Path:
    return Path(path).expanduser().absolute()


@functools.cache
def _log_once(message: str) -> None:
    log.warning(message)


def _resolve_from_inventory(host: Host) -> SshSettings:
    """Without an ssh program: the inventory's own fields and OpenSSH's default files."""
    if host.ssh_config:
        raise InventoryError(
            f"host {host.name}: ssh_config is set, and there is no ssh program to read it",
            next_step="install the OpenSSH client, or give user, port, identity and known_hosts in inventory.yaml",
        )
    _log_once("no ssh program here: the ssh configuration is not read, only the fields of inventory.yaml count")
    name, options = _split_jump(host.ssh or host.name)
    given = dict(zip(options[::2], options[1::2], strict=True))
    identities = [host.identity] if host.identity else list(DEFAULT_IDENTITIES)
    hops = [_split_jump(hop.strip()) for hop in (host.jump or "").split(",") if hop.strip()]
    common = SshSettings(
        alias=host.ssh or host.name,
        hostname=name,
        user=host.user or given.get("-l") or getpass.getuser(),
        port=host.port or int(given.get("-p", 22)),
        identity_files=tuple(str(_expand(path)) for path in identities),
        identities_only=host.identity is not None,
        identity_agent=os.environ.get("SSH_AUTH_SOCK") or None,
        user_known_hosts=(str(_expand(host.known_hosts or "~/.ssh/known_hosts")),),
        global_known_hosts=("/etc/ssh/ssh_known_hosts",),
        resolved_by="inventory",
    )
    jumps = []
    for jump, options in hops:
        words = dict(zip(options[::2], options[1::2], strict=True))
        user, port = words.get("-l", getpass.getuser()), int(words.get("-p", 22))
        jumps.append(replace(common, alias=jump, hostname=jump, user=user, port=port))
    return replace(common, proxy_jump=tuple(jumps))
