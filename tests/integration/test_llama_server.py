"""A real llama-server over a real sshd: an engine in C++, a model that is made here, and a file that it reads.

What is tuned is the grammar (``--grammar-file``) that every answer must keep to. It is read once, at the start, and is
no Python: nothing outside the engine can see that it was read, so ``orch`` says "in place" and not "loaded", and the
answers show that it counted.
"""

from __future__ import annotations

import json
import shutil
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest

from tests.support import tiny_gguf
from tests.support.ssh_project import SshProject

pytestmark = [pytest.mark.integration, pytest.mark.slow]

N_SLOTS, CONTEXT = 4, 2048
INPUT_TOKENS, OUTPUT_TOKENS = 16, 8
CONCURRENCIES = (1, 4)
A_FEW_IDS = {"min_token_id": tiny_gguf.FIRST_BYTE_ID + ord("a"), "max_token_id": tiny_gguf.FIRST_BYTE_ID + ord("b")}
"""Of two ids: prompts that begin alike are frequent, so the prefix cache has something to answer."""
LETTERS, DIGITS = "root ::= [a-z]*\n", "root ::= [0-9]*\n"
SLOW_LETTERS = f"root ::= ({' | '.join(['[a-z]'] * 50)})*\n"
"""Allows what ``LETTERS`` allows, but in fifty ways at every token: the same texts, many times slower."""


@pytest.fixture
def llama(project: SshProject) -> SshProject:
    """A project whose engine is llama-server and whose target is the grammar."""
    program = shutil.which("llama-server-vulkan", path=str(Path(sys.executable).parent))
    if program is None:
        pytest.skip("llama-server-vulkan is not installed (its package is for Linux on x86-64)")
    model = tiny_gguf.write(project.site / "tiny.gguf")
    grammar = project.site / "letters.gbnf"
    grammar.write_text(LETTERS)
    options = {
        "--model": model,
        "--grammar-file": grammar,
        "--alias": "tiny",
        "--host": "127.0.0.1",
        "--port": project.port,
        "--parallel": N_SLOTS,
        "--ctx-size": N_SLOTS * CONTEXT,
        "--threads": 1,
        "--device": "none",
    }
    engine = {
        "kind": "llama-server",
        "command": [program, *(str(word) for pair in options.items() for word in pair), "--metrics"],
        "loaded_path": None,
        "env": {},
    }
    workload = {"input_tokens": INPUT_TOKENS, "output_tokens": OUTPUT_TOKENS, **A_FEW_IDS}
    project.write_inventory(engine=engine, workload=workload)
    retarget(project, grammar)
    project.live = grammar
    return project


def retarget(project: SshProject, path: Path, **keys: Any) -> None:
    """The target is this one file, without a kernel."""
    inventory = json.loads(project.inventory.read_text())
    inventory["targets"] = {"grammar": {"files": [str(path)], **keys}}
    project.inventory.write_text(json.dumps(inventory))


def test_a_whole_job_with_an_engine_in_c_plus_plus(llama: SshProject) -> None:
    """Every load is good, facts and counters are its own, the edit counts, the host is as before."""
    before = llama.identity()
    llama.done("pull")
    assert "is no Python module: that it is in place can be proved, not that" in llama.done("doctor").out
    llama.done("variant", "new", "V1", "-m", "digits alone are fewer candidates")
    working_copy = llama.laptop / "variants" / "grammar" / "V1" / "letters.gbnf"
    working_copy.write_text(DIGITS)
    baseline = llama.done("bench", "--concurrency", "1,4")
    assert "1 process" in baseline.out and "that the engine reads it is not proved" in baseline.out
    llama.done("push", "--variant", "V1")
    assert llama.live.read_text() == DIGITS
    measured = llama.done("bench", "--concurrency", "1,4", "--json").document
    assert measured["status"] == "ok" and measured["loaded_digest"] == llama.digest
    compared = llama.done("compare", "V1", "--json").document
    assert [row["concurrency_cap"] for row in compared["rows"]] == [*CONCURRENCIES]
    llama.done("revert")

    assert llama.identity() == before
    assert llama.traces == []
    assert llama.host_pids() == []
    check_facts(llama)
    check_loads(llama)
    check_counters(llama)


