"""The records that stations hand on. Nouns only: frozen, typed, and without behaviour that touches the world.

Each carries the digest or id of what it came from, so that no later station looks back:
``Snapshot(digest) → Variant(digest, base_digest) → Deployment(digest, previous_digest) → Service(loaded proof) →
LoadResult(samples) → Comparison(arms)``. ``None`` always means "not measured" or "not there", never 0.

The records that ``inventory.yaml`` fills (Host, Target, Engine, Workload) carry pydantic's settings as plain class
attributes, so that ``inventory.py`` can validate them and nobody else has to import pydantic.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Gt, Le, MinLen

CLEAN, PUSHING, PUSHED = "clean", "pushing", "pushed"
Phase = Literal["clean", "pushing", "pushed"]
"""Journal phase of a target file on its host."""

EngineKind = Literal["sglang", "vllm", "llama-server", "transformers", "kernel", "other"]

SHORT_DIGEST_LENGTH = 12


def digest_of(content: bytes) -> str:
    """``sha256:`` and 64 hex digits of the bytes as they are."""
    return "sha256:" + hashlib.sha256(content).hexdigest()


def short(digest: str | None) -> str:
    """Twelve hex digits, only for show; a missing digest is a dash."""
    return "–" if digest is None else digest.removeprefix("sha256:")[:SHORT_DIGEST_LENGTH]


def manifest_digest(files: Iterable[tuple[str, str]]) -> str:
    """The digest that names a set of files: of one file its own, of several that of their sorted list.

    Args:
        files: (name, digest) of each file of a target.

    Returns:
        For one file its digest, so that the number belongs to the bytes that the engine loads. For several, the
        digest of the text ``<digest>  <name>\\n`` of each, sorted by name.
    """
    entries = sorted(files)
    if len(entries) == 1:
        return entries[0][1]
    return digest_of("".join(f"{digest}  {name}\n" for name, digest in entries).encode())


# ---- what inventory.yaml says

_STRICT: dict[str, Any] = {"extra": "forbid"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmSettings:
    """How nodes of a cluster are asked for, through its login host.

    Attributes:
        nodes: how many identical nodes an experiment spreads over; each is a job of its own.
        nodes_per_engine: over how many of them one engine spans; with 1 each node has a whole one.
        options: further options of ``sbatch``.
        queue_timeout_s: how long a job may wait in the queue.
        idle_release_s: a node without work is given back after that.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    nodes: Annotated[int, Ge(1), Le(64)] = 1
    nodes_per_engine: Annotated[int, Ge(1), Le(64)] = 1
    options: tuple[str, ...] = ()
    queue_timeout_s: Annotated[float, Gt(0)] = 3600.0
    idle_release_s: Annotated[float, Ge(10)] = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A machine reached by SSH (or this machine).

    Attributes:
        name: its name in the inventory.
        transport: ``ssh``, or ``local`` for someone who works on the GPU host itself.
        ssh: an alias of the user's ssh configuration or an address; the name itself when not given.
        user: overrides the ssh configuration; likewise ``port``, ``identity`` (private key file), ``jump``
            (``[user@]host[:port]`` or an alias), ``known_hosts`` (file).
        ssh_config: an ssh configuration file to use instead of the user's own.
        connect_timeout_s: for the whole of connect, key exchange and login.
        scratch_dir: absolute folder on the host for logs, results and caches; when not given
            ``${XDG_CACHE_HOME:-$HOME/.cache}/orch``.
        slurm: the host is the login host of a cluster, and the work is done on nodes that Slurm gives.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    name: str
    transport: Literal["ssh", "local"] = "ssh"
    ssh: str | None = None
    user: str | None = None
    port: Annotated[int, Ge(1), Le(65535)] | None = None
    identity: str | None = None
    jump: str | None = None
    known_hosts: str | None = None
    ssh_config: str | None = None
    connect_timeout_s: Annotated[float, Gt(0)] = 20.0
    scratch_dir: str | None = None
    slurm: SlurmSettings | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetFile:
    """One file of a target.

    Attributes:
        path: absolute path on the host.
        name: its path inside the workspace: relative to the folder that all files of the target share.
        module: dotted name by which the engine imports it, where it is a module.
    """

    path: str
    name: str
    module: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckSettings:
    """What ``orch check`` has to be told of a target's kernel.

    Attributes:
        arch: architectures to compile for (``sm_120``), where the host does not tell its own.
        arguments: by argument of the kernel, or by a pattern (``*_stride_*``; the first that fits counts, an exact
            name before any pattern): a type in Triton's notation (``*bf16``, ``i32``, ``*fp32:16`` and ``i32:16`` for
            multiples of 16, ``i32:1`` for 1), or the value that the launcher passes.
        varies: what changes from launch to launch and should decide which config is best: names that the autotune
            key must hold.
        reference: command that judges a variant on the host, with ``{file}`` for the file and ``{folder}`` for its
            folder; run without a shell, exit code 0 when the kernel is right.
        reference_timeout_s: a reference command that takes longer has failed.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    arch: tuple[str, ...] = ()
    arguments: Mapping[str, bool | int | float | str | None] = field(default_factory=dict)
    varies: tuple[str, ...] = ()
    reference: tuple[str, ...] = ()
    reference_timeout_s: Annotated[float, Gt(0)] = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What is tuned: one or more files on one host, and the kernel in the first of them.

    Attributes:
        name: its name in the inventory.
        host, engine: names in the inventory.
        files: at least one; the first holds the kernel.
        kernel: name of the ``@triton.jit`` function; None for files without one, whose variants are edited by hand.
        check: what ``orch check`` has to be told of the kernel.
    """

    name: str
    host: str
    engine: str
    files: Annotated[tuple[TargetFile, ...], MinLen(1)]
    kernel: str | None = None
    check: CheckSettings = CheckSettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """Who starts and stops an engine on its host, and how that one is told to.

    Attributes:
        kind: ``command``: orch itself starts the engine's command. ``systemd``: a unit. ``container``: docker or
            podman. ``manual``: it runs already, and a command of the user's, or the user by hand, starts it again.
        unit: of systemd. user: it belongs to the login's own systemd.
        sudo: what orch runs on the host for this engine runs as root, through ``sudo -n``.
        runtime: the container's program. name: of the container.
        mode: ``restart``: the container is the engine. ``exec``: the container runs on, and orch starts the engine's
            command inside it.
        python: the engine's interpreter as a path inside the container; ``Engine.python`` is one of the host's then.
        restart_command: argument vector, run on the host without a shell; none: the user is asked to do it.
        timeout_s: a call of systemctl, of the container's program or of ``restart_command`` that takes longer has
            failed.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    kind: Literal["command", "systemd", "container", "manual"] = "command"
    unit: str | None = None
    user: bool = False
    sudo: bool = False
    runtime: Literal["docker", "podman"] = "docker"
    name: str | None = None
    mode: Literal["restart", "exec"] = "restart"
    python: str | None = None
    restart_command: tuple[str, ...] = ()
    timeout_s: Annotated[float, Gt(0)] = 600.0

    @property
    def can_be_stopped(self) -> bool:
        """Whether orch can end the engine and have it started later; else it can only be restarted."""
        return self.kind != "manual"

    @property
    def runs_command(self) -> bool:
        """Whether orch starts the engine's command, so that it decides over its arguments, environment and folder."""
        return self.kind == "command" or (self.kind == "container" and self.mode == "exec")


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A serving program and how it is started, asked and stopped on its host.

    Attributes:
        name: its name in the inventory.
        kind: what is known of it (see ``engines``): the defaults of its paths in the inventory, how it is asked for its
            version, arguments and counters.
        launcher: who starts and stops it.
        command: argument vector; run without a shell. Empty where the launcher knows how.
        cwd: working directory on the host; the scratch folder when not given.
        env: added to the environment of the host's login.
        python: absolute path of the interpreter that runs the engine: it resolves modules and runs the load client.
        base_url: where it answers, seen from the host itself.
        ready_path: answers 200 when ready.
        ready_timeout_s: after that a start has failed.
        model: the name that requests send, where the engine asks for one.
        stop_signal: sent to the process group; after ``stop_grace_s`` KILL follows.
        log: absolute path on the host; in the scratch folder when not given.
        loaded_path: answers JSON ``{"modules": {"<dotted name>": "sha256:…"}}`` where it can tell.
        cache_flush_path: POSTed before each concurrency when the workload's cache policy is ``flush``.
        restart_after_restore: whether the watcher on the host, having restored the file, starts the engine again; one
            that ran before orch came it starts in any case.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    name: str
    python: str
    base_url: str
    kind: EngineKind = "other"
    launcher: Launcher = field(default_factory=Launcher)
    command: tuple[str, ...] = ()
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    ready_path: str = "/health"
    ready_timeout_s: Annotated[float, Gt(0)] = 600.0
    model: str | None = None
    stop_signal: Literal["TERM", "INT", "QUIT"] = "TERM"
    stop_grace_s: Annotated[float, Ge(0)] = 30.0
    log: str | None = None
    loaded_path: str | None = None
    cache_flush_path: str | None = None
    restart_after_restore: bool = False


