"""Station: a load and its engine → ``TelemetrySample``… and ``EngineCounters``: what is watched during a load.

It writes into ``telemetry/`` of the load's own folder on the host and nowhere else, and touches neither load nor
engine. Like the load, the watching program is started detached and is only asked here; a lost line costs nothing, and
it ends by itself when the load's client ends. Of an engine that spans several nodes every node is watched: on the
others, where no client runs, until that node's part of the engine ends. In ``run_dir/telemetry``, made only where there
is an ``nvidia-smi``:

    program.json  what the engine's Python runs, with its request
    samples       JSON lines, as ``host/telemetry.py`` describes them
    stop          made here, to end it
    log           what went wrong with the program itself
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from orchestrator.clients import detached
from orchestrator.connection import Remote
from orchestrator.connection.slurm_group import node_of
from orchestrator.designs import EngineCounters, TelemetrySample
from orchestrator.engines import EngineKnowledge, PoolLabels, knowledge_of
from orchestrator.errors import HostUnreachableError, LineLostError, OrchError, RemoteTimeoutError
from orchestrator.host import BOOTSTRAP, bundle, engine_state_dir, run_program
from orchestrator.records import Engine

__all__ = ["collect", "engine_counters", "parse", "parse_counters", "remove_aside", "start", "stop"]

INTERVAL_S = 1.0
DEADLINE_S = 6 * 3600.0
"""Only for a load whose client never ends: that one has its own, shorter deadline."""
LINE_PATIENCE_S = 120.0
RETRY_S = 2.0
READ_TIMEOUT_S = 300.0
COUNTERS_TIMEOUT_S = 30.0
MEBIBYTE = 1 << 20
MAX_COUNT = 1 << 62

_T = TypeVar("_T")
_LOST = (LineLostError, HostUnreachableError, RemoteTimeoutError)

_PREPARE = (
    detached.CLAIM
    + r"""
command -v nvidia-smi >/dev/null 2>&1 || exit 3
mkdir -p -- "$1/telemetry"
"""
)
_STOP = r"""
# $1 folder of a load. The program looks for the file; nobody has to be signalled.
[ ! -d "$1/telemetry" ] || touch -- "$1/telemetry/stop"
"""
_COLLECT = r"""
# $1 folder of a load
[ -d "$1/telemetry" ] || exit 3
touch -- "$1/telemetry/stop" || :  # on a full disk it still ends with the load
cat -- "$1/telemetry/samples" || :  # it may have failed to start
"""
_REMOVE = r"""
# $1 folder that was made beside no load. The program ends with it.
rm -rf -- "$1/telemetry" && { [ ! -d "$1" ] || rmdir -- "$1"; }
"""
_RUN = 'exec "$1" -I -S -c "$2" <"$3"'
_NO_SMI = 3

THROTTLE_BITS = {
    0x04: "sw_power_cap",
    0x08: "hw_slowdown",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "hw_power_brake",
}
"""Of NVML's mask of reasons for lower clocks. Idle, chosen application clocks and display clocks do not matter here."""
_THROTTLE_COLUMNS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_POOL = "pool"


def start(remote: Remote, engine: Engine, *, run_dir: str, interval_s: float = INTERVAL_S) -> None:
    """Starts watching the GPUs for the load that is about to be made in ``run_dir``; safe to repeat.

    Call it just before ``bench.run_load``: an earlier load in ``run_dir`` is put aside as that would do. On a host
    without nvidia-smi, or while another load runs there, nothing is started, and that is no error.

    Args:
        run_dir: absolute folder of the load on the host, or on the head of a group; made. The other nodes' lie at the
            same place of their own scratch folders.

    Raises:
        LineLostError, HostUnreachableError, RemoteTimeoutError: no answer for two minutes.
        HostWriteError, RemoteCommandError: the host could not write the program, or not start it. All nodes were tried.
    """
    errors: list[OrchError] = []
    for i, place in enumerate(_places(remote, run_dir)):
        try:
            _start_on(place.machine, engine, place.folder, interval_s, is_aside=i > 0)
        except OrchError as exc:
            errors.append(exc)
    if errors:
        raise errors[0]


@dataclass(frozen=True, slots=True)
class _Place:
    """Where GPUs are watched for a load; ``node`` is empty on a single host."""

    machine: Remote
    node: str
    folder: str


def _places(remote: Remote, run_dir: str) -> Iterator[_Place]:
    """The machine of the load first."""
    head, *others = remote.members
    yield _Place(head, node_of(head) if others else "", run_dir)
    for other in others:
        yield _Place(other, node_of(other), other.scratch_dir() + run_dir.removeprefix(head.scratch_dir()))


