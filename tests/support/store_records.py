"""Records for tests of the store, with every field filled; a test changes what it is about."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.records import (
    Change,
    DeployedFile,
    Deployment,
    EngineProcess,
    Environment,
    FileState,
    Lease,
    LoadedFile,
    LoadedProof,
    LoadResult,
    RequestRecord,
    Service,
    Snapshot,
    SourceFile,
    Target,
    TargetFile,
    Variant,
    Workload,
    digest_of,
)
from orchestrator.store import Store

PATH = "/opt/engine/kernels/flash.py"
TARGET = Target(
    name="flash", host="gpu-a", engine="sglang", files=(TargetFile(path=PATH, name="flash.py"),), kernel="decode"
)
WORKLOAD = Workload(name="short", seed=7)
BASE = SourceFile.of("flash.py", b"num_warps = 4\n")
FASTER = SourceFile.of("flash.py", b"num_warps = 8\n")


def file_state(digest: str | None = BASE.digest, *, path: str = PATH, mtime_s: int | None = 1_700_000_000) -> FileState:
    """A clean file under no lease."""
    return FileState(
        path=path,
        real_path=path.replace("/opt/engine", "/srv/engine-1.2"),
        digest=digest,
        size_bytes=14,
        mode="644",
        owner="root",
        inode=2**64 - 1,
        n_links=1,
        mtime_s=mtime_s,
        ctime_s=1_700_000_000.25,
        phase="clean",
        base_digest=None,
        pushed_digest=None,
        lease=None,
    )


def snapshot(*files: SourceFile) -> Snapshot:
    """The target as it was pulled, one state a file; the first of them under a lease."""
    files = files or (BASE,)
    states = [file_state(file.digest, path=f"/opt/engine/kernels/{file.name}") for file in files]
    states[0] = replace(states[0], lease=Lease("n-0", "user@laptop pid 1", 12.5, "2026-01-01T00:00:12+00:00"))
    return Snapshot("flash", "gpu-a", files, tuple(states), "2026-01-01T00:00:00+00:00")


def variant(name: str = "V2", *files: SourceFile, message: str = "more warps hide latency") -> Variant:
    """A variant that changes one knob."""
    change = Change("knob", "flash.py", "config 0", "num_warps", "4", "8")
    return Variant(
        "flash", name, files or (FASTER,), BASE.digest, message, (change,), ("decode",), "2026-01-02T00:00:00+00:00"
    )


def deployment(digest: str = FASTER.digest, *, mtime_s: int = 1_700_000_100) -> Deployment:
    """What the host acknowledged."""
    file = DeployedFile(PATH, file_state().real_path, digest, BASE.digest, mtime_s, was_already_there=False)
    return Deployment(
        "flash", "gpu-a", digest, BASE.digest, "n-1", "2026-01-02T01:00:00+00:00", (file,), "2026-01-02T00:00:01+00:00"
    )


def environment(**facts: str | int | float | None) -> Environment:
    """Facts of a host with one GPU."""
    known: dict[str, str | int | float | None] = {
        "driver_version": "550.54",
        "gpu_uuids": "GPU-1",
        "torch_version": "2.8.0",
        "triton_version": "3.4.0",
        "engine_version": "0.5.1",
        "engine_command": "python -m engine --tp 2",
        "model": "tiny",
        "n_cpus": 64,
        "clock_policy": None,
    }
    return Environment({**known, **facts})


def service(digest: str, facts: Environment | None = None) -> Service:
    """A ready engine that was proved to run ``digest``."""
    process = EngineProcess("sglang", "gpu-a", 4242, 99, "2026-01-02T00:00:02+00:00", 1.5, "/tmp/log", digest)
    loaded = LoadedFile("flash", PATH, PATH, digest, True, "fresh", None)
    proof = LoadedProof(digest, (loaded,), (4242, 4243), ())
    return Service(process, "http://127.0.0.1:30000", proof, facts or environment(), 31.5)


def request(i: int = 0, **changes: object) -> RequestRecord:
    """A good request."""
    record = RequestRecord(i, 0.1, 0.25, 0.75, 128, 3, 3, (10.5, 1 / 3), None, digest_of(b"text"))
    return replace(record, **changes)  # type: ignore[arg-type]


def load(concurrency: int = 8, value: float = 100.0, *, n_requests: int = 2) -> LoadResult:
    """A good load; inter-token latency was not measured."""
    return LoadResult(
        concurrency_cap=concurrency,
        status="ok",
        reasons=(),
        metrics={"output_tokens_per_s": value, "ttft_ms_p50": 12.5, "itl_ms_p50": None, "n_ok": 2.0, "n_failed": 0.0},
        requests=tuple(request(i) for i in range(n_requests)),
        client="loadgen",
        client_version="1",
        argv=("python", "loadgen.py", "--out", "a b"),
        raw=b'{"requests": []}' * 100,
        started_at="2026-01-02T00:01:00+00:00",
        ended_at="2026-01-02T00:02:00+00:00",
    )


def trial(
    store: Store,
    file: SourceFile = BASE,
    name: str = "baseline",
    *,
    facts: Environment | None = None,
    loads: tuple[LoadResult, ...] = (),
    status: str = "ok",
    started_at: str | None = None,
) -> int:
    """A whole trial of one file."""
    trial_id = store.begin_trial(
        host="gpu-a", target="flash", variant=name, digest=file.digest, workload=WORKLOAD, started_at=started_at
    )
    store.record_service(trial_id, service(file.digest, facts))
    for result in loads:
        store.record_load(trial_id, result)
    store.end_trial(trial_id, status, digest_after=file.digest)  # type: ignore[arg-type]
    return trial_id
