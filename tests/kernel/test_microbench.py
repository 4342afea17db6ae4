"""``python -m kernel.microbench``: bounds, intervals, turns, peers and tables, all but the GPU's own times."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from kernel import check, floors, kv_pool, microbench, microbench_plot, peers, timing  # noqa: E402
from kernel import sparse_mla_decode as subject  # noqa: E402
from kernel.cases import CASES, Case, make_inputs  # noqa: E402

pytestmark = pytest.mark.kernel

ROOT = Path(__file__).parent.parent.parent
SHAPE = timing.Shape(n_heads=16, n_rows=2, topks=(64,))
PEAKS = floors.Peaks(bytes_per_s=4.8e12, bandwidth_source="driver", flops_per_s=1e15, conversions_per_s=1e13)
H200 = SimpleNamespace(
    name="NVIDIA H200",
    major=9,
    minor=0,
    multi_processor_count=132,
    clock_rate=1_980_000,
    memory_clock_rate=3_201_000,
    memory_bus_width=6144,
    L2_cache_size=1,
)


def timed(us: float) -> Callable[[Sequence[peers.Call]], timing.Replay]:
    """Stands for the capture: replays take ``us`` a call and run nothing."""
    return lambda calls: lambda: us


def a_row(**changed: Any) -> microbench.Row:
    """A row of a measured kernel."""
    facts: dict[str, Any] = {
        "name": "mine.py",
        "kind": "file",
        "version": None,
        "n_heads": 16,
        "batch": 8,
        "topks": (512,),
        "n_calls": 16,
        "floors_us": {"memory": 0.5, "dequantisation": 0.25, "tensor": None},
        "floor": "memory",
        "floor_us": 0.5,
        "call_us": 12.5,
        "low_us": 12.25,
        "high_us": 13.0,
        "coverage": 0.96875,
        "n": 6,
        "gathered_gb_per_s": 191.4,
        "floor_pct": 4.0,
    }
    return microbench.Row(**(facts | changed))


# ---- lower bounds


def test_floors_of_a_call() -> None:
    """96 rows of 512 tokens with 64 heads: bytes, values and FLOPs by hand, each over its peak."""
    found = floors.floors_of(PEAKS, n_rows=96, n_heads=64, n_tokens=512)
    assert found.memory == pytest.approx(28_704_768 / 4.8e12 * 1e6)  # 96 × 512 × 584
    assert found.dequantisation == pytest.approx(22_020_096 / 1e13 * 1e6)  # 96 × 512 × 448
    assert found.tensor == pytest.approx(6_442_450_944 / 1e15 * 1e6)  # 96 × 512 × 64 × 512 × 4
    assert found.largest == ("tensor", found.tensor)


def test_peaks_of_an_h200() -> None:
    """Memory from clock and bus, the rest from the chip's rates at its own multiprocessors and clock."""
    found = floors.peaks_of(H200)
    assert (found.bytes_per_s, found.bandwidth_source) == (pytest.approx(4.916736e12), "driver")
    assert found.flops_per_s == pytest.approx(4096 * 132 * 1.98e9)
    assert found.conversions_per_s == pytest.approx(64 * 132 * 1.98e9)


def test_bandwidth_from_the_data_sheet() -> None:
    """A torch that does not tell the memory's clock: the product's data sheet, and no clock means no other peak."""
    device = SimpleNamespace(name="NVIDIA H200", multi_processor_count=132, memory_clock_rate=0, memory_bus_width=6144)
    assert floors.peaks_of(device) == floors.Peaks(bytes_per_s=4.8e12, bandwidth_source="data sheet")


@pytest.mark.parametrize("name", ["NVIDIA H20", "NVIDIA GeForce RTX 5090", "NVIDIA H2000"])
def test_unknown_gpu_has_no_peaks_but_its_memory(name: str) -> None:
    """A name is known as a whole word or not at all: an H20 is no H200."""
    device = SimpleNamespace(**(vars(H200) | {"name": name}))
    found = floors.peaks_of(device)
    assert (found.flops_per_s, found.conversions_per_s) == (None, None)
    assert found.bytes_per_s is not None
    assert floors.floors_of(found, n_rows=1, n_heads=1, n_tokens=1).tensor is None


