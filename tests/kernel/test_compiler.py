"""The compile program as the controller meets it: a process, a request on its input, lines of JSON on its output."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

triton = pytest.importorskip("triton", reason="triton is not installed")

from tests.kernel import seed_shape  # noqa: E402
from tests.support.waiting import wait_until  # noqa: E402

pytestmark = pytest.mark.kernel
ROOT = Path(__file__).parents[2]
HEAD = "import triton\nimport triton.language as tl\n"
KERNEL = "@triton.jit\ndef kernel(out, n, BLOCK: tl.constexpr):\n    tl.store(out + tl.arange(0, BLOCK), n)\n"
SHARED_LIMIT_BYTES = 101_376  # of a block on sm_120

# the folder alone, under another name, and an interpreter that has triton and nothing else
BOOTSTRAP = "import sys; sys.path[:0] = sys.argv[1:]; from orch_compiler import main; sys.exit(main())"


def start(*command: str, cwd: Path = ROOT, **env: str) -> subprocess.Popen[str]:
    """The program, waiting for its request."""
    return subprocess.Popen(
        command or (sys.executable, "-m", "kernel.compiler"),
        cwd=cwd,
        env={**os.environ, **env},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def request(sources: dict[str, dict[str, str]], jobs: list[dict[str, Any]], deadline_s: float = 60.0) -> str:
    """The request on one line; jobs are numbered as they stand."""
    numbered = [{"id": number, **job} for number, job in enumerate(jobs)]
    return json.dumps({"sources": sources, "jobs": numbered, "n_workers": 2, "deadline_s": deadline_s}) + "\n"


def answers_of(process: subprocess.Popen[str], asked: str) -> list[dict[str, Any]]:
    """Its results in the order of the jobs. Everything on its output is JSON, and it ended well."""
    output, diagnostics = process.communicate(asked, timeout=240)
    assert process.returncode == 0, diagnostics
    ready, *results = [json.loads(line) for line in output.splitlines()]
    assert ready == {"event": "ready", "triton_version": triton.__version__}
    assert {result.pop("event") for result in results} <= {"result"}
    return sorted(results, key=lambda result: int(result["id"]))


def python(text: str, kernel: str = "kernel") -> dict[str, str]:
    """A source of the request."""
    return {"kind": "source", "kernel": kernel, "text": text}


def small_job(source: str, **changed: Any) -> dict[str, Any]:
    """A compile of ``KERNEL``."""
    options = {"num_warps": 4, "num_stages": 2, "num_ctas": 1, "maxnreg": None}
    return {
        "source": source,
        "do": "compile",
        "arch": 120,
        "types": {"out": "*fp32", "n": "i32"},
        "constants": {"BLOCK": 16},
        "divisible_by_16": ["out"],
        "options": options,
        "also_stages": [],
        **changed,
    }


def seed_job(
    source: str, num_stages: int, num_warps: int = 4, block_h: int = 16, block_t: int = 16, **changed: Any
) -> dict[str, Any]:
    """A compile of the seed's kernel."""
    names = re.findall(r"^    (\w+),$", seed_shape.FILE.read_text(), re.MULTILINE)
    told = {}
    for name in names:
        told[name] = next(str(value) for given, value in seed_shape.ARGUMENTS.items() if fnmatch(name, given))
    return small_job(
        source,
        types={name: value.partition(":")[0] for name, value in told.items()},
        constants={"SPLITS": seed_shape.ARGUMENTS["SPLITS"], "BLOCK_H": block_h, "BLOCK_T": block_t},
        divisible_by_16=[name for name, value in told.items() if value.endswith(":16")],
        options={"num_warps": num_warps, "num_stages": num_stages, "num_ctas": 1, "maxnreg": None},
        **changed,
    )


