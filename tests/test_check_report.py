"""Reports: columns that fit a terminal, and documents that keep every number as it was measured."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from orchestrator.check.report import Sheet, document, sweep_document, sweep_sheets, verdict_sheets
from orchestrator.check.sweep import expand, mark, parse_sweep
from orchestrator.cli.table import Table, draw, text_width
from orchestrator.verdicts import ConfigReport, Sentence, Verdict
from tests.support.config_reports import report, seed_config, seed_report

SEED = (seed_report(0, 2), seed_report(1, 2, 8), seed_report(2, 2, 4, 32))


def verdict(reports: Sequence[ConfigReport], **facts: Any) -> Verdict:
    """A verdict on V2 with these reports."""
    return Verdict(
        **{
            "target": "decode",
            "variant": "V2",
            "digest": "sha256:2",
            "base_digest": "sha256:1",
            "kernel": "_decode_kernel",
            "status": "ok",
            "source": "source",
            "archs": tuple(dict.fromkeys(one.arch for one in reports)),
            "triton_version": "3.9.0",
            "host_triton_version": None,
            "n_configs": 1,
            "n_baseline_configs": 3,
            "configs": tuple(reports),
            "baseline_configs": (),
            "sentences": (),
            "caveats": (),
            "checked_at": "2026-11-30T00:00:00Z",
            **facts,
        }
    )


def drawn(sheets: Sequence[Sheet], width: int | None = None) -> list[str]:
    """The lines that a person sees."""
    tables = [Table(sheet.columns, sheet.rows, right=sheet.right, title=sheet.title) for sheet in sheets]
    return [line.text for table in tables for line in draw(table, width)]


def test_a_verdict_beside_its_baseline() -> None:
    """Whether it fits, then its code; a row a config."""
    assert drawn(verdict_sheets(verdict([seed_report(0, 3)], baseline_configs=SEED)), 80) == [
        "sm_120: shared KiB a block (99.00 allowed), blocks and warps an SM (48 warps)",
        "config      knobs                        shared  blocks  warps/SM  limited by",
        "----------  ---------------------------  ------  ------  --------  ------------",
        "baseline 0  BLOCK_T=16 warps=4 stages=2   60.12       1         4  shared",
        "baseline 1  BLOCK_T=16 warps=8 stages=2   60.12       1         8  regs, shared",
        "baseline 2  BLOCK_T=32 warps=4 stages=2  110.06       0         0  does not fit",
        "V2          BLOCK_T=16 warps=4 stages=3   60.19       1         4  shared",
        "sm_120: registers, spilled and stack bytes a thread; seconds to compile",
        "config      regs  spill  stack  load buffers       tensor cores            took",
        "----------  ----  -----  -----  -----------------  ----------------------  ----",
        "baseline 0   242      0      0  1× 16×512 fp8e4nv  mma.sync m16n8k16 bf16   1.6",
        "baseline 1   255      0      0  1× 16×512 fp8e4nv  mma.sync m16n8k16 bf16   1.6",
        "baseline 2   242      0      0  1× 32×512 fp8e4nv  mma.sync m16n8k16 bf16   1.6",
        "V2           242      0      0  1× 16×512 fp8e4nv  mma.sync m16n8k16 bf16   1.6",
    ]


def test_the_baseline_alone_is_shown_once() -> None:
    """It has nothing to stand beside."""
    lines = drawn(verdict_sheets(verdict(SEED, variant="baseline", n_configs=3, baseline_configs=SEED)))
    assert [line.split("  ")[0] for line in lines[3:6]] == ["baseline 0", "baseline 1", "baseline 2"]
    assert sum(line.startswith("baseline 0") for line in lines) == 2


def test_each_architecture_has_tables_of_its_own() -> None:
    """With its own limit in the title."""
    sheets = verdict_sheets(verdict([seed_report(0, 2, arch=arch) for arch in (90, 120, 99)]))
    assert [sheet.title[:50] for sheet in sheets[::2]] == [
        "sm_90: shared KiB a block (227.00 allowed), blocks",
        "sm_120: shared KiB a block (99.00 allowed), blocks",
        "sm_99: shared KiB a block; its limits are not know",
    ]
    assert sheets[4].rows[0][3:] == [None, None, None]


def test_what_is_not_known_is_none() -> None:
    """A config that does not compile has a reason and no numbers; nothing pipelined is said in a word."""
    failed, plain = seed_report(0, 2, error="boom"), seed_report(1, 2, spill_bytes=None, buffers=(), tensor_cores=())
    fit, code = verdict_sheets(verdict([failed, plain], n_configs=2))
    assert fit.rows[0] == ["V2 0", "BLOCK_T=16 warps=4 stages=2", None, None, None, "does not compile"]
    assert code.rows == [["V2 0", *[None] * 6], ["V2 1", 242, None, 0, "none", "none", "1.6"]]


def test_an_instruction_in_two_shapes_is_named_once() -> None:
    """So that the table stays narrow."""
    kinds = ("wgmma.mma_async m64n32k16 bf16", "wgmma.mma_async m64n64k16 bf16")
    _, code = verdict_sheets(verdict([seed_report(0, 2, tensor_cores=kinds)]))
    assert code.rows[0][5] == "wgmma.mma_async m64n32k16 bf16, m64n64k16 bf16"


def test_a_sweep_fits_a_terminal() -> None:
    """A row a point, with what it repeats; within 80 columns, and one line each."""
    sweep = parse_sweep(["num_stages=2..4", "num_warps=4,8", "BLOCK_T=16,32"], ["BLOCK_T"])
    points = expand(seed_config(2), sweep)
    reports = [
        seed_report(n, one.num_stages, one.num_warps, int(str(one.constants["BLOCK_T"])))
        for n, one in enumerate(points)
    ]
    lines = drawn(sweep_sheets(mark(reports, SEED), sweep), 80)
    assert lines[:6] == [
        "sm_120: 2 of 12 points new; 99.00 KiB of shared memory allowed a block",
        " #  stages  warps  BLOCK_T  shared KiB  regs  warps/SM  buffers  verdict",
        "--  ------  -----  -------  ----------  ----  --------  -------  ------------",
        " 1       2      4       16       60.12   242         4        1  = baseline",
        " 2       2      4       32      110.06   242         0        1  does not fit",
        " 3       2      8       16       60.12   255         8        1  = baseline",
    ]
    assert lines[11] == " 9       4      4       16       60.19   242         4        1  = 5"
    assert max(map(text_width, lines)) <= 80


def test_spills_are_a_column_when_there_are_any() -> None:
    """And the table still fits with four knobs."""
    sweep = parse_sweep(["num_stages=2,3", "num_warps=4", "BLOCK_T=16", "BLOCK_H=16"], ["BLOCK_T", "BLOCK_H"])
    reports = [
        report(n, point, 120, shared_bytes=98_304, n_registers=255, spill_bytes=48 * n, binary_digest=f"sha256:{n}")
        for n, point in enumerate(expand(seed_config(2), sweep))
    ]
    (sheet,) = sweep_sheets(mark(reports, []), sweep)
    assert [row[sheet.columns.index("spill B")] for row in sheet.rows] == [0, 48]
    lines = drawn([sheet], 80)
    assert max(map(text_width, lines)) <= 80
    assert not lines[1].startswith("row 1")


def test_the_document_keeps_every_number() -> None:
    """Bytes and seconds as measured, names of architectures, null for what is not known."""
    sentence = Sentence("same-size", "the edit keeps the size", arch=None)
    found = document(
        verdict(
            [seed_report(0, 3), seed_report(1, 2, error="boom")],
            baseline_configs=SEED,
            sentences=(sentence, Sentence("cannot-launch", "no", True, 120)),
            caveats=("another Triton",),
        )
    )
    assert json.loads(json.dumps(found)) == found
    assert found["archs"] == ["sm_120"]
    assert found["sentences"][1] == {"kind": "cannot-launch", "text": "no", "is_fatal": True, "arch": "sm_120"}
    assert found["sentences"][0]["arch"] is None
    config, failed = found["configs"]
    expected = {
        "index": 0,
        "arch": "sm_120",
        "constants": {"BLOCK_T": 16},
        "num_stages": 3,
        "shared_bytes": 61_632,
        "shared_limit_bytes": 101_376,
        "blocks_per_sm": 1,
        "limiters": ["shared memory"],
        "n_kv_buffers": 1,
        "compile_s": 1.62,
    }
    assert {key: config[key] for key in expected} == expected
    assert config["buffers"][1] == {"shape": [16, 512], "dtype": "fp8e4nv", "n_buffers": 1, "size_bytes": 8192}
    assert config["stages_buffers"]["5"][1]["n_buffers"] == 2
    assert failed["error"] == "boom"
    assert [failed[key] for key in ("shared_bytes", "blocks_per_sm", "n_kv_buffers", "tensor_cores", "buffers")] == [
        None
    ] * 5
    assert failed["can_launch"] is False
    assert config.keys() == failed.keys() == found["baseline_configs"][0].keys()


def test_the_document_of_a_sweep() -> None:
    """Each point with its mark, the point that it repeats, and a name for a variant."""
    sweep = parse_sweep(["num_stages=3,4"], [])
    rows = mark([seed_report(n, 3 + n) for n in range(2)], [])
    found = sweep_document(rows, sweep)
    assert json.loads(json.dumps(found)) == found
    assert found["swept"] == {"num_stages": [3, 4]}
    shown = [[point[key] for key in ("number", "verdict", "same_as", "variant_name")] for point in found["points"]]
    assert shown == [[1, "new", None, "s3"], [2, "same", 1, "s4"]]
    assert found["points"][1]["shared_bytes"] == 61_632
