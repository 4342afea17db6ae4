"""The time limit of a request, given to clients that have none: in real processes, with the real aiohttp."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.clients import request_limit

TOTALS = """
import asyncio, aiohttp

async def total_of(**named):
    async with aiohttp.ClientSession(**named) as session:
        return session.timeout.total, session.timeout.sock_connect

async def main():
    six_hours = aiohttp.ClientTimeout(total=6 * 60 * 60, sock_connect=7)
    print(await total_of(timeout=six_hours), six_hours.total)
    print(await total_of(timeout=aiohttp.ClientTimeout(total=None, sock_connect=7)))
    print(await total_of(timeout=aiohttp.ClientTimeout(total=3, sock_connect=7)))
    print((await total_of())[0])

asyncio.run(main())
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the limit in it, as the driver makes it on the host."""
    made = tmp_path / "request-limit"
    made.mkdir()
    (made / "sitecustomize.py").write_bytes(Path(request_limit.__file__).read_bytes())
    return made


def python(folder: Path, program: str, *more: Path, **env: str) -> str:
    """What a program prints with the limit first on its path."""
    path = os.pathsep.join(map(str, (folder, *more)))
    note = {"ORCH_REQUEST_LIMIT_NOTE": str(folder / "note")}
    done = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": path, **note, **env}, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.slow
def test_every_session_gives_up_at_the_limit(folder: Path) -> None:
    """A longer patience and none are cut to the limit; a shorter one and all other limits of the client stay."""
    said = python(folder, TOTALS, ORCH_REQUEST_TIMEOUT_S="90.5")
    assert said.splitlines() == ["(90.5, 7) 21600", "(90.5, 7)", "(3, 7)", "90.5"]
    assert (folder / "note").read_text().startswith("aiohttp 3.")


def test_the_environments_own_customisation_still_runs(folder: Path, tmp_path: Path) -> None:
    """A ``sitecustomize`` that the client's environment has is run, and is the one that can be imported."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "sitecustomize.py").write_text("print('mine', __name__)\nX = 5\n")
    said = python(folder, "import sitecustomize; print(sitecustomize.X, sitecustomize.__file__)", other)
    assert said.splitlines() == ["mine sitecustomize", f"5 {other / 'sitecustomize.py'}"]


def test_without_a_limit_or_without_aiohttp_nothing_happens(folder: Path, tmp_path: Path) -> None:
    """A process that is given no limit does not import aiohttp, and one that has no aiohttp runs as ever."""
    assert python(folder, "import sys; print('aiohttp' in sys.modules)") == "False\n"
    missing = tmp_path / "missing"
    missing.mkdir()
    (missing / "aiohttp.py").write_text("raise ImportError('no aiohttp', name='aiohttp')\n")
    assert python(folder, "print('ran')", missing, ORCH_REQUEST_TIMEOUT_S="5") == "ran\n"
    assert not (folder / "note").exists()