RECIPE_KEYS = (
    "input_tokens",
    "output_tokens",
    "prompts_per_concurrency",
    "warmup_per_concurrency",
    "seed",
    "cache_policy",
)
"""The fields of a workload that say which load it is, whoever makes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A load, in words that mean the same whichever client makes it.

    Attributes:
        name: its name in the inventory.
        client: which load client.
        client_command: argument vector on the host that the client's own options follow; not for loadgen.
        client_env: added to the environment of the client alone; not for loadgen.
        tokenizer: folder or name that the client makes its prompts with; not for loadgen.
        input_tokens, output_tokens: fixed length of every request.
        prompts_per_concurrency: measured requests = this × concurrency.
        warmup_per_concurrency: discarded requests before each measured load = this × concurrency.
        seed: of the prompts; the same seed gives the same prompts in the same order.
        min_token_id, max_token_id: loadgen's prompts are token ids drawn from this range, ends included; the vocabulary
            of the model must hold it, and special tokens should lie outside.
        cache_policy: ``flush`` the engine's prefix cache before each concurrency, or ``keep`` it.
        request_timeout_s: a request that takes longer has failed.
        load_timeout_s: a whole load (one concurrency) that takes longer has failed.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    name: str
    client: Literal["loadgen", "sglang", "vllm", "guidellm", "aiperf"] = "loadgen"
    client_command: tuple[str, ...] = ()
    client_env: Mapping[str, str] = field(default_factory=dict)
    tokenizer: str | None = None
    input_tokens: Annotated[int, Ge(1)] = 128
    output_tokens: Annotated[int, Ge(1)] = 64
    prompts_per_concurrency: Annotated[int, Ge(1)] = 10
    warmup_per_concurrency: Annotated[int, Ge(0)] = 2
    seed: Annotated[int, Ge(0)] = 42
    min_token_id: Annotated[int, Ge(0)] = 1000
    max_token_id: Annotated[int, Ge(0)] = 31000
    cache_policy: Literal["flush", "keep"] = "keep"
    request_timeout_s: Annotated[float, Gt(0)] = 120.0
    load_timeout_s: Annotated[float, Gt(0)] = 3600.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "client_command", tuple(self.client_command))  # kept as JSON, it comes back a list

    @property
    def recipe(self) -> tuple[object, ...]:
        """Equal for workloads that are the same load by different clients."""
        return tuple(getattr(self, key) for key in RECIPE_KEYS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """A whole inventory.yaml, validated, with every reference resolved to an existing name."""

    path: str
    hosts: Mapping[str, Host]
    targets: Mapping[str, Target]
    engines: Mapping[str, Engine]
    workloads: Mapping[str, Workload]


# ---- files and variants


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to write a target, as the host sees it. The host's clock judges.

    Attributes:
        nonce: fences every write.
        holder: who, for people (``user@laptop pid 123``); no white space inside a word is lost.
        remaining_s: until expiry by the host's clock; 0 or less when expired.
        expires_at: ISO 8601 UTC by the host's clock.
    """

    nonce: str
    holder: str
    remaining_s: float
    expires_at: str


