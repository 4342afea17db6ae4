"""Nodes that Slurm gives: a host of the inventory that is a cluster's login host → one ``NodeRemote`` a node.

``sbatch`` starts a keeper (``node_keeper.sh``) on each node, as a batch job of its own. Each ``run`` is one exec on the
login host: a step of that job (``srun --overlap``), which hands the script to the keeper and brings the answer back. So
nothing goes over a shared file system, and what a script detaches belongs to the job and not to the step.

The jobs of a host are known by their name, so a later command finds the node that an earlier one was given. Whoever
asked for a node gives it back; what nobody uses goes back by itself.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import secrets
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files

from orchestrator.connection import framing, scripts
from orchestrator.connection.base import DEFAULT_TIMEOUT_S, Completed, Remote
from orchestrator.errors import HostWriteError, LineLostError, NodeLostError, RemoteCommandError, RemoteTimeoutError
from orchestrator.records import Host, SlurmSettings

QUEUE_POLL_S = 1.0
KEEPER_PATIENCE_S = 60.0
"""How long a job that runs may take until its keeper answers."""
MARGIN_S = 15.0
"""For the way through ``srun``, beyond a call's own deadline."""
KEEPER_GONE = 71
NOT_WHOLE = 78

_RUNNING = "RUNNING"
_WAITING = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "SUSPENDED"})
_NO_SLURM = 127

_SUBMIT = r"""
# $1 job name, $2 log pattern, the keeper on standard input; then options of sbatch, --, seconds of idleness
name=$1 log=$2
shift 2
command -v sbatch >/dev/null 2>&1 || { echo "there is no sbatch in the PATH of this login" >&2; exit 127; }
mkdir -p -- "$(dirname -- "$log")" || exit 73
n=$#
while [ "$n" -gt 0 ] && [ "$1" != -- ]; do set -- "$@" "$1"; shift; n=$((n - 1)); done
shift  # what follows the -- came first: the seconds
idle=$1
shift
exec sbatch --parsable --job-name="$name" --output="$log" --nodes=1 --ntasks=1 --no-requeue "$@" /dev/stdin "$idle"
"""

_JOBS = r"""
# $1 job name. One line a job that waits or runs, and of those that ended a moment ago
command -v squeue >/dev/null 2>&1 || { echo "there is no squeue in the PATH of this login" >&2; exit 127; }
exec squeue --noheader --array --user="$(id -un)" --name="$1" --states=all --format='%i|%A|%T|%N|%r'
"""

_CANCEL = 'exec scancel "$@"'

_EXCHANGE = r"""
# On the node, in a step of its job. $1 number of the request, $2 its bytes, which come on standard input.
folder=/tmp/orch-node-$(id -u)-$SLURM_JOB_ID
keeper=$(cat "$folder/begun" 2>/dev/null) && kill -0 "$keeper" 2>/dev/null || exit 71
umask 077
new=$folder/requests/.$1
cat >"$new" || exit 73
[ "$(wc -c <"$new")" -eq "$2" ] || { rm -f "$new"; exit 78; }  # a line that was cut: nothing is run
answer=$folder/answers/$1
mv "$new" "$folder/requests/$1" || exit 73
pause=0.01 n=0
until [ -e "$answer.done" ]; do
  sleep "$pause"
  n=$((n + 1))
  [ "$n" -lt 100 ] || pause=0.1
  kill -0 "$keeper" 2>/dev/null || [ -e "$answer.done" ] || exit 71
done
printf '%d %d\n' "$(wc -c <"$answer.out")" "$(wc -c <"$answer.err")"
cat "$answer.out" "$answer.err"
rm -f "$answer.out" "$answer.err" "$answer.done"
"""

_STEP = r"""
# $1 job, then what the node's shell gets. The whole node is the job's, so a step may share all that it has.
job=$1
shift
exec srun --jobid="$job" --overlap --mem=0 --nodes=1 --ntasks=1 --quiet /bin/sh -c "$@"
"""

