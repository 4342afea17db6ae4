"""A whole experiment: stored, its starts made in order, looked at where planned, and the host put back.

``conduct`` is the same whether an experiment begins or goes on after a crash: it asks the record which start comes
next, and the record is written before and after every act. Owns the order; the starts, the statistics, the gate and
the host's acts are elsewhere. ``Place`` is where the starts are made: ``OneHost`` here, several nodes in ``nodes.py``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from orchestrator.designs import Analysis, ExperimentRecord, Plan, StartRecord
from orchestrator.errors import ExperimentError, InterruptedError_, OrchError, RevertError
from orchestrator.experiment import admitting, blocks, events
from orchestrator.experiment.conclude import conclude, end_engine, give_engine_back, restart_engine
from orchestrator.experiment.starts import (
    EXPERIMENT_TTL_S,
    Conduct,
    Emit,
    Ending,
    Wishes,
    conclude_early,
    go_on,
    make,
    next_act,
)
from orchestrator.experiment.takeover import Handover, offered
from orchestrator.experiment.trial import LoadWatch
from orchestrator.interrupts import shielded
from orchestrator.records import Restoration, Variant, short
from orchestrator.session import Session, read_variant

__all__ = ["EXPERIMENT_TTL_S", "Emit", "OneHost", "Outcome", "Wishes", "conduct", "put_back", "stop"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an experiment stands when ``conduct`` returns.

    Attributes:
        analysis: the last; None before a block is complete.
        trouble: a node that could not be proved to be restored, for it is out of reach; None when all are.
    """

    experiment: ExperimentRecord
    analysis: Analysis | None
    trouble: RevertError | None = None


class Place(Protocol):
    """Where the starts of an experiment are made."""

    def take_up(self) -> None:
        """Finishes what an orch that was killed left half done, in the record and, where it can be had, on the host."""

    def run(self) -> Ending:
        """Start after start, until the experiment has an end."""

    def put_back(self) -> RevertError | None:
        """Restores and proves every host; returns what could not be proved because a node is out of reach."""

    def finish(self) -> None:
        """What is done once the experiment has ended and its host is restored."""

    def end_engines(self) -> None:
        """Stops the engines of a host that could not be put back."""


def conduct(
    session: Session,
    experiment_id: int,
    emit: Emit,
    *,
    wishes: Wishes | None = None,
    on_load: LoadWatch | None = None,
    ttl_s: float = EXPERIMENT_TTL_S,
) -> Outcome:
    """Makes every start of an experiment that is not complete yet, and puts the host back, however it ends.

    An error or Ctrl-C leaves the experiment open: taken up again, it goes on from the next start that is not complete.

    Raises:
        StaleBaseError, ForeignEditError: somebody else changed the file; their edit is left as it is.
        ExperimentError: a variant or the baseline is no longer the one of the plan, and nothing was touched; or the
            conditions changed.
        InterruptedError_: Ctrl-C; the host was put back.
        RevertError: THE HOST IS NOT RESTORED.
    """
    plan = session.store.experiment(experiment_id).plan
    variants = _planned_variants(session, experiment_id, plan)
    running = Conduct(session, experiment_id, plan, emit, variants, wishes or Wishes(), on_load, ttl_s)
    session.store.begin_experiment(experiment_id)
    place = _place(running)
    try:
        place.take_up()
        return _end(running, place, place.run())
    except (KeyboardInterrupt, InterruptedError_):
        trouble = _leave(running, place, "interrupted")
        if trouble is not None:
            _add_how_to_go_on(trouble, experiment_id)
            raise trouble from None
        raise InterruptedError_(
            f"interrupted: experiment {experiment_id} is stopped, the host is as it was before",
            next_step=f"`orch resume {experiment_id}` goes on, `orch report {experiment_id}` shows what there is",
        ) from None
    except OrchError as exc:
        trouble = _leave(running, place, exc.message)
        _add_how_to_go_on(exc, experiment_id)
        if isinstance(trouble, RevertError):
            _add_how_to_go_on(trouble, experiment_id)
            raise trouble from exc
        raise
    except Exception as exc:
        _leave(running, place, repr(exc))
        raise


def stop(session: Session, experiment_id: int, emit: Emit) -> Outcome:
    """Ends an unfinished experiment: the host is put back, and what was measured is kept and analysed.

    Raises:
        ExperimentError: it has ended already.
        RevertError: THE HOST IS NOT RESTORED.
    """
    record = session.store.experiment(experiment_id)
    if record.status not in ("planned", "running"):
        raise ExperimentError(
            f"experiment {experiment_id} has ended: it is {record.status}",
            next_step="`orch revert` puts the host back, whatever is live there",
        )
    running = Conduct(session, experiment_id, record.plan, emit)
    session.store.abandon_running_starts(experiment_id, blocks.ABANDONED)
    return _end(running, _place(running), Ending(conclude_early(running), "stopped", "stopped by its user"))


def _place(running: Conduct) -> Place:
    if not running.session.is_node:
        return OneHost(running)
    from orchestrator.experiment.nodes import Nodes

    return Nodes(running, running.session.n_places)


def _planned_variants(session: Session, experiment_id: int, plan: Plan) -> dict[str, Variant]:
    """The variants of the plan, as they are in the workspace now.

    Raises:
        ExperimentError: one was edited, or another baseline pulled, since the plan was drawn.
    """
    baseline, end_it = session.baseline(), f"`orch resume {experiment_id} --stop` ends it"
    if baseline.digest != plan.arms[0].digest:
        raise ExperimentError(
            f"experiment {experiment_id} was drawn for baseline {short(plan.arms[0].digest)}, and "
            f"{short(baseline.digest)} was pulled since",
            next_step=end_it,
        )
    found = {}
    for arm in plan.arms[1:]:
        if arm.digest == plan.arms[0].digest:
            continue
        variant = read_variant(session.project, session.target, arm.name)
        if variant.digest != arm.digest:
            raise ExperimentError(
                f"{arm.name} was edited since experiment {experiment_id} was drawn: it is {short(variant.digest)}, and "
                f"was {short(arm.digest)}",
                next_step=f"take the edit back, or {end_it}",
            )
        found[arm.name] = variant
    return found


