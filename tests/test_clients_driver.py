"""The driver on this machine: real processes, a fake client, a server with a known truth."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator import bench
from orchestrator.clients import driven, load_client
from orchestrator.connection.local import LocalRemote
from orchestrator.records import Engine, Host, LoadProgress, LoadResult, Workload
from tests.support import fake_client
from tests.support.stub_engine import RunningStub, running_stub
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow  # real loads, and deadlines that pass

FAKE = (sys.executable, str(Path(fake_client.__file__)))
WORKLOAD = Workload(
    name="small",
    client="vllm",
    client_command=FAKE,
    tokenizer="/models/tiny",
    input_tokens=8,
    output_tokens=4,
    prompts_per_concurrency=3,
    warmup_per_concurrency=1,
    request_timeout_s=10,
    load_timeout_s=60,
)


def load(tmp_path: Path, stub: RunningStub, workload: Workload = WORKLOAD, **named: Any) -> LoadResult:
    """One load at concurrency 2 through a real shell."""
    remote = LocalRemote(Host(name="here", transport="local", scratch_dir=str(tmp_path / "scratch")))
    engine = Engine(
        name="stub",
        command=("stub",),
        base_url=stub.base_url,
        python=sys.executable,
        cache_flush_path=named.pop("cache_flush_path", "/flush_cache"),
    )
    return bench.run_load(remote, engine, workload, 2, run_dir=str(tmp_path / "run"), poll_s=0.05, **named)


def in_mode(mode: str, **fields: Any) -> Workload:
    """The workload with a client that behaves so."""
    return replace(WORKLOAD, client_env={"FAKE_MODE": mode}, **fields)


def result_file(tmp_path: Path) -> dict[str, Any]:
    """What the driver wrote."""
    content: dict[str, Any] = json.loads((tmp_path / "run" / "result.json").read_bytes())
    return content


def is_alive(pid: int) -> bool:
    """Whether a process still runs (one that only waits to be reaped does not)."""
    listed = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return bool(listed.stdout.strip()) and not listed.stdout.startswith("Z")


def test_a_whole_load(tmp_path: Path) -> None:
    """Version, warm-up, flush and load in this order make a good load with the client's own version and arguments."""
    seen: list[LoadProgress] = []
    with running_stub("--ttft-ms", 20, "--itl-ms", 5) as stub:
        result = load(tmp_path, stub, replace(WORKLOAD, cache_policy="flush"), on_progress=seen.append)
        served = stub.log()
    assert (result.status, result.reasons) == ("ok", ())
    assert (result.client, result.client_version) == ("vllm", fake_client.VERSION)
    assert result.argv[:4] == (*FAKE, "bench", "serve") and "--ignore-eos" in result.argv
    assert result.metrics["n_ok"] == 6 and result.metrics["n_output_tokens"] == 24
    assert (result.metrics["ttft_ms_p50"] or 0) >= 20 and result.metrics["itl_ms_p50"] is None
    assert result.raw == (tmp_path / "run" / "result.json").read_bytes()
    assert {progress.phase for progress in seen} >= {"load"}
    assert len(served) == 8 and max(one["in_flight"] for one in served) == 2


def test_the_warm_up_has_other_prompts_and_the_flush_is_behind_it(tmp_path: Path) -> None:
    """No measured prompt was sent before, and the cache is flushed once, after the warm-up and before the load."""
    with running_stub("--ttft-ms", 1) as stub:
        load(tmp_path, stub, replace(WORKLOAD, cache_policy="flush"))
        prompts = [one["prompt"] for one in stub.log()]
    steps = result_file(tmp_path)["steps"]
    assert [one["name"] for one in steps] == ["warm-up", "load"]
    assert [json.loads(one["files"]["result"])["n_flushes_before"] for one in steps] == [0, 1]
    assert len(set(prompts)) == 8


def test_the_result_file_holds_everything(tmp_path: Path) -> None:
    """Each step is there with its arguments, exit code, times, last lines and the client's file byte for byte."""
    with running_stub("--ttft-ms", 1) as stub:
        load(tmp_path, stub)
    result = result_file(tmp_path)
    one = result["steps"][1]
    assert one["files"]["result"] == (tmp_path / "run" / "load" / "result.json").read_text()
    assert one["argv"][:4] == [*FAKE, "bench", "serve"]
    assert (one["how"], one["exit_code"], one["last_lines"]) == ("exited", 0, ["the fake client began: load"])
    assert result["started_at"] <= one["started_at"] < one["ended_at"] <= result["ended_at"]
    assert (result["client_version"], result["stopped_by"]) == (fake_client.VERSION, None)


