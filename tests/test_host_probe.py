"""The programs that run on the host: how they look at processes, interpreters, modules and bytecode."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import py_compile
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator import host, provenance, serve
from orchestrator.connection import Spawned
from orchestrator.connection.local import LocalRemote
from orchestrator.errors import PortTakenError
from orchestrator.host import bytecode, interpreter, masking, probe, process_table, stop
from orchestrator.records import Engine
from tests.support.tiny_host import TinyHost, is_alive, until

PROGRAM_FILES = sorted(path for path in Path(host.__file__).parent.glob("*.py") if path.name != "__init__.py")


# ---- what a host must have


@pytest.mark.parametrize("path", PROGRAM_FILES, ids=lambda path: path.name)
def test_programs_need_only_an_old_python_and_its_standard_library(path: Path) -> None:
    """Each program is Python 3.8 syntax, imports the standard library and its siblings, and nothing else of orch."""
    tree = ast.parse(path.read_text(), feature_version=(3, 8))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            assert {alias.name.partition(".")[0] for alias in node.names} <= sys.stdlib_module_names
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            assert str(node.module).partition(".")[0] in sys.stdlib_module_names
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 1


def test_every_program_brings_what_it_imports_in_order() -> None:
    """A program's bundle has each sibling that one of its modules imports before that module."""
    for names in host.PROGRAMS.values():
        for i, name in enumerate(names):
            for node in ast.walk(ast.parse(host.source_of(name))):
                if isinstance(node, ast.ImportFrom) and node.level == 1:
                    needed = {node.module} if node.module else {alias.name for alias in node.names}
                    assert needed <= set(names[:i]), name


# ---- command lines of Python


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["python", "-m", "sglang.launch_server", "--tp", "4"], ([], "module", "sglang.launch_server")),
        (["python", "-Om", "engine", "-x"], (["-O"], "module", "engine")),
        (["python", "-uB", "serve.py", "-m", "x"], (["-uB"], "script", "serve.py")),
        (
            ["python", "-X", "pycache_prefix=/x", "-Wignore", "a.py"],
            (["-X", "pycache_prefix=/x", "-W", "ignore"], "script", "a.py"),
        ),
        (["python", "-IXdev", "-c", "pass"], (["-I", "-X", "dev"], "command", "pass")),
        (
            ["python", "--check-hash-based-pycs", "never", "a.py"],
            (["--check-hash-based-pycs", "never"], "script", "a.py"),
        ),
        (["python", "-"], ([], "command", "-")),
        (["python"], ([], "command", "")),
    ],
)
def test_python_command_lines_are_taken_apart_as_python_does(
    arguments: list[str], expected: tuple[list[str], str, str]
) -> None:
    """Flags, kind of program and program, with attached and separate values; arguments of the program are its own."""
    assert interpreter.split(arguments) == expected


def test_an_entry_point_script_is_seen_through(tmp_path: Path) -> None:
    """An engine that is not running yet, started by a console script: Python puts the script's folder first."""
    script = tmp_path / "bin" / "vllm"
    script.parent.mkdir()
    script.write_text(f"#!{sys.executable}\n")
    script.chmod(0o755)
    request = {"python": sys.executable, "command": ["vllm", "serve"], "cwd": "/", "env": {"PATH": str(script.parent)}}
    like = interpreter.of_engine(request, [])
    assert (like.pid, like.first_path, like.flags) == (None, str(script.parent), [])


# ---- where a module comes from


def resolve(tmp_path: Path, modules: list[str], *flags: str, first_path: str = "", **env: str) -> dict[str, Any]:
    """Asks an interpreter of its own, as the probe does."""
    like = interpreter.Interpreter(
        sys.executable, None, None, list(flags), first_path or str(tmp_path), {**os.environ, **env}, str(tmp_path)
    )
    request = {"bootstrap": host.BOOTSTRAP, "inner_sources": [["resolve", host.source_of("resolve")]]}
    return interpreter.ask(like, request, {"modules": modules, "first_path": like.first_path})


