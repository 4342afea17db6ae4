"""Faults on the host's side: killed at every step, cut lines, full and read-only disks, other users, races."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from orchestrator.agent import Agent, PushedContent
from orchestrator.connection.local import LocalRemote
from orchestrator.errors import HostWriteError, LeaseHeldError, OrchError, RevertError, StaleBaseError
from orchestrator.records import Host, digest_of
from tests.support.agent_script import (
    BASE,
    NEW,
    STEPS,
    HostFile,
    Reply,
    finish,
    hex_of,
    path_of_coreutils,
    start,
    watchers_of,
)
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration
REVERT_STEPS = tuple(step for step in STEPS if step.startswith("restore-"))
PUSH_STEPS = tuple(step for step in STEPS if step not in (*REVERT_STEPS, "expire-lease"))
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount and to change user")


@pytest.fixture
def file(tmp_path: Path) -> Iterator[HostFile]:
    """A target on this machine; its watchers must have ended with the test."""
    made = HostFile.make(tmp_path / "host" / "kernel.py")
    yield made
    wait_until(lambda: not watchers_of(made.path))


def mends(file: HostFile, before: tuple[object, ...]) -> None:
    """After any fault: the content is whole, stat answers, one revert restores everything, and no trace is left."""
    assert file.path.read_bytes() in (BASE, NEW)
    state = file.stat().only.state
    assert state.digest in (digest_of(BASE), digest_of(NEW))
    assert file.revert().exit_code == 0
    assert file.identity() == before
    assert not file.has_trace


def has_expired(file: HostFile) -> bool:
    """Whether a lease is there whose time is over by the host's clock."""
    lease = file.stat().only.state.lease
    return lease is not None and lease.remaining_s <= 0


# ---- killed


@pytest.mark.parametrize("step", PUSH_STEPS)
def test_a_push_killed_at_any_step_is_mended(file: HostFile, step: str) -> None:
    """kill -9 at each named step: the target is old or new, a repeat goes through, one revert restores."""
    before = file.identity()
    script = b"true"
    words = file.push_words(on_restore=script)
    assert file.ask(*words, stdin=NEW + script, ORCH_KILL=step).exit_code == -signal.SIGKILL
    assert file.path.read_bytes() in (BASE, NEW)
    assert file.stat().exit_code == 0
    if step in ("stage-base", "rename", "journal"):  # the repeat of the same push, as after a lost line
        assert file.ask(*words, stdin=NEW + script).only.outcome in ("pushed", "already")
        assert file.path.read_bytes() == NEW
    mends(file, before)


def test_a_mutex_that_outlived_its_owner_is_cleared_by_the_next_revert(file: HostFile, tmp_path: Path) -> None:
    """Without flock, killed between the last removal and the release: clean, but locked until the next contact."""
    before = file.identity()
    file.env = {"PATH": path_of_coreutils(tmp_path / "bin")}
    file.push()
    assert file.revert(ORCH_KILL="answer").exit_code == -signal.SIGKILL
    assert not file.state_dir.exists()
    assert file.has_trace
    mends(file, before)


@pytest.mark.parametrize("step", ["stage", "journal", "rename", "verify"])
def test_a_second_push_killed_over_the_first_is_mended(file: HostFile, step: str) -> None:
    """V1 is live and the push of V2 dies: whichever of the two is there is known as orch's own, and is restored."""
    before = file.identity()
    file.push(b"v1\n")
    assert file.push(expected=b"v1\n", faults={"ORCH_KILL": step}).exit_code == -signal.SIGKILL
    assert file.path.read_bytes() in (b"v1\n", NEW)
    assert file.revert().only.outcome == "restored"
    assert file.identity() == before
    assert not file.has_trace