def test_nothing_is_known_of_a_slice() -> None:
    """A MIG slice tells the whole GPU's memory: no bound is made of it, and none is the largest."""
    found = floors.peaks_of(SimpleNamespace(**(vars(H200) | {"name": "NVIDIA H200 MIG 1g.18gb"})))
    assert found == floors.Peaks()
    assert floors.floors_of(found, n_rows=1, n_heads=1, n_tokens=1).largest is None


# ---- inputs


def test_a_graph_gathers_twice_the_cache() -> None:
    """At batch 1 of 512 tokens 60 MB take 401 calls, one more for the second pool; large batches take 16."""
    l2_bytes = 60_000_000
    small, large = (timing.Shape(n_heads=16, n_rows=rows, topks=(512,)) for rows in (1, 128))
    assert small.gathered_bytes == 299_008
    assert timing.n_calls_of(small, l2_bytes) == 402
    assert timing.n_calls_of(large, l2_bytes) == 16


def test_no_token_is_named_twice() -> None:
    """All lists of a pool together name each token at most once, and calls take the pools by turns."""
    shape = timing.Shape(n_heads=16, n_rows=3, topks=(16, 24), page_size=16)
    calls = timing.make_calls(shape, 6, 1, "cpu")
    for number, topk in enumerate(shape.topks):
        assert calls[0].pools[number][0] is calls[2].pools[number][0]
        assert calls[0].pools[number][0] is not calls[1].pools[number][0]
        for first in (0, 1):
            named = torch.cat([call.pools[number][1].flatten() for call in calls[first::2]])
            assert named.unique().numel() == named.numel() == 3 * 3 * topk
            assert 0 <= int(named.min()) <= int(named.max()) < calls[first].pools[number][0].shape[0] * 16


def test_seed_gives_the_same_inputs() -> None:
    """The same seed, the same tensors; another, others."""
    one, same, other = (timing.make_calls(SHAPE, 2, seed, "cpu")[0] for seed in (1, 1, 2))
    assert torch.equal(one.pools[0][0], same.pools[0][0])
    assert torch.equal(one.pools[0][1], same.pools[0][1])
    assert not torch.equal(one.q_B1HD, other.q_B1HD)


# ---- interval and turns


def test_interval_of_six_graphs() -> None:
    """The median of the graphs' medians; smallest to largest, which holds the true one but for 2 ÷ 2⁶."""
    found = timing.interval_of([[us, us - 1, us + 100] for us in (10.0, 11.0, 12.0, 13.0, 14.0, 15.0)])
    assert found == timing.Interval(median=12.5, low=10.0, high=15.0, coverage=1 - 2 / 64, n=6)


@pytest.mark.parametrize(
    ("n", "low", "high", "coverage"),
    [
        (1, 0.0, 0.0, 0.0),
        (5, 0.0, 4.0, 1 - 2 / 32),  # too few for 95 %: the widest, and what it is worth
        (8, 0.0, 7.0, 1 - 2 / 256),  # one outside on each side would be 93 %
        (9, 1.0, 7.0, 1 - 2 * (1 + 9) / 512),
        (20, 5.0, 14.0, 1 - 2 * (1 + 20 + 190 + 1140 + 4845 + 15504) / 2**20),
    ],
)
def test_interval_by_order_statistics(n: int, low: float, high: float, coverage: float) -> None:
    """The narrowest pair that covers at least 95 %, by the binomial tails worked out by hand."""
    found = timing.interval_of([[float(value)] for value in reversed(range(n))])
    assert (found.low, found.high, found.n) == (low, high, n)
    assert found.coverage == pytest.approx(coverage, abs=1e-12)


def test_rounds_take_turns() -> None:
    """Every round replays each once, every other one backwards, and the graphs are captured anew each time."""
    log: list[str] = []

    def record(calls: Sequence[Any]) -> timing.Replay:
        log.append(f"capture {calls[0]}")

        def replay() -> float:
            log.append(calls[0])
            return timing.WARM_US

        return replay

    warm = timing.N_WARM_REPLAYS
    samples, failed = timing.time_calls({"a": ["a"], "b": ["b"]}, record=record, n_graphs=2, n_replays=3)  # type: ignore[dict-item]
    first = ["capture a", "capture b", *["a"] * warm, *["b"] * warm, "a", "b", "b", "a", "a", "b"]
    second = ["capture b", "capture a", *["b"] * warm, *["a"] * warm, "b", "a", "a", "b", "b", "a"]
    assert log == first + second
    assert samples == {name: [[timing.WARM_US] * 3] * 2 for name in ("a", "b")}
    assert failed == {}


