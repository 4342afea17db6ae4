"""What is watched during a load: the program on the host with an nvidia-smi that answers as told, and its reading."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from orchestrator import telemetry
from orchestrator.connection.base import DEFAULT_TIMEOUT_S, Completed
from orchestrator.connection.local import LocalRemote
from orchestrator.designs import EngineCounters, TelemetrySample
from orchestrator.engines import knowledge_of
from orchestrator.errors import LineLostError, NodeLostError
from orchestrator.host import engine_state, engine_state_dir, process_table
from orchestrator.records import Engine, Host
from tests.support.fake_smi import IDLE, FakeSmi, fake_smi
from tests.support.tiny_host import is_alive
from tests.support.waiting import wait_until

COLUMNS = [
    *("index", "power.draw", "clocks.sm", "clocks.mem", "temperature.gpu", "memory.used", "utilization.gpu"),
    "clocks_event_reasons.active",
]
SECOND = "1, 300.10, 1500, 3201, 61, 90000, 98, 0x0000000000000004\n"
GPUS = {"GPU-aaaa1111": 0, "GPU-bbbb2222": 1}
ENGINE = Engine(name="e", command=("e",), python=sys.executable, base_url="http://127.0.0.1:9")


# ---- reading what nvidia-smi says


def file_of(*lines: dict[str, Any], gpus: dict[str, int] = GPUS, **header: Any) -> str:
    """A samples file."""
    first = {"gpus": gpus, "columns": COLUMNS, "visible": None, "error": None, **header}
    return "".join(json.dumps(line) + "\n" for line in (first, *lines))


def line(row: str = IDLE, *, at_s: float = 5.0, pids: Sequence[int] | None = (), own: Sequence[int] = ()) -> Any:
    """One line of a samples file."""
    return {"at_s": at_s, "row": [value.strip() for value in row.split(",")], "pids": pids, "own": list(own)}


def read(text: str) -> tuple[TelemetrySample, ...]:
    """The samples of a host that has a GPU."""
    samples = telemetry.parse(text)
    assert samples is not None
    return samples


def test_a_row_becomes_a_sample() -> None:
    """Every value keeps its meaning: watts, megahertz, degrees, bytes, per cent; an idle GPU is not throttled."""
    samples = read(file_of(line(IDLE, pids=[7], own=[7])))
    assert samples == (TelemetrySample(5.0, 0, 74.81, 345, 3201, 27, 4 << 20, 0, (), ()),)


@pytest.mark.parametrize(
    "word", ["[N/A]", "N/A", "[Not Supported]", "[Insufficient Permissions]", "[Unknown Error]", ""]
)
def test_what_the_driver_does_not_tell_is_none(word: str) -> None:
    """Its many words for "not known" are None, never 0, in every column; reasons are then unknown, not absent."""
    (sample,) = read(file_of(line("0" + f", {word}" * 7)))
    numbers = (sample.power_w, sample.sm_clock_mhz, sample.memory_clock_mhz, sample.temperature_c)
    assert (*numbers, sample.memory_used_bytes, sample.utilization_pct) == (None,) * 6
    assert sample.unknown == ("throttle_reasons", "foreign_pids")


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        ("0x0000000000000000", ()),
        ("0x0000000000000103", ()),
        ("0x0000000000000004", ("sw_power_cap",)),
        ("0x00000000000000E8", ("hw_slowdown", "sw_thermal", "hw_thermal", "hw_power_brake")),
        ("Not Active", None),
    ],
)
def test_reasons_for_lower_clocks(mask: str, expected: tuple[str, ...] | None) -> None:
    """The bits of the mask that matter have names; idle, chosen clocks and displays are none of them."""
    assert telemetry.throttle_reasons(mask) == expected


def test_only_the_gpus_of_the_engine_are_kept() -> None:
    """Where the engine was seen on a GPU, the others do not count, not even before it was seen."""
    text = file_of(
        line(at_s=1), line(SECOND, at_s=1), line(at_s=2, pids=[3]), line(SECOND, at_s=2, pids=[7, 9], own=[7])
    )
    samples = read(text)
    assert [(one.at_s, one.gpu, one.foreign_pids, one.unknown) for one in samples] == [
        (1, 1, (), ()),
        (2, 1, (9,), ()),
    ]


@pytest.mark.parametrize(
    ("visible", "expected"),
    [(None, [0, 1]), ("", [0, 1]), ("1", [1]), ("GPU-aaaa", [0]), ("0, 1", [0, 1]), ("5", [0, 1])],
)
def test_hidden_processes_are_unknown_not_absent(visible: str | None, expected: list[int]) -> None:
    """In a container no pid is the engine's: CUDA_VISIBLE_DEVICES picks the GPUs, and nobody is called a stranger."""
    samples = read(file_of(line(pids=[4711]), line(SECOND, pids=[4712]), visible=visible))
    assert [one.gpu for one in samples] == expected
    assert {(one.foreign_pids, one.unknown) for one in samples} == {((), ("foreign_pids",))}


