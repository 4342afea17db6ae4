"""Who starts an engine, and who is in its way, for people."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.connection import Remote
from orchestrator.errors import PortTakenError
from orchestrator.host import engine_port
from orchestrator.records import Engine, short


def process_line(found: Mapping[str, Any]) -> str:
    """One process: its pid and command line, as far as they can be seen."""
    if found["pid"] is None:
        return "a process that this login cannot see"
    return f"pid {found['pid']}: {found['command'] or 'command line not readable'}"


def stranger(where: str, engine: Engine, listeners: Sequence[Mapping[str, Any]], log: Sequence[str] = ()) -> Exception:
    """Says that somebody else's process holds the engine's port.

    Args:
        listeners: who listens there. log: of the engine, where it was started and died of that.
    """
    who = ", ".join(dict.fromkeys(process_line(one) for one in listeners)) or "no process of this host"
    return PortTakenError(
        f"{where}: port {engine_port(engine)} is held by a process that orch did not start ({who})",
        next_step="end it, or give the engine another port in inventory.yaml",
        evidence=log,
    )


def in_the_way(remote: Remote, engine: Engine, answer: Mapping[str, Any]) -> Exception:
    """Says whose process is in the way: ours from earlier, or a stranger's."""
    where = f"{remote.host.name}: engine {engine.name} cannot start"
    if answer["outcome"] == "running":
        found = answer["processes"]
        return PortTakenError(
            f"{where}: {len(found)} process(es) of it still live (pid {found[0]['pid']}), "
            f"started by orch for digest {short(answer['deployed_digest'])}",
            next_step="stop it first",
            evidence=[process_line(one) for one in found],
        )
    return stranger(where, engine, answer["listeners"])


def launcher_words(engine: Engine) -> str:
    """Who starts the engine, for people."""
    launcher = engine.launcher
    names = {
        "systemd": f"unit {launcher.unit}",
        "container": f"container {launcher.name}",
        "manual": shlex.join(launcher.restart_command) or "its user",
    }
    return names.get(launcher.kind, "its command")
