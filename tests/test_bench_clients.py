"""``orch bench --client``: several load clients on one engine start, each on record by itself, never compared."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.experiment.trial import in_turn
from orchestrator.store import Store
from tests.support import fake_client
from tests.support.cli_project import CliProject, Ran, cli_project
from tests.test_cli_output import disagreements, documented

pytestmark = pytest.mark.slow  # real engine starts and loads

BY_OTHERS = """\
  by-vllm:
    recipe: short
    client: vllm
    client_command: [{python}, {fake}]
    tokenizer: tiny
  by-aiperf:
    recipe: short
    client: aiperf
    client_command: /nowhere/aiperf profile
    tokenizer: tiny
  long:
    input_tokens: 16
"""


@pytest.fixture
def project(tmp_path: Path) -> Iterator[CliProject]:
    """A pulled project whose recipe ``short`` is loadgen's, vLLM's (a fake one that makes real loads) and AIPerf's."""
    with cli_project(tmp_path) as project:
        fake = json.dumps(str(Path(fake_client.__file__)))
        text = BY_OTHERS.format(python=json.dumps(sys.executable), fake=fake)
        project.inventory.write_text(project.inventory.read_text() + text)
        yield project.pulled()


def bench(project: CliProject, *words: str) -> Ran:
    """Loads at two concurrencies."""
    return project.orch("bench", "--concurrency", "1,2", *words)


def test_all_clients_load_one_start(project: CliProject) -> None:
    """Each client has a record of its own with the same engine process; at each concurrency another goes first.

    What cannot be used is named with its reason, and costs no exit code; the rest is measured. How long a start takes
    with one of these workloads cannot be seen from this one.
    """
    ran = bench(project, "--workload", "short", "--client", "all", "--json")
    assert ran.code == 0, ran.err
    document = ran.document
    assert disagreements(document, documented()["orch bench --client"]) == []
    own, theirs = document["clients"]
    assert (own["client"], own["workload"], theirs["client"], theirs["workload"]) == (
        "loadgen",
        "short",
        "vllm",
        "by-vllm",
    )
    assert theirs["client_version"] == fake_client.VERSION
    assert [load["status"] for one in (own, theirs) for load in one["loads"]] == ["ok"] * 4
    assert [load["client"] for load in theirs["loads"]] == ["vllm", "vllm"]
    reasons = {one["client"]: (one["workload"], one["reason"]) for one in document["skipped"]}
    assert set(reasons) == {"aiperf", "sglang", "guidellm"}
    assert reasons["sglang"] == (None, "no workload of this recipe names it")
    assert reasons["aiperf"][0] == "by-aiperf" and "/nowhere" in reasons["aiperf"][1]
    trials = project.query("select id, pid, start_ticks, workload_name, status from trials order by id")
    assert [(one["workload_name"], one["status"]) for one in trials] == [("short", "ok"), ("by-vllm", "ok")]
    assert len({(one["pid"], one["start_ticks"]) for one in trials}) == 1
    loads = project.query("select trial_id, concurrency_cap, client, client_version from loads order by id")
    assert [(one["concurrency_cap"], one["client"]) for one in loads] == [
        (1, "loadgen"),
        (1, "vllm"),
        (2, "vllm"),
        (2, "loadgen"),
    ]
    assert loads[1]["client_version"] == fake_client.VERSION
    with Store.open_read_only(project.db) as store:
        assert store.durations("flash_mla", "short") == (None, {}, 0)


def test_what_is_printed(project: CliProject) -> None:
    """Clients of one concurrency stand together, with what each means by a number, and what was skipped."""
    shown = bench(project, "--workload", "by-vllm", "--client", "all").out
    lines = [line.split() for line in shown.splitlines()]
    rows = [line for line in lines if line[:1] in (["short"], ["by-vllm"])]
    assert [(row[0], row[1], row[3]) for row in rows] == [
        ("short", "loadgen", "1"),
        ("by-vllm", "vllm", "1"),
        ("short", "loadgen", "2"),
        ("by-vllm", "vllm", "2"),
    ]
    assert "skipped: aiperf of by-aiperf: " in shown and "skipped: guidellm: no workload" in shown
    assert "ttft_ms: request sent to first chunk with a text" in shown
    assert "  vllm: to the first chunk, also without a text" in shown and "  guidellm: " not in shown
    assert "never clients" in shown and "loaded: " in shown