@pytest.mark.parametrize("step", REVERT_STEPS)
def test_a_revert_killed_at_any_step_is_mended(file: HostFile, step: str) -> None:
    """kill -9 at each named step of a revert: the next revert finishes it."""
    before = file.identity()
    file.push()
    force = step == "restore-foreign"
    if force:
        file.path.write_bytes(b"foreign")
    assert file.revert(force=force, ORCH_KILL=step).exit_code == -signal.SIGKILL
    if force:
        assert file.path.read_bytes() == b"foreign"
        assert file.revert(force=True).exit_code == 0
        assert file.identity() == before
        shutil.rmtree(file.state_dir)
        return
    mends(file, before)


def test_no_step_is_missed() -> None:
    """The lists above hold every step that the script names."""
    assert len(PUSH_STEPS) >= 15 and len(REVERT_STEPS) >= 10


@pytest.mark.parametrize("step", ["stage", "journal", "rename", "verify"])
def test_a_killed_push_is_restored_by_its_watcher(file: HostFile, step: str) -> None:
    """Nobody comes back: the watcher, which was started before the first byte changed, restores at expiry."""
    before = file.identity()
    assert file.push(ttl_s=2, faults={"ORCH_KILL": step}).exit_code == -signal.SIGKILL
    wait_until(lambda: not file.has_trace)
    assert file.identity() == before


@pytest.mark.parametrize("step", ["restore-link", "restore-rename", "restore-journal", "expire-lease"])
def test_a_watcher_killed_while_restoring_is_finished_by_the_next_contact(file: HostFile, step: str) -> None:
    """kill -9 inside the watcher's own restore leaves a state that the next push ends and replaces."""
    before = file.identity()
    file.push(ttl_s=2, faults={"ORCH_KILL": step})
    wait_until(lambda: file.stat().only.state.lease is None or file.push(nonce="bb").exit_code == 0)
    file.revert("bb")
    wait_until(lambda: not watchers_of(file.path))  # its lease is gone, so it ends; what it left is a dead one's then
    file.revert("-")
    assert file.identity() == before
    assert not file.has_trace


def test_a_push_restores_what_an_expired_lease_left_and_still_has_its_own_content(file: HostFile) -> None:
    """Holder and watcher are dead: the first push that comes ends their lease, and then pushes what it was sent."""
    before = file.identity()
    file.push(ttl_s=2)
    for pid in watchers_of(file.path):
        os.killpg(pid, signal.SIGKILL)
    wait_until(lambda: has_expired(file))
    assert file.push(b"num_stages = 7\n", nonce="bb").exit_code == 0
    assert file.path.read_bytes() == b"num_stages = 7\n"
    file.revert("bb")
    assert file.identity() == before
    assert not file.has_trace


def test_a_watcher_whose_child_was_killed_leaves_nothing_of_it(file: HostFile) -> None:
    """The part of the watcher that restores is killed each time (as by the kernel, out of memory): no link stays."""
    before = file.identity()
    file.push(ttl_s=1, poll_s="0.5", faults={"ORCH_KILL": "restore-rename"})
    links: set[int] = set()
    wait_until(lambda: links.add((file.state_dir / "base").stat().st_ctime_ns) or len(links) >= 4)  # made and removed
    assert file.push(nonce="bb").exit_code == 0
    assert file.revert("bb").exit_code == 0
    wait_until(lambda: not watchers_of(file.path))
    assert file.identity() == before
    assert not file.has_trace


@pytest.mark.parametrize("step", ["stage.2", "journal.1", "rename.1", "journal.2", "rename.2", "verify.2"])
def test_two_files_killed_between_their_commits_are_mended_together(tmp_path: Path, step: str) -> None:
    """A push of two files that dies half way is restored as a whole by one revert."""
    files = [HostFile.make(tmp_path / folder / "kernel.py") for folder in ("a", "b")]
    before = [file.identity() for file in files]
    words = [*files[0].push_words(), str(files[1].path), hex_of(BASE), hex_of(NEW), str(len(NEW))]
    assert files[0].ask(*words, stdin=NEW + NEW, ORCH_KILL=step).exit_code == -signal.SIGKILL
    assert {file.path.read_bytes() for file in files} <= {BASE, NEW}
    files[0].ask("revert", "aa", "0", *(str(file.path) for file in files))
    assert [file.identity() for file in files] == before
    assert not any(file.has_trace for file in files)