def test_a_file_that_is_cut_or_empty() -> None:
    """The last line may be cut; a program that never began, or whose nvidia-smi fails, leaves no samples and a GPU."""
    text = file_of(line(at_s=1), line(at_s=2))
    assert [one.at_s for one in read(text[:-9])] == [1]
    assert read("") == ()
    assert read(file_of(gpus={}, columns=[], error="Failed to initialize NVML")) == ()
    assert telemetry.parse(file_of(gpus={}, columns=[])) is None


# ---- reading an engine's counters


VLLM = """\
vllm:num_preemptions_total{engine="0",model_name="a b"} 3.0
vllm:num_preemptions_total{engine="1",model_name="a b"} 1.0
vllm:cache_config_info{block_size="16",num_gpu_blocks="573",num_gpu_blocks_override="None",engine="0"} 1.0
vllm:cache_config_info{block_size="16",num_gpu_blocks="573",engine="1"} 1.0
"""
SGLANG = """\
sglang:num_retracted_requests_total{model_name="m"} 2.0
sglang:max_total_num_tokens{model_name="m"} 161721.0
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (VLLM, EngineCounters(4, 1146, 18336)),
        (SGLANG, EngineCounters(2, 161721, 161721)),
        ('sglang:total_retracted_reqs{tp_rank="0"} 0.0', EngineCounters(0, None)),
        ("engine_kv_pages 512", EngineCounters(None, 512)),
        ('vllm:cache_config_info{num_gpu_blocks="None"} 1.0', EngineCounters(None, None)),
        ("", EngineCounters(None, None)),
    ],
)
def test_counters_of_engines(text: str, expected: EngineCounters) -> None:
    """Preemptions and KV pool under each engine's names, ranks added up; what is not told is None."""
    assert telemetry.parse_counters(text.splitlines(), knowledge_of("other")) == expected


@pytest.fixture
def metrics_page() -> Iterator[tuple[str, dict[str, bytes]]]:
    """An engine's address, and the pages that it has."""
    pages: dict[str, bytes] = {}

    class Pages(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path in pages else 404)
            self.end_headers()
            self.wfile.write(pages.get(self.path, b"no such page"))

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Pages) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/", pages
        server.shutdown()


def test_counters_of_a_running_engine(remote: LocalRemote, metrics_page: tuple[str, dict[str, bytes]]) -> None:
    """The engine is asked on its own host; an answer that is none, or no engine at all, makes them unknown."""
    base_url, pages = metrics_page
    engine = replace(ENGINE, base_url=base_url)
    assert telemetry.engine_counters(remote, engine) == EngineCounters(None, None)
    assert telemetry.engine_counters(remote, ENGINE) == EngineCounters(None, None)
    pages["/metrics"] = b"# HELP engine_kv_pages x\nengine_kv_pages_used 3\n" + SGLANG.encode() + b"other 1\n"
    assert telemetry.engine_counters(remote, engine) == EngineCounters(2, 161721, 161721)


# ---- the program on the host


