"""A stand-in for systemd: ``systemctl`` and ``journalctl`` on PATH that really start and stop processes.

``FakeSystemd(folder)`` installs both; this file is also the program behind them. A unit is a JSON file in the folder
with ``argv``, ``cwd``, ``env`` and ``is_restarted`` (Restart=always: a main process that is gone is started again at
the next look). Every call is kept, word by word. Its answers have the shape of systemd 252.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

# beside this file, also when it runs as a program
sys.path.insert(0, str(Path(__file__).parent))
import fake_control_group as control_group


class FakeSystemd:
    """Installs the programs, and says what they were asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir(parents=True)
        for name in ("systemctl", "journalctl"):
            program = self.bin / name
            program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I "{__file__}" "{folder}" {name} "$@"\n')
            program.chmod(0o755)

    def install(
        self, unit: str, argv: list[str], *, cwd: Path, env: dict[str, str], is_restarted: bool = False
    ) -> None:
        """Writes a unit; it does not run yet."""
        spec = {"argv": argv, "cwd": str(cwd), "env": env, "is_restarted": is_restarted}
        (self.folder / f"{unit}.json").write_text(json.dumps(spec))

    def start(self, unit: str) -> int:
        """As if its user had started it; its main process."""
        subprocess.run([self.bin / "systemctl", "start", unit], check=True)
        (self.folder / "calls").unlink()
        return self.main_pid(unit)

    def main_pid(self, unit: str) -> int:
        """The unit's main process; 0 without one."""
        return int(_state(self.folder, unit).get("pid", 0))

    def calls(self, verb: str) -> list[list[str]]:
        """What systemctl was asked with a verb."""
        lines = (self.folder / "calls").read_text().splitlines() if (self.folder / "calls").exists() else []
        return [words for words in map(json.loads, lines) if verb in words]

    def close(self) -> None:
        """Ends every unit."""
        for path in self.folder.glob("*.state"):
            _stop(self.folder, path.stem)
            control_group.remove(_state(self.folder, path.stem).get("group", ""))


def _state(folder: Path, unit: str) -> dict[str, Any]:
    with contextlib.suppress(OSError):
        state: dict[str, Any] = json.loads((folder / f"{unit}.state").read_text())
        return state
    return {}


def _keep(folder: Path, unit: str, state: dict[str, Any]) -> None:
    (folder / f"{unit}.state").write_text(json.dumps(state))


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _start(folder: Path, unit: str) -> None:
    state, spec = _state(folder, unit), json.loads((folder / f"{unit}.json").read_text())
    if _is_alive(state.get("pid", 0)):
        return
    group = state.get("group") or control_group.make(f"orch-test-{secrets.token_hex(4)}/{unit}")
    invocation = secrets.token_hex(16)
    with (folder / f"journal.{invocation}").open("wb") as journal:
        child = subprocess.Popen(
            spec["argv"],
            cwd=spec["cwd"],
            env={"PATH": os.environ["PATH"], **spec["env"]},
            stdin=subprocess.DEVNULL,
            stdout=journal,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    control_group.enter(group, child.pid)
    child.returncode = 0  # it outlives this program
    _keep(folder, unit, {"pid": child.pid, "group": group, "invocation": invocation, "is_wanted": True})


def _stop(folder: Path, unit: str) -> None:
    state = _state(folder, unit)
    _keep(folder, unit, {**state, "pid": 0, "is_wanted": False})
    for number in (signal.SIGTERM, signal.SIGKILL):
        pids = [pid for pid in {state.get("pid", 0), *control_group.pids(state.get("group", ""))} if _is_alive(pid)]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        deadline_s = time.monotonic() + 5
        while any(map(_is_alive, pids)) and time.monotonic() < deadline_s:
            time.sleep(0.01)


def _show(folder: Path, unit: str, words: list[str]) -> None:
    wanted = next(word for word in words if word.startswith("--property=")).partition("=")[2].split(",")
    if not (folder / f"{unit}.json").exists():
        told = {"LoadState": "not-found", "ActiveState": "inactive", "SubState": "dead", "MainPID": "0"}
    else:
        spec, state = json.loads((folder / f"{unit}.json").read_text()), _state(folder, unit)
        if spec["is_restarted"] and state.get("is_wanted") and not _is_alive(state["pid"]):
            _start(folder, unit)
            state = _state(folder, unit)
        is_active = _is_alive(state.get("pid", 0))
        is_failed = bool(state.get("is_wanted")) and not is_active
        told = {
            "LoadState": "loaded",
            "ActiveState": "active" if is_active else "failed" if is_failed else "inactive",
            "SubState": "running" if is_active else "failed" if is_failed else "dead",
            "Result": "exit-code" if is_failed else "success",
            "MainPID": str(state["pid"]) if is_active else "0",
            "ControlGroup": state.get("group", "") if is_active else "",
            "InvocationID": state.get("invocation", ""),
        }
    for name in wanted:
        if name in told:
            print(f"{name}={told[name]}")


def _journal(folder: Path, words: list[str]) -> None:
    invocations = [word.partition("=")[2] for word in words if word.startswith("_SYSTEMD_INVOCATION_ID=")]
    if not invocations:
        invocations = [_state(folder, words[words.index("--unit") + 1]).get("invocation", "")]
    for path in (folder / f"journal.{invocation}" for invocation in invocations):
        if path.exists():
            sys.stdout.write(path.read_text())


def main() -> None:
    """One call of one of the programs."""
    folder, program, words = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
    with (folder / "calls").open("a") as calls:
        calls.write(json.dumps([program, *words]) + "\n")
    if program == "journalctl":
        _journal(folder, words)
        return
    verb, unit = next(word for word in words if not word.startswith("-")), words[-1]
    if verb in ("start", "stop") and not (folder / f"{unit}.json").exists():
        sys.exit(f"Failed to {verb} {unit}: Unit {unit} not found.")
    if verb == "show":
        _show(folder, unit, words)
    elif verb == "start":
        _start(folder, unit)
    elif verb == "stop":
        _stop(folder, unit)
    else:
        sys.exit(f"Unknown command verb {verb}.")


if __name__ == "__main__":
    main()