def _start_on(remote: Remote, engine: Engine, run_dir: str, interval_s: float, *, is_aside: bool) -> None:
    until_s = time.monotonic() + LINE_PATIENCE_S
    if _patiently(lambda: remote.run(_PREPARE, [run_dir]), until_s).exit_code:
        return
    request = {
        "run_dir": run_dir,
        "samples_path": f"{run_dir}/telemetry/samples",
        "state_dir": engine_state_dir(_patiently(remote.scratch_dir, until_s), engine),
        "visible": engine.env.get("CUDA_VISIBLE_DEVICES"),
        "is_aside": is_aside,
        "interval_s": interval_s,
        "deadline_s": DEADLINE_S,
    }
    program_path, log_path = f"{run_dir}/telemetry/program.json", f"{run_dir}/telemetry/log"
    content = bundle("telemetry", request).encode("ascii")
    _patiently(lambda: remote.write(program_path, content), until_s)
    argv = ["/bin/sh", "-c", _RUN, "orch-telemetry", engine.python, BOOTSTRAP, program_path]
    _patiently(lambda: remote.spawn(argv, log_path=log_path, cwd=run_dir), until_s)


def collect(remote: Remote, *, run_dir: str) -> tuple[TelemetrySample, ...] | None:
    """What was seen so far during the load in ``run_dir``, and ends the watching; safe to repeat.

    Call it when the load has ended, before its folder is removed.

    Returns:
        The samples of the engine's GPUs by time; empty when there is a GPU and nothing could be seen of it; None when
        the host has none, or nobody watched. A node that cannot be asked has none; the head must answer.

    Raises:
        LineLostError, HostUnreachableError, RemoteTimeoutError: no answer for two minutes.
    """
    head, *others = _places(remote, run_dir)
    seen = [_collect_on(head)]
    for place in others:
        with contextlib.suppress(OrchError):
            seen.append(_collect_on(place))
    known = [samples for samples in seen if samples is not None]
    return tuple(sorted(itertools.chain(*known), key=lambda one: (one.at_s, one.node, one.gpu))) if known else None


def _collect_on(place: _Place) -> tuple[TelemetrySample, ...] | None:
    until_s = time.monotonic() + LINE_PATIENCE_S
    done = _patiently(lambda: place.machine.run(_COLLECT, [place.folder], timeout_s=READ_TIMEOUT_S), until_s)
    samples = None if done.exit_code == _NO_SMI else parse(done.text)
    return None if samples is None else tuple(replace(one, node=place.node) for one in samples)


def remove_aside(remote: Remote, *, run_dir: str) -> None:
    """Removes what a load left on the nodes that it was not made on; its own folder is ``bench.remove_load``'s."""
    for place in list(_places(remote, run_dir))[1:]:
        with contextlib.suppress(OrchError):
            place.machine.run(_REMOVE, [place.folder])


def stop(remote: Remote, *, run_dir: str) -> None:
    """Ends the watching of a load that is not to go on, within a second; safe to repeat, and where nobody watches.

    Raises:
        RemoteCommandError: the folder cannot be written.
    """
    head, *others = _places(remote, run_dir)
    for place in others:  # a node that is gone watches nothing
        with contextlib.suppress(OrchError):
            place.machine.run(_STOP, [place.folder])
    head.machine.check(_STOP, [head.folder], doing=f"end the telemetry of {run_dir}")


def engine_counters(remote: Remote, engine: Engine) -> EngineCounters:
    """What the engine tells at ``/metrics``, in one short look; None for what it does not tell.

    One of a known kind that has no metrics is asked for the size of its KV pool where that kind tells it.

    Raises:
        EngineError: the engine's Python cannot be run.
        RemoteCommandError: the look failed.
    """
    known, base_url = knowledge_of(engine.kind), engine.base_url.rstrip("/")
    pool = known.pool
    request = {
        "url": f"{base_url}/metrics",
        "names": list(known.metric_names),
        "asked": [] if pool is None else [{"name": _POOL, "url": base_url + pool.path, "keys": list(pool.keys)}],
    }
    doing = f"ask engine {engine.name} for its counters"
    answer = run_program(remote, engine, "engine_counters", request, doing=doing, timeout_s=COUNTERS_TIMEOUT_S)
    counters = parse_counters(answer["lines"] or (), known)
    told = answer["told"].get(_POOL)
    return replace(counters, kv_pool=told, kv_pool_tokens=told) if isinstance(told, int) else counters


def _patiently(ask: Callable[[], _T], until_s: float) -> _T:
    """Asks again when the line is lost, until the moment ``until_s`` of the monotonic clock."""
    while True:
        try:
            return ask()
        except _LOST:
            if time.monotonic() > until_s:
                raise
        time.sleep(RETRY_S)


# ---- reading samples


def parse(text: str) -> tuple[TelemetrySample, ...] | None:
    """The samples file of the host's program as samples; its last line may be cut.

    Kept are the GPUs that the engine was seen on; where it was seen on none (a container hides its processes), those
    of its CUDA_VISIBLE_DEVICES; without those, all.

    Returns:
        None when the host has no GPU.
    """
    header, *lines = list(_json_lines(text)) or [{"gpus": {}, "error": "the program did not start"}]
    if not header["gpus"] and header["error"] is None:
        return None
    rows = [line for line in lines if "row" in line]
    used = {int(line["row"][0]) for line in rows if line["own"]}
    can_tell = bool(used)  # the numbers that nvidia-smi gives are those of this host's processes
    wanted = used or _visible(header) or set(header["gpus"].values())
    columns = header.get("columns", [])
    return tuple(_sample(line, columns, can_tell) for line in rows if int(line["row"][0]) in wanted)


