"""The engine runs in a container of docker or podman: it is the container, or it is started inside one that runs on.

``restart``: the container's first process leads the engine; the runtime ends and starts it, and binds what is mounted
anew. ``exec``: the container stays, the inventory's command is started in it with orch's mark, by which its processes
are found in this host's process table, and ended by signals.
"""

from __future__ import annotations

import json
import math
import os
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

from . import process_table
from .launching import MARK, Launcher, LaunchError, Place, Record, call, group_of, said, shown
from .process_table import Process

_FORMAT = '["{{.Id}}",{{.State.Pid}},{{.State.Running}},{{.State.ExitCode}}]'
"""JSON, not by the template's ``json``: podman calls the field ``ID``, and knows ``{{.Id}}`` in this form alone."""
_PORTS_FORMAT = "{{json .NetworkSettings.Ports}}"
_DETACHED = 'exec "$@" >"$0" 2>&1 </dev/null'
_OF_THE_CLIENT = ("DOCKER_", "CONTAINER", "XDG_", "LD_")
"""Variables that the runtime's own client reads: they are not handed over through its environment. Neither is the mark:
what watches over the container may keep the client's."""


class State(NamedTuple):
    """A container as its runtime sees it. ``pid``: of its first process on this host, 0 when it does not run."""

    id: str
    pid: int
    is_running: bool
    exit_code: int


class ContainerLauncher(Launcher):
    """The container itself, restarted."""

    is_managed = True

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__(settings)
        self.runtime = str(settings["runtime"])
        self.name = str(settings["name"])

    def present(self, port: int, table: Sequence[Process]) -> Optional[Process]:
        """The container's first process."""
        state = self._state()
        return process_table.process(state.pid) if state.is_running and state.pid else None

    def launch(self, record: Record, order: Mapping[str, Any]) -> None:
        """Starts the container; its mounts are bound anew, so a file mounted by itself is the new one too."""
        record["port"] = order["port"]
        call([self.runtime, "start", self.name], self.timeout_s)

    def find(self, record: Record, table: Sequence[Process]) -> Optional[Process]:
        """The first process; an error when the container has ended already."""
        state = self._state()
        if not state.is_running:
            message = "container %s ended with exit code %d" % (self.name, state.exit_code)
            raise LaunchError(message, self._log())
        return process_table.process(state.pid) if state.pid else None

    def describe(self, record: Record, leader: Process) -> Record:
        """The control group, where it is the container's own, and the command that shows this start's log."""
        state = self._state()
        own = [_up_to(path, state.id) for path in group_of(leader.pid) if state.id and state.id in path]
        since = "%d" % math.floor(leader.started_s)
        return {
            "argv": process_table.arguments_of(leader.pid),
            "cgroup": own[0] if own else None,
            "log_path": record["log_path"] or shown([self.runtime, "logs", "--since", since, self.name]),
            "listens": self._place(record["port"], leader.pid)._asdict(),
        }

    def end(self, grace_s: float) -> None:
        """Ends the container, which then is not started again by its restart policy."""
        call([self.runtime, "stop", "-t", "%d" % math.ceil(grace_s), self.name], self.timeout_s + grace_s)

    def inside(self) -> Optional[int]:
        """The container's first process, while it runs."""
        state = self._state()
        return state.pid if state.is_running and state.pid else None

    def _state(self) -> State:
        told = self._inspect(_FORMAT)
        try:
            container_id, pid, is_running, exit_code = json.loads(told)
            return State(str(container_id), int(pid), bool(is_running), int(exit_code))
        except (ValueError, TypeError) as exc:
            raise LaunchError("%s inspect does not tell the state of %s: %s" % (self.runtime, self.name, exc)) from exc

    def _inspect(self, template: str) -> str:
        return call([self.runtime, "inspect", "--type", "container", "--format", template, self.name], self.timeout_s)

    def _log(self) -> List[str]:
        """The end of the container's log; why not where it cannot be had."""
        return said([self.runtime, "logs", "--tail", "25", self.name], self.timeout_s)

    def _place(self, port: int, pid: int) -> Place:
        """Where the engine listens: in a network of the container's own, at the port that is published as this one."""
        if not _has_own_network(pid):
            return Place(port)
        try:
            published: Dict[str, Any] = json.loads(self._inspect(_PORTS_FORMAT)) or {}
            for inner, outer in published.items():
                if inner.endswith("/tcp") and any(int(one["HostPort"]) == port for one in outer or ()):
                    return Place(int(inner.partition("/")[0]), pid)
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            raise LaunchError("%s inspect does not tell the ports of %s: %s" % (self.runtime, self.name, exc)) from exc
        raise LaunchError(
            "container %s has a network of its own and publishes nothing as port %d: see base_url" % (self.name, port)
        )


class ContainerExecLauncher(ContainerLauncher):
    """A command inside a container that runs on."""

    is_managed = False

    def present(self, port: int, table: Sequence[Process]) -> Optional[Process]:
        """Nobody but orch starts it: its own record tells."""
        return None

    def launch(self, record: Record, order: Mapping[str, Any]) -> None:
        """Starts the command with its output in a file inside the container."""
        state = self._running()
        inner_log = record["log_path"] or "/tmp/orch-%s-%d.log" % (record["engine"], order["port"])
        record.update(port=order["port"], log_path="%s/%d/root%s" % (process_table.PROC, state.pid, inner_log))
        client, words = dict(os.environ), ["-e", "%s=%s" % (MARK, record["mark"])]
        for name, value in order["env"].items():
            if name in ("PATH", "HOME") or name.startswith(_OF_THE_CLIENT):
                words += ["-e", "%s=%s" % (name, value)]
            else:  # by name alone: a value on the command line could be read by everybody on the host
                client[name] = value
                words += ["-e", name]
        folder = ["-w", order["cwd"]] if order["cwd"] else []
        argv = [self.runtime, "exec", "-d", *words, *folder, self.name]
        call([*argv, "/bin/sh", "-c", _DETACHED, inner_log, *record["argv"]], self.timeout_s, client)

    def find(self, record: Record, table: Sequence[Process]) -> Optional[Process]:
        """The eldest process that carries the mark of this start."""
        marked = [one for one in table if (process_table.environment_of(one.pid) or {}).get(MARK) == record["mark"]]
        if not marked:
            self._running()
            return None
        return min(marked, key=lambda one: (one.parent in {other.pid for other in marked}, one.started_s, one.pid))

    def describe(self, record: Record, leader: Process) -> Record:
        """Where it listens; the rest was known before."""
        return {"listens": self._place(record["port"], leader.pid)._asdict()}

    def end(self, grace_s: float) -> None:
        """Nothing: signals end it, and the container stays."""

    def listens_at(self, port: int) -> Place:
        """Inside the container, which holds a published port all the time."""
        return self._place(port, self._running().pid)

    def _running(self) -> State:
        state = self._state()
        if not state.is_running:
            raise LaunchError(
                "container %s does not run (exit code %d): `%s` first"
                % (self.name, state.exit_code, shown([self.runtime, "start", self.name]))
            )
        return state


def _up_to(path: str, container_id: str) -> str:
    """The control group of the whole container: its first process may be in one below it."""
    head, _, tail = path.partition(container_id)
    return head + container_id + tail.partition("/")[0]


def _has_own_network(pid: int) -> bool:
    """Whether a process is in another network namespace than this one."""
    proc = process_table.PROC
    try:
        return os.readlink("%s/%d/ns/net" % (proc, pid)) != os.readlink(proc + "/self/ns/net")
    except OSError:
        return False
