"""One variant without a GPU: what is compiled, and what the answers mean. The order of the other files of this folder.

Takes files and recorded facts, gives a ``Verdict``. Touches no host and no record; compiles through ``Compiler``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import TypeVar

from orchestrator.check import supply
from orchestrator.check.compiling import Compiler, Described
from orchestrator.check.gpus import limits_of
from orchestrator.check.host_cache import constants_key
from orchestrator.check.judging import Evidence, judge
from orchestrator.check.lift import Lifted, lift
from orchestrator.check.occupancy import occupancy
from orchestrator.check.plain_list import read_plain_list
from orchestrator.check.supply import Kernel, Supply
from orchestrator.check.sweep import LAUNCH_KNOBS, SweepRow, expand, mark, parse_sweep
from orchestrator.errors import CheckError, UsageError
from orchestrator.records import Change, SourceFile, Target, digest_of
from orchestrator.verdicts import (
    CachedKernel,
    CompiledKernel,
    CompileJob,
    ConfigReport,
    Constant,
    KernelConfig,
    SourceKind,
    Verdict,
    arch_name,
)

DEEPEST_STAGES = 8
"""num_stages is probed up to this for the next value that keeps one more buffer."""

_Answer = TypeVar("_Answer", bound=CompiledKernel | None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is to be checked, with everything that is known beforehand.

    Attributes:
        variant: its name. files, digest: its own; of the baseline when that is checked.
        changes: every difference to the base; empty for the baseline.
        cached: what starts of the baseline left in the host's Triton cache.
        others: reports of other variants of the same base, as far as they were checked with this Triton.
        caveats: of the choice of Triton.
    """

    target: Target
    variant: str
    digest: str
    base_digest: str
    files: tuple[SourceFile, ...]
    base_files: tuple[SourceFile, ...]
    archs: tuple[int, ...]
    changes: tuple[Change, ...] = ()
    cached: tuple[CachedKernel, ...] = ()
    others: Mapping[str, Sequence[ConfigReport]] = field(default_factory=dict)
    host_triton_version: str | None = None
    caveats: tuple[str, ...] = ()

    @property
    def kernel(self) -> str:
        """Its name; only a target with a kernel is checked."""
        assert self.target.kernel is not None
        return self.target.kernel

    @property
    def is_baseline(self) -> bool:
        """Whether the baseline itself is checked."""
        return self.digest == self.base_digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """A grid, compiled.

    Attributes:
        variant: whose source the grid was laid over: ``baseline`` or a variant.
        swept: by knob, the values. unsettable: swept knobs that no autotune config of the kernel sets, so that only
            its launcher can.
        rows: one a point and architecture.
    """

    target: str
    variant: str
    digest: str
    base_digest: str
    kernel: str
    source: SourceKind
    triton_version: str
    host_triton_version: str | None
    swept: Mapping[str, tuple[Constant, ...]]
    unsettable: tuple[str, ...]
    rows: tuple[SweepRow, ...]
    caveats: tuple[str, ...]
    checked_at: str


def check_offline(question: Question, compiler: Compiler) -> Verdict:
    """Compiles a variant's configs, and those of the baseline that could be the same, and judges them.

    Raises:
        VariantError: a file does not parse or has no such kernel.
        UsageError: the inventory lacks a type or value that the source needs.
        CheckError: the compiler does not run, or the variant's autotune list cannot be computed here.
    """
    own, base = _kernels(question, compiler)
    configs = _configs_of(question, own)
    chosen = _chosen(question, own, base, configs, compiler)
    jobs = _jobs(chosen, own, configs, question.archs, is_probed=True)
    base_jobs = [] if question.is_baseline else _known_jobs(question, chosen, base, configs)
    compiled = compiler.compile([job for _, job in (*jobs, *base_jobs)])
    reports = _reports(jobs, compiled[: len(jobs)])
    base_reports = _reports(base_jobs, compiled[len(jobs) :])
    sentences, status = judge(_evidence(question, own, base, configs, reports, base_reports))
    return Verdict(
        target=question.target.name,
        variant=question.variant,
        digest=question.digest,
        base_digest=question.base_digest,
        kernel=question.kernel,
        status=status,
        source=chosen.kind,
        archs=question.archs,
        triton_version=compiler.environment.version,
        host_triton_version=question.host_triton_version,
        n_configs=len(configs),
        n_baseline_configs=None if base.configs is None else len(base.configs),
        configs=reports,
        baseline_configs=_with_known(question, chosen, base, base_reports, compiler),
        sentences=sentences,
        caveats=_caveats(question, chosen, own),
        checked_at=_now(),
    )