def make(path: Path, text: str = "raise AssertionError('imported')\n") -> Path:
    """A file that must not be run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_a_nested_namespace_package_over_two_folders_is_found(tmp_path: Path) -> None:
    """Packages without __init__ and spread over two entries of the path are searched part by part."""
    make(tmp_path / "one" / "ns" / "inner" / "a.py")
    found = make(tmp_path / "two" / "ns" / "inner" / "b.py")
    answer = resolve(tmp_path, ["ns.inner.b"], PYTHONPATH=f"{tmp_path}/one:{tmp_path}/two")
    assert answer["modules"]["ns.inner.b"]["path"] == str(found)


def test_an_editable_install_is_found_by_its_own_finder(tmp_path: Path) -> None:
    """A finder that a .pth file puts on sys.meta_path is asked, as in the engine."""
    found = make(tmp_path / "src" / "engine_pkg" / "layers" / "kernel.py")
    make(tmp_path / "src" / "engine_pkg" / "__init__.py")
    make(tmp_path / "src" / "engine_pkg" / "layers" / "__init__.py")
    make(
        tmp_path / "start" / "sitecustomize.py",
        "import sys, importlib.util\n"
        "print('a start-up file that prints')\n"
        "class Finder:\n"
        "    @staticmethod\n"
        "    def find_spec(name, path=None, target=None):\n"
        "        if name == 'engine_pkg':\n"
        f"            folder = {str(tmp_path / 'src' / 'engine_pkg')!r}\n"
        "            return importlib.util.spec_from_file_location(\n"
        "                name, folder + '/__init__.py', submodule_search_locations=[folder])\n"
        "sys.meta_path.append(Finder)\n",
    )
    answer = resolve(tmp_path, ["engine_pkg.layers.kernel"], PYTHONPATH=str(tmp_path / "start"))
    assert answer["modules"]["engine_pkg.layers.kernel"]["path"] == str(found)


def test_the_programs_folder_comes_first_unless_python_was_told_not_to(tmp_path: Path) -> None:
    """``python -m`` finds the module of the working directory; ``python -I`` does not."""
    found = make(tmp_path / "kernel_here.py")
    assert resolve(tmp_path, ["kernel_here"])["modules"]["kernel_here"]["path"] == str(found)
    assert "no module" in resolve(tmp_path, ["kernel_here"], "-I")["modules"]["kernel_here"]["error"]


def test_what_has_no_file_is_an_error(tmp_path: Path) -> None:
    """Built-in modules and namespace packages have no file to compare."""
    (tmp_path / "ns").mkdir()
    modules = resolve(tmp_path, ["sys", "ns", "json.decoder.x"])["modules"]
    assert "has no file" in modules["sys"]["error"]
    assert "has no file" in modules["ns"]["error"]
    assert "is not a package" in modules["json.decoder.x"]["error"]


def test_the_optimised_bytecode_of_an_optimised_engine_is_named(tmp_path: Path) -> None:
    """With -O and a bytecode prefix it is that file which the engine would use."""
    make(tmp_path / "kernel_here.py")
    answer = resolve(tmp_path, ["kernel_here"], "-O", "-X", f"pycache_prefix={tmp_path}/prefix")
    assert answer["optimize"] == 1
    cached = answer["modules"]["kernel_here"]["cached"]
    assert cached.startswith(f"{tmp_path}/prefix/") and cached.endswith(".opt-1.pyc")


# ---- bytecode


def compiled(path: Path, mode: py_compile.PycInvalidationMode, optimize: int = 0) -> bytes:
    """The bytecode that Python would cache."""
    cached = path.with_suffix(".pyc")
    py_compile.compile(str(path), str(cached), invalidation_mode=mode, optimize=optimize)
    return cached.read_bytes()


def source_of(path: Path) -> bytecode.Source:
    """A source file as the probe reads it."""
    return bytecode.Source(str(path), path.read_bytes(), int(path.stat().st_mtime))


BY_TIME = py_compile.PycInvalidationMode.TIMESTAMP
BY_HASH = py_compile.PycInvalidationMode.UNCHECKED_HASH
BY_CHECKED_HASH = py_compile.PycInvalidationMode.CHECKED_HASH

KERNEL = "X = (0.0, frozenset({1, 2}), b'a')\ndef f(n, /, *, m=4):\n    def g(): return n + m\n    return g\n"


@pytest.mark.parametrize("mode", [BY_TIME, BY_HASH, BY_CHECKED_HASH])
@pytest.mark.parametrize("optimize", [0, 2])
def test_bytecode_of_this_source_is_fresh(tmp_path: Path, mode: py_compile.PycInvalidationMode, optimize: int) -> None:
    """Compiled from exactly this source, whatever the header names."""
    path = make(tmp_path / "k.py", KERNEL)
    assert bytecode.judge(source_of(path), compiled(path, mode, optimize), optimize) == ("fresh", "")


@pytest.mark.parametrize(
    ("mode", "edited", "reason"),
    [
        (BY_TIME, KERNEL.replace("m=4", "m=8"), "names mtime"),
        (BY_TIME, KERNEL + "\n", "size"),
        (BY_HASH, KERNEL.replace("m=4", "m=8"), "and Python does not check it"),
        (BY_CHECKED_HASH, KERNEL.replace("m=4", "m=8"), "hash of another source"),
    ],
)
def test_bytecode_whose_header_names_another_source_is_stale(
    tmp_path: Path, mode: py_compile.PycInvalidationMode, edited: str, reason: str
) -> None:
    """Another mtime, size or hash than the source's, each with its values."""
    path = make(tmp_path / "k.py", KERNEL)
    os.utime(path, (1000, 1000))
    cached = compiled(path, mode)
    path.write_text(edited)
    state, why = bytecode.judge(source_of(path), cached, 0)
    assert state == "stale"
    assert reason in why


