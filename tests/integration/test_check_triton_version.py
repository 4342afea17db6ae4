"""``orch check --triton VERSION``: a version of its own, really installed by pip, and once."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.check_project import check_project
from tests.support.cli_project import CliProject

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="Triton has Linux wheels only"),
]
VERSION = "3.6.0"
SHARED_BYTES = 60 * 1024 + 384
"""Of the seed's kernel at num_stages 3 with that version; 60.25 KiB with Triton 3.9."""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CliProject]:
    """A project with the seed's kernel, and an empty cache folder of the user's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with check_project(tmp_path / "project") as made:
        yield made


def test_a_named_version_is_installed_once_and_compiles(project: CliProject, tmp_path: Path) -> None:
    """The version that was asked for compiles, without this Python's packages, and is there the next time."""
    project.with_variant("V2", "num_stages=3", "BLOCK_T=16")
    first = project.done("check", "--variant", "V2", "--triton", VERSION, "--json")
    assert f"installing Triton {VERSION}" in first.err
    assert first.document["triton_version"] == VERSION
    assert [config["shared_bytes"] for config in first.document["configs"]] == [SHARED_BYTES]
    again = project.done("check", "--triton", VERSION, "--variant", "V2")
    assert "installing" not in again.err
    assert f"with Triton {VERSION}" in again.out.splitlines()[0]
    (folder,) = (tmp_path / "cache" / "orch" / "triton").iterdir()
    assert folder.name.startswith(f"{VERSION}-cp")
