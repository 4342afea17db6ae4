"""What an engine really loaded: real small engines on this machine, made to run other bytes in every way we know."""

from __future__ import annotations

import json
import os
import py_compile
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator import provenance, serve
from orchestrator.errors import HostWriteError, LoadedDigestError
from orchestrator.records import (
    Engine,
    EngineProcess,
    Environment,
    LoadedProof,
    Service,
    Target,
    TargetFile,
    digest_of,
)
from tests.support.tiny_host import SUPPORT, TinyHost, until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="the tests look into /proc"),
]


@pytest.fixture
def here(tmp_path: Path) -> Iterator[TinyHost]:
    """This machine with a tiny engine; nothing of it is left afterwards."""
    host = TinyHost(tmp_path)
    yield host
    host.close()


def start_ready(here: TinyHost, engine: Engine) -> EngineProcess:
    """A started engine that answers."""
    process = serve.start(here.remote, engine, deployed_digest=here.digest)
    serve.wait_ready(here.remote, engine, process)
    return process


def prove(here: TinyHost, engine: Engine, process: EngineProcess, target: Target | None = None) -> LoadedProof:
    """The proof against what is deployed now."""
    expected = {"fast.py": here.digest}
    return provenance.prove_loaded(here.remote, engine, target or here.target, process, expected)


def started_and_proved(here: TinyHost, engine: Engine) -> LoadedProof:
    """Starts, waits, proves."""
    return prove(here, engine, start_ready(here, engine))


# ---- a proof


def test_a_clean_start_is_proved(here: TinyHost) -> None:
    """A start after a push: no problem, the digest, every process, compiled anew, and the engine agrees."""
    digest = here.deploy("VALUE = 2\n")
    engine = here.engine("--fork", "1", "--own-session", "1", loaded_path="/loaded")
    process = start_ready(here, engine)
    until(lambda: len(here.own_pids()) == 3, "all workers run")
    proof = provenance.require(prove(here, engine, process))
    assert proof.problems == ()
    assert proof.digest == digest
    assert len(proof.pids) == 3
    (file,) = proof.files
    assert file.digest == file.reported_digest == digest
    assert (file.module, file.resolved_path) == ("kernels.fast", str(here.path))
    assert file.started_after_change is True
    assert file.bytecode == "fresh"


def test_an_edit_of_the_same_size_within_a_second_runs_and_is_proved(here: TinyHost) -> None:
    """Two pushes of equal size in one second, with rising mtimes: the second one runs, and is proved."""
    for value in (2, 3):
        here.deploy(f"VALUE = {value}\n")
        engine = here.engine()
        proof = started_and_proved(here, engine)
        assert here.get("/value")["value"] == value
        assert proof.problems == ()
        serve.stop(here.remote, engine)


def test_looking_imports_nothing(here: TinyHost) -> None:
    """Neither the target nor the packages around it run while it is looked for."""
    engine = here.engine()
    process = start_ready(here, engine)
    ran = here.folder / "ran"
    (here.site / "kernels" / "__init__.py").write_text(f"open({str(ran)!r}, 'w')\n")
    assert prove(here, engine, process).problems == ()
    assert not ran.exists()


def test_a_set_of_files_has_the_digest_of_the_set(here: TinyHost) -> None:
    """A target of a module and a file that is no module is proved as a whole."""
    table = here.path.with_name("table.json")
    table.write_text("{}")
    files = (*here.target.files, TargetFile(path=str(table), name="table.json"))
    target = Target(name="two", host="here", engine="tiny", files=files, kernel="fast")
    engine = here.engine()
    process = start_ready(here, engine)
    expected = {"fast.py": here.digest, "table.json": digest_of(b"{}")}
    proof = provenance.prove_loaded(here.remote, engine, target, process, expected)
    assert proof.problems == ()
    assert proof.digest == digest_of("".join(f"{expected[name]}  {name}\n" for name in sorted(expected)).encode())


# ---- no proof


