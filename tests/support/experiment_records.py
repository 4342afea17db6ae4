"""Plans, starts and analyses for tests of the record of experiments; a test changes what it is about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from orchestrator.designs import (
    Analysis,
    Arm,
    ArmAnalysis,
    ConcurrencyAnalysis,
    Estimate,
    Plan,
    PlannedStart,
    TelemetrySample,
    VerdictWord,
)
from orchestrator.records import SourceFile
from orchestrator.store import Store
from tests.support import store_records as make

BASELINE, V2 = Arm("baseline", make.BASE.digest), Arm("V2", make.FASTER.digest, "more warps hide latency")
FILES = {"baseline": make.BASE, "V2": make.FASTER}
ORDER = ("baseline", "V2", "V2", "baseline")


def plan(**changes: object) -> Plan:
    """Two blocks, AB then BA, at two concurrencies."""
    known = Plan(
        target="flash",
        host="gpu-a",
        workload="short",
        arms=(BASELINE, V2),
        concurrencies=(1, 64),
        primary_concurrency=64,
        metric="output_tokens_per_s",
        margin=0.01,
        looks=(1, 2),
        thresholds=(0.1 + 0.2, 0.0346),
        seed=2**62 + 1,
        starts=tuple(PlannedStart(i, i // 2, i % 2, arm) for i, arm in enumerate(ORDER)),
        hypothesis="“more warps” hide latency",
    )
    return replace(known, **changes)  # type: ignore[arg-type]


def ran(
    store: Store,
    start_id: int,
    arm: str,
    values: Mapping[int, float],
    *,
    status: str = "ok",
    file: SourceFile | None = None,
) -> int:
    """Makes a planned start's trial with a load at each concurrency and ends both; returns the trial's id."""
    loads = tuple(make.load(cap, value) for cap, value in values.items())
    trial_id = make.trial(store, file or FILES[arm], arm, loads=loads, status=status)
    store.begin_start(start_id, trial_id)
    store.end_start(start_id, "ok" if status == "ok" else "set-aside", () if status == "ok" else ("throttled",))
    return trial_id


def estimate(ratio: float = 1.02, n_pairs: int = 6) -> Estimate:
    """A ratio known to a half per cent."""
    return Estimate(
        n_pairs=n_pairs,
        df=n_pairs - 2,
        log_ratio=0.0198,
        se=0.002,
        sigma_d=0.005,
        ratio=ratio,
        low95=ratio - 0.005,
        high95=ratio + 0.005,
        low90=ratio - 0.004,
        high90=ratio + 0.004,
        p=0.001,
        order_log=0.0,
        order_p=0.9,
        sign_flip_p=None,
    )


def analysis(
    verdict: VerdictWord | None = "FASTER",
    *,
    ships: bool | None = True,
    why: str = "faster at 64, not worse anywhere",
    is_final: bool = True,
    arm: Arm = V2,
    ratio: float = 1.02,
) -> Analysis:
    """One variant at two concurrencies; nothing was measured in pairs at the first."""
    rows = tuple(
        ConcurrencyAnalysis(
            concurrency=cap,
            estimate=found,
            is_primary=cap == 64,
            p_adjusted=0.002 if found else None,
            verdict=verdict if found else None,
            why_no_verdict=None if found else "no complete pair",
            clears_margin=False,
            is_not_worse=True,
            pairs_needed=None,
        )
        for cap, found in ((1, None), (64, estimate(ratio)))
    )
    return Analysis(
        look=0 if is_final else None,
        threshold=0.0115,
        n_blocks=6,
        arms=(ArmAnalysis(arm.name, arm.digest, rows, ships, why),),
        is_final=is_final,
        stop_reason="decided" if is_final else None,
    )


def sample(at_s: float = 1_700_000_000.5, gpu: int = 0, **changes: object) -> TelemetrySample:
    """A GPU under load whose driver does not tell the memory clock."""
    known = TelemetrySample(at_s, gpu, 612.5, 1980.0, None, 61.0, 2**36, 97.0, ("sw_power_cap",), (4711,))
    return replace(known, **changes)  # type: ignore[arg-type]
