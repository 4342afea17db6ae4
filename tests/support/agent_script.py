"""Runs the host's script directly in a chosen shell, with faults, and looks at what it left on the file system."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import orchestrator.agent
from orchestrator.agent.answers import Answer, FileAnswer, Refusal, parse

SCRIPT_PATH = Path(orchestrator.agent.__file__).with_name("orch_agent.sh")
SCRIPT = SCRIPT_PATH.read_text(encoding="utf-8")
STEPS = tuple(dict.fromkeys(re.findall(r"^ *step ([a-z-]+)", SCRIPT, re.MULTILINE)))
BASE = b"num_stages = 2\n"
NEW = b"num_stages = 3\n"
OLD_MTIME_S = 1_700_000_000
NEEDED = (
    "sh cat chmod cp date head id ln mkdir mv nohup readlink rm rmdir sha256sum sleep sort stat sync tail touch tr wc"
)


def hex_of(content: bytes) -> str:
    """The digest as the wire has it."""
    return sha256(content).hexdigest()


def start(
    *words: str,
    shell: Sequence[str] = ("/bin/sh",),
    env: Mapping[str, str] | None = None,
    before: Sequence[str] = (),
) -> subprocess.Popen[bytes]:
    """A running agent with its three pipes, in a session of its own as under sshd."""
    return subprocess.Popen(
        [*before, *shell, "-c", SCRIPT, "orch", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "ORCH_SOURCE": SCRIPT, **(env or {})},
        start_new_session=True,
    )


@dataclass
class Reply:
    """What one run of the agent left."""

    exit_code: int
    stdout: bytes
    stderr: bytes

    @property
    def parsed(self) -> Answer | Refusal:
        return parse(self.stdout)

    @property
    def answer(self) -> Answer:
        parsed = self.parsed
        assert isinstance(parsed, Answer), (parsed, self.stderr)
        assert self.exit_code == 0
        return parsed

    @property
    def only(self) -> FileAnswer:
        (file,) = self.answer.files
        return file

    @property
    def refusal(self) -> Refusal:
        parsed = self.parsed
        assert isinstance(parsed, Refusal), parsed
        assert self.exit_code != 0
        return parsed


def finish(agent: subprocess.Popen[bytes], stdin: bytes = b"") -> Reply:
    """Feeds the agent and waits for its end."""
    stdout, stderr = agent.communicate(stdin, timeout=60)
    return Reply(agent.returncode, stdout, stderr)


@dataclass
class HostFile:
    """One target file on this machine, as the agent sees it."""

    path: Path
    shell: Sequence[str] = ("/bin/sh",)
    env: Mapping[str, str] = field(default_factory=dict)
    before: Sequence[str] = ()

    @staticmethod
    def make(path: Path, content: bytes = BASE) -> HostFile:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        os.utime(path, (OLD_MTIME_S, OLD_MTIME_S))
        return HostFile(path)

    @property
    def state_dir(self) -> Path:
        return self.path.parent / f".orch-{self.path.name}"

    @property
    def has_trace(self) -> bool:
        return self.state_dir.exists() or (self.path.parent / ".orch.mutex").is_symlink()

    def identity(self) -> tuple[object, ...]:
        """All that a revert must bring back."""
        found = self.path.stat()
        return (self.path.read_bytes(), found.st_ino, found.st_mode, found.st_uid, found.st_gid, found.st_mtime_ns)

    def ask(self, *words: str, stdin: bytes = b"", **env: str) -> Reply:
        return finish(start(*words, shell=self.shell, env={**self.env, **env}, before=self.before), stdin)

    def push_words(
        self,
        content: bytes = NEW,
        *,
        expected: bytes = BASE,
        nonce: str = "aa",
        ttl_s: int = 60,
        poll_s: str = "0.1",
        floor_s: int = 0,
        on_restore: bytes = b"",
    ) -> list[str]:
        fixed = ["push", nonce, str(ttl_s), poll_s, str(floor_s), "ann@laptop pid 7", str(len(on_restore))]
        return [*fixed, str(self.path), hex_of(expected), hex_of(content), str(len(content))]

    def push(
        self, content: bytes = NEW, *, on_restore: bytes = b"", faults: Mapping[str, str] | None = None, **given: object
    ) -> Reply:
        words = self.push_words(content, on_restore=on_restore, **given)  # type: ignore[arg-type]
        return self.ask(*words, stdin=content + on_restore, **(faults or {}))

    def revert(self, nonce: str = "aa", *, force: bool = False, **faults: str) -> Reply:
        return self.ask("revert", nonce, "1" if force else "0", str(self.path), **faults)

    def stat(self) -> Reply:
        return self.ask("stat", str(self.path))


def watchers_of(path: Path) -> list[int]:
    """Pids of the dead-man watchers that guard a path, zombies and children that are about to run something aside."""
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            parent = int((folder / "stat").read_text().rpartition(") ")[2].split()[1])
        except OSError:
            continue
        if b"orch-watch" in words and os.fsencode(path) in words:
            found[int(folder.name)] = parent
    return [pid for pid, parent in found.items() if parent not in found]


def path_of_coreutils(folder: Path) -> str:
    """A PATH with sh and coreutils, and nothing else: no flock, no setsid."""
    folder.mkdir()
    for name in NEEDED.split():
        real = shutil.which(name)
        assert real is not None, name
        (folder / name).symlink_to(real)
    return str(folder)
