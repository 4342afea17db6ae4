"""Every kind of launcher by its name. To add one: a file ``launch_NAME.py``, a line here, its keys in the inventory."""

from __future__ import annotations

from typing import Any, Mapping

from .launch_command import CommandLauncher
from .launch_container import ContainerExecLauncher, ContainerLauncher
from .launch_manual import ManualLauncher
from .launch_systemd import SystemdLauncher
from .launching import Launcher

KINDS = {
    "command": CommandLauncher,
    "systemd": SystemdLauncher,
    "container": ContainerLauncher,
    "manual": ManualLauncher,
}


def of(settings: Mapping[str, Any]) -> Launcher:
    """The launcher of an engine, by its keys of the inventory."""
    if settings["kind"] == "container" and settings["mode"] == "exec":
        return ContainerExecLauncher(settings)
    return KINDS[settings["kind"]](settings)