def _json_lines(text: str) -> Iterator[dict[str, Any]]:
    for line in text.splitlines():
        try:
            yield json.loads(line)
        except ValueError:  # the last one, while it is being written
            return


def _visible(header: Mapping[str, Any]) -> set[int]:
    """The GPUs that CUDA_VISIBLE_DEVICES names, by index or by the beginning of a uuid."""
    words = [word.strip() for word in (header.get("visible") or "").split(",") if word.strip()]
    by_uuid = header["gpus"]
    indexes = {int(word) for word in words if word.isdigit()} & set(by_uuid.values())
    return indexes | {gpu for uuid, gpu in by_uuid.items() for word in words if len(word) > 4 and uuid.startswith(word)}


def _sample(line: Mapping[str, Any], columns: Iterable[str], can_tell: bool) -> TelemetrySample:
    row = dict(zip(columns, line["row"], strict=True))
    used_mib = _number(row.get("memory.used"))
    throttle = next((row[name] for name in _THROTTLE_COLUMNS if name in row), "")
    reasons = throttle_reasons(throttle)
    foreign = None if line["pids"] is None or not can_tell else tuple(p for p in line["pids"] if p not in line["own"])
    unknown = [name for name, one in (("throttle_reasons", reasons), ("foreign_pids", foreign)) if one is None]
    return TelemetrySample(
        at_s=float(line["at_s"]),
        gpu=int(row["index"]),
        power_w=_number(row.get("power.draw")),
        sm_clock_mhz=_number(row.get("clocks.sm")),
        memory_clock_mhz=_number(row.get("clocks.mem")),
        temperature_c=_number(row.get("temperature.gpu")),
        memory_used_bytes=None if used_mib is None else int(used_mib * MEBIBYTE),
        utilization_pct=_number(row.get("utilization.gpu")),
        throttle_reasons=reasons or (),
        foreign_pids=foreign or (),
        unknown=tuple(unknown),
    )


def _number(value: str | None) -> float | None:
    """A value of nvidia-smi; None for its many words for "not known" (``[N/A]``, ``[Insufficient Permissions]`` …)."""
    try:
        number = float(value or "")
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def throttle_reasons(mask: str) -> tuple[str, ...] | None:
    """The names in a mask such as ``0x0000000000000024``; None where the driver gives none."""
    try:
        bits = int(mask, 16)
    except ValueError:
        return None
    return tuple(name for bit, name in THROTTLE_BITS.items() if bits & bit)


# ---- reading counters


def parse_counters(lines: Iterable[str], known: EngineKnowledge) -> EngineCounters:
    """The counters in lines of Prometheus text; several series of one name (data-parallel ranks) are added up."""
    sums: dict[str, float] = {}
    blocks: list[dict[str, float]] = []
    for line in lines:
        series, _, value = line.rstrip().rpartition(" ")
        name, _, labels = series.partition("{")
        if known.pool_labels and name == known.pool_labels.metric:
            blocks.append(_numbers(labels))
        elif (number := _number(value)) is not None:
            sums[name] = sums.get(name, 0.0) + number
    n_blocks, n_tokens = _pool(blocks, known.pool_labels)
    queries = (sum(sums[name] for name in names) for names in known.prefix_queries if sums.keys() >= set(names))
    return EngineCounters(
        n_preemptions=_count(_first(sums, known.preemptions)),
        kv_pool=_count(_first(sums, known.kv_pools) if n_blocks is None else n_blocks),
        kv_pool_tokens=_count(_first(sums, known.kv_pools_in_tokens) if n_tokens is None else n_tokens),
        n_prefix_hits=_count(_first(sums, known.prefix_hits)),
        n_prefix_queries=_count(next(queries, None)),
    )


def _numbers(labels: str) -> dict[str, float]:
    """The labels of a series that are numbers."""
    found = {name: _number(value) for name, value in _LABEL.findall(labels)}
    return {name: value for name, value in found.items() if value is not None}


def _pool(series: list[dict[str, float]], labels: PoolLabels | None) -> tuple[float | None, float | None]:
    """Blocks and tokens of a pool that is told in labels, over all ranks; a rank that does not tell makes it None."""
    if not series or labels is None:
        return None, None
    blocks, tokens = [], []
    for one in series:
        n_blocks, n_each = one.get(labels.n_blocks), one.get(labels.tokens_per_block)
        blocks.append(n_blocks)
        tokens.append(one.get(labels.n_tokens, None if n_blocks is None or n_each is None else n_blocks * n_each))
    return _sum(blocks), _sum(tokens)


def _sum(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _first(sums: Mapping[str, float], names: Iterable[str]) -> float | None:
    return next((sums[name] for name in names if name in sums), None)


def _count(value: float | None) -> int | None:
    """A whole number that a database can hold."""
    return None if value is None or abs(value) >= MAX_COUNT else round(value)
