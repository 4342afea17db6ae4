"""The real podman, with storage of its own in a test's folder and containers made of this machine's own programs.

No registry and no network is needed: the image is a handful of links, and ``/usr`` and this Python are mounted into
each container. Each has pid, mount and network namespaces and a control group as podman makes them. Needs root, podman
and runc; not every machine lets containers be made, see ``why_not``.
"""

from __future__ import annotations

import contextlib
import io
import os
import resource
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

IMAGE = "localhost/orch-test"
LINKS = {"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64"}
ENOUGH = 1024
SHARED = ("/usr", "/etc/ld.so.cache")


def why_not(folder: Path) -> str | None:
    """Why no container can be made here; None when one ran."""
    missing = [program for program in ("podman", "runc") if shutil.which(program) is None]
    if missing or os.geteuid() != 0:
        return f"needs {' and '.join(missing)}" if missing else "needs root"
    podman = RealPodman(folder)
    try:
        podman.create("trial", ["/bin/true"], mounts={}, env={}, cwd="/")
        podman.run("start", "--attach", "trial")
    except PodmanError as exc:
        return f"podman cannot run a container here: {exc}"
    finally:
        podman.close()
    return None


class PodmanError(Exception):
    """What podman said when it failed."""


class RealPodman:
    """A ``podman`` for PATH that has the test's storage, and notes what it is asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir(parents=True)
        self._run = tempfile.mkdtemp(prefix="orch-")  # podman takes no path of over 50 characters for it
        own = f"--root {folder}/storage --runroot {self._run} --tmpdir {self._run}/tmp --storage-driver vfs"
        own += " --runtime runc --cgroup-manager cgroupfs --events-backend file --log-level error"
        self.program = self.bin / "podman"
        self.program.write_text(
            f'#!/bin/sh\nprintf "%s\\n" "$*" >>{folder}/calls\nexec {shutil.which("podman")} {own} "$@"\n'
        )
        self.program.chmod(0o755)
        self._names: list[str] = []
        self.run("import", "-", IMAGE, given=_image())

    def create(
        self,
        name: str,
        argv: list[str],
        *,
        mounts: dict[str, str],
        env: dict[str, str],
        cwd: str,
        published: tuple[int, int] | None = None,
    ) -> None:
        """A container that does not run yet.

        Args:
            mounts: path here → path inside. published: port here, port inside: then its network is its own.
        """
        own = {os.path.realpath(prefix): os.path.realpath(prefix) for prefix in (sys.prefix, sys.base_prefix)}
        own = {path: path for path in own if not path.startswith("/usr/") and path != "/usr"} | {sys.prefix: sys.prefix}
        binds = {**{path: path for path in SHARED}, **own, **mounts}
        words = [word for source, inside in binds.items() for word in ("-v", f"{source}:{inside}")]
        words += [word for key, value in env.items() for word in ("-e", f"{key}={value}")]
        words += ["-p", "127.0.0.1:{}:{}".format(*published)] if published else ["--network", "host"]
        for limit in ("nofile", "nproc"):  # podman would set more than a machine without all rights allows
            most = resource.getrlimit(getattr(resource, f"RLIMIT_{limit.upper()}"))[0]
            most = most if 0 < most < ENOUGH else ENOUGH
            words += ["--ulimit", f"{limit}={most}:{most}"]
        self.run("create", "--name", name, "--workdir", cwd, *words, IMAGE, *argv)
        self._names.append(name)

    def start(self, name: str) -> int:
        """As if its user had started it; its first process."""
        self.run("start", name)
        (self.folder / "calls").unlink()
        return self.pid(name)

    def pid(self, name: str) -> int:
        """The container's first process on this machine; 0 when it does not run."""
        return int(self.run("inspect", "--format", "{{.State.Pid}}", name))

    def calls(self, verb: str) -> list[str]:
        """What it was asked with a verb, since its user's start."""
        lines = (self.folder / "calls").read_text().splitlines() if (self.folder / "calls").exists() else []
        return [line for line in lines if line.split()[:1] == [verb]]

    def run(self, *words: str, given: bytes | None = None) -> str:
        """What podman says."""
        done = subprocess.run([self.program, *words], input=given, capture_output=True, check=False)
        out, err = done.stdout.decode(), done.stderr.decode()
        if done.returncode:
            raise PodmanError(f"podman {' '.join(words)}: {err.strip()}")
        return out.strip()

    def close(self) -> None:
        """Ends every container and lets its storage go."""
        for name in self._names:
            with contextlib.suppress(PodmanError):
                self.run("rm", "--force", "--time", "0", name)
        shutil.rmtree(self._run, ignore_errors=True)


def _image() -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        for name in ("usr", "etc", "tmp", "proc", "dev", "sys"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            tar.addfile(entry)
        for name, target in LINKS.items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            tar.addfile(entry)
    return content.getvalue()