@pytest.mark.parametrize(("us", "n_warm"), [(1e6, 5), (500.0, 10), (0.0, 1000)])
def test_warm_up_lasts(us: float, n_warm: int) -> None:
    """50 ms of ten calls a replay, but no fewer than 5 replays and no more than 1,000."""
    n_done = 0

    def replay() -> float:
        nonlocal n_done
        n_done += 1
        return us

    timing.time_calls({"a": [lambda: None] * 10}, record=lambda _: replay, n_graphs=1, n_replays=0)  # type: ignore[dict-item,return-value]
    assert n_done == n_warm


@pytest.mark.parametrize("fails_in", ["capture", "warm-up", "round"])
def test_one_that_fails_stops_no_other(fails_in: str) -> None:
    """What raises has a reason, no samples and no further turn; the other has all of its own."""
    n_left = {"capture": 0, "warm-up": 2, "round": timing.N_WARM_REPLAYS + 1}[fails_in]
    n_captured = 0

    def record(calls: Sequence[Any]) -> timing.Replay:
        nonlocal n_captured
        is_bad = calls[0] == "bad"
        n_captured += is_bad
        if is_bad and fails_in == "capture":
            raise RuntimeError("operation not permitted\nwhen stream is capturing")

        def replay() -> float:
            nonlocal n_left
            if is_bad:
                n_left -= 1
                if n_left < 0:
                    raise RuntimeError("operation not permitted")
            return timing.WARM_US

        return replay

    samples, failed = timing.time_calls({"bad": ["bad"], "good": ["good"]}, record=record)  # type: ignore[dict-item]
    assert failed == {"bad": "RuntimeError: operation not permitted"}
    assert samples == {"good": [[timing.WARM_US] * timing.N_REPLAYS] * timing.N_GRAPHS}
    assert n_captured == 1
    assert n_left in (0, -1)


# ---- peers


@pytest.mark.parametrize("case", [case for case in CASES if case.on_interpreter], ids=lambda case: case.name)
def test_torch_peer_against_the_reference(case: Case) -> None:
    """The torch form meets the kernel's own tolerances in every small case, masks of NaN and infinity included."""
    inputs = make_inputs(case, 5)
    out, lse = peers.torch_decode(inputs.q_B1HD, inputs.pools, inputs.attention_sink_H)
    assert out.dtype == torch.bfloat16
    assert lse.dtype == torch.float32
    problem, _, _ = check.compare(out, lse, inputs)
    assert problem is None


@pytest.mark.slow
def test_torch_peer_is_one_graph_at_every_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.compile takes the torch form whole, anew at each shape, and never falls back to running it eagerly.

    Traced alone: what it is compiled to is the backend's matter.
    """
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    monkeypatch.setattr(torch._dynamo.config, "recompile_limit", 1)  # torch's own is 8
    stats = torch._dynamo.utils.counters["stats"]
    compiled = next(peer for peer in peers.peers() if peer.name == peers.TORCH_COMPILED)
    for n_rows in (1, 2):
        n_graphs = stats["unique_graphs"]
        rows = measured(compiled, shape=timing.Shape(n_heads=4, n_rows=n_rows, topks=(4, 8)))
        assert rows[0].problem is None
        assert stats["unique_graphs"] == n_graphs + 1


@pytest.mark.parametrize("page_size", [1, 2, 64])
def test_flash_mla_reads_the_same_values(page_size: int) -> None:
    """The pool as FlashMLA addresses it is the same memory; decoded by FlashMLA's own rule it gives what was packed."""
    values = torch.randn(3, page_size, 512, generator=torch.Generator().manual_seed(3))
    pool = kv_pool.pack(values)
    cache = peers.flash_mla_cache(pool, page_size)
    assert cache.shape == (3, page_size, 1, 584)
    assert cache.data_ptr() == pool.data_ptr()
    assert cache.stride() == (pool.shape[1], 584, 584, 1)
    assert cache.stride(0) % 576 == 0
    for page in range(3):
        page_bytes = cache[page].reshape(-1)
        tokens = page_bytes[: page_size * 576].view(page_size, 576)
        scales = page_bytes[page_size * 576 :].view(page_size, 8)[:, :7].contiguous().view(torch.float8_e8m0fnu)
        nope = tokens[:, :448].contiguous().view(torch.float8_e4m3fn).float()
        nope = nope * scales.float().repeat_interleave(64, dim=1)
        rope = tokens[:, 448:].contiguous().view(torch.bfloat16).float()
        places = torch.arange(page * page_size, (page + 1) * page_size)
        assert torch.equal(torch.cat([nope, rope], dim=1), kv_pool.unpack(pool, page_size, places, torch.float32))


