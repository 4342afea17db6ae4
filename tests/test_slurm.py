"""Nodes of a cluster without a cluster: the inventory, what Slurm says put into words, and who makes which block.

With a real Slurm: ``integration/test_slurm.py``, ``engines/test_slurm.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator import inventory, stats
from orchestrator.connection import slurm
from orchestrator.connection.base import Completed
from orchestrator.connection.framing import frame
from orchestrator.designs import Arm, ExperimentRecord, StartRecord, StartStatus
from orchestrator.errors import InventoryError, LineLostError, NodeLostError, RemoteCommandError, RemoteTimeoutError
from orchestrator.experiment import blocks
from orchestrator.plan import draw
from orchestrator.records import SlurmSettings
from tests.support import store_records as make
from tests.support.fake_remote import Call, FakeRemote

HOSTS = "hosts:\n  cluster:\n    ssh: login\n    slurm:\n"


# ---- the inventory


def load(folder: Path, text: str) -> SlurmSettings | None:
    """The host's Slurm settings; read twice, for the second time comes from the parsed copy."""
    path = folder / "inventory.yaml"
    path.write_text(text)
    first, second = (inventory.load(path).hosts["cluster"].slurm for _ in range(2))
    assert first == second
    return first


def test_the_inventory_names_a_cluster(tmp_path: Path) -> None:
    """Options are a list, or one text that is split as a shell would; the rest has defaults."""
    assert load(tmp_path, HOSTS + "      nodes: 2\n      options: --partition=gpu --gres 'gpu:4'\n") == SlurmSettings(
        nodes=2, options=("--partition=gpu", "--gres", "gpu:4")
    )
    assert load(tmp_path, HOSTS + "      options: [--exclusive]\n") == SlurmSettings(options=("--exclusive",))
    assert load(tmp_path, "hosts: {cluster: {ssh: login}}\n") is None


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ("      nodes: 0\n", "hosts.cluster.slurm.nodes: wanted at least 1, found 0"),
        ("      node: 2\n", "hosts.cluster.slurm.node: unknown key; allowed: idle_release_s, nodes, nodes_per_engine"),
        ("      options: [--array=0-3]\n", "hosts.cluster.slurm.options[0]: --array is set by orch; leave it out"),
        ("      idle_release_s: 1\n", "hosts.cluster.slurm.idle_release_s: wanted at least 10, found 1"),
    ],
)
def test_a_wrong_cluster_is_refused_with_its_line(tmp_path: Path, lines: str, problem: str) -> None:
    """Also the options with which orch asks for one job a node."""
    with pytest.raises(InventoryError, match=r"inventory\.yaml:5: ") as caught:
        load(tmp_path, HOSTS + lines)
    assert problem in str(caught.value)


# ---- one node


def completed(text: str, code: int = 0, err: str = "") -> Completed:
    """What a script on the login host wrote."""
    return Completed(code, text.encode(), err.encode())


class Login(FakeRemote):
    """A login host whose squeue says what the test tells it.

    Attributes:
        queue: lines of ``squeue``, one list an answer; the last one again and again.
    """

    def __init__(self, *queue: Sequence[str]) -> None:
        super().__init__(name="cluster")
        self.host = replace(self.host, slurm=SlurmSettings(queue_timeout_s=0.01))
        self.answer("squeue", *("\n".join(lines) for lines in queue))
        self.answer("scancel", "")
        self.answer("sbatch", "7\n")

    def cancelled(self) -> list[tuple[str, ...]]:
        """What was given back."""
        return [call.words for call in self.calls if "scancel" in call.script]


RUNNING = "7|7|RUNNING|n1|None"


def node(login: Login) -> slurm.NodeRemote:
    """The node of job 7."""
    return slurm.NodeRemote(login, slurm.NodeJob("7", "7", "RUNNING", "n1", "None"))


def test_both_streams_of_a_node_come_back_whole() -> None:
    """They travel as one, and a stream may hold anything; the node is called by its host's name and its own."""

    def answer(call: Call) -> Completed:
        token = call.stdin.decode().split("orch-begin-")[1][:32]
        made = frame("", token=token)
        out = b"login banner\n" + made.begin + b"\x00 12 3\n" + made.end + b"5\n"
        err = made.begin + b"oh" + made.end + b"5\n"
        return Completed(0, b"%d %d\n" % (len(out), len(err)) + out + err, b"")

    login = Login([RUNNING])
    login.answer("srun", answer)
    assert node(login).run("true", stdin=b"x") == Completed(5, b"\x00 12 3\n", b"oh")
    assert node(login).host.name == "cluster/n1"


@pytest.mark.parametrize("answer", ["", "nothing\n", "4 4\nabc"])
def test_an_answer_that_is_not_whole_is_a_lost_line(answer: str) -> None:
    """Cut anywhere, it is no answer: whether the node acted must be asked."""
    login = Login([RUNNING])
    login.answer("srun", answer)
    with pytest.raises(LineLostError, match=r"cluster/n1: the answer of the node is not whole"):
        node(login).run("true")


