"""pull, push, revert and the lease through a real host (this one), with lines that die at bad moments."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from orchestrator import push
from orchestrator.agent import Agent, repair_command
from orchestrator.agent.answers import Answer, MalformedAnswerError, parse
from orchestrator.connection.base import DEFAULT_TIMEOUT_S, Completed, Remote
from orchestrator.connection.local import LocalRemote
from orchestrator.errors import (
    ForeignEditError,
    HostUnreachableError,
    LeaseHeldError,
    LeaseLostError,
    LineLostError,
    LoginRefusedError,
    OrchError,
    RevertError,
    StaleBaseError,
    TargetError,
    TransferError,
    UnknownNameError,
    UsageError,
)
from orchestrator.pull import pull
from orchestrator.records import Host, SourceFile, Target, TargetFile, digest_of, manifest_digest
from tests.support.agent_script import watchers_of
from tests.support.waiting import wait_until

HOST = Host(name="gpu-a", transport="local")
KERNEL, LAYOUT = b"num_stages = 2\n", b"LAYOUT = 1\n"
V1, V2 = b"num_stages = 3\n", b"num_stages = 4\n"


class UnsteadyRemote(LocalRemote):
    """This machine over a line that fails as told.

    Attributes:
        before: errors raised before the script is sent, one a call. after: raised after it ran, its answer lost.
        cut_at: how many bytes of the payload arrive, for the next call.
    """

    def __init__(self) -> None:
        super().__init__(HOST)
        self.before: list[OrchError | None] = []
        self.after: list[OrchError | None] = []
        self.cut_at: int | None = None
        self.operations: list[str] = []

    def run(
        self, script: str, args: Sequence[str] = (), *, stdin: bytes = b"", timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> Completed:
        self.operations.append(args[0])
        early = self.before.pop(0) if self.before else None
        if early:
            raise early
        cut, self.cut_at = self.cut_at, None
        done = super().run(script, args, stdin=stdin[:cut], timeout_s=timeout_s)
        late = self.after.pop(0) if self.after else None
        if late:
            raise late
        return done


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Target]:
    """Two files in two folders; in the end restored, without a trace and without a watcher."""
    folder = tmp_path / "site packages"
    (folder / "ops").mkdir(parents=True)
    (folder / "kernel.py").write_bytes(KERNEL)
    (folder / "ops" / "layout.py").write_bytes(LAYOUT)
    files = tuple(TargetFile(path=str(folder / name), name=name) for name in ("kernel.py", "ops/layout.py"))
    made = Target(name="mla", host=HOST.name, engine="sglang", files=files, kernel="_decode")
    yield made
    push.revert(LocalRemote(HOST), made, nonce=None, force=True)
    for each in (folder, folder / "ops"):
        for kept in each.glob(".orch-*/foreign.*"):
            shutil.rmtree(kept.parent)
        assert not list(each.glob(".orch*"))
    wait_until(lambda: not any(watchers_of(Path(file.path)) for file in files))


@pytest.fixture
def remote() -> UnsteadyRemote:
    """A line to this machine that fails on demand."""
    return UnsteadyRemote()


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(push, "RECONNECT_PAUSES_S", (0.0, 0.01, 0.01))


def live(target: Target) -> list[bytes]:
    """What lies there now."""
    return [Path(file.path).read_bytes() for file in target.files]


def variant(content: bytes, layout: bytes = LAYOUT) -> list[SourceFile]:
    """Both files with another kernel."""
    return [SourceFile.of("kernel.py", content), SourceFile.of("ops/layout.py", layout)]


def digests(content: bytes, layout: bytes = LAYOUT) -> dict[str, str]:
    """Digest by name of both files."""
    return {file.name: file.digest for file in variant(content, layout)}


def deploy(remote: Remote, target: Target, content: bytes = V1, **given: object) -> push.Deployment:
    """Pushes with the usual settings."""
    settings: dict[str, object] = {
        "expected": digests(KERNEL),
        "nonce": "aa",
        "holder": "ann@laptop pid 7",
        "ttl_s": 60,
        "poll_s": 0.1,
        **given,
    }
    return push.push(remote, target, variant(content), **settings)  # type: ignore[arg-type]


# ---- the way there and back


def test_pull_gives_bytes_digest_and_state_in_one_round_trip(remote: UnsteadyRemote, target: Target) -> None:
    """The snapshot holds the exact files of the target, each with its digest and its state."""
    snapshot = pull(remote, target)
    assert remote.operations == ["read"]
    assert [(file.name, file.content) for file in snapshot.files] == [("kernel.py", KERNEL), ("ops/layout.py", LAYOUT)]
    assert [state.digest for state in snapshot.states] == [digest_of(KERNEL), digest_of(LAYOUT)]
    assert snapshot.digest == manifest_digest(digests(KERNEL).items())
    assert (snapshot.target, snapshot.host, snapshot.pulled_at[-1]) == ("mla", "gpu-a", "Z")


def test_push_and_revert_say_what_they_did(remote: UnsteadyRemote, target: Target) -> None:
    """One round trip each; the deployment names both digests, the restoration proves the old one."""
    deployment = deploy(remote, target, ttl_s=60, on_restore="true")
    assert live(target) == [V1, LAYOUT]
    assert deployment.digest == manifest_digest(digests(V1).items())
    assert deployment.previous_digest == manifest_digest(digests(KERNEL).items())
    assert [file.was_already_there for file in deployment.files] == [False, False]
    state = push.status(remote, target)[0]
    assert (state.phase, state.base_digest, state.pushed_digest) == ("pushed", digest_of(KERNEL), digest_of(V1))
    assert state.lease is not None
    assert (state.lease.nonce, state.lease.holder) == ("aa", "ann@laptop pid 7")
    assert state.lease.expires_at == deployment.lease_expires_at
    restoration = push.revert(remote, target, nonce="aa", expected=digests(KERNEL))
    assert remote.operations == ["push", "stat", "revert"]
    assert live(target) == [KERNEL, LAYOUT]
    assert (restoration.digest, restoration.was_clean) == (manifest_digest(digests(KERNEL).items()), False)
    assert push.revert(remote, target, nonce="aa").was_clean


def test_published_mtimes_are_later_than_the_floor(remote: UnsteadyRemote, target: Target) -> None:
    """The floor from the controller's record counts where the host has forgotten, after a clean revert."""
    first = deploy(remote, target).files[0].mtime_s
    push.revert(remote, target, nonce="aa")
    assert deploy(remote, target, V2, floor_mtime_s=first + 50).files[0].mtime_s > first + 50


