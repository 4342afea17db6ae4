"""The shared methods of ``Remote`` on this machine: what holds here holds over every transport."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.connection import connect, scripts
from orchestrator.connection.local import LocalRemote
from orchestrator.errors import (
    HostWriteError,
    LineLostError,
    RemoteCommandError,
    RemoteTimeoutError,
    TargetError,
    UsageError,
)
from orchestrator.records import Host
from tests.support.waiting import wait_until


@pytest.fixture
def remote(tmp_path: Path) -> LocalRemote:
    """This machine, with a scratch folder in the test's own."""
    return LocalRemote(Host(name="here", transport="local", scratch_dir=str(tmp_path / "scratch")))


@pytest.fixture
def spawned() -> Iterator[list[int]]:
    """Process ids to end after the test."""
    pids: list[int] = []
    yield pids
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def test_connect_opens_this_machine() -> None:
    """The transport ``local`` gives a LocalRemote, which may be closed twice."""
    with connect(Host(name="here", transport="local")) as opened:
        assert isinstance(opened, LocalRemote)
        opened.close()


def test_sixteen_megabytes_both_ways_at_once(remote: LocalRemote) -> None:
    """A script that echoes a large input neither blocks nor changes a byte."""
    payload = os.urandom(1 << 24)
    assert remote.run("cat", stdin=payload).stdout == payload


def test_a_script_need_not_read_its_input(remote: LocalRemote) -> None:
    """Input that nobody reads does not hold up the answer."""
    done = remote.run("echo done; exit 5", stdin=b"x" * (1 << 22))
    assert (done.stdout, done.exit_code) == (b"done\n", 5)


def test_deadline_kills_the_script_and_its_children(remote: LocalRemote, tmp_path: Path) -> None:
    """Past the deadline comes RemoteTimeoutError, and nothing of the script is left."""
    with pytest.raises(RemoteTimeoutError, match=r"0\.3 s"):
        remote.run('sleep 60 & echo $! >"$1"; wait', [str(tmp_path / "pid")], timeout_s=0.3)
    pid = int((tmp_path / "pid").read_text())
    wait_until(lambda: not _is_alive(pid))


def test_killed_shell_is_a_lost_line(remote: LocalRemote) -> None:
    """A shell that dies before its closing line gives LineLostError, never an exit code."""
    with pytest.raises(LineLostError, match="closing line"):
        remote.run("echo begun; kill -9 $$")


def test_a_background_child_does_not_hold_up_the_answer(remote: LocalRemote, spawned: list[int]) -> None:
    """The closing line ends the call, though a child still holds the output open."""
    done = remote.run("sleep 60 & echo $!", timeout_s=20)
    spawned.append(int(done.stdout))
    assert _is_alive(spawned[0])


def test_scratch_dir_is_made_private_and_asked_once(remote: LocalRemote, tmp_path: Path) -> None:
    """A missing scratch folder is made with mode 700; the second call needs no shell."""
    folder = remote.scratch_dir()
    assert folder == str(tmp_path / "scratch")
    assert stat.S_IMODE(Path(folder).stat().st_mode) == 0o700
    Path(folder).rmdir()
    assert remote.scratch_dir() == folder


def test_scratch_dir_follows_xdg_then_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without a setting it is $XDG_CACHE_HOME/orch, else ~/.cache/orch; a relative XDG value is ignored."""
    monkeypatch.setenv("HOME", str(tmp_path / "h"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert LocalRemote(Host(name="a", transport="local")).scratch_dir() == str(tmp_path / "x/orch")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert LocalRemote(Host(name="a", transport="local")).scratch_dir() == str(tmp_path / "h/.cache/orch")


def test_shared_scratch_dir_keeps_its_mode(tmp_path: Path) -> None:
    """A folder that was there is not made private: others may use it."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o775)
    LocalRemote(Host(name="a", transport="local", scratch_dir=str(shared))).scratch_dir()
    assert stat.S_IMODE(shared.stat().st_mode) == 0o775


