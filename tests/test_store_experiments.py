"""What the record keeps of experiments: the plan first, every start as it goes, what it showed, and why it ended."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.designs import Arm, EngineCounters, Plan, PlannedStart, StartValues
from orchestrator.errors import StoreError
from orchestrator.store import Store
from orchestrator.store.encoding import plan_from_json, plan_to_json
from tests.support import experiment_records as design
from tests.support import store_records as make

METRIC = "output_tokens_per_s"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A new, empty record."""
    with Store.open(tmp_path / "results.db") as opened:
        yield opened


def ids_of(store: Store, experiment_id: int) -> list[int]:
    """The ids of an experiment's starts in their order."""
    return [start.id for start in store.experiment(experiment_id).starts]


def statuses(store: Store, experiment_id: int) -> list[tuple[int, int, str]]:
    """(index, attempt, status) of every start."""
    return [(one.planned.index, one.attempt, one.status) for one in store.experiment(experiment_id).starts]


def count(store: Store, table: str) -> object:
    """How many rows a table has."""
    return store.query(f"select count(*) from {table}")[1][0][0]


# ---- the plan

_text = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
_number = st.floats(allow_nan=False, allow_infinity=False)
_whole = st.integers(0, 2**63 - 1)
_plans = st.builds(
    Plan,
    target=_text,
    host=_text,
    workload=_text,
    arms=st.lists(st.builds(Arm, _text, _text, _text), max_size=3).map(tuple),
    concurrencies=st.lists(_whole, max_size=3).map(tuple),
    primary_concurrency=_whole,
    metric=_text,
    margin=_number,
    looks=st.lists(_whole, max_size=3).map(tuple),
    thresholds=st.lists(_number, max_size=3).map(tuple),
    seed=_whole,
    starts=st.lists(st.builds(PlannedStart, _whole, _whole, _whole, _text), max_size=3).map(tuple),
    max_repeats=_whole,
    hypothesis=_text,
    is_aa=st.booleans(),
)


@settings(max_examples=40, deadline=None)
@given(_plans)
def test_any_plan_comes_back_exactly(plan: Plan) -> None:
    """A plan is the same after its way through JSON, to the last digit of a threshold."""
    assert plan_from_json(plan_to_json(plan)) == plan


def test_a_plan_is_on_record_before_its_first_start(store: Store) -> None:
    """A new experiment is planned, whole, with every start planned in its order; nothing has begun."""
    experiment_id = store.create_experiment(design.plan())
    found = store.experiment(experiment_id)
    assert found.plan == design.plan()
    assert (found.status, found.started_at, found.ended_at, found.stop_reason) == ("planned", None, None, None)
    assert tuple(start.planned for start in found.starts) == design.plan().starts
    assert {(start.attempt, start.status, start.trial_id, start.reasons) for start in found.starts} == {
        (0, "planned", None, ())
    }
    assert store.unfinished_experiment("flash") == experiment_id
    assert store.unfinished_experiment("other") is None


def test_a_plan_is_kept_whole_or_not_at_all(store: Store) -> None:
    """Two starts with one index, or a margin that is no number: neither the plan nor a start stays."""
    twice = design.plan(starts=(PlannedStart(0, 0, 0, "baseline"), PlannedStart(0, 0, 1, "V2")))
    with pytest.raises(StoreError, match="breaks its rules"):
        store.create_experiment(twice)
    with pytest.raises(StoreError, match="not finite"):
        store.create_experiment(design.plan(margin=float("nan")))
    assert (count(store, "experiments"), count(store, "experiment_starts")) == (0, 0)


def test_a_hypothesis_that_is_not_unicode_is_kept_as_escapes(store: Store) -> None:
    """Bytes of the command line that are no text break neither the plan nor the history."""
    arms = (design.BASELINE, replace(design.V2, message="bad: \udcff"))
    store.create_experiment(design.plan(hypothesis="worse: \udcfe", arms=arms))
    (row,) = store.history()
    assert (row.hypothesis, row.message) == ("worse: \\udcfe", "bad: \\udcff")


