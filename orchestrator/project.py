"""A user's project: the folder of inventory.yaml, with results.db and variants/ beside it.

Takes the path of an inventory, gives names their records. Touches no host; writes nothing but the lock that keeps two
orch processes of one project from working on one target at once (the host's lease keeps other projects away).
"""

from __future__ import annotations

import getpass
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from orchestrator import inventory as inventory_file
from orchestrator.errors import LeaseHeldError
from orchestrator.records import Engine, Host, Inventory, Target, Workload

ORPHANED_LOCK_PATIENCE_S = 2.0
"""How long the lock of an orch that is gone is waited for."""


@dataclass(frozen=True, slots=True)
class Project:
    """One project folder.

    Attributes:
        root: the folder that holds inventory.yaml, results.db and variants/.
    """

    root: Path
    inventory: Inventory

    @staticmethod
    def open(inventory_path: str | Path) -> Project:
        """Reads and validates the inventory.

        Raises:
            InventoryError: missing or wrong; names file, line and key.
        """
        path = Path(inventory_path)
        return Project(path.absolute().parent, inventory_file.load(path))

    @property
    def db_path(self) -> Path:
        """The record."""
        return self.root / "results.db"

    @property
    def variants_root(self) -> Path:
        """Working copies, one folder a target."""
        return self.root / "variants"

    def target(self, name: str | None) -> Target:
        """The named target; the only one when no name is given."""
        return inventory_file.pick_target(self.inventory, name)

    def workload(self, name: str | None) -> Workload:
        """The named workload; the only one when no name is given."""
        return inventory_file.pick_workload(self.inventory, name)

    def workloads_of_recipe(self, name: str | None) -> list[Workload]:
        """The workloads that are the same load as the named one, each by another client; itself among them."""
        return inventory_file.workloads_of_recipe(self.inventory, name)

    def host_of(self, target: Target) -> Host:
        """The host that a target lives on."""
        return self.inventory.hosts[target.host]

    def engine_of(self, target: Target) -> Engine:
        """The engine that loads a target."""
        return self.inventory.engines[target.engine]

    @contextmanager
    def lock(self, target: Target, *, is_required: bool) -> Iterator[bool]:
        """Keeps other orch processes of this project off a target; the kernel releases it, even after kill -9.

        Args:
            is_required: refuse when another one holds it; else go on without.

        Yields:
            Whether the lock is held.

        Raises:
            LeaseHeldError: another one holds it; names its pid.
        """
        folder = self.root / ".orch"
        folder.mkdir(exist_ok=True)
        with (folder / f"{target.name}.lock").open("a+", encoding="utf-8") as file:
            if not _is_acquired(file):
                if not is_required:
                    yield False
                    return
                raise LeaseHeldError(
                    f"another orch of this project ({_named_holder(file) or 'unknown'}) is at work on {target.name}",
                    next_step="wait for it, or interrupt it with Ctrl-C there; `orch status` can be asked meanwhile",
                )
            file.truncate(0)
            file.write(f"{holder()}\n")
            file.flush()
            yield True


def _is_acquired(file: IO[str]) -> bool:
    """Takes the lock, unless a process that lives has it.

    A child that orch was about to start when it was killed shares the lock until it becomes the program that it is
    for (measured: up to 15 ms after the kill, in half of the kills of a process that does nothing else).
    """
    import fcntl

    deadline = time.monotonic() + ORPHANED_LOCK_PATIENCE_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not _is_dead(_named_holder(file)) or time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        else:
            return True


def _named_holder(file: IO[str]) -> str:
    file.seek(0)
    return file.read().strip()


def _is_dead(named: str) -> bool:
    """Whether a holder, as ``holder`` names it, was a process of this machine that is gone."""
    machine, _, pid = named.partition(" pid ")
    if machine.rpartition("@")[2] != socket.gethostname() or not pid.isdecimal():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False


def holder() -> str:
    """Who holds a lease, for people who find it: user, machine, process."""
    return f"{getpass.getuser()}@{socket.gethostname()} pid {os.getpid()}"