def test_a_file_that_the_target_does_not_have_is_refused_here(remote: UnsteadyRemote, target: Target) -> None:
    """A wrong name is told before anything is sent."""
    with pytest.raises(UnknownNameError, match="has no file"):
        push.push(remote, target, [SourceFile.of("other.py", b"")], expected={}, nonce="a", holder="a", ttl_s=9)
    assert remote.operations == []


# ---- lost lines


def lost() -> OrchError:
    """The error of a line that died."""
    return LineLostError("gpu-a: the line was lost")


def test_a_push_whose_answer_was_lost_is_found_to_have_happened(remote: UnsteadyRemote, target: Target) -> None:
    """The host acted and nobody was told: asked again it says so, with the true digest before."""
    remote.after = [lost()]
    remote.before = [None, HostUnreachableError("gpu-a: no route"), LoginRefusedError("gpu-a: cut during the login")]
    deployment = deploy(remote, target)
    assert [file.was_already_there for file in deployment.files] == [True, True]
    assert deployment.previous_digest == manifest_digest(digests(KERNEL).items())
    assert live(target) == [V1, LAYOUT]


def test_a_push_that_never_arrived_is_sent_again(remote: UnsteadyRemote, target: Target) -> None:
    """The line died before the host had it all: the second attempt does the work."""
    remote.before = [lost()]
    assert [file.was_already_there for file in deploy(remote, target).files] == [False, False]