def test_experiments_are_listed_newest_first(store: Store) -> None:
    """All of them, or those of one target, each with its own starts."""
    first = store.create_experiment(design.plan())
    other = store.create_experiment(design.plan(target="other", starts=design.plan().starts[:2]))
    assert [(one.id, len(one.starts)) for one in store.experiments()] == [(other, 2), (first, 4)]
    assert [one.id for one in store.experiments("flash")] == [first]


# ---- its life


def test_an_experiment_begins_once_and_ends_once(store: Store) -> None:
    """Taking it up again keeps when it began; its end says why; what has ended is not ended again."""
    experiment_id = store.create_experiment(design.plan())
    store.begin_experiment(experiment_id)
    began_at = store.experiment(experiment_id).started_at
    store.begin_experiment(experiment_id)
    assert store.experiment(experiment_id).started_at == began_at is not None
    store.end_experiment(experiment_id, "decided", "decided at look 1")
    found = store.experiment(experiment_id)
    assert (found.status, found.stop_reason) == ("decided", "decided at look 1") and found.ended_at
    assert store.unfinished_experiment("flash") is None
    with pytest.raises(StoreError, match="has ended: it is decided"):
        store.end_experiment(experiment_id, "failed")


def test_what_was_stopped_can_be_taken_up_but_spent_looks_cannot(store: Store) -> None:
    """A stopped or failed experiment runs again as if it had not ended; a decided or exhausted one is refused."""
    for status in ("stopped", "failed"):
        experiment_id = store.create_experiment(design.plan())
        store.end_experiment(experiment_id, status, "Ctrl-C")
        store.begin_experiment(experiment_id)
        found = store.experiment(experiment_id)
        assert (found.status, found.ended_at, found.stop_reason) == ("running", None, None)
    for status in ("decided", "hopeless", "exhausted"):
        experiment_id = store.create_experiment(design.plan())
        store.end_experiment(experiment_id, status)
        with pytest.raises(StoreError, match=f"it is {status}"):
            store.begin_experiment(experiment_id)


def test_an_unknown_experiment_is_named(store: Store) -> None:
    """Asking for, beginning or ending what is not there says so."""
    with pytest.raises(StoreError, match="no experiment 9"):
        store.experiment(9)
    with pytest.raises(StoreError, match="no experiment 9"):
        store.begin_experiment(9)
    with pytest.raises(StoreError, match="no experiment 9"):
        store.end_experiment(9, "failed")


# ---- its starts


def test_a_start_goes_one_way(store: Store) -> None:
    """Planned, running with its trial, then ended with reasons and flags; none of it twice."""
    experiment_id = store.create_experiment(design.plan())
    start_id = ids_of(store, experiment_id)[0]
    trial_id = make.trial(store)
    store.begin_start(start_id, trial_id)
    assert statuses(store, experiment_id)[0] == (0, 0, "running")
    with pytest.raises(StoreError, match="is running: only a planned one"):
        store.begin_start(start_id, trial_id)
    store.end_start(start_id, "ok", flags=["30 % low"])
    found = store.experiment(experiment_id).starts[0]
    assert (found.status, found.trial_id, found.reasons, found.flags) == ("ok", trial_id, (), ("30 % low",))
    with pytest.raises(StoreError, match="has ended already: it is ok"):
        store.end_start(start_id, "failed", ["late"])


def test_a_good_start_is_set_aside_with_its_block(store: Store) -> None:
    """When its block lost another start a good one no longer counts, says why, and can be repeated."""
    experiment_id = store.create_experiment(design.plan())
    start_id = ids_of(store, experiment_id)[0]
    design.ran(store, start_id, "baseline", {64: 100.0})
    store.end_start(start_id, "set-aside", ["its block lost the start of V2"])
    assert store.start_values(experiment_id, METRIC) == ()
    found = store.experiment(experiment_id).starts[0]
    assert (found.status, found.reasons) == ("set-aside", ("its block lost the start of V2",))
    with pytest.raises(StoreError, match="has ended already: it is set-aside"):
        store.end_start(start_id, "ok")
    store.repeat_start(start_id)


def test_a_start_that_failed_before_its_engine_has_no_trial(store: Store) -> None:
    """A push that failed ends a planned start; it is known why."""
    experiment_id = store.create_experiment(design.plan())
    store.end_start(ids_of(store, experiment_id)[1], "failed", ["disk full"])
    found = store.experiment(experiment_id).starts[1]
    assert (found.status, found.trial_id, found.reasons) == ("failed", None, ("disk full",))


