"""What a variant's compiled configs mean: reports and facts of the edit → sentences and a status. Pure.

Every sentence is true or is not said. What a file or a compiler holds is known elsewhere; how sentences are shown too.
The sentences on what is launched are here; those on what num_stages and num_warps do are in ``knobs.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from orchestrator.check.findings import Finding, config_named, configs_named, distinct_launches, listed
from orchestrator.check.knobs import knob_findings
from orchestrator.verdicts import ConfigReport, Sentence, VerdictStatus, arch_name

_FATAL: tuple[VerdictStatus, ...] = ("does-not-compile", "cannot-launch", "same-binary")


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that a verdict is made from.

    Attributes:
        variant: its name. is_baseline: the baseline itself is judged.
        reports: one for each config and architecture.
        baseline_reports: of the baseline, on the same architectures. A config that is missing has other knobs or other
            code than any of the variant's, so that it cannot be the same.
        others: reports of other variants by name, as far as they are known.
        key: of the autotune decorator; None when that cannot be told.
        varies: names that the key must hold.
        n_configs, n_baseline_configs: entries of the autotune lists, 1 for a kernel without one; None when that cannot
            be told.
        same_size_files: names of the edited files whose size did not change.
        moved_line: first line of the kernel before and after, when it moved.
        may_change_launch: something outside of the kernel and its config list was edited, so that an equal binary may
            be launched in another way.
    """

    variant: str
    reports: Sequence[ConfigReport]
    is_baseline: bool = False
    baseline_reports: Sequence[ConfigReport] = ()
    others: Mapping[str, Sequence[ConfigReport]] = field(default_factory=dict)
    key: tuple[str, ...] | None = None
    varies: tuple[str, ...] = ()
    n_configs: int | None = None
    n_baseline_configs: int | None = None
    same_size_files: tuple[str, ...] = ()
    moved_line: tuple[int, int] | None = None
    may_change_launch: bool = False

    @property
    def subject(self) -> str:
        """How a sentence calls it."""
        return "the baseline" if self.is_baseline else self.variant


def judge(evidence: Evidence) -> tuple[tuple[Sentence, ...], VerdictStatus]:
    """The sentences, fatal ones first, and the status that follows from them.

    A finding that is the same on every architecture of the reports is one sentence; one that is not names its own.
    """
    archs = list(dict.fromkeys(report.arch for report in evidence.reports))
    by_arch = _fatal_where_fatal({arch: list(_on_arch(evidence, arch)) for arch in archs})
    sentences = [
        sentence
        for finding in dict.fromkeys(finding for found in by_arch.values() for finding in found)
        for sentence in _sentences(finding, [arch for arch in archs if finding in by_arch[arch]], len(archs))
    ]
    sentences += _key_sentences(evidence)
    sentences += _edit_sentences(evidence)
    sentences.sort(key=lambda sentence: not sentence.is_fatal)
    if not archs:
        return tuple(sentences), "not-checked"
    fatal = {sentence.kind for sentence in sentences if sentence.is_fatal}
    return tuple(sentences), next((status for status in _FATAL if status in fatal), "ok")


def _fatal_where_fatal(by_arch: dict[int, list[Finding]]) -> dict[int, list[Finding]]:
    """A variant that equals the baseline on some architectures alone is worth its experiment on the others."""
    if all(any(finding.kind == "same-binary" and finding.is_fatal for finding in found) for found in by_arch.values()):
        return by_arch
    return {
        arch: [replace(finding, is_fatal=finding.is_fatal and finding.kind != "same-binary") for finding in found]
        for arch, found in by_arch.items()
    }


def _sentences(finding: Finding, archs: Sequence[int], n_archs: int) -> Iterator[Sentence]:
    """One sentence where it holds on all, or where only one is asked for; else one for each."""
    if len(archs) == n_archs:
        yield Sentence(finding.kind, finding.text, finding.is_fatal, archs[0] if n_archs == 1 else None)
        return
    for arch in archs:
        text = finding.text if arch_name(arch) in finding.text else f"on {arch_name(arch)}, {finding.text}"
        yield Sentence(finding.kind, text, finding.is_fatal, arch)


