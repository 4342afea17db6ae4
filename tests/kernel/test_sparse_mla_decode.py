"""The kernel files: right on every case by every path that a machine has, and compilable where there is no GPU.

``shipped`` is the one that an engine should have, ``seed`` the one of the first experiment; both have one entry point.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from kernel import check, kv_pool  # noqa: E402
from kernel import sparse_mla_decode as shipped  # noqa: E402
from kernel.cases import CASES, Case, make_inputs, random_cases  # noqa: E402
from kernel.seed import sparse_mla_decode as seed  # noqa: E402

pytestmark = pytest.mark.kernel
ROOT = Path(__file__).parents[2]
SHARED_LIMIT_BYTES = {80: 166_912, 90: 232_448, 100: 232_448, 120: 101_376}
needs_triton = pytest.mark.skipif(not shipped.HAVE_TRITON, reason="triton is not installed")
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.fixture(params=[shipped, seed], ids=["shipped", "seed"])
def subject(request: pytest.FixtureRequest) -> ModuleType:
    """Each of the two files."""
    return request.param


def config_of(block_t: int) -> Any:
    """A config with this tile, for the path that takes nothing else of it."""
    return shipped.triton.Config({"BLOCK_T": block_t}, num_warps=4, num_stages=2)


def decode(subject: ModuleType, inputs, **other: Any):
    """One call with a case's inputs."""
    pool, indices, page_size, lengths = inputs.pools[0]
    return subject.sparse_mla_decode(
        inputs.q_B1HD,
        pool,
        indices,
        page_size=page_size,
        topk_length_B=lengths,
        attention_sink_H=inputs.attention_sink_H,
        **other,
    )


def run_check(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """``python -m kernel.check`` in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "kernel.check", *arguments],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},  # side by side, threads only get in each other's way
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_torch_path_agrees_with_the_reference(subject: ModuleType, case: Case) -> None:
    """On a CPU, out and lse are those of the float64 reference, NaN and infinities at the same places."""
    inputs = make_inputs(case, seed=1)
    out, lse = check.run_poisoned(subject, inputs, None)
    problem, _, _ = check.compare(out, lse, inputs)
    assert problem is None


def test_block_t_does_not_change_the_result(subject: ModuleType) -> None:
    """Any tile gives the same output within rounding: a tile is a choice of speed alone."""
    inputs = make_inputs(Case(name="", topk=200, missing="some", sink="random", lengths=(150, 200)), seed=2)
    results = [decode(subject, inputs, config=config_of(block_t)) for block_t in (1, 16, 64, 1024)]
    for out, lse in results[1:]:
        assert torch.allclose(out.float(), results[0][0].float(), rtol=2**-7, atol=1e-6)
        assert torch.allclose(lse, results[0][1], rtol=1e-6)


def test_block_t_is_the_tile_of_the_torch_path(subject: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """160 tokens are 10 tiles of 16, 5 of 32 and 3 of 64: the config decides how much work a tile is."""
    tiles: list[int] = []
    dequantised = subject._dequantised
    monkeypatch.setattr(subject, "_dequantised", lambda *args: tiles.append(len(args[1])) or dequantised(*args))
    inputs = make_inputs(Case(name="", n_rows=1, topk=160), seed=3)
    for block_t, expected in ((16, [16] * 10), (32, [32] * 5), (64, [64, 64, 32])):
        tiles.clear()
        decode(subject, inputs, config=config_of(block_t))
        assert tiles == expected


def test_without_a_config_the_first_of_the_list_is_used(subject: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU nothing is tuned: the first config's tile runs, whatever stands behind it."""
    tiles: list[int] = []
    dequantised = subject._dequantised
    monkeypatch.setattr(subject, "_dequantised", lambda *args: tiles.append(len(args[1])) or dequantised(*args))
    monkeypatch.setattr(subject, "CONFIGS", [config_of(48), config_of(16)])
    decode(subject, make_inputs(Case(name="", n_rows=1, topk=96), seed=3))
    assert tiles == [48, 48]


def test_the_seed_has_its_three_configs() -> None:
    """The list that the first experiment starts from."""
    listed = [(config.kwargs["BLOCK_T"], config.num_warps, config.num_stages) for config in seed.CONFIGS]
    assert listed == [(16, 4, 2), (32, 4, 2), (32, 8, 2)]


def test_a_row_does_not_depend_on_its_neighbours(subject: ModuleType) -> None:
    """A row alone gives the same bits as in a batch."""
    inputs = make_inputs(Case(name="", n_rows=5, topk=96, missing="some"), seed=4)
    out, lse = decode(subject, inputs)
    pool, indices, page_size, _ = inputs.pools[0]
    alone, alone_lse = subject.sparse_mla_decode(inputs.q_B1HD[3:4], pool, indices[3:4], page_size=page_size)
    assert torch.equal(alone[0], out[3])
    assert torch.equal(alone_lse[0], lse[3])


def test_no_rows(subject: ModuleType) -> None:
    """A batch of none gives outputs of none."""
    pool = kv_pool.empty_pool(1, 64)
    q, indices = torch.zeros(0, 1, 16, 512, dtype=torch.bfloat16), torch.zeros(0, 8, dtype=torch.int32)
    out, lse = subject.sparse_mla_decode(q, pool, indices, page_size=64)
    assert (out.shape, lse.shape) == ((0, 1, 16, 512), (0, 1, 16))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"q_B1HD": torch.zeros(2, 1, 16, 512)}, "q_B1HD"),
        ({"kv_pool": torch.zeros(3, 100, dtype=torch.uint8)}, "kv_pool"),
        ({"indices_BT": torch.zeros(2, 8, dtype=torch.int64)}, "indices_BT"),
        ({"indices_BT": torch.zeros(3, 8, dtype=torch.int32)}, "indices_BT"),
        ({"topk_length_B": torch.zeros(2)}, "topk_length_B"),
        ({"attention_sink_H": torch.zeros(8)}, "attention_sink_H"),
        ({"page_size": 0}, "page_size"),
        ({"out_B1HD": torch.zeros(2, 1, 16, 512)}, "out_B1HD"),
        ({"second_page_size": 64}, "second_"),
    ],
)
def test_wrong_arguments_are_named(subject: ModuleType, change: dict[str, Any], named: str) -> None:
    """A wrong dtype, shape or half a second pool is refused with the argument's name."""
    arguments: dict[str, Any] = {
        "q_B1HD": torch.zeros(2, 1, 16, 512, dtype=torch.bfloat16),
        "kv_pool": kv_pool.empty_pool(3, 64),
        "indices_BT": torch.zeros(2, 8, dtype=torch.int32),
        "page_size": 64,
    }
    with pytest.raises(ValueError, match=named):
        subject.sparse_mla_decode(**{**arguments, **change})


