"""The script on the host, run directly: every operation, repeated, on awkward files, and what it leaves behind."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.support.agent_script import (
    BASE,
    NEW,
    OLD_MTIME_S,
    SCRIPT_PATH,
    HostFile,
    finish,
    hex_of,
    path_of_coreutils,
    start,
    watchers_of,
)
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow  # half a minute in all: real processes, leases that end


@pytest.fixture
def file(tmp_path: Path) -> Iterator[HostFile]:
    """A target whose path needs quoting; its watchers must have ended with the test."""
    made = HostFile.make(tmp_path / "site packages" / 'it\'s $(a) "kernel".py')
    yield made
    made.revert("-", force=True)
    wait_until(lambda: not watchers_of(made.path))


def shells() -> list[Sequence[str]]:
    """Every POSIX shell that is installed here."""
    found: list[Sequence[str]] = [("/bin/sh",)]
    for words in (("dash",), ("bash", "--posix"), ("busybox", "sh")):
        if shutil.which(words[0]):
            found.append(words)
    return found


# ---- looking


def test_stat_tells_what_is_there_and_leaves_no_trace(file: HostFile) -> None:
    """stat gives digest, size, mode, owner, inode, links, mtime and a clean journal, and writes nothing."""
    state = file.stat().only.state
    found = file.path.stat()
    assert state.digest == f"sha256:{hex_of(BASE)}"
    assert (state.size_bytes, state.inode, state.n_links, state.mtime_s) == (
        len(BASE),
        found.st_ino,
        found.st_nlink,
        OLD_MTIME_S,
    )
    assert state.mode == f"{found.st_mode & 0o7777:o}"
    assert state.owner == f"{file.path.owner()}:{file.path.group()}"
    assert state.ctime_s == pytest.approx(found.st_ctime, abs=1e-3)
    assert (state.phase, state.base_digest, state.pushed_digest, state.lease) == ("clean", None, None, None)
    assert not file.has_trace


def test_a_missing_file_has_no_digest_but_cannot_be_pushed(tmp_path: Path) -> None:
    """stat of a missing file answers; read, lock and push refuse it as missing."""
    file = HostFile(tmp_path / "k.py")
    assert file.stat().only.state.digest is None
    assert file.ask("read", str(file.path)).refusal.fields["reason"] == "missing"
    assert file.push().refusal.fields["reason"] == "missing"
    assert file.ask("lock", "aa", "9", "1", "me", "0", str(file.path)).refusal.word == "target"
    assert not file.has_trace


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: path.mkdir(), "a directory"),
        (lambda path: os.mkfifo(path), "not a regular file"),
        (lambda path: path.symlink_to(path), "a loop of symbolic links"),
    ],
)
def test_what_is_no_file_is_refused_by_name(tmp_path: Path, make: object, reason: str) -> None:
    """A directory, a pipe and a loop of links each get their own answer from stat, read and push."""
    file = HostFile(tmp_path / "k.py")
    make(file.path)  # type: ignore[operator]
    for reply in (file.stat(), file.ask("read", str(file.path)), file.push()):
        assert (reply.exit_code, reply.refusal.fields["reason"]) == (66, reason)
    assert not file.has_trace


@pytest.mark.parametrize("path", ["relative/k.py", "/tmp/a\nb.py", ""])
def test_a_path_that_cannot_be_framed_is_refused(tmp_path: Path, path: str) -> None:
    """A relative path and one with a line break are wrong use, not an attempt."""
    assert HostFile(tmp_path).ask("stat", path).exit_code == 64


def test_read_gives_exact_bytes_of_all_files(tmp_path: Path) -> None:
    """Content without a final newline, with NUL and with every byte comes back as it is."""
    contents = [bytes(range(256)), b"", b"no newline"]
    paths = [tmp_path / f"{i}.py" for i in range(3)]
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
    reply = HostFile(tmp_path).ask("read", *map(str, paths))
    assert reply.stdout.endswith(b"\nbytes\n" + b"".join(contents) + b"\nend\n")


# ---- push and revert


def test_push_replaces_and_revert_brings_back_the_very_same_file(file: HostFile) -> None:
    """After a revert content, inode, mode, owner and mtime are those of the start, and nothing is left behind."""
    os.chown(file.path, 1234, 2345) if os.geteuid() == 0 else None
    file.path.chmod(0o640)
    os.utime(file.path, ns=(OLD_MTIME_S * 10**9, OLD_MTIME_S * 10**9 + 123456789))
    before = file.identity()
    pushed = file.push().only
    during = file.path.stat()
    assert (file.path.read_bytes(), pushed.outcome, pushed.state.phase) == (NEW, "pushed", "pushed")
    assert pushed.previous_digest == pushed.state.base_digest == f"sha256:{hex_of(BASE)}"
    assert (during.st_mode, during.st_uid, during.st_gid) == before[2:5]
    assert during.st_ino != before[1]
    assert file.revert().only.outcome == "restored"
    assert file.identity() == before
    assert not file.has_trace


def test_every_operation_repeated_gives_the_same_end(file: HostFile) -> None:
    """The same push twice is one push; the same revert twice, unlock and lock twice change nothing."""
    before = file.identity()
    assert [file.push().only.outcome for _ in range(3)] == ["pushed", "already", "already"]
    again = file.push().only
    assert again.mtime_s == int(file.path.stat().st_mtime)
    assert again.previous_digest == f"sha256:{hex_of(BASE)}"
    assert [file.revert().only.outcome for _ in range(3)] == ["restored", None, None]
    assert file.identity() == before
    for _ in range(2):
        lock = file.ask("lock", "bb", "60", "0.1", "me", "0", str(file.path)).only.state.lease
        assert lock is not None and lock.nonce == "bb"
    for _ in range(2):
        assert file.ask("unlock", "bb", str(file.path)).only.state.lease is None
    assert not file.has_trace


def test_a_second_variant_keeps_the_first_base(file: HostFile) -> None:
    """Pushing V2 over V1 keeps the original as base, and one revert goes back to it."""
    before = file.identity()
    file.push(b"v1\n")
    second = file.push(b"v2\n", expected=b"v1\n").only
    assert second.previous_digest == f"sha256:{hex_of(b'v1' + bytes([10]))}"
    assert second.state.base_digest == f"sha256:{hex_of(BASE)}"
    file.revert()
    assert file.identity() == before


def test_pushing_the_same_bytes_still_publishes_and_still_restores_the_inode(file: HostFile) -> None:
    """Baseline against baseline: the file is replaced by a copy, and the revert brings the original inode back."""
    before = file.identity()
    assert file.push(BASE).only.outcome == "pushed"
    assert file.path.stat().st_ino != before[1]
    assert file.revert().only.outcome == "restored"
    assert file.identity() == before


def test_published_mtimes_strictly_rise(file: HostFile) -> None:
    """Each new content has a later whole-second mtime than any before, even one that lies in the future."""
    ahead = int(time.time()) + 1000
    seen = [file.push(b"a" * 9, floor_s=ahead).only.mtime_s]
    seen.append(file.push(b"b" * 9, expected=b"a" * 9).only.mtime_s)
    seen.append(file.push(b"c" * 9, expected=b"b" * 9, floor_s=OLD_MTIME_S).only.mtime_s)
    assert seen == [ahead + 1, ahead + 2, ahead + 3]
    assert int(file.path.stat().st_mtime) == ahead + 3


def test_python_loads_a_same_size_edit_made_within_a_second(tmp_path: Path) -> None:
    """The interpreter sees each push and the revert at once, though the size never changes."""
    file = HostFile.make(tmp_path / "kernel.py")
    os.utime(file.path)  # as young as the push itself

    def loaded() -> str:
        code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import kernel; print(kernel.num_stages)"
        return subprocess.run(["python3", "-c", code], capture_output=True, text=True, check=True).stdout.strip()

    seen = [loaded()]
    file.push()
    seen.append(loaded())
    file.push(b"num_stages = 4\n", expected=NEW)
    seen.append(loaded())
    file.revert()
    seen.append(loaded())
    assert seen == ["2", "3", "4", "2"]


def test_stale_bytecode_of_the_module_alone_is_removed(tmp_path: Path) -> None:
    """push and revert remove this module's .pyc files and no other's."""
    file = HostFile.make(tmp_path / "kernel.py")
    cache = tmp_path / "__pycache__"
    cache.mkdir()
    mine, other = cache / "kernel.cpython-311.opt-1.pyc", cache / "kernel2.cpython-311.pyc"
    for act in (file.push, file.revert):
        mine.touch()
        other.touch()
        act()
        assert (mine.exists(), other.exists()) == (False, True)


def test_hard_links_and_symbolic_links_are_respected(tmp_path: Path) -> None:
    """Links are followed to the real file, which alone is replaced; its other hard link keeps the old bytes."""
    file = HostFile.make(tmp_path / "store" / "k.py")
    other = tmp_path / "cache.py"
    os.link(file.path, other)
    (tmp_path / "venv").symlink_to("store")
    entry = tmp_path / "entry.py"
    entry.symlink_to("venv/k.py")
    through = HostFile(entry)
    pushed = through.push().only
    assert (pushed.state.path, pushed.state.real_path) == (str(entry), str(file.path))
    assert (entry.is_symlink(), file.path.read_bytes(), other.read_bytes()) == (True, NEW, BASE)
    assert file.push().only.outcome == "already"
    through.revert()
    assert (file.path.stat().st_ino, file.path.stat().st_nlink) == (other.stat().st_ino, 2)
    assert not file.has_trace and not through.has_trace


def test_a_stale_base_is_refused_and_nothing_is_written(file: HostFile) -> None:
    """Compare-and-swap: another content than expected stops the push, tells the digest, and leaves no trace."""
    file.path.write_bytes(b"somebody else's")
    before = file.identity()
    reply = file.push()
    assert (reply.exit_code, reply.refusal.fields["found"]) == (75, hex_of(b"somebody else's"))
    assert file.identity() == before
    assert not file.has_trace


def test_a_foreign_edit_is_never_overwritten_unasked_and_always_kept(file: HostFile) -> None:
    """revert and push refuse over a foreign edit; a forced revert keeps it aside and restores the original."""
    before = file.identity()
    file.push()
    file.path.write_bytes(b"foreign")
    for reply in (file.revert(), file.push(b"v2", expected=b"foreign")):
        assert (reply.exit_code, reply.refusal.fields["found"]) == (76, hex_of(b"foreign"))
        assert file.path.read_bytes() == b"foreign"
    forced = file.revert(force=True).only
    assert forced.kept is not None
    assert Path(forced.kept).read_bytes() == b"foreign"
    assert file.identity() == before
    assert [path.name for path in file.state_dir.iterdir()] == [Path(forced.kept).name]
    shutil.rmtree(file.state_dir)


def test_a_removed_target_is_restored(file: HostFile) -> None:
    """A file that was deleted after the push comes back by the revert."""
    before = file.identity()
    file.push()
    file.path.unlink()
    assert file.revert().only.outcome == "restored"
    assert file.identity() == before


def test_a_lost_backup_is_said_loudly(file: HostFile) -> None:
    """Without a whole backup the revert says found and wanted, and a further push is refused."""
    file.push()
    (file.state_dir / "base").unlink()
    (file.state_dir / "base").write_bytes(b"damaged")
    for reply in (file.revert(), file.push(b"v2", expected=NEW)):
        assert reply.exit_code == 79
        fields = reply.refusal.fields
        assert (fields["found"], fields["wanted"], fields["backup"]) == (hex_of(NEW), hex_of(BASE), "lost")
    file.path.write_bytes(BASE)  # repaired by hand: that is told from the digest
    assert file.revert().only.outcome == "restored"
    assert [path.name.split(".")[0] for path in file.state_dir.iterdir()] == ["foreign"]
    shutil.rmtree(file.state_dir)


# ---- several files


def test_several_files_go_live_together_or_not_at_all(tmp_path: Path) -> None:
    """A second file that is stale stops the first one too; with both right, both are pushed and reverted."""
    first = HostFile.make(tmp_path / "b" / "kernel.py")
    second = HostFile.make(tmp_path / "a" / "layout.py", b"layout 1")
    before = first.identity(), second.identity()

    def push(expected: bytes) -> object:
        words = [*first.push_words(), str(second.path), hex_of(expected), hex_of(b"layout 2"), "8"]
        return first.ask(*words, stdin=NEW + b"layout 2")

    assert push(b"other").exit_code == 75  # type: ignore[attr-defined]
    assert (first.identity(), second.identity()) == before
    assert not first.has_trace and not second.has_trace
    assert [file.outcome for file in push(b"layout 1").answer.files] == ["pushed", "pushed"]  # type: ignore[attr-defined]
    assert (first.path.read_bytes(), second.path.read_bytes()) == (NEW, b"layout 2")
    reverted = first.ask("revert", "aa", "0", str(first.path), str(second.path))
    assert [file.outcome for file in reverted.answer.files] == ["restored", "restored"]
    assert (first.identity(), second.identity()) == before
    assert not first.has_trace and not second.has_trace


@pytest.mark.parametrize("step", ["commit.2", "journal.2", "rename.2", "sync.2", "bytecode.2", "verify.2"])
def test_a_failure_of_the_second_file_restores_the_first(tmp_path: Path, step: str) -> None:
    """Whatever fails once the first file is live, both files end as they were, without a trace."""
    files = [HostFile.make(tmp_path / name) for name in ("kernel.py", "layout.py")]
    before = [file.identity() for file in files]
    words = [*files[0].push_words(), str(files[1].path), hex_of(BASE), hex_of(NEW), str(len(NEW))]
    reply = files[0].ask(*words, stdin=NEW + NEW, ORCH_FAIL=step)
    assert (reply.exit_code, reply.refusal.word) == (73, "write")
    assert [file.identity() for file in files] == before
    assert not any(file.has_trace for file in files)


def test_the_same_file_twice_is_wrong_use(file: HostFile, tmp_path: Path) -> None:
    """Two paths that lead to one file are refused before anything happens."""
    alias = tmp_path / "alias.py"
    alias.symlink_to(file.path)
    assert file.ask("revert", "-", "0", str(file.path), str(alias)).exit_code == 64


# ---- the lease


def test_a_live_lease_of_somebody_else_stops_push_lock_and_revert(file: HostFile) -> None:
    """The refusal says who holds it and for how long; nothing changes; with force the revert goes through."""
    before = file.identity()
    file.push(nonce="aa", ttl_s=60)
    for reply in (
        file.push(b"v2", expected=NEW, nonce="bb"),
        file.ask("lock", "bb", "60", "1", "bob", "0", str(file.path)),
        file.revert("bb"),
        file.revert("-"),
    ):
        assert (reply.exit_code, reply.refusal.word) == (77, "held")
        assert reply.refusal.fields["holder"] == "ann@laptop pid 7"
        assert 0 < int(reply.refusal.fields["remaining_s"]) <= 60
    assert file.path.read_bytes() == NEW
    assert file.ask("unlock", "bb", str(file.path)).only.state.lease is not None
    file.revert("bb", force=True)
    assert file.identity() == before
    assert not file.has_trace


def test_renew_extends_ours_and_fails_for_any_other(file: HostFile) -> None:
    """Only the nonce that holds the lease renews it, and a lease that is gone is lost."""
    file.push(ttl_s=30)
    lease = file.ask("renew", "aa", "500", str(file.path)).only.state.lease
    assert lease is not None and lease.remaining_s > 400
    assert file.ask("renew", "bb", "500", str(file.path)).refusal.word == "lost"
    file.revert()
    assert file.ask("renew", "aa", "500", str(file.path)).refusal.word == "lost"
    assert not file.has_trace


def test_the_watcher_restores_when_the_lease_ends_and_then_runs_the_script(file: HostFile, tmp_path: Path) -> None:
    """After the ttl the file is the old one, the on-restore script has run, and the watcher and its folder are gone."""
    before, marker = file.identity(), tmp_path / "seen"
    script = f"cat {shlex.quote(str(file.path))} > {marker}.part; pwd >> {marker}.part; mv {marker}.part {marker}"
    file.push(ttl_s=2, on_restore=script.encode())
    assert file.path.read_bytes() == NEW
    wait_until(marker.exists)
    wait_until(lambda: not file.has_trace and not watchers_of(file.path))
    assert file.identity() == before
    assert marker.read_bytes() == BASE + b"/\n"


@pytest.mark.slow
def test_renewing_keeps_the_watcher_away(file: HostFile) -> None:
    """A lease that is renewed outlives its first ttl, and one that is not renewed then ends."""
    file.push(ttl_s=2)
    started = time.monotonic()
    while time.monotonic() < started + 3:
        assert file.ask("renew", "aa", "2", str(file.path)).exit_code == 0
        assert file.path.read_bytes() == NEW
        time.sleep(0.3)
    wait_until(lambda: file.path.read_bytes() == BASE)


def test_one_watcher_guards_and_another_takes_its_place_when_killed(file: HostFile) -> None:
    """Repeated pushes start no second watcher; a killed one is replaced at the next renewal, and a revert ends it."""
    file.push()
    file.push()
    file.push(b"v2\n", expected=NEW)
    (pid,) = watchers_of(file.path)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not watchers_of(file.path))
    file.ask("renew", "aa", "60", str(file.path))
    (other,) = watchers_of(file.path)
    assert other != pid
    file.revert()
    wait_until(lambda: not watchers_of(file.path))


def test_a_watcher_that_is_told_to_end_restores_first(file: HostFile, tmp_path: Path) -> None:
    """The host shuts down, or a batch job is cancelled: TERM restores at once, whatever is left of the lease."""
    before, marker = file.identity(), tmp_path / "seen"
    file.push(ttl_s=3600, on_restore=f"echo restored > {shlex.quote(str(marker))}".encode())
    (pid,) = watchers_of(file.path)
    os.kill(pid, signal.SIGTERM)
    wait_until(lambda: not file.has_trace and not watchers_of(file.path))
    assert file.identity() == before
    wait_until(lambda: marker.exists() and marker.read_text() == "restored\n")


def opened_by(pid: int) -> set[str]:
    """What a process has open."""
    found = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.add(str(link.readlink()))
    return found


def test_the_watcher_is_detached_and_holds_nothing(file: HostFile) -> None:
    """It leads a session of its own, has only /dev/null open, and does not pin the target's folder."""
    files = [file, HostFile.make(file.path.parent / "other" / "layout.py")]
    words = [*file.push_words(), str(files[1].path), hex_of(BASE), hex_of(NEW), str(len(NEW))]
    file.ask(*words, stdin=NEW + NEW)
    (pid,) = watchers_of(file.path)
    # the pipe of a command substitution comes and goes; what was inherited would stay
    wait_until(lambda: opened_by(pid) == {"/dev/null"})
    assert os.getsid(pid) == pid
    assert str(Path(f"/proc/{pid}/cwd").readlink()) == "/"
    file.ask("revert", "aa", "0", *(str(each.path) for each in files))


