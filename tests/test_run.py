"""A whole experiment on a host of a few lines: order, gate, looks, limits, and orch killed between any two acts.

The record, the plan, the gate and the statistics are the real ones. What a start measures depends on its place in the
plan alone, so an experiment that was disturbed must end with the very numbers of one that was not.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrator import stats
from orchestrator.designs import Arm, EngineCounters, Plan
from orchestrator.errors import (
    EngineDiedError,
    EngineError,
    ExperimentError,
    ForeignEditError,
    InterruptedError_,
    LeaseLostError,
    LoadError,
    OrchError,
    RevertError,
    StaleBaseError,
    StoreError,
)
from orchestrator.experiment import blocks, run, starts
from orchestrator.experiment.trial import Hold, Trial
from orchestrator.plan import draw
from orchestrator.records import Launcher, Restoration, SourceFile, Variant, Workload, digest_of
from orchestrator.report.document import analysis_from_document
from orchestrator.session import Session
from orchestrator.store import MOMENTS, RecordedEvent, Store
from tests.support import store_records as make

WORKLOAD = Workload(name="short", output_tokens=3, prompts_per_concurrency=8)
FILES = {"baseline": make.BASE, "V2": make.FASTER, "V3": SourceFile.of("flash.py", b"num_warps = 16\n")}
NOISE = 0.002
EFFECTS = {"baseline": 1.0, "baseline-again": 1.0, "V2": 1.03, "V3": 1.0}


class Killed(BaseException):
    """kill -9: nothing that orch would do at the end of itself is done."""


@dataclass
class Bomb:
    """Goes off at the N-th moment that can be told apart from outside: writes of the record, acts on the host."""

    left: int = -1
    n_seen: int = 0

    def tick(self) -> None:
        """One more thing is about to happen, or has just happened."""
        self.n_seen += 1
        self.left -= 1
        if self.left == 0:
            raise Killed


class Watched:
    """A store with a bomb before and after each of its calls that write."""

    def __init__(self, store: Store, bomb: Bomb) -> None:
        self._store, self._bomb = store, bomb

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if not name.startswith(("record_", "begin_", "end_", "repeat_", "abandon_", "create_")):
            return found

        def call(*args: Any, **options: Any) -> Any:
            self._bomb.tick()
            answer = found(*args, **options)
            self._bomb.tick()
            return answer

        return call


Fault = Callable[[Trial], None]


@dataclass
class Laptop:
    """orch's side: the record, and a host whose state survives orch.

    Attributes:
        live: name of the arm that is live. acts: what was done on the host, in order.
        faults: what goes wrong with the N-th start from now on; it raises, or changes the trial.
        trouble: what putting the host back raises.
        survives: whether what runs on the host when orch is killed can be taken over.
    """

    path: Path
    live: str = "baseline"
    is_engine_running: bool = False
    acts: list[str] = field(default_factory=list)
    faults: dict[int, Fault] = field(default_factory=dict)
    every: Fault | None = None
    trouble: OrchError | None = None
    engine_trouble: BaseException | None = None
    told: list[RecordedEvent] = field(default_factory=list)
    bomb: Bomb = field(default_factory=Bomb)
    n_starts: int = 0
    facts: dict[str, str] = field(default_factory=dict)
    wishes: run.Wishes = field(default_factory=run.Wishes)
    survives: bool = False
    kv_pool: int = 1000
    launcher: Launcher = field(default_factory=Launcher)

    def session(self, store: Store) -> Session:
        """What an operation has in hand."""
        watched = Watched(store, self.bomb)
        found = SimpleNamespace(
            store=watched,
            target=make.TARGET,
            project=SimpleNamespace(workload=lambda name: WORKLOAD),
            engine=SimpleNamespace(name="stub", launcher=self.launcher),
            is_node=False,
            baseline=lambda: store.baseline("flash"),
        )
        return cast(Session, found)

    def begin(self, plan: Plan) -> int:
        """Stores a plan under a baseline."""
        with Store.open(self.path) as store:
            store.record_snapshot(make.snapshot())
            store.set_baseline(make.snapshot())
            return store.create_experiment(plan)

    def conduct(self, number: int) -> run.Outcome:
        """``orch run`` or ``orch resume``."""
        with Store.open(self.path) as store:
            return run.conduct(self.session(store), number, self.told.append, wishes=self.wishes)

    def kinds(self, *wanted: str) -> list[str]:
        """The events so far; of some kinds when they are named."""
        return [event.kind for event in self.told if not wanted or event.kind in wanted]

    # ---- the host

    def act(self, what: str) -> None:
        """Something happens on the host."""
        self.bomb.tick()
        self.acts.append(what)

    def put(self, arm: str) -> None:
        """Other bytes are live."""
        self.act(f"push {arm}")
        self.live = arm
        self.bomb.tick()

    def trial(self, session: Session, workload: Workload, caps: tuple[int, ...], *, on_load: Any, hold: Hold) -> Trial:
        """One start."""
        self.act(f"start {self.live}")
        self.n_starts, self.is_engine_running = self.n_starts + 1, True
        store, file = session.store, FILES[self.live]
        trial_id = store.begin_trial(
            host="gpu-a", target="flash", variant=self.live, digest=file.digest, workload=WORKLOAD
        )
        hold.on_begin(trial_id)
        return self.measure(store, trial_id, caps)

    def measure(self, store: Store, trial_id: int, caps: tuple[int, ...]) -> Trial:
        """The loads of a start, without those that are on record."""
        file = FILES[self.live]
        made = Trial(trial_id, self.live, file.digest, make.service(file.digest), digest_after=file.digest, status="ok")
        place = store.query("select block, arm from experiment_starts where trial_id = ?", (trial_id,))[1][0]
        recorded = {one.concurrency_cap: one for one in map(store.load, store.load_ids(trial_id))}
        made.loads = [recorded.get(cap) or load(cap, *place) for cap in caps]
        fault = self.faults.pop(self.n_starts, self.every)
        if fault is not None:
            self.is_engine_running = fault is not died
            fault(made)
        made.service = make.service(file.digest, make.environment(**self.facts))
        store.record_service(trial_id, made.service)
        for cap in caps:
            made.counters[cap] = (EngineCounters(0, self.kv_pool), EngineCounters(0, self.kv_pool))
            for moment, counters in zip(MOMENTS, made.counters[cap], strict=True):
                store.record_engine_counters(trial_id, cap, moment, counters)
        for one in made.loads:
            if one.concurrency_cap not in recorded:
                store.record_load(trial_id, one)
        store.end_trial(trial_id, made.status, reasons=made.reasons, digest_after=made.digest_after)
        self.act(f"stop {self.live}")
        self.is_engine_running = False
        return made

    def offered(self, session: Session, trial_id: int, workload: Workload, caps: tuple[int, ...]) -> Any:
        """Whether the start under way can be taken over."""
        if self.survives and self.is_engine_running:
            return trial_id, ""
        return None, "its engine is gone"

    def take_over(self, session: Session, trial_id: int, workload: Workload, caps: Any, **_: Any) -> Trial:
        """The rest of a start."""
        self.act(f"take over {self.live}")
        return replace(self.measure(session.store, trial_id, caps), flags=("taken over",))

    def conclude(self) -> Any:
        """The host is put back."""
        self.act("revert")
        if self.trouble is not None:
            raise self.trouble
        self.live, self.is_engine_running = "baseline", False
        self.bomb.tick()
        done = Restoration("flash", "gpu-a", make.BASE.digest, False, (), (), "2026-01-02T00:00:00+00:00")
        return SimpleNamespace(restoration=done)

    def restart(self) -> None:
        """The engine is started on the baseline."""
        self.act("engine")
        if self.engine_trouble is not None:
            raise self.engine_trouble
        self.is_engine_running = True


def load(cap: int, block: object, arm: object) -> Any:
    """A good load: the arm's effect, and the noise of its place in the plan."""
    value = 100.0 * EFFECTS[str(arm)] * (1 + random.Random(f"{block} {arm} {cap}").gauss(0, NOISE))
    now = datetime.now(timezone.utc)
    times = {"started_at": (now - timedelta(seconds=60)).isoformat(), "ended_at": now.isoformat()}
    made = replace(make.load(cap, value, n_requests=8 * cap), **times)
    return replace(made, requests=tuple(replace(one, text_digest=digest_of(b"%d" % one.i)) for one in made.requests))


