"""Where the real engines are: the folder that ``ORCH_TEST_ENGINES`` names, as ``make test-engines`` fills it.

Without that variable nothing of this folder is collected, so the ordinary suite knows neither the tests nor what they
need. In the folder lie virtual environments, one an engine or client, and ``models/``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.real_engines import RealEngine, Sglang, Vllm
from tests.support.ssh_project import session_host

__all__ = ["session_host"]  # a fixture

VARIABLE = "ORCH_TEST_ENGINES"

collect_ignore_glob = [] if VARIABLE in os.environ else ["test_*.py"]


@pytest.fixture(scope="session")
def engines_folder() -> Path:
    """The folder of the environments."""
    return Path(os.environ[VARIABLE]).absolute()


@pytest.fixture(scope="session")
def models_folder(engines_folder: Path) -> Path:
    """The tiny models; skips where they are not made."""
    folder = engines_folder / "models"
    if not (folder / "llama-tiny" / "config.json").exists():
        pytest.skip("the tiny models are not made: tests/engines/install.sh FOLDER models")
    return folder


@pytest.fixture(params=[Vllm, Sglang], ids=["vllm", "sglang"])
def real_engine(request: pytest.FixtureRequest, engines_folder: Path, models_folder: Path) -> Iterator[RealEngine]:
    """Each engine that is installed, with a model so large that its steps, and not its servers, set the pace."""
    kind: type[RealEngine] = request.param
    environment = engines_folder / kind.name
    if not (environment / "bin" / "python").exists():
        pytest.skip(f"{kind.name} is not installed: tests/engines/install.sh FOLDER {kind.name}")
    yield kind(environment, models_folder / "llama-small")
