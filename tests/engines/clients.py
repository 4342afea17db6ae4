"""The load clients of other people, as they are installed beside the real engines, and one load by one of them.

``install.sh`` brings vLLM's client and SGLang's new one, ``install_clients.sh`` the others, each into an environment of
the folder that ``ORCH_TEST_ENGINES`` names.
"""

from __future__ import annotations

import stat
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator import bench
from orchestrator.connection.local import LocalRemote
from orchestrator.records import Engine, Host, LoadResult, Workload

DAMAGE = Path(__file__).with_name("damage_result.py")
STUB_MODEL = "stub"


@dataclass(frozen=True)
class RealClient:
    """A client and where it is.

    Attributes:
        label: of its environment where that is not its own name. words: how it is called, from its environment's bin.
        is_native: SGLang's own protocol, which needs an engine that calls itself SGLang.
    """

    name: str
    label: str
    words: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    is_native: bool = False

    def command(self, folder: Path) -> tuple[str, ...]:
        """On this machine."""
        return (str(folder / self.label / "bin" / self.words[0]), *self.words[1:]) if self.words else ()

    def is_installed(self, folder: Path) -> bool:
        """Whether its program is there."""
        return not self.words or Path(self.command(folder)[0]).exists()


OFFLINE = {"HF_HUB_OFFLINE": "1"}
NEW_SGLANG = ("python", "-m", "sglang.benchmark.serving")
CLIENTS = {
    "loadgen": RealClient("loadgen", "loadgen"),
    "sglang": RealClient("sglang", "sglang", NEW_SGLANG, OFFLINE),
    "sglang-native": RealClient("sglang", "sglang", NEW_SGLANG, OFFLINE, is_native=True),
    "sglang-0.5.9": RealClient("sglang", "sglang-0.5.9", ("python", "-m", "sglang.bench_serving"), OFFLINE),
    "vllm": RealClient("vllm", "vllm", ("vllm",), OFFLINE),
    "guidellm": RealClient("guidellm", "guidellm", ("guidellm", "run"), OFFLINE),
    "aiperf": RealClient("aiperf", "aiperf", ("aiperf", "profile")),
}


@dataclass(frozen=True)
class Place:
    """A client, where it is installed, and the folder of one load."""

    client: RealClient
    environments: Path
    tokenizer: Path
    folder: Path

    def workload(self, **fields: Any) -> Workload:
        """A small recipe, made by this client."""
        ours: dict[str, Any] = {
            "input_tokens": 16,
            "output_tokens": 8,
            "prompts_per_concurrency": 2,
            "warmup_per_concurrency": 0,
            "request_timeout_s": 60,
            "load_timeout_s": 240,
        }
        if self.client.words:
            ours |= {
                "client_command": self.client.command(self.environments),
                "client_env": self.client.env,
                "tokenizer": str(self.tokenizer),
            }
        return Workload(name="small", client=self.client.name, **{**ours, **fields})  # type: ignore[arg-type]

    def load(self, base_url: str, workload: Workload, concurrency: int, run: str = "run", **engine: Any) -> LoadResult:
        """One load through a real shell, as ``orch bench`` makes it.

        Args:
            engine: fields of the engine that are not the usual ones.
        """
        fields: dict[str, Any] = {
            "name": "engine",
            "kind": "sglang" if self.client.is_native else "other",
            "command": ("engine",),
            "base_url": base_url,
            "python": sys.executable,
            "model": STUB_MODEL,
            "cache_flush_path": "/flush_cache",
            **engine,
        }
        remote = LocalRemote(Host(name="here", transport="local", scratch_dir=str(self.folder / "scratch")))
        return bench.run_load(
            remote, Engine(**fields), workload, concurrency, run_dir=str(self.folder / run), poll_s=0.2
        )

    def damaging(self, how: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """(fields of the workload, fields of the engine) by which the client's result is damaged once it is written."""
        wrapper = (sys.executable, str(DAMAGE), how)
        if self.client.words:
            return {"client_command": (*wrapper, *self.client.command(self.environments))}, {}
        program = self.folder / "python"
        program.write_text(f'#!/bin/sh\nexec {" ".join(wrapper)} {sys.executable} "$@"\n')
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        return {}, {"python": str(program)}
