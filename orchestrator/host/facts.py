"""The facts of a host and of a running engine under which numbers are taken. Unknown is None, never a guess.

No module of the engine is imported: versions come from what a known kind of engine answers or from package metadata,
the rest from the kernel and ``nvidia-smi``.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import socket
import subprocess
from typing import Any, Dict, List, Optional, Sequence, Union

from . import engine_answers, engine_state, interpreter, masking, process_table
from .process_table import Process

Fact = Union[str, int, float, None]

DISTRIBUTIONS = ("torch", "triton", "pytorch-triton", "sglang", "vllm")
ENGINES = ("sglang", "vllm")
RECORDED_VARIABLES = re.compile(r"(CUDA|TRITON|TORCH|VLLM|SGLANG|SGL|NCCL|OMP)_\w+|TORCH\w*|PYTHONPATH|HF_HUB_OFFLINE")
LEFT_OUT_VARIABLES = frozenset(["TRITON_CACHE_DIR", "TRITON_PRINT_AUTOTUNING"])
"""The first differs from variant to variant on purpose, so it must not make two arms incomparable; the second only
makes Triton say what it chose."""

_GPU_COLUMNS = (
    "uuid",
    "name",
    "driver_version",
    "power.limit",
    "persistence_mode",
    "clocks.applications.graphics",
    "clocks.applications.memory",
    "clocks.max.graphics",
    "clocks.max.memory",
)
_CAPABILITY_COLUMN = "compute_cap"
"""An older driver does not know it, and then refuses the whole query."""
_SMI_TIMEOUT_S = 20.0


def main(request: Dict[str, Any]) -> Dict[str, Fact]:
    """Answers the facts by name.

    Of a known kind of engine (``kind``) the engine itself is asked too, as ``asked`` says: ``version``, ``model``, and
    all else as its arguments.
    """
    record = engine_state.read_record(request["state_dir"])
    alive = engine_state.members(request["state_dir"], record, process_table.processes()) if record else []
    facts: Dict[str, Fact] = {
        "hostname": socket.gethostname(),
        "kernel_release": platform.release(),
        "cpu_model": _cpu_model(),
        "n_cpus": os.cpu_count(),
        "memory_bytes": _memory_bytes(),
        "model": request["model"],
    }
    told = _told(request)
    argv = record["argv"] if record else request["command"]
    facts.update(_versions(request, alive, argv, told.pop("version", None)))
    model = told.pop("model", None)
    if request["kind"]:
        facts["model"] = request["model"] or model
        facts["engine_arguments"] = json.dumps(told, sort_keys=True) if told else None
    facts.update(_gpus([one.pid for one in alive]))
    facts["engine_command"] = " ".join(map(shlex.quote, masking.mask_arguments(argv)))
    facts["engine_env"] = _environment(alive)
    return facts


def _cpu_model() -> Optional[str]:
    """The processor's name; None where the kernel does not tell it."""
    try:
        with open("/proc/cpuinfo") as file:
            found = re.search(r"^(?:model name|Model|cpu model)\s*:\s*(.+)$", file.read(), re.MULTILINE)
    except OSError:
        return _run(["sysctl", "-n", "machdep.cpu.brand_string"])
    return found.group(1).strip() if found else None