def test_a_push_that_cannot_be_asked_about_says_that(remote: UnsteadyRemote, target: Target) -> None:
    """With the host out of reach the error is a connection error, not a guess; the watcher is on guard."""
    remote.after = [lost()]
    remote.before = [None, *[HostUnreachableError("gpu-a: no route")] * 3]
    with pytest.raises(HostUnreachableError):
        deploy(remote, target, ttl_s=2)
    wait_until(lambda: live(target) == [KERNEL, LAYOUT])


def test_a_cut_payload_is_a_transfer_error(remote: UnsteadyRemote, target: Target) -> None:
    """Half of the bytes: nothing was written."""
    remote.cut_at = 10
    with pytest.raises(TransferError, match="nothing was written"):
        deploy(remote, target)
    assert live(target) == [KERNEL, LAYOUT]


def test_a_revert_goes_on_after_a_lost_line(remote: UnsteadyRemote, target: Target) -> None:
    """Before or after the host acted: the revert ends restored and proved."""
    for fault in ("before", "after"):
        deploy(remote, target)
        setattr(remote, fault, [lost(), lost()])
        push.revert(remote, target, nonce="aa", expected=digests(KERNEL))
        assert live(target) == [KERNEL, LAYOUT]


def test_a_revert_keeps_trying_where_a_push_does_not(remote: UnsteadyRemote, target: Target) -> None:
    """A host that cannot be reached at first: the push says so at once, the revert tries again."""
    remote.before = [HostUnreachableError("gpu-a: no route")]
    with pytest.raises(HostUnreachableError):
        deploy(remote, target)
    deploy(remote, target)
    remote.before = [HostUnreachableError("gpu-a: no route")]
    push.revert(remote, target, nonce="aa")
    assert live(target) == [KERNEL, LAYOUT]


def test_a_revert_that_gets_no_answer_is_loud(remote: UnsteadyRemote, target: Target) -> None:
    """Not known to be restored is not restored: RevertError with the host and every path."""
    deploy(remote, target, ttl_s=2)
    remote.before = [lost(), lost(), lost(), lost()]
    with pytest.raises(RevertError, match="not known to be restored") as caught:
        push.revert(remote, target, nonce="aa")
    for word in (HOST.name, target.files[0].path, target.files[1].path, "orch revert"):
        assert word in str(caught.value)


# ---- refusals


def test_a_stale_base_carries_what_was_found(remote: UnsteadyRemote, target: Target) -> None:
    """The error holds both digests, for the caller to pull and show the difference."""
    Path(target.files[0].path).write_bytes(b"edited")
    with pytest.raises(StaleBaseError) as caught:
        deploy(remote, target)
    assert (caught.value.found, caught.value.expected) == (digest_of(b"edited"), digest_of(KERNEL))


def test_a_foreign_edit_is_kept_with_force(remote: UnsteadyRemote, target: Target) -> None:
    """Refused with the digest found; with force restored, and the edit lies where the restoration says."""
    deploy(remote, target)
    Path(target.files[0].path).write_bytes(b"edited")
    with pytest.raises(ForeignEditError) as caught:
        push.revert(remote, target, nonce="aa")
    assert caught.value.found == digest_of(b"edited")
    restoration = push.revert(remote, target, nonce="aa", force=True)
    (kept,) = restoration.kept_foreign
    assert Path(kept).read_bytes() == b"edited"
    assert live(target) == [KERNEL, LAYOUT]


def test_another_holder_is_named(remote: UnsteadyRemote, target: Target) -> None:
    """Push, lock and revert of somebody else say who holds the target; a forced revert restores it."""
    deploy(remote, target)
    for act in (
        lambda: deploy(remote, target, V2, expected=digests(V1), nonce="bb"),
        lambda: push.lock(remote, target, nonce="bb", holder="bob", ttl_s=9),
        lambda: push.revert(remote, target, nonce=None),
        lambda: push.revert(remote, target, nonce="bb"),
    ):
        with pytest.raises(LeaseHeldError, match="ann@laptop pid 7 holds"):
            act()
    push.revert(remote, target, nonce=None, force=True)
    assert live(target) == [KERNEL, LAYOUT]


