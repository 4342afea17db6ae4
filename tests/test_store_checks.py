"""What the record keeps of checks and of compiled kernels, and gives back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.errors import StoreError
from orchestrator.records import SourceFile, digest_of
from orchestrator.store import Store
from orchestrator.verdicts import (
    CachedKernel,
    CompiledKernel,
    CompileJob,
    ConfigReport,
    KernelConfig,
    KernelSource,
    Occupancy,
    PipelinedBuffer,
    RemoteFinding,
    RemoteVerdict,
    Verdict,
)
from tests.support import store_records as make

SOURCE = KernelSource("source", "decode", "def decode(): ...", digest_of(b"def decode(): ..."))
FITS = Occupancy(True, None, 101_376, 1, 4, 48, ("shared memory", "registers"))
DOCUMENT = {"variant": "V2", "sentences": [{"text": "“three” buffers"}], "n_configs": None}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A new, empty record."""
    with Store.open(tmp_path / "results.db") as opened:
        yield opened


def report(
    binary: bytes | None = b"cubin", *, index: int = 0, arch: int = 120, num_stages: int = 2, triton: str = "3.9.0"
) -> ConfigReport:
    """A config that fits; without a binary it did not compile."""
    config = KernelConfig(
        constants={"BLOCK_T": 16, "IS_FP8": True, "TYPE": "tl.bfloat16", "SCALE": 0.5, "EXTRA": None},
        num_stages=num_stages,
        num_ctas=2,
        maxnreg=128,
    )
    job = CompileJob(SOURCE, config, arch)
    if binary is None:
        return ConfigReport(index, CompiledKernel(job, triton, "bad name: \udcff", "compile"), None)
    compiled = CompiledKernel(
        job,
        triton,
        shared_bytes=61_562,
        n_registers=255,
        stack_bytes=0,
        tensor_cores=("mma.sync m16n8k16 bf16",),
        buffers=(PipelinedBuffer((16, 512), "fp8e4nv", 2, 8192),),
        binary_digest=digest_of(binary),
        compile_s=1.5,
    )
    return ConfigReport(index, compiled, FITS)


def verdict(*configs: ConfigReport, file: SourceFile = make.FASTER, variant: str = "V2", **changes: object) -> Verdict:
    """An offline verdict of one file against the baseline."""
    found = Verdict(
        target="flash",
        variant=variant,
        digest=file.digest,
        base_digest=make.BASE.digest,
        kernel="decode",
        status="ok",
        source="source",
        archs=(120,),
        triton_version="3.9.0",
        host_triton_version="3.5.1",
        n_configs=len(configs),
        n_baseline_configs=1,
        configs=configs,
        baseline_configs=(),
        sentences=(),
        caveats=(),
        checked_at="2026-01-02T00:00:00+00:00",
    )
    return replace(found, **changes)  # type: ignore[arg-type]


def remote_verdict(*findings: RemoteFinding, passed: bool) -> RemoteVerdict:
    """What V2 did on its host."""
    return RemoteVerdict(
        target="flash",
        variant="V2",
        digest=make.FASTER.digest,
        host="gpu-a",
        command=None,
        passed=passed,
        findings=findings,
        report=None,
        checked_at="2026-01-03T00:00:00+00:00",
    )


def only_row(store: Store, sql: str) -> dict[str, object]:
    """The one row of a query, by column."""
    columns, rows = store.query(sql)
    (row,) = rows
    return dict(zip(columns, row, strict=True))


# ---- checks


def test_a_check_comes_back_with_its_document(store: Store) -> None:
    """The newest check of the bytes is given back, whatever their variant was called; other bytes have none."""
    store.record_check(verdict(report()), {"old": True})
    newest = store.record_check(verdict(report(), variant="V2b", status="cannot-launch"), DOCUMENT)
    found = store.latest_check("flash", make.FASTER.digest)
    assert found is not None
    assert (found.id, found.variant, found.status, found.kind) == (newest, "V2b", "cannot-launch", "offline")
    assert (found.base_digest, found.triton_version, found.host) == (make.BASE.digest, "3.9.0", None)
    assert found.document == DOCUMENT
    assert store.latest_check("flash", make.BASE.digest) is None
    assert store.latest_check("other", make.FASTER.digest) is None
    assert store.latest_check("flash", make.FASTER.digest, kind="remote") is None