@pytest.fixture
def laptop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Laptop]:
    """orch with its acts on the host replaced."""
    made = Laptop(tmp_path / "results.db")

    def deploy(session: Session, variant: Variant, **options: Any) -> Any:
        made.put(variant.name)
        return SimpleNamespace(attempt=None)

    monkeypatch.setattr(run, "read_variant", lambda project, target, name: make.variant(name, FILES[name]))
    monkeypatch.setattr(starts, "deploy", deploy)
    monkeypatch.setattr(starts, "deploy_baseline", lambda session, **options: made.put("baseline"))
    monkeypatch.setattr(starts, "look", lambda session, source: SimpleNamespace(is_clean=made.live == "baseline"))
    monkeypatch.setattr(starts, "trial", made.trial)
    monkeypatch.setattr(run, "offered", made.offered)
    monkeypatch.setattr(starts, "take_over", made.take_over)
    monkeypatch.setattr(run, "conclude", lambda session: made.conclude())
    monkeypatch.setattr(run, "end_engine", lambda session: made.act("end engine"))
    monkeypatch.setattr(run, "restart_engine", lambda session, restoration: made.restart())
    yield made


def drawn(*variants: str, looks: tuple[int, ...] = (4,), **changes: Any) -> Plan:
    """A plan of the baseline and variants; V2 when none is named."""
    arms = [Arm("baseline", make.BASE.digest), *(Arm(name, FILES[name].digest) for name in variants or ("V2",))]
    return draw(
        **{
            "target": "flash",
            "host": "gpu-a",
            "workload": "short",
            "arms": arms,
            "concurrencies": (1,),
            "primary_concurrency": 1,
            "metric": "output_tokens_per_s",
            "looks": looks,
            "thresholds": stats.look_thresholds(looks, n_variants=len(arms) - 1),
            "seed": 3,
            **changes,
        }
    )


