"""Every error that orch raises on purpose, as one tree.

    OrchError
    ├── UsageError                  the command line or a file of the user is wrong
    │   ├── InventoryError          inventory.yaml: which key, which file, which line
    │   └── UnknownNameError        no such variant, target, host …; carries the nearest names
    ├── WorkspaceError              variants/ is missing something, or a working copy cannot be read or written
    ├── VariantError                the variant itself is wrong: does not parse, changes nothing …
    ├── CheckError                  the check could not be made: no Triton here, no signature, the compiler failed
    ├── ConnectionError_
    │   ├── HostUnreachableError    no such name, refused, no route, timed out
    │   ├── HostKeyError            unknown or changed host key
    │   ├── LoginRefusedError       the host is there, and does not let us in
    │   ├── LineLostError           the line died, or an answer came back without its closing sentinel
    │   └── NodeLostError           Slurm gave no node, or took it away: the job was cancelled, the node went down …
    ├── RemoteError                 the host answered, and the answer is no
    │   ├── RemoteTimeoutError      a command passed its deadline
    │   ├── RemoteCommandError      a command failed; carries its last lines
    │   ├── TargetError             the target is missing, unreadable, a directory …
    │   └── HostWriteError          the host could not write (disk full, read-only)
    ├── DeploymentError
    │   ├── StaleBaseError          compare-and-swap failed: the file is not what was expected
    │   ├── ForeignEditError        a revert would overwrite somebody's edit
    │   ├── LeaseHeldError          somebody else holds the lease
    │   ├── LeaseLostError          ours expired or was taken
    │   ├── TransferError           what arrived is not what was sent
    │   └── RevertError             THE HOST IS NOT RESTORED: the loudest
    ├── EngineError
    │   ├── PortTakenError          a stranger holds the engine's port
    │   ├── EngineDiedError         ended before or while serving; carries the log's tail
    │   ├── NotReadyError           alive, but not ready in time; carries the log's tail
    │   └── LoadedDigestError       the engine runs other bytes than those deployed
    ├── LoadError                   a load client failed or its result cannot be trusted
    ├── ComparisonError             the runs are not comparable; names the key
    ├── ExperimentError             an experiment cannot be drawn, or cannot go on as it was drawn
    ├── StoreError
    │   ├── StoreLockedError        another process holds the database too long
    │   └── StoreTooNewError        written by a newer orch
    └── InterruptedError_           Ctrl-C, after everything was put back

The text of an error is one line: what happened · with which values · what to run next. ``evidence`` (log lines, a
diff) is shown below it. Exit codes are not here: ``cli/exit_codes.py`` maps this tree to them, in one place.
Translate once, at the seam, and keep the cause: ``raise … from exc``.
"""

from __future__ import annotations

from collections.abc import Sequence


class OrchError(Exception):
    """What happened, in one line, with what to run next.

    Args:
        message: one line: what happened, with which values.
        next_step: what the user should run or change; shown after the message.
        evidence: lines that prove it (a log's tail, a diff); shown below, bounded.
    """

    def __init__(self, message: str, *, next_step: str | None = None, evidence: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.next_step = next_step
        self.evidence = tuple(evidence)

    def __str__(self) -> str:
        return f"{self.message}: {self.next_step}" if self.next_step else self.message


class UsageError(OrchError):
    """The command line, or a file that the user wrote, is wrong."""


class InventoryError(UsageError):
    """inventory.yaml is wrong; the message names the file, the line and the key."""


class UnknownNameError(UsageError):
    """No such variant, target, host, engine or workload; the message lists the nearest names."""


class WorkspaceError(OrchError):
    """The working tree under variants/ is missing something or cannot be read or written."""


class VariantError(OrchError):
    """The variant itself is wrong: it does not parse, changes nothing, or touches more than it says."""


class CheckError(OrchError):
    """The offline check could not be made; this says nothing about the variant."""


class ConnectionError_(OrchError):
    """The host could not be reached or the line died."""


class HostUnreachableError(ConnectionError_):
    """No such name, refused, no route, or timed out."""


class HostKeyError(ConnectionError_):
    """The host's key is unknown, or is not the one that was known."""


class LoginRefusedError(ConnectionError_):
    """The host is there and does not let us in."""


class LineLostError(ConnectionError_):
    """The line died, or an answer ended without its sentinel: whether the host acted must be asked."""


class NodeLostError(ConnectionError_):
    """Slurm gave no node, or has taken it away: its job ended, was cancelled, or the node went down."""


class RemoteError(OrchError):
    """The host answered, and the answer is no."""


class RemoteTimeoutError(RemoteError):
    """A remote command passed its deadline."""


class RemoteCommandError(RemoteError):
    """A remote command failed; the evidence is its last lines."""


class TargetError(RemoteError):
    """The target file is missing, unreadable, a directory, or not a file."""


class HostWriteError(RemoteError):
    """The host could not write: disk full, read-only, no permission. The target is untouched."""


class DeploymentError(OrchError):
    """A push or revert did not do what was asked."""


class StaleBaseError(DeploymentError):
    """Compare-and-swap failed: the live file is not the one that was expected. Nothing was written."""

    def __init__(
        self,
        message: str,
        *,
        found: str | None,
        expected: str,
        next_step: str | None = None,
        evidence: Sequence[str] = (),
    ) -> None:
        super().__init__(message, next_step=next_step, evidence=evidence)
        self.found = found
        self.expected = expected


class ForeignEditError(DeploymentError):
    """A revert would overwrite an edit that orch did not make. Nothing was written."""

    def __init__(
        self, message: str, *, found: str | None, next_step: str | None = None, evidence: Sequence[str] = ()
    ) -> None:
        super().__init__(message, next_step=next_step, evidence=evidence)
        self.found = found


class LeaseHeldError(DeploymentError):
    """Somebody else holds the lease on the target."""


class LeaseLostError(DeploymentError):
    """Our lease expired or was taken; nothing was written."""


class TransferError(DeploymentError):
    """What arrived on the host is not what was sent; nothing was written."""


class RevertError(DeploymentError):
    """The host is not restored: host, path, digest found, digest wanted, and the command that repairs it."""


class EngineError(OrchError):
    """The engine did not start, serve or stop as it should."""


class PortTakenError(EngineError):
    """Something that orch did not start listens on the engine's port."""


class EngineDiedError(EngineError):
    """The engine ended before it was ready or while it served."""


class NotReadyError(EngineError):
    """The engine is alive but was not ready in time."""


class LoadedDigestError(EngineError):
    """The engine runs, or would import, other bytes than those deployed."""


class LoadError(OrchError):
    """A load client failed, or its result cannot be trusted."""


class ComparisonError(OrchError):
    """The runs are not comparable; the message names the key that differs."""


class ExperimentError(OrchError):
    """An experiment cannot be drawn as asked, or cannot go on as it was drawn."""


class StoreError(OrchError):
    """The results database cannot be used."""


class StoreLockedError(StoreError):
    """Another process holds the database for too long."""


class StoreTooNewError(StoreError):
    """The database was written by a newer orch."""


class InterruptedError_(OrchError):
    """Ctrl-C; raised after everything was put back."""