@pytest.fixture
def smi(tmp_path: Path) -> Iterator[FakeSmi]:
    """An nvidia-smi on the host's PATH."""
    with fake_smi(tmp_path / "smi") as made:
        yield made


@pytest.fixture
def remote(tmp_path: Path) -> LocalRemote:
    """This machine, with its scratch folder inside the test's own."""
    return LocalRemote(Host(name="here", transport="local", scratch_dir=str(tmp_path / "scratch")))


class Load:
    """A load as its wrapper leaves it on the host, whose client is a process of this test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.client = subprocess.Popen(["sleep", "600"])

    def begin(self) -> None:
        """What the wrapper writes first."""
        process = process_table.process(self.client.pid)
        assert process is not None
        (self.folder / "started").mkdir(parents=True)
        (self.folder / "process").write_text(f"{process.pid} {process.start_ticks or '-'} 0\n")

    def end(self) -> None:
        """The client ends."""
        self.client.kill()
        self.client.wait()

    @property
    def samples(self) -> list[dict[str, Any]]:
        """The lines of the samples file that are whole."""
        path = self.folder / "telemetry" / "samples"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def has_rows(self, n: int = 1) -> bool:
        """Whether so many rows were written."""
        return sum("row" in line for line in self.samples) >= n

    def why_ended(self) -> str:
        """Waits for the program's last line."""
        wait_until(lambda: bool(self.samples) and "why" in self.samples[-1])
        return str(self.samples[-1]["why"])


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Load]:
    """A load that is about to begin; at the end its client is ended, and with it whoever watches it."""
    made = Load(tmp_path / "run")
    yield made
    made.end()
    made.folder.mkdir(exist_ok=True)
    (made.folder / "exit").touch()


def start(remote: LocalRemote, load: Load) -> None:
    """Watches closely."""
    telemetry.start(remote, ENGINE, run_dir=str(load.folder), interval_s=0.02)


def collect(remote: LocalRemote, load: Load) -> tuple[TelemetrySample, ...] | None:
    """What was seen."""
    return telemetry.collect(remote, run_dir=str(load.folder))


