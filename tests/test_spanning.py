"""One engine over several nodes, without a cluster: its inventory, its command a rank, and all nodes or none.

With a real Slurm and an engine that runs: ``integration/test_slurm_group.py``, ``engines/test_slurm_group.py``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator import inventory, push, serve, spanning
from orchestrator.connection import slurm, slurm_group
from orchestrator.connection.base import Remote
from orchestrator.errors import (
    EngineError,
    ForeignEditError,
    HostWriteError,
    InventoryError,
    LeaseLostError,
    NodeLostError,
    OrchError,
    RemoteCommandError,
    RevertError,
    StaleBaseError,
)
from orchestrator.experiment import everywhere
from orchestrator.experiment.conclude import conclude
from orchestrator.experiment.deploy import deploy
from orchestrator.experiment.guards import made_whole
from orchestrator.experiment.prepare import prepare
from orchestrator.experiment.trial import arm_on_host
from orchestrator.host import ranks
from orchestrator.records import CLEAN, Engine, FileState, Lease, SlurmSettings
from orchestrator.session import Session, look, read_variant
from tests.support.fake_remote import FakeRemote
from tests.support.two_nodes import TwoNodes, two_nodes

# ---- the inventory


def written(**changes: object) -> str:
    """An inventory whose engine spans two nodes, with keys of host, slurm or engine replaced; JSON is YAML."""
    slurm_keys = {"nodes": 2, "nodes_per_engine": 2}
    engine = {
        "command": "serve --rank {node_rank} of {n_nodes} --at {head_node}:20000",
        "python": "/opt/python",
        "base_url": "http://127.0.0.1:30000",
    }
    for key, value in changes.items():
        (slurm_keys if key.startswith("nodes") else engine)[key] = value  # type: ignore[index]
    return json.dumps(
        {
            "hosts": {"cluster": {"ssh": "login", "slurm": slurm_keys}},
            "engines": {"big": engine},
            "targets": {"mla": {"files": ["/local/mla.py"]}},
        }
    )


def test_the_inventory_says_that_one_engine_spans_nodes(tmp_path: Path) -> None:
    """Read twice, for the second time comes from the parsed copy; four nodes are two engines at a time."""
    path = tmp_path / "inventory.yaml"
    (tmp_path / "variants").mkdir()
    path.write_text(written(nodes=4))
    for _ in range(2):
        assert inventory.load(path).hosts["cluster"].slurm == SlurmSettings(nodes=4, nodes_per_engine=2)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"nodes": 3}, "slurm.nodes_per_engine: wanted nodes: a multiple of 2, found 3"),
        ({"command": "serve --nnodes 2"}, "engines.big.command: an engine that spans 2 nodes (target mla on host clu"),
        ({"command": "serve {node_rank}"}, "needs {node_rank} and {head_node} in command or env"),
        (
            {"nodes_per_engine": 1},
            "engines.big.command: {node_rank} is filled in on several nodes only, and target mla",
        ),
        ({"restart_after_restore": True}, "engines.big.restart_after_restore: not for an engine that spans 2 nodes"),
    ],
)
def test_what_cannot_span_nodes_is_refused(tmp_path: Path, changes: dict[str, object], problem: str) -> None:
    """With the key, the numbers and the way out."""
    (tmp_path / "inventory.yaml").write_text(written(**changes))
    with pytest.raises(InventoryError) as caught:
        inventory.load(tmp_path / "inventory.yaml")
    assert problem in str(caught.value)


def test_an_engine_of_another_launcher_is_refused(tmp_path: Path) -> None:
    """Nobody but orch can start all ranks."""
    text = json.loads(written(launcher={"kind": "systemd", "unit": "big.service"}))
    del text["engines"]["big"]["command"]
    (tmp_path / "inventory.yaml").write_text(json.dumps(text))
    with pytest.raises(
        InventoryError, match=r"engines\.big\.launcher: orch itself starts an engine that spans 2 nodes"
    ):
        inventory.load(tmp_path / "inventory.yaml")


# ---- ranks, files and facts


def test_each_rank_has_its_own_command() -> None:
    """In the command and in the environment; other braces are left alone."""
    engine = Engine(
        name="big",
        python="/opt/python",
        base_url="http://127.0.0.1:30000",
        command=("serve", "{node_rank}/{n_nodes}", '{"a": 1}'),
        env={"HEAD": "{head_node}:20000"},
    )
    second = spanning.of_rank(engine, 1, ["n1", "n2"])
    assert second.command == ("serve", "1/2", '{"a": 1}')
    assert second.env == {"HEAD": "n1:20000"}
    assert spanning.placeholders_in(engine) == ["{node_rank}", "{n_nodes}", "{head_node}"]
    assert spanning.placeholders_in(second) == []


def state(digest: str | None = "sha256:a", *, phase: str = CLEAN, nonce: str | None = None, at_s: int = 5) -> FileState:
    """One file as a node has it."""
    lease = None if nonce is None else Lease(nonce, "ann", 60.0, "2026-03-01T12:00:00Z")
    deployed = digest if phase != CLEAN else None
    return FileState(
        "/f",
        "/f",
        digest,
        1,
        "644",
        "ann",
        1,
        1,
        at_s,
        float(at_s),
        phase,
        None,
        deployed,
        lease,  # type: ignore[arg-type]
    )


def seen(*states: FileState) -> spanning.Together:
    """What these nodes have together; leases that begin with ``own`` are ours."""
    return spanning.together([(one,) for one in states], lambda nonce: nonce.startswith("own"))


def test_nodes_that_are_alike_are_one() -> None:
    """With the newest times, for the next push has to be later than each."""
    both = seen(state(at_s=5), state(at_s=9))
    assert (both.is_alike, both.is_torn) == (True, False)
    assert (both.states[0].digest, both.states[0].mtime_s, both.states[0].ctime_s) == ("sha256:a", 9, 9.0)


@pytest.mark.parametrize(
    ("first", "second", "is_torn"),
    [
        (state(), state("sha256:b"), False),
        (state("sha256:v", phase="pushed", nonce="own"), state(), True),
        (state(), state("sha256:v", phase="pushed", nonce="own"), True),
        (state(nonce="own"), state(), True),
        (state(), state(nonce="somebody"), False),
    ],
)
def test_nodes_that_differ_have_no_name(first: FileState, second: FileState, is_torn: bool) -> None:
    """Somebody's edit on one is no push of ours that stopped half way; what is ours on a part of them is."""
    both = seen(first, second)
    assert both.is_torn == is_torn
    if first.digest != second.digest:
        assert not both.is_alike and both.states[0].digest not in (first.digest, second.digest)