@dataclass(frozen=True, slots=True)
class FileState:
    """One look at one target file on its host.

    Attributes:
        path: as in the inventory; ``real_path``: after all symlinks.
        digest: None when there is no file.
        mtime_s: whole seconds since the epoch, the part that Python's bytecode cache trusts.
        ctime_s: last change of the inode, with fraction where the host's stat gives it.
        phase: what the journal says; ``base_digest`` and ``pushed_digest`` with it.
        lease: None when nobody holds one.
    """

    path: str
    real_path: str
    digest: str | None
    size_bytes: int | None
    mode: str | None
    owner: str | None
    inode: int | None
    n_links: int | None
    mtime_s: int | None
    ctime_s: float | None
    phase: Phase
    base_digest: str | None
    pushed_digest: str | None
    lease: Lease | None


@dataclass(frozen=True, slots=True)
class SourceFile:
    """Content of one file of a target: name inside the workspace, digest, bytes."""

    name: str
    digest: str
    content: bytes

    @staticmethod
    def of(name: str, content: bytes) -> SourceFile:
        """A source file whose digest is computed from its content."""
        return SourceFile(name, digest_of(content), content)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The files of a target as they were on the host at one moment."""

    target: str
    host: str
    files: tuple[SourceFile, ...]
    states: tuple[FileState, ...]
    pulled_at: str

    @property
    def digest(self) -> str:
        """Digest of the set (of one file: its own)."""
        return manifest_digest((f.name, f.digest) for f in self.files)


@dataclass(frozen=True, slots=True)
class WorkingCopy:
    """A variant's folder as it is now, before anybody looked at what it changes.

    Attributes:
        name: ``baseline`` is never one.
        base_digest: digest of the baseline that it was made from.
        message: the hypothesis, in the user's words.
        settings: knobs as they were given when it was made; a later edit by hand does not change them.
    """

    target: str
    name: str
    files: tuple[SourceFile, ...]
    base_digest: str
    message: str
    created_at: str
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """Digest of the set (of one file: its own)."""
        return manifest_digest((f.name, f.digest) for f in self.files)


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between a variant and its base, found by comparing syntax trees.

    Attributes:
        kind: ``knob`` for a value inside the kernel's autotune list, ``text`` for comments and white space only,
            ``code`` for anything else.
        file: name of the file. where: function or ``module``; for a knob the autotune config (``config 0``).
        name: knob name, or a short description. before, after: as source text; None when absent.
    """

    kind: Literal["knob", "code", "text"]
    file: str
    where: str
    name: str
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class Variant:
    """A set of files made from a base by named edits.

    Attributes:
        name: ``baseline`` is never one.
        base_digest: digest of the baseline that it was made from.
        message: the hypothesis, in the user's words.
        changes: every difference to the base.
        edited_functions: functions whose code (not only the autotune list of the kernel) differs.
    """

    target: str
    name: str
    files: tuple[SourceFile, ...]
    base_digest: str
    message: str
    changes: tuple[Change, ...]
    edited_functions: tuple[str, ...]
    created_at: str

    @property
    def digest(self) -> str:
        """Digest of the set (of one file: its own)."""
        return manifest_digest((f.name, f.digest) for f in self.files)

    @property
    def is_isolated(self) -> bool:
        """Whether nothing but knobs of the kernel's autotune list differs."""
        return bool(self.changes) and all(change.kind == "knob" for change in self.changes)


