"""The agent's refusals as errors: the one place that knows its words and exit codes.

Each error says which host and file, what was found, and what to run next.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping

from orchestrator.agent.answers import Refusal
from orchestrator.errors import (
    ForeignEditError,
    HostWriteError,
    LeaseHeldError,
    LeaseLostError,
    OrchError,
    RemoteCommandError,
    RevertError,
    StaleBaseError,
    TargetError,
    TransferError,
    UsageError,
)
from orchestrator.records import Host, short

Fields = Mapping[str, str]


def error_for(refusal: Refusal, host: Host, exit_code: int) -> OrchError | None:
    """The error that a refusal means; None when the word is unknown or does not belong to the exit code."""
    known = _ERRORS.get(refusal.word)
    if known is None or known[0] != exit_code:
        return None
    return known[1](refusal.fields, host)


def repair_command(host: Host, base_path: str, target_path: str) -> str:
    """The one line that puts the host's own backup back by hand: a hard link, so owner, mode and times come with it."""
    repair = shlex.join(["ln", "-f", base_path, target_path])
    return repair if host.transport == "local" else shlex.join([*_ssh_words(host), repair])


def copy_command(host: Host, local_path: str, target_path: str) -> str:
    """The one line that writes a file of this machine into the target by hand, where the host has no backup."""
    if host.transport == "local":
        return shlex.join(["cp", local_path, target_path])
    write = shlex.join(_ssh_words(host)) + " " + shlex.quote(f"cat > {shlex.quote(target_path)}")
    return f"{write} < {shlex.quote(local_path)}"


def _ssh_words(host: Host) -> list[str]:
    options = {"-F": host.ssh_config, "-i": host.identity, "-J": host.jump, "-l": host.user}
    words = ["ssh", *(word for flag, value in options.items() if value for word in (flag, value))]
    if host.port is not None:
        words += ["-p", str(host.port)]
    return [*words, host.ssh or host.name]


def _prefixed(word: str | None) -> str | None:
    return None if word in (None, "-", "?") else f"sha256:{word}"


def _target(fields: Fields, host: Host) -> OrchError:
    return TargetError(
        f"{host.name}: {fields.get('path')}: {fields.get('reason')}",
        next_step="check the target's path in inventory.yaml, and `orch doctor`",
    )


def _busy(fields: Fields, host: Host) -> OrchError:
    return LeaseHeldError(
        f"{host.name}: {fields.get('path')} is locked by {fields.get('owner')}",
        next_step="try again in a moment; if it stays so, look for a hanging process there",
    )


def _write(fields: Fields, host: Host) -> OrchError:
    because = fields.get("because", "").strip()
    steps = {"space": "free some space on that disk", "read-only": "the file system must be writable"}
    found = [step for word, step in steps.items() if word in because.lower()]
    left = "the target is untouched" if fields.get("n_replaced") == "0" else "the original was put back"
    return HostWriteError(
        f"{host.name}: could not {fields.get('doing')} for {fields.get('path')}"
        f"{f' ({because})' if because else ''}; {left}",
        next_step=f"{found[0] if found else 'give this login the right to write there'}, then try again",
    )


def _damaged(fields: Fields, host: Host) -> OrchError:
    return RevertError(
        f"{host.name}: {fields.get('because')}, so it cannot be told whether {fields.get('path')} is restored",
        next_step="compare it with the baseline by `orch drift`, restore it by hand, then remove that folder",
    )


def _stale(fields: Fields, host: Host) -> OrchError:
    found, expected = _prefixed(fields.get("found")), f"sha256:{fields.get('expected')}"
    return StaleBaseError(
        f"{host.name}: {fields.get('path')} is not what was expected (have {short(found)}, want {short(expected)}); "
        "nothing was written",
        found=found,
        expected=expected,
        next_step="see `orch drift`, then `orch pull`",
    )


def _foreign(fields: Fields, host: Host) -> OrchError:
    found = _prefixed(fields.get("found"))
    return ForeignEditError(
        f"{host.name}: {fields.get('path')} was edited by somebody else ({short(found)}) after orch's push; "
        "nothing was written",
        found=found,
        next_step="see `orch drift`; `orch revert --force` keeps that edit aside and restores",
    )


def _held(fields: Fields, host: Host) -> OrchError:
    return LeaseHeldError(
        f"{host.name}: {fields.get('holder')} holds {fields.get('path')} for another {fields.get('remaining_s')} s",
        next_step="wait for it, or ask them to run `orch revert`; `orch status` shows it",
    )


def _lost(fields: Fields, host: Host) -> OrchError:
    return LeaseLostError(
        f"{host.name}: our lease on {fields.get('path')} expired or was taken; nothing was written",
        next_step="`orch status` shows what is live now",
    )


def _transfer(fields: Fields, host: Host) -> OrchError:
    return TransferError(
        f"{host.name}: {fields.get('path')}: {fields.get('because')}; nothing was written",
        next_step="the line was cut: push again",
    )


def _unrestored(fields: Fields, host: Host) -> OrchError:
    found, wanted = _prefixed(fields.get("found")), _prefixed(fields.get("wanted"))
    path, base = fields.get("path", "?"), fields.get("base", "?")
    if fields.get("backup") == "whole":
        step = "repair it with: " + repair_command(host, base, path)
    else:
        step = f"its backup {base} is missing or damaged; copy the baseline there by hand, then run `orch revert`"
    because = fields.get("because", "").strip()
    return RevertError(
        f"{host.name}: {path} is NOT RESTORED (found {found or 'no file'}, wanted {wanted})"
        f"{f': {because}' if because else ''}",
        next_step=step,
    )


def _usage(fields: Fields, host: Host) -> OrchError:
    return UsageError(f"{host.name}: {fields.get('because')}", next_step="check the target's path in inventory.yaml")


def _broken(fields: Fields, host: Host) -> OrchError:
    return RemoteCommandError(
        f"{host.name}: {fields.get('because')}", next_step="`orch doctor` lists what a host needs"
    )


_ERRORS: dict[str, tuple[int, Callable[[Fields, Host], OrchError]]] = {
    "usage": (64, _usage),
    "target": (66, _target),
    "busy": (70, _busy),
    "write": (73, _write),
    "tools": (74, _broken),
    "watcher": (74, _broken),
    "damaged": (74, _damaged),
    "stale": (75, _stale),
    "foreign": (76, _foreign),
    "held": (77, _held),
    "lost": (77, _lost),
    "transfer": (78, _transfer),
    "unrestored": (79, _unrestored),
}
