"""A user's project whose kernel can be checked, and a stand-in for the compile program that needs no Triton."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.kernel import seed_shape
from tests.support.cli_project import CliProject, cli_project

SEED = seed_shape.FILE.read_text(encoding="utf-8")
BLOCK_T_ONLY = (
    'triton.Config({"BLOCK_T": 16}, num_warps=4, num_stages=2)',
    'triton.Config({"BLOCK_T": 32}, num_warps=4, num_stages=2)',
    'triton.Config({"BLOCK_T": 32}, num_warps=8, num_stages=2)',
)
"""The list that the seed had: its launcher sets BLOCK_H."""

SEED_CHECK: dict[str, Any] = {"arch": "sm_120", "arguments": {**seed_shape.ARGUMENTS, "BLOCK_H": 16}}
"""``check`` of a target with the seed's kernel."""

LAUNCHER = """

def decode(query, grid=(8, 1, 8)):
    sparse_mla_decode[grid](query)
"""

STAND_IN = '''
import hashlib, json, sys
from pathlib import Path

TILES = {1: 0, 2: 1, 3: 1, 4: 1, 5: 2, 6: 2, 7: 3, 8: 3}


def buffers(block_t, stages):
    """What the pipeliner keeps for the seed's kernel."""
    if not TILES[stages]:
        return []
    loads = [([block_t], "i64", 8), ([block_t, 512], "fp8e4nv", 512), ([block_t, 64], "bf16", 128)]
    if stages > 2:
        loads.insert(0, loads[0])
    return [
        {"shape": shape, "dtype": dtype, "n_buffers": TILES[stages], "size_bytes": block_t * each}
        for shape, dtype, each in loads
    ]


def probed(block_t, stages, further):
    """The buffers of further stages, up to the first that keeps more."""
    found = {}
    for n in further:
        found[n] = buffers(block_t, n)
        if TILES[n] > TILES[stages]:
            break
    return found


def compiled(text, job):
    constants, options = job["constants"], job["options"]
    if "CRASHES" in text and constants["BLOCK_T"] == 32:
        return {"error": "crashed with SIGSEGV", "error_kind": "crash"}
    block_h, block_t, stages = constants.get("BLOCK_H", 16), constants.get("BLOCK_T", 16), options["num_stages"]
    kept = buffers(block_t, stages)
    shared = 51_200 + (block_h // 16 - 1) * 18_432 + (block_t // 16 - 1) * 32_768
    binary = [text, job["arch"], block_h, block_t, options["num_warps"], kept]
    return {
        "error": None,
        "error_kind": None,
        "n_warps": options["num_warps"],
        "shared_bytes": shared + sum(one["n_buffers"] * one["size_bytes"] for one in kept),
        "n_registers": 255 if options["num_warps"] == 4 else 226,
        "stack_bytes": 0,
        "spill_bytes": 0,
        "tensor_cores": ["mma.sync m16n8k16 bf16"],
        "has_loop": True,
        "has_dot_in_loop": True,
        "buffers": kept,
        "stages_buffers": probed(block_t, stages, job["also_stages"]),
        "binary_digest": "sha256:" + hashlib.sha256(json.dumps(binary).encode()).hexdigest(),
        "compile_s": 1.5,
    }


def main():
    request = json.loads(sys.stdin.readline())
    with Path(__file__).with_name("seen").open("a") as seen:
        seen.write(json.dumps(request) + "\\n")
    print(json.dumps({"event": "ready", "triton_version": "3.9.0"}), flush=True)
    for job in request["jobs"]:
        text = request["sources"][job["source"]]["text"]
        answer = {"event": "result", "id": job["id"], "error": None, "configs": None, "key": None}
        if job["do"] == "compile":
            answer.update(compiled(text, job))
        print(json.dumps(answer), flush=True)
    return 0
'''
"""Answers by the protocol as the seed's kernel would; a source that names CRASHES crashes at BLOCK_T 32."""


def with_configs(text: str, *configs: str) -> str:
    """The file with another autotune list."""
    lines = "".join(f"        {config},\n" for config in configs)
    changed, n_changes = re.subn(r"configs=\[\n.*?    \],", f"configs=[\n{lines}    ],", text, flags=re.DOTALL)
    assert n_changes == 1
    return changed


KERNEL = with_configs(SEED, *BLOCK_T_ONLY) + LAUNCHER


@contextlib.contextmanager
def check_project(
    folder: Path, text: str = KERNEL, *, kernel: str = seed_shape.KERNEL, check: Mapping[str, Any] | None = None
) -> Iterator[CliProject]:
    """A project whose target is one file with this text; the baseline is pulled.

    Args:
        check: of the target, as the inventory has it; the seed's when None.
    """
    with cli_project(folder) as project:
        project.live.write_text(text, encoding="utf-8")
        told = json.dumps(dict(SEED_CHECK if check is None else check))
        inventory = project.inventory.read_text()
        entry = "kernel: flash_mla_decode_kernel"
        assert entry in inventory
        project.inventory.write_text(inventory.replace(entry, f"kernel: {kernel}\n    check: {told}"))
        yield project.pulled()


def edit(project: CliProject, name: str, old: str, new: str) -> None:
    """Edits a variant's file by hand."""
    path = project.variants / name / "flash_mla.py"
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def bullets(out: str) -> list[str]:
    """The sentences of a verdict, without their marks."""
    return [line[2:] for line in out.splitlines() if line[:2] in ("• ", "✗ ")]