def test_flash_mla_is_asked_with_padded_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    """16 heads go in as 64 and come out as 16; the second pool, the sink and one schedule go along."""
    asked: list[dict[str, Any]] = []

    def flash_mla_with_kvcache(
        q: Any,
        k_cache: Any,
        block_table: Any,
        seqlens: Any,
        dim: int,
        schedule: Any,
        use_legacy: bool = False,
        **rest: Any,
    ) -> tuple[Any, Any]:
        asked.append({"q": q, "k_cache": k_cache, "dim": dim, "schedule": schedule, "use_legacy": use_legacy, **rest})
        n_rows, _, n_heads, _ = q.shape
        lse = torch.arange(n_rows * n_heads, dtype=torch.float32).view(n_rows, n_heads, 1)
        return q.clone(), lse

    library = SimpleNamespace(
        __version__="1.0.0", flash_mla_with_kvcache=flash_mla_with_kvcache, get_mla_metadata=lambda: (object(), None)
    )
    monkeypatch.setitem(sys.modules, "flash_mla", library)
    inputs = timing.make_calls(timing.Shape(n_heads=16, n_rows=3, topks=(128, 64)), 2, 1, "cpu")
    peer = next(peer for peer in peers.peers() if peer.name == peers.FLASH_MLA)
    assert peer.version == "1.0.0"
    calls = peer.prepare(inputs)
    out, lse = calls[0]()
    calls[1]()
    assert torch.equal(out, inputs[0].q_B1HD)
    assert lse.tolist() == [[[64.0 * row + head for head in range(16)]] for row in range(3)]
    first, second = asked
    assert first["q"].shape == (3, 1, 64, 512)
    assert first["attn_sink"].tolist() == inputs[0].attention_sink_H.tolist() + [0.0] * 48
    assert first["use_legacy"] is True
    assert first["softmax_scale"] == 512**-0.5
    assert first["schedule"] is second["schedule"]
    assert first["k_cache"].data_ptr() == inputs[0].pools[0][0].data_ptr()
    assert first["extra_k_cache"].data_ptr() == inputs[0].pools[1][0].data_ptr()
    assert torch.equal(second["indices"][:, 0], inputs[1].pools[0][1])
    assert torch.equal(second["extra_indices_in_kvcache"][:, 0], inputs[1].pools[1][1])


