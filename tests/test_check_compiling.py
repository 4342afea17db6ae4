"""The controller's side of the compile program: what it asks, what it keeps, and what it says when that dies.

The program here is a small stand-in that answers by the real protocol, so that its deaths can be had on demand; the
real one is tested in tests/kernel/test_compiler.py.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.check import compiling
from orchestrator.check.compiling import Compiler
from orchestrator.check.environments import TritonEnvironment
from orchestrator.errors import CheckError
from orchestrator.records import Progress, digest_of
from orchestrator.verdicts import CompileJob, KernelConfig, KernelSource, Signature
from tests.support.waiting import wait_until

PROGRAM = """
import json, os, sys, time

def main():
    request = json.load(sys.stdin)
    with open(os.environ["SEEN"], "a") as seen:
        seen.write(json.dumps(request) + "\\n")
    print(json.dumps({"event": "ready", "triton_version": "3.9.0"}), flush=True)
    for job in reversed(request["jobs"]):
        text = request["sources"][job["source"]]["text"]
        if text == "hang":
            with open(os.environ["SEEN"] + ".pid", "w") as file:
                file.write(str(os.getpid()))
            time.sleep(600)
        if text == "die":
            print("Traceback …\\nImportError: no triton in here", file=sys.stderr)
            return 3
        answer = {"event": "result", "id": job["id"], "error": None}
        if job["do"] == "describe":
            answer.update(configs=[{"constants": {"BLOCK_T": 16}, "num_warps": 4, "num_stages": 2}], key=["n"])
        else:
            stages = {str(n): [] for n in job["also_stages"]}
            answer.update(shared_bytes=1000 * job["options"]["num_stages"], stages_buffers=stages)
            answer.update(buffers=[{"shape": [16, 8], "dtype": "fp16", "n_buffers": 2, "size_bytes": 256}])
        if text == "unsure":
            answer.update(error="the compiler crashed (SIGSEGV)", error_kind="crash")
        print(json.dumps(answer), flush=True)
    return 0
"""


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the stand-in writes every request that it gets."""
    folder = tmp_path / "compiler"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "__main__.py").write_text(PROGRAM, encoding="utf-8")
    monkeypatch.setattr(compiling, "program_folder", lambda: folder)
    monkeypatch.setenv("SEEN", str(tmp_path / "seen"))
    return tmp_path / "seen"


@pytest.fixture
def compiler(seen: Path, tmp_path: Path) -> Compiler:
    """A compiler with an empty cache."""
    return Compiler(TritonEnvironment("3.9.0", None), tmp_path / "cache", lambda _: None, n_workers=2)


def source(text: str = "def kernel(): ...") -> KernelSource:
    """A source; the stand-in acts on some texts."""
    return KernelSource("source", "kernel", text, digest_of(text.encode()))


def job(num_stages: int = 2, text: str = "def kernel(): ...", also_stages: tuple[int, ...] = ()) -> CompileJob:
    """A job for sm_120."""
    signature = Signature({"x": "*bf16", "BLOCK_T": "constexpr", "N": "constexpr"}, {"N": 7, "BLOCK_T": 1}, ("x",))
    config = KernelConfig(constants={"BLOCK_T": 16}, num_warps=4, num_stages=num_stages)
    return CompileJob(source(text), config, 120, signature, also_stages)


def requests(seen: Path) -> list[dict[str, object]]:
    """Every request that the stand-in got, one for each time that it was started."""
    return [json.loads(line) for line in seen.read_text().splitlines()] if seen.exists() else []


def test_answers_come_in_the_order_of_the_jobs(compiler: Compiler, seen: Path) -> None:
    """However the program orders its answers, each job gets its own, and the config's constants win."""
    found = compiler.compile([job(2), job(5)])
    assert [one.shared_bytes for one in found] == [2000, 5000]
    assert found[0].job == job(2)
    assert found[0].buffers[0].shape == (16, 8)
    asked = requests(seen)[0]["jobs"]
    assert isinstance(asked, list)
    assert asked[0]["constants"] == {"N": 7, "BLOCK_T": 16}
    assert asked[0]["divisible_by_16"] == ["x"]


def test_nothing_is_compiled_twice(compiler: Compiler, seen: Path) -> None:
    """A second question about the same source, config, architecture and Triton starts no process."""
    first = compiler.compile([job(2), job(2), job(3)])
    again = compiler.compile([job(3), job(2)])
    assert [one.is_cached for one in first] == [False, False, False]
    assert [one.is_cached for one in again] == [True, True]
    assert again[1].shared_bytes == 2000
    (only,) = requests(seen)
    assert isinstance(only["jobs"], list)
    assert len(only["jobs"]) == 2, "the same job twice in one call is compiled once"


@pytest.mark.parametrize(
    "other",
    [
        job(3),
        replace(job(), arch=90),
        job(text="def kernel(): return"),
        replace(job(), config=replace(job().config, num_warps=8)),
        replace(job(), signature=Signature({"x": "*fp16"}, {}, ())),
        job(also_stages=(3, 4)),
    ],
)
def test_a_different_question_is_asked_anew(compiler: Compiler, seen: Path, other: CompileJob) -> None:
    """Another config, architecture, source or type is never answered from the cache."""
    compiler.compile([job()])
    (found,) = compiler.compile([other])
    assert not found.is_cached
    assert len(requests(seen)) == 2