@pytest.mark.parametrize(
    "edited", ["0.0|-.0", "m=4|m=8", "n + m|n - m", "def f|def h", "1, 2|1, 3", "b'a'|b'b'", "\ndef|;\ndef"]
)
def test_other_code_under_a_fitting_header_is_stale(tmp_path: Path, edited: str) -> None:
    """An edit that keeps mtime and size shows in the code: constants, signs, operators, names."""
    path = make(tmp_path / "k.py", KERNEL)
    old, new = edited.split("|")
    before = source_of(path)
    assert old in KERNEL
    changed = KERNEL.replace(old, new)
    cached = compiled(path, BY_TIME)
    # the header is made to fit the new source, as a same-second edit of the same size would leave it
    size = len(changed).to_bytes(4, "little")
    cached = cached[:12] + size + cached[16:]
    source = before._replace(content=changed.encode())
    state, why = bytecode.judge(source, cached, 0)
    if new == ";\ndef":
        assert (state, why) == ("fresh", "")  # a semicolon is no other code
    else:
        assert (state, why) == ("stale", "its header fits this source, but its code is that of another one")


def test_bytecode_that_python_would_not_use_is_stale(tmp_path: Path) -> None:
    """Another Python's, or a cut file; no bytecode at all is neither fresh nor stale."""
    path = make(tmp_path / "k.py", KERNEL)
    cached = compiled(path, BY_TIME)
    for broken in (b"\0\0\r\n" + cached[4:], cached[:7], b""):
        assert bytecode.judge(source_of(path), broken, 0)[0] == "stale"
    assert bytecode.judge(source_of(path), cached[:40], 0)[1].startswith("it cannot be compared")
    assert bytecode.judge(source_of(path), None, 0) == (None, "")
    assert cached[:4] == importlib.util.MAGIC_NUMBER


# ---- paths and times


def test_links_are_followed_below_the_processes_own_root(tmp_path: Path) -> None:
    """An absolute link inside a container means the container's file, and ``..`` never leads out of it."""
    inside = make(tmp_path / "root" / "real" / "k.py")
    (tmp_path / "root" / "link").symlink_to("/real")
    (tmp_path / "root" / "up").symlink_to("../../../../real/./k.py")
    root = str(tmp_path / "root")
    assert probe.follow(root, "/link/k.py") == str(inside)
    assert probe.follow(root, "/up") == str(inside)
    (tmp_path / "root" / "loop").symlink_to("loop")
    with pytest.raises(OSError, match="too many"):
        probe.follow(root, "/loop")


@pytest.mark.parametrize(
    ("started_s", "resolution_s", "expected"),
    [
        (100.02, 0.01, True),
        (100.005, 0.01, False),  # within one tick of both clocks: not surely later
        (99.0, 0.01, False),
        (101.0, 1.0, True),
        (99.5, 1.0, None),  # ps tells whole seconds: it may be either
        (98.0, 1.0, False),
    ],
)
def test_only_a_start_that_is_surely_later_counts(started_s: float, resolution_s: float, expected: bool | None) -> None:
    """A file changed at 100 s: both clocks are rounded down, and what cannot be told is None."""
    one = process_table.Process(1, 0, 1, 1, "", None, started_s, resolution_s)
    assert probe.began_after(one, 100.0) is expected


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_start_times_agree_with_the_clock() -> None:
    """A process started between two looks at the clock has a start between them, to one tick."""
    before = time.time()
    with subprocess.Popen(["sleep", "60"]) as child:
        after = time.time()
        found = process_table.process(child.pid)
        child.kill()
    assert found is not None
    assert before - 0.02 <= found.started_s <= after


# ---- processes


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_zombie_is_no_process() -> None:
    """A child that ended and was not waited for does not count as alive."""
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert process_table.process(child.pid) is None
    child.wait()


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_name_with_brackets_does_not_shift_the_fields(tmp_path: Path) -> None:
    """The program's name may hold spaces and closing brackets."""
    program = tmp_path / "a) R 1 (b"
    shutil.copy(shutil.which("sleep") or "/bin/sleep", program)
    with subprocess.Popen([program, "60"]) as child:
        until(lambda: process_table.arguments_of(child.pid)[:1] == [str(program)], "it runs")
        found = process_table.process(child.pid)
        child.kill()
    assert found is not None
    assert found.parent == os.getpid()


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_signal_goes_to_the_process_that_was_looked_at_or_to_nobody() -> None:
    """A pid that was used again between the look and the signal is spared; the right one is hit."""
    with subprocess.Popen(["sleep", "60"]) as child:
        found = process_table.process(child.pid)
        assert found is not None
        stop._send(found._replace(start="1"), signal.SIGTERM)  # would be what it died of
        stop._send(found, signal.SIGKILL)
        assert child.wait(timeout=20) == -signal.SIGKILL


