"""Each real engine: how it is started on a CPU, which of its own files is tuned, and what is done to that file.

``same`` does the same in other words. ``slow`` waits in every step of the engine, without giving the processor away,
for as long as it is told: the wait is sized from a measurement of the baseline.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

MODEL_NAME = "tiny"

_WAIT = """\
        import time as clock

        wait_until_s = clock.perf_counter() + {wait_s!r}
        while clock.perf_counter() < wait_until_s:
            pass
"""


@dataclass(frozen=True)
class RealEngine:
    """One installed engine.

    Attributes:
        environment: its virtual environment. model: the folder of a tiny model.
        module: the file of the engine that is tuned, as the engine imports it.
        place: text of that file, once in it, in the engine's step; same: what ``same`` puts there.
        process_words: for each kind of its processes, what its title or command line has.
        arguments: some of those that it tells of itself. kv_pool_tokens: the size of its KV pool as it was started.
        rank_script: starts one of two ranks, whose words it is given. rank_processes: as process_words, of each rank.
        env: of the inventory. words: further words of its command.
    """

    environment: Path
    model: Path
    words: tuple[str, ...] = ()
    env: dict[str, str | int] = field(default_factory=dict)

    name: ClassVar[str]
    distribution: ClassVar[str]
    module: ClassVar[str]
    place: ClassVar[str]
    same: ClassVar[str]
    process_words: ClassVar[dict[str, str]]
    arguments: ClassVar[dict[str, str | int]]
    kv_pool_tokens: ClassVar[int]
    rank_script: ClassVar[str]
    rank_processes: ClassVar[tuple[dict[str, str], dict[str, str]]]

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.environment / "bin" / "python"

    @property
    def live(self) -> Path:
        """The file that is tuned, in the installed engine."""
        (lib,) = (self.environment / "lib").glob("python3*")
        return lib / "site-packages" / Path(*self.module.split(".")).with_suffix(".py")

    @property
    def version(self) -> str:
        """Of the installed package."""
        asked = f"from importlib.metadata import version; print(version({self.distribution!r}))"
        return subprocess.run([self.python, "-c", asked], check=True, capture_output=True, text=True).stdout.strip()

    def command(self, port: int) -> list[str]:
        """What is started."""
        raise NotImplementedError

    def inventory(self, port: int) -> dict[str, Any]:
        """Its entry under ``engines``."""
        return {
            "kind": self.name,
            "command": [*self.command(port), *self.words],
            "python": str(self.python),
            "base_url": f"http://127.0.0.1:{port}",
            "env": {"HF_HUB_OFFLINE": 1, **self.env},
            "ready_timeout_s": 240.0,
            "stop_grace_s": 20.0,
        }

    def spanning(self, port: int, meeting_port: int) -> dict[str, Any]:
        """Its entry under ``engines`` for one engine with a rank on each of two nodes, whose interfaces are ``eth0``.

        Args:
            meeting_port: on the head, where the ranks find each other.
        """
        entry = self.inventory(port)
        words = [*self.command(port), *self.words, *self.rank_words(meeting_port)]
        command = ["sh", "-c", self.rank_script, "sh", *words]
        return {**entry, "command": command, "env": {**entry["env"], "GLOO_SOCKET_IFNAME": "eth0"}}

    def rank_words(self, meeting_port: int) -> list[str]:
        """What a rank is told besides."""
        raise NotImplementedError

    def same_text(self, text: str) -> str:
        """The file, saying the same in other words."""
        return self._edited(text, self.same)

    def slow_text(self, text: str, wait_s: float) -> str:
        """The file, with a wait in every step."""
        return self._edited(text, _WAIT.format(wait_s=wait_s) + self.place)

    def _edited(self, text: str, replacement: str) -> str:
        assert text.count(self.place) == 1, f"{self.module} of {self.version} has another step"
        return text.replace(self.place, replacement)


@dataclass(frozen=True)
class Vllm(RealEngine):
    """vLLM, its build for CPU. The tuned file is the model's, which the worker process runs."""

    name = "vllm"
    distribution = "vllm"
    module = "vllm.model_executor.models.llama"
    place = """\
        model_output = self.model(
            input_ids, positions, intermediate_tensors, inputs_embeds
        )
        return model_output
"""
    same = """\
        return self.model(
            input_ids, positions, intermediate_tensors, inputs_embeds
        )
"""
    process_words: ClassVar = {"API server": "vllm serve", "engine core": "VLLM::EngineCore", "worker": "VLLM::Worker"}
    arguments: ClassVar = {"enable_prefix_caching": "True", "block_size": "128", "max_model_len": 2048}
    kv_pool_tokens = 1 << 17  # 1 GiB of 8 KiB a token: 8 layers, 4 heads of keys and of values, 64 numbers of 2 bytes
    rank_script = """\
export VLLM_HOST_IP=$(hostname -I | cut -d ' ' -f 1)
exec "$@" $([ {node_rank} = 0 ] || echo --headless)
"""
    rank_processes: ClassVar = (
        {"API server": "vllm serve", "engine core": "VLLM::EngineCore", "worker": "VLLM::Worker_TP0"},
        {"executor": "vllm serve", "worker": "VLLM::Worker_TP1"},
    )

    def command(self, port: int) -> list[str]:
        """Without compilation, and with metrics as they always are."""
        words = f"--served-model-name {MODEL_NAME} --host 127.0.0.1 --port {port} --dtype bfloat16 --enforce-eager"
        return [
            str(self.environment / "bin" / "vllm"),
            *("serve", str(self.model), *words.split()),
            *("--max-model-len", "2048", "--max-num-seqs", "128"),
        ]

    def rank_words(self, meeting_port: int) -> list[str]:
        """Of two ranks, one process on each node."""
        words = f"--master-addr {{head_node}} --master-port {meeting_port}"
        return ["--tensor-parallel-size", "2", "--nnodes", "{n_nodes}", "--node-rank", "{node_rank}", *words.split()]

    def inventory(self, port: int) -> dict[str, Any]:
        """With its development mode, which lets the prefix cache be flushed."""
        env = {"VLLM_NO_USAGE_STATS": 1, "VLLM_CPU_KVCACHE_SPACE": 1, "VLLM_SERVER_DEV_MODE": 1}
        entry = super().inventory(port)
        return {**entry, "env": {**env, **entry["env"]}}


