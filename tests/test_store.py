"""The record gives back what it was given, and answers what the other stations ask."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.errors import StoreError, UnknownNameError
from orchestrator.records import NOT_RECORDED, RequestRecord, SourceFile, TritonKernel, digest_of, manifest_digest
from orchestrator.store import Store
from tests.support import store_records as make


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A new, empty record."""
    with Store.open(tmp_path / "results.db") as opened:
        yield opened


def rows_of(store: Store, sql: str, *params: object) -> list[dict[str, object]]:
    """Rows of a query by column."""
    columns, rows = store.query(sql, params)
    return [dict(zip(columns, row, strict=True)) for row in rows]


# ---- files

_anything = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
_text = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)


@_anything
@given(st.dictionaries(_text.filter(bool), st.binary(max_size=40), min_size=1, max_size=3), _text)
def test_baseline_round_trip(store: Store, contents: dict[str, bytes], target: str) -> None:
    """A snapshot of any files comes back equal: order, bytes, and what the host said of each, lease included."""
    files = tuple(SourceFile.of(name, content) for name, content in contents.items())
    snapshot = replace(make.snapshot(*files), target=target)
    store.set_baseline(snapshot)
    assert store.baseline(target) == snapshot
    assert store.files(snapshot.digest)


@_anything
@given(st.binary(max_size=30), _text, _text, st.none() | _text)
def test_variant_round_trip(store: Store, content: bytes, message: str, function: str, before: str | None) -> None:
    """Any variant comes back equal, and recording it again adds no row."""
    variant = make.variant("V2", SourceFile.of("flash.py", content), message=message)
    variant = replace(
        variant, edited_functions=(function,), changes=tuple(replace(c, before=before) for c in variant.changes)
    )
    first = store.record_variant(variant)
    assert store.variant("flash", "V2") == variant
    assert store.record_variant(replace(variant, created_at="2027-01-01T00:00:00+00:00")) == first


def test_baseline_says_what_it_replaces(store: Store) -> None:
    """Setting a baseline returns the digest before; None at first, the same when it did not move."""
    assert store.baseline("flash") is None
    assert store.set_baseline(make.snapshot()) is None
    assert store.set_baseline(make.snapshot()) == make.BASE.digest
    assert store.set_baseline(make.snapshot(make.FASTER)) == make.BASE.digest
    moved = store.baseline("flash")
    assert moved is not None
    assert moved.digest == make.FASTER.digest


def test_variant_history_is_kept(store: Store) -> None:
    """A variant that was edited later is a new row: all digests stay, newest first, each once."""
    contents = [b"one", b"two", b"one"]
    for content in contents:
        store.record_variant(make.variant("V2", SourceFile.of("flash.py", content)))
    assert store.variant_digests("flash", "V2") == (digest_of(b"one"), digest_of(b"two"))
    assert len(rows_of(store, "select * from variants")) == 3
    assert store.variant_names("flash") == {digest_of(b"one"): "V2", digest_of(b"two"): "V2"}
    assert store.variant("flash", "V3") is None
    assert store.variant_digests("flash", "V3") == ()


def test_a_message_that_is_not_unicode_is_kept_as_escapes(store: Store) -> None:
    """Text with undecodable bytes in it (a file name inside an error) does not lose the record."""
    store.record_variant(make.variant(message="bad name: \udcff"))
    kept = store.variant("flash", "V2")
    assert kept is not None
    assert kept.message == "bad name: \\udcff"


def test_content_by_unique_beginning_of_its_digest(store: Store) -> None:
    """Content is found by the whole digest or by a beginning that is unique, with or without ``sha256:``."""
    store.record_snapshot(make.snapshot())
    digest = make.BASE.digest
    for name in (digest, digest.removeprefix("sha256:"), digest[:19], digest.removeprefix("sha256:")[:12]):
        assert store.artifact_content(name) == make.BASE.content


def test_ambiguous_and_unknown_digests_are_refused(store: Store) -> None:
    """A beginning that several files share is refused with what would tell them apart; so are wildcards."""
    by_start: dict[str, bytes] = {}
    for content in (str(n).encode() for n in range(10_000)):
        start = digest_of(content)[:11]
        if start in by_start:
            store.set_baseline(make.snapshot(SourceFile.of("a", by_start[start]), SourceFile.of("b", content)))
            break
        by_start[start] = content
    with pytest.raises(UnknownNameError, match="2 or more files"):
        store.artifact_content(start)
    for unknown in ("ffff0000", "%", "sha256:____", "", "abc"):
        with pytest.raises(UnknownNameError):
            store.artifact_content(unknown)