def test_somebody_elses_lease_on_one_node_is_seen() -> None:
    """It binds the whole group."""
    (both,) = seen(state(nonce="own"), state(nonce="somebody")).states
    assert both.lease is not None and both.lease.nonce == "somebody"


def test_the_facts_of_a_group_do_not_depend_on_which_nodes_slurm_gave() -> None:
    """What all share stands once, what differs stands by rank, and names of nodes are taken out of texts."""

    def facts(*names: str) -> dict[str, str | int | float | None]:
        each = [
            {"engine_command": f"serve --rank {i} --at {names[0]}:20000", "driver_version": "580", "model": model}
            for i, model in zip(range(2), ("m", None), strict=True)
        ]
        return spanning.facts_of_group(each, names)

    assert facts("n1", "n2") == facts("n11", "n4")
    assert facts("n1", "n2") == {
        "engine_command": "serve --rank 0 --at {head_node}:20000 | serve --rank 1 --at {head_node}:20000",
        "driver_version": "580",
        "model": "m",
    }


# ---- nodes as a group


def cluster(*queue: str, size: int = 2) -> FakeRemote:
    """A login host with these jobs."""
    login = FakeRemote(name="cluster")
    login.host = replace(login.host, slurm=SlurmSettings(nodes=2, nodes_per_engine=size, queue_timeout_s=0.01))
    login.answer("squeue", "\n".join(queue))
    login.answer("srun", "")
    login.answer("scancel", "")
    return login


def test_nodes_become_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of their names, the first is the head; a group is called by all of them."""
    monkeypatch.setattr(slurm, "_await_keepers", lambda login, running: None)
    login = cluster(*(f"{i}|{i}|RUNNING|n{i}|None" for i in (1, 2, 3, 4)))
    first, second = slurm_group.open_places(login, n_places=2)
    assert [one.host.name for one in (first, second)] == ["cluster/n1+n2", "cluster/n3+n4"]
    assert [one.node for one in second.members] == ["n3", "n4"]
    (named,) = slurm_group.open_places(login, only=["n4+n1"])
    assert named.members[0].node == "n4", "rank 0 stays rank 0"
    (alone,) = slurm_group.open_places(login, only=["n2"])
    assert alone.members == (alone,)


def test_one_node_given_twice_is_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without --exclusive Slurm may do so; the option is named."""
    monkeypatch.setattr(slurm, "_await_keepers", lambda login, running: None)
    login = cluster("1|1|RUNNING|n1|None", "2|2|RUNNING|n1|None")
    with pytest.raises(NodeLostError, match="n1 to two jobs") as caught:
        slurm_group.open_places(login)
    assert "--exclusive" in str(caught.value)