def test_without_a_restore_the_script_does_not_run(file: HostFile, tmp_path: Path) -> None:
    """A lease that ends over a clean file is just removed, and a revert by the holder runs no script."""
    marker = tmp_path / "ran"
    file.push(on_restore=f"touch {marker}".encode())
    file.revert()
    reply = file.push(ttl_s=2, on_restore=f"touch {marker}".encode(), faults={"ORCH_KILL": "commit"})
    assert reply.exit_code == -9
    wait_until(lambda: not file.has_trace and not watchers_of(file.path))
    assert not marker.exists()


def test_a_lock_that_is_not_given_back_runs_its_script(file: HostFile, tmp_path: Path) -> None:
    """The on-expiry script of a bare lock runs when the lease ends, and not after an unlock."""
    script = f"touch {tmp_path / 'ran'}".encode()
    words = ["0.1", "me", str(len(script)), str(file.path)]
    file.ask("lock", "aa", "60", *words, stdin=script)
    file.ask("unlock", "aa", str(file.path))
    wait_until(lambda: not watchers_of(file.path))
    assert not (tmp_path / "ran").exists() and not file.has_trace
    file.ask("lock", "bb", "1", *words, stdin=script)
    wait_until((tmp_path / "ran").exists)
    wait_until(lambda: not file.has_trace)