def test_a_trial_of_other_bytes_is_refused(store: Store) -> None:
    """The trial of a start is of the digest that was planned, and there; a trial belongs to one start."""
    first, second, _, last = ids_of(store, store.create_experiment(design.plan()))
    trial_id = make.trial(store)
    with pytest.raises(StoreError, match=f"planned for {make.FASTER.digest}.*is of {make.BASE.digest}"):
        store.begin_start(second, trial_id)
    with pytest.raises(StoreError, match="trial 99 is not in the record"):
        store.begin_start(first, 99)
    store.begin_start(first, trial_id)
    with pytest.raises(StoreError, match="breaks its rules"):
        store.begin_start(last, trial_id)


@pytest.mark.parametrize("status", ["contaminated", "failed"])
def test_a_start_is_no_better_than_its_trial(store: Store, status: str) -> None:
    """``ok`` is refused for a trial that is not, and for a start without one."""
    first, second, *_ = ids_of(store, store.create_experiment(design.plan()))
    store.begin_start(first, make.trial(store, status=status))
    with pytest.raises(StoreError, match=f"cannot be ok: its trial is {status}"):
        store.end_start(first, "ok")
    with pytest.raises(StoreError, match="cannot be ok: its trial is not begun"):
        store.end_start(second, "ok")


def test_a_repeat_has_the_place_of_what_it_replaces(store: Store) -> None:
    """A start that was set aside is planned once more, same index, block, position, arm; each attempt once."""
    experiment_id = store.create_experiment(design.plan())
    start_id = ids_of(store, experiment_id)[1]
    with pytest.raises(StoreError, match="is planned: only one that was set aside or failed"):
        store.repeat_start(start_id)
    design.ran(store, start_id, "V2", {64: 1.0}, status="contaminated")
    again = store.repeat_start(start_id)
    first, second = (one for one in store.experiment(experiment_id).starts if one.planned.index == 1)
    assert (first.id, second.id, second.attempt, second.status) == (start_id, again, 1, "planned")
    assert first.planned == second.planned
    with pytest.raises(StoreError, match="breaks its rules"):
        store.repeat_start(start_id)
    store.end_start(again, "failed", ["died"])
    store.repeat_start(again)
    assert statuses(store, experiment_id)[1:4] == [(1, 0, "set-aside"), (1, 1, "failed"), (1, 2, "planned")]


def test_what_a_killed_controller_left_is_closed_when_asked(tmp_path: Path) -> None:
    """After a kill a start is still running, whoever opens the record; abandoning fails it with the reason, once."""
    with Store.open(tmp_path / "results.db") as store:
        killed, other = (store.create_experiment(design.plan()) for _ in range(2))
        for experiment_id in (killed, other):
            store.begin_start(ids_of(store, experiment_id)[0], make.trial(store, status="running"))
    with Store.open(tmp_path / "results.db") as store:
        assert statuses(store, killed)[0] == (0, 0, "running")
        assert store.fail_running_trials("flash", "a look at the host") == 0, "their starts may be taken over"
        abandoned = store.abandon_running_starts(killed, "its controller was killed")
        assert abandoned == (ids_of(store, killed)[0],)
        assert store.experiment(killed).starts[0].reasons == ("its controller was killed",)
        assert store.abandon_running_starts(killed, "again") == ()
        assert [store.trial(trial_id).status for trial_id in (1, 2)] == ["failed", "running"]
        assert statuses(store, other)[0] == (0, 0, "running")
        store.repeat_start(abandoned[0])


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE experiment_starts SET status = 'ok' WHERE i = 0",
        "UPDATE experiment_starts SET status = 'skipped'",
        "UPDATE experiments SET status = 'decided'",
        "UPDATE experiments SET ended_at = created_at",
        "INSERT INTO verdicts VALUES (1, 'V2', 'd', 64, 1, 'FASTER', NULL, NULL, NULL, NULL, NULL, 6, 1, '')",
    ],
)
def test_the_tables_hold_their_own_rules(store: Store, sql: str) -> None:
    """No start is ok without a trial, no end without a time or the other way round, no verdict without a ratio."""
    store.create_experiment(design.plan())
    connection = sqlite3.connect(store.path)
    with pytest.raises(sqlite3.IntegrityError, match="CHECK"):
        connection.execute(sql)
    connection.close()