@pytest.mark.parametrize(
    ("mode", "reasons"),
    [
        ("load=exit", ("the load was stopped: load: exit code 3", "its last lines: the fake client began: load")),
        ("load=silent", ("vllm wrote no result.json (exit code 0)", "its last lines: the fake client began: load")),
        (
            "warm-up=exit",
            ("the load was stopped: warm-up: exit code 3", "its last lines: the fake client began: warm-up"),
        ),
    ],
)
def test_a_client_that_fails(tmp_path: Path, mode: str, reasons: tuple[str, ...]) -> None:
    """A client that fails makes a failed load with its last words; after a failed warm-up nothing is measured."""
    with running_stub("--ttft-ms", 1) as stub:
        result = load(tmp_path, stub, in_mode(mode))
        assert len(stub.log()) == (2 if mode == "warm-up=exit" else 8)
    assert (result.status, result.reasons, dict(result.metrics)) == ("failed", reasons, {})


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("3=http:500", "1 of 6 requests failed: HTTP Error 500 ×1 (Status)"),
        ("3=error:0", "1 of 6 requests failed: no output ×1"),
        ("3=short:2", "1 of 6 requests: output tokens are not the 4 asked for"),
    ],
)
def test_what_the_client_calls_good(tmp_path: Path, fault: str, reason: str) -> None:
    """A bad answer of the engine makes the load invalid, though the client exits with 0."""
    with running_stub("--ttft-ms", 1, "--skip", 2, faults=[fault]) as stub:
        result = load(tmp_path, stub)
    assert (result.status, dict(result.metrics)) == ("invalid", {})
    assert reason in result.reasons


def test_a_flush_that_is_refused(tmp_path: Path) -> None:
    """A load on a cache that could not be flushed is none."""
    with running_stub("--ttft-ms", 1) as stub:
        workload = replace(WORKLOAD, cache_policy="flush")
        result = load(tmp_path, stub, workload, cache_flush_path="/nowhere")
    assert result.status == "failed"
    assert result.reasons[0] == f"the load was stopped: cache flush: {stub.base_url}/nowhere answered HTTP 404"


def test_at_the_deadline_everything_of_the_client_is_stopped(tmp_path: Path) -> None:
    """A client that hangs is stopped with its workers, also one that ignores TERM, and the load is failed."""
    with running_stub("--ttft-ms", 1) as stub:
        result = load(tmp_path, stub, in_mode("load=hang", request_timeout_s=0.5))
    assert result.status == "failed"
    assert result.reasons[0] == "the load was stopped: load: no end within 2 s"
    assert not is_alive(int((tmp_path / "run" / "load" / "child").read_text()))


def test_a_request_that_stalls_costs_its_own_limit(tmp_path: Path) -> None:
    """A client that waits six hours for an answer is given the workload's limit: one failure, all others measured."""
    with running_stub("--ttft-ms", 1, faults=["3=stall:2"]) as stub:
        result = load(tmp_path, stub, in_mode("load=aiohttp", request_timeout_s=2))
    assert (result.status, result.reasons) == ("invalid", ("1 of 6 requests failed: TimeoutError ×1",))
    warm_up, measured = result_file(tmp_path)["steps"]
    assert measured["request_limit_by"].startswith("aiohttp 3.") and measured["exit_code"] == 0
    assert warm_up["request_limit_by"] is not None


def test_a_client_with_a_limit_of_its_own_is_left_alone(tmp_path: Path) -> None:
    """Nothing is put into the environment of a client that takes the workload's limit on its command line."""
    engine = Engine(name="e", command=("e",), base_url="http://127.0.0.1:1", python=sys.executable, model="m")
    run = load_client("aiperf").prepare(replace(WORKLOAD, client="aiperf"), engine, 2, str(tmp_path))
    assert [Path(path).name for path in run.files] == ["driver.py", "spec.json"]
    assert json.loads(run.files[f"{tmp_path}/spec.json"])["limit_path"] is None


def test_a_worker_that_a_client_leaves_behind_is_stopped(tmp_path: Path) -> None:
    """What the warm-up started does not disturb the load."""
    with running_stub("--ttft-ms", 1) as stub:
        result = load(tmp_path, stub, in_mode("warm-up=worker"))
    assert result.status == "ok"
    assert not is_alive(int((tmp_path / "run" / "warm-up" / "child").read_text()))


def test_a_stopped_load_leaves_nothing_and_says_so(tmp_path: Path) -> None:
    """Ctrl-C ends driver, client and workers, and the driver still tells what it was doing."""
    child = tmp_path / "run" / "load" / "child"

    def interrupt() -> None:
        if child.exists() and child.read_text():
            raise KeyboardInterrupt

    with running_stub("--ttft-ms", 1) as stub, pytest.raises(KeyboardInterrupt):
        load(tmp_path, stub, in_mode("load=hang"), check=interrupt)
    wait_until(lambda: not is_alive(int(child.read_text())))
    assert result_file(tmp_path)["stopped_by"] == "SIGTERM"


def test_a_client_that_is_not_there(tmp_path: Path) -> None:
    """The reason names what was tried and why it did not do."""
    with running_stub() as stub:
        result = load(tmp_path, stub, replace(WORKLOAD, client_command=("/nowhere/vllm",)))
    assert (result.status, result.client_version) == ("failed", driven.NOT_TOLD)
    assert result.reasons[0].startswith(
        "the load was stopped: no client: /nowhere/vllm bench serve: cannot be started: No"
    )


