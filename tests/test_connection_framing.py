"""The frame around a remote script: any login shell, any bytes, and no success without the closing line."""

from __future__ import annotations

import itertools
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.connection.framing import BOOTSTRAP, Frame, StreamParser, frame
from orchestrator.errors import LineLostError, UsageError

SHELLS = [["sh"], ["bash"], ["dash"], ["zsh", "-f"], ["busybox", "sh"], ["tcsh", "-f"], ["fish", "--no-config"]]
NASTY = [
    "",
    " ",
    "a b",
    "'",
    '"',
    "\\",
    "\\n",
    "\\0134",
    "$HOME `id` $(id)",
    "!x",
    "*",
    "-n",
    "a\nb\n",
    "é\udcff",
    "%s",
]


def _run(shell: list[str], frame_: Frame, payload: bytes = b"") -> tuple[StreamParser, StreamParser]:
    done = subprocess.run(
        [*shell, "-c", BOOTSTRAP], input=frame_.first_line + payload, capture_output=True, timeout=20, check=False
    )
    out, err = StreamParser(frame_), StreamParser(frame_)
    out.feed(done.stdout)
    err.feed(done.stderr)
    return out, err


@pytest.fixture(params=SHELLS, ids=lambda words: words[0])
def shell(request: pytest.FixtureRequest) -> list[str]:
    """A login shell; skipped where it is not installed."""
    words: list[str] = request.param
    if shutil.which(words[0]) is None:
        pytest.skip(f"{words[0]} is not installed")
    return words


def test_every_login_shell_passes_arguments_and_bytes_unchanged(shell: list[str]) -> None:
    """Under sh, bash, dash, zsh, busybox, tcsh and fish, arguments and payload arrive to the byte."""
    payload = bytes(range(256)) * 3
    out, err = _run(shell, frame('printf "%s\\0" "$@"; cat; echo note >&2; exit 7', NASTY), payload)
    words = b"".join(word.encode("utf-8", "surrogateescape") + b"\0" for word in NASTY)
    assert out.content() == words + payload
    assert err.content() == b"note\n"
    assert (out.exit_code, err.exit_code) == (7, 7)


def test_nothing_of_the_user_stands_on_the_command_line() -> None:
    """The command line is constant: the script and its arguments travel on standard input."""
    out, _ = _run(["sh"], frame("tr '\\0' ' ' </proc/$$/cmdline", ["secret-word"]))
    assert b"secret-word" not in out.content()


@pytest.mark.parametrize(
    ("script", "code"), [("exit 3", 3), ("false", 1), ("kill -9 $$ & wait; exit 4", None), ("echo )", 2), ("", 0)]
)
def test_a_script_ends_alone(script: str, code: int | None) -> None:
    """``exit`` and a syntax error end the script, not the frame; a shell that is killed leaves no closing line."""
    out, _ = _run(["dash"] if shutil.which("dash") else ["sh"], frame(script))
    assert out.exit_code == code


def test_banner_before_the_begin_line_is_ignored() -> None:
    """What a login shell prints first is not part of the answer, on either stream."""
    noisy = frame("echo yes; echo no >&2")
    done = subprocess.run(
        ["sh", "-c", f"echo Welcome; printf 'no newline' ; echo motd >&2; {BOOTSTRAP}"],
        input=noisy.first_line,
        capture_output=True,
        check=False,
    )
    for stream, wanted in ((done.stdout, b"yes\n"), (done.stderr, b"no\n")):
        parser = StreamParser(noisy)
        parser.feed(stream)
        assert parser.content() == wanted


def test_what_follows_the_end_line_is_not_ours() -> None:
    """A background process that writes later does not change the answer."""
    framed = frame("true", token="t")
    parser = StreamParser(framed)
    parser.feed(framed.begin + b"abc" + framed.end + b"0\nlate")
    parser.feed(b"later")
    assert parser.content() == b"abc"


def test_every_cut_short_of_the_last_byte_is_a_lost_line() -> None:
    """An answer is accepted only when it is complete: at every earlier byte ``content`` raises."""
    framed = frame("true", token="abc")
    answer = b"banner\n" + framed.begin + b"some\norch-end-abc output" + framed.end + b"12\n"
    for n in range(len(answer)):
        parser = StreamParser(framed)
        parser.feed(answer[:n])
        with pytest.raises(LineLostError):
            parser.content()


@settings(max_examples=200, deadline=None)
@given(content=st.binary(max_size=300), cuts=st.lists(st.integers(0, 400), max_size=12), code=st.integers(0, 255))
def test_pieces_may_fall_anywhere(content: bytes, cuts: list[int], code: int) -> None:
    """However the stream is cut into pieces, the content and the exit code are the same."""
    framed = frame("true")
    answer = b"motd" + framed.begin + content + framed.end + f"{code}\n".encode()
    parser = StreamParser(framed)
    edges = [0, *sorted(min(cut, len(answer)) for cut in cuts), len(answer)]
    for start, stop in itertools.pairwise(edges):
        parser.feed(answer[start:stop])
    assert (parser.content(), parser.exit_code) == (content, code)


def test_byte_by_byte() -> None:
    """One byte at a time gives the same as all at once."""
    framed = frame("true")
    content = b"\n" * 5 + framed.end[:-1] + b"x\n"
    parser = StreamParser(framed)
    for byte in b"noise" + framed.begin + content + framed.end + b"255\n":
        parser.feed(bytes([byte]))
    assert (parser.content(), parser.exit_code) == (content, 255)


def test_a_program_that_arrives_in_part_never_acts(tmp_path: Path) -> None:
    """When the line is cut inside the program, the shell that got the first half does nothing of it."""
    marks = tmp_path / "marks"
    framed = frame(f"touch {marks}.1\ntouch '{marks}.2'\ntouch {marks}.3", ["a", "it's"])
    line = framed.first_line[:-1]
    for n in range(0, len(line), 3):
        subprocess.run(["sh", "-c", BOOTSTRAP], input=line[:n], capture_output=True, timeout=20, check=False)
        assert list(tmp_path.iterdir()) == [], line[:n]


def test_nul_is_refused_before_anything_is_sent() -> None:
    """A NUL in an argument cannot reach a shell and is an error here, not a truncated word there."""
    with pytest.raises(UsageError, match="NUL"):
        frame("true", ["a\0b"])