def test_every_config_has_a_row(store: Store) -> None:
    """What a config needs and what the GPU allows are columns; lists are JSON; what was not told is NULL."""
    check_id = store.record_check(verdict(report()), DOCUMENT)
    row = only_row(store, "select * from check_configs")
    constants = {"BLOCK_T": 16, "EXTRA": None, "IS_FP8": True, "SCALE": 0.5, "TYPE": "tl.bfloat16"}
    assert json.loads(str(row.pop("constants"))) == constants
    assert json.loads(str(row.pop("limited_by"))) == ["shared memory", "registers"]
    assert json.loads(str(row.pop("tensor_cores"))) == ["mma.sync m16n8k16 bf16"]
    assert row == {
        "check_id": check_id,
        "i": 0,
        "arch": 120,
        "num_warps": 4,
        "num_stages": 2,
        "num_ctas": 2,
        "maxnreg": 128,
        "can_launch": 1,
        "shared_bytes": 61_562,
        "shared_limit_bytes": 101_376,
        "n_registers": 255,
        "stack_bytes": 0,
        "spill_bytes": None,
        "blocks_per_sm": 1,
        "warps_per_sm": 4,
        "n_kv_buffers": 2,
        "binary_digest": digest_of(b"cubin"),
        "compile_s": 1.5,
        "error": None,
    }


def test_what_did_not_compile_is_null_but_for_why(store: Store) -> None:
    """A config that did not compile has its error (kept, whatever bytes it quotes) and cannot launch."""
    store.record_check(verdict(report(None), status="does-not-compile"), DOCUMENT)
    row = only_row(store, "select * from check_configs")
    assert (row["error"], row["can_launch"]) == ("bad name: \\udcff", 0)
    unknown = ("shared_bytes", "n_registers", "limited_by", "tensor_cores", "n_kv_buffers", "binary_digest")
    assert {row[name] for name in unknown} == {None}


def test_whether_it_can_launch_may_be_unknown(store: Store) -> None:
    """On an architecture whose limits are not known, can_launch is NULL, not 0."""
    store.record_check(verdict(replace(report(), occupancy=None)), DOCUMENT)
    row = only_row(store, "select can_launch, shared_limit_bytes, n_registers from check_configs")
    assert row == {"can_launch": None, "shared_limit_bytes": None, "n_registers": 255}


def test_a_check_is_kept_whole_or_not_at_all(store: Store) -> None:
    """Two configs with one index, a number that JSON has no word for, a status that there is not: nothing stays."""
    with pytest.raises(StoreError, match="breaks its rules"):
        store.record_check(verdict(report(), report(num_stages=3)), DOCUMENT)
    with pytest.raises(StoreError, match="not finite"):
        store.record_check(verdict(report()), {"compile_s": float("nan")})
    with pytest.raises(StoreError, match="breaks its rules"):
        store.record_check(verdict(report(), status="passed"), DOCUMENT)
    assert only_row(store, "select (select count(*) from checks) + (select count(*) from check_configs) as n")["n"] == 0


@pytest.mark.parametrize(
    ("passed", "findings", "status"),
    [
        (True, (RemoteFinding("import", True, ""), RemoteFinding("output", True, "")), "passed"),
        (False, (RemoteFinding("import", True, ""), RemoteFinding("output", False, "nan")), "failed"),
        (False, (RemoteFinding("import", True, ""), RemoteFinding("output", None, "no command")), "not-checked"),
    ],
)
def test_a_remote_check_is_a_kind_of_its_own(
    store: Store, passed: bool, findings: tuple[RemoteFinding, ...], status: str
) -> None:
    """It does not stand for the offline one, and a kernel that nobody tried is neither right nor wrong."""
    store.record_remote_check(remote_verdict(*findings, passed=passed), DOCUMENT)
    found = store.latest_check("flash", make.FASTER.digest, kind="remote")
    assert found is not None
    assert (found.status, found.host, found.base_digest, found.document) == (status, "gpu-a", None, DOCUMENT)
    assert store.latest_check("flash", make.FASTER.digest) is None