def _on_arch(evidence: Evidence, arch: int) -> Iterator[Finding]:
    reports = [report for report in evidence.reports if report.arch == arch]
    baseline = [report for report in evidence.baseline_reports if report.arch == arch and not evidence.is_baseline]
    yield from _compile_findings(evidence, reports)
    yield from _launch_findings(evidence, reports)
    if not evidence.is_baseline:
        yield from _baseline_findings(evidence, reports, baseline)
        for name, other in evidence.others.items():
            yield from _other_findings(evidence, reports, name, [report for report in other if report.arch == arch])
    yield from _duplicate_findings(reports)
    yield from knob_findings(reports, baseline)
    yield from _switch_findings(evidence, reports)


# ---- whether it compiles and launches


def _compile_findings(evidence: Evidence, reports: Sequence[ConfigReport]) -> Iterator[Finding]:
    """One for each error: configs often fail alike."""
    failed = [report for report in reports if report.compiled.error is not None]
    for error in dict.fromkeys(report.compiled.error for report in failed):
        alike = [report for report in failed if report.compiled.error == error]
        subject = evidence.subject if len(reports) == 1 else f"{configs_named(alike)} of {evidence.subject}"
        verb = "does not compile" if len(alike) == 1 else "do not compile"
        text = f"{subject} {verb} for {arch_name(alike[0].arch)}: {error}"
        yield Finding("does-not-compile", text, len(failed) == len(reports))


def _launch_findings(evidence: Evidence, reports: Sequence[ConfigReport]) -> Iterator[Finding]:
    """One for all the configs that cannot launch, with the reason of the one that needs least."""
    compiled = [report for report in reports if report.compiled.error is None]
    stuck = [report for report in compiled if report.can_launch is False]
    if not stuck:
        return
    least = min(stuck, key=lambda report: report.compiled.shared_bytes or 0)
    why = least.occupancy.why_not if least.occupancy is not None else None
    is_fatal = len(stuck) == len(compiled)
    claim, where, tail = f"{evidence.subject} cannot launch", "", ""
    if len(reports) > 1 and is_fatal:
        claim, where = f"no config of {evidence.subject} can launch", f"in {config_named(least)} "
    elif len(reports) > 1:
        claim = f"{configs_named(stuck)} of {evidence.subject} cannot launch"
        where = "" if len(stuck) == 1 else f"in {config_named(least)} "
        tail = f"; the autotuner skips {'it' if len(stuck) == 1 else 'them'} without a word"
    yield Finding("cannot-launch", f"{claim} on {arch_name(least.arch)}: {where}{why}{tail}", is_fatal)


# ---- whether it differs


def _baseline_findings(
    evidence: Evidence, reports: Sequence[ConfigReport], baseline: Sequence[ConfigReport]
) -> Iterator[Finding]:
    """The same launches as the baseline's, or some of them. Configs that cannot launch on this GPU do not count."""
    mine, theirs = distinct_launches(reports), distinct_launches(baseline)
    if not mine or not set(mine) <= set(theirs):
        return
    name, part = evidence.variant, configs_named([theirs[launch][0] for launch in mine])
    are_all_known = _are_all_known(reports, evidence.n_configs) and _are_all_known(
        baseline, evidence.n_baseline_configs
    )
    if are_all_known and set(mine) == set(theirs):
        yield _same_as_baseline(evidence, len(mine), [report for report in baseline if report.can_launch is False])
    elif evidence.n_configs is None or evidence.n_baseline_configs is None:
        yield Finding("same-binary", f"{name} compiles to the binary of the baseline's {part}")
    elif _are_all_known(reports, evidence.n_configs):
        what = (
            "beside the choice only the launcher differs"
            if evidence.may_change_launch
            else "it can only show what the autotuner's choice costs"
        )
        yield Finding("same-binary", f"{name} is the baseline's {part} alone: {what}")


