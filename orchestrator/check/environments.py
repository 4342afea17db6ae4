"""Which Triton compiles: this Python's own, or one installed in a folder of its own for a named version.

The controller imports no Triton. A version's folder is made once by pip, under the user's cache folder, and used from
then on by starting this same Python without its own packages.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import CheckError, UsageError
from orchestrator.records import Progress

DISTRIBUTIONS = ("triton", "pytorch-triton")
INSTALL_TIMEOUT_S = 900.0
_VERSION = re.compile(r"\d+(\.\d+)+([a-z]+\d*)?(\.(post|dev)\d+)?(\+[A-Za-z0-9.]+)?")

Report = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class TritonEnvironment:
    """A Python with a Triton.

    Attributes:
        version: of Triton. folder: where it is installed; None when it is this Python's own.
    """

    version: str
    folder: Path | None

    @property
    def command(self) -> list[str]:
        """How to start that Python, isolated from the user's environment, up to its own arguments."""
        return [sys.executable, "-I"] if self.folder is None else [sys.executable, "-I", "-S"]


@dataclass(frozen=True, slots=True)
class Chosen:
    """The Triton to compile with, and what a reader must know of the choice."""

    environment: TritonEnvironment
    caveats: tuple[str, ...]


def choose(asked: str | None, host_version: str | None, report: Report) -> Chosen:
    """The version that was asked for, else the host's where it is here, else what is here, with a caveat.

    Args:
        asked: a version to build an environment for when it is not here. host_version: None when not recorded.

    Raises:
        UsageError: not a version. CheckError: it cannot be installed, or no Triton is here at all.
    """
    if asked is not None:
        _require_version(asked)
        environment = _find(asked) or _install(asked, report)
    else:
        found = _find(host_version) if host_version is not None else None
        environment = found or _any(host_version)
    return Chosen(environment, _caveats(environment.version, host_version))


def _caveats(version: str, host_version: str | None) -> tuple[str, ...]:
    if host_version is None:
        return (f"compiled with Triton {version}; the host's version is not on record (an engine start records it)",)
    if version == host_version:
        return ()
    what = f"compiled with Triton {version}, the host has {host_version}: registers and buffers can differ"
    if _public(version) == _public(host_version):
        return (what,)
    return (f"{what}; `--triton {_public(host_version)}` compiles with the host's",)


def _require_version(text: str) -> None:
    if not _VERSION.fullmatch(text):
        raise UsageError(f"{text!r} is not a version of Triton", next_step="write it like --triton 3.6.0")


def _public(version: str) -> str:
    """A version without its local part: ``3.2.0+git0d4682f0`` is 3.2.0."""
    return version.partition("+")[0]


def own_version() -> str | None:
    """Version of the Triton that this Python has; None when it has none."""
    from importlib.metadata import PackageNotFoundError, version

    for name in DISTRIBUTIONS:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


def _find(version: str) -> TritonEnvironment | None:
    """That version, when it is here."""
    own = own_version()
    if own is not None and _public(own) == _public(version):
        return TritonEnvironment(own, None)
    folder = _folder(version)
    return TritonEnvironment(_public(version), folder) if folder.is_dir() else None


def _any(host_version: str | None) -> TritonEnvironment:
    own = own_version()
    if own is not None:
        return TritonEnvironment(own, None)
    installed = sorted(_root().glob(f"*-{_tag()}"), key=_sortable)
    if installed:
        return TritonEnvironment(installed[-1].name.removesuffix(f"-{_tag()}"), installed[-1])
    wanted = _public(host_version) if host_version else "3.6.0"
    raise CheckError(
        f"no Triton is installed for this Python ({sys.executable}), so nothing can be compiled",
        next_step=f"run it with --triton {wanted}, which installs that version in a folder of its own (Linux only)",
    )


def _sortable(folder: Path) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", folder.name))


def _root() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "orch" / "triton"


def _tag() -> str:
    return f"cp{sys.version_info.major}{sys.version_info.minor}"


def _folder(version: str) -> Path:
    """Where a version is installed for this version of Python, whose extension modules fit no other."""
    return _root() / f"{_public(version)}-{_tag()}"


def _install(version: str, report: Report) -> TritonEnvironment:
    """Installs a version with pip into its folder: whole or not at all."""
    folder = _folder(version)
    report(Progress("triton", f"installing Triton {_public(version)} into {folder} (once, some 200 MB)"))
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        _pip_install(_public(version), unfinished)
        try:
            unfinished.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another orch was quicker
                raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return TritonEnvironment(_public(version), folder)


def _pip_install(version: str, folder: Path) -> None:
    wheel_only = ["--only-binary", ":all:", "--no-compile", "--target", str(folder), f"triton=={version}"]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wheel_only]
    uv = shutil.which("uv")
    if not _has_pip() and uv is not None:
        command = [uv, "pip", "install", "--quiet", "--python", sys.executable, *wheel_only]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as exc:
        raise CheckError(f"installing Triton {version} did not end within {INSTALL_TIMEOUT_S:.0f} s") from exc
    if done.returncode:
        raise _install_error(version, done.stderr)


def _has_pip() -> bool:
    from importlib.util import find_spec

    return find_spec("pip") is not None


def _install_error(version: str, output: str) -> CheckError:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    offered = re.search(r"from versions: ([^)]*)\)", output)
    if offered is not None:
        versions = [text.strip() for text in offered[1].split(",") if text.strip() not in ("", "none")]
        shown = f"there are {', '.join(versions[-8:])}" if versions else "there is none: Triton has Linux wheels only"
        return CheckError(f"Triton {version} cannot be had for this Python and system", next_step=shown)
    return CheckError(
        f"Triton {version} could not be installed", next_step="see what pip said below", evidence=lines[-10:]
    )