def is_alive(pid: int) -> bool:
    """Whether the process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# ---- the seed's kernel


@pytest.fixture(scope="module")
def seed() -> dict[str, dict[str, Any]]:
    """The seed's kernel in the forms that the tests below look at, by a name for each."""
    text = seed_shape.FILE.read_text()
    sources = {
        "seed": python(text, seed_shape.KERNEL),
        "moved": python(
            "\n" * 10 + text.replace("@triton.jit\ndef sparse", "\n\n@triton.jit\ndef sparse"), seed_shape.KERNEL
        ),
    }
    jobs = {
        "2": seed_job("seed", 2, also_stages=[3, 4, 5, 6, 7]),
        **{str(stages): seed_job("seed", stages) for stages in range(3, 8)},
        "h32": seed_job("seed", 2, block_h=32),
        "t32": seed_job("seed", 2, block_t=32),
        "moved": seed_job("moved", 2),
    }
    return dict(zip(jobs, answers_of(start(), request(sources, list(jobs.values()))), strict=True))


@pytest.mark.slow
def test_shared_memory_is_what_the_seed_saw(seed: dict[str, dict[str, Any]]) -> None:
    """60.12, 60.25, 70.50 and 80.75 KiB at 2, 3, 5 and 7 stages, to the byte."""
    if not triton.__version__.startswith(seed_shape.EXACT_WITH):
        pytest.skip(f"Triton {triton.__version__} lays the index buffers out in its own way")
    found = {stages: seed[str(stages)]["shared_bytes"] for stages in range(2, 8)}
    assert found == seed_shape.SHARED_BYTES_BY_STAGES


@pytest.mark.slow
def test_every_second_stage_is_the_same_binary(seed: dict[str, dict[str, Any]]) -> None:
    """Stages 3 and 4 are one binary, 5 and 6 another; 2, 3, 5 and 7 differ; each further KV buffer costs one step."""
    digests = {stages: seed[str(stages)]["binary_digest"] for stages in range(2, 8)}
    assert digests[3] == digests[4]
    assert digests[5] == digests[6]
    assert len(set(digests.values())) == 4
    shared = {stages: seed[str(stages)]["shared_bytes"] for stages in range(2, 8)}
    assert shared[5] - shared[3] == shared[7] - shared[5]


@pytest.mark.slow
def test_a_larger_block_costs_what_the_seed_saw(seed: dict[str, dict[str, Any]]) -> None:
    """BLOCK_H 32 costs 18,432 B more; BLOCK_T 32 does not fit a block on sm_120."""
    assert seed["h32"]["shared_bytes"] - seed["2"]["shared_bytes"] == 18_432
    assert seed["t32"]["shared_bytes"] > SHARED_LIMIT_BYTES


@pytest.mark.slow
def test_kv_buffers_in_flight(seed: dict[str, dict[str, Any]]) -> None:
    """One KV buffer up to 4 stages, two at 5, three at 7, with shape, Triton's name of the type and size."""
    for stages, n_buffers in {2: 1, 3: 1, 4: 1, 5: 2, 6: 2, 7: 3}.items():
        largest = max(seed[str(stages)]["buffers"], key=lambda buffer: int(buffer["size_bytes"]))
        assert largest == {"shape": [16, 512], "dtype": "fp8e4nv", "n_buffers": n_buffers, "size_bytes": 8192}


@pytest.mark.slow
def test_further_stages_are_looked_at_until_one_keeps_more(seed: dict[str, dict[str, Any]]) -> None:
    """Of 3 … 7 only 3, 4 and 5 are looked at, and their buffers are those of a real compile."""
    looked_at = seed["2"]["stages_buffers"]
    assert looked_at == {stages: seed[stages]["buffers"] for stages in ("3", "4", "5")}


@pytest.mark.slow
def test_a_kernel_that_only_moved_keeps_its_binary(seed: dict[str, dict[str, Any]]) -> None:
    """Ten lines further down, in another file: the same machine code."""
    assert seed["moved"]["binary_digest"] == seed["2"]["binary_digest"]