def test_a_host_without_backup_and_with_other_bytes_is_not_restored(remote: UnsteadyRemote, target: Target) -> None:
    """Somebody removed orch's folder while a variant was live: the revert proves by digest, and says so."""
    deploy(remote, target)
    for file in target.files:
        path = Path(file.path)
        gone = (path.parent / f".orch-{path.name}").rename(
            path.parent / f"gone-{path.name}"
        )  # at once: its watcher writes there
        shutil.rmtree(gone, ignore_errors=True)
    with pytest.raises(RevertError) as caught:
        push.revert(remote, target, nonce="aa", expected=digests(KERNEL))
    for word in (HOST.name, target.files[0].path, digest_of(V1), digest_of(KERNEL)):
        assert word in str(caught.value)
    for watcher in watchers_of(Path(target.files[0].path)):
        with contextlib.suppress(ProcessLookupError):  # it ends by itself when it finds its folder gone
            os.kill(watcher, 15)


def test_a_damaged_backup_is_not_restored(remote: UnsteadyRemote, target: Target) -> None:
    """The backup itself is wrong: host, path and both digests are said, and no command that would make it worse."""
    deploy(remote, target)
    path = Path(target.files[0].path)
    base = path.parent / ".orch-kernel.py" / "base"
    base.unlink()
    with pytest.raises(RevertError, match="is missing or damaged") as caught:
        push.revert(remote, target, nonce="aa")
    assert digest_of(V1) in str(caught.value) and digest_of(KERNEL) in str(caught.value)
    path.write_bytes(KERNEL)


@pytest.mark.parametrize(
    ("host", "command"),
    [
        (Host(name="here", transport="local"), "ln -f '/a b/base' /t"),
        (Host(name="gpu-a"), "ssh gpu-a 'ln -f '\"'\"'/a b/base'\"'\"' /t'"),
        (
            Host(name="gpu-a", ssh="10.0.0.7", user="root", port=2222, jump="bastion"),
            "ssh -J bastion -l root -p 2222 10.0.0.7 'ln -f '\"'\"'/a b/base'\"'\"' /t'",
        ),
    ],
)
def test_the_repair_command_reaches_the_host_as_orch_does(host: Host, command: str) -> None:
    """It can be pasted: quoted for both shells, with the inventory's address."""
    assert repair_command(host, "/a b/base", "/t") == command
    assert shlex.split(command)


def test_missing_targets_and_bad_paths(remote: UnsteadyRemote, target: Target) -> None:
    """A missing file is a TargetError for pull and push, and a path with a line break is wrong use."""
    moved = Path(target.files[1].path)
    moved.rename(moved.with_suffix(".away"))
    for act in (lambda: pull(remote, target), lambda: deploy(remote, target)):
        with pytest.raises(TargetError, match="missing"):
            act()
    assert push.status(remote, target)[1].digest is None
    moved.with_suffix(".away").rename(moved)
    with pytest.raises(UsageError, match="line break"):
        Agent(remote).stat(["/tmp/a\nb"])


# ---- the lease


def test_lock_renew_unlock(remote: UnsteadyRemote, target: Target) -> None:
    """A bare lease keeps others out, is renewed by its nonce alone, and leaves nothing when given back."""
    nonce = push.new_nonce()
    assert push.lock(remote, target, nonce=nonce, holder="ann", ttl_s=30).remaining_s > 20
    assert push.renew(remote, target, nonce=nonce, ttl_s=300).remaining_s > 200
    with pytest.raises(LeaseLostError):
        push.renew(remote, target, nonce=push.new_nonce(), ttl_s=300)
    with pytest.raises(LeaseHeldError):
        deploy(remote, target, nonce="bb")
    assert all(state.lease is None for state in push.unlock(remote, target, nonce=nonce))
    push.unlock(remote, target, nonce=nonce)
    assert live(target) == [KERNEL, LAYOUT]