def check_facts(llama: SshProject) -> None:
    """What it told of itself is on record for both starts."""
    for row in llama.query("select facts from environments join trials on environments.id = environment_id"):
        facts = json.loads(row["facts"])
        assert facts["engine_version"].startswith("llama-server b")
        assert facts["model"] == "tiny"
        assert json.loads(facts["engine_arguments"]) == {
            "backend_sampling": "false",
            "model_ftype": "(guessed) F16",
            "model_path": str(llama.site / "tiny.gguf"),
            "n_ctx": CONTEXT,
            "speculative_types": "none",
            "total_slots": N_SLOTS,
        }


def check_loads(llama: SshProject) -> None:
    """All requests had their full length, and every answer kept to the grammar that was in place."""
    loads = llama.query(
        "select variant, concurrency_cap, loads.status, content_zlib from loads join trials on trials.id = trial_id"
        " join raw_results on load_id = loads.id order by loads.id"
    )
    assert [(load["variant"], load["concurrency_cap"], load["status"]) for load in loads] == [
        (variant, concurrency, "ok") for variant in ("baseline", "V1") for concurrency in CONCURRENCIES
    ]
    digests: dict[str, set[str]] = {"baseline": set(), "V1": set()}
    for load in loads:
        requests = json.loads(zlib.decompress(load["content_zlib"]))["requests"]
        assert len(requests) == 3 * load["concurrency_cap"]
        for request in requests:
            tokens = request["n_input_tokens"], request["n_output_tokens"]
            assert (*tokens, request["error"]) == (INPUT_TOKENS, OUTPUT_TOKENS, None)
            assert request["n_chunks"] == OUTPUT_TOKENS
            digests[load["variant"]].add(request["text_digest"])
    assert not digests["baseline"] & digests["V1"], "the grammar decides the answers"


def check_counters(llama: SshProject) -> None:
    """Between before and after a load, each of its prompt tokens was looked up in the prefix cache once."""
    rows = llama.query("select * from engine_counters order by trial_id, concurrency_cap, moment desc")
    assert len(rows) == 2 * 2 * len(CONCURRENCIES)
    for before, after in zip(rows[::2], rows[1::2], strict=True):
        assert (before["moment"], after["moment"]) == ("before", "after")
        n_prompts = (3 + 1) * before["concurrency_cap"]  # measured, and warm-up
        n_queries = after["n_prefix_queries"] - before["n_prefix_queries"]
        assert n_queries == INPUT_TOKENS * n_prompts
        assert 0 < after["n_prefix_hits"] - before["n_prefix_hits"] < n_queries
        assert {after[name] for name in ("n_preemptions", "kv_pool", "kv_pool_tokens")} == {None}, "it does not tell"


def test_an_experiment_runs_to_its_end(llama: SshProject) -> None:
    """A variant that answers the same and is far slower: every planned start counts, nobody says that it is faster.

    Loads of some 30 ms are too short for more: on a busy machine the baseline alone was seen to differ fivefold.
    """
    before = llama.identity()
    llama.done("pull")
    llama.done("variant", "new", "V1", "-m", "as many ways as you like cost nothing")
    (llama.laptop / "variants" / "grammar" / "V1" / "letters.gbnf").write_text(SLOW_LETTERS)
    ran = llama.done("run", "V1", "--concurrency", "4", "--pairs", "4", "--seed", "7")
    assert "V1: ships" not in ran.out and "V1       ★ 4" in ran.out
    assert llama.identity() == before
    assert llama.traces == []
    llama.done("revert")
    assert llama.host_pids() == []
    starts = llama.query("select variant, status, count(*) as n from trials group by variant, status order by variant")
    assert [tuple(start.values()) for start in starts] == [("V1", "ok", 4), ("baseline", "ok", 4)]
    texts = llama.query("select count(distinct text_digest) as n from requests group by i")
    assert {row["n"] for row in texts} == {1}, "both arms gave the same answers"


def test_a_python_module_is_not_proved_where_no_python_runs(llama: SshProject) -> None:
    """A target with ``module`` on an engine in C++ is refused with that reason, and nothing stays behind."""
    llama.live = llama.site / "kernels" / "fast.py"
    retarget(llama, llama.live, module="kernels.fast", kernel="fast_kernel")
    llama.done("pull")
    refused = llama.orch("bench", "--concurrency", "1")
    assert refused.code == 1
    assert "no process of the engine runs Python, so none has imported kernels.fast" in refused.err
    assert llama.query("select * from loads") == []
    assert llama.host_pids() == []
