"""An engine on every node that it spans: one process tree a rank. Of an engine on one machine this is that one.

Starting, looking and ending are done rank by rank by the other files of this folder. Readiness is asked of the head,
whose port it is; that every other rank lives is looked at meanwhile, for a head waits for a dead one without a word.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import replace

from orchestrator.connection import Remote
from orchestrator.errors import EngineDiedError, EngineError, OrchError
from orchestrator.host import ranks
from orchestrator.records import Engine, EngineProcess
from orchestrator.serve import ending, looking, starting, waiting
from orchestrator.serve.starting import Ask, OnWait

Env = Mapping[str, str] | Callable[[Remote], Mapping[str, str]]
"""Variables for one start; where they differ from node to node, what tells them of each."""


def start(
    remote: Remote,
    engine: Engine,
    *,
    deployed_digest: str | None,
    env: Env | None = None,
    ask: Ask | None = None,
    on_wait: OnWait | None = None,
) -> EngineProcess:
    """Starts every rank, the head first; see ``starting.start``. What was started ends again where a rank is refused.

    Returns:
        The head's leader, which knows those of the others.

    Raises:
        As ``starting.start``; the error names the node.
    """
    started: list[tuple[Remote, Engine, EngineProcess]] = []
    try:
        for member, ranked in ranks(remote, engine):
            own = env(member) if callable(env) else env
            process = starting.start(member, ranked, deployed_digest=deployed_digest, env=own, ask=ask, on_wait=on_wait)
            started.append((member, ranked, process))
    except OrchError:
        for member, ranked, _ in started:
            with contextlib.suppress(OrchError):
                ending.stop(member, ranked)
        raise
    head, *others = [process for _, _, process in started]
    return replace(head, others=tuple(others)) if others else head


def wait_ready(
    remote: Remote, engine: Engine, process: EngineProcess, *, on_wait: Callable[[float], None] | None = None
) -> float:
    """Waits until the head answers and every other rank lives; see ``waiting.wait_ready``.

    Raises:
        EngineDiedError: a rank ended; the evidence is the end of its log. Others: as ``waiting.wait_ready``.
    """
    (head, ranked), *others = ranks(remote, engine)

    def look(waited_s: float) -> None:
        _refuse_dead_rank(others, process)
        if on_wait:
            on_wait(waited_s)

    try:
        ready_after_s = waiting.wait_ready(head, ranked, process, on_wait=look if others else on_wait)
    except EngineError as exc:
        if not any(exc.message.startswith(f"{member.host.name}:") for member, _ in others):
            exc.evidence = (*exc.evidence, *_last_words(others, process))
        raise
    _refuse_dead_rank(others, process)
    return ready_after_s


def stop(remote: Remote, engine: Engine, *, told: Callable[[str], None] | None = None) -> bool:
    """Stops every rank, whatever is wrong with another; see ``ending.stop``.

    Raises:
        As ``ending.stop``, once every node that can be reached was asked.
    """
    was_stopped, errors = [], []
    for member in remote.members:  # also of a part of a group: what an engine left there is found by its name
        try:
            was_stopped.append(ending.stop(member, engine, told=told))
        except OrchError as exc:
            errors.append(exc)
    if errors:
        raise errors[0]
    return any(was_stopped)


def running(remote: Remote, engine: Engine) -> EngineProcess | None:
    """The engine that orch started, when the leader of every rank lives; see ``looking.running``."""
    return _whole([looking.running(member, engine) for member in remote.members])


def present(remote: Remote, engine: Engine) -> EngineProcess | None:
    """Like ``running``; of a launcher's see ``looking.present``. Of several ranks the first that lives, if not all."""
    found = [looking.present(member, engine) for member in remote.members]
    return _whole(found) or next((one for one in found if one is not None), None)


def gone(remote: Remote, engine: Engine) -> tuple[Remote, ...]:
    """The nodes on which the engine's leader does not live, the head first; one rank's end may be that of all."""
    return tuple(member for member in remote.members if looking.running(member, engine) is None)


def restore_scripts(remote: Remote, engine: Engine) -> tuple[str, ...]:
    """What the watcher of each node runs, the head's first; see ``ending.restore_script``."""
    return tuple(ending.restore_script(ranked, member.scratch_dir()) for member, ranked in ranks(remote, engine))


def _whole(found: list[EngineProcess | None]) -> EngineProcess | None:
    alive = [one for one in found if one is not None]
    if len(alive) < len(found):
        return None
    head, *others = alive
    return replace(head, others=tuple(others)) if others else head


def _refuse_dead_rank(others: list[tuple[Remote, Engine]], process: EngineProcess) -> None:
    for (member, engine), started in zip(others, process.others, strict=True):
        now = looking.running(member, engine)
        if now is None or now.identities != started.identities:
            raise EngineDiedError(
                f"{member.host.name}: engine {engine.name} (pid {started.pid}) ended before the whole of it was ready",
                next_step=f"read the whole log: {started.log_path} on {member.host.name}",
                evidence=waiting.log_evidence(waiting.log_tail(member, started, waiting.N_TRACEBACK_LINES)),
            )


def _last_words(others: list[tuple[Remote, Engine]], process: EngineProcess) -> list[str]:
    """What other ranks wrote last, where they ended too: the head's end is often only the second."""
    said: list[str] = []
    for (member, engine), started in zip(others, process.others, strict=True):
        with contextlib.suppress(OrchError):
            if looking.running(member, engine) is None:
                tail = waiting.log_tail(member, started, waiting.N_TAIL_LINES)
                said += [f"{member.host.name} ended too (pid {started.pid}):", *tail]
    return said