# ---- what was measured


def test_only_good_starts_have_values(store: Store) -> None:
    """Starts set aside, failed, running or planned are left out; a repeat stands where its first attempt did."""
    experiment_id = store.create_experiment(design.plan())
    first, second, third, fourth = ids_of(store, experiment_id)
    trials = [design.ran(store, first, "baseline", {1: 10.0, 64: 100.0})]
    design.ran(store, second, "V2", {1: 5.0, 64: 50.0}, status="contaminated")
    again = store.repeat_start(second)
    store.begin_start(fourth, make.trial(store, loads=(make.load(64, 7.0),)))
    trials.append(design.ran(store, again, "V2", {1: 11.0, 64: 103.0}))
    assert store.start_values(experiment_id, METRIC) == (
        StartValues(trials[0], 0, 0, "baseline", {1: 10.0, 64: 100.0}),
        StartValues(trials[1], 0, 1, "V2", {1: 11.0, 64: 103.0}),
    )
    assert third not in {trial.id for trial in store.experiment(experiment_id).starts if trial.trial_id}


def test_repeated_loads_are_averaged_and_bad_ones_left_out(store: Store) -> None:
    """Loads without a restart are no replicates: their geometric mean counts; what was not measured is not there."""
    experiment_id = store.create_experiment(design.plan())
    loads = (make.load(64, 100.0), make.load(64, 121.0), replace(make.load(1, 9.0), status="invalid"))
    trial_id = make.trial(store, loads=loads)
    start_id = ids_of(store, experiment_id)[0]
    store.begin_start(start_id, trial_id)
    store.end_start(start_id, "ok")
    (found,) = store.start_values(experiment_id, METRIC)
    assert found.values == {64: pytest.approx(110.0)}
    (unmeasured,) = store.start_values(experiment_id, "itl_ms_p50")
    assert (unmeasured.trial_id, unmeasured.values) == (trial_id, {})


def test_the_view_has_every_start(store: Store) -> None:
    """One row a load, and one for each start without any, so that nothing set aside is out of sight."""
    experiment_id = store.create_experiment(design.plan(metric="ttft_ms_p50"))
    first, second, *_ = ids_of(store, experiment_id)
    trial_id = design.ran(store, first, "baseline", {1: 10.0, 64: 100.0})
    store.end_start(second, "failed", ["disk full"])
    _, rows = store.query(
        "select i, arm, start_status, trial_id, concurrency, output_tokens_per_s, value, reasons"
        " from experiment_results where experiment_id = ? order by i, concurrency",
        (experiment_id,),
    )
    assert rows == [
        (0, "baseline", "ok", trial_id, 1, 10.0, 12.5, "[]"),
        (0, "baseline", "ok", trial_id, 64, 100.0, 12.5, "[]"),
        (1, "V2", "failed", None, None, None, None, '["disk full"]'),
        (2, "V2", "planned", None, None, None, None, "[]"),
        (3, "baseline", "planned", None, None, None, None, "[]"),
    ]


# ---- what it showed


def test_an_analysis_comes_back_with_its_document(store: Store) -> None:
    """Each analysis is kept in its order; only the final one makes verdicts."""
    experiment_id = store.create_experiment(design.plan())
    between = store.record_analysis(experiment_id, design.analysis(is_final=False), {"n": 1})
    assert count(store, "verdicts") == 0
    final = store.record_analysis(experiment_id, design.analysis(), {"n": 2, "text": "“V2”"})
    first, second = store.analyses(experiment_id)
    assert (first.id, first.look, first.is_final, first.document) == (between, None, False, {"n": 1})
    assert (second.id, second.look, second.threshold, second.n_blocks) == (final, 0, 0.0115, 6)
    assert (second.is_final, second.stop_reason, second.document) == (True, "decided", {"n": 2, "text": "“V2”"})


