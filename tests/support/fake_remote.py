"""``FakeRemote``: a host that lives in a dictionary, answers as told, and fails on demand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar, Union

from orchestrator.connection.base import DEFAULT_TIMEOUT_S, Completed, Remote, Spawned
from orchestrator.errors import OrchError, TargetError
from orchestrator.records import Host

_T = TypeVar("_T")
Answer = Union[Completed, Callable[["Call"], Completed]]  # noqa: UP007 - evaluated at run time
Matcher = Union[str, Callable[["Call"], bool]]  # noqa: UP007


@dataclass(frozen=True)
class Call:
    """One use of the remote, in order.

    Attributes:
        method: ``run``, ``read``, ``write``, ``spawn`` or ``scratch_dir``.
        words: arguments of a script, argument vector of a spawn, or the path.
    """

    method: str
    words: tuple[str, ...] = ()
    script: str = ""
    stdin: bytes = b""
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    log_path: str | None = None
    timeout_s: float = DEFAULT_TIMEOUT_S


@dataclass(frozen=True)
class _Failure:
    error: OrchError
    after_acting: bool


class FakeRemote(Remote):
    """A host in memory. Files need no folders; ``run`` knows only the answers it was given.

    Attributes:
        files: absolute path → bytes. modes: of those written through ``write``.
        calls: everything that was asked, in order, failed calls too.
        is_closed: whether ``close`` was called.
    """

    def __init__(self, files: Mapping[str, bytes] | None = None, *, name: str = "fake") -> None:
        self.host = Host(name=name, transport="local", scratch_dir="/scratch/orch")
        self.files: dict[str, bytes] = dict(files or {})
        self.modes: dict[str, int] = {}
        self.calls: list[Call] = []
        self.is_closed = False
        self._answers: list[tuple[Matcher, list[Answer]]] = []
        self._failures: dict[int, _Failure] = {}
        self._lock = threading.RLock()
        self._next_pid = 4242

    # ---- what a test sets up

    def answer(self, matcher: Matcher, *answers: Answer | str | bytes) -> None:
        """What ``run`` answers when the script or an argument contains ``matcher`` (or it returns true).

        Several answers come one after the other, the last again and again. Text stands for its output and exit 0.
        The latest rule that fits wins.
        """
        self._answers.insert(0, (matcher, [_completed(answer) for answer in answers]))

    def fail_at(self, n: int, error: OrchError, *, after_acting: bool = False) -> None:
        """Lets the n-th call from now (1 = the next) raise: before it does anything, or after it has acted.

        After acting is what a lost line looks like: the host did it, and nobody was told.
        """
        with self._lock:
            self._failures[len(self.calls) + n] = _Failure(error, after_acting)

    # ---- the remote

    def run(
        self,
        script: str,
        args: Sequence[str] = (),
        *,
        stdin: bytes = b"",
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> Completed:
        call = Call("run", tuple(args), script=script, stdin=stdin, timeout_s=timeout_s)
        return self._perform(call, lambda: self._answer_to(call))

    def scratch_dir(self) -> str:
        assert self.host.scratch_dir
        folder = self.host.scratch_dir
        return self._perform(Call("scratch_dir"), lambda: folder)

    def read(self, path: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> bytes:
        def act() -> bytes:
            if path not in self.files:
                raise TargetError(f"{self.host.name}: cannot read {path}: there is no such file")
            return self.files[path]

        return self._perform(Call("read", (path,), timeout_s=timeout_s), act)

    def write(self, path: str, content: bytes, *, mode: int = 0o600, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        def act() -> None:
            self.files[path], self.modes[path] = content, mode

        self._perform(Call("write", (path,), stdin=content, timeout_s=timeout_s), act)

    def spawn(
        self, argv: Sequence[str], *, log_path: str, cwd: str | None = None, env: Mapping[str, str] | None = None
    ) -> Spawned:
        def act() -> Spawned:
            self.files[log_path] = b""
            self._next_pid += 1
            return Spawned(self._next_pid, 1000 + self._next_pid, 1_700_000_000.0 + self._next_pid)

        call = Call("spawn", tuple(argv), env=dict(env or {}), cwd=cwd, log_path=log_path)
        return self._perform(call, act)

    def close(self) -> None:
        self.is_closed = True

    def _perform(self, call: Call, act: Callable[[], _T]) -> _T:
        with self._lock:
            self.calls.append(call)
            failure = self._failures.pop(len(self.calls), None)
            if failure and not failure.after_acting:
                raise failure.error
            result = act()
            if failure:
                raise failure.error
            return result

    def _answer_to(self, call: Call) -> Completed:
        for matcher, answers in self._answers:
            if _fits(matcher, call):
                answer = answers.pop(0) if len(answers) > 1 else answers[0]
                return answer(call) if callable(answer) else answer
        raise AssertionError(f"FakeRemote was not told what to answer to {call.script[:200]!r} with {call.words}")


def _completed(answer: Answer | str | bytes) -> Answer:
    if isinstance(answer, str):
        answer = answer.encode()
    return Completed(0, answer, b"") if isinstance(answer, bytes) else answer


def _fits(matcher: Matcher, call: Call) -> bool:
    if callable(matcher):
        return matcher(call)
    return matcher in call.script or any(matcher in word for word in call.words)