def verdicts(outcome: run.Outcome) -> list[tuple[object, ...]]:
    """The verdict table, without what tells the attempts apart."""
    assert outcome.analysis is not None
    return [
        (arm.arm, arm.ships, row.concurrency, row.verdict, row.p_adjusted, row.estimate)
        for arm in outcome.analysis.arms
        for row in arm.rows
    ]


def died(made: Trial) -> None:
    """The engine dies under load."""
    raise EngineDiedError("gpu-a: stub (pid 7) died under load", next_step="read its log", evidence=["Segfault"])


def throttled(made: Trial) -> None:
    """Its load cannot be trusted."""
    made.loads[0] = replace(made.loads[0], status="invalid", reasons=("3 of 8 requests failed",), metrics={})


# ---- the ordinary course


def test_every_start_is_made_in_the_order_of_the_plan(laptop: Laptop) -> None:
    """Each start is of the planned arm's bytes; the host ends restored, with its engine, the record closed."""
    plan = drawn("V2", "V3")
    outcome = laptop.conduct(laptop.begin(plan))
    assert [act for act in laptop.acts if act.startswith("start")] == [f"start {s.arm}" for s in plan.starts]
    assert laptop.acts[-2:] == ["revert", "engine"]
    assert (laptop.live, laptop.is_engine_running) == ("baseline", True)
    assert outcome.experiment.status == "decided"
    assert [(arm, word) for arm, _, _, word, *_ in verdicts(outcome)] == [("V2", "FASTER"), ("V3", "EQUIVALENT")]
    assert laptop.kinds()[-4:] == ["look", "restored", "engine", "end"]


def test_an_aa_experiment_starts_the_baseline_twice_a_block(laptop: Laptop) -> None:
    """Both arms are the baseline's bytes; nothing is ever pushed."""
    arms = [Arm("baseline", make.BASE.digest), Arm("baseline-again", make.BASE.digest)]
    outcome = laptop.conduct(laptop.begin(drawn(arms=arms, is_aa=True)))
    assert laptop.n_starts == 8 and not any(act.startswith("push") for act in laptop.acts)
    assert verdicts(outcome)[0][3] == "EQUIVALENT"


def test_it_stops_at_the_first_look_that_decides(laptop: Laptop) -> None:
    """Looks at 4, 6 and 8: a clear gain needs four, and the starts that were not needed stay planned."""
    outcome = laptop.conduct(laptop.begin(drawn(looks=(4, 6, 8))))
    assert (laptop.n_starts, outcome.experiment.status) == (8, "decided")
    assert sum(start.status == "planned" for start in outcome.experiment.starts) == 8
    assert laptop.kinds("look") == ["look"]