@dataclass(frozen=True, slots=True)
class DeployedFile:
    """One file of a deployment as the host acknowledged it."""

    path: str
    real_path: str
    digest: str
    previous_digest: str
    mtime_s: int
    was_already_there: bool


@dataclass(frozen=True, slots=True)
class Deployment:
    """What a push put on a host, acknowledged with digests.

    Attributes:
        digest, previous_digest: of the whole set.
        nonce: the lease that fences it. lease_expires_at: ISO 8601 UTC, by the host's clock.
        n_round_trips: requests that the push needed.
    """

    target: str
    host: str
    digest: str
    previous_digest: str
    nonce: str
    lease_expires_at: str
    files: tuple[DeployedFile, ...]
    pushed_at: str


@dataclass(frozen=True, slots=True)
class Restoration:
    """What a revert found and left, proved by digests.

    Attributes:
        digest: of the set as it is now; equal to the baseline's.
        was_clean: nothing had to be done.
        kept_foreign: paths on the host where overwritten foreign edits are kept (only with force).
    """

    target: str
    host: str
    digest: str
    was_clean: bool
    kept_foreign: tuple[str, ...]
    states: tuple[FileState, ...]
    reverted_at: str


# ---- the engine


@dataclass(frozen=True, slots=True)
class EngineProcess:
    """The leader of a started engine's process group.

    Attributes:
        pid: also the group's and session's id. start_ticks: field 22 of /proc/PID/stat, which with the pid is an
            identity that a reused pid cannot fake; None where there is no /proc.
        started_at: ISO 8601 UTC, by the host's clock. started_s: the same as seconds since the epoch.
        log_path: on the host.
        deployed_digest: what was deployed when it was started, as told by the caller.
        others: of an engine that spans several nodes, the leaders on the others, in the order of ranks.
    """

    engine: str
    host: str
    pid: int
    start_ticks: int | None
    started_at: str
    started_s: float
    log_path: str
    deployed_digest: str | None
    others: tuple[EngineProcess, ...] = ()

    @property
    def identities(self) -> tuple[tuple[str, int, int | None], ...]:
        """Host, pid and start of every leader: equal only for one and the same start of an engine."""
        return tuple((one.host, one.pid, one.start_ticks) for one in (self, *self.others))