def test_sglang_has_the_same_tensors_and_the_sink_in_its_lse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both pools go in as the cache that it addresses; a lse of scores and sink, [B, H, 1], is judged as that."""
    asked: list[dict[str, Any]] = []

    def decode(
        q: Any, k_cache: Any, indices: Any, topk_length: Any, attn_sink: Any, dim: int, scale: float, **rest: Any
    ) -> tuple[Any, Any]:
        asked.append({"k_cache": k_cache, "indices": indices, "dim": dim, "scale": scale, **rest})
        given = next(one for one in inputs if torch.equal(one.pools[0][1], indices[:, 0]))
        out, lse = peers.torch_decode(q, given.pools, attn_sink)
        return out, torch.logaddexp(lse, attn_sink).permute(0, 2, 1)

    monkeypatch.setitem(sys.modules, "sglang", SimpleNamespace(__version__="0.5.23"))
    monkeypatch.setitem(sys.modules, peers.SGLANG_MODULE, SimpleNamespace(flash_mla_sparse_decode_triton=decode))
    peer = next(peer for peer in peers.peers() if peer.name == peers.SGLANG)
    assert peer.version == "0.5.23"
    shape = timing.Shape(n_heads=16, n_rows=3, topks=(128, 64))
    inputs = timing.make_calls(shape, timing.n_calls_of(shape, 1), 1, "cpu")
    (row,) = measured(peer, shape=shape)
    assert row.problem is None
    assert row.lse_error is not None and row.lse_error < check.LSE_TOLERANCE
    assert asked[0]["k_cache"].shape[2:] == (1, 584)
    assert asked[0]["extra_k_cache"].shape[2:] == (1, 584)
    assert (asked[0]["dim"], asked[0]["scale"]) == (512, 512**-0.5)


def test_peers_on_the_command_line_are_those_that_there_are() -> None:
    """``--skip`` knows every peer by its name."""
    assert list(microbench.PEERS.values()) == [peer.name for peer in peers.peers()]


@pytest.mark.parametrize(("n_heads", "padded"), [(1, 64), (64, 64), (65, 128), (128, 128)])
def test_padded_heads(n_heads: int, padded: int) -> None:
    """64 or 128."""
    assert peers.padded_heads(n_heads) == padded


def test_flash_mla_has_no_kernel_for_more_heads() -> None:
    """Refused with the number, before the library is asked."""
    with pytest.raises(ValueError, match="129 heads, at most 128"):
        peers.padded_heads(129)


def test_absent_and_unfit_peers_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """FlashMLA that is not installed, and a list that it cannot take, are rows with the reason."""
    monkeypatch.setitem(sys.modules, "flash_mla", None)
    flash = next(peer for peer in peers.peers() if peer.name == peers.FLASH_MLA)
    rows = [
        microbench.measure_shape(shape, [flash], peaks=PEAKS, l2_bytes=1, seed=1, device="cpu", record=timed(1.0))[0]
        for shape in (SHAPE, timing.Shape(n_heads=16, n_rows=1, topks=(40,)))
    ]
    assert rows[0].problem is not None
    assert rows[0].problem.startswith("ModuleNotFoundError: ")
    assert "flash_mla" in rows[0].problem
    assert rows[1].problem == "ValueError: FlashMLA takes lists of a multiple of 64 slots, not 40"
    assert [row.call_us for row in rows] == [None, None]


# ---- a shape


def measured(*implementations: peers.Implementation, shape: timing.Shape = SHAPE) -> list[microbench.Row]:
    """Rows of a shape on the CPU; every replay takes 4 µs a call."""
    return microbench.measure_shape(
        shape, implementations, peaks=PEAKS, l2_bytes=1, seed=1, device="cpu", record=timed(4.0)
    )


@pytest.mark.parametrize("shape", [SHAPE, timing.Shape(n_heads=16, n_rows=2, topks=(16, 48))], ids=["one", "two pools"])
def test_file_and_torch_are_right_and_timed(shape: timing.Shape) -> None:
    """Both rows hold time, interval, bytes, share of the bound and errors; 16 calls of 128 tokens."""
    eager = next(peer for peer in peers.peers() if peer.name == peers.TORCH_EAGER)
    rows = measured(peers.file_implementation(subject, "mine.py"), eager, shape=shape)
    assert [(row.name, row.kind, row.problem) for row in rows] == [
        ("mine.py", "file", None),
        ("torch eager", "peer", None),
    ]
    for row in rows:
        assert (row.call_us, row.low_us, row.high_us, row.n, row.n_calls) == (4.0, 4.0, 4.0, 6, 16)
        assert row.gathered_gb_per_s == pytest.approx(128 * 584 / 4e-6 / 1e9)
        assert row.floor == "memory"
        assert row.floor_pct == pytest.approx(100 * 128 * 584 / 4.8e12 / 4e-6)
        assert row.out_error is not None and row.out_error < check.OUT_TOLERANCE
        assert row.lse_error is not None and row.lse_error < check.LSE_TOLERANCE
        assert row.samples_us == [[4.0] * 20] * 6


def broken(change: Callable[[Any, Any], Any]) -> peers.Implementation:
    """The shipped kernel, whose outputs are changed."""

    def prepare(calls: Sequence[Any]) -> list[peers.Call]:
        right = peers.file_implementation(subject, "right").prepare(calls)
        return [lambda: change(*right[0]())] * len(calls)

    return peers.Implementation(name="broken", kind="file", prepare=prepare)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda out, lse: (out * 1.01, lse), r"wrong: relative error of out 1\.\de-02 \(allowed 5e-03\), of lse .*"),
        (lambda out, lse: (out, lse + 0.01), r"wrong: relative error of out .*, of lse \d\.\de-03 \(allowed 1e-04\)"),
        (lambda out, lse: (out * torch.nan, lse), r"wrong: relative error of out nan .*"),
        (lambda out, lse: (out, lse * torch.inf), r"wrong: .* of lse inf .*"),
        (lambda out, lse: (out[:, :, :8], lse), r"wrong shapes: out \[2, 1, 8, 512\], lse \[2, 1, 16\]"),
    ],
    ids=["scale", "lse", "NaN", "infinity", "shape"],
)
def test_wrong_outputs_are_not_timed(change: Callable[[Any, Any], Any], reason: str) -> None:
    """An output that is off, not finite or of another shape is a row with the error, without a time, and valid JSON."""
    (row,) = measured(broken(change))
    assert row.problem is not None
    assert re.fullmatch(reason, row.problem)
    assert row.call_us is None
    json.dumps(asdict(row), allow_nan=False)


def test_every_call_has_run_before_it_is_captured() -> None:
    """A list that is aligned otherwise makes Triton compile anew, which inside a capture fails."""
    log: list[int] = []
    right: list[peers.Call] = []

    def prepare(calls: Sequence[Any]) -> list[peers.Call]:
        right[:] = peers.file_implementation(subject, "right").prepare(calls)
        return [lambda number=number: (log.append(number), right[number]())[1] for number in range(len(calls))]

    def record(calls: Sequence[peers.Call]) -> timing.Replay:
        assert log == list(range(16))
        return lambda: 4.0

    counting = peers.Implementation(name="counting", kind="peer", prepare=prepare)
    (row,) = microbench.measure_shape(
        SHAPE, [counting], peaks=PEAKS, l2_bytes=1, seed=1, device="cpu", record=record, n_graphs=1
    )
    assert row.problem is None


def test_what_a_file_forgets_to_write_is_seen() -> None:
    """A kernel that returns without writing anything is wrong, whatever memory held."""
    (row,) = measured(peers.file_implementation(SimpleNamespace(sparse_mla_decode=lambda *_, **__: None), "lazy.py"))
    assert row.problem is not None
    assert row.problem.startswith("wrong: relative error of out nan")


def test_files_are_loaded_as_they_are(tmp_path: Path) -> None:
    """Digests are of the bytes; equal names are numbered; a file that cannot be imported has a row with the reason."""
    copy, bad = tmp_path / "sparse_mla_decode.py", tmp_path / "bad.py"
    copy.write_bytes(check.SHIPPED.read_bytes() + b"\nMARK = 1\n")
    bad.write_text("import no_such_module_at_all\n")
    implementations, told = peers.file_implementations([check.SHIPPED, copy, bad])
    names = ["sparse_mla_decode.py #1", "sparse_mla_decode.py #2", "bad.py"]
    assert [each.name for each in implementations] == [each["name"] for each in told] == names
    assert told[1]["digest"] == "sha256:" + hashlib.sha256(copy.read_bytes()).hexdigest() != told[0]["digest"]
    rows = measured(*implementations)
    assert [row.call_us for row in rows] == [4.0, 4.0, None]
    assert rows[2].problem == "ModuleNotFoundError: No module named 'no_such_module_at_all'"


def test_each_config_by_itself() -> None:
    """With --each-config a file's list is timed config by config, each forced, beside what the tuner chooses."""
    seen: list[Any] = []

    def decode(*arguments: Any, config: Any, **named: Any) -> Any:
        seen.append(config)
        return subject.sparse_mla_decode(*arguments, config=config, **named)

    config = subject.CONFIGS[1]
    module = SimpleNamespace(sparse_mla_decode=decode)
    (row,) = measured(peers.file_implementation(module, "forced", config))
    assert row.problem is None
    assert row.config == str(config)
    assert seen and all(one is config for one in seen)
    implementations, told = peers.file_implementations([check.SHIPPED], each_config=True)
    assert [one.name for one in implementations] == [
        "sparse_mla_decode.py",
        "sparse_mla_decode.py 16/32/2 w4 s1",
        "sparse_mla_decode.py 16/64/1 w8 s1",
        "sparse_mla_decode.py 16/128/1 w8 s1",
        "sparse_mla_decode.py 32/128/1 w8 s1",
        "sparse_mla_decode.py 64/32/1 w8 s1",
    ]
    assert len(told) == 1