def test_impossible_scratch_dir_names_the_setting(tmp_path: Path) -> None:
    """A scratch folder below a file is refused with the inventory's key in the next step."""
    (tmp_path / "file").write_text("")
    with pytest.raises(HostWriteError, match="scratch_dir of host a"):
        LocalRemote(Host(name="a", transport="local", scratch_dir=str(tmp_path / "file/x"))).scratch_dir()


@pytest.mark.parametrize("content", [b"", b"\0\xff\r\n", b"no newline", b"x" * 100_000], ids=len)
def test_write_then_read_gives_the_same_bytes(remote: LocalRemote, tmp_path: Path, content: bytes) -> None:
    """Any bytes survive, missing folders are made, and the mode is the one asked for."""
    path = tmp_path / "new folder" / "it's a file"
    remote.write(str(path), content, mode=0o644)
    assert path.read_bytes() == remote.read(str(path)) == content
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert [p.name for p in path.parent.iterdir()] == ["it's a file"]


def test_read_refuses_what_is_not_a_file(remote: LocalRemote, tmp_path: Path) -> None:
    """Missing, a directory, a fifo, a dangling link: each a TargetError that says which."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name, reason in (("none", "no such file"), (".", "not a regular"), ("fifo", "not a regular")):
        with pytest.raises(TargetError, match=reason):
            remote.read(str(tmp_path / name))
    with pytest.raises(TargetError) as caught:
        remote.read(str(tmp_path / "link"))
    assert caught.value.evidence == ("a symbolic link to nothing",)


def test_read_refuses_a_file_that_it_may_not_read(tmp_path: Path) -> None:
    """A file without the right to read it is told from a missing one, and is not an empty answer."""
    secret = tmp_path / "secret"
    secret.write_text("x")
    secret.chmod(0)
    argv = ["sh", "-c", scripts.READ, "sh", str(secret)]
    if os.getuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("needs setpriv to give up root's right to read everything")
        without = "-dac_override,-dac_read_search"
        argv = ["setpriv", f"--inh-caps={without}", f"--bounding-set={without}", *argv]
    assert subprocess.run(argv, check=False, capture_output=True).returncode == scripts.UNREADABLE


def test_a_file_that_changes_under_the_read_is_never_returned_torn(remote: LocalRemote, tmp_path: Path) -> None:
    """When digest and bytes disagree each time, there is an error and no content."""
    path = tmp_path / "restless"
    path.write_text("start")
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "cat").write_text(f'#!/bin/sh\necho more >>"{path}"\nexec /bin/cat "$@"\n')
    (tools / "cat").chmod(0o755)
    remote.run = _with_path(remote.run, tools)  # type: ignore[method-assign]
    with pytest.raises(TargetError, match="changed while it was read, 3 times"):
        remote.read(str(path))


def test_write_that_fails_leaves_what_was_there(remote: LocalRemote, tmp_path: Path) -> None:
    """Onto a full disk: HostWriteError, the old bytes stay, no temporary file is left."""
    if os.getuid() != 0:
        pytest.skip("needs root to mount a small file system")
    mount = tmp_path / "small"
    mount.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(mount)], check=False)
    if made.returncode:
        pytest.skip("mounting is not allowed here")
    try:
        remote.write(str(mount / "file"), b"old")
        with pytest.raises(HostWriteError, match="No space"):
            remote.write(str(mount / "file"), b"x" * 200_000)
        assert (mount / "file").read_bytes() == b"old"
        assert [path.name for path in mount.iterdir()] == ["file"]
    finally:
        subprocess.run(["umount", str(mount)], check=True)


def test_write_refuses_a_directory(remote: LocalRemote, tmp_path: Path) -> None:
    """A directory of that name is not written into."""
    with pytest.raises(HostWriteError, match="is a directory"):
        remote.write(str(tmp_path), b"x")
    assert list(tmp_path.iterdir()) == []


def test_bytes_that_arrive_wrong_replace_nothing(remote: LocalRemote, tmp_path: Path) -> None:
    """The host compares what arrived with the digest that was announced before it renames."""
    (tmp_path / "file").write_text("old")
    digest = hashlib.sha256(b"sent").hexdigest()
    done = remote.run(scripts.WRITE, [str(tmp_path / "file"), "600", digest], stdin=b"arrived")
    assert done.exit_code == scripts.BAD_TRANSFER
    assert (tmp_path / "file").read_text() == "old"


def test_spawned_process_is_detached(remote: LocalRemote, tmp_path: Path, spawned: list[int]) -> None:
    """Own session and group, three descriptors and no more, INT and QUIT at their defaults, the folder asked for."""
    log_path = tmp_path / "logs" / "engine.log"
    started = remote.spawn(
        ["sh", "-c", 'echo "$WORD"; echo err >&2; exec sleep 60'],
        log_path=str(log_path),
        cwd=str(tmp_path),
        env={"WORD": "a 'b'\n$c"},
    )
    spawned.append(started.pid)
    wait_until(lambda: log_path.read_text().endswith("err\n"))
    assert log_path.read_text() == "a 'b'\n$c\nerr\n"
    assert os.getsid(started.pid) == os.getpgid(started.pid) == started.pid
    proc = Path(f"/proc/{started.pid}")
    wait_until(lambda: b"sleep" in (proc / "cmdline").read_bytes())
    assert {path.name for path in (proc / "fd").iterdir()} == {"0", "1", "2"}
    assert (proc / "fd/0").readlink() == Path("/dev/null")
    assert (proc / "cwd").readlink() == tmp_path
    ignored = int(_status(started.pid, "SigIgn"), 16)
    assert not ignored & (1 << (signal.SIGINT - 1) | 1 << (signal.SIGQUIT - 1))
    assert started.start_ticks == int((proc / "stat").read_text().rpartition(")")[2].split()[19])


def test_start_time_is_not_later_than_the_truth(remote: LocalRemote, tmp_path: Path, spawned: list[int]) -> None:
    """started_s lies between the moment before the call and the one after it."""
    before = time.time()
    started = remote.spawn(["sleep", "60"], log_path=str(tmp_path / "log"))
    spawned.append(started.pid)
    assert before - 0.001 <= started.started_s <= time.time()


def test_spawned_process_outlives_a_signal_to_the_group(
    remote: LocalRemote, tmp_path: Path, spawned: list[int]
) -> None:
    """The interrupt that ends a controller's session does not reach what was spawned."""
    started = remote.spawn(["sleep", "60"], log_path=str(tmp_path / "log"))
    spawned.append(started.pid)
    assert os.getpgid(started.pid) != os.getpgid(0)
    os.kill(started.pid, signal.SIGINT)  # and yet it can be stopped by it
    wait_until(lambda: not _is_alive(started.pid))


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (["/nonexistent/engine"], "not found"),
        (["no-such-program"], "not found"),
        (["{folder}"], "ermission denied|irectory"),
        (["{folder}/plain"], "ermission denied"),
    ],
    ids=["path", "name", "directory", "not-executable"],
)
def test_program_that_cannot_be_started_is_an_error(
    remote: LocalRemote, tmp_path: Path, argv: list[str], reason: str
) -> None:
    """No such program, or one that may not run: RemoteCommandError with the shell's words, not a dead pid."""
    (tmp_path / "plain").write_text("#!/bin/sh\n")
    with pytest.raises(RemoteCommandError, match="could not start") as caught:
        remote.spawn([word.format(folder=tmp_path) for word in argv], log_path=str(tmp_path / "log"))
    assert re.search(reason, "\n".join(caught.value.evidence))