def test_one_without_hope_ends_early_and_is_called_so(laptop: Laptop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variant that is a little slower, and noise: the last look would hardly find it FASTER."""
    monkeypatch.setitem(EFFECTS, "V2", 0.99)
    monkeypatch.setitem(globals(), "NOISE", 0.02)
    outcome = laptop.conduct(laptop.begin(drawn(looks=(4, 6))))
    assert (laptop.n_starts, outcome.experiment.status) == (8, "hopeless")
    assert laptop.told[-1].text.startswith("experiment 1 is hopeless at look 1 of 2, after 4 blocks: ")
    with pytest.raises(StoreError, match="it is hopeless"):
        laptop.conduct(1)


def test_progress_names_the_start_and_what_is_left(laptop: Laptop) -> None:
    """Each start is told with its number; once a start was measured, with the time to the look and to the end."""
    laptop.conduct(laptop.begin(drawn(looks=(4, 6))))
    starts = [event for event in laptop.told if event.kind == "start"]
    assert [event.detail["n_done"] for event in starts] == [*range(8)]
    assert starts[0].detail["left_s"] is None and starts[0].text == "1/12 V2, block 1"
    assert [event.detail["left_s"] for event in starts[1:]] == pytest.approx([60 * n for n in range(11, 4, -1)])
    assert starts[1].text.endswith("block 1; 7 min to the look, 11 min at most")


# ---- starts that may not count


def test_a_start_that_may_not_count_takes_its_block_with_it(laptop: Laptop) -> None:
    """Its pair is made again at once, in the same order, visibly; the numbers are those of an undisturbed run."""
    plan = drawn()
    undisturbed = verdicts(laptop.conduct(laptop.begin(plan)))
    laptop.faults = {8 + 4: throttled}
    outcome = laptop.conduct(laptop.begin(plan))
    assert verdicts(outcome) == undisturbed
    block = [start for start in outcome.experiment.starts if start.planned.block == 1]
    assert [(start.attempt, start.status) for start in block] == [
        *((0, "set-aside"), (1, "ok")),
        *((0, "set-aside"), (1, "ok")),
    ]
    reasons = {reason for start in block for reason in start.reasons}
    assert reasons == {
        "concurrency 1: the load is invalid: 3 of 8 requests failed",
        f"its block lost the start of {plan.starts[3].arm}",
    }
    (event,) = [event for event in laptop.told if event.kind == "set-aside"]
    assert event.detail["is_repeated"] and "3 of 8 requests failed" in event.text


def test_repeats_have_a_limit(laptop: Laptop) -> None:
    """Two starts may be repeated. The third loss gives the block up, and with it the only look: no GPU minute more."""
    laptop.every = throttled
    outcome = laptop.conduct(laptop.begin(drawn(max_repeats=2)))
    assert outcome.experiment.status == "exhausted" and outcome.analysis is None
    assert "3 starts may not count, and no look can be reached any more" in str(outcome.experiment.stop_reason)
    assert laptop.n_starts == 3
    lost = [event for event in laptop.told if event.kind == "set-aside"]
    assert [event.detail["is_repeated"] for event in lost] == [True, True, False]
    assert sum("not made" in "".join(start.reasons) for start in outcome.experiment.starts) == 1


def test_a_block_that_is_given_up_costs_the_last_look_only(laptop: Laptop) -> None:
    """Five blocks are left of six: the look at four is made, and decides."""
    laptop.faults = {2: throttled}
    outcome = laptop.conduct(laptop.begin(drawn(looks=(4, 6), max_repeats=0)))
    assert (outcome.experiment.status, laptop.n_starts) == ("decided", 10)
    assert outcome.analysis is not None and outcome.analysis.n_blocks == 4


@pytest.mark.parametrize("error", [died, lambda made: (_ for _ in ()).throw(LoadError("no client"))])
def test_an_arm_that_fails_twice_in_a_row_ends_it(laptop: Laptop, error: Fault) -> None:
    """A broken variant costs two starts; what killed the engine is told, the host put back."""

    def fails(made: Trial) -> None:
        if made.arm == "V2":
            error(made)

    laptop.every = fails
    outcome = laptop.conduct(laptop.begin(drawn()))
    assert (outcome.experiment.status, outcome.experiment.stop_reason) == ("failed", "V2 failed 2 times in a row")
    assert laptop.acts.count("start V2") == 2
    assert (laptop.live, laptop.is_engine_running) == ("baseline", True)
    if error is died:
        assert [event.detail["evidence"] for event in laptop.told if event.kind == "set-aside"] == [["Segfault"]] * 2


def test_an_arm_that_fails_now_and_then_does_not_end_it(laptop: Laptop) -> None:
    """V2 twice, but a good start of it lies between."""
    laptop.faults = {1: died, 5: died}
    assert laptop.conduct(laptop.begin(drawn())).experiment.status == "decided"
    assert laptop.acts.count("start V2") == 4 + 2


def test_a_lost_lease_is_no_fault_of_the_arm(laptop: Laptop) -> None:
    """A laptop that slept too long, twice: the starts are made again."""

    def lost(made: Trial) -> None:
        raise LeaseLostError("gpu-a: the lease is gone")

    laptop.faults = {1: lost, 2: lost}
    assert laptop.conduct(laptop.begin(drawn())).experiment.status == "decided"


def wrong(made: Trial) -> None:
    """The variant computes something else."""
    if made.arm == "V2":
        texts = tuple(replace(one, text_digest=digest_of(b"odd")) for one in made.loads[0].requests)
        made.loads[0] = replace(made.loads[0], requests=texts)


def test_wrong_output_ends_it(laptop: Laptop) -> None:
    """Texts that are not the baseline's, once two starts of the baseline agree with each other."""
    laptop.every = wrong
    outcome = laptop.conduct(laptop.begin(drawn()))
    assert outcome.experiment.status == "failed"
    assert outcome.experiment.stop_reason == "V2 gives other texts than the baseline: its output is wrong"
    assert laptop.n_starts == 4


def test_what_earlier_starts_said_is_known_after_a_crash(laptop: Laptop) -> None:
    """The two starts of the baseline that unmask the fourth start were made by an orch that is gone."""
    number = laptop.begin(drawn())
    laptop.faults = {4: stale, 5: wrong}
    with pytest.raises(StaleBaseError):
        laptop.conduct(number)
    assert "other texts" in str(laptop.conduct(number).experiment.stop_reason)
    assert laptop.n_starts == 5


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"kv_pool": 900}, "KV pool is 900, and was 1000 in the paired start of"),
        ({"facts": {"power_limits_w": "300.0"}}, "power limit is 300.0, and was 600.0 in the paired start of"),
    ],
)
def test_conditions_of_the_paired_start_are_known_after_a_crash(
    laptop: Laptop, changes: dict[str, Any], reason: str
) -> None:
    """The first start of a block was made by an orch that is gone, the second under other conditions."""
    laptop.facts = {"power_limits_w": "600.0"}
    number = laptop.begin(drawn())
    laptop.faults = {2: stale}
    with pytest.raises(StaleBaseError):
        laptop.conduct(number)
    for name, value in changes.items():
        setattr(laptop, name, value)
    assert laptop.conduct(number).experiment.status == "decided"
    (event,) = [event for event in laptop.told if event.kind == "set-aside"]
    assert reason in event.text


