"""The load clients themselves, by orch's adapters, on servers whose truth is known: good ones and bad ones.

Needs the clients: ``tests/engines/install.sh`` and ``install_clients.sh``; what is not installed is skipped by name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestrator.records import LoadResult
from tests.engines.clients import CLIENTS, Place
from tests.engines.engine_project import EngineProject
from tests.engines.real_engines import RealEngine
from tests.support.cli_project import cli_project
from tests.support.ssh_project import SessionHost
from tests.support.stub_engine import running_stub

pytestmark = [pytest.mark.engines, pytest.mark.slow, pytest.mark.timeout(1200)]

PACE = ("--ttft-ms", 20, "--itl-ms", 4)


def place_of(name: str, engines_folder: Path, models_folder: Path, folder: Path) -> Place:
    """A client in a folder of its own; skips where it is not installed."""
    client = CLIENTS[name]
    if not client.is_installed(engines_folder):
        pytest.skip(f"{name} is not installed in {engines_folder}")
    return Place(client, engines_folder, models_folder / "llama-tiny", folder)


@pytest.fixture(params=CLIENTS)
def place(request: pytest.FixtureRequest, engines_folder: Path, models_folder: Path, tmp_path: Path) -> Place:
    """Each client, and SGLang's in each of its forms."""
    return place_of(request.param, engines_folder, models_folder, tmp_path)


@pytest.fixture(params=[name for name in CLIENTS if name != "sglang"])
def judged(request: pytest.FixtureRequest, engines_folder: Path, models_folder: Path, tmp_path: Path) -> Place:
    """Each client; of SGLang's the old one, asking as it asks any engine, and the new one in SGLang's own protocol."""
    return place_of(request.param, engines_folder, models_folder, tmp_path)


def told(load: LoadResult, status: str, pattern: str) -> None:
    """Asserts that a load is no measurement, and that a reason says why."""
    print(f"\n  {load.client} {load.client_version} is {load.status}: " + "; ".join(load.reasons)[:400])
    assert load.status in status.split() and load.metrics == {}
    assert re.search(pattern, " | ".join(load.reasons)), load.reasons


def test_a_good_load(place: Place) -> None:
    """The load is as the recipe says, seen from the server; a second one has the same prompts; numbers are possible.

    As many requests as asked for and none besides, of the length asked for, never more at once than allowed, no prompt
    sent twice. What a client measures cannot be less than the server's own pauses.
    """
    with running_stub(*PACE) as stub:
        load = place.load(stub.base_url, place.workload(warmup_per_concurrency=1), 4, "first")
        served = stub.log()
    with running_stub(*PACE) as stub:
        again = place.load(stub.base_url, place.workload(), 4, "second")
        served_again = stub.log()
    assert (load.status, load.reasons, again.status, again.reasons) == ("ok", (), "ok", ())
    assert re.match(r"\d+(\.\d+)*", load.client_version) and load.client_version == again.client_version
    assert len(served) == 12 and {one["n_output"] for one in served} == {8}
    assert len({one["prompt"] for one in served}) == 12
    assert max(one["in_flight"] for one in served) == 4
    assert {one["prompt"] for one in served_again} == {one["prompt"] for one in served[4:]}
    metrics = load.metrics
    assert (metrics["n_ok"], metrics["n_failed"], metrics["n_output_tokens"]) == (8, 0, 64)
    assert (metrics["ttft_ms_p50"] or 0) >= 20 and (metrics["e2el_ms_p50"] or 0) >= 20 + 7 * 4
    assert 0 < (metrics["output_tokens_per_s"] or 0) <= 4 * 8 / 0.048


def faults(mode: str, indices: Sequence[int]) -> list[str]:
    """Of these requests, by order of arrival."""
    return [f"{i}={mode}" for i in indices]


def test_23_of_48_requests_fail(judged: Place) -> None:
    """A server that answers 23 of 48 requests with an error makes no good load, whatever the client's exit code."""
    with running_stub(*PACE, faults=faults("http:500", range(1, 47, 2))) as stub:
        load = judged.load(stub.base_url, judged.workload(prompts_per_concurrency=6), 8)
    told(load, "invalid", r"\d+ of 48 (requests|completed)|of 48 asked")


def test_an_error_inside_a_200_stream(judged: Place) -> None:
    """One answer that turns into an error after some tokens is not counted as a good one."""
    with running_stub(*PACE, faults=["5=error:3"]) as stub:
        load = judged.load(stub.base_url, judged.workload(), 4)
    told(load, "invalid", r"\d of 8 requests|7 completed|of 8 asked")


def test_an_answer_that_ends_early_without_an_error(judged: Place) -> None:
    """An answer of 2 tokens where 8 were asked for is not a good one.

    SGLang's client sees that in SGLang's own protocol only: elsewhere it counts what it asked for, and docs/clients.md
    says so.
    """
    with running_stub(*PACE, faults=["5=short:2"]) as stub:
        load = judged.load(stub.base_url, judged.workload(), 4)
    if judged.client is CLIENTS["sglang-0.5.9"]:
        assert (load.status, load.metrics["n_output_tokens"]) == ("ok", 64)
    else:
        told(load, "invalid", r"output tokens|wrong output length")