@pytest.mark.slow
def test_facts_of_the_binary(seed: dict[str, dict[str, Any]]) -> None:
    """Registers, stack, spills, instructions and loops are told; the larger block spills."""
    assert 200 < seed["2"]["n_registers"] <= 255
    assert seed["h32"]["stack_bytes"] > seed["2"]["stack_bytes"]
    if seed["h32"]["spill_bytes"] is not None:
        assert seed["h32"]["spill_bytes"] > seed["2"]["spill_bytes"]
    assert seed["2"]["tensor_cores"] == ["mma.sync m16n8k16 bf16"]
    assert seed["2"]["has_loop"] is seed["2"]["has_dot_in_loop"] is True
    assert seed["2"]["compile_s"] > 0


COMPILE_DIRECTLY = """
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("engine_kernel", sys.argv[1])
module = importlib.util.module_from_spec(spec)
sys.modules["engine_kernel"] = module
spec.loader.exec_module(module)
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
job = json.loads(sys.argv[3])
kernel = getattr(module, sys.argv[2]).fn
types = {name: job["types"].get(name, "constexpr") for name in kernel.arg_names}
attributes = {(kernel.arg_names.index(name),): [["tt.divisibility", 16]] for name in job["divisible_by_16"]}
source = ASTSource(kernel, types, job["constants"], attributes)
options = {name: value for name, value in job["options"].items() if value is not None}
triton.compile(source, target=GPUTarget("cuda", job["arch"], 32), options=options)
"""


def compile_directly(cache: Path, job: dict[str, Any], **env: str) -> Path:
    """What ``triton.compile`` leaves in its cache for the seed's kernel: the folder."""
    command = [sys.executable, "-c", COMPILE_DIRECTLY, str(seed_shape.FILE), seed_shape.KERNEL, json.dumps(job)]
    subprocess.run(command, check=True, env={**os.environ, "TRITON_CACHE_DIR": str(cache), **env}, capture_output=True)
    return next(cache.glob(f"*/{seed_shape.KERNEL}.json")).parent


@pytest.mark.slow
def test_a_host_cache_compiles_to_the_same_as_the_source(tmp_path: Path) -> None:
    """The ttir that an engine left behind, with other warps and stages, is byte for byte the direct compile."""
    folder = compile_directly(tmp_path, seed_job("", 2))
    ttir = (folder / f"{seed_shape.KERNEL}.ttir").read_text()
    assert "seed_kernel.py" in ttir  # it holds line numbers, as an engine's does
    sources = {
        "cache": {"kind": "host-cache", "kernel": seed_shape.KERNEL, "text": ttir},
        "source": python(seed_shape.FILE.read_text(), seed_shape.KERNEL),
    }
    baked_in: dict[str, Any] = {"types": None, "constants": {}, "divisible_by_16": []}
    jobs = [
        {**seed_job("cache", 3, 8, also_stages=[4, 5, 6]), **baked_in},
        seed_job("source", 3, 8, also_stages=[4, 5, 6]),
    ]
    cached, direct = answers_of(start(), request(sources, jobs))
    for answer in (cached, direct):
        del answer["id"], answer["compile_s"]
    assert cached["error"] is None
    assert cached == direct
    assert list(cached["stages_buffers"]) == ["4", "5"]


@pytest.mark.slow
def test_the_answer_is_what_triton_compiles_whatever_the_user_has_set(tmp_path: Path) -> None:
    """The program gives triton.compile's own cubin and shared memory, and options in the environment change nothing."""
    job = seed_job("seed", 2)
    folder = compile_directly(tmp_path / "cache", job, TRITON_DISABLE_LINE_INFO="1")
    cubin = (folder / f"{seed_shape.KERNEL}.cubin").read_bytes()
    metadata = json.loads((folder / f"{seed_shape.KERNEL}.json").read_text())
    odd = {
        "TRITON_INTERPRET": "1",
        "DISABLE_PTXAS_OPT": "1",
        "TRITON_DISABLE_LINE_INFO": "0",
        "TRITON_KERNEL_OVERRIDE": "1",
        "TRITON_CACHE_DIR": str(tmp_path / "elsewhere"),
    }
    sources = {"seed": python(seed_shape.FILE.read_text(), seed_shape.KERNEL)}
    [answer] = answers_of(start(**odd), request(sources, [job]))
    assert answer["binary_digest"] == "sha256:" + hashlib.sha256(cubin).hexdigest()
    assert answer["shared_bytes"] == metadata["shared"]
    assert not (tmp_path / "elsewhere").exists()


