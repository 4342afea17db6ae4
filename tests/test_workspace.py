"""variants/: pristine copies are proved, working copies are read as they are, and nothing is lost."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from orchestrator import workspace
from orchestrator.errors import UnknownNameError, UsageError, WorkspaceError
from orchestrator.records import FileState, Lease, Snapshot, SourceFile, Target, TargetFile, WorkingCopy, short
from orchestrator.workspace import files as workspace_files

FILES = ("mla.py", "ops/merge.py")
TARGET = Target(
    name="mla",
    host="gpu-a",
    engine="sglang",
    files=tuple(TargetFile(path=f"/opt/{name}", name=name) for name in FILES),
    kernel="k",
)


def state_of(file: SourceFile) -> FileState:
    """A clean file's state on a host, with a lease, so that every field is written and read."""
    return FileState(
        path=f"/opt/{file.name}",
        real_path=f"/srv/{file.name}",
        digest=file.digest,
        size_bytes=len(file.content),
        mode="644",
        owner="root:root",
        inode=7,
        n_links=1,
        mtime_s=1_700_000_000,
        ctime_s=1_700_000_000.5,
        phase="clean",
        base_digest=None,
        pushed_digest=None,
        lease=Lease("n0nce", "me@laptop pid 1", 12.5, "2026-01-01T00:00:00Z"),
    )


def snapshot(*contents: bytes) -> Snapshot:
    """The target's files with these contents."""
    contents = contents or (b"a = 1\r\n\xff", b"b = 2")
    files = tuple(SourceFile.of(name, content) for name, content in zip(FILES, contents, strict=True))
    return Snapshot("mla", "gpu-a", files, tuple(state_of(file) for file in files), "2026-01-02T03:04:05Z")


def make(root: Path, base: Snapshot, name: str = "V1") -> WorkingCopy:
    """A variant that is equal to its base."""
    return workspace.new_variant(
        root, TARGET, name, base.files, base_digest=base.digest, message="why", settings={"num_warps": "8"}
    )


# ---- the baseline


def test_a_baseline_comes_back_byte_for_byte(tmp_path: Path) -> None:
    """What was written is read again, states and all, from read-only files under the target's names."""
    written = workspace.write_baseline(tmp_path, snapshot())
    assert workspace.read_baseline(tmp_path, TARGET) == snapshot() == written.current
    assert written.previous is None and not written.has_moved and written.moved_files == ()
    for file in snapshot().files:
        path = tmp_path / "mla" / "baseline" / file.name
        assert path.read_bytes() == file.content
        assert stat.S_IMODE(path.stat().st_mode) == 0o444


def test_a_moved_baseline_says_what_moved_and_keeps_the_old(tmp_path: Path) -> None:
    """The files that differ are named, and a variant's earlier base can still be read."""
    old, new = snapshot(), snapshot(b"a = 2\n", b"b = 2")
    workspace.write_baseline(tmp_path, old)
    written = workspace.write_baseline(tmp_path, new)
    assert written.previous == old and written.has_moved and written.moved_files == ("mla.py",)
    assert workspace.read_baseline(tmp_path, TARGET) == new
    assert workspace.read_baseline(tmp_path, TARGET, old.digest) == old
    assert workspace.write_baseline(tmp_path, old).moved_files == ("mla.py",)
    assert workspace.read_baseline(tmp_path, TARGET) == old


def test_pulling_the_same_again_moves_nothing(tmp_path: Path) -> None:
    """The time of the pull is renewed, and nothing else."""
    workspace.write_baseline(tmp_path, snapshot())
    again = Snapshot("mla", "gpu-a", snapshot().files, snapshot().states, "2026-02-02T00:00:00Z")
    assert not workspace.write_baseline(tmp_path, again).has_moved
    assert workspace.read_baseline(tmp_path, TARGET).pulled_at == "2026-02-02T00:00:00Z"


def test_an_edited_pristine_copy_is_found_and_put_aside(tmp_path: Path) -> None:
    """Bytes that differ from the recorded digest are no baseline; the next pull keeps the edit and writes anew."""
    workspace.write_baseline(tmp_path, snapshot())
    path = tmp_path / "mla" / "baseline" / "mla.py"
    path.chmod(0o644)
    path.write_bytes(b"a = 9\n")
    with pytest.raises(WorkspaceError, match=r"baseline.*mla\.py was edited .*orch pull mla"):
        workspace.read_baseline(tmp_path, TARGET)
    written = workspace.write_baseline(tmp_path, snapshot())
    assert written.replaced_damaged is not None
    assert (written.replaced_damaged / "files" / "mla.py").read_bytes() == b"a = 9\n"
    assert workspace.read_baseline(tmp_path, TARGET) == snapshot()