def test_first_contact_after_a_dead_watcher_does_its_work(file: HostFile, tmp_path: Path) -> None:
    """An expired lease that nobody watches is ended by the next push: restored, its script run, and then replaced."""
    marker = tmp_path / "ran"
    file.push(ttl_s=2, poll_s="60", on_restore=f"touch {marker}".encode())
    (pid,) = watchers_of(file.path)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: file.push(b"bob's", nonce="bb").exit_code == 0)
    wait_until(marker.exists)
    state = file.stat().only.state
    assert (file.path.read_bytes(), state.base_digest) == (b"bob's", f"sha256:{hex_of(BASE)}")
    assert state.lease is not None and state.lease.nonce == "bb"
    file.revert("bb")


def test_an_expired_lease_over_a_foreign_edit_is_not_taken_over(file: HostFile) -> None:
    """Taking over would have to overwrite somebody's edit: refused until a forced revert keeps it."""
    file.push(ttl_s=2)
    file.path.write_bytes(b"foreign")
    wait_until(lambda: not watchers_of(file.path))
    assert file.path.read_bytes() == b"foreign"
    assert file.push(b"bob's", expected=b"foreign", nonce="bb").refusal.word == "foreign"
    assert file.path.read_bytes() == b"foreign"
    assert file.revert("-").refusal.word == "foreign"