# ---- other architectures

MATMUL = HEAD + (
    """
@triton.jit
def kernel(a_ptr, b_ptr, c_ptr, M, N, K, BLOCK: tl.constexpr, IS_SPECIALISED: tl.constexpr):
    a = tl.make_tensor_descriptor(a_ptr, shape=[M, K], strides=[K, 1], block_shape=[BLOCK, 64])
    b = tl.make_tensor_descriptor(b_ptr, shape=[N, K], strides=[K, 1], block_shape=[BLOCK, 64])
    c = tl.make_tensor_descriptor(c_ptr, shape=[M, N], strides=[N, 1], block_shape=[BLOCK, BLOCK])
    row = tl.program_id(0) * BLOCK
    column = tl.program_id(1) * BLOCK
    total = tl.zeros([BLOCK, BLOCK], tl.float32)
    for k in tl.range(0, K, 64, warp_specialize=IS_SPECIALISED):
        total = tl.dot(a.load([row, k]), b.load([column, k]).T, total)
    c.store([row, column], total.to(tl.bfloat16))
"""
)


def matmul_job(arch: int, num_stages: int, is_specialised: bool) -> dict[str, Any]:
    """A compile of ``MATMUL``."""
    types = {"a_ptr": "*bf16", "b_ptr": "*bf16", "c_ptr": "*bf16", "M": "i32", "N": "i32", "K": "i32"}
    return small_job(
        "matmul",
        arch=arch,
        types=types,
        divisible_by_16=list(types),
        constants={"BLOCK": 128, "IS_SPECIALISED": is_specialised},
        options={"num_warps": 4, "num_stages": num_stages, "num_ctas": 1, "maxnreg": None},
    )


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(triton.language, "make_tensor_descriptor"), reason="this Triton has no descriptors")
def test_descriptor_loads_on_hopper_and_blackwell() -> None:
    """TMA pipelines count their tiles and not their barriers; unpipelined tiles are no pipeline."""
    jobs = [matmul_job(90, 3, False), matmul_job(100, 3, False), matmul_job(100, 3, True), matmul_job(90, 1, False)]
    hopper, blackwell, specialised, unpipelined = answers_of(start(), request({"matmul": python(MATMUL)}, jobs))
    tile = {"shape": [128, 64], "dtype": "bf16", "n_buffers": 3, "size_bytes": 16_384}
    assert hopper["buffers"] == blackwell["buffers"] == specialised["buffers"] == [tile, tile]
    assert unpipelined["buffers"] == []
    assert hopper["tensor_cores"] == ["wgmma.mma_async m64n128k16 bf16"]
    assert blackwell["tensor_cores"] == ["tcgen05.mma kind::f16 cta_group::1"]
    assert hopper["n_warps"] == 4
    assert specialised["n_warps"] > 4


# ---- describing


