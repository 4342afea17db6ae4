"""What can be timed: kernel files, and other implementations of what ``sparse_mla_decode`` computes, in one form.

A peer takes the same tensors and gives the same outputs. What it needs in another form (queries padded to more heads,
its schedule) is made once, before it is timed. Nothing here judges or times.

Dimension key: B rows, H heads, D 512, T slots of all token lists.

Source: the torch form is own. FlashMLA: the argument list of ``flash_mla_with_kvcache`` in the wheel sgl-flash-mla
1.0.0 (module ``flash_mla``), and the page layout of tests/quant.py in its repository (MODEL1_FP8Sparse): the same
bytes as ``kv_pool.py`` packs, addressed as [P, S, 1, 584] with pages a multiple of 576 bytes apart. SGLang Triton: the
kernel that SGLang 0.5.23 has for sm_120, one program a row and head, which reads the pool in the same form.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from kernel import kv_pool
from kernel.cases import Inputs, Pool
from kernel.check import call_into, import_source

Outputs = tuple[torch.Tensor, torch.Tensor]
Call = Callable[[], Outputs]

FLASH_MLA_HEADS = (64, 128)
FLASH_MLA_TILE = 64
TORCH_EAGER, TORCH_COMPILED, FLASH_MLA, SGLANG = "torch eager", "torch.compile", "FlashMLA", "SGLang Triton"
SGLANG_MODULE = "sglang.kernels.ops.attention.flash_mla_sm120_triton"


@dataclass(frozen=True, kw_only=True)
class Implementation:
    """Something to time.

    Attributes:
        name: as tables show it.
        kind: ``file`` or ``peer``.
        prepare: takes the inputs of several calls of one shape, which share queries and sink, and gives the calls;
            each returns out [B, 1, H, 512] and lse [B, 1, H], and can be captured in a CUDA graph once the first has
            run. Raises where it cannot.
        version: of the library, or None.
        config: words for what an autotuner chose last, or None.
        has_sink_in_lse: its lse is of the scores and the sink, where the kernel files' is of the scores alone.
    """

    name: str
    kind: str
    prepare: Callable[[Sequence[Inputs]], list[Call]]
    version: str | None = None
    config: Callable[[], str | None] = lambda: None
    has_sink_in_lse: bool = False


def file_implementation(module: ModuleType, name: str, forced: Any = None) -> Implementation:
    """The entry point of a kernel file, with outputs that begin as NaN: what it forgets to write is seen.

    Args:
        forced: a config of its list to run instead of tuning.
    """

    named: list[Any] = []  # by the file's own table, where it has one and this GPU is in it

    def prepare(calls: Sequence[Inputs]) -> list[Call]:
        n_rows, _, n_heads, _ = calls[0].q_B1HD.shape
        out = torch.full_like(calls[0].q_B1HD, math.nan)
        lse = torch.full((n_rows, 1, n_heads), math.nan, dtype=torch.float32, device=out.device)
        if out.is_cuda and hasattr(module, "config_for"):
            named[:] = [module.config_for(torch.cuda.get_device_capability(out.device), n_heads, n_rows)]
        return [_file_call(module, inputs, out, lse, forced) for inputs in calls]

    def config() -> str | None:
        tuned = getattr(getattr(module, "sparse_mla_decode_kernel", None), "best_config", None)
        chosen = next((one for one in (forced, *named, tuned) if one is not None), None)
        return None if chosen is None else str(chosen)

    return Implementation(name=name, kind="file", prepare=prepare, config=config)


def _file_call(module: ModuleType, inputs: Inputs, out: torch.Tensor, lse: torch.Tensor, forced: Any) -> Call:
    def call() -> Outputs:
        call_into(module, inputs, out, lse, forced)
        return out, lse

    return call


def file_implementations(
    files: Sequence[Path], *, each_config: bool = False
) -> tuple[list[Implementation], list[dict[str, str]]]:
    """(what to time; name, path and digest of each). A file named twice is timed twice, as a measure of the noise.

    Args:
        each_config: besides what a file's autotuner chooses, every config of its list by itself.
    """
    implementations, told = [], []
    for number, file in enumerate(files):
        name = file.name if [other.name for other in files].count(file.name) == 1 else f"{file.name} #{number + 1}"
        source = file.read_bytes()
        told.append({"name": name, "path": str(file), "digest": "sha256:" + hashlib.sha256(source).hexdigest()})
        try:
            module = import_source(file, source)
            implementations.append(file_implementation(module, name))
            for config in module.CONFIGS if each_config else ():
                implementations.append(file_implementation(module, f"{name} {_in_short(config)}", config))
        except Exception as error:  # a file that cannot be imported has a row with the reason at every shape
            implementations.append(Implementation(name=name, kind="file", prepare=_raising(error)))
    return implementations, told


def _in_short(config: Any) -> str:
    """``16/64/2/1 w8 s1``: a config's own values in their order, its warps and stages."""
    return f"{'/'.join(map(str, config.kwargs.values()))} w{config.num_warps} s{config.num_stages}"


