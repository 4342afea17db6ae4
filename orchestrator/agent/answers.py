"""Reads the agent's framed answers into records, strictly: anything unexpected is no answer at all.

Pure; it knows the wire format of ``orch_agent.sh`` and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import cast

from orchestrator.records import CLEAN, PUSHED, PUSHING, FileState, Lease, Phase

HEADER = "orch-agent 1"
END = "end"
FACTS_FIELDS = 7
NO_FILE = ("-", "?")


class MalformedAnswerError(ValueError):
    """The answer is cut short or is not one of the agent's; the message says where."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The agent said no.

    Attributes:
        word: which no, as in the script. fields: its values.
    """

    word: str
    fields: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class FileAnswer:
    """One file in an answer.

    Attributes:
        outcome: what this call did to it (``pushed``, ``already``, ``restored``); None when nothing.
        previous_digest, mtime_s: of a push. kept: path on the host where a replaced foreign edit lies.
    """

    state: FileState
    outcome: str | None
    previous_digest: str | None
    mtime_s: int | None
    kept: str | None


@dataclass(frozen=True, slots=True)
class Answer:
    """What the agent said about the files, in the order in which they were asked for.

    Attributes:
        now_s: seconds since the epoch by the host's clock.
        content: the bytes that follow the lines; empty but for ``read``.
    """

    now_s: int
    files: tuple[FileAnswer, ...]
    content: bytes = b""


@dataclass(slots=True)
class _Lines:
    """The lines of one file, gathered until the next one begins."""

    fields: dict[str, str] = field(default_factory=dict)

    def take(self, key: str) -> str:
        try:
            return self.fields[key]
        except KeyError:
            raise MalformedAnswerError(f"no {key!r} line for {self.fields.get('file', 'a file')}") from None


def parse(stdout: bytes, *, has_content: bool = False) -> Answer | Refusal:
    """The agent's answer.

    Args:
        has_content: whether bytes of files follow the lines, as after ``read``.

    Raises:
        MalformedAnswerError: the first or the closing line is missing, or a line is not one of the agent's.
    """
    head, content = _split(stdout) if has_content and not _is_refusal(stdout) else (stdout, b"")
    lines = head.decode("utf-8", "surrogateescape").split("\n")
    if lines[0] != HEADER:
        raise MalformedAnswerError(f"begins with {lines[0][:60]!r}")
    if lines[-2:] != [END, ""]:
        raise MalformedAnswerError("ends without its closing line")
    pairs = [_pair(line) for line in lines[1:-2]]
    if pairs and pairs[0][0] == "error":
        return Refusal(pairs[0][1], dict(pairs[1:]))
    return _answer(pairs, content)


def _is_refusal(stdout: bytes) -> bool:
    return stdout.startswith(f"{HEADER}\nerror ".encode())


def _split(stdout: bytes) -> tuple[bytes, bytes]:
    """Lines and content; the content stands between the line ``bytes`` and the closing line."""
    head, separator, rest = stdout.partition(b"\nbytes\n")
    closing = f"\n{END}\n".encode()
    if not separator or not rest.endswith(closing):
        raise MalformedAnswerError("ends without its closing line")
    return head + closing, rest[: -len(closing)]


def _pair(line: str) -> tuple[str, str]:
    key, space, value = line.partition(" ")
    if not space:
        raise MalformedAnswerError(f"a line without a value: {line[:60]!r}")
    return key, value


def _answer(pairs: list[tuple[str, str]], content: bytes) -> Answer:
    if not pairs or pairs[0][0] != "now":
        raise MalformedAnswerError("does not say the host's time")
    now_s = _integer(pairs[0][1])
    groups: list[_Lines] = []
    for key, value in pairs[1:]:
        if key == "file":
            groups.append(_Lines())
        if not groups or key in groups[-1].fields:
            raise MalformedAnswerError(f"{key!r} out of place")
        groups[-1].fields[key] = value
    return Answer(now_s, tuple(_file(group, now_s) for group in groups), content)


def _file(lines: _Lines, now_s: int) -> FileAnswer:
    optional = lines.fields.get
    state = _state(lines, now_s)
    mtime = optional("mtime")
    return FileAnswer(
        state=state,
        outcome=optional("outcome"),
        previous_digest=_digest(optional("previous", "-")),
        mtime_s=None if mtime is None else _integer(mtime),
        kept=optional("kept"),
    )


def _state(lines: _Lines, now_s: int) -> FileState:
    words = lines.take("journal").split(" ")
    if len(words) != 5 or words[0] not in (CLEAN, PUSHING, PUSHED):
        raise MalformedAnswerError(f"no such journal: {words!r}")
    facts = lines.take("facts").split(" ", FACTS_FIELDS - 1)
    if len(facts) != FACTS_FIELDS and facts != ["-"]:
        raise MalformedAnswerError(f"no such facts: {facts!r}")
    size, mode, inode, n_links, mtime, ctime, owner = facts if len(facts) == FACTS_FIELDS else [None] * FACTS_FIELDS
    return FileState(
        path=lines.take("file"),
        real_path=lines.take("real"),
        digest=_digest(lines.take("digest")),
        size_bytes=_optional_integer(size),
        mode=mode,
        owner=None if owner is None else _owner(owner),
        inode=_optional_integer(inode),
        n_links=_optional_integer(n_links),
        mtime_s=_optional_integer(mtime),
        ctime_s=None if ctime is None else float(ctime),
        phase=cast("Phase", words[0]),
        base_digest=_digest(words[1]),
        pushed_digest=_digest(words[2]),
        lease=_lease(lines, now_s),
    )


def _lease(lines: _Lines, now_s: int) -> Lease | None:
    words = lines.fields.get("lease")
    if words is None:
        return None
    nonce, expiry, _poll = words.split(" ")
    expiry_s = _integer(expiry)
    expires_at = datetime.fromtimestamp(expiry_s, timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")
    return Lease(nonce, lines.take("holder"), float(expiry_s - now_s), expires_at)


def _owner(text: str) -> str:
    """``user:group``; the number where the host knows no name for it."""
    uid, gid, user, group = text.split(":", 3)
    return f"{uid if user == 'UNKNOWN' else user}:{gid if group == 'UNKNOWN' else group}"


def _digest(word: str) -> str | None:
    if word in NO_FILE:
        return None
    if len(word) != 64 or set(word) - set("0123456789abcdef"):
        raise MalformedAnswerError(f"no digest: {word[:80]!r}")
    return f"sha256:{word}"


def _integer(word: str) -> int:
    try:
        return int(word)
    except ValueError:
        raise MalformedAnswerError(f"no number: {word[:60]!r}") from None


def _optional_integer(word: str | None) -> int | None:
    return None if word is None else _integer(word)
