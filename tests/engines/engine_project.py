"""A user's project whose engine is a real one, on a host that is a real sshd; and what is left of it at the end."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
from hashlib import sha256
from pathlib import Path
from typing import Any

from tests.engines.real_engines import RealEngine
from tests.support.ssh_project import SessionHost, SshProject, command_of, environment_of, pids
from tests.support.waiting import wait_until

SHARED_MEMORY = Path("/dev/shm")
WORKLOAD = {
    "input_tokens": 64,
    "output_tokens": 64,
    "prompts_per_concurrency": 16,
    "min_token_id": 300,
    "max_token_id": 4000,
    "cache_policy": "flush",
}


class EngineProject(SshProject):
    """The project; its target is one file of the installed engine, and names no kernel.

    Attributes:
        pristine: digest of that file before anything was done.
    """

    def __init__(self, folder: Path, host: SessionHost, engine: RealEngine) -> None:
        super().__init__(folder, host)
        self.engine = engine
        self.live = engine.live
        self.pristine = self.digest
        self.before = self.identity()
        self.memory_before = set(shared_memory())
        self.site.mkdir(parents=True)
        self.scratch.mkdir(mode=0o700)

    def write(self, **workload: Any) -> None:
        """Writes inventory.yaml (JSON is YAML).

        Args:
            workload: keys that replace the usual ones.
        """
        host = {"ssh_config": str(self.host.ssh.ssh_config_path), "scratch_dir": str(self.scratch)}
        inventory = {
            "hosts": {"gpu-a": host},
            "engines": {self.engine.name: self.engine.inventory(self.port)},
            "targets": {"step": {"module": self.engine.module, "files": [str(self.live)]}},
            "workloads": {"short": {**WORKLOAD, **workload}},
        }
        self.laptop.mkdir(exist_ok=True)
        self.inventory.write_text(json.dumps(inventory, indent=1))

    def edit(self, name: str, text: str) -> None:
        """Makes a variant by hand, as ``orch variant new`` and an editor do."""
        self.done("variant", "new", name)
        (self.laptop / "variants" / "step" / name / self.live.name).write_text(text)

    def bench(self, *words: str) -> dict[str, Any]:
        """The document of one ``orch bench``."""
        found: dict[str, Any] = self.done("bench", *words, "--json").document
        return found

    def facts(self) -> dict[str, Any]:
        """Those of the newest start."""
        (row,) = self.query(
            "select facts from trials join environments on environments.id = environment_id order by trials.id desc"
            " limit 1"
        )
        found: dict[str, Any] = json.loads(row["facts"])
        found["engine_arguments"] = json.loads(found["engine_arguments"])
        return found

    def engine_pids(self) -> list[int]:
        """Every process of the engine: those in a session that an engine of this project led, or with its mark."""
        leaders = {row["pid"] for row in self.query("select pid from trials where pid is not null")}
        for record in self.scratch.glob("engines/*/process.json"):
            leaders.add(json.loads(record.read_text())["pid"])
        mark = os.fsencode(self.scratch)
        own = os.getpid()
        return [
            pid
            for pid in pids()
            if pid != own and (_session_of(pid) in leaders or mark in environment_of(pid) + command_of(pid))
        ]

    def digest_of(self, variant: str) -> str:
        """Of a variant's working copy."""
        path = self.laptop / "variants" / "step" / variant / self.live.name
        return "sha256:" + sha256(path.read_bytes()).hexdigest()

    def leaked_memory(self) -> list[str]:
        """What is new in shared memory and held by nobody who lives."""
        held = held_memory()
        known = self.memory_before | held.keys()
        return sorted(
            name for name, inode in shared_memory().items() if name not in known and inode not in held.values()
        )

    def close(self) -> None:
        """Ends what is left, and puts the file back if orch did not."""
        for running in self.begun:
            running.kill()
        if self.inventory.exists() and self.digest != self.pristine:
            self.orch("revert")
        for pid in self.engine_pids() if (self.laptop / "results.db").exists() else []:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not self.host_pids())
        assert "sha256:" + sha256(self.live.read_bytes()).hexdigest() == self.pristine


def titles(pids_of_engine: list[int]) -> dict[int, str]:
    """What each process calls itself."""
    return {pid: command_of(pid).replace(b"\0", b" ").decode("utf-8", "replace").strip() for pid in pids_of_engine}


def shared_memory() -> dict[str, int]:
    """Name and inode of each file in shared memory."""
    found = {}
    for path in SHARED_MEMORY.iterdir():
        with contextlib.suppress(FileNotFoundError):
            found[path.name] = path.stat().st_ino
    return found


def held_memory() -> dict[str, int]:
    """Those that a live process has mapped, by the name that it mapped and by inode."""
    found = {}
    for pid in pids():
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/maps").read_text("utf-8", "replace").splitlines():
                if match := re.search(r" (\d+)\s+/dev/shm/(.+?)( \(deleted\))?$", line):
                    found[match[2]] = int(match[1])
    return found


def _session_of(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[3])
    return 0
