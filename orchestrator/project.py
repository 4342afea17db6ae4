"""A user's project: the folder of inventory.yaml, with results.db and variants/ beside it.

Takes the path of an inventory, gives names their records. Touches no host and writes nothing.
"""

from __future__ import annotations

import getpass
import os
import socket
from dataclasses import dataclass
from pathlib import Path

from orchestrator import inventory as inventory_file
from orchestrator.records import Engine, Host, Inventory, Target, Workload


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

    def host_of(self, target: Target) -> Host:
        """The host that a target lives on."""
        return self.inventory.hosts[target.host]

    def engine_of(self, target: Target) -> Engine:
        """The engine that loads a target."""
        return self.inventory.engines[target.engine]


def holder() -> str:
    """Who holds a lease, for people who find it: user, machine, process."""
    return f"{getpass.getuser()}@{socket.gethostname()} pid {os.getpid()}"