def sweep_offline(question: Question, words: Sequence[str], compiler: Compiler) -> Sweep:
    """Compiles every point of a grid that is laid over a variant's first config.

    Args:
        words: one a knob, as ``parse_sweep`` takes them.

    Raises:
        As ``check_offline``; UsageError also for a knob that the kernel does not have.
    """
    own, base = _kernels(question, compiler)
    first = _configs_of(question, own)[0]
    parameters = [parameter.name for parameter in own.lifted.parameters if parameter.is_constexpr]
    settable = [*LAUNCH_KNOBS, *first.constants] if own.lifted.has_autotune else []
    swept = parse_sweep(words, dict.fromkeys([*first.constants, *parameters]))
    points = expand(first, swept)
    unsettable = tuple(name for name in swept if name not in settable)
    base = _launched(base, question.target, unsettable)
    chosen = _chosen(question, own, base, points, compiler)
    jobs = _jobs(chosen, own, points, question.archs)
    base_jobs = _known_jobs(question, chosen, base, points)
    own_jobs = [] if question.is_baseline else _known_jobs(question, chosen, own, points)
    compiled = compiler.compile([job for _, job in (*jobs, *base_jobs, *own_jobs)])
    reports = _reports(jobs, compiled[: len(jobs)])
    base_reports = _reports(base_jobs, compiled[len(jobs) : len(jobs) + len(base_jobs)])
    own_reports = _reports(own_jobs, compiled[len(jobs) + len(base_jobs) :])
    return Sweep(
        target=question.target.name,
        variant=question.variant,
        digest=question.digest,
        base_digest=question.base_digest,
        kernel=question.kernel,
        source=chosen.kind,
        triton_version=compiler.environment.version,
        host_triton_version=question.host_triton_version,
        swept=swept,
        unsettable=unsettable,
        rows=mark(reports, base_reports, own_reports),
        caveats=_caveats(question, chosen, own),
        checked_at=_now(),
    )


# ---- the kernels and their configs


def _kernels(question: Question, compiler: Compiler) -> tuple[Kernel, Kernel]:
    """The variant's kernel and the baseline's, with their autotune lists."""
    modules = {file.name: file.module for file in question.target.files}
    own = lift(question.files, question.kernel, modules=modules)
    base = own if question.is_baseline else lift(question.base_files, question.kernel, modules=modules)
    listings = list({lifted.listing.digest: lifted.listing for lifted in (own, base) if lifted.has_autotune}.values())
    plain = {listing.digest: read_plain_list(listing) for listing in listings}
    computed = [listing for listing in listings if plain[listing.digest] is None]
    described = dict(zip((one.digest for one in computed), compiler.describe(computed), strict=True))
    for digest, read in plain.items():
        if read is not None:
            described[digest] = Described(*read, None)
    without = Described(None, None, None)
    first, second = (_kernel(question, lifted, described.get(lifted.listing.digest, without)) for lifted in (own, base))
    return first, second


def _kernel(question: Question, lifted: Lifted, described: Described) -> Kernel:
    if lifted.has_autotune:
        configs = described.configs if described.configs != () else (launch_default(),)
        return Kernel(lifted, configs, described.key, described.error)
    return Kernel(lifted, (supply.launched_config(question.target),), None)