def test_describe_gives_the_autotune_list_and_key() -> None:
    """Values as the protocol writes them; None for a module without a list, or a ttir; why there is none where that
    is known."""
    listed = (
        HEAD
        + KERNEL
        + "_orch_configs = [triton.Config({'BLOCK': w * 8, 'TYPE': tl.bfloat16}, num_warps=w, num_stages=5) "
        + "for w in (2, 4)]\n_orch_key = ['n']\n"
    )
    sources = {
        "listed": python(listed),
        "plain": python(HEAD + KERNEL),
        "cache": {"kind": "host-cache", "kernel": "kernel", "text": "module {}"},
        "failed": python(HEAD + KERNEL + "_orch_configs_error = 'ImportError: no gpu_traits'\n_orch_key = ['n']\n"),
        "odd": python(HEAD + KERNEL + "_orch_configs = [triton.Config({'BLOCK': object})]\n"),
    }
    jobs = [{"source": source, "do": "describe"} for source in sources]
    with_list, without, cached, failed, odd = answers_of(start(), request(sources, jobs))
    rest = {"num_stages": 5, "num_ctas": 1, "maxnreg": None}
    assert with_list["configs"] == [
        {"constants": {"BLOCK": 16, "TYPE": "tl.bfloat16"}, "num_warps": 2, **rest},
        {"constants": {"BLOCK": 32, "TYPE": "tl.bfloat16"}, "num_warps": 4, **rest},
    ]
    assert with_list["key"] == ["n"]
    for answer in (without, cached):
        assert (answer["configs"], answer["key"], answer["error"]) == (None, None, None)
    assert (failed["configs"], failed["error"]) == (None, "ImportError: no gpu_traits")
    assert odd["error"] == "the autotune list gives BLOCK the value <class 'object'>, which cannot be written down"


# ---- what goes wrong

STORES = "    tl.store(out + tl.arange(0, BLOCK), n)\n"
BROKEN: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "undefined": (
        HEAD + KERNEL.replace(", n)\n", ", missing)\n"),
        {},
        "compile",
        r"NameError\('missing is not defined'\) at `tl.store\(out \+ tl.arange\(0, BLOCK\), missing\)`",
    ),
    "undefined-in-helper": (
        HEAD + "@triton.jit\ndef helper(x):\n    return x + missing\n" + KERNEL.replace(", n)\n", ", helper(n))\n"),
        {},
        "compile",
        r"NameError\('missing is not defined'\) at `return x \+ missing`",
    ),
    "not-a-power": (
        HEAD + KERNEL,
        {"constants": {"BLOCK": 17}},
        "compile",
        r"arange's range must be a power of 2 at `tl.store\(out .*`",
    ),
    "too-large": (HEAD + KERNEL, {"constants": {"BLOCK": 1 << 22}}, "compile", r"numel \(4194304\) exceeds .*"),
    "ptxas": (
        HEAD
        + KERNEL.replace(
            ", n)\n",
            ", tl.inline_asm_elementwise('nonsense $0, $1;', '=r,r', [n], dtype=tl.int32, is_pure=True, pack=1))\n",
        ),
        {},
        "compile",
        "ptxas: Not a name of any known instruction: 'nonsense'",
    ),
    "import": (
        HEAD + "import sglang.srt.foo\n" + KERNEL,
        {},
        "import",
        "needs the module sglang.srt.foo, which is not installed",
    ),
    "import-from": (
        HEAD + "from sglang.srt.foo import bar\n" + KERNEL,
        {},
        "import",
        "needs the module sglang.srt.foo, which is not installed",
    ),
    "constant-for-want-of-import": (
        HEAD + "try:\n    import sglang.srt.foo as foo\nexcept ImportError:\n    foo = None\nX = foo.bar\n" + KERNEL,
        {},
        "import",
        r"needs the module sglang.srt.foo, which is not installed \(AttributeError: .* at `X = foo.bar`\)",
    ),
    "import-name": (
        HEAD + "from triton import missing\n" + KERNEL,
        {},
        "import",
        "cannot import name 'missing' from 'triton' at `from triton import missing`",
    ),
    "constant": (
        HEAD + "X = missing(3)\n" + KERNEL,
        {},
        "compile",
        r"the lifted module does not run: NameError: name 'missing' is not defined at `X = missing\(3\)`",
    ),
    "exit": (
        HEAD + "raise SystemExit(3)\n" + KERNEL,
        {},
        "compile",
        r"the lifted module does not run: SystemExit: 3 at `raise SystemExit\(3\)`",
    ),
    "no-kernel": (HEAD, {}, "compile", "the lifted module defines no @triton.jit function kernel"),
    "no-type": (HEAD + KERNEL, {"types": {"out": "*fp32"}}, "compile", "no type for the argument n"),
    "odd-type": (
        HEAD + KERNEL,
        {"types": {"out": "*float", "n": "i32"}},
        "compile",
        r"the argument out cannot have the type \*float",
    ),
    "no-constexpr": (HEAD + KERNEL, {"constants": {}}, "compile", "no value for the constexpr BLOCK of kernel"),
    "unknown-argument": (
        HEAD + KERNEL,
        {"constants": {"BLOCK": 16, "EXTRA": 1}},
        "compile",
        "kernel has no argument EXTRA",
    ),
    "crash": (HEAD + "import ctypes\nctypes.string_at(0)\n", {}, "crash", "crashed with SIGSEGV"),
    "leave": (HEAD + "import os\nos._exit(4)\n", {}, "crash", "ended with exit code 4 and no answer"),
    "told-crash": (
        HEAD
        + "import os\nos.write(2, b'x.cpp:7: void f(): Assertion `n > 0 && \"odd arch\"\\' failed.\\n')\nos.abort()\n",
        {},
        "crash",
        r"crashed with SIGABRT: Assertion `n > 0 && \"odd arch\"' failed. \(x.cpp:7\)",
    ),
}


