"""Guards for every test: a home folder of its own, and nothing of the user's ssh configuration.

It sits at the root of the tests, so that pytest puts the checkout on sys.path and ``tests.support`` can be imported.
"""

from __future__ import annotations

import os
import pwd
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

REAL_HOMES = {Path(pwd.getpwuid(os.getuid()).pw_dir), Path(os.environ.get("HOME", "/"))}
FORBIDDEN = tuple(f"{home / '.ssh'}" for home in REAL_HOMES)
SSH_PROGRAMS = {"ssh", "scp", "sftp"}

_violations: list[str] = []
_is_armed = False


def _watch(event: str, args: tuple[Any, ...]) -> None:
    """An audit hook: it sees every open and every program start of this process, whichever library does it."""
    if not _is_armed:
        return
    if event in ("open", "os.listdir", "os.scandir", "os.mkdir", "os.rename", "os.remove"):
        path = args[0]
        if isinstance(path, (str, bytes, os.PathLike)):
            text = os.fsdecode(path)
            if text.startswith(FORBIDDEN):
                _violations.append(f"{event} {text}")
                raise PermissionError(f"a test must not touch {text}")
    elif event == "subprocess.Popen":
        words = [os.fsdecode(word) for word in args[1]] if isinstance(args[1], (list, tuple)) else []
        if words and Path(words[0]).name in SSH_PROGRAMS and "-F" not in words:
            _violations.append(" ".join(words))
            raise PermissionError(f"a test must give -F to {words[0]}: it would read the user's ~/.ssh/config")


sys.addaudithook(_watch)

# Started in the background or under nohup, these two are ignored, by all children too: the tests send them.
for _number, _handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _handler)


@pytest.fixture(autouse=True, scope="session")
def _throwaway_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """HOME is an empty folder and there is no agent, for this process and everything that it starts."""
    global _is_armed
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "SSH_AUTH_SOCK"):
            patch.delenv(name, raising=False)
        _is_armed = True
        yield
        _is_armed = False


@pytest.fixture(autouse=True)
def _leaves_ssh_alone() -> Iterator[None]:
    """Fails a test that reached for the user's ~/.ssh, also when the refusal was caught on the way."""
    _violations.clear()
    yield
    assert not _violations, f"this test touched the user's ssh configuration: {_violations}"
