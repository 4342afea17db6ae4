"""``Store``: results.db, the record of everything that was pulled, deployed, looked at and measured.

Takes the records of the other stations and gives them back. Owns SQLite: nobody else imports ``sqlite3`` or
``sqlite_utils``. Judges nothing (that is ``stats``) and touches no host.

    database.py      opening, transactions, and what SQLite's errors mean in one line
    migrations.py    the schema, as numbered steps; the fifth is in check_tables.py, the sixth in
                     experiment_tables.py
    files.py         artifacts, manifests, baselines, variants
    observations.py  every look at the host's files
    deployments.py   intents and outcomes of pushes
    trials.py        environments, engine starts, loads, requests, metrics
    compiled_kernels.py  what Triton compiled for an engine start
    checks.py        verdicts of `orch check`
    reading.py       what ``compare`` asks for
    experiments.py   plans of experiments and their starts
    analyses.py      what experiments showed: analyses, verdicts, history, values
    watching.py      telemetry of loads, events of experiments
    query.py         one read-only SQL statement for a person
"""

from __future__ import annotations

from orchestrator.store.analyses import Analyses, HistoryRow, RecordedAnalysis
from orchestrator.store.checks import CheckKind, Checks, KnownBinary, RecordedCheck
from orchestrator.store.compiled_kernels import CompiledKernels
from orchestrator.store.database import BUSY_TIMEOUT_S
from orchestrator.store.deployments import Deployments, DeploymentStatus, OpenDeployment
from orchestrator.store.experiments import EndedStartStatus, Experiments, FinalStatus
from orchestrator.store.files import Files
from orchestrator.store.migrations import SCHEMA_VERSION
from orchestrator.store.observations import LookSource, Observations
from orchestrator.store.query import Params, Value, run_query
from orchestrator.store.reading import Reading, TrialSummary
from orchestrator.store.trials import RecordedTrial, Trials, TrialStatus
from orchestrator.store.watching import MOMENTS, Moment, RecordedEvent, Watching

__all__ = [
    "BUSY_TIMEOUT_S",
    "MOMENTS",
    "SCHEMA_VERSION",
    "CheckKind",
    "DeploymentStatus",
    "EndedStartStatus",
    "FinalStatus",
    "HistoryRow",
    "KnownBinary",
    "LookSource",
    "Moment",
    "OpenDeployment",
    "RecordedAnalysis",
    "RecordedCheck",
    "RecordedEvent",
    "RecordedTrial",
    "Store",
    "TrialStatus",
    "TrialSummary",
    "Value",
]


class Store(
    Files, Observations, Deployments, Trials, CompiledKernels, Checks, Reading, Experiments, Analyses, Watching
):
    """An open results.db; a context manager that closes it.

    ``Store.open`` makes or upgrades the file, ``Store.open_read_only`` never writes. Every method that records is one
    transaction: it is kept whole or not at all, and two processes may record at once. Used by one thread.
    """

    def query(self, sql: str, params: Params = ()) -> tuple[tuple[str, ...], list[tuple[Value, ...]]]:
        """Runs one statement that only reads, on a connection of its own.

        Args:
            sql: one ``SELECT`` (or ``WITH``, ``VALUES``, ``EXPLAIN``) with ``?`` or ``:name`` for values.
            params: the values.

        Returns:
            The names of the columns, and the rows.

        Raises:
            StoreError: the statement would change something, or SQLite does not understand it.
        """
        return run_query(self.path, sql, params)