class OneHost:
    """The starts are made one after the other, on the host of the session."""

    def __init__(self, running: Conduct) -> None:
        self.running = running
        self.restoration: Restoration | None = None

    def take_up(self) -> None:
        """See ``Place``. The start under way goes on, where its load can be taken over."""
        running = self.running
        store, number = running.session.store, running.experiment_id
        under_way = next((one for one in running.record().starts if one.status == "running"), None)
        is_torn = blocks.tear_old_block(store, number)
        handover, why_not = (None, "") if under_way is None or is_torn else _offered(running, under_way)
        abandoned = () if handover else store.abandon_running_starts(number, blocks.ABANDONED)
        blocks.mend(store, number)
        record = running.record()
        running.earlier = admitting.earlier_starts(running.session, record)
        running.conditions = admitting.first_conditions(running.session, record)
        if under_way or is_torn:
            told = events.recovered(len(abandoned), why_not, is_torn, is_taken_over=bool(handover))
            running.tell("recovered", told)
        if under_way and handover:
            go_on(running, under_way, handover)
            if blocks.tear_old_block(store, number):  # its loads ended long ago, and the rest of its block is missing
                blocks.mend(store, number)
                running.earlier = admitting.earlier_starts(running.session, running.record())
                running.tell("recovered", events.recovered(0, "", True, is_taken_over=False))

    def run(self) -> Ending:
        """See ``Place``."""
        while True:
            with self.running.board.changed:
                act = next_act(self.running)
            if isinstance(act, Ending):
                return act
            assert act is not None, "nobody else is at work"
            make(self.running, act)

    def put_back(self) -> None:
        """See ``Place``."""
        self.restoration = put_back(self.running)

    def finish(self) -> None:
        """See ``Place``: the host as it is used, with its engine. That it does not start changes no verdict."""
        self._start_engine(restart_engine)

    def give_engine_back(self) -> None:
        """Of an experiment that is left open: an engine that ran before orch came runs again, on the baseline."""
        if not self.running.session.engine.launcher.runs_command:
            self._start_engine(give_engine_back)

    def _start_engine(self, start: Callable[[Session, Restoration], bool]) -> None:
        """Has the engine started; says how that went, unless it is left as it is."""
        assert self.restoration is not None
        running, is_ready = self.running, False
        name, evidence = running.session.engine.name, ()  # type: tuple[str, tuple[str, ...]]
        try:
            if start(running.session, self.restoration) is False:
                return
            text, is_ready = f"{name} is ready again, on the baseline", True
        except KeyboardInterrupt:
            text = f"{name} is still starting on the baseline"
        except OrchError as exc:
            text, evidence = f"{name} did not start again: {exc.message}", exc.evidence
        running.tell("engine", (text, {"is_ready": is_ready, "evidence": list(evidence)}))

    def end_engines(self) -> None:
        """See ``Place``."""
        end_engine(self.running.session)


def _offered(running: Conduct, start: StartRecord) -> tuple[Handover | None, str]:
    assert start.trial_id is not None
    workload = running.session.project.workload(running.plan.workload)
    return offered(running.session, start.trial_id, workload, running.plan.concurrencies)


# ---- the end


def _leave(running: Conduct, place: Place, reason: str) -> OrchError | None:
    """Puts the host back and keeps the experiment open; returns what kept it from being put back."""
    trouble: OrchError | None = None
    with contextlib.suppress(KeyboardInterrupt), shielded("putting the host back"):
        try:
            trouble = place.put_back()
        except OrchError as exc:
            trouble = exc
            with contextlib.suppress(OrchError):
                place.end_engines()
        host = "" if trouble is None else f"; the host was not put back: {trouble.message}"
        running.tell("left", (f"{reason}{host}", {"reason": reason, "is_restored": trouble is None}))
    if trouble is None and isinstance(place, OneHost):
        place.give_engine_back()
    return trouble


def _add_how_to_go_on(error: OrchError, experiment_id: int) -> None:
    then = f"`orch resume {experiment_id}` goes on with the experiment, with --stop it ends it"
    error.next_step = f"{error.next_step}; then {then}" if error.next_step else then


def _end(running: Conduct, place: Place, ending: Ending) -> Outcome:
    """The host first, then its engine, then the record: one that is killed before that is resumed and owes nothing."""
    is_patient, trouble = False, None
    status, reason = ending.status, ending.reason
    with contextlib.suppress(KeyboardInterrupt):  # the experiment is over: there is nothing left to interrupt
        with shielded("putting the host back"):
            trouble = place.put_back()
        is_patient = True
    try:
        if is_patient:
            place.finish()
    finally:
        running.session.store.end_experiment(running.experiment_id, status, reason)
    text = f"experiment {running.experiment_id} is {events.ending(status, reason)}"
    running.tell("end", (text, {"status": status, "reason": reason}))
    return Outcome(running.record(), ending.analysis, trouble)


def put_back(running: Conduct) -> Restoration:
    """Restores the host of a session, and tells of the proof."""
    restoration = conclude(running.session).restoration
    text = f"{running.plan.target} on {restoration.host} is the baseline {short(restoration.digest)}, proved by digest"
    running.tell("restored", (text, {"digest": restoration.digest}))
    return restoration
