"""What is known of a target and its host, asked of the compiler, and the verdict on record: ``orch check``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator import workspace
from orchestrator.check import environments, report
from orchestrator.check.compiling import Compiler
from orchestrator.check.gpus import arch_of_compute_capability
from orchestrator.check.offline import Question, check_offline
from orchestrator.errors import CheckError, UsageError, VariantError
from orchestrator.project import Project
from orchestrator.records import Snapshot, Target, Variant, short
from orchestrator.session import BASELINE, Report
from orchestrator.store import Store
from orchestrator.verdicts import (
    CachedKernel,
    CompiledKernel,
    CompileJob,
    ConfigReport,
    KernelSource,
    Verdict,
    parse_arch,
)


@dataclass(frozen=True, slots=True)
class Recorded:
    """A verdict and the number that it has in the record."""

    verdict: Verdict
    check_id: int


@dataclass(frozen=True, slots=True)
class Options:
    """How a check is to be made.

    Attributes:
        archs: empty for what the host has, or else the inventory says. triton_version: None for the host's.
    """

    archs: tuple[int, ...] = ()
    triton_version: str | None = None


def check(
    project: Project, store: Store, target: Target, variant: Variant | None, say: Report, options: Options | None = None
) -> Recorded:
    """Checks a variant offline, and records the verdict with its digest.

    Args:
        variant: None for the baseline.

    Raises:
        CheckError: no architecture is known, there is no Triton, or the compiler does not run.
        UsageError: the target names no kernel, or the inventory lacks something that the compile needs.
        VariantError: the variant does not parse.
    """
    question, compiler = ask(project, store, target, variant, say, options or Options())
    verdict = check_offline(question, compiler)
    return Recorded(verdict, store.record_check(verdict, report.document(verdict)))


@dataclass(frozen=True, slots=True)
class Attempt:
    """A check that may not have been possible.

    Attributes:
        recorded: None when it was not. why_not: then the reason, in one line.
    """

    recorded: Recorded | None
    why_not: str | None = None

    @property
    def verdict(self) -> Verdict | None:
        """The verdict, where there is one."""
        return self.recorded.verdict if self.recorded else None

    @property
    def refusal(self) -> VariantError | None:
        """Why it must not be pushed: it cannot launch, is the baseline's binary, or does not compile.

        A variant that does not compile where the baseline was not seen to compile is let pass: what is wrong may be
        what the inventory says of the kernel's arguments.
        """
        verdict = self.verdict
        fatal = next((sentence for sentence in verdict.sentences if sentence.is_fatal), None) if verdict else None
        if verdict is None or fatal is None:
            return None
        is_base_known = any(one.compiled.error is None for one in verdict.baseline_configs)
        if fatal.kind == "does-not-compile" and not is_base_known:
            return None
        return VariantError(
            f"{fatal.text}; nothing was pushed",
            next_step=f"see `orch check --variant {verdict.variant}`, or push it all the same with --force",
        )


def check_if_possible(
    project: Project, store: Store, target: Target, variant: Variant | None, say: Report, options: Options | None = None
) -> Attempt:
    """Like ``check``; what keeps it from being made, and says nothing about the variant, is told instead of raised.

    Raises:
        VariantError: the variant does not parse, or has no such kernel.
    """
    try:
        return Attempt(check(project, store, target, variant, say, options))
    except (CheckError, UsageError) as exc:
        return Attempt(None, str(exc))


# ---- what is asked


def ask(
    project: Project, store: Store, target: Target, variant: Variant | None, say: Report, options: Options
) -> tuple[Question, Compiler]:
    """What is known of a variant, its target and the host, and the compiler to ask.

    Raises:
        As ``check``.
    """
    kernel = _kernel_of(target)
    base = workspace.read_baseline(project.variants_root, target, variant.base_digest if variant else None)
    facts = store.latest_facts(target.host, target.name)
    host_version = _text(facts.get("triton_version"))
    cached = store.cached_kernels(target.name, base.digest)
    archs = options.archs or _known_archs(target, facts, cached)
    chosen = environments.choose(options.triton_version, host_version, say)
    question = Question(
        target=target,
        variant=variant.name if variant else BASELINE,
        digest=(variant or base).digest,
        base_digest=base.digest,
        files=(variant or base).files,
        base_files=base.files,
        archs=archs,
        changes=variant.changes if variant else (),
        cached=cached,
        others=_others(store, target, kernel, variant or base, chosen.environment.version),
        host_triton_version=host_version,
        caveats=chosen.caveats,
    )
    return question, Compiler(chosen.environment, compiled_folder(project), say)


def _kernel_of(target: Target) -> str:
    if target.kernel is None:
        raise UsageError(
            f"target {target.name} names no kernel, so there is nothing to compile",
            next_step="`orch check --variant NAME --remote` imports a variant on the host, as the engine would",
        )
    return target.kernel


def _known_archs(target: Target, facts: Mapping[str, object], cached: Sequence[CachedKernel]) -> tuple[int, ...]:
    """Those that the host was seen to have, else those that the inventory names."""
    capabilities = (_text(facts.get("compute_capability")) or "").split(";")
    seen = [arch for text in capabilities if (arch := arch_of_compute_capability(text)) is not None]
    seen = seen or [arch for kernel in cached if (arch := _cached_arch(kernel)) is not None]
    named = [arch for text in target.check.arch if (arch := parse_arch(text)) is not None]
    if not seen and not named:
        raise CheckError(
            f"no GPU architecture is known for host {target.host}",
            next_step=f"name it with --arch sm_120, or as arch: sm_120 under targets.{target.name}.check in "
            "inventory.yaml; an `orch bench` on a GPU host records it",
        )
    return tuple(dict.fromkeys(seen or named))


def _cached_arch(kernel: CachedKernel) -> int | None:
    found = kernel.metadata.get("target")
    arch = found.get("arch") if isinstance(found, dict) and found.get("backend") == "cuda" else None
    return arch if isinstance(arch, int) else None


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def compiled_folder(project: Project) -> Path:
    """Where answers of the compiler are kept."""
    return project.root / ".orch" / "compiled"


def _others(
    store: Store, target: Target, kernel: str, asked: Variant | Snapshot, triton_version: str
) -> dict[str, list[ConfigReport]]:
    """What other variants of the same base compile to, and what this one did before it was edited, where on record."""
    own_name, base_digest = (asked.name, asked.base_digest) if isinstance(asked, Variant) else (None, asked.digest)
    found: dict[str, list[ConfigReport]] = {}
    source = KernelSource("source", kernel, "", "")
    for known in store.known_binaries(target.name, base_digest, triton_version):
        if known.digest not in (asked.digest, base_digest):
            name = known.variant if known.variant != own_name else f"{own_name} as it was ({short(known.digest)})"
            job = CompileJob(source, known.config, known.arch)
            compiled = CompiledKernel(job, known.triton_version, binary_digest=known.binary_digest)
            reports = found.setdefault(name, [])
            reports.append(ConfigReport(len(reports), compiled, None))
    return found


def parse_archs(texts: Sequence[str]) -> tuple[int, ...]:
    """Architectures as they are typed: ``sm_120``, or several with commas.

    Raises:
        UsageError: one is no architecture.
    """
    words = [word.strip() for text in texts for word in text.split(",")]
    wrong = [word for word in words if parse_arch(word) is None]
    if wrong:
        raise UsageError(f"{wrong[0]!r} is no GPU architecture", next_step="write it like --arch sm_120")
    return tuple(dict.fromkeys(arch for word in words if (arch := parse_arch(word)) is not None))