def test_content_under_a_false_digest_is_refused(store: Store) -> None:
    """A file whose content does not have its digest is not kept, nor anything that came with it."""
    with pytest.raises(StoreError, match="does not have the digest"):
        store.set_baseline(make.snapshot(SourceFile("flash.py", make.BASE.digest, b"other")))
    assert store.baseline("flash") is None


def test_several_files_have_a_manifest(store: Store) -> None:
    """A set of several files that is only observed can still be read back by the digest of the set."""
    files = (make.BASE, SourceFile.of("lib/scale.py", b"x = 1"))
    store.record_snapshot(make.snapshot(*files), "drift")
    assert store.files(manifest_digest((f.name, f.digest) for f in files)) == files
    assert store.files("sha256:" + "0" * 64) == ()


# ---- looks at the host


def test_unexpected_looks_are_drift(store: Store) -> None:
    """A look that finds other bytes, or no file, is in the view ``drift``; an expected or unasked one is not."""
    expected = {"flash.py": make.BASE.digest}
    assert store.record_states("gpu-a", make.TARGET, [make.file_state()], "status", expected) == 0
    assert store.record_states("gpu-a", make.TARGET, [make.file_state(make.FASTER.digest)], "status") == 0
    assert store.record_states("gpu-a", make.TARGET, [make.file_state(make.FASTER.digest)], "push", expected) == 1
    by_path = {make.PATH: make.BASE.digest}
    assert store.record_states("gpu-a", make.TARGET, [make.file_state(None)], "bench-after", by_path) == 1
    found = rows_of(store, "select * from drift")
    assert [(r["kind"], r["name"], r["before"], r["after"], r["source"]) for r in found] == [
        ("file", "flash.py", make.BASE.digest, make.FASTER.digest, "push"),
        ("file", "flash.py", make.BASE.digest, None, "bench-after"),
    ]
    flags = [r["is_unexpected"] for r in rows_of(store, "select is_unexpected from observations order by id")]
    assert flags == [0, None, 1, 1]


def test_what_the_host_did_not_say_is_null(store: Store) -> None:
    """Facts of a file that the host could not tell are NULL, never 0."""
    unknown = replace(make.file_state(None), size_bytes=None, mode=None, inode=None, mtime_s=None, ctime_s=None)
    store.record_states("gpu-a", make.TARGET, [unknown], "status")
    (row,) = rows_of(store, "select digest, size_bytes, mode, inode, mtime_s, ctime_s, lease_holder from observations")
    assert set(row.values()) == {None}


def test_environment_changes_between_trials_are_drift(store: Store) -> None:
    """Each fact that changed between two consecutive trials of a target is a row with its value before and after."""
    make.trial(store)
    make.trial(store)
    later = make.trial(store, facts=make.environment(driver_version="570.86", clock_policy="locked", n_cpus=None))
    found = rows_of(store, "select * from drift order by name")
    assert [(r["kind"], r["name"], r["before"], r["after"], r["trial_id"]) for r in found] == [
        ("environment", "clock_policy", None, "locked", later),
        ("environment", "driver_version", "550.54", "570.86", later),
        ("environment", "n_cpus", 64, None, later),
    ]


def test_equal_environments_are_kept_once(store: Store) -> None:
    """The same facts in another order are the same environment."""
    facts = make.environment().facts
    first = store.record_environment(make.environment())
    assert store.record_environment(replace(make.environment(), facts=dict(reversed(facts.items())))) == first
    assert store.record_environment(make.environment(model="other")) != first


# ---- deployments


def begin(store: Store, file: SourceFile = make.FASTER, nonce: str = "n-1") -> int:
    """Writes the intent to put a file on the host."""
    return store.begin_deployment(
        host="gpu-a",
        target="flash",
        variant="V2",
        digest=file.digest,
        previous_digest=make.BASE.digest,
        nonce=nonce,
        holder="user@laptop pid 1",
    )


def test_an_intent_without_outcome_is_open(store: Store) -> None:
    """What a killed controller left is listed until its end is recorded; ``unknown`` is no end."""
    deployment_id = begin(store)
    (opened,) = store.open_deployments("flash")
    assert (opened.id, opened.status, opened.digest) == (deployment_id, "intent", make.FASTER.digest)
    assert store.open_deployments("other") == []
    store.end_deployment(deployment_id, "unknown", error="line lost")
    assert [d.status for d in store.open_deployments()] == ["unknown"]
    store.end_deployment(deployment_id, "pushed", deployment=make.deployment())
    assert [(d.status, d.mtime_s) for d in store.open_deployments("flash")] == [("pushed", 1_700_000_100)]
    store.end_deployment(deployment_id, "reverted")
    assert store.open_deployments("flash") == []


