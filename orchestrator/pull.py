"""Station: a target on its host → ``Snapshot``. Writes nothing, here or there."""

from __future__ import annotations

from datetime import datetime, timezone

from orchestrator.agent import Agent
from orchestrator.connection.base import Remote
from orchestrator.records import Snapshot, SourceFile, Target


def pull(remote: Remote, target: Target) -> Snapshot:
    """The target's files with their state, in one round trip; content and digest are proved to belong together.

    Raises:
        TargetError: a file is missing, a directory, not readable, or kept changing.
        LineLostError: the line died; pull again.
    """
    found = Agent(remote).read([file.path for file in target.files])
    return Snapshot(
        target=target.name,
        host=target.host,
        files=tuple(SourceFile.of(file.name, content) for file, (_, content) in zip(target.files, found, strict=True)),
        states=tuple(state for state, _ in found),
        pulled_at=datetime.now(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z"),
    )