# ---- it cannot go on


def stale(made: Trial) -> None:
    """Somebody else changed the file."""
    raise StaleBaseError("gpu-a: somebody else changed the live file", found="x", expected="y", next_step="see drift")


def test_an_error_leaves_it_open_and_the_host_restored(laptop: Laptop) -> None:
    """The error says how to go on; taken up again, it ends as if nothing had been."""
    number = laptop.begin(drawn())
    laptop.faults = {3: stale}
    with pytest.raises(StaleBaseError) as caught:
        laptop.conduct(number)
    assert f"see drift; then `orch resume {number}` goes on" in str(caught.value)
    assert (laptop.live, laptop.kinds()[-2:]) == ("baseline", ["restored", "left"])
    outcome = laptop.conduct(number)
    assert outcome.experiment.status == "decided" and laptop.kinds("recovered") == ["recovered"]


def test_other_conditions_end_it_at_once(laptop: Laptop) -> None:
    """A new driver in the middle: no later start could be compared with the first. With the old one it goes on."""

    def updated(made: Trial) -> None:
        laptop.facts = {"driver_version": "590.48"}

    number = laptop.begin(drawn())
    laptop.faults = {5: updated}
    with pytest.raises(
        ExperimentError, match=r"driver_version is 590\.48, and was 550\.54: take the change back; then"
    ):
        laptop.conduct(number)
    assert (laptop.n_starts, laptop.live, laptop.kinds()[-2:]) == (5, "baseline", ["restored", "left"])
    with pytest.raises(ExperimentError, match="driver_version"):
        laptop.conduct(number)
    laptop.facts = {}
    assert laptop.conduct(number).experiment.status == "decided"


def test_a_host_that_cannot_be_put_back_is_said(laptop: Laptop) -> None:
    """A foreign edit: the first error stands, the event tells that the host is not restored, the engine is ended."""
    laptop.faults = {1: stale}
    laptop.trouble = ForeignEditError("gpu-a: edited behind orch's back", found="x")
    with pytest.raises(StaleBaseError):
        laptop.conduct(laptop.begin(drawn()))
    left = laptop.told[-1]
    assert (left.kind, left.detail["is_restored"]) == ("left", False) and "edited behind orch's back" in left.text
    assert laptop.acts[-1] == "end engine"


def test_a_host_that_is_not_restored_is_the_loudest(laptop: Laptop) -> None:
    """RevertError goes before every other error."""
    laptop.faults = {1: stale}
    laptop.trouble = RevertError("gpu-a: the host is not restored")
    with pytest.raises(RevertError):
        laptop.conduct(laptop.begin(drawn()))