def _raising(error: Exception) -> Callable[[Sequence[Inputs]], list[Call]]:
    def prepare(_: Sequence[Inputs]) -> list[Call]:
        raise error

    return prepare


def peers() -> list[Implementation]:
    """All of them; one that is not installed says so when it is prepared."""
    return [
        Implementation(name=FLASH_MLA, kind="peer", prepare=_flash_mla_calls, version=_version_of("flash_mla")),
        Implementation(
            name=SGLANG, kind="peer", prepare=_sglang_calls, version=_version_of("sglang"), has_sink_in_lse=True
        ),
        Implementation(name=TORCH_EAGER, kind="peer", prepare=_eager_calls, version=torch.__version__),
        Implementation(name=TORCH_COMPILED, kind="peer", prepare=_compiled_calls, version=torch.__version__),
    ]


# ---- torch


def torch_decode(
    q_B1HD: torch.Tensor,
    pools: Sequence[Pool],
    attention_sink_H: torch.Tensor | None,
) -> Outputs:
    """Gather, dequantise, softmax over all tokens at once, in fp32; ``out`` bf16. No host sync.

    fp32 and not bf16: scores rounded to bf16 would be wrong by more than the whole kernel.
    """
    gathered = [_gathered(*pool) for pool in pools]
    kv_BTD = torch.cat([kv for kv, _ in gathered], dim=1)
    is_token_BT = torch.cat([is_token for _, is_token in gathered], dim=1)
    q_BHD = q_B1HD[:, 0].float() * kv_pool.HEAD_DIM**-0.5
    score_BHT = torch.matmul(q_BHD, kv_BTD.transpose(1, 2)).masked_fill(~is_token_BT[:, None], -math.inf)
    lse_BH = torch.logsumexp(score_BHT, dim=2)
    denominator_BH = lse_BH if attention_sink_H is None else torch.logaddexp(lse_BH, attention_sink_H[None])
    weight_BHT = torch.exp(score_BHT - denominator_BH[:, :, None])
    weight_BHT = weight_BHT.masked_fill((lse_BH == -math.inf)[:, :, None], 0.0)  # −inf − −inf is NaN
    out_BHD = torch.matmul(weight_BHT, kv_BTD)
    return out_BHD[:, None].to(torch.bfloat16), lse_BH[:, None]


