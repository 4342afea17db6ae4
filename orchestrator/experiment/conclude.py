"""Put the host back, file and engine: ``orch revert``."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Literal

from orchestrator import serve, workspace
from orchestrator.agent import copy_command
from orchestrator.errors import (
    EngineError,
    ForeignEditError,
    LeaseHeldError,
    OrchError,
    RevertError,
    WorkspaceError,
)
from orchestrator.experiment import everywhere
from orchestrator.interrupts import shielded
from orchestrator.records import Restoration, Snapshot, short
from orchestrator.session import Session, look, open_here

EngineEnd = Literal["none", "stopped", "restarted"]


@dataclass(frozen=True, slots=True)
class Concluded:
    """A restored host. ``engine``: orch had started ``none``, or it was ``stopped`` or ``restarted``."""

    restoration: Restoration
    engine: EngineEnd


def revert(session: Session, *, force: bool = False, restart: bool = False) -> Concluded:
    """``conclude``, and starts the engine again on the baseline where that is wanted, or it ran before orch came.

    Args:
        restart: start it in any case.

    Raises:
        ForeignEditError, RevertError: as ``conclude``.
        EngineError: the host is restored, and the engine is not: it did not start, or holds other bytes in memory.
    """
    concluded = conclude(session, force=force)
    if restart:
        restart_engine(session, concluded.restoration)
    elif not give_engine_back(session, concluded.restoration):
        return concluded
    return Concluded(concluded.restoration, "restarted")


def conclude(session: Session, *, force: bool = False) -> Concluded:
    """Puts the pristine bytes back, proves it by digest, and stops the engine that orch started.

    Args:
        force: overwrite a foreign edit (it is kept on the host) and end another's lease.

    Raises:
        ForeignEditError: the file was edited behind orch's back; nothing was written.
        RevertError: the host is not restored.
    """
    live = look(session, "revert")
    stored = session.store.baseline(session.target.name)
    nonce = live.nonce
    if live.is_clean and stored is not None and live.digest != stored.digest:
        if nonce is not None:  # a lease over nothing of ours would only keep others away
            give_back(session, nonce)
        raise ForeignEditError(
            f"{session.target.host}: nothing of orch's is deployed, and the live file ({short(live.digest)}) is not "
            f"the recorded baseline ({short(stored.digest)}): somebody else's edit, left alone",
            found=live.digest,
            next_step="see `orch drift`; `orch pull` records it as the new baseline",
        )
    session.say("revert", f"restoring {session.target.name} on {session.target.host}")
    with shielded("putting the host back"):
        try:
            restoration = _restored(session, nonce, force=force)
        except OrchError:
            if len(session.remote.members) > 1:  # the other nodes are restored, and hold the variant in memory
                with contextlib.suppress(OrchError):
                    end_engine(session)
            raise
        if nonce is not None:
            give_back(session, nonce)
        for opened in open_here(session):
            session.store.end_deployment(opened.id, "reverted")
        session.store.record_states(session.target.host, session.target, restoration.states, "revert", None)
        ended = end_engine(session)
    _require_baseline(session, restoration, stored)
    return Concluded(restoration, ended)


def give_back(session: Session, nonce: str) -> None:
    """Ends our lease on a host where nothing of ours is deployed."""
    everywhere.unlock(session, nonce=nonce)


def _restored(session: Session, nonce: str | None, *, force: bool) -> Restoration:
    """The restoration, with refusals that know this project."""
    try:
        return everywhere.revert(session, nonce=nonce, force=force)
    except LeaseHeldError as exc:
        raise LeaseHeldError(
            exc.message,
            next_step="wait for it; or, if it is yours and results.db was lost, `orch revert --force` ends it",
        ) from exc
    except RevertError as exc:
        raise RevertError(exc.message, next_step=exc.next_step, evidence=_copy_commands(session)) from exc


def _copy_commands(session: Session) -> list[str]:
    """For a host without a good backup: what puts this project's pristine copy there, a line a file."""
    with contextlib.suppress(WorkspaceError):
        pristine = workspace.read_baseline(session.project.variants_root, session.target)
        folder = session.project.variants_root / session.target.name / workspace.BASELINE
        commands = [
            copy_command(session.remote.host, str(folder / file.name), file.path) for file in session.target.files
        ]
        return [f"the baseline {short(pristine.digest)} is written by hand with:", *commands]
    return []


def _require_baseline(session: Session, restoration: Restoration, stored: Snapshot | None) -> None:
    if stored is not None and restoration.digest != stored.digest:
        raise RevertError(
            f"{session.target.host}: restored to the host's own backup {short(restoration.digest)}, but the recorded "
            f"baseline of {session.target.name} is {short(stored.digest)}",
            next_step="see `orch drift`, then `orch pull`",
        )


def end_engine(session: Session) -> EngineEnd:
    """Stops the engine that orch started, whatever it holds in memory, and with it any load that a killed orch left.

    One that only its user can start is left running: ``give_engine_back`` restarts it. Workers whose leader has died
    are ended too.
    """
    if not session.engine.launcher.can_be_stopped:
        return "none"
    process = serve.running(session.remote, session.engine)
    if process is not None:
        session.say("stop", f"stopping {session.engine.name}: it holds {short(process.deployed_digest)} in memory")
    was_stopped = serve.stop(session.remote, session.engine, told=lambda line: session.say("stop", line))
    return "stopped" if was_stopped or process is not None else "none"


def give_engine_back(session: Session, restoration: Restoration) -> bool:
    """Starts the engine on the restored files where it ran before orch came, or holds others in memory.

    Returns:
        Whether it was started.

    Raises:
        EngineError: it did not start, or nobody is there who could start it.
    """
    engine, digest = session.engine, restoration.digest
    if engine.launcher.runs_command:
        return False
    changes = [state.ctime_s for state in restoration.states if state.ctime_s is not None]
    changed_s = max(changes) if changes and not restoration.was_clean else None
    if not serve.owes_start(session.remote, engine, digest=digest, changed_s=changed_s):
        return False
    try:
        serve.require_restartable(engine, is_attended=session.ask is not None)
    except EngineError as exc:
        raise EngineError(
            f"{session.target.host}: {session.target.name} is restored, but engine {engine.name} began before that and "
            "holds other bytes in memory",
            next_step="restart it by hand; `orch status` tells since when it runs",
        ) from exc
    return restart_engine(session, restoration)


def restart_engine(session: Session, restoration: Restoration) -> bool:
    """Starts the engine on the restored files, and waits until it is ready; returns true.

    Raises:
        EngineError: it did not start; the host is restored all the same.
    """
    session.say("start", f"starting {session.engine.name} on the baseline")
    digest, ask = restoration.digest, session.ask
    process = serve.start(session.remote, session.engine, deployed_digest=digest, ask=ask)
    serve.wait_ready(session.remote, session.engine, process)
    return True