# ---- binaries that are known


def known(store: Store, triton: str = "3.9.0") -> list[tuple[str, int, int, str]]:
    """(variant, architecture, stages, binary) of what is known of the baseline's variants."""
    found = store.known_binaries("flash", make.BASE.digest, triton)
    return [(one.variant, one.arch, one.config.num_stages, one.binary_digest) for one in found]


def test_known_binaries_tell_launches_apart_as_reports_do(store: Store) -> None:
    """A recorded config has the config and launch key of its report, constants of every type included."""
    recorded = report()
    store.record_check(verdict(recorded), DOCUMENT)
    (found,) = store.known_binaries("flash", make.BASE.digest, "3.9.0")
    assert found.config == recorded.config
    assert found.launch_key == recorded.launch_key
    assert (found.digest, found.triton_version) == (make.FASTER.digest, "3.9.0")


def test_of_each_set_of_bytes_the_newest_check_counts(store: Store) -> None:
    """A later check replaces the earlier one of these bytes on its architectures; one without a binary does not."""
    other = SourceFile.of("flash.py", b"num_warps = 16\n")
    store.record_check(verdict(report(b"1"), report(b"2", index=1, num_stages=3), report(b"90", arch=90)), DOCUMENT)
    store.record_check(verdict(report(b"v3"), report(None, index=1), file=other, variant="V3"), DOCUMENT)
    store.record_check(verdict(report(b"new"), variant="V2b"), DOCUMENT)
    store.record_check(verdict(status="not-checked", source=None, triton_version=None), DOCUMENT)
    assert known(store) == [
        ("V2", 90, 2, digest_of(b"90")),
        ("V3", 120, 2, digest_of(b"v3")),
        ("V2b", 120, 2, digest_of(b"new")),
    ]


def test_other_baselines_targets_and_tritons_are_not_known(store: Store) -> None:
    """Machine code of another Triton says nothing, nor does that of another baseline's variants."""
    store.record_check(verdict(report(triton="3.5.1"), triton_version="3.5.1"), DOCUMENT)
    store.record_check(verdict(report(), base_digest=make.FASTER.digest), DOCUMENT)
    store.record_check(verdict(report(), target="other"), DOCUMENT)
    assert known(store) == []
    assert [variant for variant, *_ in known(store, "3.5.1")] == ["V2"]


# ---- what a push says of its check


def test_a_deployment_names_its_check(store: Store) -> None:
    """The check before a push and that it was forced are on record; without either it says so; none is invented."""
    check_id = store.record_check(verdict(report(), status="same-binary"), DOCUMENT)

    def push(**given: object) -> None:
        store.begin_deployment(
            host="gpu-a",
            target="flash",
            variant="V2",
            digest=make.FASTER.digest,
            previous_digest=make.BASE.digest,
            nonce="n-1",
            holder="user@laptop pid 1",
            **given,  # type: ignore[arg-type]
        )

    push()
    push(check_id=check_id, is_forced=True)
    assert store.query("select check_id, is_forced from deployments order by id")[1] == [(None, 0), (check_id, 1)]
    with pytest.raises(StoreError, match="FOREIGN KEY"):
        push(check_id=99)


# ---- compiled kernels


def cached(key: str, ttir: str = "module {}", *, digest: str = make.BASE.digest, **metadata: object) -> CachedKernel:
    """A form that an engine's Triton compiled for sm_120."""
    known = {"num_warps": 4, "num_stages": 3, "shared": 74_752, "target": {"backend": "cuda", "arch": 120}}
    return CachedKernel(key, "decode", ttir, {**known, **metadata}, "3.5.1", digest)


def test_compiled_kernels_come_back_newest_start_first(store: Store) -> None:
    """Each cache key once, from the newest start that had it; starts of other bytes and targets do not count."""
    first, second = make.trial(store), make.trial(store)
    store.record_compiled_kernels(first, [cached("A", hash="first"), cached("B")])
    store.record_compiled_kernels(second, [cached("C"), cached("A", hash="second")])
    other = make.trial(store, make.FASTER, "V2")
    store.record_compiled_kernels(other, [cached("A", digest=make.FASTER.digest)])
    found = store.cached_kernels("flash", make.BASE.digest)
    assert found == (cached("C"), cached("A", hash="second"), cached("B"))
    assert store.cached_kernels("other", make.BASE.digest) == ()
    assert len(store.query("select * from compiled_kernels")[1]) == 5