def test_config_of_a_tuned_file() -> None:
    """What the autotuner of a file chose is told in its words; nothing is told of a file without one."""
    tuned = SimpleNamespace(
        sparse_mla_decode=subject.sparse_mla_decode, sparse_mla_decode_kernel=SimpleNamespace(best_config="BLOCK_T: 16")
    )
    plain = SimpleNamespace(sparse_mla_decode=subject.sparse_mla_decode)
    rows = measured(peers.file_implementation(tuned, "tuned"), peers.file_implementation(plain, "plain"))
    assert [row.config for row in rows] == ["BLOCK_T: 16", None]


# ---- what is shown


def test_table() -> None:
    """A line a row, a gap between shapes; what is not known or not timed is said in words."""
    rows = [
        a_row(),
        a_row(name="FlashMLA", call_us=None, problem="ImportError: libcudart.so.13"),
        a_row(batch=96, floor=None, floor_us=None, floor_pct=None),
    ]
    assert [line.split() for line in microbench.as_table(rows).splitlines()] == [
        ["heads", "batch", "µs", "[at", "least", "95", "%]", "n", "GB/s", "floor", "µs", "share"],
        ["16", "8", "mine.py", "12.50", "[12.25,", "13.00]", "6", "191", "0.50", "memory", "4.0", "%"],
        ["16", "8", "FlashMLA", "not", "timed:", "ImportError:", "libcudart.so.13"],
        [],
        ["16", "96", "mine.py", "12.50", "[12.25,", "13.00]", "6", "191", "unknown", "–"],
    ]