def test_a_revert_ends_what_its_nonce_still_has_under_way(file: HostFile) -> None:
    """A push that waits for its bytes when its caller gave up and reverted never lands afterwards."""
    waiting = start(*file.push_words())
    wait_until(lambda: any(file.state_dir.glob("tmp.receive-*")))
    file.revert()
    reply = finish(waiting, NEW)
    assert reply.exit_code not in (0, 73)
    assert file.path.read_bytes() == BASE
    assert not file.has_trace


# ---- shells and tools


@pytest.mark.parametrize("shell", shells(), ids=" ".join)
def test_every_shell_gives_the_same(tmp_path: Path, shell: Sequence[str]) -> None:
    """dash, bash and busybox push, refuse, renew, restore by the watcher and revert alike."""
    file = HostFile.make(tmp_path / "it's a kernel.py")
    file.shell = shell
    before = file.identity()
    assert file.push().only.outcome == "pushed"
    assert file.push().only.outcome == "already"
    assert file.push(b"v2", expected=b"other").refusal.word == "stale"
    assert file.push(b"v2", expected=NEW, nonce="bb").refusal.word == "held"
    assert file.ask("renew", "aa", "60", str(file.path)).only.state.lease is not None
    assert file.revert().only.outcome == "restored"
    assert file.identity() == before and not file.has_trace
    file.push(ttl_s=2)
    wait_until(lambda: not file.has_trace)
    assert file.identity() == before


