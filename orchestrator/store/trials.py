"""Trials: one start of the engine, its environment and proof, and the loads made inside it.

Requests of a load go in one bulk insert, the client's raw result is kept compressed beside them. A value that was not
measured is NULL; a number that is not finite is refused, because SQLite would turn NaN into NULL without a word.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from orchestrator.errors import StoreError
from orchestrator.records import (
    AutotuneWinner,
    Environment,
    LoadResult,
    RequestRecord,
    Service,
    TritonKernel,
    Workload,
)
from orchestrator.store.database import Database, utc_now
from orchestrator.store.encoding import (
    check_finite,
    kernels_from_json,
    pack_floats,
    records_to_json,
    storable_text,
    texts_from_json,
    to_json,
    unpack_floats,
    winners_from_json,
)

TrialStatus = Literal["running", "ok", "contaminated", "failed"]

INSERT_REQUEST = (
    "INSERT INTO requests (load_id, i, sent_s, first_chunk_s, last_chunk_s, n_input_tokens, n_output_tokens, n_chunks,"
    " itl_ms, error, text_digest) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


@dataclass(frozen=True, slots=True)
class RecordedTrial:
    """What is on record of an engine start that may still be up.

    Attributes:
        workload: as it was asked for. nonce: of the lease under which it was begun.
        pid, start_ticks: of the engine's leader. All below are None before it was proved what it loaded.
        loaded_digest, ready_after_s, facts: as in ``Service``.
    """

    id: int
    variant: str
    digest: str
    status: TrialStatus
    started_at: str
    workload: Workload
    nonce: str | None
    pid: int | None
    start_ticks: int | None
    loaded_digest: str | None
    ready_after_s: float | None
    facts: Mapping[str, str | int | float | None] | None


class Trials(Database):
    """Engine starts and what was measured in them."""

    def record_environment(self, environment: Environment) -> int:
        """Keeps a set of facts, each set once.

        Returns:
            Its id; the same for the same facts.
        """
        facts = to_json(dict(environment.facts))
        digest = "sha256:" + hashlib.sha256(facts.encode()).hexdigest()
        with self._transaction() as connection:
            connection.execute(
                "INSERT INTO environments (digest, recorded_at, facts) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
                (digest, utc_now(), facts),
            )
            row = connection.execute("SELECT id FROM environments WHERE digest = ?", (digest,)).fetchone()
        return int(row[0])

    def begin_trial(
        self,
        *,
        host: str,
        target: str,
        variant: str,
        digest: str,
        workload: Workload,
        deployment_id: int | None = None,
        digest_before: str | None = None,
        started_at: str | None = None,
    ) -> int:
        """Opens a trial, ``running`` until ``end_trial``.

        Args:
            variant: its name, ``baseline``, or what the caller calls unknown bytes.
            digest: of what is deployed. digest_before: of the host's file just before the start.

        Returns:
            The trial's id.
        """
        with self._transaction() as connection:
            cursor = connection.execute(
                "INSERT INTO trials (host, target, variant, digest, status, started_at, workload_name, deployment_id,"
                " digest_before, reasons, workload) VALUES (?, ?, ?, ?, 'running', ?, ?, ?, ?, '[]', ?)",
                (
                    host,
                    target,
                    variant,
                    digest,
                    started_at or utc_now(),
                    workload.name,
                    deployment_id,
                    digest_before,
                    to_json(_as_recorded(workload)),
                ),
            )
            return int(cursor.lastrowid or 0)

    def record_service(self, trial_id: int, service: Service) -> None:
        """Adds the ready engine to its trial: what it loaded, where it ran, under which facts.

        Raises:
            StoreError: there is no such trial.
        """
        environment_id = self.record_environment(service.environment)
        process = service.process
        with self._transaction() as connection:
            cursor = connection.execute(
                "UPDATE trials SET environment_id = ?, loaded_digest = ?, engine = ?, engine_started_at = ?, pid = ?,"
                " start_ticks = ?, ready_after_s = ?, base_url = ?, log_path = ?, proof = ? WHERE id = ?",
                (
                    environment_id,
                    service.proof.digest,
                    process.engine,
                    process.started_at,
                    process.pid,
                    process.start_ticks,
                    service.ready_after_s,
                    service.base_url,
                    process.log_path,
                    to_json(asdict(service.proof)),
                    trial_id,
                ),
            )
            _check_found(cursor, trial_id)

    def end_trial(
        self,
        trial_id: int,
        status: TrialStatus,
        *,
        reasons: Sequence[str] = (),
        digest_after: str | None = None,
        triton_kernels: Sequence[TritonKernel] | None = None,
        autotune_winners: Sequence[AutotuneWinner] | None = None,
        ended_at: str | None = None,
    ) -> None:
        """Closes a trial.

        Args:
            status: ``ok`` only when the engine was proved to run the trial's digest.
            reasons: why not ``ok``. digest_after: of the host's file after the loads.
            triton_kernels: what the engine's Triton cache holds; None when nobody looked.
            autotune_winners: what its log says that the autotuner chose; None when it says nothing.

        Raises:
            StoreError: there is no such trial, or ``ok`` was claimed without the proof.
        """
        kernels = None if triton_kernels is None else records_to_json(triton_kernels)
        winners = None if autotune_winners is None else records_to_json(autotune_winners)
        with self._transaction() as connection:
            if status == "ok":
                _check_proved(connection, trial_id)
            cursor = connection.execute(
                "UPDATE trials SET status = ?, reasons = ?, digest_after = ?, triton_kernels = ?, autotune_winners = ?,"
                " ended_at = ? WHERE id = ?",
                (status, to_json(list(reasons)), digest_after, kernels, winners, ended_at or utc_now(), trial_id),
            )
            _check_found(cursor, trial_id)

    def trial_host(self, trial_id: int) -> str:
        """Where a trial was made; of a cluster the node."""
        row = self._row("SELECT host FROM trials WHERE id = ?", (trial_id,))
        return "" if row is None else str(row[0])

    def trial(self, trial_id: int) -> RecordedTrial:
        """An engine start as it is on record.

        Raises:
            StoreError: there is no such trial.
        """
        row = self._row(
            "SELECT trials.id, trials.variant, trials.digest, trials.status, trials.started_at, workload, nonce, pid,"
            " start_ticks, loaded_digest, ready_after_s, facts FROM trials"
            " LEFT JOIN deployments ON deployments.id = deployment_id"
            " LEFT JOIN environments ON environments.id = environment_id WHERE trials.id = ?",
            (trial_id,),
        )
        if row is None:
            raise StoreError(f"there is no trial {trial_id} in the record")
        facts = None if row[-1] is None else json.loads(row[-1])
        return replace(RecordedTrial(*row), workload=Workload(**json.loads(row[5])), facts=facts)

    def fail_running_trials(self, target: str, reason: str, host: str | None = None) -> int:
        """Closes the trials that a killed controller left ``running``; call it only under the target's lease.

        Those of a running start of an experiment stay: ``orch resume`` may take them over, and else closes them.

        Args:
            host: those on this host only.

        Returns:
            How many there were.
        """
        with self._transaction() as connection:
            return connection.execute(
                "UPDATE trials SET status = 'failed', reasons = ?1, ended_at = ?2"
                " WHERE target = ?3 AND status = 'running' AND (?4 IS NULL OR host = ?4)"
                " AND id NOT IN (SELECT trial_id FROM experiment_starts WHERE status = 'running')",
                (to_json([reason]), utc_now(), target, host),
            ).rowcount

    def record_load(self, trial_id: int, load: LoadResult) -> int:
        """Keeps one load with its requests, metrics and raw result: all of it or nothing.

        Returns:
            The load's id.

        Raises:
            StoreError: there is no such trial, a metric is not finite, or two requests have one number.
        """
        check_finite(load.metrics, f"load of trial {trial_id} at concurrency {load.concurrency_cap}")
        compressed = None if load.raw is None else zlib.compress(load.raw)  # before the lock is taken
        with self._transaction() as connection:
            load_id = _insert_load(connection, trial_id, load)
            if load.raw is not None:
                connection.execute("INSERT INTO raw_results VALUES (?, ?, ?)", (load_id, len(load.raw), compressed))
            connection.executemany(
                "INSERT INTO metrics (load_id, name, value) VALUES (?, ?, ?)",
                [(load_id, name, value) for name, value in load.metrics.items()],
            )
            connection.executemany(INSERT_REQUEST, _request_rows(load_id, load.requests))
        return load_id

    def load_ids(self, trial_id: int) -> tuple[int, ...]:
        """The loads of a trial, in the order in which they were recorded."""
        return tuple(i for (i,) in self._rows("SELECT id FROM loads WHERE trial_id = ? ORDER BY id", (trial_id,)))

    def load(self, load_id: int) -> LoadResult:
        """A load as it was recorded, with its raw result and every request.

        Raises:
            StoreError: there is no such load.
        """
        row = self._row(
            "SELECT concurrency_cap, status, reasons, client, client_version, argv, started_at, ended_at, content_zlib"
            " FROM loads LEFT JOIN raw_results ON load_id = id WHERE id = ?",
            (load_id,),
        )
        if row is None:
            raise StoreError(f"there is no load {load_id} in the record")
        cap, status, reasons, client, client_version, argv, started_at, ended_at, compressed = row
        return LoadResult(
            concurrency_cap=cap,
            status=status,
            reasons=texts_from_json(reasons),
            metrics=dict(self._rows("SELECT name, value FROM metrics WHERE load_id = ?", (load_id,))),
            requests=self._requests(load_id),
            client=client,
            client_version=client_version,
            argv=texts_from_json(argv),
            raw=None if compressed is None else zlib.decompress(compressed),
            started_at=started_at,
            ended_at=ended_at,
        )

    def triton_kernels(self, trial_id: int) -> tuple[TritonKernel, ...] | None:
        """The compiled kernels that were found in the trial's Triton cache; None when nobody looked."""
        row = self._row("SELECT triton_kernels FROM trials WHERE id = ?", (trial_id,))
        return None if row is None or row[0] is None else kernels_from_json(row[0])

    def autotune_winners(self, trial_id: int) -> tuple[AutotuneWinner, ...] | None:
        """What the autotuner chose in a trial, as the engine's log had it; None where it told nothing."""
        row = self._row("SELECT autotune_winners FROM trials WHERE id = ?", (trial_id,))
        return None if row is None or row[0] is None else winners_from_json(row[0])

    def _requests(self, load_id: int) -> tuple[RequestRecord, ...]:
        rows = self._rows(
            "SELECT i, sent_s, first_chunk_s, last_chunk_s, n_input_tokens, n_output_tokens, n_chunks, itl_ms, error,"
            " text_digest FROM requests WHERE load_id = ? ORDER BY i",
            (load_id,),
        )
        return tuple(_request(*row) for row in rows)