def test_plot(tmp_path: Path) -> None:
    """One panel a number of heads, every name and every known bound in the legend, log axes; the same bytes again."""
    rows = [
        a_row(n_heads=heads, batch=batch, call_us=12.0 + batch, low_us=11.0 + batch, high_us=14.0 + batch)
        for heads in (16, 64)
        for batch in (1, 8, 96)
    ]
    rows += [a_row(name="FlashMLA", n_heads=heads, batch=1, call_us=None, problem="absent") for heads in (16, 64)]
    for name in ("one.svg", "two.svg"):
        microbench_plot.draw(rows, tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
    text = (tmp_path / "one.svg").read_text()
    ElementTree.fromstring(text)
    for words in ("16 heads", "64 heads", "µs a call", "mine.py", "FlashMLA (not timed)", "floor: memory", "10", "96"):
        assert f"<!-- {words} -->" in text
    assert "floor: tensor" not in text
    assert "mathdefault" not in text
    assert set(re.findall(r"#[0-9a-f]{6}\b", text)) <= {"#000000", "#777777", "#dddddd", "#ffffff"}


# ---- the command


def test_no_gpu_is_one_line() -> None:
    """Without a GPU: one line that says so, nothing on stdout, exit code 1."""
    command = [sys.executable, "-m", "kernel.microbench", "--peers", "--json"]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == "no NVIDIA GPU that torch can use here: run this on a machine with one\n"


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--heads", "16,x"], "'16,x' is not a list of different numbers"),
        (["--batch", "0"], "'0' is not a list of different numbers"),
        (["--batch", "8,8"], "'8,8' is not a list of different numbers"),
        (["--topk", "-1"], "'-1' is not a number from 1 up"),
        (["--plot", "figure.png"], "--plot writes an .svg file in a folder that exists, not figure.png"),
        (["--plot", "no/such/folder/figure.svg"], "in a folder that exists, not no/such/folder/figure.svg"),
        (["no_such_file.py"], "no such file: no_such_file.py"),
        (["--fast"], "unrecognized arguments: --fast"),
    ],
)
def test_wrong_use(words: list[str], error: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2 and what is wrong, before anything is measured."""
    with pytest.raises(SystemExit) as exited:
        microbench.main(words)
    assert exited.value.code == 2
    assert error in capsys.readouterr().err


@pytest.fixture
def pretended_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """An H200 to look at; tensors stay on the CPU, and a replay takes 4 µs a call."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: H200)
    monkeypatch.setattr(torch.version, "cuda", "13.1")
    monkeypatch.setattr(microbench, "driver_version", lambda: "590.1")
    on_cpu = functools.partial(microbench.measure_shape, device="cpu", record=timed(4.0))
    monkeypatch.setattr(microbench, "measure_shape", on_cpu)


@pytest.mark.usefixtures("pretended_gpu")
def test_json_document(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """One object with all keys, each shape in turn, both pools with --second; the plot is written; exit code 0."""
    plot = tmp_path / "figure.svg"
    words = [
        "--json",
        "--second",
        "--heads",
        "16,8",
        "--batch",
        "1",
        "--topk",
        "32",
        "--seed",
        "7",
        "--plot",
        str(plot),
    ]
    assert microbench.main(words) == 0
    told = capsys.readouterr()
    assert told.err.splitlines() == ["16 heads, batch 1 (1 of 2)", "8 heads, batch 1 (2 of 2)"]
    document = json.loads(told.out)
    rows = document.pop("rows")
    files = document.pop("files")
    device = document.pop("device")
    assert document == {
        "driver_version": "590.1",
        "cuda_version": "13.1",
        "torch_version": torch.__version__,
        "triton_version": document["triton_version"],
        "seed": 7,
        "page_size": 64,
        "topks": [128, 32],
        "n_graphs": 6,
        "n_replays": 20,
    }
    assert list(device) == ["name", "capability", "n_multiprocessors", "l2_bytes", "clock_hz", "peaks"]
    assert (device["capability"], device["clock_hz"]) == ("9.0", 1_980_000_000)
    digest = "sha256:" + hashlib.sha256(check.SHIPPED.read_bytes()).hexdigest()
    assert files == [{"name": "sparse_mla_decode.py", "path": str(check.SHIPPED), "digest": digest}]
    assert [(row["n_heads"], row["batch"], row["topks"], row["call_us"]) for row in rows] == [
        (16, 1, [128, 32], 4.0),
        (8, 1, [128, 32], 4.0),
    ]
    assert set(rows[0]) == {field.name for field in fields(microbench.Row)}
    assert rows[0]["samples_us"] == [[4.0] * 20] * 6
    assert plot.is_file()


@pytest.mark.usefixtures("pretended_gpu")
def test_a_file_that_is_not_timed_fails(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Exit code 1, with the reason in the table; a missing peer alone would not fail."""
    lazy = tmp_path / "lazy.py"
    lazy.write_text("def sparse_mla_decode(*_, **__):\n    raise ValueError('not today')\n")
    words = ["--heads", "8", "--batch", "1", "--topk", "16"]
    assert microbench.main([*words, str(lazy)]) == 1
    assert "not timed: ValueError: not today" in capsys.readouterr().out


@pytest.mark.usefixtures("pretended_gpu")
def test_a_missing_peer_does_not_fail(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 0, and its row has the reason; the others have their times."""
    monkeypatch.setitem(sys.modules, "flash_mla", None)
    monkeypatch.setattr(peers, "_compiled_calls", peers._eager_calls)
    assert microbench.main(["--peers", "--heads", "8", "--batch", "1", "--topk", "64"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any("FlashMLA" in line and "not timed: ModuleNotFoundError" in line for line in lines)
    for name in ("sparse_mla_decode.py", "torch eager", "torch.compile"):
        assert any(name in line and "4.00" in line for line in lines)
    assert any("NVIDIA H200, driver 590.1" in line for line in lines)


# ---- on a GPU


@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA GPU here")
def test_on_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    """The shipped kernel and torch are right and timed, each above its bound, at the smallest and a middle batch."""
    assert microbench.main(["--peers", "--json", "--heads", "16", "--batch", "1,8"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {row["name"] for row in rows} == {"sparse_mla_decode.py", "FlashMLA", "torch eager", "torch.compile"}
    for row in rows:
        if row["problem"] is None:
            assert row["n"] == timing.N_GRAPHS
            assert 0 < row["low_us"] <= row["call_us"] <= row["high_us"]
            assert row["floor_us"] is None or row["floor_us"] < row["call_us"]
        else:
            assert row["kind"] == "peer"