def test_a_part_of_a_group_starts_no_engine() -> None:
    """What is left of one can be put back, and nothing else."""
    node = slurm.NodeRemote(cluster(), slurm.NodeJob("1", "1", "RUNNING", "n1", "None"))
    engine = Engine(name="big", python="/opt/python", base_url="http://127.0.0.1:30000")
    with pytest.raises(EngineError, match=r"cluster/n1: engine big spans 2 nodes \(nodes_per_engine\), and this is 1"):
        ranks(node, engine)


# ---- files and leases: all nodes or none


@pytest.fixture
def two(tmp_path: Path) -> Iterator[TwoNodes]:
    """A project on a group of two nodes; in the end nothing of it is left."""
    with two_nodes(tmp_path) as made:
        yield made


@pytest.fixture
def session(two: TwoNodes) -> Iterator[Session]:
    """On that group."""
    with two.session() as opened:
        yield opened


def push_v2(session: Session, ttl_s: float = 60.0) -> None:
    """Puts the variant live."""
    deploy(session, read_variant(session.project, session.target, "V2"), ttl_s=ttl_s, is_forced=True)


def statuses(session: Session) -> list[str]:
    """Of the deployments on record, oldest first."""
    return [row[0] for row in session.store.query("select status from deployments order by id", ())[1]]


@pytest.mark.slow
def test_push_and_revert_reach_every_node(two: TwoNodes, session: Session) -> None:
    """One deployment, the file and the lease on both; back with inode and time, and proved."""
    push_v2(session)
    assert all("num_stages=3" in text for text in two.texts())
    leases = [push.status(node, session.target)[0].lease for node in two.nodes]
    assert leases[0] is not None and leases[1] is not None and leases[0].nonce == leases[1].nonce
    live = look(session, "status")
    assert (live.name, live.by_node, live.is_torn) == ("V2", {}, False)
    restoration = conclude(session).restoration
    assert restoration.host == "cluster/n1+n2" and not restoration.was_clean
    assert two.identities() == two.before
    assert statuses(session) == ["reverted"]


def test_a_push_that_one_node_refuses_is_undone(two: TwoNodes, session: Session) -> None:
    """The first node had it already: it is as before at once, and the error says so."""
    two.nodes[1].fail("push", HostWriteError("cluster/n2: disk full"))
    with pytest.raises(HostWriteError, match="cluster/n2: disk full") as caught:
        push_v2(session)
    assert "cluster/n1: as before orch, proved by digest" in caught.value.evidence
    assert two.identities() == two.before and statuses(session) == ["failed"]
    assert [push.status(node, session.target)[0].lease for node in two.nodes] == [None, None]