def without_smi(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The machine that runs the tests may have a GPU: a PATH without nvidia-smi."""
    if shutil.which("nvidia-smi"):
        tools = tmp_path / "tools"
        tools.mkdir()
        for path in Path("/usr/bin").iterdir():
            if path.name != "nvidia-smi":
                (tools / path.name).symlink_to(path)
        monkeypatch.setenv("PATH", str(tools))


def test_nothing_on_a_host_without_a_gpu(
    remote: LocalRemote, load: Load, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without nvidia-smi nothing is started or written, and None says that there is no GPU."""
    without_smi(monkeypatch, tmp_path)
    start(remote, load)
    assert list(load.folder.iterdir()) == []
    assert collect(remote, load) is None
    telemetry.stop(remote, run_dir=str(load.folder))


def test_an_nvidia_smi_without_a_gpu(remote: LocalRemote, load: Load, smi: FakeSmi) -> None:
    """A host that has the program and no device is one without a GPU."""
    smi.tell(list="No devices found.\n", code="6")
    start(remote, load)
    assert load.why_ended() == "nothing to watch"
    assert collect(remote, load) is None


def test_a_driver_that_fails_is_told(remote: LocalRemote, load: Load, smi: FakeSmi) -> None:
    """There is a GPU and nothing was seen of it: no samples, and the driver's words are kept."""
    smi.tell(list="Failed to initialize NVML: Driver/library version mismatch\n", code="18")
    start(remote, load)
    assert load.why_ended() == "nothing to watch"
    assert collect(remote, load) == ()
    assert "version mismatch" in load.samples[0]["error"]


def test_it_ends_with_the_client_and_leaves_no_process(remote: LocalRemote, load: Load, smi: FakeSmi) -> None:
    """Samples come while the load runs; when its client is gone, all of it ends by itself."""
    start(remote, load)
    load.begin()
    wait_until(lambda: load.has_rows(3))
    assert len(smi.loops()) == 2
    load.end()
    assert load.why_ended() == "the load's client is gone"
    wait_until(lambda: not smi.loops())
    samples = collect(remote, load)
    assert samples is not None and len(samples) >= 3
    assert samples[0].power_w == 74.81 and samples[0].at_s < samples[-1].at_s


def test_collecting_ends_it_and_may_be_repeated(remote: LocalRemote, load: Load, smi: FakeSmi) -> None:
    """The controller need not wait for it: what is there is read, and the program ends."""
    start(remote, load)
    load.begin()
    wait_until(load.has_rows)
    first = collect(remote, load)
    assert load.why_ended() == "told to end"
    assert first and first == (collect(remote, load) or ())[: len(first)]
    wait_until(lambda: not smi.loops())


@pytest.mark.parametrize("how", ["exit", "stop", "removed", "deadline"])
def test_every_other_end(
    remote: LocalRemote, load: Load, smi: FakeSmi, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends at the load's exit code, when told, with its folder, and at a deadline, though a client seems to live."""
    if how == "deadline":
        monkeypatch.setattr(telemetry, "DEADLINE_S", 0.0)
    start(remote, load)
    load.begin()
    if how == "exit":
        (load.folder / "exit").write_text("0\n")
    if how == "stop":
        telemetry.stop(remote, run_dir=str(load.folder))
    if how == "removed":
        wait_until(lambda: len(smi.loops()) == 2)
        shutil.rmtree(load.folder)
    else:
        expected = {"exit": "the load has ended", "stop": "told to end", "deadline": "deadline"}
        assert load.why_ended() == expected[how]
    wait_until(lambda: not smi.loops())


def test_a_killed_program_leaves_no_loop(remote: LocalRemote, load: Load, smi: FakeSmi) -> None:
    """Killed without a chance to clean up, it takes its nvidia-smi with it, also one that never writes a line."""
    start(remote, load)
    load.begin()
    wait_until(lambda: len(smi.loops()) == 2)
    parents = {one.pid: one.parent for one in process_table.processes()}
    program = parents[smi.loops()[0]]
    os.kill(program, signal.SIGKILL)
    wait_until(lambda: not is_alive(program) and not smi.loops())


def test_a_second_start_is_none(remote: LocalRemote, load: Load, smi: FakeSmi) -> None:
    """A start that is repeated after a lost line does not watch twice."""
    start(remote, load)
    wait_until(lambda: len(smi.loops()) == 2)
    start(remote, load)
    wait_until(lambda: b"another one watches" in (load.folder / "telemetry" / "log").read_bytes())
    assert len(smi.loops()) == 2


class LosingRemote(LocalRemote):
    """This machine behind a line that dies at every second call, after the host acted."""

    n_calls = 0

    def run(
        self, script: str, args: Sequence[str] = (), *, stdin: bytes = b"", timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> Completed:
        done = super().run(script, args, stdin=stdin, timeout_s=timeout_s)
        self.n_calls += 1
        if self.n_calls % 2:
            raise LineLostError("the line died")
        return done


def test_a_line_that_dies_costs_nothing(
    remote: LocalRemote, load: Load, smi: FakeSmi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step is repeated after a lost line; one program watches, and its samples are whole."""
    monkeypatch.setattr(telemetry, "RETRY_S", 0.0)
    losing = LosingRemote(remote.host)
    start(losing, load)
    load.begin()
    wait_until(load.has_rows)
    assert collect(losing, load)
    assert losing.n_calls >= 8 and load.why_ended() == "told to end"


def test_an_earlier_load_is_put_aside_first(remote: LocalRemote, load: Load, smi: FakeSmi) -> None:
    """What an ended load left in the folder is kept beside it, so that the new load does not move the telemetry."""
    (load.folder / "started").mkdir(parents=True)
    (load.folder / "exit").write_text("0\n")
    start(remote, load)
    wait_until(load.has_rows)
    assert not (load.folder / "started").exists()
    assert [path.name.partition("-")[0] for path in load.folder.parent.glob("run.*")] == ["run.before"]


def test_beside_a_load_that_still_runs_nothing_is_started(remote: LocalRemote, load: Load, smi: FakeSmi) -> None:
    """The folder of a running load is left alone; it is the load's own start that refuses."""
    load.begin()
    start(remote, load)
    assert not (load.folder / "telemetry").exists()


@pytest.mark.parametrize(
    ("refused", "expected"),
    [
        ("clocks_event_reasons.active", [*COLUMNS[:-1], "clocks_throttle_reasons.active"]),
        ("clocks_event_reasons.active clocks_throttle_reasons.active utilization.gpu", COLUMNS[:-2]),
    ],
)
def test_drivers_know_different_columns(
    remote: LocalRemote, load: Load, smi: FakeSmi, refused: str, expected: list[str]
) -> None:
    """A refused column is asked for by its older name, then done without: what it held is unknown."""
    smi.tell(refused=refused, gpus=", ".join(IDLE.split(", ")[: len(expected)]).strip() + "\n")
    start(remote, load)
    wait_until(load.has_rows)
    assert load.samples[0]["columns"] == expected
    (sample, *_) = collect(remote, load) or ()
    assert sample.power_w == 74.81
    assert ("throttle_reasons" in sample.unknown) == (len(expected) < len(COLUMNS))


def test_who_computes_there(remote: LocalRemote, load: Load, smi: FakeSmi) -> None:
    """Of the processes on a GPU, those of the engine are told by pid and start, the others are foreign; MIG devices
    belong to their GPU."""
    state_dir = engine_state_dir(remote.scratch_dir(), ENGINE)
    leader = process_table.process(load.client.pid)
    assert leader is not None
    record = {"pid": leader.pid, "start": leader.start, "mark": f"{state_dir}#1", "boot_id": engine_state.boot_id()}
    engine_state.write_record(state_dir, record)
    listing = "GPU 0: NVIDIA H200 (UUID: GPU-aaaa1111)\n  MIG 3g.71gb     Device  0: (UUID: MIG-cccc-dddd)\n"
    apps = f"GPU-aaaa1111, {leader.pid}\nMIG-cccc-dddd, {os.getpid()}\n"
    smi.tell(list=listing, apps=apps)
    start(remote, load)
    wait_until(lambda: any(len(line.get("pids", ())) == 2 for line in load.samples))
    samples = collect(remote, load) or ()
    assert (os.getpid(),) in {one.foreign_pids for one in samples}
    assert {one.unknown for one in samples} == {()} and not any(leader.pid in one.foreign_pids for one in samples)


@pytest.mark.parametrize("case", ["no loop", "unlisted GPU"])
def test_processes_that_cannot_be_told(remote: LocalRemote, load: Load, smi: FakeSmi, case: str) -> None:
    """An nvidia-smi that lists no processes, or some on a GPU that it did not list, makes them unknown."""
    if case == "no loop":
        smi.break_loop("apps")
    else:
        smi.tell(apps=f"GPU-nobody, {os.getpid()}\n")
    start(remote, load)
    wait_until(lambda: load.has_rows() and load.samples[-1]["pids"] is None)
    assert (collect(remote, load) or ())[-1].unknown == ("foreign_pids",)


def test_a_gpu_that_is_lost_meanwhile(remote: LocalRemote, load: Load, smi: FakeSmi) -> None:
    """When nvidia-smi ends, so does the watching, with its last words; what was seen before is kept."""
    start(remote, load)
    wait_until(load.has_rows)
    smi.break_loop("gpus")
    assert "GPU is lost" in load.why_ended()
    assert collect(remote, load)


# ---- an engine over several nodes


class Pair(LocalRemote):
    """Two nodes of one engine, each with a scratch folder of its own on this machine; the load is made on the first."""

    def __init__(self, folder: Path) -> None:
        hosts = [Host(name=name, transport="local", scratch_dir=str(folder / name)) for name in ("n1", "n2")]
        super().__init__(hosts[0])
        self.nodes = tuple(LocalRemote(host) for host in hosts)
        self.run_dir = f"{self.scratch_dir()}/runs/one"
        self.load = Load(Path(self.run_dir))
        self.aside = Load(Path(f"{self.nodes[1].scratch_dir()}/runs/one"))

    @property
    def members(self) -> tuple[LocalRemote, ...]:
        """Both."""
        return self.nodes

    def has_engine_on_second(self, pid: int) -> None:
        """The second node's part of the engine is that process."""
        state_dir = engine_state_dir(self.nodes[1].scratch_dir(), ENGINE)
        leader = process_table.process(pid)
        assert leader is not None
        record = {"pid": pid, "start": leader.start, "mark": f"{state_dir}#1", "boot_id": engine_state.boot_id()}
        engine_state.write_record(state_dir, record)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """Two nodes; at the end nobody watches on either."""
    made = Pair(tmp_path)
    yield made
    for one in (made.load, made.aside):
        one.end()
        one.folder.mkdir(parents=True, exist_ok=True)
        (one.folder / "exit").touch()


def test_every_node_of_an_engine_is_watched(pair: Pair, smi: FakeSmi) -> None:
    """Samples of both nodes' GPU 0 come with the node's name, and a process that computes on the other node's is known
    as the engine's; afterwards that node keeps nothing of the load."""
    pair.has_engine_on_second(pair.aside.client.pid)
    smi.tell(apps=f"GPU-aaaa1111, {pair.aside.client.pid}\n")
    telemetry.start(pair, ENGINE, run_dir=pair.run_dir, interval_s=0.02)
    pair.load.begin()
    wait_until(lambda: pair.load.has_rows(3) and pair.aside.has_rows(3))
    samples = telemetry.collect(pair, run_dir=pair.run_dir) or ()
    assert {(one.node, one.gpu) for one in samples} == {("n1", 0), ("n2", 0)}
    assert [one.at_s for one in samples] == sorted(one.at_s for one in samples)
    assert {one.foreign_pids for one in samples if one.node == "n2" and not one.unknown} == {()}
    assert pair.aside.why_ended() == "told to end"
    telemetry.remove_aside(pair, run_dir=pair.run_dir)
    assert not pair.aside.folder.exists() and pair.load.folder.exists()
    telemetry.remove_aside(pair, run_dir=pair.run_dir)


def test_a_node_without_a_client_is_watched_until_its_engine_ends(pair: Pair, smi: FakeSmi) -> None:
    """Nobody came back for it: the program on the other node ends with that node's part of the engine."""
    pair.has_engine_on_second(pair.aside.client.pid)
    telemetry.start(pair, ENGINE, run_dir=pair.run_dir, interval_s=0.02)
    wait_until(pair.aside.has_rows)
    pair.aside.end()
    assert pair.aside.why_ended() == "the engine is gone"


def test_a_node_that_cannot_be_asked_costs_the_others_nothing(
    pair: Pair, smi: FakeSmi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head's samples are there though the other node does not answer."""
    pair.has_engine_on_second(pair.aside.client.pid)
    telemetry.start(pair, ENGINE, run_dir=pair.run_dir, interval_s=0.02)
    pair.load.begin()
    wait_until(pair.load.has_rows)

    def gone(*_: object, **__: object) -> Completed:
        raise NodeLostError("n2 is down", next_step="")

    monkeypatch.setattr(pair.nodes[1], "run", gone)
    assert {one.node for one in telemetry.collect(pair, run_dir=pair.run_dir) or ()} == {"n1"}
    telemetry.stop(pair, run_dir=pair.run_dir)


# ---- scripts


@pytest.mark.parametrize("name", ["_PREPARE", "_STOP", "_COLLECT"])
def test_scripts_pass_shellcheck(name: str) -> None:
    """shellcheck finds nothing in the POSIX sh sources."""
    shellcheck = shutil.which("shellcheck") or shutil.which("shellcheck", path=str(Path(sys.executable).parent))
    if shellcheck is None:
        pytest.skip("shellcheck is not installed")
    script = "#!/bin/sh\n" + getattr(telemetry, name)
    done = subprocess.run([shellcheck, "-s", "sh", "-"], input=script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