def test_layout_numbers_agree_with_the_pool(subject: ModuleType) -> None:
    """The kernel file carries its own copy of the layout; it is the pool's."""
    for page_size in (1, 2, 64, 256):
        assert subject.page_bytes_of(page_size) == kv_pool.page_bytes(page_size)
        places = torch.tensor([0, 1, 5 * page_size, 7 * page_size - 1])
        for mine, theirs in zip(subject._places(places, page_size), kv_pool.rows_of(places, page_size), strict=True):
            assert torch.equal(mine, theirs)


@pytest.mark.parametrize(("n_heads", "expected"), [(1, 16), (8, 16), (16, 16), (17, 32), (32, 32), (64, 32), (128, 32)])
def test_block_h(n_heads: int, expected: int) -> None:
    """A program's heads: a power of two, at least what tl.dot needs, at most 32."""
    assert seed.block_h_of(n_heads) == expected


def test_splits_fill_the_gpu_and_are_not_tiny() -> None:
    """Few rows are split far, many rows not at all, short lists never below 32 tokens a slice."""
    assert seed.n_splits_of(1, 1, 512, 132) == 16
    assert seed.n_splits_of(64, 1, 512, 132) == 4
    assert seed.n_splits_of(4096, 2, 512, 132) == 1
    assert seed.n_splits_of(1, 1, 70, 132) == 2
    assert seed.n_splits_of(1, 1, 1, 132) == 1