_NOT_OF_EVERY_CLIENT = ("client_command", "client_env", "tokenizer")


def _as_recorded(workload: Workload) -> dict[str, object]:
    """A workload's fields without the empty ones that only some clients have: those that older versions knew."""
    return {name: value for name, value in asdict(workload).items() if value or name not in _NOT_OF_EVERY_CLIENT}


def _request(*columns: Any) -> RequestRecord:
    i, sent_s, first_s, last_s, n_input, n_output, n_chunks, packed, error, text_digest = columns
    return RequestRecord(
        i, sent_s, first_s, last_s, n_input, n_output, n_chunks, unpack_floats(packed), error, text_digest
    )


def _insert_load(connection: sqlite3.Connection, trial_id: int, load: LoadResult) -> int:
    if connection.execute("SELECT 1 FROM trials WHERE id = ?", (trial_id,)).fetchone() is None:
        raise StoreError(f"there is no trial {trial_id} in the record")
    cursor = connection.execute(
        "INSERT INTO loads (trial_id, concurrency_cap, status, client, client_version, started_at, ended_at, reasons,"
        " argv) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            trial_id,
            load.concurrency_cap,
            load.status,
            load.client,
            load.client_version,
            load.started_at,
            load.ended_at,
            to_json(load.reasons),
            to_json(load.argv),
        ),
    )
    return int(cursor.lastrowid or 0)


def _request_rows(load_id: int, requests: Sequence[RequestRecord]) -> Iterator[tuple[object, ...]]:
    for r in requests:
        yield (
            load_id,
            r.i,
            r.sent_s,
            r.first_chunk_s,
            r.last_chunk_s,
            r.n_input_tokens,
            r.n_output_tokens,
            r.n_chunks,
            pack_floats(r.itl_ms),
            storable_text(r.error),
            r.text_digest,
        )


def _check_found(cursor: sqlite3.Cursor, trial_id: int) -> None:
    if cursor.rowcount == 0:
        raise StoreError(f"there is no trial {trial_id} in the record")


def _check_proved(connection: sqlite3.Connection, trial_id: int) -> None:
    row = connection.execute("SELECT digest, loaded_digest FROM trials WHERE id = ?", (trial_id,)).fetchone()
    if row is not None and row[0] != row[1]:
        raise StoreError(
            f"trial {trial_id} cannot be ok: deployed was {row[0]}, the engine was proved to run {row[1] or 'nothing'}"
        )