def launch_default() -> KernelConfig:
    """What Triton's autotuner runs when its list is empty."""
    return KernelConfig()


def _configs_of(question: Question, kernel: Kernel) -> tuple[KernelConfig, ...]:
    if kernel.configs is None:
        which, why = f"{question.variant} ({question.kernel})", kernel.why_no_configs
        raise CheckError(
            f"the autotune list of {which} cannot be computed on this machine{f' ({why})' if why else ''}",
            next_step="force one config: `orch variant new NAME --set num_stages=3` names the knobs that it needs too",
        )
    return kernel.configs


def _launched(kernel: Kernel, target: Target, names: Sequence[str]) -> Kernel:
    """A kernel whose configs also have the values that its launcher gives these names, as the inventory says."""
    arguments = supply.compile_arguments(target)
    given = {name: arguments[name] for name in names if name in arguments}
    configs = kernel.configs and tuple(replace(one, constants={**given, **one.constants}) for one in kernel.configs)
    return replace(kernel, configs=configs)


# ---- what is compiled


def _chosen(
    question: Question, own: Kernel, base: Kernel, wanted: Sequence[KernelConfig], compiler: Compiler
) -> Supply:
    return supply.choose(question.target, own, base, wanted, question.cached, compiler.environment.version)


def _jobs(
    chosen: Supply, kernel: Kernel, configs: Sequence[KernelConfig], archs: Sequence[int], *, is_probed: bool = False
) -> list[tuple[int, CompileJob]]:
    """Every compile with the index of its config."""
    found = []
    for arch in archs:
        for i, config in enumerate(configs):
            deeper = range(config.num_stages + 1, DEEPEST_STAGES + 1) if is_probed else ()
            found += [(i, job) for job in _asked(chosen, kernel, config, arch, deeper)]
    return found


def _asked(
    chosen: Supply, kernel: Kernel, config: KernelConfig, arch: int, deeper: Iterable[int] = ()
) -> list[CompileJob]:
    try:
        return chosen.jobs(kernel, config, arch, tuple(deeper))
    except UsageError as exc:
        raise type(exc)(
            exc.message,
            next_step=f"{exc.next_step}; after an `orch bench` on a GPU host its Triton cache serves without them",
        ) from exc


def _known_jobs(
    question: Question, chosen: Supply, kernel: Kernel, configs: Sequence[KernelConfig]
) -> list[tuple[int, CompileJob]]:
    """Those configs of a kernel that have the meta-parameters of one of these: any other is another launch for sure."""
    compared = {constants_key(config) for config in configs}
    return [
        (i, job)
        for arch in question.archs
        for i, config in enumerate(kernel.configs or ())
        if constants_key(config) in compared
        for job in _asked(chosen, kernel, config, arch)
    ]


def _reports(jobs: Sequence[tuple[int, CompileJob]], compiled: Sequence[CompiledKernel]) -> tuple[ConfigReport, ...]:
    return tuple(_report(i, _whole(forms)) for (i, _), forms in _by_config(jobs, compiled).items())


def _by_config(
    jobs: Sequence[tuple[int, CompileJob]], answers: Sequence[_Answer]
) -> dict[tuple[int, int], list[_Answer]]:
    """The answers by index of the config and architecture: one each, or one for each of the host's forms."""
    found: dict[tuple[int, int], list[_Answer]] = {}
    for (i, job), answer in zip(jobs, answers, strict=True):
        found.setdefault((i, job.arch), []).append(answer)
    return found


def _whole(forms: Sequence[CompiledKernel]) -> CompiledKernel:
    """Several forms of one config as one: what the most demanding needs; the same binary only where all are."""
    failed = next((form for form in forms if form.error is not None), None)
    if len(forms) == 1 or failed is not None:
        return failed or forms[0]
    most = max(forms, key=lambda form: (form.shared_bytes or 0, form.n_registers or 0, form.spill_bytes or 0))
    binaries = sorted({str(form.binary_digest) for form in forms})
    return replace(
        most,
        binary_digest=binaries[0] if len(binaries) == 1 else digest_of("\n".join(binaries).encode()),
        is_cached=all(form.is_cached for form in forms),
    )