@pytest.fixture(scope="module")
def broken() -> dict[str, dict[str, Any]]:
    """Everything of ``BROKEN`` in one request, with one kernel after it that is well."""
    sources = {name: python(text) for name, (text, *_) in BROKEN.items()} | {"well": python(HEAD + KERNEL)}
    jobs = [small_job(name, **changed) for name, (_, changed, *_) in BROKEN.items()] + [small_job("well")]
    return dict(zip(sources, answers_of(start(), request(sources, jobs)), strict=True))


@pytest.mark.parametrize("name", BROKEN)
def test_what_goes_wrong_is_told_in_one_line(broken: dict[str, dict[str, Any]], name: str) -> None:
    """Each has its kind and a line that names the cause."""
    _, _, kind, expected = BROKEN[name]
    assert broken[name]["error_kind"] == kind
    assert re.fullmatch(expected, broken[name]["error"]), broken[name]["error"]


def test_the_other_jobs_go_on(broken: dict[str, dict[str, Any]]) -> None:
    """After all that, a kernel that is well is compiled, and without a loop it says so."""
    well = broken["well"]
    assert (well["error"], well["error_kind"]) == (None, None)
    assert (well["has_loop"], well["has_dot_in_loop"], well["buffers"], well["tensor_cores"]) == (False, False, [], [])


def test_a_ttir_that_is_none_is_told_in_one_line() -> None:
    """The parser's own words, which it prints and does not raise, are in the answer."""
    sources = {"cache": {"kind": "host-cache", "kernel": "kernel", "text": "module { nonsense }"}}
    [answer] = answers_of(start(), request(sources, [small_job("cache", types=None, constants={}, divisible_by_16=[])]))
    assert answer["error_kind"] == "compile"
    assert answer["error"].startswith("Parse MLIR file failed. ")
    assert "\n" not in answer["error"]


def endless(pids: Path) -> str:
    """A module that starts a program, notes its own number and the program's, and then loops for ever."""
    return HEAD + (
        "import os, subprocess\n"
        "program = subprocess.Popen(['sleep', '600'])\n"
        f"with open({str(pids)!r} + '.new', 'w') as file:\n"
        "    file.write(f'{os.getpid()} {program.pid}')\n"
        f"os.rename({str(pids)!r} + '.new', {str(pids)!r})\n"
        "while True:\n"
        "    pass\n"
    )