def test_a_fault_of_orch_itself_puts_the_host_back_too(laptop: Laptop) -> None:
    """Also what nobody thought of."""

    def bug(made: Trial) -> None:
        raise ZeroDivisionError

    laptop.faults = {1: bug}
    with pytest.raises(ZeroDivisionError):
        laptop.conduct(laptop.begin(drawn()))
    assert laptop.live == "baseline"


@pytest.mark.parametrize("interruption", [KeyboardInterrupt(), InterruptedError_("V2 stays live")])
def test_an_interruption_puts_the_host_back_and_says_so(laptop: Laptop, interruption: BaseException) -> None:
    """Wherever it comes: the user reads of the experiment, not of the step that was interrupted."""

    def interrupted(made: Trial) -> None:
        raise interruption

    number = laptop.begin(drawn())
    laptop.faults = {2: interrupted}
    with pytest.raises(InterruptedError_, match=f"experiment {number} is stopped, the host is as it was before"):
        laptop.conduct(number)
    assert laptop.live == "baseline"
    assert laptop.conduct(number).experiment.status == "decided"
    assert laptop.n_starts == 8 + 1, "only the start that was under way is made again, not its block"


def test_a_service_runs_again_when_an_experiment_is_left(laptop: Laptop, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that a unit keeps is given back after an interruption, once the host is, and nobody is told a lie."""
    laptop.launcher = Launcher(kind="systemd", unit="sglang.service")

    def interrupted(made: Trial) -> None:
        raise KeyboardInterrupt

    number = laptop.begin(drawn())
    for is_started in (True, False):
        monkeypatch.setattr(run, "give_engine_back", lambda *_, answer=is_started: laptop.act("back") or answer)
        laptop.faults, laptop.acts, laptop.told = {laptop.n_starts + 1: interrupted}, [], []
        with pytest.raises(InterruptedError_):
            laptop.conduct(number)
        assert laptop.acts[-2:] == ["revert", "back"]
        assert laptop.kinds("restored", "left", "engine") == ["restored", "left", "engine"][: 2 + is_started]


def test_the_start_under_way_may_be_finished_first(laptop: Laptop) -> None:
    """Asked for at a Ctrl-C: this start counts, no other is begun."""

    def asked(made: Trial) -> None:
        laptop.wishes.finish_start = True

    number = laptop.begin(drawn())
    laptop.faults = {3: asked}
    with pytest.raises(InterruptedError_):
        laptop.conduct(number)
    assert (laptop.n_starts, laptop.kinds("counted")) == (3, ["counted"] * 3)
    laptop.wishes.finish_start = False
    laptop.conduct(number)
    assert laptop.n_starts == 8


@pytest.mark.parametrize("trouble", [EngineError("it does not start", evidence=["why"]), KeyboardInterrupt()])
def test_an_engine_that_does_not_come_back_changes_no_verdict(laptop: Laptop, trouble: BaseException) -> None:
    """The experiment is over, the host restored; that the engine is not there is told."""
    laptop.engine_trouble = trouble
    outcome = laptop.conduct(laptop.begin(drawn()))
    assert outcome.experiment.status == "decided"
    (event,) = [event for event in laptop.told if event.kind == "engine"]
    assert not event.detail["is_ready"]


def test_an_edited_variant_is_refused(laptop: Laptop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is touched, the experiment stays open."""
    number = laptop.begin(drawn())
    monkeypatch.setattr(run, "read_variant", lambda project, target, name: make.variant(name, FILES["V3"]))
    with pytest.raises(ExperimentError, match=r"V2 was edited since.*--stop"):
        laptop.conduct(number)
    assert laptop.acts == []


def test_a_new_baseline_is_refused(laptop: Laptop) -> None:
    """An experiment against bytes that are no longer the baseline is over."""
    number = laptop.begin(drawn())
    with Store.open(laptop.path) as store:
        store.record_snapshot(make.snapshot(FILES["V3"]))
        store.set_baseline(make.snapshot(FILES["V3"]))
    with pytest.raises(ExperimentError, match="was pulled since"):
        laptop.conduct(number)
    assert laptop.acts == []


def test_one_that_has_ended_is_not_taken_up(laptop: Laptop) -> None:
    """Neither to go on nor to be stopped: nothing is touched on the host."""
    number = laptop.begin(drawn())
    laptop.conduct(number)
    laptop.acts.clear()
    with pytest.raises(StoreError, match="has ended"):
        laptop.conduct(number)
    with Store.open(laptop.path) as store, pytest.raises(ExperimentError, match="has ended"):
        run.stop(laptop.session(store), number, laptop.told.append)
    assert laptop.acts == []


def test_stopping_keeps_what_was_measured(laptop: Laptop) -> None:
    """After five starts: two pairs, no verdict, the host restored; it may still be taken up by number."""
    number = laptop.begin(drawn())
    laptop.faults = {6: stale}
    with pytest.raises(StaleBaseError):
        laptop.conduct(number)
    with Store.open(laptop.path) as store:
        outcome = run.stop(laptop.session(store), number, laptop.told.append)
    assert (outcome.experiment.status, outcome.experiment.stop_reason) == ("stopped", "stopped by its user")
    assert outcome.analysis is not None and outcome.analysis.n_blocks == 2 and verdicts(outcome)[0][3] is None
    assert laptop.conduct(number).experiment.status == "decided"


# ---- orch is killed


def goes_on(laptop: Laptop, number: int) -> run.Outcome:
    """``orch resume`` until it is not killed any more."""
    laptop.bomb.left = -1
    return laptop.conduct(number)


def is_whole(outcome: run.Outcome) -> bool:
    """Every start of the plan counts once, and lies in a block whose starts are of it."""
    ok = [start.planned for start in outcome.experiment.starts if start.status == "ok"]
    return sorted(ok, key=lambda planned: planned.index) == list(outcome.experiment.plan.starts)


def every_kill(laptop: Laptop, faults: dict[int, Fault], moments: Callable[[int], range]) -> None:
    """Kills a run at many moments; each, resumed, must end like one that was left alone."""
    plan = drawn()
    laptop.faults = dict(faults)
    undisturbed = verdicts(laptop.conduct(laptop.begin(plan)))
    for moment in moments(laptop.bomb.n_seen):
        laptop.path = laptop.path.with_name(f"{moment}.db")
        number = laptop.begin(plan)
        laptop.n_starts, laptop.faults, laptop.bomb = 0, dict(faults), Bomb(moment)
        laptop.told.clear()
        with pytest.raises(Killed):
            laptop.conduct(number)
        with Store.open(laptop.path) as store:
            is_over = store.experiment(number).status == "decided"
        if is_over:  # killed while the engine came back: there is nothing left to go on with
            assert laptop.live == "baseline"
            continue
        outcome = goes_on(laptop, number)
        assert verdicts(outcome) == undisturbed, moment
        assert is_whole(outcome), moment
        assert laptop.live == "baseline", moment


def test_a_run_that_is_killed_goes_on(laptop: Laptop) -> None:
    """At moments all over it, the last ones among them: the look, the revert, the end of the record."""
    every_kill(laptop, {}, lambda n: range(5, n, n // 7))


def killed_in_mid_load(laptop: Laptop, number: int, nth: int) -> int:
    """Kills orch in the N-th start, whose engine stays up; the trial's id."""

    def kill(made: Trial) -> None:
        raise Killed

    laptop.survives, laptop.faults = True, {nth: kill}
    with pytest.raises(Killed):
        laptop.conduct(number)
    with Store.open(laptop.path) as store:
        (start,) = [one for one in store.experiment(number).starts if one.status == "running"]
        store.fail_running_trials("flash", "`orch status` looked")
        assert store.trial(start.trial_id or 0).status == "running", "it may still be taken over"
        return start.trial_id or 0


def test_a_start_whose_engine_is_still_up_is_taken_over(laptop: Laptop) -> None:
    """Nothing is started again: the start under way counts, flagged, and the numbers are those of a quiet run."""
    plan = drawn()
    undisturbed = verdicts(laptop.conduct(laptop.begin(plan)))
    laptop.n_starts, number = 0, laptop.begin(plan)
    trial_id = killed_in_mid_load(laptop, number, 3)
    outcome = laptop.conduct(number)
    assert (verdicts(outcome), laptop.n_starts) == (undisturbed, 8)
    (start,) = [one for one in outcome.experiment.starts if one.trial_id == trial_id]
    assert (start.status, start.attempt, start.flags) == ("ok", 0, ("taken over",))
    (event,) = [event for event in laptop.told if event.kind == "recovered"]
    assert event.text.endswith("the start under way is taken over")
    assert (event.detail["n_starts"], event.detail["is_taken_over"]) == (0, True)


def test_why_a_start_is_not_taken_over_is_told(laptop: Laptop) -> None:
    """And then its trial is closed with it, and made again."""
    number = laptop.begin(drawn())
    trial_id = killed_in_mid_load(laptop, number, 3)
    laptop.survives = False
    laptop.conduct(number)
    (event,) = [event for event in laptop.told if event.kind == "recovered"]
    assert event.text.endswith("the start under way is made again, its engine is gone")
    with Store.open(laptop.path) as store:
        assert store.trial(trial_id).status == "failed"


def test_what_a_taken_over_start_shows_ends_it_at_once(laptop: Laptop) -> None:
    """Wrong output in the load of an orch that is gone: no further start is made."""
    number = laptop.begin(drawn())
    laptop.faults = dict.fromkeys(range(1, 9), wrong)
    plan_arms = [start.arm for start in drawn().starts]
    nth = next(n for n in range(1, 9) if plan_arms[: n - 1].count("baseline") >= 2 and plan_arms[n - 1] == "V2")
    killed_in_mid_load(laptop, number, nth)
    laptop.every = wrong
    outcome = laptop.conduct(number)
    assert outcome.experiment.status == "failed" and "other texts" in str(outcome.experiment.stop_reason)
    assert laptop.n_starts == nth


@pytest.mark.slow
def test_a_run_that_is_killed_anywhere_goes_on_with_what_is_left(laptop: Laptop) -> None:
    """At every moment, the engine staying up: taken over or made again, each start counts once."""
    laptop.survives = True
    every_kill(laptop, {4: throttled, 5: died}, lambda n: range(3, n, 5))


@pytest.mark.slow
def test_a_run_that_is_killed_anywhere_goes_on(laptop: Laptop) -> None:
    """Before and after every write of the record and every act on the host, with a lost start on the way."""
    every_kill(laptop, {4: throttled, 5: died}, lambda n: range(1, n, 5))


@pytest.mark.slow
def test_a_lost_block_that_was_mended_by_half_is_mended(laptop: Laptop) -> None:
    """Killed between the writes with which a block is set aside and planned again: no start of it is forgotten."""
    plan = drawn()
    for n_writes in range(1, 12):
        number = laptop.begin(plan)
        laptop.n_starts, laptop.bomb = 0, Bomb()
        with Store.open(laptop.path) as store:
            session = laptop.session(store)

            def arm(made: Trial, n_writes: int = n_writes) -> None:
                throttled(made)
                laptop.bomb.left = 9 + n_writes  # the trial's own last writes come first

            laptop.faults = {2: arm}
            with pytest.raises(Killed):
                run.conduct(session, number, laptop.told.append)
        assert is_whole(goes_on(laptop, number)), n_writes


def test_many_kills_in_one_experiment(laptop: Laptop) -> None:
    """Killed again and again on its way, it still gets there; a kill is not counted as a repeat."""
    plan = drawn(max_repeats=0)
    undisturbed = verdicts(laptop.conduct(laptop.begin(plan)))
    number, dice, n_kills, ended = laptop.begin(plan), random.Random(7), 0, None
    while ended is None:
        laptop.bomb = Bomb(dice.randrange(8, 70))
        try:
            laptop.conduct(number)
        except Killed:
            n_kills += 1
        with Store.open(laptop.path) as store:
            record, analyses = store.experiment(number), store.analyses(number)
        ended = record if record.status == "decided" else None  # or it was killed while the engine came back
    assert n_kills >= 5
    assert verdicts(run.Outcome(ended, analysis_from_document(analyses[-1].document))) == undisturbed


def test_a_look_that_decided_is_not_followed_by_more_starts(laptop: Laptop) -> None:
    """Killed after the verdict, before the host was put back: resumed, it only puts it back and ends."""
    number = laptop.begin(drawn(looks=(4, 6)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "conclude", lambda session: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            laptop.conduct(number)
    laptop.acts.clear()
    outcome = laptop.conduct(number)
    assert laptop.acts == ["revert", "engine"]
    assert (outcome.experiment.status, verdicts(outcome)[0][3]) == ("decided", "FASTER")


def test_a_pair_is_not_made_of_two_days(laptop: Laptop) -> None:
    """A block half made more than an hour ago is made again as a whole, at no cost of the limit."""
    number = laptop.begin(drawn(max_repeats=0))
    laptop.faults = {4: stale}
    with pytest.raises(StaleBaseError):
        laptop.conduct(number)
    with Store.open(laptop.path) as store:
        first = [start for start in store.experiment(number).starts if start.status == "ok"][-1]
        ended_s = blocks._ended_s(store, first)
        store.abandon_running_starts(number, blocks.ABANDONED)
        assert not blocks.tear_old_block(store, number, now_s=ended_s + 3000)
        assert blocks.tear_old_block(store, number, now_s=ended_s + 4000)
        blocks.mend(store, number)
        block = [start for start in store.experiment(number).starts if start.planned.block == 1]
        assert [start.status for start in block] == ["set-aside", "planned", "failed", "planned"]
        assert blocks.n_lost(store.experiment(number)) == 0
    assert laptop.conduct(number).experiment.status == "decided"