def driver(tmp_path: Path, **fields: Any) -> subprocess.Popen[bytes]:
    """The driver by itself, leading a process group as it does on a host."""
    spec = {
        "client": "fake",
        "recipe": {},
        "env": {},
        "direct": "127.0.0.1",
        "candidates": [{"argv": FAKE, "version_argv": [*FAKE, "--version"]}],
        "steps": [],
        "flush_url": None,
        "request_timeout_s": 10,
        "limit_path": None,
        "load_timeout_s": 60,
        "folder": str(tmp_path),
        "result_path": str(tmp_path / "result.json"),
        "progress_path": str(tmp_path / "progress.json"),
        **fields,
    }
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    argv = [sys.executable, driven.driver.__file__, str(tmp_path / "spec.json")]
    return subprocess.Popen(argv, start_new_session=True, stderr=subprocess.PIPE)


def test_a_form_that_does_not_exist_falls_back_to_the_next(tmp_path: Path) -> None:
    """The first form that tells a version is used: a missing program and a missing module are passed over."""
    forms = [
        {"argv": ["/nowhere/client"], "version_argv": ["/nowhere/client", "--version"]},
        {"argv": [sys.executable, "-m", "no.such"], "version_argv": [sys.executable, "-c", "import no_such_module"]},
        {"argv": [sys.executable], "version_argv": [sys.executable, "-c", "print('0.5.9')"]},
    ]
    touched = tmp_path / "load" / "touched"
    args = ["-c", f"open({str(touched)!r}, 'w').write('yes')"]
    one = {"name": "load", "args": args, "files": {"result": str(touched)}, "deadline_s": 30}
    with driver(tmp_path, candidates=forms, steps=[one]) as process:
        assert process.wait() == 0
    result = json.loads((tmp_path / "result.json").read_bytes())
    assert result["client_version"] == "0.5.9"
    assert (result["steps"][0]["argv"], result["steps"][0]["files"]) == ([sys.executable, *args], {"result": "yes"})


def test_sglangs_old_module_is_found_where_the_new_one_is_missing(tmp_path: Path) -> None:
    """The version is asked of the interpreter in a way that also tells whether the module is there."""
    site = tmp_path / "site"
    (site / "sglang").mkdir(parents=True)
    (site / "sglang" / "__init__.py").touch()
    (site / "sglang" / "bench_serving.py").touch()
    (site / "sglang-0.5.9.dist-info").mkdir()
    (site / "sglang-0.5.9.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.9\n")
    engine = Engine(name="e", command=("sglang",), python=sys.executable, base_url="http://127.0.0.1:1")
    workload = Workload(name="w", client="sglang", tokenizer="/t", warmup_per_concurrency=0)
    run = load_client("sglang").prepare(workload, engine, 1, str(tmp_path))
    forms = json.loads(run.files[f"{tmp_path}/spec.json"])["candidates"]
    with driver(tmp_path, candidates=forms, env={"PYTHONPATH": str(site)}) as process:
        assert process.wait() == 0
    assert json.loads((tmp_path / "result.json").read_bytes())["client_version"] == "0.5.9"


def test_a_driver_that_is_told_to_end_writes_its_result(tmp_path: Path) -> None:
    """TERM ends the step under way, and the result says so."""
    waits = ["-c", f"open({str(tmp_path / 'up')!r}, 'w'); import signal; signal.pause()"]
    forms = [{"argv": [sys.executable], "version_argv": [sys.executable, "--version"]}]
    one = {"name": "load", "args": waits, "files": {}, "deadline_s": 30}
    with driver(tmp_path, candidates=forms, steps=[one]) as process:
        wait_until((tmp_path / "up").exists)
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait() == 1
    result = json.loads((tmp_path / "result.json").read_bytes())
    assert (result["stopped_by"], result["steps"][0]["how"]) == ("SIGTERM", "stopped")


def test_the_engine_is_never_asked_through_a_proxy(tmp_path: Path) -> None:
    """Clients that honour a host's proxy variables go straight to the engine, and keep what else is excepted."""
    told = tmp_path / "load" / "told"
    args = ["-c", f"import os; open({str(told)!r}, 'w').write(os.environ['no_proxy'] + ' ' + os.environ['NO_PROXY'])"]
    forms = [{"argv": [sys.executable], "version_argv": [sys.executable, "--version"]}]
    one = {"name": "load", "args": args, "files": {"told": str(told)}, "deadline_s": 30}
    env = {"no_proxy": "a.example", "NO_PROXY": ""}
    with driver(tmp_path, candidates=forms, steps=[one], env=env) as process:
        assert process.wait() == 0
    assert told.read_text() == "a.example,127.0.0.1 127.0.0.1"


@pytest.mark.parametrize("raw", [b"", b"[]", b"{}"])
def test_a_wrong_spec_is_told(tmp_path: Path, raw: bytes) -> None:
    """A spec that cannot be read is exit code 2 and one line."""
    (tmp_path / "spec.json").write_bytes(raw)
    argv = [sys.executable, driven.driver.__file__, str(tmp_path / "spec.json")]
    done = subprocess.run(argv, capture_output=True, start_new_session=True)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