def test_another_copy_earlier_on_the_path_is_no_proof(here: TinyHost) -> None:
    """A copy that PYTHONPATH puts first is what the engine imports, whatever lies at the target."""
    copy = here.folder / "shadow" / "kernels" / "fast.py"
    copy.parent.mkdir(parents=True)
    (copy.parent / "__init__.py").write_text("")
    copy.write_text("VALUE = 9\n")
    engine = here.engine(
        command=(sys.executable, str(SUPPORT / "tiny_engine.py"), "--port", str(here.port)),
        env={"PYTHONPATH": f"{copy.parent.parent}:{here.site}"},
    )
    proof = started_and_proved(here, engine)
    assert here.get("/value")["value"] == 9
    assert f"module kernels.fast comes from {copy}, not from {here.path}" in proof.problems
    with pytest.raises(LoadedDigestError, match=r"comes from .*shadow") as caught:
        provenance.require(proof)
    assert caught.value.evidence == proof.problems


def test_what_a_launcher_script_sets_is_seen(here: TinyHost) -> None:
    """PYTHONPATH set by a shell wrapper, unknown to the inventory, is read from the running process."""
    copy = here.folder / "shadow"
    subprocess.run(["cp", "-r", here.site, copy], check=True)
    script = f'PYTHONPATH={copy}:$PYTHONPATH; export PYTHONPATH; cd /; "$@" & wait'
    engine = here.engine(wrapper=("/bin/sh", "-c", script, "sh"))
    proof = started_and_proved(here, engine)
    assert any(f"comes from {copy}/kernels/fast.py" in problem for problem in proof.problems)


def test_a_module_that_is_not_found_is_no_proof(here: TinyHost) -> None:
    """A wrong dotted name says how far the search came."""
    for module, reason in (
        ("kernels.slow", "no module kernels.slow"),
        ("json.decoder.x", r"json\.decoder .* is not a package"),
    ):
        target = Target(
            name="t",
            host="here",
            engine="tiny",
            files=(TargetFile(path=str(here.path), name="fast.py", module=module),),
            kernel="fast",
        )
        engine = here.engine()
        process = serve.running(here.remote, engine) or start_ready(here, engine)
        (problem,) = prove(here, engine, process, target).problems
        assert f"does not find module {module}" in problem
        assert re.search(reason, problem)


def test_other_bytes_than_deployed_are_no_proof(here: TinyHost) -> None:
    """The file's digest is compared with the deployed one, and both are shown."""
    engine = here.engine()
    process = start_ready(here, engine)
    proof = provenance.prove_loaded(here.remote, engine, here.target, process, {"fast.py": "sha256:" + "0" * 64})
    assert any("deployed was 000000000000" in problem for problem in proof.problems)


def test_an_engine_that_was_not_restarted_is_no_proof(here: TinyHost) -> None:
    """A push without a restart: the file is right, and the process began before it changed."""
    engine = here.engine(loaded_path="/loaded")
    process = start_ready(here, engine)
    here.deploy("VALUE = 2\n")
    proof = prove(here, engine, process)
    assert proof.files[0].started_after_change is False
    assert any(f"pid {process.pid} began before" in problem for problem in proof.problems)
    assert any("the engine says that it loaded" in problem for problem in proof.problems)


def test_a_worker_that_was_not_restarted_is_no_proof(here: TinyHost) -> None:
    """With a new front that has the new code and an old worker, the worker is named and the front is not."""
    engine = here.engine("--supervise")
    process = start_ready(here, engine)
    old_front = here.get("/value")["pid"]
    until(lambda: len(here.own_pids()) == 3, "supervisor, worker and front run")
    worker = next(pid for pid in here.own_pids() if pid not in (process.pid, old_front))
    here.deploy("VALUE = 2\n")
    until(lambda: time.time() > here.path.stat().st_ctime + 0.05, "a start is surely later than the change")
    with pytest.raises(OSError):
        here.get("/exit")
    serve.wait_ready(here.remote, engine, process)
    new_front = here.get("/value")
    assert new_front["value"] == 2
    (problem,) = prove(here, engine, process).problems
    assert str(worker) in problem and "began before" in problem
    assert str(new_front["pid"]) not in problem


