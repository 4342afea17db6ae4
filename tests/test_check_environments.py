"""Which Triton compiles, and what the reader is told of it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from orchestrator.check import environments
from orchestrator.check.environments import choose
from orchestrator.errors import CheckError, UsageError
from orchestrator.records import Progress


@pytest.fixture
def steps() -> list[Progress]:
    """What is reported."""
    return []


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder, and a Python that has Triton 3.9.0."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(environments, "own_version", lambda: "3.9.0")
    return tmp_path / "orch" / "triton"


def installed(cache: Path, version: str) -> Path:
    """A folder that stands for an installed version."""
    folder = cache / f"{version}-cp{sys.version_info.major}{sys.version_info.minor}"
    folder.mkdir(parents=True)
    return folder


def no_install(*_: object) -> None:
    """Stands for pip where it must not be needed."""
    raise AssertionError("nothing may be installed")


def test_the_own_triton_serves_where_the_host_has_the_same(
    monkeypatch: pytest.MonkeyPatch, steps: list[Progress]
) -> None:
    """The host's version is here: nothing is installed, and there is nothing to say."""
    monkeypatch.setattr(environments, "_pip_install", no_install)
    chosen = choose(None, "3.9.0", steps.append)
    assert (chosen.environment.version, chosen.environment.folder, chosen.caveats) == ("3.9.0", None, ())
    assert steps == []


def test_another_version_than_the_hosts_is_named(monkeypatch: pytest.MonkeyPatch, steps: list[Progress]) -> None:
    """Without --triton nothing is installed; the output names both versions and what to type."""
    monkeypatch.setattr(environments, "_pip_install", no_install)
    chosen = choose(None, "3.5.1", steps.append)
    assert chosen.environment.version == "3.9.0"
    assert chosen.caveats == (
        "compiled with Triton 3.9.0, the host has 3.5.1: registers and buffers can differ; "
        "`--triton 3.5.1` compiles with the host's",
    )


def test_a_host_without_a_record_is_a_caveat(steps: list[Progress]) -> None:
    """Nobody knows the host's version: the reader is told so."""
    (caveat,) = choose(None, None, steps.append).caveats
    assert "the host's version is not on record" in caveat


def test_a_version_that_was_installed_before_is_used(
    cache: Path, monkeypatch: pytest.MonkeyPatch, steps: list[Progress]
) -> None:
    """The host's version, or the one asked for, comes from its folder without pip."""
    monkeypatch.setattr(environments, "_pip_install", no_install)
    folder = installed(cache, "3.5.1")
    assert choose(None, "3.5.1", steps.append).environment.folder == folder
    asked = choose("3.5.1", "3.9.0", steps.append)
    assert asked.environment.folder == folder
    assert "the host has 3.9.0" in asked.caveats[0]


def test_a_build_of_the_same_version_is_used_and_named(cache: Path, steps: list[Progress]) -> None:
    """A vendor's build of 3.9.0 is 3.9.0, but perhaps not bit for bit."""
    chosen = choose(None, "3.9.0+git1234", steps.append)
    assert chosen.environment.folder is None
    assert chosen.caveats == (
        "compiled with Triton 3.9.0, the host has 3.9.0+git1234: registers and buffers can differ",
    )


def test_a_version_is_installed_once_and_whole(
    cache: Path, monkeypatch: pytest.MonkeyPatch, steps: list[Progress]
) -> None:
    """pip fills a folder beside the place, which is then renamed; the second time pip is not asked."""
    filled: list[Path] = []

    def install(version: str, folder: Path) -> None:
        assert version == "3.6.0"
        (folder / "triton").mkdir()
        filled.append(folder)

    monkeypatch.setattr(environments, "_pip_install", install)
    for _ in range(2):
        chosen = choose("3.6.0", "3.6.0", steps.append)
        assert chosen.environment.folder is not None
        assert (chosen.environment.folder / "triton").is_dir()
    assert len(filled) == 1
    assert [step.stage for step in steps] == ["triton"]
    assert [path.name for path in cache.iterdir()] == [chosen.environment.folder.name]


def test_an_install_that_fails_leaves_nothing(
    cache: Path, monkeypatch: pytest.MonkeyPatch, steps: list[Progress]
) -> None:
    """A half-filled folder is never taken for a version."""

    def install(version: str, folder: Path) -> None:
        (folder / "triton").mkdir()
        raise CheckError("the line was cut")

    monkeypatch.setattr(environments, "_pip_install", install)
    with pytest.raises(CheckError, match="the line was cut"):
        choose("3.6.0", None, steps.append)
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize("text", ["latest", "3", "3.6.0; rm -rf /", "--index-url=x", "", "3.6.0 "])
def test_what_is_no_version_is_refused(text: str, monkeypatch: pytest.MonkeyPatch, steps: list[Progress]) -> None:
    """Nothing but a version reaches pip."""
    monkeypatch.setattr(environments, "_pip_install", no_install)
    with pytest.raises(UsageError, match="is not a version of Triton"):
        choose(text, None, steps.append)


def test_without_any_triton_the_way_to_one_is_named(monkeypatch: pytest.MonkeyPatch, steps: list[Progress]) -> None:
    """A laptop without Triton gets one line with what to type; the host's version where it is known."""
    monkeypatch.setattr(environments, "own_version", lambda: None)
    with pytest.raises(CheckError) as caught:
        choose(None, "3.5.1", steps.append)
    assert "no Triton is installed for this Python" in caught.value.message
    assert "--triton 3.5.1" in str(caught.value.next_step)


def test_the_newest_installed_version_serves_where_nothing_else_does(
    cache: Path, monkeypatch: pytest.MonkeyPatch, steps: list[Progress]
) -> None:
    """By number, not by letter: 3.10.0 is newer than 3.9.1."""
    monkeypatch.setattr(environments, "own_version", lambda: None)
    for version in ("3.9.1", "3.10.0"):
        installed(cache, version)
    assert choose(None, None, steps.append).environment.version == "3.10.0"


def test_pips_refusals_become_one_line() -> None:
    """What versions there are, or that there is none for this system, or pip's own last lines."""
    offered = environments._install_error("9.9", "ERROR: Could not find …9.9 (from versions: 3.5.1, 3.6.0)\n")
    assert str(offered) == "Triton 9.9 cannot be had for this Python and system: there are 3.5.1, 3.6.0"
    nothing = environments._install_error("3.6.0", "ERROR: … (from versions: none)\n")
    assert "Triton has Linux wheels only" in str(nothing)
    other = environments._install_error("3.6.0", "ERROR: No space left on device\n")
    assert other.evidence == ("ERROR: No space left on device",)


@pytest.mark.integration
def test_pip_really_refuses_a_version_that_does_not_exist(steps: list[Progress]) -> None:
    """The real pip: one line, and nothing is left behind."""
    with pytest.raises(CheckError) as caught:
        choose("0.0.77", None, steps.append)
    assert caught.value.message.startswith("Triton 0.0.77 c")
