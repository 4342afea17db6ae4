"""The shape of what is known of a kind of engine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from orchestrator.records import EngineKind

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Place:
    """A value in a JSON answer: path of the GET, then names and indexes from the outside to the inside."""

    path: str
    keys: tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Label:
    """A value that is told as a label of a metric at ``/metrics``."""

    metric: str
    name: str


@dataclass(frozen=True, slots=True)
class PoolLabels:
    """A KV pool that is told as labels of a metric.

    Attributes:
        n_blocks, tokens_per_block: labels whose product is the size in tokens. n_tokens: label that tells it at once.
    """

    metric: str
    n_blocks: str
    tokens_per_block: str
    n_tokens: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineKnowledge:
    """What is known of one kind. Of several names of one thing (versions differ), the first that is there counts.

    Attributes:
        ready_path, loaded_path, cache_flush_path: what an inventory that names the kind need not say.
        early_paths: answer 200 before the engine can serve, so none of them may be the ready path.
        distributions: of Python, whose installed version is the engine's, where it does not tell itself.
        version, model: where the engine tells its own version, and the name under which it serves the model.
        arguments: where it tells what it made of its arguments. Only those that do not change from start to start by
            themselves (as a random seed or a size that depends on free memory does), and none that may be a secret.
        pool: where it tells the size of its KV pool in tokens, when it has no metrics.
        metrics_option: of its command line, without which it has no ``/metrics``.
        preemptions: counters of requests that it took back from the batch for want of KV pages.
        kv_pools: size of the KV pool in the engine's own unit; kv_pools_in_tokens: those of them that are in tokens.
        prefix_hits: counters of prompt tokens that came out of the prefix cache.
        prefix_queries: of prompt tokens that were looked up there; each entry is the sum of its names.
        refuses: why no client here can make a load of it.
    """

    kind: EngineKind
    ready_path: str = "/health"
    loaded_path: str | None = None
    cache_flush_path: str | None = None
    early_paths: tuple[str, ...] = ()
    distributions: tuple[str, ...] = ()
    version: Place | None = None
    model: Place | None = Place("/v1/models", ("data", 0, "id"))
    arguments: Mapping[str, Place | Label] = field(default_factory=dict)
    pool: Place | None = None
    metrics_option: str | None = None
    preemptions: tuple[str, ...] = ()
    kv_pools: tuple[str, ...] = ()
    kv_pools_in_tokens: tuple[str, ...] = ()
    pool_labels: PoolLabels | None = None
    prefix_hits: tuple[str, ...] = ()
    prefix_queries: tuple[tuple[str, ...], ...] = ()
    refuses: str | None = None

    @property
    def defaults(self) -> dict[str, str]:
        """Keys of the inventory that the kind answers, where it does."""
        keys = ("ready_path", "loaded_path", "cache_flush_path")
        return {key: value for key in keys if (value := getattr(self, key)) is not None}

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Every metric that is looked for."""
        labels = (self.pool_labels.metric,) if self.pool_labels else ()
        sums = tuple(name for names in self.prefix_queries for name in names)
        return tuple(dict.fromkeys((*self.preemptions, *self.kv_pools, *labels, *self.prefix_hits, *sums)))


def alternatives(of_kinds: Iterable[tuple[_T, ...]]) -> tuple[_T, ...]:
    """The names of all kinds, one kind after the other."""
    return tuple(name for names in of_kinds for name in names)