@pytest.mark.slow
def test_a_node_that_is_lost_in_a_push_is_not_waited_for(
    two: TwoNodes, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other is put back; the record keeps the push open until the lost one is proved too."""
    monkeypatch.setattr(push, "RECONNECT_PAUSES_S", ())
    two.nodes[1].fail("push", NodeLostError("cluster/n2: gone"))
    two.nodes[1].fail("revert", NodeLostError("cluster/n2: gone"))
    with pytest.raises(NodeLostError) as caught:
        push_v2(session)
    assert "cluster/n2: not known to be as before; its watcher restores it" in caught.value.evidence
    assert two.identities() == two.before and statuses(session) == ["unknown"]
    two.nodes[1].faults.clear()
    conclude(session)
    assert statuses(session) == ["reverted"]


@pytest.mark.slow
def test_a_revert_restores_the_nodes_that_are_there(
    two: TwoNodes, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is wrong with the first: the second is restored, the first is named, and later proved."""
    monkeypatch.setattr(push, "RECONNECT_PAUSES_S", ())
    push_v2(session)
    two.nodes[0].fail("revert", NodeLostError("cluster/n1: gone"))
    with pytest.raises(RevertError, match="cluster/n1: not known to be restored"):
        conclude(session)
    assert "num_stages=3" in two.texts()[0] and two.identities()[1] == two.before[1]
    two.nodes[0].faults.clear()
    conclude(session)
    assert two.identities() == two.before


@pytest.mark.slow
def test_a_push_that_stopped_between_two_nodes_is_put_back_first(two: TwoNodes, session: Session) -> None:
    """An orch that was killed there, or a lease that ended on one node: what comes next begins with both as before."""
    push_v2(session)
    nonce = look(session, "status").nonce
    push.revert(two.nodes[1], session.target, nonce=nonce)
    torn = look(session, "status")
    assert torn.is_torn and torn.name is None
    assert "V2" in torn.by_node["n1"] and "baseline" in torn.by_node["n2"]
    with pytest.raises(LeaseLostError, match="V2 is no longer live"):
        arm_on_host(session)
    assert two.identities() == two.before and not made_whole(session, look(session, "status")).is_torn
    push_v2(session)
    assert all("num_stages=3" in text for text in two.texts())
    conclude(session)


@pytest.mark.slow
def test_an_edit_on_one_node_is_nobodys_to_overwrite(two: TwoNodes, session: Session) -> None:
    """Neither pushed over nor taken as the baseline, and the node is named; over a variant, a revert restores the other
    and leaves the edit alone."""
    before = two.files[1].read_bytes()
    two.files[1].write_bytes(before + b"# a colleague\n")
    with pytest.raises(StaleBaseError, match="cluster/n2: somebody else changed the live file"):
        push_v2(session)
    with pytest.raises(StaleBaseError, match="cluster/n2: flash_mla is"):
        prepare(session)
    two.files[1].write_bytes(before)
    push_v2(session)
    two.files[1].write_text(two.texts()[1] + "# a colleague\n")
    with pytest.raises(ForeignEditError):
        conclude(session)
    assert two.texts()[0].encode() == before and two.texts()[1].endswith("# a colleague\n")
    kept = conclude(session, force=True).restoration.kept_foreign
    assert len(kept) == 1 and kept[0].startswith("cluster/n2:")
    assert [text.encode() for text in two.texts()] == [before, before]


def test_a_lease_is_kept_on_every_node(two: TwoNodes, session: Session) -> None:
    """It is lost as soon as one node says so, and the other is renewed all the same."""
    push_v2(session, ttl_s=20.0)
    nonce = look(session, "status").nonce
    assert nonce is not None
    keeper = push.LeaseKeeper(session.remote, session.target, nonce=nonce, ttl_s=500.0)
    keeper.require()

    def remaining_s(node: Remote) -> float:
        lease = push.status(node, session.target)[0].lease
        return 0.0 if lease is None else lease.remaining_s

    assert all(remaining_s(node) > 400 for node in two.nodes)
    push.revert(two.nodes[0], session.target, nonce=nonce)
    with pytest.raises(LeaseLostError):
        push.LeaseKeeper(session.remote, session.target, nonce=nonce, ttl_s=900.0).require()
    assert remaining_s(two.nodes[1]) > 800
    conclude(session)


def test_a_file_that_two_nodes_share_is_refused(two: TwoNodes, session: Session) -> None:
    """Asked once for each group; nothing is left of the asking."""
    everywhere.refuse_shared_in_group(session)
    assert two.group.has_files_apart
    assert [path.name for file in two.files for path in file.parent.glob(".orch-*")] == []


@pytest.mark.slow
def test_no_rank_is_left_where_another_is_refused(two: TwoNodes, session: Session) -> None:
    """The head runs already when the second cannot start: it is ended, and the error names the second."""
    log_path = f"{two.nodes[1].scratch_dir()}/engines/stub-{two.user.port}/engine.log"
    two.nodes[1].fail(log_path, RemoteCommandError("cluster/n2: could not start it"))
    with pytest.raises(OrchError, match="cluster/n2"):
        serve.start(session.remote, session.engine, deployed_digest=None)
    assert serve.present(session.remote, session.engine) is None
    assert serve.gone(session.remote, session.engine) == tuple(two.nodes)


def test_a_load_is_stopped_when_a_node_is_gone(
    two: TwoNodes, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head of an engine may only wait for a dead rank: Slurm is asked now and then."""
    monkeypatch.setattr(everywhere, "GROUP_LOOK_S", 0.0)
    refuse_lost_node = everywhere.watch_nodes(session)
    refuse_lost_node()
    two.nodes[1].fail("", NodeLostError("cluster/n2: gone"))
    with pytest.raises(NodeLostError, match="cluster/n2: gone"):
        refuse_lost_node()