def test_equal_ir_is_kept_once(store: Store) -> None:
    """Forms that differ in warps and stages only share their IR, which is found among the artifacts, byte for byte."""
    ttir = 'module { loc("/opt/\u00b5.py") }\r\n'
    forms = [cached("A", ttir), cached("B", ttir, num_warps=8)]
    for trial_id in (make.trial(store), make.trial(store)):
        store.record_compiled_kernels(trial_id, forms)
    assert store.query("select distinct ttir_digest from compiled_kernels")[1] == [(digest_of(ttir.encode()),)]
    assert store.artifact_content(digest_of(ttir.encode())) == ttir.encode()
    assert store.cached_kernels("flash", make.BASE.digest) == tuple(forms)


def test_what_metadata_does_not_say_is_null(store: Store) -> None:
    """Sizes and architecture are columns where Triton wrote them, as it names them; NULL, not 0, where it did not."""
    forms = [
        cached("A"),
        cached("B", num_warps=None, shared="?", target="cuda:90"),
        cached("C", target={"backend": "hip", "arch": "gfx942"}),
    ]
    store.record_compiled_kernels(make.trial(store), forms)
    rows = store.query("select num_warps, shared_bytes, architecture from compiled_kernels order by cache_key")[1]
    assert rows == [(4, 74_752, "cuda sm_120"), (None, None, None), (4, 74_752, "hip gfx942")]


def test_compiled_kernels_belong_to_a_start(store: Store) -> None:
    """Without that start, or with one key twice, nothing is kept."""
    with pytest.raises(StoreError, match="no trial 99"):
        store.record_compiled_kernels(99, [cached("A")])
    with pytest.raises(StoreError, match="breaks its rules"):
        store.record_compiled_kernels(make.trial(store), [cached("A", "kept?"), cached("A")])
    assert store.cached_kernels("flash", make.BASE.digest) == ()
    assert store.query("select count(*) from artifacts where content = cast('kept?' as blob)")[1] == [(0,)]


# ---- facts


def test_the_latest_facts_of_a_host(store: Store) -> None:
    """Those of the newest start there; of a target's own newest start, where it had one; empty where none was ready."""
    make.trial(store, facts=make.environment(compute_capability="9.0"))
    make.trial(store, facts=make.environment(compute_capability="12.0", triton_version=None))
    store.begin_trial(host="gpu-a", target="flash", variant="V2", digest="sha256:0", workload=make.WORKLOAD)
    other = store.begin_trial(host="gpu-a", target="other", variant="V2", digest="sha256:0", workload=make.WORKLOAD)
    store.record_service(other, make.service("sha256:0", make.environment(triton_version="3.1.0")))
    assert store.latest_facts("gpu-a") == make.environment(triton_version="3.1.0").facts
    facts = store.latest_facts("gpu-a", "flash")
    assert (facts["compute_capability"], facts["triton_version"]) == ("12.0", None)
    assert store.latest_facts("gpu-a", "new")["triton_version"] == "3.1.0"
    assert store.latest_facts("gpu-b") == {}


def test_a_fact_that_was_not_asked_for_before_is_no_drift(store: Store) -> None:
    """An upgrade of orch that records one fact more changes nothing on the host, and no comparison."""
    make.trial(store, loads=(make.load(),))
    make.trial(store, loads=(make.load(),), facts=make.environment(compute_capability="9.0"))
    make.trial(store)
    assert store.query("select * from drift")[1] == []
    make.trial(store, facts=make.environment(compute_capability="9.0"))
    make.trial(store, facts=make.environment(compute_capability="12.0"))
    assert store.query("select name, before, after from drift")[1] == [("compute_capability", "9.0", "12.0")]
    before, after = store.measurements("flash", "short", digest=make.BASE.digest)
    assert before.comparison_key == after.comparison_key