def test_named_clients_alone(project: CliProject) -> None:
    """Only those that are named make a load, in the inventory's order."""
    document = bench(project, "--workload", "short", "--client", "vllm", "--json").document
    assert [one["client"] for one in document["clients"]] == ["vllm"] and document["skipped"] == []


@pytest.mark.parametrize(
    ("words", "code", "reasons"),
    [
        (["--workload", "short", "--client", "vllm,aiperf"], 1, ["aiperf of workload by-aiperf cannot", "/nowhere"]),
        (["--workload", "short", "--client", "sglang"], 2, ["no workload of this recipe is made by sglang", "recipe:"]),
        (["--workload", "short", "--client", "wrk"], 2, ["no load client 'wrk'", "loadgen"]),
        (["--client", "all"], 2, ["several workloads", "by-vllm"]),
    ],
)
def test_what_was_asked_for_and_cannot_be_is_refused_before_the_start(
    project: CliProject, words: list[str], code: int, reasons: list[str]
) -> None:
    """A client that was named and is not there ends the command with nothing started and nothing on record."""
    text = project.inventory.read_text()
    project.inventory.write_text(text.replace("    stop_grace_s: 5\n", "    stop_grace_s: 5\n    model: stub\n"))
    ran = bench(project, *words)
    assert ran.code == code and all(reason in ran.error for reason in reasons), ran.err
    assert project.query("select * from trials") == []


def test_a_bad_load_of_one_client_does_not_hide(project: CliProject) -> None:
    """The other client's loads are good and stored; the exit code and the row tell of the bad one."""
    text = project.inventory.read_text()
    env = "    tokenizer: tiny\n    client_env: {FAKE_MODE: load=silent}\n"
    project.inventory.write_text(text.replace("    tokenizer: tiny\n", env, 1))
    ran = bench(project, "--workload", "short", "--client", "all", "--json")
    own, theirs = ran.document["clients"]
    assert ran.code == 1
    assert {load["status"] for load in own["loads"]} == {"ok"}
    assert {load["status"] for load in theirs["loads"]} == {"failed"}
    assert "vllm wrote no result.json" in theirs["loads"][0]["reasons"][0]


def test_arms_of_two_clients_are_not_compared(project: CliProject) -> None:
    """A baseline by one client and a variant by another are refused, naming the client; by one client they are not."""
    assert bench(project, "--workload", "short", "--client", "loadgen").code == 0
    project.with_variant("V2").done("push", "--variant", "V2")
    assert bench(project, "--workload", "short", "--client", "all").code == 0
    unlike = project.orch("compare", "V2", "--workload", "by-vllm")
    assert unlike.code != 0 and "no good measurement of baseline" in unlike.error
    text = project.inventory.read_text()
    renamed = text.replace("  by-vllm:", "  by-loadgen-no-more:").replace("  short:", "  by-vllm:", 1)
    project.inventory.write_text(renamed.replace("recipe: short", "recipe: by-vllm"))
    project.done("revert")
    assert bench(project, "--workload", "by-vllm").code == 0
    refused = project.orch("compare", "V2", "--workload", "by-vllm")
    assert refused.code != 0 and "client (loadgen against vllm)" in refused.error
    project.inventory.write_text(text)
    assert project.orch("compare", "V2", "--workload", "short").code == 0


def test_another_client_goes_first_at_each_turn() -> None:
    """Over as many turns as there are clients, each is once in every place."""
    orders: list[list[Any]] = [in_turn(3, turn) for turn in range(3)]
    assert orders == [[0, 1, 2], [1, 2, 0], [2, 0, 1]]