def test_an_endless_loop_ends_at_the_deadline(tmp_path: Path) -> None:
    """It is killed with the programs that it started, and the other jobs are answered."""
    pids = tmp_path / "pids"
    sources = {"endless": python(endless(pids)), "well": python(HEAD + KERNEL)}
    jobs = [{"source": "endless", "do": "describe"}, small_job("endless"), small_job("well")]
    described, compiled, well = answers_of(start(), request(sources, jobs, deadline_s=5))
    for answer in (described, compiled):
        assert (answer["error"], answer["error_kind"]) == ("did not end within 5 s, killed", "deadline")
    assert well["error"] is None
    assert not any(is_alive(int(pid)) for pid in pids.read_text().split())


@pytest.mark.parametrize("how", ["TERM", "INT", "KILL", "reader gone"])
def test_nothing_outlives_the_program(tmp_path: Path, how: str) -> None:
    """Ended by a signal, or without a reader: no child is left, and no folder (a KILL leaves the folder)."""
    pids, temporary = tmp_path / "pids", tmp_path / "temporary"
    temporary.mkdir()
    process = start(TMPDIR=str(temporary))
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    process.stdin.write(request({"endless": python(endless(pids))}, [{"source": "endless", "do": "describe"}]))
    process.stdin.close()
    wait_until(pids.exists)
    child, program = (int(pid) for pid in pids.read_text().split())
    if how == "reader gone":
        process.stdout.close()
    else:
        process.send_signal(getattr(signal, f"SIG{how}"))
    code = process.wait(30)
    assert code == {"TERM": 143, "INT": 130, "KILL": -9, "reader gone": 1}[how]
    wait_until(lambda: not is_alive(child))
    if how == "KILL":
        os.kill(program, signal.SIGKILL)
    else:
        wait_until(lambda: not is_alive(program))
        assert list(temporary.iterdir()) == []
    process.stdout.close()
    process.stderr.close()


# ---- the program


def test_only_the_protocol_is_on_standard_output(tmp_path: Path) -> None:
    """What the user's module prints, by Python or past it, goes to standard error."""
    text = HEAD + "import os\nprint('a loud module')\nos.write(1, b'past python\\n')\n" + KERNEL
    process = start(TMPDIR=str(tmp_path))
    output, diagnostics = process.communicate(request({"loud": python(text)}, [small_job("loud")]), timeout=60)
    assert [json.loads(line)["event"] for line in output.splitlines()] == ["ready", "result"]
    assert "a loud module" in diagnostics
    assert "past python" in diagnostics
    assert list(tmp_path.iterdir()) == []


def test_it_runs_alone_with_nothing_but_triton(tmp_path: Path) -> None:
    """A copy of its folder under another name, an isolated interpreter, a folder with triton: that is all."""
    shutil.copytree(ROOT / "kernel" / "compiler", tmp_path / "copy" / "orch_compiler")
    (tmp_path / "site").mkdir()
    installed = Path(triton.__file__).parents[1]
    for folder in (installed / "triton", *installed.glob("triton-*.dist-info")):  # its entry points name its backends
        (tmp_path / "site" / folder.name).symlink_to(folder, target_is_directory=True)
    text = HEAD + "import sys\nassert 'torch' not in sys.modules\n" + KERNEL
    process = start(
        *(sys.executable, "-I", "-S", "-c", BOOTSTRAP, str(tmp_path / "copy"), str(tmp_path / "site")), cwd=tmp_path
    )
    [answer] = answers_of(process, request({"small": python(text)}, [small_job("small")]))
    assert answer["error"] is None


