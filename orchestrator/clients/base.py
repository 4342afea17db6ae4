"""``LoadClient``: what ``bench`` must know of a load client, and nothing more. One adapter file a client.

An adapter is pure: it says which files and which command make a load, and reads what the client wrote. It touches no
host; ``bench`` does. Every adapter fails closed: what it cannot trust has no metrics.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from orchestrator.engines import knowledge_of
from orchestrator.errors import LoadError
from orchestrator.records import Engine, LoadProgress, LoadStatus, RequestRecord, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRun:
    """One load, ready to be started on the host.

    Attributes:
        argv: run without a shell. env: added to the login's environment.
        files: content by absolute path on the host, written before the start.
        result_path: where the client leaves its result; progress_path: where it says how far it is, if it can.
        deadline_s: a client that still runs so long after its start is stopped. Later than the client's own.
        version: of the client, as it must be equal between loads that are compared, unless its result tells it.
    """

    argv: tuple[str, ...]
    result_path: str
    deadline_s: float
    version: str
    progress_path: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ExitEvidence:
    """How a client's process ended.

    Attributes:
        how: ``exited`` by itself; ``deadline`` when it was stopped for that; ``vanished`` when it is gone without
            having left an exit code (killed, host restarted).
        exit_code: None when unknown.
        log_tail: last lines of what it wrote to standard output and error.
    """

    how: Literal["exited", "deadline", "vanished"]
    exit_code: int | None
    log_tail: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ParsedLoad:
    """What a result file says. ``metrics`` is empty unless ``status`` is ok; times are None when it names none.

    Attributes:
        version: that the client told of itself; None: that of its ``ClientRun``.
        argv: of the measured run, where ``ClientRun.argv`` is not the client itself.
    """

    status: LoadStatus
    reasons: tuple[str, ...]
    metrics: Mapping[str, float | None]
    requests: tuple[RequestRecord, ...]
    started_at: str | None
    ended_at: str | None
    version: str | None = None
    argv: tuple[str, ...] | None = None


def refuse_unfit(workload: Workload, engine: Engine) -> None:
    """For every adapter's ``prepare``: what none of them could do.

    Raises:
        LoadError: the engine takes no such load.
    """
    if workload.cache_policy == "flush" and engine.cache_flush_path is None:
        raise LoadError(
            f"workload {workload.name} flushes the prefix cache, and engine {engine.name} has no cache_flush_path",
            next_step="set cache_flush_path of the engine, or cache_policy: keep",
        )
    why = knowledge_of(engine.kind).refuses
    if why is not None:
        raise LoadError(
            f"engine {engine.name} is {engine.kind}: {why}, so orch has no client for it",
            next_step="serve the model with SGLang, vLLM or llama-server; a server that takes both is `kind: other`",
        )


class LoadClient(Protocol):
    """One load client, by the name that ``Workload.client`` uses."""

    @property
    def name(self) -> str:
        """Its name in the inventory and in the store."""
        ...

    def prepare(self, workload: Workload, engine: Engine, concurrency: int, run_dir: str) -> ClientRun:
        """Files and command of one load; the same arguments always give the same.

        Args:
            run_dir: absolute folder on the host, of this load alone.

        Raises:
            LoadError: this client cannot make that load.
        """
        ...

    def parse(self, raw: bytes | None, evidence: ExitEvidence, workload: Workload, concurrency: int) -> ParsedLoad:
        """Reads the client's result file, fail closed.

        Args:
            raw: the file as it was; None when there is none.
        """
        ...

    def parse_progress(self, raw: bytes, concurrency: int) -> LoadProgress | None:
        """Reads the client's progress file; None when it cannot be read."""
        ...
