"""What num_stages and num_warps really do to a kernel, by its compiled configs. Pure; one architecture at a time."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from orchestrator.check.findings import Finding, counted, listed
from orchestrator.verdicts import CompiledKernel, ConfigReport, PipelinedBuffer

_INDEX_LOAD = re.compile(r"\d+ [iu](32|64)\b")
"""A load of one dimension whose elements can address memory."""


def knob_findings(reports: Sequence[ConfigReport], baseline: Sequence[ConfigReport]) -> Iterator[Finding]:
    """Findings on the configs of a variant.

    Args:
        reports: of one architecture.
        baseline: of the same architecture, to compare with; empty when there is nothing to compare with.
    """
    compiled = [report for report in reports if report.compiled.error is None]
    yield from _no_dot_findings(compiled)
    for report in compiled:
        yield from _stages_findings(report, _twin_but_for_stages(report, baseline))
        yield from _warps_findings(report, _nearest(report, baseline))


# ---- num_stages


def _no_dot_findings(reports: Sequence[ConfigReport]) -> Iterator[Finding]:
    if reports and all(report.compiled.has_loop is False for report in reports):
        yield Finding("no-dot-in-loop", "there is no loop, so num_stages does nothing")
    elif reports and all(_has_idle_loop(report.compiled) for report in reports):
        text = "there is no tl.dot in the loop and nothing in it is pipelined, so num_stages does nothing"
        yield Finding("no-dot-in-loop", text)


def _has_idle_loop(compiled: CompiledKernel) -> bool:
    return compiled.has_loop is True and compiled.has_dot_in_loop is False and not compiled.buffers


def _twin_but_for_stages(report: ConfigReport, baseline: Sequence[ConfigReport]) -> ConfigReport | None:
    """The baseline's config that differs in num_stages alone; of several the nearest."""

    def rest(one: ConfigReport) -> tuple[object, ...]:
        return dict(one.config.constants), one.config.num_warps, one.config.num_ctas, one.config.maxnreg

    stages = report.config.num_stages
    twins = [
        one
        for one in baseline
        if one.compiled.error is None and one.config.num_stages != stages and rest(one) == rest(report)
    ]
    return min(twins, key=lambda one: abs(one.config.num_stages - stages), default=None)


def _stages_findings(report: ConfigReport, twin: ConfigReport | None) -> Iterator[Finding]:
    """Fewer tiles in flight than num_stages suggests, or as many as with the baseline's num_stages."""
    n_kept, stages = report.compiled.n_kv_buffers, report.config.num_stages
    n_of_twin = None if twin is None else twin.compiled.n_kv_buffers
    if n_kept is None or (n_kept >= stages - 1 and n_kept != n_of_twin):
        return
    if n_kept == 0 and not (report.compiled.has_loop and report.compiled.has_dot_in_loop):
        return
    text = f"num_stages={stages} keeps {_tiles(report.compiled, n_kept)}"
    if twin is not None and n_of_twin == n_kept:
        text += f", as num_stages={twin.config.num_stages} does"
    elif twin is not None and n_of_twin is not None:
        text += f", where num_stages={twin.config.num_stages} keeps {counted(n_of_twin)}"
    text += _next_step(report, n_kept)
    if twin is not None and n_of_twin == n_kept:
        text += _smaller_loads(report.compiled.buffers, twin.compiled.buffers)
    yield Finding("stages-keep-buffers", text)


def _tiles(compiled: CompiledKernel, n_kept: int) -> str:
    if n_kept == 0:
        return "no buffer (nothing in the loop is pipelined)"
    noun, each = ("buffer", "") if n_kept == 1 else ("buffers", " each")
    return f"{counted(n_kept)} {noun} for the largest load ({_load(_largest(compiled.buffers))}{each})"


def _largest(buffers: Sequence[PipelinedBuffer]) -> PipelinedBuffer:
    return max(buffers, key=lambda buffer: buffer.size_bytes)


def _load(buffer: PipelinedBuffer) -> str:
    return f"{'×'.join(map(str, buffer.shape))} {buffer.dtype}, {buffer.size_bytes:,} B"


def _next_step(report: ConfigReport, n_kept: int) -> str:
    """Which larger num_stages adds a buffer, as far as they were looked at."""
    first = report.config.num_stages + 1
    looked_at = {
        stages: _largest(buffers).n_buffers if buffers else 0
        for stages, buffers in sorted(report.compiled.stages_buffers.items())
        if stages >= first
    }
    more = next((stages for stages, n_buffers in looked_at.items() if n_buffers > n_kept), None)
    last = max(looked_at, default=first) if more is None else more
    is_without_gap = all(stages in looked_at for stages in range(first, last + 1))
    if more is not None:
        return f"; {more} {'is the first with' if is_without_gap else 'has'} {counted(looked_at[more])}"
    return f"; no value up to {last} adds one" if is_without_gap else ""


def _smaller_loads(now: Sequence[PipelinedBuffer], before: Sequence[PipelinedBuffer]) -> str:
    """What changes beside the largest load. One more buffer holds an index load for longer: it starts earlier."""
    counts_now, counts_before = _counts(now), _counts(before)
    changes, is_index_alone = [], True
    for load in dict.fromkeys((*counts_now, *counts_before)):
        difference = counts_now.get(load, 0) - counts_before.get(load, 0)
        if difference:
            noun = "buffer" if abs(difference) == 1 else "buffers"
            more = "more" if difference > 0 else "fewer"
            changes.append(f"{counted(abs(difference))} {more} small {noun} ({load})")
            is_index_alone = is_index_alone and difference > 0 and _INDEX_LOAD.match(load) is not None
    if not changes:
        return ""
    effect = ", which lets the index load start earlier" if is_index_alone else ""
    return f"; what changes is {listed(changes)}{effect}"


def _counts(buffers: Sequence[PipelinedBuffer]) -> dict[str, int]:
    """Buffers of each kind of load; the compiler may keep one load's values in several places."""
    counts: dict[str, int] = {}
    for buffer in buffers:
        counts[_load(buffer)] = counts.get(_load(buffer), 0) + buffer.n_buffers
    return counts


# ---- num_warps


def _nearest(report: ConfigReport, baseline: Sequence[ConfigReport]) -> ConfigReport | None:
    """The baseline's config with the same meta-parameters and, where there are some, num_stages and num_warps."""
    same = [one for one in baseline if dict(one.config.constants) == dict(report.config.constants)]
    now = report.config
    same.sort(key=lambda one: (one.config.num_stages != now.num_stages, one.config.num_warps != now.num_warps))
    return next(iter(same or baseline), None)


def _warps_findings(report: ConfigReport, base: ConfigReport | None) -> Iterator[Finding]:
    """More warps a block that are no more warps a SM: fewer blocks fit."""
    if base is None or report.occupancy is None or base.occupancy is None:
        return
    now, before = report.occupancy, base.occupancy
    is_more = report.config.num_warps > base.config.num_warps
    if not (is_more and now.can_launch and before.can_launch and now.warps_per_sm <= before.warps_per_sm):
        return
    registers = f" ({report.compiled.n_registers} a thread)" if "registers" in now.limiters else ""
    yield Finding(
        "more-warps-same-occupancy",
        f"num_warps={report.config.num_warps} puts no more warps on an SM than the baseline's {base.config.num_warps}: "
        f"{now.warps_per_sm} in {_blocks(now.blocks_per_sm)} against {before.warps_per_sm} in "
        f"{_blocks(before.blocks_per_sm)}, limited by {listed(now.limiters)}{registers}",
    )


def _blocks(number: int) -> str:
    return f"{number} block" if number == 1 else f"{number} blocks"
