"""One registry for metrics: name, unit, direction, definition, format. Nobody else spells a metric's properties.

The definitions follow the field's words; where tools disagree, the definition says whose clock and which tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Direction = Literal["higher", "lower", "none"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One measured quantity of a load.

    Attributes:
        name: as in the store and in ``--json``; unit last, statistic after it (``ttft_ms_p50``).
        unit: as shown to a person.
        direction: which way is better; ``none`` for counts and facts.
        definition: one sentence, exact.
        decimals: digits after the point when shown.
    """

    name: str
    unit: str
    direction: Direction
    definition: str
    decimals: int

    def format(self, value: float | None) -> str:
        """The value for a table; an unmeasured one is a dash, never 0."""
        return "–" if value is None else f"{value:,.{self.decimals}f}"


MOST_PAIRS = 1000
"""No experiment has more; a larger number only says that it cannot be done."""


def needed_words(n_pairs: int) -> str:
    """How many pairs are needed, for a person: ``14``, or ``more than 1,000``."""
    return str(n_pairs) if n_pairs <= MOST_PAIRS else f"more than {MOST_PAIRS:,}"


def percent_words(ratio: float) -> str:
    """A share or a noise with two digits that matter: ``1.7 %`` for 0.0172, ``0.00012 %`` for 1.2e-6."""
    percent = 100 * ratio
    n_decimals = max(0, 1 - math.floor(math.log10(abs(percent)))) if percent else 0
    return f"{percent:.{n_decimals}f} %"


_LATENCIES = {
    "ttft_ms": "client clock, request sent to first chunk with content",
    "tpot_ms": "per request (e2el − ttft) ÷ (output tokens − 1); none below 2 tokens; unweighted over requests",
    "itl_ms": "single gaps between chunks with content, all requests pooled",
    "e2el_ms": "client clock, request sent to last chunk",
}
_STATISTICS = {
    "mean": "arithmetic mean",
    "p50": "median",
    "p90": "90th percentile",
    "p99": "99th percentile",
}

METRICS: dict[str, Metric] = {
    m.name: m
    for m in (
        Metric(
            "output_tokens_per_s",
            "tok/s",
            "higher",
            "output tokens of completed requests (counted by the server) ÷ duration",
            1,
        ),
        Metric("requests_per_s", "req/s", "higher", "completed requests ÷ duration", 2),
        *(
            Metric(f"{quantity}_{statistic}", "ms", "lower", f"{definition}; {words}", 2)
            for quantity, definition in _LATENCIES.items()
            for statistic, words in _STATISTICS.items()
        ),
        Metric("duration_s", "s", "none", "first request sent to last chunk of the last request, warm-up excluded", 2),
        Metric("n_ok", "requests", "none", "requests that completed and passed every check of the client", 0),
        Metric("n_failed", "requests", "none", "requests that failed or were not trustworthy", 0),
        Metric("n_output_tokens", "tokens", "none", "output tokens of completed requests, counted by the server", 0),
        Metric(
            "concurrency_peak", "requests", "none", "most requests in flight at one moment, as seen by the client", 0
        ),
    )
}

PRIMARY_METRIC = "output_tokens_per_s"
"""What ``compare`` shows unless asked for another."""
