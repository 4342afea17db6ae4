"""Counters of the engine and their Prometheus text. Written by the worker's thread, read by the server's."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

STEP_BUCKETS_S = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024)


class Histogram:
    """Counts by upper limit, with sum: Prometheus' histogram."""

    def __init__(self, limits: tuple[float, ...] = STEP_BUCKETS_S) -> None:
        self.limits = limits
        self.counts = [0] * (len(limits) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.limits, value)] += 1
        self.total += value

    def lines(self, name: str) -> list[str]:
        """The samples in text form: cumulative buckets, sum, count."""
        lines, so_far = [], 0
        for limit, count in zip((*self.limits, "+Inf"), self.counts, strict=True):
            so_far += count
            lines.append(f'{name}_bucket{{le="{limit}"}} {so_far}')
        return [*lines, f"{name}_sum {self.total!r}", f"{name}_count {so_far}"]


@dataclass
class EngineMetrics:
    """What the engine counts. Gauges are now; counters are since the start, without the warm-up."""

    kv_pages_total: int
    requests_running: int = 0
    requests_waiting: int = 0
    kv_pages_used: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    decode_rows: int = 0
    requests_cancelled: int = 0
    prefill_step_seconds: Histogram = field(default_factory=Histogram)
    decode_step_seconds: Histogram = field(default_factory=Histogram)

    def as_text(self) -> str:
        """Prometheus text format, version 0.0.4."""
        lines = []
        for name, kind, text, value in (
            ("requests_running", "gauge", "Sequences in the running batch.", self.requests_running),
            ("requests_waiting", "gauge", "Requests that wait for pages or room.", self.requests_waiting),
            ("kv_pages_used", "gauge", "KV pages handed out.", self.kv_pages_used),
            ("kv_pages", "gauge", "KV pages that can be handed out.", self.kv_pages_total),
            ("prompt_tokens_total", "counter", "Prompt tokens computed.", self.prompt_tokens),
            ("generation_tokens_total", "counter", "Output tokens made.", self.generation_tokens),
            ("decode_rows_total", "counter", "Sequences summed over decode steps.", self.decode_rows),
            ("requests_cancelled_total", "counter", "Requests whose client left.", self.requests_cancelled),
        ):
            lines += [f"# HELP engine_{name} {text}", f"# TYPE engine_{name} {kind}", f"engine_{name} {value}"]
        for name, text, histogram in (
            ("engine_prefill_step_seconds", "Time of a prefill step.", self.prefill_step_seconds),
            ("engine_decode_step_seconds", "Time of a decode step.", self.decode_step_seconds),
        ):
            lines += [f"# HELP {name} {text}", f"# TYPE {name} histogram", *histogram.lines(name)]
        return "\n".join(lines) + "\n"
