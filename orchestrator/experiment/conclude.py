"""Put the host back, file and engine: ``orch revert``."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Literal

from orchestrator import push, serve, workspace
from orchestrator.agent import copy_command
from orchestrator.errors import ForeignEditError, LeaseHeldError, LeaseLostError, RevertError, WorkspaceError
from orchestrator.interrupts import shielded
from orchestrator.records import Restoration, Snapshot, short
from orchestrator.session import Session, look

EngineEnd = Literal["none", "stopped", "restarted"]


@dataclass(frozen=True, slots=True)
class Concluded:
    """A restored host. ``engine``: orch had started ``none``, or it was ``stopped`` or ``restarted``."""

    restoration: Restoration
    engine: EngineEnd


def conclude(session: Session, *, force: bool = False, restart: bool = False) -> Concluded:
    """Puts the pristine bytes back, proves it by digest, and stops the engine that orch started.

    Args:
        force: overwrite a foreign edit (it is kept on the host) and end another's lease.
        restart: start the engine again on the baseline.

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
        restoration = _restored(session, nonce, force=force)
        if nonce is not None:
            give_back(session, nonce)
        for opened in session.store.open_deployments(session.target.name):
            session.store.end_deployment(opened.id, "reverted")
        session.store.record_states(session.target.host, session.target, restoration.states, "revert", None)
        ended = end_engine(session)
    _require_baseline(session, restoration, stored)
    if restart:
        restart_engine(session, restoration)
        ended = "restarted"
    return Concluded(restoration, ended)


def give_back(session: Session, nonce: str) -> None:
    """Ends our lease on a host where nothing of ours is deployed."""
    with contextlib.suppress(LeaseLostError):
        push.unlock(session.remote, session.target, nonce=nonce)


def _restored(session: Session, nonce: str | None, *, force: bool) -> Restoration:
    """The restoration, with refusals that know this project."""
    try:
        return push.revert(session.remote, session.target, nonce=nonce, force=force)
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
    """Stops the engine that orch started, whatever it holds in memory, and with it any load that a killed orch left."""
    process = serve.running(session.remote, session.engine)
    if process is None:
        return "none"
    session.say("stop", f"stopping {session.engine.name}: it holds {short(process.deployed_digest)} in memory")
    serve.stop(session.remote, session.engine)
    return "stopped"


def restart_engine(session: Session, restoration: Restoration) -> None:
    """Starts the engine on the restored files, and waits until it is ready.

    Raises:
        EngineError: it did not start; the host is restored all the same.
    """
    session.say("start", f"starting {session.engine.name} on the baseline")
    process = serve.start(session.remote, session.engine, deployed_digest=restoration.digest)
    serve.wait_ready(session.remote, session.engine, process)