@pytest.mark.parametrize("damage", ["record", "file", "json"])
def test_an_incomplete_baseline_is_refused(damage: str, tmp_path: Path) -> None:
    """A missing file or a damaged record is one clear line, not a traceback."""
    workspace.write_baseline(tmp_path, snapshot())
    home = tmp_path / "mla" / ".baselines" / short(snapshot().digest)
    if damage == "json":
        (home / "baseline.json").write_text('{"files": 3}')
    else:
        (home / ("baseline.json" if damage == "record" else "files/mla.py")).unlink()
    with pytest.raises(WorkspaceError):
        workspace.read_baseline(tmp_path, TARGET)


def test_without_a_pull_there_is_no_baseline(tmp_path: Path) -> None:
    """The way out is named."""
    with pytest.raises(WorkspaceError, match=r"has no baseline in .*: run `orch pull mla`"):
        workspace.read_baseline(tmp_path, TARGET)
    workspace.write_baseline(tmp_path, snapshot())
    with pytest.raises(WorkspaceError, match="has no baseline 0123456789ab"):
        workspace.read_baseline(tmp_path, TARGET, "sha256:0123456789abcdef")


class Killed(BaseException):
    """The process dies here."""


@pytest.mark.parametrize("step", ["write_bytes", "symlink_to", "rename", "replace"])
def test_an_interrupted_write_leaves_the_old_baseline(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever step a new baseline dies in, the old one is whole; and the next attempt succeeds."""
    workspace.write_baseline(tmp_path, snapshot())

    def die(*_: object, **__: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(Path, step, die)
        with pytest.raises(Killed):
            workspace.write_baseline(tmp_path, snapshot(b"a = 2\n", b"b = 3\n"))
    assert workspace.read_baseline(tmp_path, TARGET) == snapshot()
    workspace.write_baseline(tmp_path, snapshot(b"a = 2\n", b"b = 3\n"))
    assert workspace.read_baseline(tmp_path, TARGET).files[1].content == b"b = 3\n"


def test_a_folder_that_is_not_orchs_is_not_overwritten(tmp_path: Path) -> None:
    """A user's own folder called baseline is refused, and stays."""
    mine = tmp_path / "mla" / "baseline"
    mine.mkdir(parents=True)
    (mine / "notes").write_text("x")
    with pytest.raises(WorkspaceError, match="is not orch's own link"):
        workspace.write_baseline(tmp_path, snapshot())
    assert (mine / "notes").read_text() == "x"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full to fill a disk")
def test_a_full_disk_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's own words come through, and no half folder stays."""

    def full(_: Path, content: bytes) -> int:
        with Path("/dev/full").open("wb") as file:
            return file.write(content)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(WorkspaceError, match="could not write the baseline of mla: No space left on device"):
        workspace.write_baseline(tmp_path, snapshot())
    assert list((tmp_path / "mla" / ".baselines").iterdir()) == []


# ---- variants


def test_a_working_copy_is_read_as_it_is_now(tmp_path: Path) -> None:
    """Its digest is of the bytes on disk, so an edit by hand counts; the record keeps what was first said."""
    base = snapshot()
    made = make(tmp_path, base)
    assert workspace.read_working_copy(tmp_path, TARGET, "V1") == made
    assert (made.message, made.settings, made.base_digest) == ("why", {"num_warps": "8"}, base.digest)
    folder = workspace.variant_folder(tmp_path, TARGET, "V1")
    (folder / "ops" / "merge.py").write_bytes(b"b = 3\n")
    (folder / "notes.txt").write_text("not a file of the target")
    edited = workspace.read_working_copy(tmp_path, TARGET, "V1")
    assert edited.files[1].content == b"b = 3\n" and edited.digest != made.digest
    assert [file.name for file in edited.files] == list(FILES)


@pytest.mark.parametrize("name", ["", "baseline", "Baseline", "../x", "a/b", ".hidden", "a b", "-rf", "ä", "V1\n"])
def test_a_name_that_could_lead_elsewhere_is_refused(name: str, tmp_path: Path) -> None:
    """No name escapes the folder, hides, or stands for the baseline."""
    with pytest.raises(UsageError):
        make(tmp_path, snapshot(), name)
    with pytest.raises((UsageError, UnknownNameError)):
        workspace.read_working_copy(tmp_path, TARGET, name)
    assert not (tmp_path / "mla").exists()


def test_a_taken_name_is_refused_whatever_its_case(tmp_path: Path) -> None:
    """Two variants never share a folder, on a file system that ignores case neither."""
    make(tmp_path, snapshot())
    for name in ("V1", "v1"):
        with pytest.raises(WorkspaceError, match="there is a variant V1 already"):
            make(tmp_path, snapshot(b"x = 1\n", b""), name)
    assert workspace.read_working_copy(tmp_path, TARGET, "V1").files == snapshot().files


def test_an_unknown_name_lists_the_nearest(tmp_path: Path) -> None:
    """A slip of the finger is answered with the name that was meant."""
    make(tmp_path, snapshot(), "deeper-pipeline")
    with pytest.raises(UnknownNameError, match="did you mean deeper-pipeline"):
        workspace.read_working_copy(tmp_path, TARGET, "deper-pipeline")


def test_a_broken_variant_is_told_and_hides_no_other(tmp_path: Path) -> None:
    """The list gives what can be read, and the reason for what cannot."""
    for name in ("V1", "V2", "V3", "V4"):
        make(tmp_path, snapshot(), name)
    (tmp_path / "mla" / "V2" / "mla.py").unlink()
    (tmp_path / "mla" / "V3" / "variant.json").write_text("{")
    (tmp_path / "mla" / "V4" / "variant.json").write_text('{"files": ["../../x"]}')
    workspace.write_baseline(tmp_path, snapshot())
    assert [working.name for working in workspace.list_variants(tmp_path, TARGET)] == ["V1"]
    assert sorted(workspace.unreadable_variants(tmp_path, TARGET)) == ["V2", "V3", "V4"]
    assert "mla.py" in str(workspace.unreadable_variants(tmp_path, TARGET)["V2"])


def test_a_variant_of_an_older_baseline_is_stale(tmp_path: Path) -> None:
    """It is stale as soon as the baseline moved, and no longer when it moved back."""
    working = make(tmp_path, snapshot())
    assert not workspace.is_stale(working, snapshot())
    assert workspace.is_stale(working, snapshot(b"a = 2\n", b""))


def test_a_dropped_variant_is_kept(tmp_path: Path) -> None:
    """Its folder moves aside whole; its name is free again, as often as wanted."""
    places = set()
    for _ in range(3):
        make(tmp_path, snapshot())
        places.add(workspace.drop_variant(tmp_path, TARGET, "V1"))
    assert workspace.list_variants(tmp_path, TARGET) == ()
    assert len(places) == 3
    assert all((place / "mla.py").read_bytes() == snapshot().files[0].content for place in places)


def test_an_interrupted_new_variant_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variant is there with all its files or not at all."""

    def die(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(workspace_files.Path, "rename", die)
        with pytest.raises(Killed):
            make(tmp_path, snapshot())
    assert os.listdir(tmp_path / "mla") == []  # noqa: PTH208 # names alone


# ---- differences


def test_a_diff_shows_every_kind_of_difference() -> None:
    """Line ends, missing last newlines, other bytes, and files that came or went are all visible."""
    base = [SourceFile.of("a.py", b"x = 1\ny = 2\n"), SourceFile.of("b.py", b"\xff\n"), SourceFile.of("c.py", b"c")]
    files = [SourceFile.of("a.py", b"x = 1\r\ny = 2"), SourceFile.of("b.py", b"\xfe\n"), SourceFile.of("d.py", b"d\n")]
    assert workspace.diff(base, base) == []
    assert workspace.diff(base, files) == [
        *("--- a/a.py", "+++ b/a.py", "@@ -1,2 +1,2 @@"),
        *("-x = 1", "-y = 2", "+x = 1\\r", "+y = 2", "\\ No newline at end of file"),
        *("--- a/b.py", "+++ b/b.py", "@@ -1 +1 @@", "-\\xff", "+\\xfe"),
        *("--- a/c.py", "+++ /dev/null", "@@ -1 +0,0 @@", "-c", "\\ No newline at end of file"),
        *("--- /dev/null", "+++ b/d.py", "@@ -0,0 +1 @@", "+d"),
    ]