def _memory_bytes() -> Optional[int]:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def _run(argv: Sequence[str]) -> Optional[str]:
    """The standard output of a program; None when it is not there, fails or hangs."""
    try:
        done = subprocess.run(
            argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=_SMI_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode("utf-8", "replace").strip()


def _told(request: Dict[str, Any]) -> Dict[str, Fact]:
    """What the engine says of itself, without what it does not say; logins inside URLs hidden."""
    found = engine_answers.read(request["asked"])
    shown = {
        name: masking.mask_arguments([value])[0] if isinstance(value, str) else value for name, value in found.items()
    }
    return {name: value for name, value in shown.items() if value is not None}


def _versions(request: Dict[str, Any], alive: List[Process], argv: Sequence[str], told: Fact) -> Dict[str, Fact]:
    """Versions of Python, torch, triton and the engine, as the engine's interpreter has them installed.

    A known kind of engine that tells its own version is believed before its package.
    """
    like_engine = interpreter.of_engine(request, alive)
    answer = interpreter.ask(like_engine, request, {"distributions": [*DISTRIBUTIONS, *request["distributions"]]})
    found = answer.get("distributions", {})
    command = " ".join(argv).lower()
    engines = sorted((name for name in ENGINES if found.get(name)), key=lambda name: name not in command)
    version = "%s %s" % (engines[0], found[engines[0]]) if engines else None
    if request["kind"]:
        own = told or next((found[name] for name in request["distributions"] if found.get(name)), None)
        version = "%s %s" % (request["kind"], own) if own else None
    return {
        "python_version": answer.get("python"),
        "torch_version": found.get("torch"),
        "triton_version": found.get("triton") or found.get("pytorch-triton"),
        "engine_version": version,
    }


def _environment(alive: Sequence[Process]) -> Optional[str]:
    """The recorded variables of the leader as JSON, secrets masked; of the next process where it cannot be read."""
    for one in alive:
        environment = process_table.environment_of(one.pid)
        if environment:
            kept = {
                name: value
                for name, value in environment.items()
                if RECORDED_VARIABLES.fullmatch(name) and name not in LEFT_OUT_VARIABLES
            }
            return json.dumps(masking.mask_environment(kept), sort_keys=True)
    return None


def _gpus(pids: Sequence[int]) -> Dict[str, Fact]:
    """The GPUs that the engine's processes use; all of the host when the driver does not say who uses which."""
    gpus = _listed_gpus((*_GPU_COLUMNS, _CAPABILITY_COLUMN)) or _listed_gpus(_GPU_COLUMNS)
    used = _used_gpus(pids)
    gpus = [gpu for gpu in gpus if gpu["uuid"] in used] or gpus
    return {
        "gpu_uuids": _joined(gpus, "%(uuid)s"),
        "gpu_names": _joined(gpus, "%(name)s"),
        "compute_capability": _capability(gpus),
        "driver_version": gpus[0]["driver_version"] if gpus else None,
        "power_limits_w": _joined(gpus, "%(power.limit)s"),
        "clock_policy": _joined(
            gpus,
            "applications %(clocks.applications.graphics)s/%(clocks.applications.memory)s MHz, "
            "max %(clocks.max.graphics)s/%(clocks.max.memory)s MHz, persistence %(persistence_mode)s",
        ),
    }


def _listed_gpus(columns: Sequence[str]) -> List[Dict[str, str]]:
    """Each GPU's values by column; empty where the driver refuses one of the columns, or is not there."""
    listing = _run(["nvidia-smi", "--query-gpu=" + ",".join(columns), "--format=csv,noheader,nounits"])
    rows = [_fields(line) for line in (listing or "").splitlines()]
    return [dict(zip(columns, row)) for row in rows if len(row) == len(columns)]  # noqa: B905 (Python 3.8)


def _capability(gpus: Sequence[Dict[str, str]]) -> Optional[str]:
    """``12.0``; each value once where GPUs differ; None where the driver does not tell it."""
    values = [gpu.get(_CAPABILITY_COLUMN, "") for gpu in gpus]
    return "; ".join(dict.fromkeys(value for value in values if re.fullmatch(r"\d+\.\d+", value))) or None


def _used_gpus(pids: Sequence[int]) -> List[str]:
    listing = _run(["nvidia-smi", "--query-compute-apps=pid,gpu_uuid", "--format=csv,noheader,nounits"])
    rows = [_fields(line) for line in (listing or "").splitlines()]
    return [row[1] for row in rows if len(row) == 2 and row[0].isdigit() and int(row[0]) in pids]


def _fields(line: str) -> List[str]:
    return [field.strip() for field in line.split(",")]


def _joined(gpus: Sequence[Dict[str, str]], template: str) -> Optional[str]:
    """One text for all GPUs, in the driver's order; None without a GPU."""
    return "; ".join(template % gpu for gpu in gpus) or None