@dataclass(frozen=True, slots=True)
class TritonKernel:
    """One compiled kernel in the engine's Triton cache."""

    name: str
    num_warps: int | None
    num_stages: int | None
    shared_bytes: int | None
    target: str | None
    digest: str | None


@dataclass(frozen=True, slots=True)
class AutotuneWinner:
    """A config that Triton's autotuner chose in one start of the engine, as Triton wrote it into the log.

    Attributes:
        key: for which values of the autotune key; None where Triton did not say.
        n: how often it was chosen, for each process tunes for itself.
    """

    kernel: str
    key: str | None
    config: str
    n: int


@dataclass(frozen=True, slots=True)
class LoadedFile:
    """What the engine loaded for one file of the target.

    Attributes:
        module: dotted name. resolved_path: the path that the engine's own python resolves it to.
        digest: of that file inside the engine's mount namespace.
        started_after_change: whether every process of the engine started after the file's last change.
        bytecode: ``fresh`` when the interpreter's cached bytecode names exactly this file's mtime and size (so this
            source was compiled anew), ``stale`` when it names another, None when there is none.
        reported_digest: what the engine itself says it loaded, where it can say so.
    """

    module: str
    path: str
    resolved_path: str | None
    digest: str | None
    started_after_change: bool | None
    bytecode: Literal["fresh", "stale"] | None
    reported_digest: str | None


@dataclass(frozen=True, slots=True)
class LoadedProof:
    """Proof of the bytes that a running engine really loaded.

    Attributes:
        digest: of the whole set; equal to the deployed one, or there is no proof.
        pids: every process of the engine that was looked at.
        problems: why this is not a proof; empty when it is.
        nodes: of an engine that spans several, each node on which this was looked at.
    """

    digest: str
    files: tuple[LoadedFile, ...]
    pids: tuple[int, ...]
    problems: tuple[str, ...]
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Environment:
    """The facts under which numbers were taken; unknown ones are None.

    Attributes:
        facts: flat, sorted when stored: hostname, kernel_release, cpu_model, n_cpus, memory_bytes, gpu_uuids,
            gpu_names, compute_capability, driver_version, python_version, torch_version, triton_version,
            engine_version, engine_command, engine_arguments, engine_env, model, power_limits_w, clock_policy.
    """

    facts: Mapping[str, str | int | float | None]


