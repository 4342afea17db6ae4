"""How records become columns and come back: JSON text, packed floats, compressed bytes.

Pure. Must not know a table.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from orchestrator.designs import Arm, Plan, PlannedStart
from orchestrator.errors import StoreError
from orchestrator.records import (
    AutotuneWinner,
    Change,
    FileState,
    Lease,
    SourceFile,
    TritonKernel,
)


def to_json(value: object) -> str:
    """Compact JSON with sorted keys, so that equal values are equal texts.

    Raises:
        StoreError: a number is not finite; JSON (and so SQL) has no word for it.
    """
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except ValueError as error:
        raise StoreError(f"a number that is not finite cannot be stored: {value!r}"[:500]) from error


def names_to_json(files: Sequence[SourceFile]) -> str:
    """``[[name, digest], …]`` in the order of the target's files."""
    return to_json([[file.name, file.digest] for file in files])


def names_from_json(text: str) -> list[tuple[str, str]]:
    """The (name, digest) pairs of ``names_to_json``."""
    return [(name, digest) for name, digest in json.loads(text)]


def records_to_json(records: Sequence[FileState | Change | TritonKernel | AutotuneWinner]) -> str:
    """A list of flat records as JSON objects."""
    return to_json([asdict(record) for record in records])


def states_from_json(text: str) -> tuple[FileState, ...]:
    """What ``records_to_json`` made of file states."""
    return tuple(
        FileState(**{**fields, "lease": None if fields["lease"] is None else Lease(**fields["lease"])})
        for fields in json.loads(text)
    )


def changes_from_json(text: str) -> tuple[Change, ...]:
    """What ``records_to_json`` made of changes."""
    return tuple(Change(**fields) for fields in json.loads(text))


def kernels_from_json(text: str) -> tuple[TritonKernel, ...]:
    """What ``records_to_json`` made of compiled kernels."""
    return tuple(TritonKernel(**fields) for fields in json.loads(text))


def winners_from_json(text: str) -> tuple[AutotuneWinner, ...]:
    """What ``records_to_json`` made of the autotuner's choices."""
    return tuple(AutotuneWinner(**fields) for fields in json.loads(text))


def plan_to_json(plan: Plan) -> str:
    """A plan, whole; what is not Unicode in its texts as escapes."""
    fields = asdict(plan)
    for record, name in ((fields, "hypothesis"), *((arm, "message") for arm in fields["arms"])):
        record[name] = storable_text(record[name])
    return to_json(fields)


def plan_from_json(text: str) -> Plan:
    """The plan of ``plan_to_json``; equal to it."""
    fields = json.loads(text)
    return Plan(
        **{
            **fields,
            "arms": tuple(Arm(**arm) for arm in fields["arms"]),
            "starts": tuple(PlannedStart(**start) for start in fields["starts"]),
            **{name: tuple(fields[name]) for name in ("concurrencies", "looks", "thresholds")},
        }
    )


def texts_from_json(text: str) -> tuple[str, ...]:
    """A tuple of texts from a JSON list of them."""
    return tuple(json.loads(text))


def pack_floats(values: Sequence[float]) -> bytes:
    """Little-endian float64, eight bytes a value; exact, and five times faster than JSON."""
    return struct.pack(f"<{len(values)}d", *values)


def unpack_floats(packed: bytes) -> tuple[float, ...]:
    """The values of ``pack_floats``."""
    return struct.unpack(f"<{len(packed) // 8}d", packed)


def storable_text(text: str | None) -> str | None:
    """The text, with what is not Unicode (an undecodable file name in a message) as escapes; SQLite refuses it."""
    if text is None or text.isascii():
        return text
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def check_finite(metrics: Mapping[str, float | None], of: str) -> None:
    """Refuses what SQLite would turn into NULL without a word.

    Raises:
        StoreError: a metric is NaN or infinite.
    """
    for name, value in metrics.items():
        if value is not None and not math.isfinite(value):
            raise StoreError(f"{of}: {name} is {value}, which is no measurement; nothing of it was kept")