OnWait = Callable[[float, str], None]
"""Told, while jobs wait: for how many seconds, and what Slurm says of them."""


@dataclass(frozen=True, slots=True)
class NodeJob:
    """A job of ours, as ``squeue`` tells.

    Attributes:
        job_id: ``12``, or ``12_0`` of an array. step_id: the number under which its steps run, fixed once it runs.
        node: empty until it runs. reason: why it waits.
    """

    job_id: str
    step_id: str
    state: str
    node: str
    reason: str

    @property
    def is_waiting(self) -> bool:
        """Whether it can still become a node."""
        return self.state in _WAITING


class NodeRemote(Remote):
    """One node, through the login host.

    Attributes:
        job: of Slurm, whose keeper runs there.
        node: its name.
        login: the login host; not closed with this.
    """

    def __init__(self, login: Remote, job: NodeJob) -> None:
        self.login, self.job, self.node = login, job, job.node
        self.host: Host = replace(login.host, name=node_name(login.host, job.node))
        self._numbers = itertools.count()
        self._prefix = secrets.token_hex(6)

    @property
    def members(self) -> tuple[NodeRemote, ...]:
        """See ``Remote.members``."""
        return (self,)

    def run(
        self,
        script: str,
        args: Sequence[str] = (),
        *,
        stdin: bytes = b"",
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> Completed:
        """See ``Remote.run``. One exec on the login host, and one step of the job.

        Raises:
            NodeLostError: the job is over, or its node is down.
        """
        frame = framing.frame(script, args)
        content = frame.first_line + stdin
        words = [self.job.step_id, _EXCHANGE, "orch", f"{self._prefix}-{next(self._numbers)}", str(len(content))]
        try:
            done = self.login.run(_STEP, words, stdin=content, timeout_s=timeout_s + MARGIN_S)
        except RemoteTimeoutError as exc:
            self.refuse_lost()
            raise RemoteTimeoutError(f"{self.host.name}: a command did not end within {timeout_s:g} s") from exc
        if done.exit_code:
            raise self._lost(done)
        return self._unpacked(frame, done.stdout)

    def _unpacked(self, frame: framing.Frame, answer: bytes) -> Completed:
        """Both streams out of one: a line with their lengths goes before them."""
        header, _, streams = answer.partition(b"\n")
        out, err = framing.StreamParser(frame), framing.StreamParser(frame)
        try:
            n_out, n_err = (int(word) for word in header.split())
        except ValueError:
            n_out = n_err = -1
        if len(streams) != n_out + n_err:
            raise LineLostError(f"{self.host.name}: the answer of the node is not whole")
        out.feed(streams[:n_out])
        err.feed(streams[n_out:])
        try:
            stdout = out.content()
            assert out.exit_code is not None
            return Completed(out.exit_code, stdout, err.content())
        except LineLostError as exc:
            raise LineLostError(f"{self.host.name}: {exc.message}", evidence=exc.evidence) from exc

    def _lost(self, done: Completed) -> Exception:
        """Why a step failed: the node is gone, or only this step is."""
        lines = done.stderr.decode("utf-8", "backslashreplace").splitlines()
        try:
            self.refuse_lost()
        except NodeLostError as exc:
            return exc
        if done.exit_code == KEEPER_GONE:
            return NodeLostError(
                f"{self.host.name}: job {self.job.job_id} runs, and orch's keeper in it is gone",
                next_step=f"end the job on the login host (`scancel {self.job.job_id}`) and try again",
                evidence=lines,
            )
        return LineLostError(
            f"{self.host.name}: a step of job {self.job.job_id} failed (exit code {done.exit_code})", evidence=lines
        )

    def refuse_lost(self) -> None:
        """Asks Slurm whether the node is still ours.

        Raises:
            NodeLostError: its job is over, or the node is down.
        """
        now = next((job for job in jobs(self.login) if job.job_id == self.job.job_id), None)
        if now is None or now.state != _RUNNING:
            state = "no longer known to Slurm" if now is None else f"{now.state}{_because(now)}"
            raise NodeLostError(
                f"{self.host.name}: its job {self.job.job_id} is {state}",
                next_step="`orch status` asks for a node again and says what is live there",
            )

    def scratch_dir(self) -> str:
        """A folder of the node's own: the one of the inventory may be shared by all nodes."""
        if self._scratch_dir is None:
            shared = super().scratch_dir()
            done = self.run(scripts.SCRATCH_DIR, [f"{shared}/nodes/{self.node}"])
            if done.exit_code:
                raise HostWriteError(f"{self.host.name}: no scratch folder {shared}/nodes/{self.node}")
            self._scratch_dir = done.stdout[:-1].decode("utf-8", "surrogateescape")
        return self._scratch_dir

    def close(self) -> None:
        """Leaves the node as it is: a later command finds it again, or it is given back after its idle time."""


def node_name(host: Host, node: str) -> str:
    """The name of a node in messages and in the record."""
    return f"{host.name}/{node}"


def jobs(login: Remote) -> list[NodeJob]:
    """The jobs of this host, those that ended a moment ago included.

    Raises:
        RemoteCommandError: Slurm does not answer there.
    """
    done = login.run(_JOBS, [_job_name(login.host)])
    if done.exit_code:
        raise _no_slurm(login, done, "squeue")
    return [NodeJob(*line.split("|", 4)) for line in done.text.splitlines() if line.count("|") >= 4]


def held_nodes(login: Remote) -> list[str]:
    """The nodes that this host has now."""
    return sorted(job.node for job in jobs(login) if job.state == _RUNNING)


def give_back(login: Remote) -> None:
    """Ends every job of this host; what still holds a file there restores it first."""
    ids = [job.job_id for job in jobs(login) if job.state == _RUNNING or job.is_waiting]
    if ids:
        login.run(_CANCEL, ids)


def open_nodes(
    login: Remote,
    *,
    n_nodes: int = 1,
    only: Sequence[str] = (),
    on_wait: OnWait | None = None,
    patience_s: float | None = None,
) -> list[NodeRemote]:
    """Nodes to work on: those that this host has already, and for the rest jobs that are waited for.

    Args:
        login: the login host. only: the nodes with these names, instead of any ``n_nodes``.
        patience_s: instead of ``queue_timeout_s``.

    Returns:
        One for each node, by name. They live as long as ``login``.

    Raises:
        NodeLostError: a job ended before it ran, or waited longer than ``queue_timeout_s``. What was asked for here is
            given back, also on Ctrl-C.
    """
    settings = login.host.slurm
    assert settings is not None
    if patience_s is not None:
        settings = replace(settings, queue_timeout_s=patience_s)
    held = [job for job in jobs(login) if job.state == _RUNNING or job.is_waiting]
    wanted = [job for job in held if not only or job.node in only]
    wanted = sorted(wanted, key=lambda job: (job.is_waiting, job.node))[: len(only) or n_nodes]
    asked = []
    try:
        missing = [node for node in only if node not in {job.node for job in wanted}]
        for node in missing:
            asked += _submit(login, settings, 1, [f"--nodelist={node}"])
        if not only and len(wanted) < n_nodes:
            asked += _submit(login, settings, n_nodes - len(wanted), [])
        ids = [*(job.job_id for job in wanted), *asked]
        return [NodeRemote(login, job) for job in _await_running(login, settings, ids, on_wait)]
    except BaseException:
        if asked:
            login.run(_CANCEL, asked)
        raise


def _submit(login: Remote, settings: SlurmSettings, n_jobs: int, options: Sequence[str]) -> list[str]:
    """Asks for nodes; one array when there are several. Returns their ``job_id``s."""
    array = [f"--array=0-{n_jobs - 1}"] if n_jobs > 1 else []
    log = f"{login.scratch_dir()}/slurm/job-%A-%a.log" if array else f"{login.scratch_dir()}/slurm/job-%j.log"
    words = [_job_name(login.host), log, *array, *settings.options, *options, "--", f"{settings.idle_release_s:.0f}"]
    keeper = files(__package__).joinpath("node_keeper.sh").read_bytes()
    done = login.run(_SUBMIT, words, stdin=keeper, timeout_s=60.0)
    if done.exit_code:
        raise _no_slurm(login, done, "sbatch")
    master = re.match(r"\d+", done.text)
    if master is None:
        raise RemoteCommandError(f"{login.host.name}: sbatch answered {done.text[:200]!r} and no number of a job")
    return [f"{master.group()}_{task}" for task in range(n_jobs)] if array else [master.group()]


def _await_running(login: Remote, settings: SlurmSettings, ids: Sequence[str], on_wait: OnWait | None) -> list[NodeJob]:
    began_s = time.monotonic()
    while True:
        by_id = {job.job_id: job for job in jobs(login)}
        ours = [by_id.get(number, NodeJob(number, number, "unknown to Slurm", "", "")) for number in ids]
        for job in ours:
            if job.state != _RUNNING and not job.is_waiting:
                raise NodeLostError(
                    f"{login.host.name}: job {job.job_id} is {job.state}{_because(job)} and never kept a node",
                    next_step=f"read its log below {login.scratch_dir()}/slurm on the login host",
                )
        waited_s = time.monotonic() - began_s
        if all(job.state == _RUNNING for job in ours):
            _await_keepers(login, ours)
            return sorted(ours, key=lambda job: job.node)
        if waited_s > settings.queue_timeout_s:
            waiting = [job for job in ours if job.is_waiting]
            raise NodeLostError(
                f"{login.host.name}: {len(waiting)} of {len(ours)} jobs still wait after {waited_s:.0f} s"
                f"{_because(waiting[0])}",
                next_step="raise queue_timeout_s under slurm, or ask for less",
            )
        if on_wait is not None:
            on_wait(waited_s, _in_words(ours))
        time.sleep(QUEUE_POLL_S)


def _await_keepers(login: Remote, running: Sequence[NodeJob]) -> None:
    deadline = time.monotonic() + KEEPER_PATIENCE_S
    for job in running:
        while True:
            try:
                NodeRemote(login, job).run(":", timeout_s=KEEPER_PATIENCE_S)
                break
            except (NodeLostError, LineLostError) as exc:
                gone = {one.job_id for one in jobs(login) if one.state != _RUNNING}
                if job.job_id in gone or time.monotonic() > deadline:
                    raise NodeLostError(
                        f"{login.host.name}: orch's keeper in job {job.job_id} on {job.node} does not answer",
                        next_step=f"read its log below {login.scratch_dir()}/slurm on the login host",
                        evidence=exc.evidence,
                    ) from exc
                time.sleep(QUEUE_POLL_S / 4)


def _job_name(host: Host) -> str:
    """Of all jobs of this host of the inventory; two projects that mean the same host share its nodes."""
    means = repr((host.ssh, host.user, host.port, host.scratch_dir, host.slurm))
    return f"orch-{host.name}-{hashlib.sha256(means.encode()).hexdigest()[:8]}"


def _in_words(ours: Sequence[NodeJob]) -> str:
    return ", ".join(f"job {job.job_id} {job.state}{f' on {job.node}' if job.node else _because(job)}" for job in ours)


def _because(job: NodeJob) -> str:
    return f" ({job.reason})" if job.reason not in ("", "None") else ""


def _no_slurm(login: Remote, done: Completed, tool: str) -> RemoteCommandError:
    lines = done.stderr.decode("utf-8", "backslashreplace").splitlines()
    said = f": {lines[-1].strip()}" if lines else ""
    settings = login.host.slurm
    options = shlex.join(settings.options) if settings else ""
    fix = "use a login host that has it, or its full PATH" if done.exit_code == _NO_SLURM else f"check {options!r}"
    return RemoteCommandError(f"{login.host.name}: {tool} failed{said}", next_step=fix, evidence=lines[-25:])