def test_spawn_in_a_missing_folder_is_an_error(remote: LocalRemote, tmp_path: Path) -> None:
    """The working folder must be there."""
    with pytest.raises(RemoteCommandError, match="could not start true in /nonexistent"):
        remote.spawn(["true"], log_path=str(tmp_path / "log"), cwd="/nonexistent")


def test_program_that_ends_at_once_was_started(remote: LocalRemote, tmp_path: Path) -> None:
    """An engine that fails by itself is not a failed start: its log and exit belong to whoever waits for it."""
    started = remote.spawn(["sh", "-c", "echo oops; exit 3"], log_path=str(tmp_path / "log"))
    assert started.pid > 1
    assert (tmp_path / "log").read_text() == "oops\n"


def test_spawn_refuses_a_name_that_no_environment_has(remote: LocalRemote, tmp_path: Path) -> None:
    """``A=B;C`` as a variable's name is refused before anything runs."""
    with pytest.raises(UsageError, match="not the name of an environment variable"):
        remote.spawn(["true"], log_path=str(tmp_path / "log"), env={"A;touch x": "1"})


@pytest.mark.parametrize("without", ["setsid", "env-signals", "perl"])
def test_spawn_without_some_tools(remote: LocalRemote, tmp_path: Path, spawned: list[int], without: str) -> None:
    """Without setsid, without GNU env, or with python3 only, the process is still a session leader that INT stops."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in (
        "sh",
        "cat",
        "date",
        "tr",
        "cut",
        "tail",
        "sleep",
        "mkdir",
        "dirname",
        "perl",
        "python3",
        "env",
        "setsid",
    ):
        found = shutil.which(name)
        if found and Path(found).resolve().name.startswith(("pyenv", "python3")) and name == "python3":
            found = shutil.which("python3", path="/usr/bin:/usr/local/bin")
        if found:
            (tools / name).symlink_to(found)
    if without == "env-signals":
        (tools / "env").unlink()
        (tools / "env").write_text('#!/bin/sh\ncase $1 in --*) exit 125;; esac\nexec /usr/bin/env "$@"\n')
        (tools / "env").chmod(0o755)
    else:
        (tools / "setsid").unlink()
    if without == "perl":
        (tools / "perl").unlink(missing_ok=True)
        if not (tools / "python3").exists():
            pytest.skip("needs a python3 outside of pyenv")
    remote.run = _with_path(remote.run, tools, only=True)  # type: ignore[method-assign]
    started = remote.spawn(["sleep", "60"], log_path=str(tmp_path / "log"))
    spawned.append(started.pid)
    assert os.getsid(started.pid) == started.pid
    os.kill(started.pid, signal.SIGINT)
    wait_until(lambda: not _is_alive(started.pid))


def test_check_brings_the_last_lines(remote: LocalRemote) -> None:
    """A failed command's error carries its last 25 lines of standard error."""
    with pytest.raises(RemoteCommandError, match="could not count \\(exit code 9\\)") as caught:
        remote.check("i=0; while [ $i -lt 40 ]; do echo $i >&2; i=$((i+1)); done; exit 9", doing="count")
    assert caught.value.evidence == tuple(str(i) for i in range(15, 40))


@pytest.mark.parametrize("name", ["SCRATCH_DIR", "READ", "WRITE", "SPAWN"])
def test_scripts_pass_shellcheck(name: str, tmp_path: Path) -> None:
    """shellcheck finds nothing in the POSIX sh sources."""
    shellcheck = shutil.which("shellcheck") or shutil.which("shellcheck", path=str(Path(sys.executable).parent))
    if shellcheck is None:
        pytest.skip("shellcheck is not installed")
    source = tmp_path / "script.sh"
    source.write_text("#!/bin/sh\n" + getattr(scripts, name))
    done = subprocess.run([shellcheck, "-s", "sh", str(source)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def _with_path(run: Callable[..., object], folder: Path, *, only: bool = False) -> Callable[..., object]:
    """The same ``run`` with a folder put before the PATH of its scripts, or instead of it."""
    path = str(folder) if only else f"{folder}:$PATH"

    def wrapped(script: str, *args: object, **kwargs: object) -> object:
        return run(f'PATH="{path}"; export PATH\n{script}', *args, **kwargs)

    return wrapped


def _is_alive(pid: int) -> bool:
    """Whether it runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _status(pid: int, key: str) -> str:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return line.split()[1]
    raise AssertionError(key)
