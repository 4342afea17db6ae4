"""Experiments: the plan before the first start, every start as it goes, and how it all ended.

A start moves one way, ``planned → running → ok | set-aside | failed``, and a good one may be set aside later, when its
block lost another start. To do it again is a new row, an attempt later.
What a killed controller left ``running`` is closed by ``abandon_running_starts``, and only when a caller asks.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, Literal

from orchestrator.designs import ExperimentRecord, Plan, PlannedStart, StartRecord
from orchestrator.errors import StoreError
from orchestrator.store.database import Database, insert_row, utc_now
from orchestrator.store.encoding import plan_from_json, plan_to_json, storable_text, texts_from_json, to_json
from orchestrator.version import VERSION

FinalStatus = Literal["decided", "hopeless", "exhausted", "stopped", "failed"]
EndedStartStatus = Literal["ok", "set-aside", "failed"]


class Experiments(Database):
    """Plans, their starts, and what became of them."""

    def create_experiment(self, plan: Plan) -> int:
        """Keeps a plan with all its starts; on disk when this returns, so do it before the first start.

        Returns:
            The experiment's id.

        Raises:
            StoreError: a number is not finite, or two starts have one index.
        """
        digests = {arm.name: arm.digest for arm in plan.arms}
        row = _plan_row(plan)
        with self._transaction() as connection:
            experiment_id = insert_row(connection, "experiments", row)
            for start in plan.starts:
                _insert_start(connection, experiment_id, start, digests[start.arm], attempt=0)
        return experiment_id

    def experiment(self, experiment_id: int) -> ExperimentRecord:
        """An experiment as it stands.

        Raises:
            StoreError: there is no such experiment.
        """
        found = self._records("id = ?1", (experiment_id,))
        if not found:
            raise _no_experiment(experiment_id)
        return found[0]

    def experiments(self, target: str | None = None) -> list[ExperimentRecord]:
        """Every experiment, newest first; of one target when it is named."""
        return self._records("?1 IS NULL OR target = ?1", (target,))

    def unfinished_experiment(self, target: str) -> int | None:
        """The newest experiment of a target that is planned or running; None when there is none."""
        row = self._row(
            "SELECT max(id) FROM experiments WHERE target = ? AND status IN ('planned', 'running')", (target,)
        )
        return None if row is None else row[0]

    def begin_experiment(self, experiment_id: int) -> None:
        """Marks it ``running``; again so, when it was stopped or had failed and is taken up. May be called twice.

        Raises:
            StoreError: there is no such experiment, or its looks are spent: it was decided, hopeless or exhausted.
        """
        with self._transaction() as connection:
            cursor = connection.execute(
                "UPDATE experiments SET status = 'running', started_at = coalesce(started_at, ?), ended_at = NULL,"
                " stop_reason = NULL WHERE id = ? AND status NOT IN ('decided', 'hopeless', 'exhausted')",
                (utc_now(), experiment_id),
            )
            if cursor.rowcount == 0:
                raise _ended_or_missing(connection, experiment_id)

    def end_experiment(self, experiment_id: int, status: FinalStatus, stop_reason: str | None = None) -> None:
        """Closes it. Starts that were not needed stay ``planned``.

        Raises:
            StoreError: there is no such experiment, or it has ended already.
        """
        with self._transaction() as connection:
            cursor = connection.execute(
                "UPDATE experiments SET status = ?, stop_reason = ?, ended_at = ?"
                " WHERE id = ? AND status IN ('planned', 'running')",
                (status, storable_text(stop_reason), utc_now(), experiment_id),
            )
            if cursor.rowcount == 0:
                raise _ended_or_missing(connection, experiment_id)

    # ---- starts

    def begin_start(self, start_id: int, trial_id: int) -> None:
        """Ties a planned start to the engine start that was made for it.

        Raises:
            StoreError: there is no such start or trial, the start is not ``planned``, or the trial is of other bytes.
        """
        with self._transaction() as connection:
            status, digest, _ = _start_row(connection, start_id)
            if status != "planned":
                raise StoreError(f"start {start_id} is {status}: only a planned one can begin")
            trial = connection.execute("SELECT digest FROM trials WHERE id = ?", (trial_id,)).fetchone()
            if trial is None or trial[0] != digest:
                found = "is not in the record" if trial is None else f"is of {trial[0]}"
                raise StoreError(f"start {start_id} is planned for {digest}, but trial {trial_id} {found}")
            connection.execute(
                "UPDATE experiment_starts SET status = 'running', trial_id = ? WHERE id = ?", (trial_id, start_id)
            )

    def end_start(
        self, start_id: int, status: EndedStartStatus, reasons: Sequence[str] = (), flags: Sequence[str] = ()
    ) -> None:
        """Closes a start; one that failed before its engine was started may still be ``planned``.

        One that was ``ok`` can be set aside later, when its block loses another start.

        Args:
            status: ``ok`` only when its trial is.
            reasons: why not ``ok``. flags: what a reader should see all the same.

        Raises:
            StoreError: there is no such start, it has ended already, or ``ok`` was claimed for a trial that is not.
        """
        with self._transaction() as connection:
            before, _, trial_status = _start_row(connection, start_id)
            is_second_thought = (before, status) == ("ok", "set-aside")
            if before not in ("planned", "running") and not is_second_thought:
                raise StoreError(f"start {start_id} has ended already: it is {before}")
            if status == "ok" and trial_status != "ok":
                raise StoreError(f"start {start_id} cannot be ok: its trial is {trial_status or 'not begun'}")
            connection.execute(
                "UPDATE experiment_starts SET status = ?, reasons = ?, flags = ? WHERE id = ?",
                (status, to_json(list(reasons)), to_json(list(flags)), start_id),
            )

    def repeat_start(self, start_id: int) -> int:
        """Plans a start that was set aside or failed once more, at the same place.

        Returns:
            The new start's id.

        Raises:
            StoreError: there is no such start, it is planned, running or ok, or it is repeated already.
        """
        with self._transaction() as connection:
            status, digest, _ = _start_row(connection, start_id)
            if status not in ("set-aside", "failed"):
                raise StoreError(f"start {start_id} is {status}: only one that was set aside or failed is repeated")
            experiment_id, *place, attempt = connection.execute(
                "SELECT experiment_id, i, block, position, arm, attempt FROM experiment_starts WHERE id = ?",
                (start_id,),
            ).fetchone()
            return _insert_start(connection, experiment_id, PlannedStart(*place), digest, attempt + 1)

    def abandon_running_starts(self, experiment_id: int, reason: str) -> tuple[int, ...]:
        """Fails the starts that a killed controller left ``running``, with their trials; call it only under the
        target's lease.

        Returns:
            Their ids; ``repeat_start`` plans one once more.
        """
        with self._transaction() as connection:
            connection.execute(
                "UPDATE trials SET status = 'failed', reasons = ?, ended_at = ? WHERE status = 'running' AND id IN"
                " (SELECT trial_id FROM experiment_starts WHERE experiment_id = ? AND status = 'running')",
                (to_json([reason]), utc_now(), experiment_id),
            )
            rows = connection.execute(
                "UPDATE experiment_starts SET status = 'failed', reasons = ?"
                " WHERE experiment_id = ? AND status = 'running' RETURNING id",
                (to_json([reason]), experiment_id),
            ).fetchall()
        return tuple(sorted(start_id for (start_id,) in rows))

    # ---- reading

    def _records(self, condition: str, params: Sequence[object]) -> list[ExperimentRecord]:
        experiments = self._rows(
            "SELECT id, plan, status, started_at, ended_at, stop_reason, NULL AS starts FROM experiments"
            f" WHERE {condition} ORDER BY id DESC",
            params,
        )
        rows = self._rows(
            "SELECT experiment_id, id, i, block, position, arm, attempt, status, trial_id, reasons, flags"
            f" FROM experiment_starts WHERE experiment_id IN (SELECT id FROM experiments WHERE {condition})"
            " ORDER BY experiment_id, i, attempt",
            params,
        )
        starts = {key: tuple(_starts(group)) for key, group in groupby(rows, key=lambda row: row[0])}
        return [
            replace(ExperimentRecord(*row), plan=plan_from_json(row[1]), starts=starts.get(row[0], ()))
            for row in experiments
        ]


def _plan_row(plan: Plan) -> dict[str, object]:
    return {
        "target": plan.target,
        "host": plan.host,
        "workload": plan.workload,
        "status": "planned",
        "hypothesis": storable_text(plan.hypothesis),
        "seed": plan.seed,
        "metric": plan.metric,
        "primary_concurrency": plan.primary_concurrency,
        "margin": plan.margin,
        "is_aa": int(plan.is_aa),
        "plan": plan_to_json(plan),
        "created_at": utc_now(),
        "orch_version": VERSION,
    }


def _insert_start(
    connection: sqlite3.Connection, experiment_id: int, start: PlannedStart, digest: str, attempt: int
) -> int:
    row = {
        "experiment_id": experiment_id,
        "i": start.index,
        "block": start.block,
        "position": start.position,
        "arm": start.arm,
        "digest": digest,
        "attempt": attempt,
        "status": "planned",
        "reasons": "[]",
        "flags": "[]",
    }
    return insert_row(connection, "experiment_starts", row)


def _start_row(connection: sqlite3.Connection, start_id: int) -> tuple[str, str, str | None]:
    """Status, digest, and the status of its trial."""
    row = connection.execute(
        "SELECT starts.status, starts.digest, trials.status FROM experiment_starts AS starts"
        " LEFT JOIN trials ON trials.id = trial_id WHERE starts.id = ?",
        (start_id,),
    ).fetchone()
    if row is None:
        raise StoreError(f"there is no start {start_id} of an experiment in the record")
    status, digest, trial_status = row
    return status, digest, trial_status


def _starts(rows: Iterator[tuple[Any, ...]]) -> Iterator[StartRecord]:
    for _, start_id, i, block, position, arm, attempt, status, trial_id, reasons, flags in rows:
        planned = PlannedStart(i, block, position, arm)
        yield StartRecord(
            start_id, planned, attempt, status, trial_id, texts_from_json(reasons), texts_from_json(flags)
        )


def _no_experiment(experiment_id: int) -> StoreError:
    return StoreError(
        f"there is no experiment {experiment_id} in the record", next_step="`orch history` lists those that there are"
    )


def _ended_or_missing(connection: sqlite3.Connection, experiment_id: int) -> StoreError:
    row = connection.execute("SELECT status FROM experiments WHERE id = ?", (experiment_id,)).fetchone()
    if row is None:
        return _no_experiment(experiment_id)
    return StoreError(
        f"experiment {experiment_id} has ended: it is {row[0]}", next_step="`orch history` shows what came of it"
    )