@dataclass(frozen=True, slots=True)
class Service:
    """A ready engine with the proof of what it loaded."""

    process: EngineProcess
    base_url: str
    proof: LoadedProof
    environment: Environment
    ready_after_s: float


# ---- the load


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request of a load, as the client saw it; times in seconds since the load began, None when not reached.

    Attributes:
        i: position in the seeded order, where the client keeps one. sent_s, first_chunk_s, last_chunk_s: client's
            monotonic clock; all None where the client does not write when it sent a request.
        n_input_tokens, n_output_tokens: counted by the server. n_chunks: chunks with content, 0 where unknown.
        itl_ms: gaps between chunks with content. error: None when the request is good. text_digest: of the output.
    """

    i: int
    sent_s: float | None
    first_chunk_s: float | None
    last_chunk_s: float | None
    n_input_tokens: int | None
    n_output_tokens: int | None
    n_chunks: int
    itl_ms: tuple[float, ...]
    error: str | None
    text_digest: str | None


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """How far a running load is, as its client last wrote it; for people, never a measurement.

    Attributes:
        phase: ``starting``, ``warm-up`` or ``load``. elapsed_s: since that phase began, by the client's clock.
        n_done: requests that ended, well or badly. n_total: of this phase.
    """

    concurrency_cap: int
    phase: str
    n_done: int
    n_total: int
    n_failed: int
    elapsed_s: float


LoadStatus = Literal["ok", "invalid", "failed"]


@dataclass(frozen=True, slots=True)
class LoadResult:
    """One load at one concurrency.

    Attributes:
        status: ``ok``; ``invalid`` when it ran but cannot be trusted; ``failed`` when there is no result.
        reasons: why not ok.
        metrics: by name of ``metrics.py``; None when not measured. Empty unless ok.
        raw: the client's own result file, as it was.
    """

    concurrency_cap: int
    status: LoadStatus
    reasons: tuple[str, ...]
    metrics: Mapping[str, float | None]
    requests: tuple[RequestRecord, ...]
    client: str
    client_version: str
    argv: tuple[str, ...]
    raw: bytes | None
    started_at: str
    ended_at: str


# ---- what is compared


NOT_RECORDED = "not recorded"
"""The value of a fact in ``Measurement.comparison_key`` that nobody could tell."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One value of one arm: one engine start at one concurrency.

    Attributes:
        comparison_key: the facts that must agree before two measurements may be compared, by name.
    """

    trial_id: int
    arm: str
    digest: str
    concurrency_cap: int
    value: float
    started_at: str
    comparison_key: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ConcurrencyComparison:
    """Variant against baseline at one concurrency.

    Attributes:
        ratio: geometric mean of the variant ÷ that of the baseline; None when a side has no value.
    """

    concurrency_cap: int
    baseline_values: tuple[float, ...]
    variant_values: tuple[float, ...]
    ratio: float | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two arms at every concurrency, with what a reader must know before believing it.

    Attributes:
        verdict: None when none may be given; then ``why_no_verdict`` says why and ``next_step`` what to run.
    """

    metric: str
    baseline_arm: str
    variant_arm: str
    baseline_digest: str
    variant_digest: str
    rows: tuple[ConcurrencyComparison, ...]
    order: tuple[str, ...]
    verdict: str | None
    why_no_verdict: str | None
    next_step: str | None
    warnings: tuple[str, ...]


# ---- what is shown while work goes on


@dataclass(frozen=True, slots=True)
class Progress:
    """One step of long work, for whoever shows it.

    Attributes:
        stage: one word: pull, push, start, ready, prove, warm-up, load, stop, revert.
        text: what, for people. done, total: where the step is counted. elapsed_s, left_s: of the step, when known.
        detail: what of it just now; the step stays the same when this changes.
    """

    stage: str
    text: str
    done: int | None = None
    total: int | None = None
    elapsed_s: float | None = None
    left_s: float | None = None
    detail: str = ""
