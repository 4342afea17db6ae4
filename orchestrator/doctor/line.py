"""The way to the host: ssh configuration, host key, login, and how long a command takes. Opens the one connection."""

from __future__ import annotations

import time
from collections.abc import Generator
from pathlib import Path

from orchestrator.connection import Remote, connect
from orchestrator.connection.known_hosts import known_keys, lookup_name
from orchestrator.connection.slurm_group import open_places
from orchestrator.connection.ssh_config import SshSettings, resolve
from orchestrator.connection.timing import N_TIMES, time_line
from orchestrator.doctor.findings import Finding, failed_by, ok, skipped, warn
from orchestrator.errors import HostKeyError, LoginRefusedError, OrchError
from orchestrator.records import Host

START_FILES_LIMIT_S = 0.1
"""Above this the login's start files are what every command mostly waits for."""

START_FILES = {
    "bash": ("~/.bashrc", "`case $- in *i*) ;; *) return ;; esac`"),
    "zsh": ("~/.zshenv", "`[[ -o interactive ]] || return`"),
    "fish": ("~/.config/fish/config.fish", "`status is-interactive; or exit`"),
    "tcsh": ("~/.tcshrc", "`if (! $?prompt) exit`"),
    "csh": ("~/.cshrc", "`if (! $?prompt) exit`"),
}
"""Login shell → the file that it reads for every command, and the line that ends it early."""


def reach(host: Host) -> Generator[Finding, None, Remote | None]:
    """Goes to the host step by step, and tells of each.

    Returns:
        The open host; None when a step failed. The caller closes it.
    """
    if host.transport == "local":
        yield skipped("ssh config", f"{host.name} is this machine (transport: local): no ssh")
        return connect(host)
    try:
        settings = resolve(host)
    except OrchError as exc:
        yield failed_by("ssh config", exc, f"try `ssh -G {host.ssh or host.name}`")
        return None
    yield check_ssh_config(host, settings)
    return (yield from _log_in(host, settings))


def reach_node(login: Remote) -> Generator[Finding, None, Remote | None]:
    """Asks Slurm for a node through the login host, where none is held yet; that is the one thing that is started.

    Returns:
        The node, or the group that one engine spans; None when there is none. It ends with ``login``.
    """
    settings, began_s = login.host.slurm, time.perf_counter()
    assert settings is not None
    try:
        (node,) = open_places(login)
    except OrchError as exc:
        yield failed_by("node", exc, "try `sinfo` and `squeue --me` on the login host")
        return None
    after_s = time.perf_counter() - began_s
    spread = f"; `orch run` spreads over {settings.nodes}" if settings.nodes > 1 else ""
    jobs = [member.job.job_id for member in node.members]
    given = f"given by Slurm as job{'s' * (len(jobs) > 1)} {', '.join(jobs)}, after {after_s:.1f} s{spread}"
    yield ok("node", f"{node.node}, {given}")
    return node


def _log_in(host: Host, settings: SshSettings) -> Generator[Finding, None, Remote | None]:
    began_s = time.perf_counter()
    try:
        remote = connect(host)
    except HostKeyError as exc:
        yield failed_by("host key", exc, f"ask whoever runs {host.name} for its fingerprint")
        return None
    except OrchError as exc:
        yield check_host_key(settings, is_compared=isinstance(exc, LoginRefusedError))
        yield failed_by("login", exc, f"try `ssh {settings.alias}`")
        return None
    yield check_host_key(settings, is_compared=True)
    yield ok("login", f"{settings.address} in {time.perf_counter() - began_s:.2f} s")
    return remote


def check_ssh_config(host: Host, settings: SshSettings) -> Finding:
    """Which configuration was read, and what it says: address, jump, keys."""
    where = host.ssh_config or "~/.ssh/config"
    source = f"`ssh -G` ({where})" if settings.resolved_by == "ssh -G" else "inventory.yaml alone (no ssh program here)"
    hops = [hop.address for hop in settings.proxy_jump]
    way = f" through {', '.join(hops)}" if hops else ""
    if settings.proxy_command:
        way = f" through `{settings.proxy_command}`"
    keys = [path for path in settings.identity_files if Path(path).exists()]
    if settings.identity_agent:
        keys.append("the agent's")
    text = f"{source}: {settings.alias} is {settings.address}{way}"
    if keys:
        return ok("ssh config", f"{text}, keys {', '.join(keys)}")
    return warn(
        "ssh config",
        f"{text}; no key: no agent, and none of {', '.join(settings.identity_files) or 'no identity file'} exists",
        f"set identity: of host {host.name} in inventory.yaml, or make a key with `ssh-keygen`",
    )


def check_host_key(settings: SshSettings, *, is_compared: bool) -> Finding:
    """Which key of the host, and of each hop before it, is trusted.

    Args:
        is_compared: whether the host was reached, so that its key is known to be one of these.
    """
    known = []
    for hop in (*settings.proxy_jump, settings):
        try:
            keys = [key for key in known_keys(hop) if not key.marker]
        except HostKeyError as exc:
            return failed_by("host key", exc, "correct the permissions of that file")
        if not keys:
            return skipped("host key", f"none is known for {lookup_name(hop)}, and it could not be asked for its own")
        known.append(f"{lookup_name(hop)}: {', '.join(key.key_type for key in keys)} ({keys[0].where})")
    text = "; ".join(known)
    return ok("host key", text) if is_compared else skipped("host key", f"{text}; not compared: no connection")


def check_round_trip(remote: Remote, login_shell: str) -> Finding:
    """How long ``true`` takes, and how much of it the login's start files are."""
    times = time_line(remote)
    fresh = f"`true` takes {_ms(times.fresh_s)} (median of {N_TIMES})"
    if times.held_s is None or times.start_files_s is None:
        return ok("round trip", f"{fresh}, no line in between")
    text = f"{_ms(times.held_s)} on a shell that waits; a fresh {fresh}"
    if times.start_files_s <= START_FILES_LIMIT_S:
        return ok("round trip", text)
    file, line = START_FILES.get(login_shell.rpartition("/")[2], ("the login's start file", "an early return"))
    return warn(
        "round trip",
        f"{text}: {_ms(times.start_files_s)} of that are the login's start files, at every exec",
        f"on {remote.host.name} begin {file} with {line}",
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.2f} ms" if seconds < 0.001 else f"{seconds * 1000:.3g} ms"
