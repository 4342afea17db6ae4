"""The starts of an experiment as the record has them: which is next, which blocks are whole, which are made again.

Reads and writes the record only; no host, no statistics. A block whose start may not count is made again as a whole,
for its starts are compared with each other and must lie close in time.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime

from orchestrator.designs import ExperimentRecord, StartRecord
from orchestrator.store import Store

ABANDONED = "its orch ended before it was complete"
"""Of a start that a killed orch left under way: nothing is wrong with its block, it is made again alone."""

TORN = "the other starts of its block would come too long after it"

HOST_GONE = "the other starts of its block cannot be made on the same host"

MAX_GAP_S = 3600.0
"""What may lie between two starts of a block when an experiment is taken up again. After that the machine may have
changed more than the variants differ, and the block is made again."""

_WITH_BLOCK = "its block lost the start of"
_NOT_MADE = "not made: its block lost the start of"


def next_start(record: ExperimentRecord, claims: Mapping[int, str], host: str) -> StartRecord | None:
    """The first that is planned, in the order of blocks and positions; None when there is none for this host now.

    A host finishes its block before it begins another, and no more blocks are begun than the next look needs.

    Args:
        claims: which host makes a block that was begun.
    """
    planned = [start for start in record.starts if start.status == "planned"]
    own = [start for start in planned if claims.get(start.planned.block) == host]
    if not own and n_complete_blocks(record) + len(claims) < (next_look(record) or 0):
        own = [start for start in planned if start.planned.block not in claims]
    return min(own, key=lambda start: (start.planned.block, start.planned.position), default=None)


def complete_blocks(record: ExperimentRecord) -> list[int]:
    """Blocks in which every arm has an admissible start."""
    blocks = [start.planned.block for start in record.starts if start.status == "ok"]
    return sorted(block for block in set(blocks) if blocks.count(block) == len(record.plan.arms))


def n_complete_blocks(record: ExperimentRecord) -> int:
    """How many blocks are complete."""
    return len(complete_blocks(record))


def next_look(record: ExperimentRecord) -> int | None:
    """The next number of complete blocks at which the plan looks; None when the blocks left cannot reach it."""
    complete = n_complete_blocks(record)
    every = {start.planned.block for start in record.starts}
    alive = [
        block for block in every if all(s.status not in ("set-aside", "failed") for s in _newest_of(record, block))
    ]
    return next((look for look in record.plan.looks if complete < look <= len(alive)), None)


def n_lost(record: ExperimentRecord) -> int:
    """How many starts may not count for a reason of their own; an orch that was killed is none."""
    return sum(start.status in ("set-aside", "failed") and _has_own_reason(start) for start in record.starts)


def mend(store: Store, experiment_id: int) -> None:
    """Plans again what was lost: whole blocks, up to the plan's limit, and starts that a killed orch left.

    Every step is one write, and doing it again goes on where an earlier call was cut off.
    """
    record = store.experiment(experiment_id)
    can_repeat = n_lost(record) <= record.plan.max_repeats
    for block in sorted({start.planned.block for start in record.starts}):
        _mend_block(store, _newest_of(record, block), can_repeat)


def begun_on(store: Store, record: ExperimentRecord) -> dict[int, str]:
    """Where the blocks that are half made were begun."""
    complete = complete_blocks(record)
    begun = [one for one in record.starts if one.status == "ok" and one.planned.block not in complete]
    return {one.planned.block: store.trial_host(one.trial_id) for one in begun if one.trial_id is not None}


def give_up_block(store: Store, experiment_id: int, block: int, why: str) -> None:
    """Sets the starts of a half made block aside, for its host is gone; ``mend`` then plans the block again."""
    newest = _newest_of(store.experiment(experiment_id), block)
    if all(start.status == "ok" for start in newest):
        return
    for start in newest:
        if start.status == "ok":
            store.end_start(start.id, "set-aside", (f"{HOST_GONE}: {why}",), start.flags)


def tear_old_block(store: Store, experiment_id: int, now_s: float | None = None) -> bool:
    """Sets the starts of a half made block aside when they are old; ``mend`` then plans the block again.

    Args:
        now_s: seconds since the epoch; now when None.

    Returns:
        Whether there was one.
    """
    now_s = time.time() if now_s is None else now_s
    record, is_torn = store.experiment(experiment_id), False
    for block in {start.planned.block for start in record.starts}:
        newest = _newest_of(record, block)
        made = [start for start in newest if start.status == "ok"]
        if len(made) == len(newest) or any(now_s - _ended_s(store, start) <= MAX_GAP_S for start in made):
            continue
        for start in made:
            store.end_start(start.id, "set-aside", (TORN,), start.flags)
            is_torn = True
    return is_torn


def _mend_block(store: Store, newest: list[StartRecord], can_repeat: bool) -> None:
    bad = [start for start in newest if start.status in ("set-aside", "failed")]
    lost = [start for start in bad if ABANDONED not in start.reasons]
    if not lost:
        for start in bad:
            store.repeat_start(start.id)
        return
    arms = ", ".join(start.planned.arm for start in lost if _has_own_reason(start)) or lost[0].planned.arm
    for start in newest:
        if start.status == "ok":
            store.end_start(start.id, "set-aside", (f"{_WITH_BLOCK} {arms}",), start.flags)
        elif start.status == "planned" and not can_repeat:
            store.end_start(start.id, "set-aside", (f"{_NOT_MADE} {arms}",))
    for start in newest:
        if start.status != "planned" and can_repeat:
            store.repeat_start(start.id)


def _has_own_reason(start: StartRecord) -> bool:
    return not any(
        reason in (ABANDONED, TORN) or reason.startswith((_WITH_BLOCK, _NOT_MADE, HOST_GONE))
        for reason in start.reasons
    )


def _newest_of(record: ExperimentRecord, block: int) -> list[StartRecord]:
    """The newest attempt of each start of a block, by position."""
    newest = {
        start.planned.position: start
        for start in sorted(record.starts, key=lambda one: one.attempt)
        if start.planned.block == block
    }
    return [newest[position] for position in sorted(newest)]


def _ended_s(store: Store, start: StartRecord) -> float:
    """When the last load of a start ended, by the host's clock."""
    assert start.trial_id is not None
    ended = [store.load(load_id).ended_at for load_id in store.load_ids(start.trial_id)]
    moments = [datetime.fromisoformat(moment.replace("Z", "+00:00")) for moment in ended]  # Python 3.10 knows no Z
    return max((moment.timestamp() for moment in moments), default=0.0)