@pytest.mark.parametrize(
    ("queue", "error", "words"),
    [
        (["7|7|CANCELLED|n1|None"], NodeLostError, "its job 7 is CANCELLED"),
        (["7|7|NODE_FAIL|n1|NodeDown"], NodeLostError, r"its job 7 is NODE_FAIL \(NodeDown\)"),
        ([], NodeLostError, "its job 7 is no longer known to Slurm"),
        ([RUNNING], LineLostError, "a step of job 7 failed"),
    ],
)
def test_a_step_that_fails_says_whether_the_node_is_gone(queue: list[str], error: type[Exception], words: str) -> None:
    """A node that is gone ends what is done there; a step that failed may be tried again."""
    login = Login(queue)
    login.answer("srun", completed("", 1, "srun: error"))
    with pytest.raises(error, match=words):
        node(login).run("true")


def test_a_keeper_that_is_gone_is_a_lost_node() -> None:
    """The job runs, and what kept the node in it does not answer: the way out is told."""
    login = Login([RUNNING])
    login.answer("srun", completed("", slurm.KEEPER_GONE))
    with pytest.raises(NodeLostError, match="keeper in it is gone") as caught:
        node(login).run("true")
    assert "scancel 7" in str(caught.value)


def test_a_step_without_an_end_asks_slurm() -> None:
    """A dead node makes srun hang: past the deadline Slurm is asked, and its word counts."""
    login = Login(["7|7|NODE_FAIL|n1|None"])
    login.fail_at(1, RemoteTimeoutError("late"))
    with pytest.raises(NodeLostError, match="NODE_FAIL"):
        node(login).run("true")


# ---- asking for nodes


def test_a_job_that_waits_too_long_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue's patience is over: the job is cancelled, and Slurm's reason told."""
    monkeypatch.setattr(slurm, "QUEUE_POLL_S", 0.01)
    login = Login([], ["7|7|PENDING||Resources"])
    told: list[str] = []
    with pytest.raises(NodeLostError, match=r"1 of 1 jobs still wait after 0 s \(Resources\)"):
        slurm.open_nodes(login, on_wait=lambda seconds, text: told.append(text))
    assert login.cancelled() == [("7",)]
    assert told and set(told) == {"job 7 PENDING (Resources)"}


def test_a_job_that_ends_before_it_runs_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its log says why."""
    login = Login([], ["7|7|FAILED|n1|NonZeroExitCode"])
    with pytest.raises(NodeLostError, match=r"job 7 is FAILED \(NonZeroExitCode\) and never kept a node"):
        slurm.open_nodes(login)


def test_a_login_host_without_slurm_says_so() -> None:
    """And what to change."""
    login = Login()
    login.answer("squeue", completed("", 127, "there is no squeue in the PATH of this login"))
    with pytest.raises(RemoteCommandError, match="squeue failed: there is no squeue in the PATH") as caught:
        slurm.open_nodes(login)
    assert "full PATH" in str(caught.value)


# ---- who makes which block


def record(*statuses: tuple[StartStatus, ...], looks: tuple[int, ...] = (4, 6)) -> ExperimentRecord:
    """An experiment whose blocks have starts of these statuses, and else planned ones."""
    plan = draw(
        target="flash",
        host="cluster",
        workload="short",
        arms=[Arm("baseline", make.BASE.digest), Arm("V2", make.FASTER.digest)],
        concurrencies=(1,),
        primary_concurrency=1,
        metric="output_tokens_per_s",
        looks=looks,
        thresholds=stats.look_thresholds(looks, n_variants=1),
        seed=3,
    )
    of_block = dict(enumerate(statuses))
    starts = tuple(
        StartRecord(one.index, one, 0, of_block.get(one.block, ("planned", "planned"))[one.position], None, (), ())
        for one in plan.starts
    )
    return ExperimentRecord(1, plan, "running", None, None, None, starts)


def test_a_block_stays_on_one_host() -> None:
    """A host finishes its own block; another host begins the next; a third gets none of theirs."""
    begun = record(("ok", "planned"), ("running", "planned"))
    claims = {0: "cluster/n1", 1: "cluster/n2"}
    first = blocks.next_start(begun, claims, "cluster/n1")
    assert first is not None and (first.planned.block, first.planned.position) == (0, 1)
    third = blocks.next_start(begun, claims, "cluster/n3")
    assert third is not None and (third.planned.block, third.planned.position) == (2, 0)


def test_no_more_blocks_are_begun_than_the_look_needs() -> None:
    """Three complete and one under way make the look at four: who is free waits for what it says."""
    nearly = record(("ok", "ok"), ("ok", "ok"), ("ok", "ok"), ("running", "planned"))
    assert blocks.next_start(nearly, {3: "cluster/n1"}, "cluster/n2") is None
    own = blocks.next_start(nearly, {3: "cluster/n1"}, "cluster/n1")
    assert own is not None and own.planned.block == 3