@dataclass(frozen=True)
class Sglang(RealEngine):
    """SGLang: its control plane is the real one, its kernels are plain torch. The tuned file is the scheduler's."""

    name = "sglang"
    distribution = "sglang"
    module = "sglang.srt.managers.scheduler"
    place = """\
        self.forward_ct += 1
        batch.forward_iter = self.forward_ct
"""
    same = """\
        self.forward_ct = self.forward_ct + 1
        batch.forward_iter = self.forward_ct
"""
    process_words: ClassVar = {
        "tokenizer manager": "sglang.launch_server",
        "scheduler": "sglang::scheduler",
        "detokenizer": "sglang::detokenizer",
    }
    arguments: ClassVar = {"attention_backend": "torch_native", "tp_size": 1, "disable_radix_cache": "false"}
    kv_pool_tokens = 65536
    rank_script = """\
export SGLANG_HOST_IP=$(hostname -I | cut -d ' ' -f 1) SGLANG_CPU_OMP_THREADS_BIND='0|1'
exec "$@"
"""
    rank_processes: ClassVar = (
        {
            "tokenizer manager": "sglang.launch_server",
            "scheduler": "sglang::scheduler_TP0",
            "detokenizer": "sglang::detokenizer",
        },
        {"server": "sglang.launch_server", "scheduler": "sglang::scheduler_TP1"},
    )

    def command(self, port: int) -> list[str]:
        """On the CPU, with metrics."""
        words = f"--served-model-name {MODEL_NAME} --host 127.0.0.1 --port {port} --device cpu --enable-metrics"
        cpu = "--attention-backend torch_native --mem-fraction-static 0.05 --max-total-tokens 65536"
        return [
            *(str(self.python), "-m", "sglang.launch_server", "--model-path", str(self.model), *words.split()),
            *(*cpu.split(), "--disable-overlap-schedule", "--disable-cuda-graph"),
        ]

    def rank_words(self, meeting_port: int) -> list[str]:
        """Of two ranks, one scheduler on each node."""
        words = f"--dist-init-addr {{head_node}}:{meeting_port}"
        return ["--tp-size", "2", "--nnodes", "{n_nodes}", "--node-rank", "{node_rank}", *words.split()]

    def inventory(self, port: int) -> dict[str, Any]:
        """One thread of torch, for there is a client too."""
        entry = super().inventory(port)
        return {**entry, "env": {"OMP_NUM_THREADS": 1, "SGLANG_USE_CPU_ENGINE": 1, **entry["env"]}}
