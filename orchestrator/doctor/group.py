"""The nodes that one engine spans: whether they have the same file, and know the head by its name."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator import push
from orchestrator.connection import Remote
from orchestrator.connection.slurm_group import node_of
from orchestrator.doctor.findings import Finding, fail, failed_by, ok, warn
from orchestrator.errors import OrchError
from orchestrator.records import Target

_RESOLVE = 'getent hosts "$1"'


def check_others(checked: Target, remote: Remote) -> Iterator[Finding]:
    """A finding for each node but the head, which all the other checks are about."""
    head, *others = remote.members
    for other in others:
        name = f"node {node_of(other)}"
        try:
            yield _check(name, checked, head, other)
        except OrchError as exc:
            yield failed_by(name, exc, f"run `orch status {checked.name}`")


def _check(name: str, checked: Target, head: Remote, other: Remote) -> Finding:
    here, there = ([state.digest for state in push.status(one, checked)] for one in (head, other))
    if here != there:
        return fail(name, f"{checked.name} is not the same file as on {node_of(head)}", "see `orch status`")
    known = other.run(_RESOLVE, [node_of(head)])
    if known.exit_code:
        text = f"`getent hosts {node_of(head)}` finds nothing there, and {{head_node}} stands for that name"
        return warn(name, text, "unless its engine resolves it otherwise, have the ranks meet at another address")
    return ok(name, f"has the same file as {node_of(head)}, and knows it as {known.text.split()[0]}")