def _gathered(
    pool: torch.Tensor, indices_BT: torch.Tensor, page_size: int, lengths_B: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """fp32 [B, T, 512], zero where the slot holds no token, and which slots do."""
    is_token_BT = indices_BT >= 0
    if lengths_B is not None:
        slot_T = torch.arange(indices_BT.shape[1], device=indices_BT.device)
        is_token_BT = is_token_BT & (slot_T[None] < lengths_B[:, None])
    at_token_BT, at_scale_BT = kv_pool.rows_of(torch.where(is_token_BT, indices_BT, 0), page_size)
    packed = pool.view(-1, kv_pool.TOKEN_BYTES)[at_token_BT]
    exponent = pool.view(-1, kv_pool.SCALE_BYTES)[at_scale_BT][..., : kv_pool.N_SCALES]
    scale = torch.exp2(exponent.float() - kv_pool.EXPONENT_BIAS)
    nope = packed[..., : kv_pool.NOPE_DIM].contiguous().view(torch.float8_e4m3fn).float()
    rope = packed[..., kv_pool.NOPE_DIM :].contiguous().view(torch.bfloat16).float()
    nope = (nope.unflatten(2, (kv_pool.N_SCALES, kv_pool.VALUES_PER_SCALE)) * scale[..., None]).flatten(2)
    return torch.cat([nope, rope], dim=2).masked_fill(~is_token_BT[:, :, None], 0.0), is_token_BT


def _eager_calls(calls: Sequence[Inputs]) -> list[Call]:
    return [_torch_call(torch_decode, inputs) for inputs in calls]


def _compiled_calls(calls: Sequence[Inputs]) -> list[Call]:
    """Compiled for this shape alone. Without the reset, torch would silently run eagerly after some eight shapes."""
    torch._dynamo.reset()
    compiled = torch.compile(torch_decode, dynamic=False, fullgraph=True)
    return [_torch_call(compiled, inputs) for inputs in calls]


def _torch_call(decode: Callable[..., Any], inputs: Inputs) -> Call:
    return lambda: decode(inputs.q_B1HD, inputs.pools, inputs.attention_sink_H)


# ---- FlashMLA


def flash_mla_cache(pool: torch.Tensor, page_size: int) -> torch.Tensor:
    """The pool as FlashMLA addresses it, uint8 [P, S, 1, 584]: the same memory, nothing is copied.

    The last two numbers are a shape only: in a page all tokens' 576 bytes come first, then all their scales.
    """
    token_bytes = kv_pool.TOKEN_BYTES + kv_pool.SCALE_BYTES
    shape = (pool.shape[0], page_size, 1, token_bytes)
    return pool.as_strided(shape, (kv_pool.page_bytes(page_size), token_bytes, token_bytes, 1))


def padded_heads(n_heads: int) -> int:
    """Heads that FlashMLA is given for ``n_heads``: it has kernels for 64 and 128.

    Raises:
        ValueError: more than 128.
    """
    for possible in FLASH_MLA_HEADS:
        if n_heads <= possible:
            return possible
    raise ValueError(f"FlashMLA has no kernel for {n_heads} heads, at most {FLASH_MLA_HEADS[-1]}")


def _version_of(module: str) -> str | None:
    try:
        version: str | None = getattr(importlib.import_module(module), "__version__", None)
    except Exception:  # a wheel for another CUDA or torch fails with whatever its loader raises: told by prepare
        return None
    return version


def _flash_mla_calls(calls: Sequence[Inputs]) -> list[Call]:
    """Queries and sink padded, and the schedule made by the first call: both outside of what is timed."""
    for _, indices, _, _ in calls[0].pools:
        if indices.shape[1] % FLASH_MLA_TILE:
            raise ValueError(f"FlashMLA takes lists of a multiple of {FLASH_MLA_TILE} slots, not {indices.shape[1]}")
    library = importlib.import_module("flash_mla")
    n_heads = calls[0].q_B1HD.shape[2]
    missing = padded_heads(n_heads) - n_heads
    q = torch.nn.functional.pad(calls[0].q_B1HD, (0, 0, 0, missing)).contiguous()
    sink = calls[0].attention_sink_H
    padded_sink = None if sink is None else torch.nn.functional.pad(sink, (0, missing)).contiguous()
    schedule, _ = library.get_mla_metadata()
    return [_flash_mla_call(library, inputs, q, padded_sink, schedule) for inputs in calls]


def _flash_mla_call(
    library: ModuleType, inputs: Inputs, q: torch.Tensor, sink: torch.Tensor | None, schedule: Any
) -> Call:
    n_heads = inputs.q_B1HD.shape[2]
    arguments: dict[str, Any] = {"softmax_scale": kv_pool.HEAD_DIM**-0.5, "is_fp8_kvcache": True, "attn_sink": sink}
    pool, indices, page_size, lengths = inputs.pools[0]
    arguments |= {"indices": indices[:, None], "topk_length": lengths}
    if len(inputs.pools) > 1:
        second, second_indices, second_page_size, second_lengths = inputs.pools[1]
        arguments |= {
            "extra_k_cache": flash_mla_cache(second, second_page_size),
            "extra_indices_in_kvcache": second_indices[:, None],
            "extra_topk_length": second_lengths,
        }
    if "use_legacy" in inspect.signature(library.flash_mla_with_kvcache).parameters:
        arguments["use_legacy"] = True  # where Hopper and this page layout are since its release of 2026-09-30
    cache = flash_mla_cache(pool, page_size)

    def call() -> Outputs:
        out, lse_BH1 = library.flash_mla_with_kvcache(q, cache, None, None, kv_pool.HEAD_DIM, schedule, **arguments)
        return out[:, :, :n_heads], lse_BH1.transpose(1, 2)[:, :, :n_heads]

    return call


# ---- SGLang's kernel for sm_120


def _sglang_calls(calls: Sequence[Inputs]) -> list[Call]:
    decode = importlib.import_module(SGLANG_MODULE).flash_mla_sparse_decode_triton
    return [_sglang_call(decode, inputs) for inputs in calls]


def _sglang_call(decode: Callable[..., Any], inputs: Inputs) -> Call:
    arguments: dict[str, Any] = {}
    pool, indices, page_size, lengths = inputs.pools[0]
    if len(inputs.pools) > 1:
        second, second_indices, second_page_size, second_lengths = inputs.pools[1]
        arguments = {
            "extra_k_cache": flash_mla_cache(second, second_page_size),
            "extra_indices": second_indices[:, None],
            "extra_topk_length": second_lengths,
        }
    cache = flash_mla_cache(pool, page_size)
    scale = kv_pool.HEAD_DIM**-0.5

    def call() -> Outputs:
        out, lse_BH1 = decode(
            inputs.q_B1HD,
            cache,
            indices[:, None],
            lengths,
            inputs.attention_sink_H,
            kv_pool.HEAD_DIM,
            scale,
            **arguments,
        )
        return out, lse_BH1.transpose(1, 2)

    return call