def test_a_server_that_stalls(judged: Place) -> None:
    """A request that never ends costs its own limit, not the night, and the client's processes are gone after it.

    SGLang's and vLLM's client, which would wait six hours, count it as failed and measure the others.
    """
    with running_stub(*PACE, faults=["1=stall:3"]) as stub:
        patience_s = 15 if judged.client.words else 5
        load = judged.load(stub.base_url, judged.workload(prompts_per_concurrency=5, request_timeout_s=patience_s), 2)
        served = stub.log()
    if judged.client.name in ("sglang", "vllm"):
        told(load, "invalid", r"^1 of 10 requests failed|^9 of 10 completed")
        assert len(served) == 10
    else:
        told(load, "invalid failed", r"1 of 10 requests|no end within|1 completed")


def test_a_server_that_is_killed_in_mid_run(judged: Place) -> None:
    """A server that dies under the load leaves no number behind."""
    with running_stub(*PACE, faults=["9=die:4"]) as stub:
        load = judged.load(stub.base_url, judged.workload(prompts_per_concurrency=4), 4)
    told(load, "invalid failed", r"of 16 (requests|completed|asked)|exit code|never sent|stopped")


@pytest.mark.parametrize(("how", "status", "pattern"), [("cut", "failed", "cut"), ("infinity", "invalid", "inf")])
def test_a_damaged_result(judged: Place, how: str, status: str, pattern: str) -> None:
    """A result file of a good run that was cut, or holds an infinity, is none."""
    for_workload: dict[str, Any]
    for_workload, for_engine = judged.damaging(how)
    with running_stub(*PACE) as stub:
        load = judged.load(stub.base_url, judged.workload(**for_workload), 4, **for_engine)
    told(load, status, rf"(?i){pattern}")


def workloads(engines_folder: Path, models_folder: Path) -> dict[str, Any]:
    """An entry for each client of other people that is installed, of the recipe ``short``."""
    names = [name for name in ("sglang", "vllm", "guidellm", "aiperf") if CLIENTS[name].is_installed(engines_folder)]
    return {
        f"by-{name}": {
            "recipe": "short",
            "client": name,
            "client_command": list(CLIENTS[name].command(engines_folder)),
            "client_env": dict(CLIENTS[name].env),
            "tokenizer": str(models_folder / "llama-tiny"),
        }
        for name in names
    }


def test_all_of_them_side_by_side(engines_folder: Path, models_folder: Path, tmp_path: Path) -> None:
    """``orch bench --client all``: one start, every client that is installed, each on record with its own version."""
    entries = workloads(engines_folder, models_folder)
    installed = [one["client"] for one in entries.values()]
    with cli_project(tmp_path) as project:
        text = project.inventory.read_text().replace("    stop_grace_s: 5\n", "    stop_grace_s: 5\n    model: stub\n")
        project.inventory.write_text(text + "".join(f"  {key}: {json.dumps(one)}\n" for key, one in entries.items()))
        ran = project.pulled().orch("bench", "--workload", "short", "--concurrency", "1,4", "--client", "all")
        loads = project.query("select client, client_version, loads.status from loads")
    print("\n" + ran.out)
    assert ran.code == 0, ran.out + ran.err
    assert {one["client"] for one in loads} == {"loadgen", *installed} and len(loads) == 2 * (1 + len(installed))
    assert {one["status"] for one in loads} == {"ok"}
    assert len({one["client_version"] for one in loads}) == 1 + len(installed)


class ClientsProject(EngineProject):
    """A project over ssh whose engine is a real one; what is tuned is a file beside it, which nobody touches."""

    def __init__(self, folder: Path, host: SessionHost, engine: RealEngine) -> None:
        super().__init__(folder, host, engine)
        self.live = self.site / "beside.py"
        self.live.write_text("SIZE = 1\n")
        self.pristine = self.digest

    def write_with(self, entries: dict[str, Any]) -> None:
        """Writes an inventory with these workloads."""
        self.write(input_tokens=32, output_tokens=16, prompts_per_concurrency=4, warmup_per_concurrency=1)
        inventory = json.loads(self.inventory.read_text())
        inventory["targets"] = {"step": {"files": [str(self.live)]}}
        inventory["workloads"] |= entries
        self.inventory.write_text(json.dumps(inventory, indent=1))


@pytest.mark.integration
def test_all_of_them_on_a_real_engine_over_ssh(
    real_engine: RealEngine, session_host: SessionHost, engines_folder: Path, models_folder: Path, tmp_path: Path
) -> None:
    """Every client makes good loads of a real vLLM and a real SGLang on one start, its cache flushed for each of them.

    The engine is given no ``model``: the clients are told the name that it tells itself.
    """
    entries = workloads(engines_folder, models_folder)
    project = ClientsProject(tmp_path, session_host, real_engine)
    try:
        project.write_with(entries)
        project.done("pull")
        ran = project.orch("bench", "--workload", "short", "--concurrency", "4", "--client", "all")
        loads = project.query("select client, loads.status from loads order by id")
    finally:
        project.close()
    print("\n" + ran.out)
    assert ran.code == 0, ran.out + ran.err
    assert {one["client"] for one in loads} == {"loadgen", *(one["client"] for one in entries.values())}
    assert len(loads) == 1 + len(entries) and {one["status"] for one in loads} == {"ok"}