def test_runs_where_triton_cannot_be_imported() -> None:
    """Without triton the file imports, keeps its config list readable, and is right."""
    program = """
import sys
class NoTriton:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "triton":
            raise ModuleNotFoundError("No module named 'triton'", name="triton")
sys.meta_path.insert(0, NoTriton())
from kernel import cases, check, sparse_mla_decode
assert not sparse_mla_decode.HAVE_TRITON
assert [c.kwargs["BLOCK_T"] for c in sparse_mla_decode.CONFIGS] == [32, 64, 128, 128, 32]
for case in cases.CASES:
    if case.on_interpreter:
        result = check.check_case(sparse_mla_decode, case, sparse_mla_decode.CONFIGS[0], "cpu", 1)
        assert result.passed, result
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


# ---- check


def test_check_finds_an_unmasked_value(tmp_path: Path) -> None:
    """A kernel that reads a token for −1 is wrong, and the check says where, with exit 1."""
    broken = tmp_path / "broken.py"
    source = inspect.getsource(shipped)
    line = "tokens = tokens[tokens >= 0]"
    assert line in source
    broken.write_text(source.replace(line, "tokens = tokens.clamp_min(0)"))
    done = run_check(str(broken), "--device", "cpu", "--json")
    verdict = json.loads(done.stdout)
    assert (done.returncode, verdict["passed"], verdict["problem"]) == (1, False, None)
    wrong = {result["name"] for result in verdict["results"] if not result["passed"]}
    assert "-1 in between" in wrong
    assert "plain" not in wrong


def test_check_tries_random_shapes() -> None:
    """--random adds cases of random shape; the seed alone gives them again, and they reach what the lists may hold."""
    done = run_check("--device", "cpu", "--random", "5", "--seed", "11", "--json")
    verdict = json.loads(done.stdout)
    names = [result["name"] for result in verdict["results"] if result["name"].startswith("random")]
    assert (done.returncode, verdict["passed"], len(names)) == (0, True, 5)
    assert names == [case.name for case in random_cases(5, 11)]
    many = random_cases(200, 3)
    assert {case.page_size for case in many} == {1, 2, 64, 256}
    assert min(case.n_heads for case in many) < 8 and max(case.n_heads for case in many) == 128
    assert max(case.topk for case in many) > 1500
    assert {case.second_topk is None for case in many} == {True, False}


def test_check_reports_a_file_that_does_not_import(tmp_path: Path) -> None:
    """A syntax error is a verdict with the reason, not a traceback."""
    broken = tmp_path / "broken.py"
    broken.write_text("def sparse_mla_decode(:\n")
    done = run_check(str(broken))
    assert done.returncode == 1
    assert "SyntaxError" in done.stdout
    assert "Traceback" not in done.stderr


def test_check_refuses_a_missing_file(tmp_path: Path) -> None:
    """A file that is not there is wrong use, exit 2."""
    done = run_check(str(tmp_path / "absent.py"))
    assert done.returncode == 2
    assert "absent.py" in done.stderr


def test_comparison_sees_what_was_never_written() -> None:
    """NaN left in one number of the output fails, however small the rest of the error."""
    inputs = make_inputs(CASES[0], seed=5)
    out, lse = check.run_poisoned(shipped, inputs, None)
    out[1, 0, 3, 77] = torch.nan
    problem, _, _ = check.compare(out, lse, inputs)
    assert problem is not None
    assert "(1, 0, 3, 77)" in problem


def test_comparison_sees_a_wrong_lse() -> None:
    """An lse that is off by one part in ten thousand fails."""
    inputs = make_inputs(CASES[0], seed=5)
    out, lse = check.run_poisoned(shipped, inputs, None)
    lse[0, 0, 0] *= 1.0001
    problem, _, _ = check.compare(out, lse, inputs)
    assert problem is not None
    assert problem.startswith("lse")


# ---- the Triton kernels


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize("file", [shipped.__file__, seed.__file__], ids=["shipped", "seed"])
def test_interpreted_kernels_agree_with_the_reference(file: str) -> None:
    """The Triton kernels themselves, run by triton's interpreter, are right on every small case."""
    done = run_check(file, "--interpret", "--json")
    verdict = json.loads(done.stdout)
    assert verdict["path"] == "interpreter"
    assert [result["problem"] for result in verdict["results"] if not result["passed"]] == []
    assert done.returncode == 0
    assert len(verdict["results"]) == sum(case.on_interpreter for case in CASES)


def compiled(subject: ModuleType, arch: int, number: int, n_heads: int, topks: tuple[int, ...] = (512,)) -> list[Any]:
    """The kernels of one call with a config of the list, as its launcher specialises them, compiled without a GPU."""
    from kernel import offline

    config = subject.CONFIGS[number]
    launches = offline.launches_of(subject, config, arch=arch, n_heads=n_heads, n_rows=96, topks=topks)
    return [offline.compiled(launch, arch) for launch in launches]