def test_an_overwritten_environment_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that writes its title over its environment leaves no variables, not wrong ones."""
    monkeypatch.setattr(process_table, "has_proc", lambda: True)
    monkeypatch.setattr(process_table, "_read", lambda path: b"ngine worker: idle\0\0\0\0")
    assert process_table.environment_of(1) is None
    monkeypatch.setattr(process_table, "_read", lambda path: b"A=1\0B=x=y\0")
    assert process_table.environment_of(1) == {"A": "1", "B": "x=y"}


# ---- masking


def test_secrets_are_masked_and_counts_of_tokens_are_not() -> None:
    """By the words of a name: keys, tokens and passwords go, MAX_NUM_BATCHED_TOKENS stays."""
    given = {"HF_TOKEN": "a", "MAX_NUM_BATCHED_TOKENS": "8", "KEYS_PER_PAGE": "9", "P": "http://me:pw@host/"}
    assert masking.mask_environment(given) == {**given, "HF_TOKEN": "***", "P": "http://***@host/"}
    arguments = ["run", "--api-key", "a", "--hf-token=b", "--max-tokens", "5", "HF_TOKEN=c", "--ssl-keyfile", "f"]
    assert masking.mask_arguments(arguments) == [
        "run", "--api-key", "***", "--hf-token=***", "--max-tokens", "5", "HF_TOKEN=***", "--ssl-keyfile", "f",
    ]  # fmt: skip
    assert masking.mask_lines(["token abcdef!"], {"A_SECRET": "abcdef", "B_SECRET": "tok"}) == ["token ***!"]


# ---- a host without /proc


class WithoutProc(LocalRemote):
    """This machine as if it had no /proc: no start ticks."""

    def spawn(self, *arguments: Any, **named: Any) -> Spawned:
        return replace(super().spawn(*arguments, **named), start_ticks=None)


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TinyHost]:
    """A host whose programs find no /proc and must ask ps and lsof."""
    if not (shutil.which("ps") and shutil.which("lsof")):
        pytest.skip("needs ps and lsof")
    original = host.source_of
    monkeypatch.setattr(host, "source_of", lambda name: original(name).replace('"/proc', '"/nonexistent'))
    here = TinyHost(tmp_path)
    here.remote = WithoutProc(here.remote.host)
    yield here
    here.close()


def start_ready(here: TinyHost, engine: Engine) -> Any:
    """A started engine that answers."""
    process = serve.start(here.remote, engine, deployed_digest=here.digest)
    serve.wait_ready(here.remote, engine, process)
    return process


def test_without_proc_an_engine_is_started_proved_and_stopped(bare: TinyHost) -> None:
    """With ps and lsof alone: ready, found again, proved as far as can be told, and nothing is left after the stop."""
    engine = bare.engine("--fork", "1", "--own-session", "1", loaded_path="/loaded")
    process = start_ready(bare, engine)
    assert process.start_ticks is None
    assert serve.running(bare.remote, engine) == process
    until(lambda: len(serve.processes(bare.remote, engine, process)) == 3, "all workers are found")
    proof = provenance.prove_loaded(bare.remote, engine, bare.target, process, {"fast.py": bare.digest})
    assert [problem for problem in proof.problems if "began before" not in problem] == []
    assert proof.files[0].reported_digest == proof.files[0].digest == bare.digest
    facts = provenance.environment(bare.remote, engine, process).facts
    assert facts["engine_env"] is None
    assert serve.stop(bare.remote, engine)
    assert bare.own_pids() == []


def test_without_proc_a_stranger_is_still_named(bare: TinyHost) -> None:
    """lsof tells who has the port, ps its command line."""
    pid = bare.stranger()
    with pytest.raises(PortTakenError, match=rf"pid {pid}: .*http\.server"):
        serve.start(bare.remote, bare.engine(), deployed_digest=None)


def test_without_proc_a_reused_pid_is_never_signalled(bare: TinyHost) -> None:
    """The start time that ps tells is the identity where there are no ticks."""
    engine = bare.engine()
    process = start_ready(bare, engine)
    path = bare.folder / "scratch" / "engines" / f"tiny-{bare.port}" / "process.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "start": "Thu Jan 1 00:00:00 1970"}))
    (path.parent / "members.json").unlink(missing_ok=True)
    assert not serve.stop(bare.remote, engine)
    assert is_alive(process.pid)