def test_every_concurrency_has_its_verdict(store: Store) -> None:
    """What there was no pair for is NULL, not 0; a later final analysis takes the place of an earlier one."""
    experiment_id = store.create_experiment(design.plan())
    store.record_analysis(experiment_id, design.analysis("SLOWER", ships=False), {})
    store.record_analysis(experiment_id, design.analysis(), {})
    _, rows = store.query(
        "select arm, concurrency, is_primary, verdict, ratio, low95, p, p_adjusted, n_pairs, ships from verdicts"
    )
    assert rows == [
        ("V2", 1, 0, None, None, None, None, None, None, 1),
        ("V2", 64, 1, "FASTER", 1.02, pytest.approx(1.015), 0.001, 0.002, 6, 1),
    ]
    assert len(store.analyses(experiment_id)) == 2


def test_an_analysis_is_kept_whole_or_not_at_all(store: Store) -> None:
    """A number that is not finite, or an experiment that is not there: nothing stays."""
    experiment_id = store.create_experiment(design.plan())
    with pytest.raises(StoreError, match="ratio is nan"):
        store.record_analysis(experiment_id, design.analysis(ratio=float("nan")), {})
    with pytest.raises(StoreError, match="not finite"):
        store.record_analysis(experiment_id, design.analysis(), {"p": float("inf")})
    with pytest.raises(StoreError, match="FOREIGN KEY"):
        store.record_analysis(experiment_id + 1, design.analysis(), {})
    assert (count(store, "analyses"), count(store, "verdicts")) == (0, 0)


def test_history_has_every_variant_of_every_experiment(store: Store) -> None:
    """What was rejected, what is open and what was stopped stand beside what ships, newest first."""
    v3 = Arm("V3", "sha256:3", "smaller tiles")
    shipped = store.create_experiment(design.plan(arms=(design.BASELINE, design.V2, v3)))
    design.ran(store, ids_of(store, shipped)[0], "baseline", {64: 1.0})
    store.end_start(ids_of(store, shipped)[1], "failed", ["died"])
    store.record_analysis(shipped, design.analysis("SLOWER", ships=False, why="slower at 64", ratio=0.97), {})
    store.end_experiment(shipped, "decided", "decided at look 1")
    stopped = store.create_experiment(design.plan(hypothesis=""))
    store.end_experiment(stopped, "stopped", "Ctrl-C")
    store.create_experiment(design.plan(target="other"))
    rows = store.history("flash")
    assert [(row.experiment_id, row.arm, row.verdict, row.ships, row.why) for row in rows] == [
        (stopped, "V2", None, None, "Ctrl-C"),
        (shipped, "V2", "SLOWER", False, "slower at 64"),
        (shipped, "V3", None, None, "decided at look 1"),
    ]
    found = rows[1]
    assert (found.ratio, found.low95, found.high95, found.n_pairs) == (0.97, 0.965, 0.975, 6)
    assert (found.n_starts_ok, found.n_starts_bad, found.is_aa, found.status) == (1, 1, False, "decided")
    assert (found.hypothesis, found.message) == (design.plan().hypothesis, design.V2.message)
    assert len(store.history()) == 4


# ---- what was watched


def test_telemetry_comes_back_by_time(store: Store) -> None:
    """Samples of all GPUs by time, unknown values None; collecting the same file twice adds nothing."""
    make.trial(store, loads=(make.load(),))
    samples = [design.sample(1.0), design.sample(1.0, 1, power_w=None, throttle_reasons=()), design.sample(2.0)]
    store.record_telemetry(1, [samples[2], *samples[:2]])
    store.record_telemetry(1, samples[1:])
    assert store.telemetry(1) == tuple(samples)
    assert store.telemetry(2) == ()


def test_telemetry_of_several_nodes_and_of_what_nobody_could_tell(store: Store) -> None:
    """The GPU 0 of each node has rows of its own at the same moment; what is unknown comes back as unknown."""
    make.trial(store, loads=(make.load(),))
    samples = [design.sample(1.0, node="n1"), design.sample(1.0, node="n2", foreign_pids=(), unknown=("foreign_pids",))]
    store.record_telemetry(1, samples)
    assert store.telemetry(1) == tuple(samples)


