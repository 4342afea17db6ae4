"""An ``nvidia-smi`` that answers from files, once or in loop mode, for tests of what reads it."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.tiny_host import is_alive

SCRIPT = """#!/bin/sh
dir={folder}
if [ "$1" = -L ]; then cat "$dir/list"; exit "$(cat "$dir/code")"; fi
for field in $(cat "$dir/refused"); do
  case $1 in *"$field"*) echo "Field \\"$field\\" is not a valid field to query."; exit 2 ;; esac
done
case $1 in --query-gpu=*) file=gpus ;; *) file=apps ;; esac
case "$*" in *--loop-ms=*) ;; *) cat "$dir/$file"; exit ;; esac
echo $$ >>"$dir/loops"
until [ -e "$dir/lost-$file" ]; do cat "$dir/$file"; sleep 0.02; done
echo "Unable to determine the device handle for GPU0: GPU is lost"
"""
H200 = "GPU 0: NVIDIA H200 (UUID: GPU-aaaa1111)\n"
IDLE = "0, 74.81, 345, 3201, 27, 4, 0, 0x0000000000000001\n"


class FakeSmi:
    """What it answers may be changed while it runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        program = folder / "nvidia-smi"
        program.write_text(SCRIPT.format(folder=folder))
        program.chmod(0o755)
        self.tell(list=H200, gpus=IDLE, apps="", refused="", code="0")

    def tell(self, **answers: str) -> None:
        """Replaces answers: ``list`` for -L with its exit ``code``, ``gpus``, ``apps``, and the ``refused`` fields."""
        for name, text in answers.items():
            new = self.folder / f"{name}.new"
            new.write_text(text)
            new.replace(self.folder / name)

    def break_loop(self, name: str) -> None:
        """Ends the loop ``gpus`` or ``apps``, as when the driver is gone."""
        (self.folder / f"lost-{name}").touch()

    def loops(self) -> list[int]:
        """The loops that run now."""
        path = self.folder / "loops"
        pids = [int(pid) for pid in path.read_text().split()] if path.exists() else []
        return [pid for pid in pids if is_alive(pid)]


@contextlib.contextmanager
def fake_smi(folder: Path) -> Iterator[FakeSmi]:
    """One on the PATH of this process and of what it starts; at the end its loops are ended."""
    made = FakeSmi(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        try:
            yield made
        finally:
            for pid in made.loops():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
