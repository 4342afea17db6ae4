"""Which config Triton's autotuner chose, read from the engine's log: with TRITON_PRINT_AUTOTUNING=1 Triton prints it.

It prints one line (until 3.2), or four of which the second has the key:

    Triton autotuning for function NAME finished after 1.02s; best config selected: BLOCK_T: 16, num_warps: 4, …;

    Triton autotuning for function NAME,
    with key as (64, 'torch.bfloat16'),
    finished after 1.02s,
    best config selected: BLOCK_T: 16, num_warps: 4, …;

A list of one config is not tuned, and a choice that Triton had kept on disk is not printed. Engines may put the name
of the process in front of a line.
"""

from __future__ import annotations

import re
from typing import Any, Dict, Iterable, List, Optional, Tuple

MAX_BYTES = 1 << 28
MAX_WINNERS = 256
MAX_TEXT = 300
_BEGIN = re.compile(r"Triton autotuning for function ([^\s,]+)")
_KEY = re.compile(r"with key as (.*?),?\s*$")
_END = re.compile(r"best config selected: (.*?);?\s*$")


def winners(path: str) -> Optional[List[Dict[str, Any]]]:
    """``kernel``, ``key`` (None of an old Triton), ``config`` and ``n``, how often it was printed; by first appearance.

    Each process of the engine tunes for itself, so ``n`` is often their number.

    Returns:
        None where the log tells of no choice, or cannot be read.
    """
    try:
        with open(path, "rb") as file:
            found = _count(_choices(_lines(file)))
    except OSError:
        return None
    return found[:MAX_WINNERS] or None


def _lines(file: Iterable[bytes]) -> Iterable[str]:
    n_bytes = 0
    for line in file:
        n_bytes += len(line)
        if n_bytes > MAX_BYTES:
            return
        if b"utotuning for function" in line or b"with key as" in line or b"best config selected" in line:
            yield line.decode("utf-8", "replace")


def _choices(lines: Iterable[str]) -> Iterable[Tuple[str, Optional[str], str]]:
    """Kernel, key and config of each choice. Processes write side by side: what is in front tells their lines apart."""
    begun: Dict[str, Tuple[str, Optional[str]]] = {}
    for line in lines:
        begin, key, end = _BEGIN.search(line), _KEY.search(line), _END.search(line)
        if begin:
            begun[line[: begin.start()]] = (_text(begin.group(1)), None)
        elif key:
            front = _front_of(line[: key.start()], begun)
            if front is not None:
                begun[front] = (begun[front][0], _text(key.group(1)))
        if end:
            front = _front_of(line[: (begin or end).start()], begun)
            if front is not None:
                kernel, its_key = begun.pop(front)
                yield kernel, its_key, _text(end.group(1))


def _front_of(front: str, begun: Dict[str, Tuple[str, Optional[str]]]) -> Optional[str]:
    """Which begun choice a line goes on with: that with the same in front, or the only one."""
    if front in begun:
        return front
    return next(iter(begun)) if len(begun) == 1 else None


def _count(choices: Iterable[Tuple[str, Optional[str], str]]) -> List[Dict[str, Any]]:
    found: Dict[Tuple[str, Optional[str], str], Dict[str, Any]] = {}
    for kernel, key, config in choices:
        one = found.setdefault((kernel, key, config), {"kernel": kernel, "key": key, "config": config, "n": 0})
        one["n"] += 1
    return list(found.values())


def _text(value: str) -> str:
    return value.strip()[:MAX_TEXT]
