"""An experiment on the nodes of a cluster: its blocks spread over them, each block whole on one node.

Every node has a thread with a session of its own, and takes the next block as soon as it has finished one. Starts of
different nodes are never compared with each other: a ratio is of two starts of one block. A node that is out of reach
loses its block, which is made again on another one; at the end it is asked for once more, to be proved restored. Where
an engine spans several nodes, a group of them stands for a node: it is out of reach with the first of them, and then
the others are put back all the same.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace

from orchestrator.connection.slurm import NodeRemote, held_nodes, open_nodes
from orchestrator.connection.slurm_group import names_in
from orchestrator.designs import StartRecord
from orchestrator.errors import (
    ConnectionError_,
    InterruptedError_,
    NodeLostError,
    OrchError,
    RemoteTimeoutError,
    RevertError,
)
from orchestrator.experiment import admitting, blocks, events, everywhere
from orchestrator.experiment.conclude import end_engine
from orchestrator.experiment.run import put_back
from orchestrator.experiment.starts import Conduct, Ending, lose_host, make, next_act
from orchestrator.records import LoadProgress, Progress
from orchestrator.session import Session, end_nodes, open_nodes_for, session_on
from orchestrator.store import RecordedEvent

LOOK_S = 0.5
"""How often a node that waits for others, and the main thread, look whether something else was decided."""

RECOVERY_S = 60.0
"""How long a node that was lost is asked for again, at the end, to be proved restored."""

_OUT_OF_REACH = (ConnectionError_, RemoteTimeoutError)


@dataclass(slots=True)
class _Lane:
    """A node at work. ``lost``: why it is out of reach. ``error``: what ends the whole experiment."""

    remote: NodeRemote
    lost: OrchError | None = None
    error: BaseException | None = None


class Nodes:
    """See ``Place``: so many nodes as the inventory says, and those on which something of ours may still be live."""

    def __init__(self, running: Conduct, n_places: int) -> None:
        self.running = running
        self._n_places = n_places
        self._lanes: list[_Lane] = []
        self._showing = threading.RLock()

    def take_up(self) -> None:
        """See ``Place``. A start under way is made again; a half made block whose node is not held any more, too."""
        running = self.running
        store, number = running.session.store, running.experiment_id
        self._hold(self._n_places)
        hosts = {lane.remote.host.name for lane in self._lanes}
        is_torn = blocks.tear_old_block(store, number)
        abandoned = store.abandon_running_starts(number, blocks.ABANDONED)
        begun = blocks.begun_on(store, running.record())
        for block, host in begun.items():
            if host not in hosts:
                blocks.give_up_block(store, number, block, f"{host} is not held any more")
                is_torn = True
        blocks.mend(store, number)
        running.board.conditions = admitting.first_conditions(running.session, running.record())
        running.board.claims.update({block: host for block, host in begun.items() if host in hosts})
        if abandoned or is_torn:
            told = events.recovered(len(abandoned), "none is taken over on a node", is_torn, is_taken_over=False)
            running.tell("recovered", told)

    def run(self) -> Ending:
        """See ``Place``."""
        names = [lane.remote.node for lane in self._lanes]
        self.running.board.n_hosts = len(names)
        self.running.tell("nodes", (f"works on {', '.join(names)}", {"nodes": names, "is_held": True}))
        threads = [threading.Thread(target=self._work, args=(lane,), daemon=True) for lane in self._lanes]
        for thread in threads:
            thread.start()
        try:
            _join(threads)
        except BaseException:
            self._stop()
            _join(threads)
            raise
        return self._ending()

    def put_back(self) -> RevertError | None:
        """See ``Place``. Each node for itself, whatever is wrong with another."""
        self._hold(1)
        unproved: list[OrchError] = []
        errors: list[OrchError] = []
        for lane in self._lanes:
            try:
                self._put_back(lane)
            except _OUT_OF_REACH as exc:
                unproved.append(exc)
            except OrchError as exc:
                errors.append(exc)
        if errors:
            raise errors[0]
        return _not_proved(unproved) if unproved else None

    def finish(self) -> None:
        """See ``Place``: the nodes go back to Slurm, and what still holds a file there restores it."""
        names = [lane.remote.node for lane in self._lanes]
        end_nodes(self.running.session)
        self.running.tell("nodes", (f"{', '.join(names)} given back to Slurm", {"nodes": names, "is_held": False}))

    def end_engines(self) -> None:
        """See ``Place``."""
        for lane in self._lanes:
            with contextlib.suppress(OrchError), self._conduct(lane) as here:
                end_engine(here.session)

    # ---- one node

    def _hold(self, n_places: int) -> None:
        """Asks for so many nodes, and those on which something of ours may be live, unless that was done."""
        if not self._lanes:
            self._lanes = [_Lane(remote) for remote in open_nodes_for(self.running.session, n_places)]

    def _put_back(self, lane: _Lane) -> None:
        """Restores a node, or a group as a whole; one that was lost is asked for once more, each node for itself.

        Raises:
            NodeLostError: a node is still out of reach. Others: as ``put_back``; the other nodes were restored then.
        """
        if lane.lost is None:
            with self._conduct(lane) as here:
                put_back(here)
            return
        login, store = lane.remote.login, self.running.session.store
        held = held_nodes(login)
        errors: list[OrchError] = []
        for node in sorted(names_in(lane.remote.node), key=lambda one: one not in held):
            try:
                (alone,) = open_nodes(login, only=[node], patience_s=RECOVERY_S)
                lane.remote = alone if len(lane.remote.members) == 1 else lane.remote
                with self._conduct(replace(lane, remote=alone)) as here:
                    put_back(here)
            except OrchError as exc:
                errors.append(exc)
        if errors:
            raise errors[0]
        lane.lost = None
        for opened in store.open_deployments(self.running.plan.target):  # on a group: proved node by node
            if opened.host == lane.remote.host.name:
                store.end_deployment(opened.id, "reverted")

    @contextlib.contextmanager
    def _conduct(self, lane: _Lane) -> Iterator[Conduct]:
        """The experiment on one node, for the thread that calls."""
        with session_on(self.running.session, lane.remote) as session:
            session.report = lambda progress: self._show(lane, progress)
            yield replace(
                self.running,
                session=session,
                emit=self._emit,
                on_load=lambda load: self._show_load(lane, load),
                attempts={},
                is_lane=True,
            )

    def _work(self, lane: _Lane) -> None:
        """Block after block, in a thread of its own."""
        try:
            with self._conduct(lane) as here:
                record = here.record()
                here.earlier = admitting.earlier_starts(here.session, record)
                self._make_starts(lane, here)
        except (KeyboardInterrupt, InterruptedError_):
            pass  # the main thread knows
        except BaseException as exc:
            lane.error = exc
            self._stop()

    def _make_starts(self, lane: _Lane, here: Conduct) -> None:
        while True:
            with here.board.changed:
                act = next_act(here)
                if act is None:
                    here.board.changed.wait(LOOK_S)
            if isinstance(act, Ending):
                return
            if act is not None and not self._made(lane, here, act):
                return

    def _made(self, lane: _Lane, here: Conduct, start: StartRecord) -> bool:
        """Makes a start; False when the node is out of reach."""
        try:
            make(here, start)
        except _OUT_OF_REACH as exc:
            lane.lost = exc
            here.board.n_hosts -= 1
            lose_host(here, start, exc)
            return False
        return True

    # ---- all of them

    def _stop(self) -> None:
        with self.running.board.changed:
            self.running.board.is_stopped = True
            self.running.board.changed.notify_all()

    def _ending(self) -> Ending:
        """What the nodes have found, once all threads have ended."""
        board = self.running.board
        for lane in self._lanes:
            if lane.error is not None:
                raise lane.error
        if board.ending is not None:
            self.running.session.store.abandon_running_starts(self.running.experiment_id, "the experiment had ended")
            return board.ending
        lost = [lane.lost for lane in self._lanes if lane.lost is not None]
        if len(lost) == len(self._lanes):
            raise NodeLostError(f"every node is out of reach; the last: {lost[-1].message}", evidence=lost[-1].evidence)
        raise KeyboardInterrupt

    def _emit(self, event: RecordedEvent) -> None:
        with self._showing:
            self.running.emit(event)

    def _show(self, lane: _Lane, progress: Progress) -> None:
        board = self.running.board
        if progress.stage in ("ready", "load") and (board.is_stopped or board.ending is not None):
            raise InterruptedError_("the experiment has ended meanwhile")
        with self._showing:
            self.running.session.report(replace(progress, text=f"{lane.remote.node}: {progress.text}"))

    def _show_load(self, lane: _Lane, load: LoadProgress) -> None:
        text = f"concurrency {load.concurrency_cap}"
        self._show(lane, Progress("load", text, load.n_done, load.n_total, load.elapsed_s, None, load.phase))


def refuse_shared_files(session: Session) -> None:
    """Refuses to spread an experiment over nodes that have a file of the target in common.

    Raises:
        ExperimentError: two nodes share a file. NodeLostError: Slurm did not give so many nodes.
    """
    everywhere.refuse_shared_files(session, open_nodes_for(session, session.n_places))


def _join(threads: list[threading.Thread]) -> None:
    """Waits for all; a signal is taken between two looks."""
    for thread in threads:
        while thread.is_alive():
            thread.join(LOOK_S)


def _not_proved(unproved: list[OrchError]) -> RevertError:
    return RevertError(
        f"not proved to be restored, for it is out of reach: {unproved[0].message}",
        next_step="`orch revert` proves it as soon as Slurm gives that node again; its watcher restores it if it is up",
        evidence=[exc.message for exc in unproved],
    )