@needs_triton
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("arch", sorted(SHARED_LIMIT_BYTES))
def test_compiles_without_a_gpu(arch: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The config that runs everywhere, with its merge kernel, fits a program's shared memory from sm_80 to sm_120."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    kernels = compiled(shipped, arch, 0, n_heads=16)
    assert len(kernels) == 2
    assert all(made.n_registers > 0 and made.shared_bytes <= SHARED_LIMIT_BYTES[arch] for made in kernels)
    assert any("bf16" in words for words in kernels[0].tensor_cores)


@needs_triton
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("number", range(3))
def test_the_seed_fits_the_gpu_that_it_was_made_for(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of its three configs fits sm_120's 99 KiB with 32 heads a program, the most that it takes."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    assert compiled(seed, 120, number, n_heads=64)[0].shared_bytes <= SHARED_LIMIT_BYTES[120]


@needs_triton
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("number", range(1, 5))
def test_every_config_fits_where_it_is_chosen(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of the shipped list compiles for sm_90, and a program needs no more than the launcher reckons with."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    config = shipped.CONFIGS[number]
    made = compiled(shipped, 90, number, n_heads=64)[0]
    assert made.shared_bytes <= shipped.shared_bytes_of(config) <= SHARED_LIMIT_BYTES[90]
    assert any(words.startswith("wgmma") for words in made.tensor_cores)


def test_no_config_is_tried_where_it_cannot_launch() -> None:
    """Every GPU keeps a config for every number of heads, and none that needs more than it has."""
    for arch, limit in SHARED_LIMIT_BYTES.items():
        for n_heads in (1, 16, 64, 128):
            with patch.object(shipped, "_shared_bytes_limit", lambda _, limit=limit: limit):
                kept = shipped._fitting(list(shipped.CONFIGS), {"q_ptr": torch.empty(0), "n_heads": n_heads})
            assert kept, (arch, n_heads)
            assert all(shipped.shared_bytes_of(config) <= limit for config in kept)
            assert all(config.kwargs["BLOCK_H"] <= max(16, n_heads) for config in kept)


def test_the_table_names_configs_of_the_list() -> None:
    """On a GPU of the table every shape has its config, which launches there; elsewhere, and once forced, none."""
    assert len(shipped.CONFIGS) == shipped.N_CHOSEN_FROM
    for n_heads in (1, 8, 16, 17, 32, 64, 100, 128):
        for n_rows in (1, 8, 64, 96, 128, 5000):
            config = shipped.config_for((9, 0), n_heads, n_rows)
            assert config in shipped.CONFIGS
            assert shipped.shared_bytes_of(config) <= SHARED_LIMIT_BYTES[90]
            assert shipped.config_for((12, 0), n_heads, n_rows) is None
    few, many = (shipped.config_for((9, 0), 16, n_rows) for n_rows in (8, 96))
    assert few.kwargs["BLOCK_T"] < many.kwargs["BLOCK_T"]
    with patch.object(shipped, "CONFIGS", shipped.CONFIGS[:1]):
        assert shipped.config_for((9, 0), 16, 96) is None


def test_equal_shares_leave_no_tile_and_no_program_out() -> None:
    """Whatever the batch, every tile has a program, all but the last have as many, and no more run than fit at once."""
    for config in shipped.CONFIGS:
        for n_rows in (1, 7, 64, 96, 1000):
            for topks in ([1], [512], [128, 512], [2048]):
                for n_heads in (16, 64):
                    n_tiles, a_program, n_programs = shipped.parts_of(config, n_rows, n_heads, topks, 132)
                    assert (n_programs - 1) * a_program < n_rows * n_tiles <= n_programs * a_program
                    n_blocks = -(-n_heads // config.kwargs["BLOCK_H"])
                    assert n_programs * n_blocks <= max(n_blocks, 132 * config.kwargs["PER_SM"])


@needs_triton
def test_autotune_block_names_all_that_changes_the_choice(subject: ModuleType) -> None:
    """The tuning key holds the batch, else one tuning at the first batch size would be used for all."""
    keys = set(subject.sparse_mla_decode_kernel.keys)
    assert {"rows_bucket", "n_heads", "topk"} <= keys
    assert keys <= set(subject.sparse_mla_decode_kernel.arg_names)
    assert re.search(r"^@triton\.autotune\(\n    configs=\[", inspect.getsource(subject), re.MULTILINE)


def test_batches_are_tuned_apart() -> None:
    """Buckets of rows are half a power of two wide, so that 64, 96 and 128 are three."""
    assert [shipped._rows_bucket(n) for n in (1, 2, 3, 5, 8, 48, 64, 65, 96, 97, 128)] == [
        1, 2, 3, 6, 8, 48, 64, 96, 96, 128, 128,
    ]  # fmt: skip


@needs_cuda
def test_on_a_gpu_every_config_and_a_captured_graph_are_right() -> None:
    """On CUDA the check passes for all configs and 200 random shapes, and a replayed graph reads its new inputs."""
    done = run_check("--device", "cuda", "--random", "200", "--json")
    verdict = json.loads(done.stdout)
    assert [result for result in verdict["results"] if not result["passed"]] == []
    assert done.returncode == 0
    assert verdict["results"][-1]["name"].startswith("CUDA graph")
