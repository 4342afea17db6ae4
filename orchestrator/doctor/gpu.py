"""The GPUs of the host, through ``nvidia-smi``: which, who else uses them, and what would make numbers unsteady."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from orchestrator.connection import Remote
from orchestrator.doctor.findings import Finding, fail, ok, warn
from orchestrator.doctor.host_facts import bytes_text
from orchestrator.errors import OrchError
from orchestrator.records import Engine

SCRIPT = r"""
# Writes the GPUs, a NUL, and the processes that compute on them. 3: no nvidia-smi; 4: it fails.
limited() { if command -v timeout >/dev/null 2>&1; then timeout 20 "$@"; else "$@"; fi; }
command -v nvidia-smi >/dev/null 2>&1 || exit 3
gpus=$(limited nvidia-smi --query-gpu="$1" --format=csv,noheader,nounits) || { printf '%s\n' "$gpus" >&2; exit 4; }
printf '%s\n\0' "$gpus"
limited nvidia-smi --query-compute-apps=gpu_uuid,pid,used_memory,process_name --format=csv,noheader,nounits || exit 4
"""
COLUMNS = (
    "index",
    "uuid",
    "name",
    "driver_version",
    "memory.used",
    "memory.total",
    "power.limit",
    "power.default_limit",
    "persistence_mode",
    "clocks.max.graphics",
    "clocks.applications.graphics",
)
NO_SMI = 3
TIMEOUT_S = 60.0
MEBIBYTE = 1 << 20
IDLE_MIB = 1024
"""Memory that a GPU may hold with nobody computing on it (the driver's own, a display)."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as nvidia-smi tells of it; ``values`` by name of ``COLUMNS``."""

    values: dict[str, str]

    @property
    def label(self) -> str:
        """``GPU 0``."""
        return f"GPU {self.values['index']}"

    def number(self, column: str) -> float | None:
        """A value as a number; None where the driver does not tell it (``[N/A]``)."""
        try:
            return float(self.values[column])
        except ValueError:
            return None


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that computes on a GPU. ``used_mib``: None where the driver does not tell it."""

    gpu: Gpu
    pid: int
    used_mib: float | None
    command: str


@dataclass(frozen=True, slots=True)
class Gpus:
    """What the host has; no GPU when there is no nvidia-smi.

    Attributes:
        error: why nvidia-smi does not answer.
    """

    gpus: tuple[Gpu, ...] = ()
    processes: tuple[GpuProcess, ...] = ()
    error: str | None = None


def ask(remote: Remote, engine: Engine) -> Gpus:
    """Asks for the GPUs that the engine may use; what goes wrong is in the answer."""
    try:
        done = remote.run(SCRIPT, [",".join(COLUMNS)], timeout_s=TIMEOUT_S)
    except OrchError as exc:
        return Gpus(error=exc.message)
    if done.exit_code == NO_SMI:
        return Gpus()
    if done.exit_code:
        lines = [line for line in (done.stderr + done.stdout).decode("utf-8", "replace").splitlines() if line.strip()]
        return Gpus(error=lines[0].strip() if lines else f"exit code {done.exit_code}")
    gpu_rows, _, process_rows = done.text.partition("\0")
    gpus = _visible([Gpu(dict(zip(COLUMNS, row, strict=True))) for row in _rows(gpu_rows, len(COLUMNS))], engine)
    return Gpus(tuple(gpus), tuple(_processes(process_rows, gpus)))


def _rows(text: str, n_columns: int) -> Iterator[list[str]]:
    for line in text.splitlines():
        row = [value.strip() for value in line.split(",", n_columns - 1)]
        if len(row) == n_columns:
            yield row


def _processes(text: str, gpus: Sequence[Gpu]) -> Iterator[GpuProcess]:
    by_uuid = {gpu.values["uuid"]: gpu for gpu in gpus}
    for uuid, pid, used, command in _rows(text, 4):
        if uuid in by_uuid and pid.isdigit():
            used_mib = float(used) if used.isdigit() else None
            yield GpuProcess(by_uuid[uuid], int(pid), used_mib, command)


def _visible(gpus: Sequence[Gpu], engine: Engine) -> list[Gpu]:
    """Those that the engine's CUDA_VISIBLE_DEVICES names; all where it names none."""
    wanted = [word.strip() for word in engine.env.get("CUDA_VISIBLE_DEVICES", "").split(",") if word.strip()]
    chosen = [
        gpu
        for gpu in gpus
        if gpu.values["index"] in wanted or any(len(w) > 4 and gpu.values["uuid"].startswith(w) for w in wanted)
    ]
    return chosen if wanted else list(gpus)


def check_gpus(engine: Engine, seen: Gpus) -> Finding:
    """Which GPUs there are, with the memory in use."""
    if seen.error is not None:
        return fail("gpu", f"nvidia-smi does not answer: {seen.error}", "run `nvidia-smi` on the host; mend its driver")
    if not seen.gpus and engine.env.get("CUDA_VISIBLE_DEVICES"):
        wanted = engine.env["CUDA_VISIBLE_DEVICES"]
        correct = f"correct CUDA_VISIBLE_DEVICES under env: of engine {engine.name}"
        return fail("gpu", f"no GPU of this host is among CUDA_VISIBLE_DEVICES={wanted}", correct)
    if not seen.gpus:
        return ok("gpu", "no GPU seen (CPU host): fine for the demo engine")
    shown = "; ".join(f"{gpu.label} {gpu.values['name']}, {_memory_words(gpu)}" for gpu in seen.gpus)
    return ok("gpu", f"{shown}; driver {seen.gpus[0].values['driver_version']}")


def _memory_words(gpu: Gpu) -> str:
    used, total = gpu.number("memory.used"), gpu.number("memory.total")
    if used is None or total is None:
        return "memory unknown"
    return f"{bytes_text(int(used * MEBIBYTE))} of {bytes_text(int(total * MEBIBYTE))} used"


def check_processes(engine: Engine, seen: Gpus, own_pids: Collection[int]) -> Finding:
    """Who else computes on the engine's GPUs: it would disturb every number."""
    others = [one for one in seen.processes if one.pid not in own_pids]
    elsewhere = f"or name free GPUs: CUDA_VISIBLE_DEVICES under env: of engine {engine.name}"
    if others:
        text = "; ".join(_process_words(one) for one in others)
        pids = " ".join(dict.fromkeys(str(one.pid) for one in others))
        return warn("gpu processes", text, f"wait for them or end them (`kill {pids}`), {elsewhere}")
    busy = [gpu for gpu in seen.gpus if (gpu.number("memory.used") or 0) > IDLE_MIB]
    if busy and not own_pids:
        text = f"memory of {', '.join(gpu.label for gpu in busy)} is in use by nobody that this host can see"
        return warn(
            "gpu processes", text, f"look in other containers (`nvidia-smi` on the machine itself), {elsewhere}"
        )
    return ok("gpu processes", "the engine's own" if own_pids and seen.processes else "none")


def _process_words(one: GpuProcess) -> str:
    used = "" if one.used_mib is None else f" with {bytes_text(int(one.used_mib * MEBIBYTE))}"
    return f"pid {one.pid} ({one.command}) is on {one.gpu.label}{used}"


def check_clocks(seen: Gpus) -> Finding:
    """Power limit, persistence and clocks: what lets a GPU run otherwise from one start to the next."""
    doubts, steps = [], []
    for gpu in seen.gpus:
        limit, default = gpu.number("power.limit"), gpu.number("power.default_limit")
        if limit is not None and default is not None and limit < default:
            doubts.append(f"{gpu.label} is limited to {limit:g} of {default:g} W")
            steps.append(f"`sudo nvidia-smi -i {gpu.values['index']} -pl {default:g}`")
    if any(gpu.values["persistence_mode"] == "Disabled" for gpu in seen.gpus):
        doubts.append("persistence mode is off, so the driver resets clocks when nobody computes")
        steps.append("`sudo nvidia-smi -pm 1`")
    text = "; ".join(dict.fromkeys(_clock_words(gpu) for gpu in seen.gpus))
    if doubts:
        return warn("gpu clocks", f"{'; '.join(doubts)} ({text})", f"run {' and '.join(steps)} on the host")
    return ok("gpu clocks", text)


def _clock_words(gpu: Gpu) -> str:
    values = {column: gpu.values[column] for column in COLUMNS}
    power = (
        "power limit unknown" if gpu.number("power.limit") is None else f"power limit {gpu.number('power.limit'):g} W"
    )
    applications = gpu.number("clocks.applications.graphics")
    chosen = "" if applications is None else f", applications {applications:g} MHz"
    return f"{power}, persistence {values['persistence_mode']}, at most {values['clocks.max.graphics']} MHz{chosen}"