def test_counters_come_back_by_load_and_moment(store: Store) -> None:
    """What the engine told around each load; what it does not tell is None; a second look replaces the first."""
    trial_id = make.trial(store, loads=(make.load(),))
    assert store.engine_counters(trial_id) == {}
    store.record_engine_counters(trial_id, 8, "before", EngineCounters(3, 900))
    store.record_engine_counters(trial_id, 8, "before", EngineCounters(4, None))
    store.record_engine_counters(trial_id, 8, "after", EngineCounters(4, 900))
    store.record_engine_counters(trial_id, 64, "before", EngineCounters(None, 900, 14400, 12, 4096))
    assert store.engine_counters(trial_id) == {
        8: {"before": EngineCounters(4, None), "after": EngineCounters(4, 900)},
        64: {"before": EngineCounters(None, 900, 14400, 12, 4096)},
    }
    with pytest.raises(StoreError, match="FOREIGN KEY"):
        store.record_engine_counters(trial_id + 1, 8, "before", EngineCounters(0, 0))


def test_telemetry_of_nothing_or_of_no_number_is_refused(store: Store) -> None:
    """A load that is not there and a value that is not finite are errors; nothing stays."""
    with pytest.raises(StoreError, match="FOREIGN KEY"):
        store.record_telemetry(1, [design.sample()])
    make.trial(store, loads=(make.load(),))
    with pytest.raises(StoreError, match="power_w is nan"):
        store.record_telemetry(1, [design.sample(1.0), design.sample(power_w=float("nan"))])
    assert store.telemetry(1) == ()


def test_events_are_read_on_from_the_last_one(store: Store) -> None:
    """A reader that joins late gets all events of its experiment, then only those after the last that it has."""
    one, other = (store.create_experiment(design.plan()) for _ in range(2))
    first = store.record_event(one, "start", "start 1 of 4", {"arm": "V2"})
    store.record_event(other, "start", "another experiment")
    second = store.record_event(one, "note", "bad name: \udcff")
    assert store.events(one) == (first, second)
    assert (first.kind, first.detail, second.text, second.detail) == ("start", {"arm": "V2"}, "bad name: \\udcff", {})
    assert store.events(one, after=first.id) == (second,)
    assert store.events(one, after=second.id) == ()


# ---- the baseline over time


def test_baseline_values_are_told_by_their_bytes(store: Store) -> None:
    """Every good start of any pulled baseline, under whatever name; not those of variants, hosts or bad loads."""
    store.set_baseline(make.snapshot())
    first = make.trial(
        store, loads=(make.load(64, 100.0), make.load(64, 121.0), make.load(1, 9.0)), started_at="2026-01-01"
    )
    make.trial(store, make.FASTER, "V2", loads=(make.load(64),))
    make.trial(store, loads=(make.load(64),), status="contaminated")
    again = make.trial(
        store, name="baseline-again", loads=(make.load(64, 90.0),), facts=make.environment(driver_version="9")
    )
    found = store.baseline_values("gpu-a", "flash", METRIC, "short")
    assert [(one.trial_id, one.concurrency, one.value) for one in found] == [
        (first, 1, 9.0),
        (first, 64, pytest.approx(110.0)),
        (again, 64, 90.0),
    ]
    assert (found[0].started_at, found[0].workload, found[0].digest) == ("2026-01-01", "short", make.BASE.digest)
    assert found[0].environment_id == found[1].environment_id != found[2].environment_id
    assert found[0].conditions == found[2].conditions
    assert store.baseline_values("gpu-a", "flash", METRIC) == found
    assert store.baseline_values("gpu-a", "flash", METRIC, "long") == ()
    assert store.baseline_values("gpu-b", "flash", METRIC) == ()


def test_another_load_is_another_condition(store: Store) -> None:
    """Starts whose client or workload differ do not pass for the same measurement."""
    store.set_baseline(make.snapshot())
    make.trial(store, loads=(make.load(64),))
    make.trial(store, loads=(replace(make.load(64), client_version="2"),))
    one, other = store.baseline_values("gpu-a", "flash", METRIC)
    assert one.conditions != other.conditions
    assert json.loads(one.conditions)[1:] == ["loadgen", "1"]