@pytest.mark.parametrize("status", ["failed", "reverted"])
def test_a_closed_deployment_keeps_its_reason(store: Store, status: str) -> None:
    """Why a deployment ended stays readable."""
    store.end_deployment(begin(store), status, error="disk full")  # type: ignore[arg-type]
    (row,) = rows_of(store, "select status, error, ended_at is not null as has_ended from deployments")
    assert row == {"status": status, "error": "disk full", "has_ended": 1}


def test_a_later_push_replaces_an_open_one(store: Store) -> None:
    """When other bytes are acknowledged on the target, the deployment before is no longer open."""
    store.end_deployment(begin(store), "pushed", deployment=make.deployment())
    second = begin(store, make.BASE, nonce="n-2")
    assert len(store.open_deployments("flash")) == 2, "until the second is acknowledged, either may be live"
    store.end_deployment(second, "pushed", deployment=make.deployment(make.BASE.digest))
    assert [d.id for d in store.open_deployments("flash")] == [second]
    assert store.last_nonce("flash") == "n-2"
    assert store.last_nonce("other") is None


def test_an_acknowledgement_of_other_bytes_is_refused(store: Store) -> None:
    """The outcome must be of the intent's digest; otherwise the intent stays as it was."""
    deployment_id = begin(store)
    with pytest.raises(StoreError, match="acknowledged"):
        store.end_deployment(deployment_id, "pushed", deployment=make.deployment(make.BASE.digest))
    assert [d.status for d in store.open_deployments("flash")] == ["intent"]
    with pytest.raises(StoreError, match="no deployment 99"):
        store.end_deployment(99, "failed")


def test_highest_mtime_is_over_looks_and_pushes(store: Store) -> None:
    """The latest modification time of a file counts, whether it was seen or given; other hosts do not."""
    real_path = make.file_state().real_path
    assert store.highest_mtime_s("gpu-a", real_path) is None
    store.record_states("gpu-a", make.TARGET, [make.file_state(mtime_s=50)], "status")
    store.record_states("gpu-b", make.TARGET, [make.file_state(mtime_s=900)], "status")
    assert store.highest_mtime_s("gpu-a", real_path) == 50
    store.end_deployment(begin(store), "pushed", deployment=make.deployment(mtime_s=70))
    assert store.highest_mtime_s("gpu-a", real_path) == 70
    store.record_states("gpu-a", make.TARGET, [make.file_state(mtime_s=None)], "status")
    assert store.highest_mtime_s("gpu-a", real_path) == 70


# ---- trials and loads

_seconds = st.none() | st.floats(allow_nan=False, allow_infinity=False)
_count = st.none() | st.integers(0, 2**40)
_requests = st.lists(
    st.builds(
        RequestRecord,
        i=st.integers(0, 2**40),
        sent_s=st.none() | st.floats(allow_nan=False, allow_infinity=False),
        first_chunk_s=_seconds,
        last_chunk_s=_seconds,
        n_input_tokens=_count,
        n_output_tokens=_count,
        n_chunks=st.integers(0, 2**40),
        itl_ms=st.lists(st.floats(allow_nan=False), max_size=5).map(tuple),
        error=st.none() | _text,
        text_digest=st.none() | _text,
    ),
    max_size=5,
    unique_by=lambda r: r.i,
).map(lambda rs: tuple(sorted(rs, key=lambda r: r.i)))


@_anything
@given(
    _requests,
    st.dictionaries(_text, st.none() | st.floats(allow_nan=False, allow_infinity=False), max_size=4),
    st.none() | st.binary(max_size=300),
    st.lists(_text, max_size=3).map(tuple),
)
def test_load_round_trip(
    store: Store,
    requests: tuple[RequestRecord, ...],
    metrics: dict[str, float | None],
    raw: bytes | None,
    argv: tuple[str, ...],
) -> None:
    """Any load comes back equal: every request to the last bit, metrics, raw bytes; what was not measured is None."""
    trial_id = make.trial(store)
    load = replace(make.load(), requests=requests, metrics=metrics, raw=raw, argv=argv, reasons=argv, status="invalid")
    assert store.load(store.record_load(trial_id, load)) == load


