"""The main job over a real sshd with a real engine: pull → variant → push → bench → compare → revert."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from orchestrator import provenance
from orchestrator.demo.ssh_host import find_sshd
from orchestrator.errors import RemoteCommandError
from orchestrator.records import digest_of, manifest_digest, short
from tests.support.cli_project import Ran
from tests.support.ssh_project import CHECKOUT, ROWS, RunningOrch, SshProject, pids_of, query

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def typed(project: SshProject, *words: str) -> Ran:
    """``orch WORDS`` as a process, which must succeed."""
    ran = project.begin(*words).end()
    assert ran.code == 0, ran.err
    return ran


def imported_config(project: SshProject) -> str:
    """The kernel's config as a program on the host gets it that simply imports the module."""
    program = "from kernels.fast import fast_kernel; print(fast_kernel.configs[0])"
    environment = {"PATH": os.environ["PATH"]}  # so that bytecode is written, as by any engine
    argv = [sys.executable, "-c", program]
    done = subprocess.run(argv, cwd=project.site, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_whole_job_leaves_a_record_and_no_trace_on_the_host(project: SshProject) -> None:
    """Every command as a user types it: each row has the digest that was loaded, and the host is as before."""
    before = project.identity()
    typed(project, "pull")
    typed(project, "variant", "new", "V1", "--set", "BLOCK_T=64", "-m", "fewer steps")
    typed(project, "variant", "new", "V2", "--set", "num_stages=3")
    typed(project, "bench", "--concurrency", "1,2")
    typed(project, "push", "--variant", "V1")
    assert project.digest == project.digest_of("V1")
    typed(project, "bench", "--concurrency", "1,2")
    typed(project, "push", "--variant", "V2")
    measured = typed(project, "bench", "--concurrency", "1,2", "--json").document
    assert measured["loaded_digest"] == measured["digest"] == project.digest_of("V2")
    compared = typed(project, "compare", "V1", "--json").document
    assert [row["concurrency_cap"] for row in compared["rows"]] == [1, 2]
    assert compared["variant"]["digest"] == project.digest_of("V1")
    assert compared["verdict"] is None
    rows = typed(project, "query", "select * from results order by load_id", "--json").document
    typed(project, "revert")

    assert project.identity() == before
    assert project.traces == []
    assert project.host_pids() == []
    digests = {name: project.digest_of(name) for name in ("baseline", "V1", "V2")}
    assert [(r["variant"], r["concurrency"], r["digest"], r["status"]) for r in rows] == [
        (name, concurrency, digests[name], "ok") for name in digests for concurrency in (1, 2)
    ]
    assert all(row["output_tokens_per_s"] > 0 and row["n_failed"] == 0 for row in rows)
    check_record(project, digests)


def check_record(project: SshProject, digests: dict[str, str]) -> None:
    """What the engine loaded, the raw results, and nothing left open."""
    trials = project.query("select variant, digest, loaded_digest, digest_before, digest_after, proof from trials")
    for trial in trials:
        wanted = digests[trial["variant"]]
        assert {trial[key] for key in ("digest", "loaded_digest", "digest_before", "digest_after")} == {wanted}
        (file,) = json.loads(trial["proof"])["files"]
        assert file["reported_digest"] == file["digest"] == wanted
    for raw in project.query(
        "select size_bytes, content_zlib, concurrency_cap from raw_results join loads on id = load_id"
    ):
        content = zlib.decompress(raw["content_zlib"])
        assert len(content) == raw["size_bytes"]
        assert len(json.loads(content)["requests"]) == 3 * raw["concurrency_cap"]
    texts = project.query(
        "select distinct variant, text_digest from requests join loads on loads.id = load_id"
        " join trials on trials.id = trial_id order by trials.id"
    )
    assert [row["variant"] for row in texts] == list(digests), "each variant's own code wrote its answers"
    assert len({row["text_digest"] for row in texts}) == 3
    assert project.query("select * from deployments where ended_at is null") == []
    assert {row["status"] for row in project.query("select status from deployments")} == {"replaced", "reverted"}
    sources = {row["source"] for row in project.query("select source from observations where is_unexpected is not 1")}
    assert sources == {"pull", "push", "bench-before", "bench-after", "revert"}


def test_a_same_size_edit_pushed_at_once_is_what_runs(project: SshProject) -> None:
    """Variants of one size, pushed one right after the other with bytecode of each written between: never the old."""
    project.with_variants()
    configs = {"V1": "t64-w4-s2", "V2": "t16-w4-s3"}
    sizes = {(project.laptop / "variants" / "fast" / name / "fast.py").stat().st_size for name in configs}
    assert len(sizes) == 1
    mtimes = [project.live.stat().st_mtime_ns]
    for name in ("V1", "V2", "V1", "V2"):
        project.done("push", "--variant", name)
        mtimes.append(project.live.stat().st_mtime_ns)
        assert imported_config(project) == configs[name]
    assert [m // 10**9 for m in mtimes] == sorted({m // 10**9 for m in mtimes}), "whole seconds rise strictly"
    project.done("bench", "--concurrency", "1", "--keep-running")
    assert project.get("/config")["config"] == configs["V2"]
    assert project.get("/loaded")["modules"] == {"kernels.fast": project.digest_of("V2")}
    assert "was stopped" in project.done("revert").out
    assert not project.is_serving()
    assert imported_config(project) == "t16-w4-s2"


def test_several_files_are_pushed_proved_and_restored_together(project: SshProject) -> None:
    """A kernel and the module beside it: one digest for the set, both loaded, both put back."""
    project.write_inventory(n_files=2)
    before = [project.identity(path) for path in (project.live, project.rows)]
    project.with_variants()
    edited = project.laptop / "variants" / "fast" / "V1" / "rows.py"
    edited.write_text(ROWS.replace("64", "32"))
    shown = project.done("variant", "show", "V1").out
    assert "not isolated" in shown and "rows.py" in shown
    project.done("push", "--variant", "V1")
    assert project.rows.read_text() == edited.read_text()
    measured = project.done("bench", "--concurrency", "1", "--keep-running", "--json").document
    assert measured["loaded_digest"] == manifest_digest(
        [("fast.py", project.digest_of("V1")), ("rows.py", digest_of(edited.read_bytes()))]
    )
    assert project.get("/loaded")["modules"] == {
        "kernels.fast": project.digest_of("V1"),
        "kernels.rows": digest_of(edited.read_bytes()),
    }
    project.done("revert")
    assert [project.identity(path) for path in (project.live, project.rows)] == before
    assert project.traces == []
    assert project.host_pids() == []


def test_what_triton_compiled_is_on_record(project: SshProject, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start keeps every form in the cache that its engine really used; where that fails it is still good."""
    cache = project.site / "cache that a launcher chose"
    for key, num_warps in (("A", 4), ("B", 8)):
        (cache / key).mkdir(parents=True)
        (cache / key / "fast_kernel.ttir").write_text("module {}")
        (cache / key / "fast_kernel.json").write_text(json.dumps({"name": "fast_kernel", "num_warps": num_warps}))
    launcher = ["/bin/sh", "-c", 'TRITON_CACHE_DIR=$0 exec "$@"', str(cache), sys.executable, "-m", "serving_engine"]
    command = [*launcher, "--port", str(project.port), "--module", "kernels.fast"]
    project.write_inventory(engine={"command": command})
    project.done("pull")
    project.done("bench", "--concurrency", "1")
    monkeypatch.setattr(provenance, "triton_cache", refuse)
    project.done("bench", "--concurrency", "1")
    forms = project.query("select trial_id, cache_key, num_warps, digest from compiled_kernels order by cache_key")
    assert [tuple(form.values()) for form in forms] == [
        (1, key, num_warps, project.digest_of("baseline")) for key, num_warps in (("A", 4), ("B", 8))
    ]
    assert project.query("select content from artifacts join compiled_kernels on ttir_digest = artifacts.digest") == [
        {"content": b"module {}"}
    ] * len(forms)
    kept = project.query("select status, json_array_length(triton_kernels) as n_kernels from trials order by id")
    assert [tuple(trial.values()) for trial in kept] == [("ok", 2), ("ok", None)]


def refuse(*_: object) -> None:
    """Stands for a host that does not answer just then."""
    raise RemoteCommandError("gpu-a: could not read the Triton cache")


@pytest.mark.kernel
def test_the_demo_tells_the_whole_story_and_cleans_up(tmp_path: Path) -> None:
    """``orch demo`` with the true engine: six good rows of three digests, the file as before, nothing running."""
    if find_sshd() is None:
        pytest.skip("no sshd is installed here")
    pytest.importorskip("torch")
    folder = tmp_path / "demo"
    ran = RunningOrch([sys.executable, "-m", "orchestrator", "demo", str(folder)], tmp_path).end(timeout_s=280.0)
    assert ran.code == 0, ran.err
    live = folder / "host" / "kernel" / "sparse_mla_decode.py"
    assert live.read_bytes() == (CHECKOUT / "kernel" / "seed" / "sparse_mla_decode.py").read_bytes()
    kept = [path.name.partition(".")[0] for path in live.parent.glob(".orch*/*")]
    assert kept == ["foreign"], "only the colleague's edit is kept on the host"
    assert pids_of(folder) == []
    record = folder / "results.db"
    rows = query(record, "select digest, short_digest, concurrency, status, n_failed from results")
    assert [(row["concurrency"], row["status"], row["n_failed"]) for row in rows] == 3 * [(1, "ok", 0), (8, "ok", 0)]
    assert len({row["digest"] for row in rows}) == 3
    assert rows[0]["digest"] == digest_of(live.read_bytes())
    for row in rows:
        assert row["short_digest"] in ran.out
    assert query(record, "select * from deployments where ended_at is null") == []
    assert f"the host's file is as it was: {short(rows[0]['digest'])}" in ran.out