@pytest.mark.slow
def test_the_keeper_holds_the_lease_through_a_bad_line(remote: UnsteadyRemote, target: Target) -> None:
    """Renewed again and again past its ttl, while single renewals fail; the failure is visible, not fatal."""
    deploy(remote, target, ttl_s=3)
    remote.before = [None, lost()]
    seen: list[OrchError | None] = []
    with push.LeaseKeeper(remote, target, nonce="aa", ttl_s=3) as keeper:
        wait_until(lambda: seen.append(keeper.trouble) or keeper.trouble is not None)  # type: ignore[func-returns-value]
        wait_until(lambda: remote.operations.count("renew") >= 6)
        assert (keeper.lost, live(target)) == (None, [V1, LAYOUT])
    assert keeper.trouble is None
    push.revert(remote, target, nonce="aa")


def test_the_keeper_says_when_the_lease_is_gone(remote: UnsteadyRemote, target: Target) -> None:
    """Somebody ended it by force: the keeper stops and carries the error."""
    deploy(remote, target)
    with push.LeaseKeeper(remote, target, nonce="aa", ttl_s=0.3) as keeper:
        push.revert(LocalRemote(HOST), target, nonce=None, force=True)
        wait_until(lambda: keeper.lost is not None)
    assert isinstance(keeper.lost, LeaseLostError)
    assert threading.active_count() == 1 or not any("lease of" in each.name for each in threading.enumerate())


# ---- answers


GOOD = (
    "orch-agent 1\nnow 100\nfile /a b\nreal /a b\ndigest -\nfacts -\njournal clean - - 0 -\n"
    "lease aa 130 5\nholder ann and bob\nend\n"
)


def test_a_whole_answer_is_read() -> None:
    """Paths and holders keep their spaces; a missing file has no facts; the lease counts from the host's clock."""
    answer = parse(GOOD.encode())
    assert isinstance(answer, Answer)
    (state,) = (file.state for file in answer.files)
    assert (state.path, state.digest, state.size_bytes) == ("/a b", None, None)
    assert state.lease is not None
    assert (state.lease.holder, state.lease.remaining_s) == ("ann and bob", 30.0)
    assert state.lease.expires_at == "1970-01-01T00:02:10Z"


@pytest.mark.parametrize("cut", range(1, len(GOOD)))
def test_an_answer_cut_anywhere_is_no_answer(cut: int) -> None:
    """No prefix of an answer passes for one."""
    with pytest.raises(MalformedAnswerError):
        parse(GOOD[:cut].encode())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("orch-agent 1", "orch-agent 2"),
        ("digest -", "digest abc"),
        ("digest -", "digest " + "G" * 64),
        ("journal clean", "journal dirty"),
        ("facts -", "facts 1 2 3"),
        ("now 100", "now soon"),
        ("real /a b\n", ""),
        ("real /a b\n", "real /a b\nreal /c\n"),
        ("holder ann and bob\n", ""),
    ],
)
def test_an_answer_with_a_wrong_line_is_no_answer(old: str, new: str) -> None:
    """Another version, a damaged digest, a missing or doubled line: refused, not guessed."""
    with pytest.raises(MalformedAnswerError):
        parse(GOOD.replace(old, new, 1).encode())


def test_a_killed_agent_is_a_lost_line(remote: UnsteadyRemote, target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """kill -9 of the script while its host lives: no answer, so the error says to ask; asking works."""
    monkeypatch.setattr(push, "RECONNECT_PAUSES_S", ())
    monkeypatch.setenv("ORCH_KILL", "rename.2")
    with pytest.raises(LineLostError):
        deploy(remote, target)
    monkeypatch.delenv("ORCH_KILL")
    assert [state.phase for state in push.status(remote, target)] == ["pushing", "pushing"]
    push.revert(remote, target, nonce="aa", expected=digests(KERNEL))
    assert live(target) == [KERNEL, LAYOUT]