def test_importing_it_imports_neither_triton_nor_the_kernel() -> None:
    """The package itself is light: only its ``main`` imports triton, and nothing imports torch."""
    code = "import sys, kernel.compiler; print(*sorted(name for name in sys.modules if name.startswith(%r)))"
    names = ("torch", "triton", "kernel.sparse", "orchestrator")
    shown = subprocess.run(
        [sys.executable, "-c", code % (names,)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert shown.stdout.split() == []


@pytest.mark.parametrize("asked", ["", "nonsense\n", '{"jobs": []}\n'])
def test_a_request_that_is_none_is_refused_in_one_line(asked: str) -> None:
    """Exit 2, a line on standard error and nothing on standard output."""
    process = start()
    output, diagnostics = process.communicate(asked, timeout=60)
    assert (process.returncode, output) == (2, "")
    assert diagnostics.startswith("the request is no request of this protocol: ")
    assert diagnostics.count("\n") == 1


# ---- texts that need a chip or a Triton of their own


def test_kinds_of_tensor_core_instruction() -> None:
    """Sparse, scaled and mixed forms keep what tells them apart; one kind is named once; nothing else is taken."""
    from kernel.compiler import facts

    ptx = """
    .visible .entry my_mma.sync(
    mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 { %f1 }, { %r1 }, { %r2 }, { %f1 };
    mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 { %f2 }, { %r3 }, { %r4 }, { %f2 };
    mma.sp.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32 { %f1 };
    mma.sp::ordered_metadata.sync.aligned.m16n8k64.row.col.satfinite.s32.s8.s8.s32 { %r1 };
    mma.sync.aligned.m16n8k32.row.col.kind::f8f6f4.f32.e4m3.e5m2.f32 { %f1 };
    mma.sync.aligned.m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.ue4m3 { %f1 };
    wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 { %f1 }, %rd1, %rd2, p, 1, 1;
    wgmma.wait_group.sync.aligned 0;
    tcgen05.mma.cta_group::2.kind::mxf8f6f4.block_scale.scale_vec::1X [%r1], %rd1, %rd2, %r2, [%r3], [%r4], p;
    tcgen05.mma.ws.cta_group::1.kind::f16 [%r1], %rd1, %rd2, %r2, p;
    tcgen05.commit.cta_group::1.mbarrier::arrive::one.b64 [%r1];
    """
    assert facts.tensor_cores(ptx) == [
        "mma.sync m16n8k16 bf16",
        "mma.sync m16n8k32 e4m3 e5m2 kind::f8f6f4",
        "mma.sync m16n8k64 e2m1 kind::mxf4nvf4 block_scale",
        "mma.sync.sp m16n8k32 f16",
        "mma.sync.sp::ordered_metadata m16n8k64 s8",
        "tcgen05.mma kind::mxf8f6f4 cta_group::2 block_scale",
        "tcgen05.mma.ws kind::f16 cta_group::1",
        "wgmma.mma_async m64n256k16 bf16",
    ]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("%0 = tt.dot %a, %b, %c", (False, False)),
        (
            "scf.for %i = %0 to %1 step %2 {\n  %3 = arith.addi {a = 1}\n} {tt.num_stages = 3}\n%4 = tt.dot %a",
            (True, False),
        ),
        ("scf.for %i = %0 to %1 {\n  scf.if %c {\n    %3 = tt.dot %a {x = 1}\n  }\n}", (True, True)),
        ("scf.if %c {\n  scf.for %i = %0 {\n  }\n} else {\n  %3 = tt.dot %a\n}", (True, False)),
        ("scf.while (%x = %y) {\n  scf.condition(%c)\n} do {\n  %3 = ttng.warp_group_dot %a\n}", (True, True)),
        ('%s = "text { scf.for"\n%3 = tt.dot %a', (False, False)),
        ("scf.for %i = %0 {\n  %3 = ttg.convert_layout %a : #ttg.dot_op<{opIdx = 0}>\n}", (True, False)),
    ],
)
def test_a_dot_counts_only_inside_a_loop(body: str, expected: tuple[bool, bool]) -> None:
    """Regions of all kinds nest; attributes and texts with braces do not confuse the count."""
    from kernel.compiler import facts

    assert facts.loop_facts("module {\n  tt.func public @k() {\n" + body + "\n  }\n}") == expected
