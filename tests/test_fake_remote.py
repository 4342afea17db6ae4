"""The stand-in behaves like the real thing where a station could tell."""

from __future__ import annotations

import pytest

from orchestrator.connection import Completed
from orchestrator.errors import LineLostError, TargetError
from tests.support.fake_remote import FakeRemote


def test_files_answers_and_calls() -> None:
    """Files live in a dictionary, ``run`` answers as told (the last answer again and again), every call is recorded."""
    remote = FakeRemote({"/a": b"1"})
    remote.answer("uname", "Linux\n", Completed(3, b"", b"gone"))
    remote.write("/b", b"2", mode=0o644)
    assert (remote.read("/a"), remote.read("/b"), remote.modes["/b"]) == (b"1", b"2", 0o644)
    assert [remote.run("uname -s").exit_code for _ in range(3)] == [0, 3, 3]
    assert remote.spawn(["x"], log_path="/log").pid != remote.spawn(["x"], log_path="/log").pid
    assert [call.method for call in remote.calls] == ["write", "read", "read", "run", "run", "run", "spawn", "spawn"]
    with pytest.raises(TargetError):
        remote.read("/none")
    with pytest.raises(AssertionError, match="was not told"):
        remote.run("unknown")


def test_failure_before_and_after_acting() -> None:
    """A lost line may come before the host acted or after; the file tells which."""
    remote = FakeRemote()
    remote.fail_at(2, LineLostError("lost"), after_acting=True)
    remote.fail_at(3, LineLostError("lost"))
    remote.write("/a", b"1")
    for path in ("/b", "/c"):
        with pytest.raises(LineLostError):
            remote.write(path, b"2")
    assert sorted(remote.files) == ["/a", "/b"]