def _report(i: int, compiled: CompiledKernel) -> ConfigReport:
    limits = limits_of(compiled.job.arch)
    return ConfigReport(i, compiled, None if limits is None else occupancy(compiled, limits))


def _with_known(
    question: Question, chosen: Supply, base: Kernel, reports: Sequence[ConfigReport], compiler: Compiler
) -> tuple[ConfigReport, ...]:
    """The baseline's reports, with those of its other configs that an earlier check compiled."""
    if question.is_baseline:
        return ()
    jobs = _jobs(chosen, base, base.configs or (), question.archs)
    known = compiler.known([job for _, job in jobs])
    here = {(report.index, report.arch) for report in reports}
    more = []
    for place, answers in _by_config(jobs, known).items():
        forms = [answer for answer in answers if answer is not None]
        if place not in here and len(forms) == len(answers):
            more.append(_report(place[0], _whole(forms)))
    return tuple(sorted((*reports, *more), key=lambda report: (report.arch, report.index)))


# ---- what it means


def _evidence(
    question: Question,
    own: Kernel,
    base: Kernel,
    configs: Sequence[KernelConfig],
    reports: Sequence[ConfigReport],
    base_reports: Sequence[ConfigReport],
) -> Evidence:
    pairs = list(zip(question.base_files, question.files, strict=True))
    return Evidence(
        variant=question.variant,
        reports=reports,
        is_baseline=question.is_baseline,
        baseline_reports=base_reports,
        others=question.others,
        key=own.key,
        varies=question.target.check.varies,
        n_configs=len(configs),
        n_baseline_configs=None if base.configs is None else len(base.configs),
        same_size_files=tuple(
            new.name for old, new in pairs if old.digest != new.digest and len(old.content) == len(new.content)
        ),
        moved_line=(base.lifted.line, own.lifted.line) if base.lifted.line != own.lifted.line else None,
        may_change_launch=_may_change_launch(question.changes, own.lifted) or own.key != base.key,
    )


def _may_change_launch(changes: Iterable[Change], lifted: Lifted) -> bool:
    """Whether an edit can reach the launch otherwise than through the kernel's own code."""
    jitted = {node.name for node in ast.parse(lifted.source.text).body if isinstance(node, ast.FunctionDef)}
    return any(change.kind == "code" and change.where not in jitted for change in changes)


def _caveats(question: Question, chosen: Supply, own: Kernel) -> tuple[str, ...]:
    found = list(question.caveats)
    if chosen.note:
        found.append(chosen.note)
    most = max(map(len, chosen.forms.values()), default=0)
    if most > 1:
        found.append(f"the engine's Triton compiled up to {most} forms of one config: the one that needs most is shown")
    unknown = [arch_name(arch) for arch in question.archs if limits_of(arch) is None]
    if unknown:
        found.append(f"the limits of {', '.join(unknown)} are not known here: whether it fits cannot be told")
    if own.lifted.list_imports:
        names = ", ".join(dict.fromkeys(dotted.split(".")[0] for dotted in own.lifted.list_imports))
        found.append(f"the autotune list is what {names} makes of it on this machine; the host's may differ")
    guessed = [] if own.lifted.has_autotune else supply.guessed_options(question.target)
    if guessed:
        found.append(
            f"{' and '.join(guessed)} {'is' if len(guessed) == 1 else 'are'} Triton's own: the kernel has no "
            "autotune list, and check.arguments does not say what its launcher passes"
        )
    if chosen.kind == "source" and own.lifted.dropped_decorators:
        names = ", ".join(own.lifted.dropped_decorators)
        found.append(f"compiled without the kernel's decorators {names}, which are not Triton's")
    return tuple(found)


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")
