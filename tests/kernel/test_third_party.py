"""``orch check``, whole, on Triton kernels of other people's packages, as a user would point it at them."""

from __future__ import annotations

import importlib.metadata
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton", reason="triton is not installed")

from tests.support.cli_project import CliProject, cli_project

pytestmark = [pytest.mark.kernel, pytest.mark.slow]


@pytest.fixture
def project(tmp_path: Path) -> Iterator[CliProject]:
    """A project whose target is still to be named."""
    with cli_project(tmp_path / "project") as made:
        yield made


def point_at(
    project: CliProject, package: str, files: list[str], kernel: str, arguments: Mapping[str, str | int | bool | None]
) -> None:
    """Makes files of an installed package, copied, the target, and pulls them."""
    try:
        installed = importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{package} is not installed")
    paths = []
    for name in files:
        copy = project.site / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(Path(str(installed.locate_file(name))).read_bytes())
        paths.append({"path": str(copy), "module": name.removesuffix(".py").replace("/", ".")})
    entry = f"  flash_mla:\n    files: {json.dumps(paths)}\n    kernel: {kernel}\n"
    entry += f"    check: {json.dumps({'arguments': dict(arguments)})}\n"
    text = re.sub(r"(?m)^  flash_mla:\n(?:    .*\n)+", lambda _: entry, project.inventory.read_text())
    assert entry in text
    project.inventory.write_text(text)
    project.pulled()


def checked(project: CliProject, *archs: str) -> dict[str, Any]:
    """What the check says of the baseline; every config compiled and can launch."""
    words = [word for arch in archs for word in ("--arch", arch)]
    document: dict[str, Any] = project.done("check", *words, "--json").document
    assert (document["status"], document["source"], document["archs"]) == ("ok", "source", list(archs))
    assert [config["error"] for config in document["configs"]] == [None] * len(document["configs"])
    assert all(config["can_launch"] and config["n_registers"] > 0 for config in document["configs"])
    return document


def texts(document: Mapping[str, Any]) -> list[str]:
    """Its sentences."""
    return [sentence["text"] for sentence in document["sentences"]]


def test_torch_scatter_mm(project: CliProject) -> None:
    """A kernel inside an ``if`` and without an autotune list: its launch options are in ``arguments``. Every value of
    num_stages is one binary, and no variant can be made of a grid that the launcher sets."""
    arguments = {
        "pq_*ptr": "*i64",
        "*_ptr": "*bf16",
        "*_stride*": "i32",
        "accumulators_stride_N": 1,
        "M": 32,
        "K": 32,
        "N": 32,
        "TILE_M": 16,
        "TILE_N": 16,
        "dot_out_dtype": "tl.float32",
        "allow_tf32": True,
        "num_warps": 2,
        "num_stages": 1,
    }
    point_at(project, "torch", ["torch/sparse/_triton_ops.py"], "_scatter_mm2_kernel", arguments)
    document = checked(project, "sm_120")
    (config,) = document["configs"]
    assert (config["num_warps"], config["num_stages"], document["n_configs"]) == (2, 1, 1)
    assert config["tensor_cores"] == ["mma.sync m16n8k16 bf16"] and config["buffers"] == []
    assert not any("Triton's own" in caveat for caveat in document["caveats"])
    swept = project.done("check", "--arch", "sm_120", "--sweep", "num_stages=1..3", "--json").document
    assert [point["verdict"] for point in swept["points"]] == ["baseline"] * 3
    assert swept["unsettable"] == ["num_stages"]


def test_conch_paged_attention(project: CliProject) -> None:
    """A kernel whose launcher leaves the launch options out, which is said; nothing in its loop is pipelined."""
    arguments = {
        "lse_scratchpad_ptr": "*fp32",
        "block_table_ptr": "*i32",
        "seq_lens_ptr": "*i32",
        "?_scale_ptr": "*fp32",
        "*_ptr": "*bf16",
        "*_stride": "i32:16",
        "cxpr_cache_block_size": 32,
        "cxpr_head_size_padded": 128,
        "cxpr_query_group_size_padded": 16,
        "cxpr_is_*": False,
        "cxpr_apply_fp8_scaling": False,
    }
    files = ["conch/kernels/attention/paged_attention.py"]
    point_at(project, "conch-triton-kernels", files, "_paged_attention_compute_splits_kernel", arguments)
    document = checked(project, "sm_120")
    (config,) = document["configs"]
    assert config["tensor_cores"] == ["mma.sync m16n8k16 bf16"]
    assert (config["has_dot_in_loop"], config["buffers"]) == (True, [])
    assert [text.partition(";")[0] for text in texts(document)] == [
        "num_stages=3 keeps no buffer (nothing in the loop is pipelined)"
    ]
    assert any(caveat.startswith("num_warps=4 and num_stages=3 are Triton's own") for caveat in document["caveats"])


def test_fla_chunk_o(project: CliProject) -> None:
    """Two files, heuristics, and an autotune list that asks its own package of the GPU: computed here, and said so.
    One source becomes another kind of tensor-core code on sm_90, with one buffer more."""
    arguments = {
        "g": "*fp32",
        "[qkvho]": "*bf16",
        "g_gamma": None,
        "cu_seqlens": None,
        "chunk_indices": None,
        "scale": "fp32",
        "T": "i32:16",
        "H": 8,
        "HV": 8,
        "K": 128,
        "V": 128,
        "BT": 64,
        "USE_G": True,
        "USE_G_GAMMA": False,
        "IS_VARLEN": False,
        "STATE_V_FIRST": False,
    }
    point_at(project, "fla-core", ["fla/ops/common/chunk_o.py", "fla/ops/utils/op.py"], "chunk_fwd_kernel_o", arguments)
    document = checked(project, "sm_120", "sm_90")
    assert document["n_configs"] >= 2
    assert any("what fla makes of it on this machine" in caveat for caveat in document["caveats"])
    middle = {one["arch"]: one for one in document["configs"] if one["constants"] == {"BK": 64, "BV": 64}}
    assert middle["sm_120"]["tensor_cores"] == ["mma.sync m16n8k16 bf16"]
    assert middle["sm_90"]["tensor_cores"] == ["wgmma.mma_async m64n64k16 bf16"]
    assert [middle[arch]["n_kv_buffers"] for arch in ("sm_120", "sm_90")] == [2, 3]
    assert [text.partition(" binaries")[0] for text in texts(document)] == [
        f"the autotuner chooses among {document['n_configs']}"
    ]