# ---- cut


def test_a_payload_cut_anywhere_changes_nothing(file: HostFile) -> None:
    """Ten cut points: the push is refused as a bad transfer, the target untouched, no trace left."""
    before = file.identity()
    content = os.urandom(20_000)
    for tenth in range(10):
        words = file.push_words(content)
        reply = file.ask(*words, stdin=content[: len(content) * tenth // 10])
        assert (reply.exit_code, reply.refusal.word) == (78, "transfer")
        assert file.identity() == before
        assert not file.has_trace
    damaged = bytes([content[0] ^ 1]) + content[1:]
    assert file.ask(*file.push_words(content), stdin=damaged).refusal.word == "transfer"
    assert not file.has_trace


def test_a_line_that_dies_while_the_agent_reads_or_answers_is_harmless(file: HostFile) -> None:
    """The reader of the answer is gone: what was pushed is acknowledged by asking again, then restored."""
    before = file.identity()
    agent = start(*file.push_words())
    assert agent.stdout is not None and agent.stdin is not None
    agent.stdout.close()
    agent.stdin.write(NEW)
    agent.stdin.close()
    agent.wait(20)
    agent.stderr and agent.stderr.close()
    assert file.push().only.outcome == "already"
    mends(file, before)


# ---- disks


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB of its own."""
    if os.geteuid() != 0:
        pytest.skip("needs root to mount")
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", folder], check=False)
    if done.returncode:
        pytest.skip("cannot mount here")
    yield folder
    wait_until(lambda: subprocess.run(["umount", folder], capture_output=True, check=False).returncode == 0)


def fill(folder: Path, *, but_pages: int = 0) -> None:
    """Leaves no free block, or so many pages."""
    with (folder / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
        while True:
            filler.write(b"x" * 4096)
    with (folder / "filler").open("r+b") as filler:
        filler.truncate(max(0, (folder / "filler").stat().st_size - 4096 * but_pages))


@pytest.mark.parametrize("but_pages", range(7))
def test_a_push_on_a_full_disk_leaves_the_target_alone(small_disk: Path, but_pages: int) -> None:
    """With no free block, or so few that it runs out half way, the push says so and leaves no trace."""
    file = HostFile.make(small_disk / "kernel.py", BASE * 200)
    before = file.identity()
    fill(small_disk, but_pages=but_pages)
    reply = file.push(NEW * 200, expected=BASE * 200, on_restore=b"true")
    if reply.exit_code == 0:
        assert but_pages >= 3
        assert file.path.read_bytes() == NEW * 200
        file.revert()
    else:
        assert reply.refusal.word == "write"
    assert file.identity() == before
    assert not file.has_trace


def test_a_revert_works_without_a_free_block(small_disk: Path) -> None:
    """Nothing is free: renewing still works, and the revert links and renames."""
    file = HostFile.make(small_disk / "kernel.py", BASE * 500)
    before = file.identity()
    file.push(NEW * 500, expected=BASE * 500)
    fill(small_disk)
    assert file.ask("renew", "aa", "600", str(file.path)).exit_code == 0
    assert file.push(b"v2" * 4096, expected=NEW * 500).refusal.word == "write"
    assert file.path.read_bytes() == NEW * 500
    assert file.revert().only.outcome == "restored"
    assert file.identity() == before
    assert not file.has_trace


def test_the_watcher_restores_without_a_free_block(small_disk: Path) -> None:
    """The dead-man restore needs no block either."""
    file = HostFile.make(small_disk / "kernel.py")
    before = file.identity()
    file.push(ttl_s=2)
    fill(small_disk)
    wait_until(lambda: not file.has_trace)
    assert file.identity() == before


def test_a_read_only_file_system_can_be_read_but_not_pushed(small_disk: Path) -> None:
    """stat, read and the revert of a clean file work; push and lock are refused with the reason."""
    file = HostFile.make(small_disk / "kernel.py")
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    agent = Agent(LocalRemote(Host(name="here", transport="local")))
    path = str(file.path)
    assert agent.stat([path])[0].digest == digest_of(BASE)
    assert agent.read([path])[0][1] == BASE
    assert agent.revert([path]).restored == ()
    with pytest.raises(HostWriteError, match="Read-only"):
        agent.lock([path], nonce="aa", holder="ann", ttl_s=9, poll_s=1)
    with pytest.raises(HostWriteError, match="the target is untouched"):
        agent.push([pushed(file)], nonce="aa", holder="ann", ttl_s=9, poll_s=1)


def test_a_revert_that_cannot_write_is_the_loudest_error(small_disk: Path) -> None:
    """The disk turned read-only after the push: host, path, both digests and the repairing command are said."""
    file = HostFile.make(small_disk / "kernel.py")
    agent = Agent(LocalRemote(Host(name="here", transport="local")))
    agent.push([pushed(file)], nonce="aa", holder="ann", ttl_s=60, poll_s=0.1)
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with pytest.raises(RevertError) as caught:
        agent.revert([str(file.path)], nonce="aa")
    for part in ("here", str(file.path), digest_of(NEW), digest_of(BASE)):
        assert part in str(caught.value)
    subprocess.run(["mount", "-o", "remount,rw", small_disk], check=True)
    assert caught.value.next_step is not None
    command = caught.value.next_step.removeprefix("repair it with: ")
    subprocess.run(command, shell=True, check=True)
    assert file.path.read_bytes() == BASE
    agent.revert([str(file.path)], nonce="aa")
    assert not file.has_trace


# ---- other users


@pytest.fixture
def as_nobody(tmp_path: Path) -> Callable[[Path], HostFile]:
    """A target seen by uid 65534: its folder bound to /mnt in a mount namespace, for pytest's own is closed to it."""
    if os.geteuid() != 0 or not shutil.which("setpriv") or not shutil.which("unshare"):
        pytest.skip("needs root, setpriv and unshare")
    inside = 'mount --bind "$1" /mnt && shift && cd / && exec setpriv --reuid 65534 --regid 65534 --clear-groups "$@"'

    def seen(folder: Path) -> HostFile:
        before = ["unshare", "-m", "sh", "-c", inside, "sh", str(folder)]
        if subprocess.run([*before, "true"], capture_output=True, check=False).returncode:
            pytest.skip("no mount namespaces here")
        return HostFile(Path("/mnt/kernel.py"), before=before)

    return seen


def test_a_login_that_may_not_write_the_folder_gets_a_clear_refusal(
    tmp_path: Path, as_nobody: Callable[[Path], HostFile]
) -> None:
    """Readable but not writable: stat and read work, push and lock say why not, the target is untouched."""
    real = HostFile.make(tmp_path / "host" / "kernel.py")
    real.path.parent.chmod(0o755)
    before, theirs = real.identity(), as_nobody(real.path.parent)
    assert theirs.stat().only.state.digest == digest_of(BASE)
    for reply in (theirs.push(), theirs.ask("lock", "aa", "9", "1", "me", "0", "/mnt/kernel.py")):
        assert (reply.exit_code, reply.refusal.word) == (73, "write")
        assert "Permission denied" in reply.refusal.fields["because"]
    assert real.identity() == before
    assert not real.has_trace


def test_an_unreadable_target_is_told_from_a_missing_one(tmp_path: Path, as_nobody: Callable[[Path], HostFile]) -> None:
    """mode 600 of somebody else: not readable, for stat, read and push."""
    real = HostFile.make(tmp_path / "host" / "kernel.py")
    real.path.parent.chmod(0o777)
    real.path.chmod(0o600)
    theirs = as_nobody(real.path.parent)
    for reply in (theirs.stat(), theirs.ask("read", "/mnt/kernel.py"), theirs.push()):
        assert (reply.exit_code, reply.refusal.fields["reason"]) == (66, "not readable by this login")
    assert not real.has_trace


def test_a_colleague_sees_the_lease_and_cannot_break_in(tmp_path: Path, as_nobody: Callable[[Path], HostFile]) -> None:
    """root pushes; nobody, who may write the folder, sees whose lease it is and is refused."""
    real = HostFile.make(tmp_path / "host" / "kernel.py")
    real.path.parent.chmod(0o777)
    before, theirs = real.identity(), as_nobody(real.path.parent)
    real.push()
    lease = theirs.stat().only.state.lease
    assert lease is not None and lease.holder == "ann@laptop pid 7"
    assert theirs.push(b"v2", expected=NEW, nonce="bb").exit_code in (73, 77)
    assert real.path.read_bytes() == NEW
    real.revert()
    assert real.identity() == before and not real.has_trace


def test_a_file_of_its_own_is_pushed_and_restored_by_an_unprivileged_login(
    tmp_path: Path, as_nobody: Callable[[Path], HostFile]
) -> None:
    """No root needed where the login owns the file, read-only mode included."""
    real = HostFile.make(tmp_path / "host" / "kernel.py")
    for path in (real.path.parent, real.path):
        os.chown(path, 65534, 65534)
    real.path.chmod(0o444)
    before, theirs = real.identity(), as_nobody(real.path.parent)
    assert theirs.push().only.outcome == "pushed"
    assert real.path.stat().st_mode & 0o777 == 0o444
    assert theirs.revert().only.outcome == "restored"
    assert real.identity() == before and not real.has_trace


def test_a_backup_that_would_change_its_owner_is_refused(tmp_path: Path, as_nobody: Callable[[Path], HostFile]) -> None:
    """Where the kernel forbids hard links to files of others, a copy would come back with another owner: refused."""
    real = HostFile.make(tmp_path / "host" / "kernel.py")
    real.path.parent.chmod(0o777)
    real.path.chmod(0o644)
    if Path("/proc/sys/fs/protected_hardlinks").read_text().strip() != "1":
        pytest.skip("this kernel allows hard links to files of others")
    before, theirs = real.identity(), as_nobody(real.path.parent)
    reply = theirs.push()
    assert reply.refusal.word == "write" and "owner" in reply.refusal.fields["because"]
    assert real.identity() == before and not real.has_trace


# ---- races


def pushed(file: HostFile, content: bytes = NEW, expected: bytes = BASE) -> PushedContent:
    """What to push to a file."""
    return PushedContent(str(file.path), digest_of(expected), digest_of(content), content)


class Reader:
    """Reads a file as fast as it can in a thread and keeps every content that it saw."""

    def __init__(self, path: Path) -> None:
        self.seen: set[bytes] = set()
        self.n_reads = 0
        self._path, self._stop = path, threading.Event()
        self._thread = threading.Thread(target=self._read)

    def __enter__(self) -> Reader:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _read(self) -> None:
        while not self._stop.wait(0.0005):
            self.seen.add(self._path.read_bytes())
            self.n_reads += 1


def test_two_controllers_racing_never_tear_the_file_and_one_wins(file: HostFile) -> None:
    """Each round exactly one push goes through, the other is told who holds it; a reader sees whole files only."""
    before = file.identity()
    agent = Agent(LocalRemote(Host(name="here", transport="local")))
    contents = {nonce: nonce.encode() * 5000 for nonce in ("aa", "bb")}

    def attempt(nonce: str) -> OrchError | None:
        try:
            agent.push([pushed(file, contents[nonce])], nonce=nonce, holder=nonce, ttl_s=60, poll_s=5)
        except (LeaseHeldError, StaleBaseError) as exc:
            return exc
        return None

    with Reader(file.path) as reader, ThreadPoolExecutor(2) as pool:
        for _ in range(6):
            outcome = dict(zip(contents, pool.map(attempt, contents), strict=True))
            (winner,) = (nonce for nonce, error in outcome.items() if error is None)
            (loser,) = (error for error in outcome.values() if error is not None)
            assert f"{winner} holds" in str(loser)
            assert file.path.read_bytes() == contents[winner]
            agent.revert([str(file.path)], nonce=winner)
            assert file.identity() == before
            assert not file.has_trace
    assert reader.seen <= {BASE, *contents.values()}
    assert reader.n_reads > 20


def test_one_nonce_pushing_twice_at_once_is_one_push(file: HostFile) -> None:
    """A repeat that overtakes the first attempt is as good as it: both are acknowledged."""
    with ThreadPoolExecutor(3) as pool:
        replies = list(pool.map(lambda _: file.push(), range(3)))
    assert sorted(str(reply.only.outcome) for reply in replies) == ["already", "already", "pushed"]
    file.revert()


def stopped_at(file: HostFile, step: str, *words: str, stdin: bytes = b"") -> subprocess.Popen[bytes]:
    """An agent that stands still at a step."""
    agent = start(*words, env={"ORCH_STOP": step})
    assert agent.stdin is not None
    agent.stdin.write(stdin)
    agent.stdin.close()
    agent.stdin = None
    status = Path(f"/proc/{agent.pid}/stat")
    wait_until(lambda: status.read_text().rpartition(")")[2].split()[0] == "T")
    return agent


def go_on(agent: subprocess.Popen[bytes]) -> Reply:
    """Lets it run to its end."""
    os.kill(agent.pid, signal.SIGCONT)
    return finish(agent)


@pytest.mark.parametrize("step", ["transfer", "watcher", "stage"])
@pytest.mark.parametrize("in_place", [True, False])
def test_a_foreign_edit_during_a_push_is_not_lost(file: HostFile, step: str, in_place: bool) -> None:
    """An edit that comes while the push is staged is found by the second comparison, and stays."""
    agent = stopped_at(file, step, *file.push_words(), stdin=NEW)
    if in_place:
        file.path.write_bytes(b"foreign")
    else:
        (file.path.parent / "draft").write_bytes(b"foreign")
        (file.path.parent / "draft").rename(file.path)
    reply = go_on(agent)
    assert (reply.exit_code, reply.refusal.fields["found"]) == (75, hex_of(b"foreign"))
    assert file.path.read_bytes() == b"foreign"
    assert not file.has_trace


def test_an_edit_through_a_descriptor_opened_before_the_push_is_given_back(file: HostFile) -> None:
    """A program that writes into the old file after the rename: its edit is put back live, the push refused."""
    with file.path.open("r+b") as editor:
        agent = stopped_at(file, "rename", *file.push_words(), stdin=NEW)
        editor.write(b"foreign")
    reply = go_on(agent)
    assert reply.refusal.word == "stale"
    assert file.path.read_bytes().startswith(b"foreign")
    assert not file.has_trace


def test_a_lease_that_ends_during_a_push_fences_it(file: HostFile) -> None:
    """Slow between lease and commit: without a live lease nothing is written."""
    agent = stopped_at(file, "watcher", *file.push_words(ttl_s=2), stdin=NEW)
    wait_until(lambda: not (file.state_dir / "lease").exists())
    reply = go_on(agent)
    assert reply.refusal.word == "lost"
    assert file.path.read_bytes() == BASE
    assert not file.has_trace


@needs_root
def test_a_bind_mounted_file_is_refused_untouched(tmp_path: Path) -> None:
    """A file that is a mount of its own cannot be renamed over: said, and nothing is left."""
    real = HostFile.make(tmp_path / "outside.py")
    file = HostFile.make(tmp_path / "inside" / "kernel.py")
    if subprocess.run(["mount", "--bind", real.path, file.path], check=False).returncode:
        pytest.skip("cannot mount here")
    try:
        reply = file.push()
        assert (reply.refusal.word, file.path.read_bytes()) == ("write", BASE)
        assert not file.has_trace
    finally:
        subprocess.run(["umount", file.path], check=True)