def _are_all_known(reports: Sequence[ConfigReport], n_configs: int | None) -> bool:
    """Whether every config was compiled, and did: one that fails to compile may end the engine."""
    has_errors = any(report.compiled.error is not None for report in reports)
    return n_configs is not None and not has_errors and len({report.index for report in reports}) >= n_configs


def _same_as_baseline(evidence: Evidence, n_launches: int, stuck: Sequence[ConfigReport]) -> Finding:
    binary = "the same binary" if n_launches == 1 else f"the same {n_launches} binaries"
    aside = f", whose {configs_named(stuck)} cannot launch" if stuck else ""
    if evidence.may_change_launch:
        return Finding(
            "same-binary", f"{evidence.variant} has {binary} as the baseline{aside}: only the launcher differs"
        )
    text = f"{evidence.variant} compiles to {binary} as the baseline{aside}: this experiment cannot change anything"
    return Finding("same-binary", text, is_fatal=True)


def _other_findings(
    evidence: Evidence, reports: Sequence[ConfigReport], name: str, other: Sequence[ConfigReport]
) -> Iterator[Finding]:
    mine, theirs = distinct_launches(reports), distinct_launches(other)
    if mine and set(mine) == set(theirs):
        binary = "the same binary" if len(mine) == 1 else f"the same {len(mine)} binaries"
        tail = "only the launcher can differ" if evidence.may_change_launch else "measure one of them"
        yield Finding("same-binary", f"{evidence.variant} and {name} are {binary}: {tail}")


def _duplicate_findings(reports: Sequence[ConfigReport]) -> Iterator[Finding]:
    """Configs of one list that are one binary. They can differ in num_stages and maxnreg alone."""
    for alike in distinct_launches(reports).values():
        stages = sorted({report.config.num_stages for report in alike})
        if len(alike) > 1:
            why = f": num_stages={listed(map(str, stages))} make no difference" if len(stages) == len(alike) else ""
            yield Finding("same-binary", f"{configs_named(alike)} are the same binary{why}")


# ---- the autotune list and the edit


def _switch_findings(evidence: Evidence, reports: Sequence[ConfigReport]) -> Iterator[Finding]:
    n_launches = len(distinct_launches(reports))
    if n_launches > 1 and (evidence.n_configs or 0) > 1:
        text = (
            f"the autotuner chooses among {n_launches} binaries of {evidence.subject} and may pick another kernel at "
            "each restart; force one config to compare kernels"
        )
        yield Finding("may-switch-config", text)


def _key_sentences(evidence: Evidence) -> Iterator[Sentence]:
    """The key decides when the autotuner chooses anew."""
    if evidence.key is None or (evidence.n_configs or 0) < 2:
        return
    missing = [name for name in evidence.varies if name not in evidence.key]
    if not evidence.key:
        yield Sentence(
            "key-lacks-shape",
            "the autotune key is empty: one config is chosen for every shape, by whichever comes first",
        )
    elif missing:
        lacks = f"the autotune key lacks {listed(missing)}, which {'varies' if len(missing) == 1 else 'vary'}"
        yield Sentence("key-lacks-shape", f"{lacks}: the config is chosen by whichever value comes first")


def _edit_sentences(evidence: Evidence) -> Iterator[Sentence]:
    for name in evidence.same_size_files:
        text = f"the edit keeps the size of {name}: Python could take old bytecode for it, which `orch push` prevents"
        yield Sentence("same-size", text)
    if evidence.moved_line is not None:
        before, after = evidence.moved_line
        text = (
            f"the edit moves the kernel from line {before} to {after}: Triton's cache is cold for it, so the first "
            "start compiles anew and warms up longer"
        )
        yield Sentence("moved-function", text)