def test_results_is_a_row_a_load(store: Store) -> None:
    """The view shows each load with its arm and metrics, without a join; an unmeasured metric is NULL."""
    trial_id = make.trial(store, make.FASTER, "V2", loads=(make.load(1, 50.0), make.load(8, 80.0)))
    found = rows_of(store, "select * from results order by concurrency")
    assert [(r["concurrency"], r["output_tokens_per_s"], r["itl_ms_p50"], r["tpot_ms_p99"]) for r in found] == [
        (1, 50.0, None, None),
        (8, 80.0, None, None),
    ]
    first = found[0]
    assert first["short_digest"] == make.FASTER.digest[7:19]
    assert {k: first[k] for k in ("target", "variant", "host", "workload", "client", "status", "is_contaminated")} == {
        "target": "flash",
        "variant": "V2",
        "host": "gpu-a",
        "workload": "short",
        "client": "loadgen",
        "status": "ok",
        "is_contaminated": 0,
    }
    assert first["trial_id"] == trial_id


def test_contaminated_trials_are_shown_and_flagged(store: Store) -> None:
    """A contaminated trial keeps its numbers in the view, with the flag."""
    make.trial(store, loads=(make.load(),), status="contaminated")
    (row,) = rows_of(store, "select is_contaminated, output_tokens_per_s from results")
    assert row == {"is_contaminated": 1, "output_tokens_per_s": 100.0}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_metric_that_is_not_finite_is_refused(store: Store, value: float) -> None:
    """SQLite would turn NaN into "not measured"; the load is refused by name and nothing of it is kept."""
    trial_id = make.trial(store)
    with pytest.raises(StoreError, match="ttft_ms_p50"):
        store.record_load(trial_id, replace(make.load(), metrics={"ttft_ms_p50": value}))
    assert store.load_ids(trial_id) == ()


def test_a_load_is_kept_whole_or_not_at_all(store: Store) -> None:
    """When the last of a load's requests is refused, neither the load nor its other requests stay."""
    trial_id = make.trial(store)
    twice = replace(make.load(), requests=(make.request(0), make.request(1), make.request(1)))
    with pytest.raises(StoreError, match="breaks its rules"):
        store.record_load(trial_id, twice)
    counts = rows_of(store, "select (select count(*) from loads) l, (select count(*) from requests) r")
    assert counts == [{"l": 0, "r": 0}]
    with pytest.raises(StoreError, match="no trial 99"):
        store.record_load(99, make.load())
    with pytest.raises(StoreError, match="no load 99"):
        store.load(99)


def test_a_trial_is_ok_only_with_the_proof_of_its_bytes(store: Store) -> None:
    """No number is good unless the engine was proved to run the deployed digest."""
    trial_id = store.begin_trial(
        host="gpu-a", target="flash", variant="V2", digest=make.FASTER.digest, workload=make.WORKLOAD
    )
    with pytest.raises(StoreError, match="proved to run nothing"):
        store.end_trial(trial_id, "ok")
    store.record_service(trial_id, make.service(make.BASE.digest))
    with pytest.raises(StoreError, match=make.BASE.digest):
        store.end_trial(trial_id, "ok")
    store.end_trial(trial_id, "failed", reasons=["loaded other bytes"])
    (summary,) = store.trials("flash")
    assert (summary.status, summary.reasons) == ("failed", ("loaded other bytes",))
    with pytest.raises(StoreError, match="no trial 99"):
        store.end_trial(99, "ok")


def test_trials_are_listed_newest_first_with_their_loads(store: Store) -> None:
    """Every trial is listed, good or not, with how many of its loads can be trusted."""
    first = make.trial(store, loads=(make.load(), replace(make.load(64), status="failed", metrics={})))
    second = make.trial(store, status="failed")
    assert [(t.trial_id, t.n_loads, t.n_loads_ok) for t in store.trials("flash")] == [(second, 0, 0), (first, 2, 1)]
    assert store.trials("other") == []
    assert len(store.trials()) == 2


def test_trials_of_a_killed_controller_can_be_closed(store: Store) -> None:
    """Only the trials that still run are closed, and they say why."""
    make.trial(store)
    running = store.begin_trial(
        host="gpu-a", target="flash", variant="V2", digest=make.FASTER.digest, workload=make.WORKLOAD
    )
    assert store.fail_running_trials("flash", "the controller was killed") == 1
    assert {t.trial_id: (t.status, t.reasons) for t in store.trials()}[running] == (
        "failed",
        ("the controller was killed",),
    )
    assert store.fail_running_trials("flash", "again") == 0