def test_planted_bytecode_is_no_proof(here: TinyHost) -> None:
    """Bytecode of the old source under a header that fits the new one is what Python runs, and the proof says so."""
    here.path.write_text("VALUE = 7\n")
    stat = here.path.stat()
    py_compile.compile(str(here.path))
    here.path.write_text("VALUE = 2\n")
    os.utime(here.path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    engine = here.engine()
    proof = started_and_proved(here, engine)
    assert here.get("/value")["value"] == 7
    assert proof.files[0].bytecode == "stale"
    assert any("its code is that of another one" in problem for problem in proof.problems)
    serve.stop(here.remote, engine)
    removed = provenance.remove_stale_bytecode(here.remote, here.target)
    assert [Path(path).parent.name for path in removed] == ["__pycache__"]
    assert started_and_proved(here, engine).problems == ()
    assert here.get("/value")["value"] == 2


@pytest.mark.integration
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for a mount namespace of its own")
@pytest.mark.parametrize("text", ["VALUE = 7\n", "VALUE = 1\n"])
def test_another_file_in_the_engines_mount_namespace_is_no_proof(here: TinyHost, text: str) -> None:
    """A file bind-mounted over the target, seen by the engine only, is found by content and by inode."""
    private = here.folder / "private.py"
    private.write_text(text)
    script = f'mount --bind {private} {here.path} && exec "$@"'
    engine = here.engine(wrapper=("unshare", "-m", "/bin/sh", "-c", script, "sh"))
    proof = started_and_proved(here, engine)
    assert here.get("/value")["value"] == int(text[-2])
    assert any("mount namespace holds another file" in problem for problem in proof.problems)
    assert proof.files[0].digest == digest_of(text.encode())


def test_another_python_than_the_inventorys_is_no_proof(here: TinyHost) -> None:
    """When the engine runs another interpreter, what the inventory's one resolves proves nothing."""
    other = here.folder / "python3"
    other.write_bytes(Path(sys.executable).resolve().read_bytes())
    other.chmod(0o755)
    env = {"PYTHONHOME": sys.base_prefix, "LD_LIBRARY_PATH": f"{sys.base_prefix}/lib"}
    engine = here.engine(
        command=(str(other), "-m", "tiny_engine", "--port", str(here.port)), python=sys.executable, env=env
    )
    proof = started_and_proved(here, engine)
    assert any(f"does not run {sys.executable}" in problem for problem in proof.problems)


def test_a_dead_engine_is_no_proof(here: TinyHost) -> None:
    """After a stop nothing runs the bytes any more; nor does the next start's engine stand for the last one's."""
    engine = here.engine()
    first = start_ready(here, engine)
    serve.stop(here.remote, engine)
    (problem,) = prove(here, engine, first).problems
    assert f"pid {first.pid} of engine tiny does not run any more (none is there now)" == problem
    second = start_ready(here, engine)
    (problem,) = prove(here, engine, first).problems
    assert f"(pid {second.pid} is there now)" in problem


def test_an_engine_that_cannot_say_what_it_loaded_is_no_proof(here: TinyHost) -> None:
    """A loaded_path that answers something else is a problem, not a silent pass."""
    engine = here.engine(loaded_path="/health")
    assert any("did not say what is loaded" in problem for problem in started_and_proved(here, engine).problems)


# ---- bytecode


def test_bytecode_of_every_interpreter_and_of_a_prefix_is_removed(here: TinyHost) -> None:
    """Only the target's own bytecode goes, wherever Python keeps it; a second call removes nothing."""
    prefix = here.folder / "prefix"
    gone = [
        here.path.parent / "__pycache__" / "fast.cpython-310.pyc",
        here.path.parent / "__pycache__" / "fast.cpython-311.opt-2.pyc",
        Path(f"{prefix}{here.path.parent}") / "fast.cpython-311.pyc",
    ]
    kept = [here.path.parent / "__pycache__" / "faster.cpython-311.pyc"]
    for path in gone + kept:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    engine = here.engine(env={"PYTHONPYCACHEPREFIX": str(prefix)})
    assert sorted(provenance.remove_stale_bytecode(here.remote, here.target, engine)) == sorted(map(str, gone))
    assert [path for path in gone + kept if path.exists()] == kept
    assert provenance.remove_stale_bytecode(here.remote, here.target, engine) == ()


@pytest.mark.integration
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a read-only file system")
def test_bytecode_that_cannot_be_removed_is_an_error(here: TinyHost) -> None:
    """A read-only folder of bytecode is told, not passed over."""
    py_compile.compile(str(here.path))
    cache = here.path.parent / "__pycache__"
    subprocess.run(["mount", "--bind", cache, cache], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", cache], check=True)
        with pytest.raises(HostWriteError, match="cached bytecode of target fast"):
            provenance.remove_stale_bytecode(here.remote, here.target)
    finally:
        subprocess.run(["umount", cache], check=True)


def test_bytecode_below_a_prefix_is_judged_there(here: TinyHost) -> None:
    """PYTHONPYCACHEPREFIX of the engine is honoured: stale bytecode there is found."""
    prefix = here.folder / "prefix"
    here.path.write_text("VALUE = 7\n")
    stat = here.path.stat()
    env = {"PYTHONPYCACHEPREFIX": str(prefix)}
    subprocess.run([sys.executable, "-m", "py_compile", here.path], env={**os.environ, **env}, check=True)
    here.path.write_text("VALUE = 2\n")
    os.utime(here.path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    proof = started_and_proved(here, here.engine(env=env))
    assert here.get("/value")["value"] == 7
    assert any(str(prefix) in problem for problem in proof.problems)


# ---- the environment


def test_the_facts_of_a_running_engine(here: TinyHost) -> None:
    """Versions, command and environment are those of the running engine; secrets are masked; unknown is None."""
    engine = here.engine("--api-key", "sk-abcdefgh", model="tiny-model")
    env = {
        "TRITON_CACHE_DIR": "/cache/of/this/variant",
        "VLLM_API_KEY": "sk-abcdefgh",
        "VLLM_MAX_NUM_BATCHED_TOKENS": "8192",
        "OMP_NUM_THREADS": "3",
        "UNRELATED": "x",
    }
    process = serve.start(here.remote, engine, deployed_digest=None, env=env)
    serve.wait_ready(here.remote, engine, process)
    facts = provenance.environment(here.remote, engine, process).facts
    recorded = json.loads(str(facts["engine_env"]))
    assert recorded["VLLM_API_KEY"] == "***"
    assert recorded["VLLM_MAX_NUM_BATCHED_TOKENS"] == "8192"
    assert recorded["OMP_NUM_THREADS"] == "3"
    assert not {"TRITON_CACHE_DIR", "UNRELATED", "HOME"} & recorded.keys()
    assert "sk-abcdefgh" not in json.dumps(dict(facts))
    assert "--api-key '***'" in str(facts["engine_command"])
    assert facts["python_version"] == ".".join(map(str, sys.version_info[:3]))
    assert facts["model"] == "tiny-model"
    assert facts["hostname"] == os.uname().nodename
    assert facts["n_cpus"] == os.cpu_count()
    assert int(facts["memory_bytes"] or 0) > 1 << 26
    assert facts["engine_version"] is None


def test_versions_come_from_metadata_and_nothing_is_imported(here: TinyHost) -> None:
    """torch, triton and the engine's own version are read from installed metadata on the engine's path."""
    for name, version in (("torch", "2.9.1"), ("triton", "3.5.1"), ("vllm", "0.32.0"), ("sglang", "0.5.23")):
        folder = here.site / f"{name}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (here.site / f"{name}.py").write_text("raise AssertionError('imported')\n")
    engine = here.engine("--api-key", "sglang", env={"PYTHONPATH": f"{here.site}:{SUPPORT}"})
    facts = provenance.environment(here.remote, engine, start_ready(here, engine)).facts
    assert (facts["torch_version"], facts["triton_version"]) == ("2.9.1", "3.5.1")
    assert facts["engine_version"] == "sglang 0.5.23"


def gpu_facts(
    here: TinyHost,
    monkeypatch: pytest.MonkeyPatch,
    capabilities: tuple[str, str] | None,
    *,
    refusal: str = "exit 2",
    user: int | None = None,
) -> dict[str, object]:
    """The facts where nvidia-smi lists two GPUs.

    Args:
        capabilities: of the two; None for a driver that does not know the column, and refuses a query with it.
        user: the pid that is on the second GPU; the engine's when not given.
    """
    engine = here.engine()
    process = start_ready(here, engine)
    one, other = (f", {text}" for text in capabilities) if capabilities else ("", "")
    tools = here.folder / "bin"
    tools.mkdir()
    smi = tools / "nvidia-smi"
    smi.write_text(
        "#!/bin/sh\ncase $1 in\n"
        f"*compute-apps*) echo '{user or process.pid}, GPU-b'; echo '1, GPU-a'; exit ;;\n"
        f"*compute_cap*) {':' if capabilities else refusal} ;;\nesac\n"
        f"echo 'GPU-a, H200, 570.1, 700.00, Enabled, 1980, 3201, 1980, 3201{one}'\n"
        f"echo 'GPU-b, H200, 570.1, 600.00, Enabled, 1500, 3201, 1980, 3201{other}'\n"
    )
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    return dict(provenance.environment(here.remote, engine, process).facts)


def test_gpu_facts_are_those_of_the_gpus_in_use(here: TinyHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two GPUs that nvidia-smi lists, only the one that a process of the engine uses counts."""
    facts = gpu_facts(here, monkeypatch, ("9.0", "12.0"))
    assert (facts["gpu_uuids"], facts["gpu_names"], facts["driver_version"]) == ("GPU-b", "H200", "570.1")
    assert facts["compute_capability"] == "12.0"
    assert facts["power_limits_w"] == "600.00"
    assert facts["clock_policy"] == "applications 1500/3201 MHz, max 1980/3201 MHz, persistence Enabled"


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [(("9.0", "9.0"), "9.0"), (("9.0", "12.0"), "9.0; 12.0"), (("[N/A]", ""), None)],
)
def test_the_compute_capability_of_several_gpus(
    here: TinyHost, monkeypatch: pytest.MonkeyPatch, capabilities: tuple[str, str], expected: str | None
) -> None:
    """Each capability is told once; one that the driver does not tell is None."""
    facts = gpu_facts(here, monkeypatch, capabilities, user=1 << 30)
    assert (facts["gpu_uuids"], facts["compute_capability"]) == ("GPU-a; GPU-b", expected)


@pytest.mark.parametrize("refusal", ["echo 'Field \"compute_cap\" is not a valid field to query.'; exit 2", "exit 0"])
def test_a_driver_that_does_not_know_the_capability_still_tells_the_rest(
    here: TinyHost, monkeypatch: pytest.MonkeyPatch, refusal: str
) -> None:
    """An older driver refuses a query with an unknown column: every other fact is there all the same."""
    facts = gpu_facts(here, monkeypatch, None, refusal=refusal)
    assert facts["compute_capability"] is None
    assert (facts["gpu_names"], facts["driver_version"], facts["power_limits_w"]) == ("H200", "570.1", "600.00")


# ---- Triton's cache


def metadata(num_stages: int, **more: object) -> str:
    """As Triton writes it beside a compiled kernel."""
    target = {"backend": "cuda", "arch": 120, "warp_size": 32}
    return json.dumps(
        {"name": "fast", "num_warps": 4, "num_stages": num_stages, "shared": 74752, "target": target, **more}
    )


def form(cache: Path, key: str, num_stages: int, *, ttir: bytes | None = b"module {}", **more: object) -> Path:
    """One compiled form in a cache, with the files that Triton leaves beside it; ``key`` also orders them in time."""
    folder = cache / key
    folder.mkdir(parents=True)
    (folder / "fast.json").write_text(metadata(num_stages, **more))
    (folder / "fast.cubin").write_bytes(b"\x7fELF" + bytes([num_stages]))
    (folder / "__grp__fast.json").write_text("{}")
    if ttir is not None:
        (folder / "fast.ttir").write_bytes(ttir)
    os.utime(folder / "fast.json", (1_700_000_000 + ord(key[0]),) * 2)
    return folder


def cache_of(here: TinyHost, *, facts: dict[str, str] | None = None, **env: str) -> provenance.TritonCache:
    """What is found in the Triton cache of an engine that was started with these variables."""
    engine = here.engine()
    process = serve.start(here.remote, engine, deployed_digest=None, env=env)
    proof = LoadedProof(here.digest, (), (process.pid,), ())
    service = Service(process, engine.base_url, proof, Environment(facts or {}), 0.1)
    try:
        return provenance.triton_cache(here.remote, engine, here.target, service)
    finally:
        serve.stop(here.remote, engine)


def test_the_triton_cache_is_read_where_the_process_has_it(here: TinyHost) -> None:
    """The variable of the running process counts, not the folder that was meant; equal forms are listed once."""
    cache = here.folder / "really here"
    for i, (key, stages) in enumerate((("A", 3), ("B", 3), ("C", 2))):
        form(cache, key, stages, hash=str(i))
        (cache / key / "other.json").write_text("{}")
    found = cache_of(here, TRITON_CACHE_DIR=str(cache))
    assert sorted((one.num_stages, one.num_warps, one.shared_bytes, one.target) for one in found.kernels) == [
        (2, 4, 74752, "cuda sm_120"),
        (3, 4, 74752, "cuda sm_120"),
    ]
    assert {one.digest for one in found.kernels} == {digest_of(b"\x7fELF\x02"), digest_of(b"\x7fELF\x03")}


def test_each_compiled_form_comes_with_its_ir_and_metadata(here: TinyHost) -> None:
    """Newest first, under its own key, with the digest that ran; its own Triton's version counts before the fact."""
    cache = here.folder / "cache"
    old, new = "module { old }", "module { \u00b5 }\r\n"
    form(cache, "A", 3, ttir=old.encode(), hash="a")
    form(cache, "B", 3, ttir=new.encode(), triton_version="3.9.0")
    found = cache_of(here, facts={"triton_version": "3.1.0"}, TRITON_CACHE_DIR=str(cache))
    assert [(one.cache_key, one.name, one.ttir, one.triton_version, one.digest) for one in found.cached] == [
        ("B", "fast", new, "3.9.0", here.digest),
        ("A", "fast", old, "3.1.0", here.digest),
    ]
    assert found.cached[1].metadata == json.loads(metadata(3, hash="a"))
    assert found.n_left_out == 0


def test_a_damaged_triton_cache_gives_what_is_whole(here: TinyHost) -> None:
    """Half-written folders and other kernels give nothing; a form without IR is still listed, without a text."""
    cache = here.folder / "cache"
    form(cache, "A", 2)
    form(cache, "B", 3, ttir=None)
    form(cache, "C", 5, ttir=b"\xff\xfe no text")
    for key, content in (("cut", '{"name": "fa'), ("list", "[]"), ("empty", ""), ("bytes", "\0")):
        form(cache, key, 7)
        (cache / key / "fast.json").write_text(content)
    (form(cache, "no json", 8) / "fast.json").unlink()
    (cache / "other" / "tmp.pid_1_x").mkdir(parents=True)
    (cache / "other" / "faster.json").write_text(metadata(9))
    (cache / "other" / "faster.ttir").write_text("module {}")
    (cache / "a file").write_text("")
    found = cache_of(here, TRITON_CACHE_DIR=str(cache))
    assert sorted(one.num_stages or 0 for one in found.kernels) == [2, 3, 5]
    assert [one.cache_key for one in found.cached] == ["A"]
    assert found.n_left_out == 0


def test_what_comes_from_a_large_triton_cache_is_bounded(here: TinyHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more forms and bytes than allowed, the newest first, equal IR counted once; every form is still listed."""
    cache = here.folder / "cache"
    shared = b"module { shared }".ljust(4000)
    for i, (key, ttir) in enumerate((("A", b"old"), ("B", shared), ("C", b"x" * 9000), ("D", shared), ("E", None))):
        form(cache, key, i + 1, ttir=ttir)

    def kept(max_forms: int, max_bytes: int) -> tuple[list[str], int, int]:
        monkeypatch.setattr(provenance, "MAX_CACHED_KERNELS", max_forms)
        monkeypatch.setattr(provenance, "MAX_CACHED_BYTES", max_bytes)
        found = cache_of(here, TRITON_CACHE_DIR=str(cache))
        return [one.cache_key for one in found.cached], found.n_left_out, len(found.kernels)

    assert kept(64, 1 << 20) == (["D", "C", "B", "A"], 0, 5)
    assert kept(2, 1 << 20) == (["D", "C"], 2, 5)
    assert kept(64, 5000) == (["D", "B", "A"], 1, 5)
    assert kept(64, 0) == ([], 4, 5)


def test_without_a_triton_cache_there_are_no_kernels(here: TinyHost) -> None:
    """An engine in which Triton never ran has none, and that is no error."""
    assert cache_of(here, TRITON_CACHE_DIR=str(here.folder / "none")) == provenance.TritonCache()


@pytest.mark.kernel
def test_what_triton_itself_writes_is_understood(here: TinyHost) -> None:
    """Forms compiled by the installed Triton, without a GPU, are read back with their sizes, and compile again."""
    triton = pytest.importorskip("triton")
    source = here.folder / "compile_two.py"
    source.write_text(
        "import sys, triton, triton.language as tl\n"
        "from triton.backends.compiler import GPUTarget\n"
        "from triton.compiler import ASTSource\n"
        "@triton.jit\n"
        "def fast(x, n: tl.constexpr):\n"
        "    i = tl.arange(0, n)\n"
        "    tl.store(x + i, tl.load(x + i) * 2)\n"
        "@triton.jit\n"
        "def faster(x):\n"
        "    tl.store(x, 1.0)\n"
        "def made(what, signature, constants, num_warps):\n"
        "    triton.compile(ASTSource(fn=what, signature=signature, constexprs=constants),\n"
        "                   target=GPUTarget('cuda', 90, 32), options={'num_warps': num_warps, 'num_stages': 5})\n"
        "if sys.argv[1:]:\n"
        "    print(triton.compile(sys.argv[1], target=GPUTarget('cuda', 120, 32)).metadata.target.arch)\n"
        "else:\n"
        "    for num_warps in (2, 4):\n"
        "        made(fast, {'x': '*fp32', 'n': 'constexpr'}, {(1,): 128}, num_warps)\n"
        "    made(faster, {'x': '*fp32'}, {}, 4)\n"
    )
    cache = here.folder / "scratch" / "triton" / "fast" / here.digest.removeprefix("sha256:")
    env = {**os.environ, "TRITON_CACHE_DIR": str(cache)}
    subprocess.run([sys.executable, source], env=env, check=True, capture_output=True)
    found = cache_of(here)
    assert [(one.name, one.num_stages, one.target) for one in found.kernels] == [("fast", 5, "cuda sm_90")] * 2
    assert {one.num_warps for one in found.kernels} == {one.metadata["num_warps"] for one in found.cached} == {2, 4}
    assert None not in {value for one in found.kernels for value in (one.shared_bytes, one.digest)}
    assert {one.triton_version for one in found.cached} == {triton.__version__}
    assert {one.cache_key for one in found.cached} < {folder.name for folder in cache.iterdir()}
    again = here.folder / "again.ttir"
    again.write_text(found.cached[0].ttir)
    env["TRITON_CACHE_DIR"] = str(here.folder / "another cache")
    done = subprocess.run([sys.executable, source, again], env=env, check=True, capture_output=True, text=True)
    assert done.stdout == "120\n"


def test_each_variant_has_its_own_triton_cache(here: TinyHost) -> None:
    """Two digests have two folders, below the scratch folder, and the same digest the same one."""
    one, other = (provenance.triton_cache_dir("/scratch", here.target, digest_of(text)) for text in (b"1", b"2"))
    assert one != other
    assert one.startswith("/scratch/triton/fast/")
    assert provenance.triton_cache_dir("/scratch", here.target, digest_of(b"1")) == one
