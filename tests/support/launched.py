"""Projects whose engine is started by a launcher: what the tests of systemd, containers and restarts have in common."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

from tests.support.ssh_project import SUPPORT, SshProject

MOUNTED_ENV = {"PYTHONPATH": "/opt/engine"}


def on_path(project: SshProject, folder: Path) -> None:
    """Puts programs before all others on the host's PATH."""
    project.host.faults.write_text(f'export PATH="{folder}:$PATH"\n')


def engine_argv(project: SshProject, *words: str) -> list[str]:
    """The command line of the engine, which now somebody else starts."""
    own = ["-m", "serving_engine", "--port", str(project.port), "--module", "kernels.fast"]
    return [sys.executable, *own, *words]


def managed(project: SshProject, launcher: dict[str, Any], **engine: Any) -> None:
    """An inventory whose engine is started by a launcher, with nothing that only a command has."""
    own = {"command": None, "cwd": None, "env": None, "launcher": launcher, **engine}
    project.write_inventory(engine=own)
    inventory = json.loads(project.inventory.read_text())
    entry = inventory["engines"]["serving"]
    inventory["engines"]["serving"] = {key: value for key, value in entry.items() if value is not None}
    project.inventory.write_text(json.dumps(inventory))


def whole_job(project: SshProject) -> None:
    """Pull, bench, push, bench; what was loaded is proved each time."""
    project.with_variants()
    measured = project.done("bench", "--concurrency", "1", "--json").document
    assert measured["loaded_digest"] == project.digest_of("baseline")
    project.done("push", "--variant", "V1")
    measured = project.done("bench", "--concurrency", "1", "--json").document
    assert measured["loaded_digest"] == measured["digest"] == project.digest_of("V1")
    assert [row["status"] for row in project.query("select status from trials")] == ["ok", "ok"]


def findings(project: SshProject) -> dict[str, str]:
    """What the doctor says of a host that is in order, by check."""
    found = project.done("doctor", "--json").document["findings"]
    assert [one for one in found if one["status"] == "fail"] == []
    return {one["name"]: one["text"] for one in found}


def runs_on(project: SshProject, name: str) -> bool:
    """Whether the engine answers, with the kernel of a variant in memory."""
    with contextlib.suppress(OSError):
        return bool(project.get("/loaded")["modules"] == {"kernels.fast": project.digest_of(name)})
    return False


def mounts(project: SshProject) -> dict[str, str]:
    """The package as a folder, and the engine's program."""
    return {str(project.site): "/srv/site", str(SUPPORT): "/opt/engine"}


def container(**keys: str) -> dict[str, Any]:
    """The launcher of a container."""
    return {"kind": "container", "name": "sglang", "python": sys.executable, **keys}
