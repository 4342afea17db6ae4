"""Whole experiments with real engines over a real sshd: vLLM and SGLang as pip installs them, on a CPU.

A file of the installed engine is tuned, one that every step of it runs through. ``same`` says the same in other words;
``slow`` waits in each step for a quarter of the time that a step takes, so that a fifth fewer tokens come out.

How seldom these tests fail by chance: an experiment says FASTER or SLOWER wrongly, anywhere, in at most 5 % of cases.
One that does not say what it should is made once more, of other starts in another order, and then it must: chance
alone does that twice in 0.25 %. A slow-down of a fifth is missed where starts scatter much: seldom while the noise
of a pair is below 10 %.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engines.engine_project import EngineProject, titles
from tests.engines.real_engines import MODEL_NAME, RealEngine
from tests.support.ssh_project import SessionHost
from tests.support.tiny_host import is_alive
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.engines, pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(4500)]

RUN_TIMEOUT_S = 2000.0
CONCURRENCY = 4
SHARE_OF_A_STEP = 0.25
STARTS = "select variant, status, ready_after_s, started_at from trials"
NO_DIFFERENCE = ("EQUIVALENT", "INCONCLUSIVE")


@pytest.fixture
def project(real_engine: RealEngine, session_host: SessionHost, tmp_path: Path) -> Iterator[EngineProject]:
    """A project of each engine; at the end nothing of it runs, and the installed file is what it was."""
    made = EngineProject(tmp_path, session_host, real_engine)
    made.write()
    yield made
    made.close()


def test_a_whole_experiment_says_which_edit_of_the_engine_costs_speed(project: EngineProject) -> None:
    """doctor, pull, two edits by hand, run: ``slow`` is SLOWER, ``same`` is neither; the proof covers every process of
    the engine; the file is the very one that was there, nothing runs and nothing stays in shared memory.
    """
    checked = {one["name"]: one["status"] for one in project.done("doctor", "--json").document["findings"]}
    assert "fail" not in checked.values()
    project.done("pull")
    step_s = CONCURRENCY / _tokens_per_s(project.bench("--concurrency", str(CONCURRENCY)))
    text = project.live.read_text()
    project.edit("same", project.engine.same_text(text))
    project.edit("slow", project.engine.slow_text(text, SHARE_OF_A_STEP * step_s))
    plan = ("same", "slow", "--concurrency", str(CONCURRENCY), "--pairs", "6")
    rows = _experiment(project, *plan, wanted={"same": NO_DIFFERENCE, "slow": ("SLOWER",)})
    assert rows["slow"]["estimate"]["ratio"] < 1
    proofs = [json.loads(row["proof"]) for row in project.query("select proof from trials where status = 'ok'")]
    assert all(len(proof["pids"]) >= len(project.engine.process_words) for proof in proofs)
    assert {proof["files"][0]["digest"] for proof in proofs} == {project.pristine, *map(project.digest_of, rows)}


def _tokens_per_s(document: dict[str, Any]) -> float:
    (load,) = document["loads"]
    found: float = load["metrics"]["output_tokens_per_s"]
    return found


def _experiment(project: EngineProject, *words: str, wanted: dict[str, tuple[str, ...]]) -> dict[str, dict[str, Any]]:
    """Each variant's row of ``orch run WORDS``; of a second experiment where the first one's verdict is not wanted."""
    for _ in range(2):
        ran = project.begin("run", *words, "--json").end(timeout_s=RUN_TIMEOUT_S)
        assert ran.code == 0, ran.err
        arms = json.loads(ran.out.splitlines()[-1])["analysis"]["arms"]
        rows = {arm["arm"]: arm["rows"][0] for arm in arms}
        print(project.done("report").out, f"load average {os.getloadavg()}", project.done("query", STARTS).out)
        _check_restored(project)
        if all(rows[name]["verdict"] in verdicts for name, verdicts in wanted.items()):
            return rows
    pytest.fail(f"twice other verdicts than {wanted}: {json.dumps(rows, indent=1)}")


def _check_restored(project: EngineProject) -> None:
    """The baseline is served again from the very file that was there; after a revert nothing is left at all."""
    assert project.identity() == project.before
    shown = titles(project.engine_pids())
    for kind, word in project.engine.process_words.items():
        assert any(word in title for title in shown.values()), f"no {kind} among {shown}"
    project.done("revert")
    assert project.identity() == project.before
    assert project.digest == project.pristine
    assert [path.name for path in project.live.parent.iterdir() if path.name.startswith(".orch")] == []
    assert project.engine_pids() == []
    assert project.leaked_memory() == []


def test_what_the_engine_tells_of_itself_is_on_record(project: EngineProject) -> None:
    """Its version, arguments, model and KV pool are facts of a start; the prompt tokens that it looked up in its prefix
    cache are counted, and none of them is found there, for no two prompts are alike, but for a token by chance.
    """
    project.write(input_tokens=160, prompts_per_concurrency=8, warmup_per_concurrency=1)
    project.done("pull")
    found = project.bench("--concurrency", "1,2")
    assert found["n_processes"] >= len(project.engine.process_words)
    facts = project.facts()
    assert facts["engine_version"].split("+")[0] == f"{project.engine.name} {project.engine.version}".split("+")[0]
    assert facts["model"] == MODEL_NAME
    assert facts["engine_arguments"].items() >= project.engine.arguments.items()
    counted = project.query("select * from engine_counters order by concurrency_cap, moment desc")
    assert {row["kv_pool_tokens"] for row in counted} == {project.engine.kv_pool_tokens}
    n_requests = (8 + 1) * (1 + 2)
    first, last = counted[0], counted[-1]
    assert last["n_prefix_queries"] - (first["n_prefix_queries"] or 0) == n_requests * 160
    assert (last["n_prefix_hits"] or 0) - (first["n_prefix_hits"] or 0) <= 1.5 * n_requests
    assert (last["n_preemptions"] or 0) == 0
    assert project.leaked_memory() == []


def test_workers_whose_leader_was_killed_are_ended_too(project: EngineProject) -> None:
    """kill -9 of the engine's first process: what is left of it, though it renamed itself and shows no environment any
    more, is found and ended, and its shared memory is removed.
    """
    project.write(prompts_per_concurrency=1, warmup_per_concurrency=0)
    project.done("pull")
    project.bench("--concurrency", "1", "--keep-running")
    (leader,) = (row["pid"] for row in project.query("select pid from trials"))
    assert len(project.engine_pids()) >= len(project.engine.process_words)
    os.kill(leader, signal.SIGKILL)
    wait_until(lambda: not is_alive(leader))
    ran = project.done("revert")
    print(ran.err)
    assert project.engine_pids() == []
    assert project.leaked_memory() == []