def test_another_triton_or_program_has_answers_of_its_own(seen: Path, tmp_path: Path) -> None:
    """A version of Triton, and a changed compile program, do not see the answers of another."""
    for version in ("3.9.0", "3.6.0"):
        Compiler(TritonEnvironment(version, None), tmp_path / "cache", lambda _: None).compile([job()])
    program = compiling.program_folder() / "__main__.py"
    program.write_text(PROGRAM + "\n# changed\n", encoding="utf-8")
    Compiler(TritonEnvironment("3.9.0", None), tmp_path / "cache", lambda _: None).compile([job()])
    assert len(requests(seen)) == 3


def test_probed_stages_are_kept_with_the_answer(compiler: Compiler) -> None:
    """An answer that looked at further stages also serves who asks for none, and gives them no more than asked."""
    compiler.compile([job(also_stages=(3, 4))])
    (plain,) = compiler.compile([job()])
    (less,) = compiler.compile([job(also_stages=(3,))])
    assert plain.is_cached
    assert plain.stages_buffers == {}
    assert less.is_cached
    assert set(less.stages_buffers) == {3}


def test_a_crash_is_not_kept(compiler: Compiler, seen: Path) -> None:
    """What may not happen again is tried again; a refusal of the compiler is final."""
    for _ in range(2):
        (found,) = compiler.compile([job(text="unsure")])
        assert found.error == "the compiler crashed (SIGSEGV)"
        assert found.n_kv_buffers is None
    assert len(requests(seen)) == 2


def test_known_answers_cost_nothing(compiler: Compiler, seen: Path) -> None:
    """``known`` tells what is in the cache and starts nothing."""
    assert compiler.known([job()]) == [None]
    compiler.compile([job()])
    (found,) = compiler.known([job()])
    assert found is not None
    assert found.shared_bytes == 2000
    assert len(requests(seen)) == 1


def test_a_damaged_cache_file_counts_as_not_there(compiler: Compiler, tmp_path: Path) -> None:
    """A cache cut off by a full disk is compiled again, not trusted and not fatal."""
    compiler.compile([job()])
    for content in (b"", b"{", b"[]", b"\xff"):
        for path in (tmp_path / "cache").rglob("*.json"):
            path.write_bytes(content)
        (found,) = compiler.compile([job()])
        assert not found.is_cached
        assert found.shared_bytes == 2000


def test_a_cache_that_cannot_be_written_is_done_without(seen: Path, tmp_path: Path) -> None:
    """A file where the cache's folder should be costs time, nothing else."""
    (tmp_path / "cache").write_text("in the way")
    compiler = Compiler(TritonEnvironment("3.9.0", None), tmp_path / "cache", lambda _: None)
    assert compiler.compile([job()])[0].shared_bytes == 2000


def test_a_program_that_dies_gives_one_line(compiler: Compiler) -> None:
    """The last line that it said, its exit code, and the Triton it ran with."""
    with pytest.raises(CheckError) as caught:
        compiler.compile([job(text="die")])
    assert caught.value.message == (
        "the compile program with Triton 3.9.0 ended with exit code 3 before it had answered: "
        "ImportError: no triton in here"
    )


def test_describe_gives_configs_and_key(compiler: Compiler) -> None:
    """The autotune list comes back as configs."""
    (found,) = compiler.describe([source()])
    assert found.configs == (KernelConfig(constants={"BLOCK_T": 16}, num_warps=4, num_stages=2),)
    assert found.key == ("n",)
    assert found.error is None


def test_progress_counts_the_compiles(seen: Path, tmp_path: Path) -> None:
    """Every answer is one step; answers from the cache are none."""
    steps: list[Progress] = []
    compiler = Compiler(TritonEnvironment("3.9.0", None), tmp_path / "cache", steps.append, n_workers=2)
    compiler.compile([job(2), job(3)])
    assert [(step.done, step.total) for step in steps] == [(0, 2), (1, 2), (2, 2)]
    assert steps[0].text == "compiling kernel with Triton 3.9.0"
    steps.clear()
    compiler.compile([job(2)])
    assert steps == []


def test_an_interrupt_ends_the_program(compiler: Compiler, seen: Path) -> None:
    """Ctrl-C in the middle of a compile leaves no process behind."""
    child = os.fork()
    if child == 0:  # a controller of its own, interrupted from here
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            compiler.compile([job(text="hang")])
        except KeyboardInterrupt:
            os._exit(7)
        os._exit(1)
    pid_file = Path(f"{seen}.pid")
    wait_until(lambda: pid_file.exists() and pid_file.read_text() != "")
    os.kill(child, signal.SIGINT)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)


def test_the_own_python_keeps_its_packages_and_a_named_version_does_not_see_them(tmp_path: Path) -> None:
    """An environment in a folder is started without this Python's packages, or two Tritons would mix."""
    assert TritonEnvironment("3.9.0", None).command == [sys.executable, "-I"]
    assert TritonEnvironment("3.6.0", tmp_path).command == [sys.executable, "-I", "-S"]
