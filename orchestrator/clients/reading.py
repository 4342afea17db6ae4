"""Numbers and per-request arrays out of the result files of other people's clients, as SGLang and vLLM share them.

Reads and converts; judges nothing but whether something is a number. The rules stand in ``driven.py``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.clients.judging import NonFiniteError
from orchestrator.records import RequestRecord, digest_of


def finite(value: object) -> float:
    """A number that can be a measurement.

    Raises:
        TypeError: it is none. NonFiniteError: it is NaN or an infinity.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is no number")
    if not math.isfinite(value):
        raise NonFiniteError(str(value))
    return float(value)


def finite_or_none(value: object) -> float | None:
    """As ``finite``; None for a key that an older version does not write, or left empty."""
    return None if value is None else finite(value)


def text_digest(text: str | None) -> str | None:
    """Of an output; None of an empty one."""
    return digest_of(text.encode("utf-8", "surrogatepass")) if text else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrays:
    """Requests as SGLang and vLLM write them: one array a quantity, times in seconds.

    Attributes:
        starts, latencies: empty where the client does not write them. has_chunk_gaps: ``gaps`` are those between
            chunks; SGLang's native backend shares a gap out among the tokens of its chunk.
    """

    input_lens: Sequence[int]
    output_lens: Sequence[int]
    ttfts: Sequence[float]
    gaps: Sequence[Sequence[float]]
    texts: Sequence[str]
    errors: Sequence[str]
    starts: Sequence[float] = ()
    latencies: Sequence[float] = ()
    has_chunk_gaps: bool = True

    @staticmethod
    def of(result: Mapping[str, Any], *, has_chunk_gaps: bool = True) -> Arrays | None:
        """The arrays of a result file; None when it was written without them.

        Raises:
            ValueError: they are not of one length.
        """
        if "output_lens" not in result or "errors" not in result:
            return None
        n = len(result["errors"])
        arrays = Arrays(
            input_lens=result["input_lens"],
            output_lens=result["output_lens"],
            ttfts=result["ttfts"],
            gaps=result["itls"],
            texts=result["generated_texts"],
            errors=result["errors"],
            starts=result.get("start_times") or (),
            latencies=result.get("latencies") or (),
            has_chunk_gaps=has_chunk_gaps,
        )
        told_of = [arrays.input_lens, arrays.output_lens, arrays.ttfts, arrays.gaps, arrays.texts]
        lengths = [len(one) for one in (*told_of, arrays.starts or arrays.errors, arrays.latencies or arrays.errors)]
        if set(lengths) != {n}:
            raise ValueError(f"arrays of {sorted(set(lengths) | {n})} requests")
        return arrays

    def requests(self) -> tuple[RequestRecord, ...]:
        """One record each; their times are None where the client does not write when it sent a request."""
        zero_s = min(map(finite, self.starts), default=0.0)
        return tuple(self._request(i, zero_s) for i in range(len(self.errors)))

    def _request(self, i: int, zero_s: float) -> RequestRecord:
        gaps_s = [finite(gap) for gap in self.gaps[i]]
        ttft_s = finite(self.ttfts[i])
        sent_s = first_s = last_s = None
        error = " ".join(str(self.errors[i] or "").splitlines()[-1:]) or None
        if not self.output_lens[i] and error is None:
            error = "no output"
        if self.starts:
            sent_s = finite(self.starts[i]) - zero_s
        if sent_s is not None and error is None:
            first_s = sent_s + ttft_s
            last_s = sent_s + (finite(self.latencies[i]) if self.latencies else ttft_s + math.fsum(gaps_s))
        is_told = self.has_chunk_gaps and error is None
        return RequestRecord(
            i=i,
            sent_s=sent_s,
            first_chunk_s=first_s,
            last_chunk_s=last_s,
            n_input_tokens=int(self.input_lens[i]),
            n_output_tokens=int(self.output_lens[i]),
            n_chunks=len(gaps_s) + 1 if is_told else 0,
            itl_ms=tuple(1000 * gap for gap in gaps_s) if is_told else (),
            error=error,
            text_digest=text_digest(self.texts[i]),
        )

    def ttft_ms(self) -> tuple[float, ...]:
        """Of each request."""
        return tuple(1000 * finite(value) for value in self.ttfts)


STATISTICS = {"mean": "mean_{}_ms", "p50": "median_{}_ms", "p90": "p90_{}_ms", "p99": "p99_{}_ms"}
"""orch's statistic → key that SGLang and vLLM share."""


def shared_metrics(result: Mapping[str, Any], quantities: Mapping[str, str]) -> dict[str, float | None]:
    """What SGLang and vLLM write under the same names; ``quantities``: orch's → theirs.

    Raises:
        KeyError: a throughput is missing, so the file is not of theirs.
    """
    found: dict[str, float | None] = {
        "output_tokens_per_s": finite(result["output_throughput"]),
        "requests_per_s": finite(result["request_throughput"]),
        "duration_s": finite(result["duration"]),
    }
    for ours, theirs in quantities.items():
        for statistic, key in STATISTICS.items():
            found[f"{ours}_{statistic}"] = finite_or_none(result.get(key.format(theirs)))
    return found
