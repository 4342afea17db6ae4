"""The facts of a start, gathered for the gate that judges it: the trial in hand, and the starts before it on record."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator import admission
from orchestrator.admission import EarlierStart, StartFacts
from orchestrator.designs import Admission, ExperimentRecord, Plan, StartRecord
from orchestrator.experiment.trial import Trial, counter_pairs
from orchestrator.records import NOT_RECORDED
from orchestrator.session import Session

OF_ONE_MACHINE = ("host", "gpu_uuids")
"""Conditions in which two nodes differ however alike they are."""


def judge_start(
    session: Session, plan: Plan, start: StartRecord, made: Trial, earlier: list[EarlierStart]
) -> Admission:
    """Whether a start may count; one that may is added to the earlier ones."""
    facts = _facts(plan, start, made)
    judged = admission.judge(facts, session.project.workload(plan.workload), plan, earlier)
    if judged.is_admissible:
        earlier.append(admission.remember(facts, plan.metric))
    return judged


def _facts(plan: Plan, start: StartRecord, made: Trial) -> StartFacts:
    service = made.service
    process = service.process if service else None
    return StartFacts(
        block=start.planned.block,
        arm=start.planned.arm,
        is_baseline=_is_baseline(plan, start.planned.arm),
        status=made.status,
        reasons=made.reasons,
        digest=made.digest,
        loaded_digest=service.proof.digest if service else None,
        digest_before=made.digest,  # the look that named the arm
        digest_after=made.digest_after,
        process_before=(process.pid, process.start_ticks) if process else None,
        process_after=made.process_after,
        loads=tuple(made.loads),
        telemetry=made.telemetry,
        counters=made.counters,
        facts=service.environment.facts if service else {},
    )


def _is_baseline(plan: Plan, arm: str) -> bool:
    digests = {one.name: one.digest for one in plan.arms}
    return digests[arm] == plan.arms[0].digest


def conditions(session: Session, plan: Plan, trial_id: int, digest: str) -> Mapping[str, str] | None:
    """Everything that must agree between starts that are compared; None where a trial has no good load."""
    found = session.store.measurements(plan.target, plan.workload, plan.metric, digest=digest)
    return next((one.comparison_key for one in found if one.trial_id == trial_id), None)


def first_conditions(session: Session, record: ExperimentRecord) -> Mapping[str, str] | None:
    """Those of the first start that counts."""
    digests = {arm.name: arm.digest for arm in record.plan.arms}
    counted = [(one.trial_id, digests[one.planned.arm]) for one in record.starts if one.status == "ok"]
    first = min(((trial_id, digest) for trial_id, digest in counted if trial_id is not None), default=None)
    return None if first is None else conditions(session, record.plan, *first)


def changes(before: Mapping[str, str] | None, now: Mapping[str, str] | None) -> list[str]:
    """What of the conditions is not as it was; empty where one of them is not known."""
    if before is None or now is None:
        return []
    keys = sorted(key for key in {*before, *now} if before.get(key) != now.get(key))
    return [f"{key} is {now.get(key, NOT_RECORDED)}, and was {before.get(key, NOT_RECORDED)}" for key in keys]


def earlier_starts(session: Session, record: ExperimentRecord) -> list[EarlierStart]:
    """The admissible starts of an experiment so far, read back from the record: for one that is resumed."""
    found = []
    for start in sorted(record.starts, key=lambda one: one.trial_id or 0):
        if start.status == "ok" and start.trial_id is not None:
            found.append(admission.remember(_remembered(session, record.plan, start), record.plan.metric))
    return found


def _remembered(session: Session, plan: Plan, start: StartRecord) -> StartFacts:
    """What of a recorded start a later one is compared with."""
    assert start.trial_id is not None
    store = session.store
    digest = next(arm.digest for arm in plan.arms if arm.name == start.planned.arm)
    return StartFacts(
        block=start.planned.block,
        arm=start.planned.arm,
        is_baseline=_is_baseline(plan, start.planned.arm),
        status="ok",
        reasons=(),
        digest=digest,
        loaded_digest=digest,
        digest_before=digest,
        digest_after=digest,
        process_before=None,
        process_after=None,
        loads=tuple(store.load(load_id) for load_id in store.load_ids(start.trial_id)),
        counters=counter_pairs(store.engine_counters(start.trial_id)),
        facts=store.trial(start.trial_id).facts or {},
    )
