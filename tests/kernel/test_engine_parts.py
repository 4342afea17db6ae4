"""The engine's inner parts that HTTP cannot show: the recorded import, and that prefill and decode agree."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import numpy as np  # noqa: E402

from kernel import sparse_mla_decode  # noqa: E402
from kernel.engine.graphs import buckets_up_to  # noqa: E402
from kernel.engine.loading import load_module  # noqa: E402
from kernel.engine.model import Model  # noqa: E402
from kernel.engine.options import EngineOptions  # noqa: E402
from kernel.engine.rows import Rows  # noqa: E402
from kernel.engine.runner import SOFTMAX_SCALE, Runner  # noqa: E402
from kernel.engine.scheduler import Chunk, Sequence  # noqa: E402

pytestmark = pytest.mark.kernel


@pytest.fixture
def module_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module ``lone_kernel`` on sys.path, gone again afterwards."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "lone_kernel", raising=False)
    importlib.invalidate_caches()
    path = tmp_path / "lone_kernel.py"
    path.write_text("def kernel():\n    return 'first'\n")
    yield path
    sys.modules.pop("lone_kernel", None)


def test_code_digest_and_source_come_from_the_same_bytes(module_file: Path) -> None:
    """After the file changes, the digest, the code and the text that triton would compile are still the old ones."""
    content = module_file.read_bytes()
    loaded = load_module("lone_kernel")
    module_file.write_text("def kernel():\n    return 'second, and longer'\n")
    assert loaded.digest == "sha256:" + hashlib.sha256(content).hexdigest()
    assert loaded.module.kernel() == "first"
    assert "first" in inspect.getsource(loaded.module.kernel)


def test_no_stale_bytecode(module_file: Path) -> None:
    """A cached .pyc that matches size and time is not used: what runs is what is hashed."""
    import os
    import py_compile

    module_file.write_text("def kernel():\n    return 'stale'\n")
    os.utime(module_file, (1_000_000_000, 1_000_000_000))
    py_compile.compile(str(module_file))
    module_file.write_text("def kernel():\n    return 'fresh'\n")
    os.utime(module_file, (1_000_000_000, 1_000_000_000))
    assert load_module("lone_kernel").module.kernel() == "fresh"


def test_a_module_that_is_imported_already_is_refused(module_file: Path) -> None:
    """Bytes that were read by somebody else cannot be vouched for."""
    importlib.import_module("lone_kernel")
    with pytest.raises(ImportError, match="before its bytes"):
        load_module("lone_kernel")


def test_a_module_that_raises_is_not_left_behind(module_file: Path) -> None:
    """An import that fails leaves no half-made module."""
    module_file.write_text("raise RuntimeError('no')\n")
    with pytest.raises(RuntimeError, match="no"):
        load_module("lone_kernel")
    assert "lone_kernel" not in sys.modules


@pytest.mark.parametrize("topk", [8, 512])
def test_decode_continues_what_prefill_began(topk: int) -> None:
    """Token by token through the kernel gives the next tokens that one long prompt gives, with a short window too."""
    options = EngineOptions(port=1, layers=2, hidden=128, heads=8, n_pages=16, page_size=16, topk=topk, device="cpu")
    runner = Runner(options, sparse_mla_decode)
    tokens = [(37 * n) % 4096 for n in range(40)]
    places = np.arange(16, 16 + 64, dtype=np.int32)
    stepped = Sequence(prompt=tokens[:20], max_tokens=30, ignore_eos=True, places=places)
    runner.prefill([Chunk(sequence=stepped, begin=0, end=20)])
    next_tokens = []
    for token in tokens[20:]:
        stepped.output.append(token)
        next_tokens += runner.decode([stepped])
    whole = Sequence(prompt=tokens, max_tokens=1, ignore_eos=True, places=places + 80)
    expected = [
        runner.prefill([Chunk(sequence=whole, begin=begin, end=end)])[0]
        for begin, end in zip((0, *range(21, 40)), range(21, 41), strict=True)
    ]
    assert next_tokens == expected
    assert len(set(expected)) > 5


def test_only_relative_positions_count() -> None:
    """A text at positions 0 … 29 and the same text at 1000 … 1029 go on with the same token: positions are rotations.

    Every rotation is needed for that: of the query, of the key, and the one that turns the values back.
    """
    model = Model(layers=2, heads=4, hidden=128, vocab=4096, max_model_len=2048, seed=0, device=torch.device("cpu"))
    tokens = torch.tensor([(53 * n) % 4096 for n in range(30)])
    hidden = torch.ones(30, 30).triu(1).bool()
    written: dict[int, torch.Tensor] = {}

    def attend(layer: int, q_NHD: torch.Tensor) -> torch.Tensor:
        score = (q_NHD.double() @ written[layer].double().T) * SOFTMAX_SCALE
        return score.masked_fill(hidden[:, None], -torch.inf).softmax(2) @ written[layer].double()

    at_zero, at_thousand = (
        model.next_tokens(tokens, torch.arange(30) + offset, None, written.__setitem__, attend) for offset in (0, 1000)
    )
    assert at_zero.tolist() == at_thousand.tolist()
    swapped = model.next_tokens(tokens, torch.arange(30).flip(0), None, written.__setitem__, attend)
    assert swapped.tolist() != at_zero.tolist()


def test_unused_rows_are_padding() -> None:
    """A step of fewer rows than its bucket leaves no trace of the step before in the rest."""
    rows = Rows.zeros(4, 8)
    sequences = [
        Sequence(prompt=[5, 6], max_tokens=4, ignore_eos=True, places=np.arange(64, 70, dtype=np.int32), output=[9])
        for _ in range(4)
    ]
    rows.fill_prompts([Chunk(sequence=sequence, begin=0, end=2) for sequence in sequences[:2]], 8)
    assert rows.tokens_B.tolist() == [5, 6, 5, 6]
    rows.fill_decode(sequences, 8)
    rows.fill_decode(sequences[:1], 8)
    assert rows.tokens_B.tolist() == [9, 0, 0, 0]
    assert rows.places_B.tolist() == [66, 0, 0, 0]
    assert rows.lengths_B.tolist() == [3, 0, 0, 0]


@pytest.mark.parametrize("topk", [8, 64])
def test_prompts_as_rows_give_the_tokens_of_dense_prefill(topk: int) -> None:
    """Prompt tokens as rows of one step, in chunks, with a window shorter or longer than the prompts: each prompt goes
    on as after dense attention. That is how CUDA computes prompts."""
    options = EngineOptions(port=1, layers=2, n_pages=16, topk=topk, device="cpu")
    dense, stepped = Runner(options, sparse_mla_decode), Runner(options, sparse_mla_decode)
    prompts = [[(37 * n + 11 * number) % 4096 for n in range(30 - 3 * number)] for number in range(3)]
    sequences = [
        Sequence(
            prompt=prompt,
            max_tokens=4,
            ignore_eos=True,
            places=np.arange(64 * (number + 1), 64 * (number + 1) + len(prompt) + 4, dtype=np.int32),
        )
        for number, prompt in enumerate(prompts)
    ]
    for begin, end in ((0, 17), (17, 30)):
        chunks = [Chunk(sequence=one, begin=begin, end=min(end, len(one.prompt))) for one in sequences]
        expected = dense.prefill(chunks)
        rows = Rows.zeros(64, topk)
        rows.fill_prompts(chunks, topk)
        ends = np.cumsum([chunk.end - chunk.begin for chunk in chunks])
        assert stepped.step(rows)[ends - 1].tolist() == expected


@pytest.mark.parametrize("max_batch", [1, 3, 8, 96, 128])
def test_buckets_cover_every_batch(max_batch: int) -> None:
    """Each number of rows up to the limits has a bucket, the batch limit is one, and none is over the limits."""
    for prefill_chunk in (1, 96, 100, 256, 1000):
        buckets = buckets_up_to(max_batch, prefill_chunk)
        assert buckets == sorted(set(buckets))
        assert max_batch in buckets
        assert buckets[-1] == max(max_batch, prefill_chunk)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_a_gpu_graphs_give_the_tokens_of_the_plain_step() -> None:
    """A replayed CUDA graph, padded to its bucket, gives the tokens that the same step gives without a graph."""
    options = EngineOptions(port=1, layers=2, n_pages=64, max_batch=4, device="cuda")
    runner = Runner(options, sparse_mla_decode)
    runner.warm_up()
    sequences = []
    for number in range(3):
        places = np.arange(64 * (2 * number + 1), 64 * (2 * number + 3), dtype=np.int32)
        sequence = Sequence(prompt=[11 * number + n for n in range(50)], max_tokens=9, ignore_eos=True, places=places)
        sequence.output += runner.prefill([Chunk(sequence=sequence, begin=0, end=50)])
        sequences.append(sequence)
    host, device = Rows.zeros(3, options.topk), Rows.zeros(3, options.topk, device="cuda")
    host.fill_decode(sequences, options.topk)
    device.buffer.copy_(host.buffer)
    assert runner.decode(sequences) == runner.step(device).tolist()