def test_coreutils_are_enough_and_the_link_mutex_stands_in_for_flock(tmp_path: Path) -> None:
    """Without flock and setsid everything works, a dead owner's mutex is taken over, a live one is waited for."""
    file = HostFile.make(tmp_path / "k.py")
    file.env = {"PATH": path_of_coreutils(tmp_path / "bin")}
    before = file.identity()
    assert file.push(faults={"ORCH_KILL": "rename"}).exit_code == -9
    assert (tmp_path / ".orch.mutex").is_symlink()
    assert file.push().only.outcome == "already"
    stopped = start(*file.push_words(b"v2\n", expected=NEW), env={**file.env, "ORCH_STOP": "journal"})
    assert stopped.stdin is not None
    stopped.stdin.write(b"v2\n")
    stopped.stdin.close()
    stopped.stdin = None
    wait_until(lambda: b"pushing" in (file.state_dir / "journal").read_bytes())
    waiting = start("revert", "aa", "0", str(file.path), env=file.env)
    with pytest.raises(subprocess.TimeoutExpired):
        waiting.wait(0.3)
    os.kill(stopped.pid, signal.SIGCONT)
    assert finish(stopped).only.outcome == "pushed"
    assert finish(waiting).only.outcome == "restored"
    assert file.identity() == before and not file.has_trace
    wait_until(lambda: not watchers_of(file.path))


def test_the_script_passes_shellcheck() -> None:
    """shellcheck has nothing to say."""
    if not shutil.which("shellcheck"):
        pytest.skip("shellcheck is not installed")
    done = subprocess.run(["shellcheck", SCRIPT_PATH], capture_output=True, text=True, check=False)
    assert done.stdout == ""