def test_a_trial_is_read_back(store: Store) -> None:
    """What is needed to go on with an engine start; nothing of its engine before that was proved."""
    trial_id = make.trial(store, facts=make.environment(power_limits_w="600.0"))
    found, service = store.trial(trial_id), make.service(make.BASE.digest)
    assert (found.digest, found.loaded_digest, found.workload) == (make.BASE.digest, make.BASE.digest, make.WORKLOAD)
    assert (found.pid, found.start_ticks) == (service.process.pid, service.process.start_ticks)
    assert found.facts is not None and found.facts["power_limits_w"] == "600.0"
    begun = store.begin_trial(
        host="gpu-a", target="flash", variant="V2", digest=make.FASTER.digest, workload=make.WORKLOAD
    )
    assert (store.trial(begun).pid, store.trial(begun).facts, store.trial(begun).nonce) == (None, None, None)
    with pytest.raises(StoreError, match="no trial 99"):
        store.trial(99)


def test_compiled_kernels_round_trip(store: Store) -> None:
    """Kernels come back; "nobody looked" and "there were none" stay apart."""
    kernel = TritonKernel("decode", 8, None, 101_376, "cuda:120", "abc")
    for kept in (None, (), (kernel,)):
        trial_id = make.trial(store)
        store.end_trial(trial_id, "ok", triton_kernels=kept)
        assert store.triton_kernels(trial_id) == kept


# ---- what compare asks for


def measured(store: Store, file: SourceFile = make.BASE) -> list[tuple[int, int, float]]:
    """(trial, concurrency, throughput) of the good measurements of a file."""
    found = store.measurements("flash", "short", "output_tokens_per_s", digest=file.digest)
    return [(m.trial_id, m.concurrency_cap, m.value) for m in found]


def test_measurements_are_of_good_starts_of_one_digest(store: Store) -> None:
    """Contaminated and failed trials, failed loads, unmeasured values and other digests do not count."""
    good = make.trial(store, loads=(make.load(1, 50.0), make.load(8, 80.0)))
    make.trial(store, loads=(make.load(),), status="contaminated")
    make.trial(store, loads=(make.load(),), status="failed")
    make.trial(store, loads=(replace(make.load(), status="invalid"),))
    make.trial(store, loads=(replace(make.load(), metrics={"output_tokens_per_s": None}),))
    make.trial(store, make.FASTER, "V2", loads=(make.load(),))
    assert measured(store) == [(good, 1, 50.0), (good, 8, 80.0)]
    assert store.measurements("flash", "other", digest=make.BASE.digest) == []
    assert store.measurements("other", "short", digest=make.BASE.digest) == []


def test_repeats_inside_one_start_are_one_value(store: Store) -> None:
    """A load repeated without a restart is no replicate: the start counts once, with the geometric mean."""
    trial_id = make.trial(store, loads=(make.load(8, 50.0), make.load(8, 200.0)))
    assert measured(store) == [(trial_id, 8, pytest.approx(100.0))]
    failures = store.measurements("flash", "short", "n_failed", digest=make.BASE.digest)
    assert [m.value for m in failures] == [0.0]


def test_the_comparison_key_holds_what_must_agree(store: Store) -> None:
    """Host, GPU, software, engine command, model, client and the workload's contents; limits and names do not count."""
    make.trial(store, loads=(make.load(),))
    (found,) = store.measurements("flash", "short", digest=make.BASE.digest)
    key = found.comparison_key
    assert found.arm == "baseline"
    assert key["host"] == "gpu-a"
    assert key["gpu_uuids"] == "GPU-1"
    assert key["engine_command"] == "python -m engine --tp 2"
    assert key["client_version"] == "1"
    assert key["workload.seed"] == "7"
    assert key["clock_policy"] == NOT_RECORDED
    assert not {"n_cpus", "workload.name", "workload.load_timeout_s"} & set(key)


# ---- opening


def test_closing_twice_is_safe_and_using_it_then_is_an_error(tmp_path: Path) -> None:
    """A closed store says so in a line."""
    store = Store.open(tmp_path / "results.db")
    store.close()
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.trials()


def test_a_read_only_store_refuses_to_record(store: Store) -> None:
    """What was opened for reading cannot write, and says so before it tries."""
    with (
        Store.open_read_only(store.path) as reader,
        pytest.raises(StoreError, match="opened for reading only"),
    ):
        reader.set_baseline(make.snapshot())


def test_opening_an_existing_record_stays_light(store: Store) -> None:
    """Neither reading nor recording imports sqlite-utils (180 ms); only making or upgrading the file does."""
    script = f"""
import json, sys
from orchestrator.store import Store
with Store.open_read_only({str(store.path)!r}) as reader: reader.trials()
with Store.open({str(store.path)!r}) as writer: writer.fail_running_trials("flash", "x")
heavy = [name for name in ("sqlite_utils", "click", "pydantic", "numpy", "fabric") if name in sys.modules]
print(json.dumps(heavy))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []
