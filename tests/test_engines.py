"""What is known of kinds of engine: asked of small servers that answer in the shapes of the real ones.

The shapes are those of SGLang 0.5, vLLM (V1), llama.cpp of 2026 and transformers 5, shortened.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, get_args

import pytest

from orchestrator import inventory, provenance, serve, telemetry
from orchestrator.connection.local import LocalRemote
from orchestrator.designs import EngineCounters
from orchestrator.doctor import engine as doctor_engine
from orchestrator.engines import knowledge_of
from orchestrator.experiment.trial import as_served
from orchestrator.host import engine_answers
from orchestrator.records import Engine, EngineKind, EngineProcess, Host
from orchestrator.store.reading import _comparison_key
from tests.support.tiny_host import SUPPORT, TinyHost

CHECKOUT = Path(__file__).parents[1]

SGLANG_INFO = {
    "model_path": "/models/deepseek",
    "attention_backend": "fa3",
    "decode_attention_backend": None,
    "dtype": "auto",
    "page_size": 64,
    "disable_radix_cache": False,
    "random_seed": 372612021,
    "api_key": "sk-abcdefgh",
    "lora_paths": None,
    "status": "ready",
    "max_total_num_tokens": 161721,
    "internal_states": [{"last_gen_throughput": 812.4, "memory_usage": {"kvcache": 1.2}}],
    "version": "0.5.23",
}
SGLANG_METRICS = """\
# TYPE sglang:cached_tokens_total counter
sglang:prompt_tokens_total{model_name="deepseek"} 8192.0
sglang:cached_tokens_total{cache_source="device",model_name="deepseek"} 3000.0
sglang:cached_tokens_total{cache_source="host",model_name="deepseek"} 72.0
sglang:num_retracted_reqs{model_name="deepseek"} 7.0
sglang:num_retracted_requests_total{model_name="deepseek"} 2.0
sglang:max_total_num_tokens{model_name="deepseek"} 161721.0
"""
VLLM_METRICS = """\
vllm:num_preemptions_total{engine="0",model_name="tiny"} 3.0
vllm:prefix_cache_queries_total{engine="0",model_name="tiny"} 4096.0
vllm:prefix_cache_hits_total{engine="0",model_name="tiny"} 1024.0
vllm:prefix_cache_hits_created{engine="0",model_name="tiny"} 1.76e+09
vllm:cache_config_info{block_size="16",cache_dtype="auto",enable_prefix_caching="True",engine="0",\
gpu_memory_utilization="0.82",num_gpu_blocks="573",num_gpu_blocks_override="None",sliding_window="None"} 1.0
"""
LLAMA_PROPS = {
    "default_generation_settings": {"n_ctx": 1024, "params": {"temperature": 0.8}},
    "total_slots": 64,
    "model_path": "/models/tiny.gguf",
    "chat_template": "{{ messages }}",
    "build_info": "b10434-abc1234",
}
LLAMA_METRICS = """\
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 900
llamacpp:prompt_tokens_cached_total 100
llamacpp:n_tokens_max 980
"""
MODELS = {"object": "list", "data": [{"id": "tiny", "object": "model"}, {"id": "other"}]}


@dataclass
class Fake:
    """An engine's pages, and which of them were asked for."""

    base_url: str
    pages: dict[str, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def engine(self, kind: EngineKind, **changes: Any) -> Engine:
        """The engine as an inventory has it."""
        return Engine(name="e", command=("e",), python=sys.executable, base_url=self.base_url, kind=kind, **changes)

    def facts(self, remote: LocalRemote, kind: EngineKind, **changes: Any) -> dict[str, Any]:
        """The facts that are recorded of it."""
        process = EngineProcess("e", "here", 1, 1, "", 0.0, "", None)
        return dict(provenance.environment(remote, self.engine(kind, **changes), process).facts)


@pytest.fixture
def fake() -> Iterator[Fake]:
    """An HTTP server on this machine that has the pages of an engine."""

    class Pages(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            made.asked.append(self.path)
            self.send_response(200 if self.path in made.pages else 404)
            self.end_headers()
            self.wfile.write(made.pages.get(self.path, b'{"version": "not this one"}'))

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Pages) as server:
        made = Fake(f"http://127.0.0.1:{server.server_port}")
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield made
        server.shutdown()


@pytest.fixture
def remote(tmp_path: Path) -> LocalRemote:
    """This machine, with its scratch folder inside the test's own."""
    return LocalRemote(Host(name="here", transport="local", scratch_dir=str(tmp_path / "scratch")))


def page(document: object) -> bytes:
    """A JSON answer."""
    return json.dumps(document).encode()


# ---- version, arguments and model


def test_sglang_tells_version_and_arguments(fake: Fake, remote: LocalRemote) -> None:
    """Read from /server_info, once: what SGLang chose, and neither its seed, its memory nor its key."""
    fake.pages = {"/server_info": page(SGLANG_INFO), "/v1/models": page(MODELS)}
    facts = fake.facts(remote, "sglang")
    assert facts["engine_version"] == "sglang 0.5.23"
    assert facts["model"] == "tiny"
    assert json.loads(facts["engine_arguments"]) == {
        "attention_backend": "fa3",
        "disable_radix_cache": "false",
        "dtype": "auto",
        "page_size": 64,
    }
    assert "sk-abcdefgh" not in json.dumps(facts)
    assert sorted(fake.asked) == ["/server_info", "/v1/models"]


def test_vllm_tells_version_and_arguments(fake: Fake, remote: LocalRemote) -> None:
    """The version at /version, the cache's settings as labels; the inventory's model counts before the engine's."""
    fake.pages = {
        "/version": page({"version": "0.32.0"}),
        "/metrics": VLLM_METRICS.encode(),
        "/v1/models": page(MODELS),
    }
    facts = fake.facts(remote, "vllm", model="mine")
    assert (facts["engine_version"], facts["model"]) == ("vllm 0.32.0", "mine")
    assert json.loads(facts["engine_arguments"]) == {
        "block_size": "16",
        "cache_dtype": "auto",
        "enable_prefix_caching": "True",
        "gpu_memory_utilization": "0.82",
        "sliding_window": "None",
    }


def test_llama_server_tells_version_and_arguments(fake: Fake, remote: LocalRemote) -> None:
    """The build, the slots and the context from /props."""
    fake.pages = {"/props": page(LLAMA_PROPS), "/v1/models": page(MODELS)}
    facts = fake.facts(remote, "llama-server")
    assert facts["engine_version"] == "llama-server b10434-abc1234"
    assert json.loads(facts["engine_arguments"]) == {
        "model_path": "/models/tiny.gguf",
        "n_ctx": 1024,
        "total_slots": 64,
    }


def test_an_engine_without_such_routes_has_the_version_of_its_package(
    fake: Fake, remote: LocalRemote, tmp_path: Path
) -> None:
    """transformers serve tells its model only; the kind's own distribution counts, not an sglang beside it."""
    for name, version in (("transformers", "5.24.0"), ("sglang", "0.5.23")):
        folder = tmp_path / "site" / f"{name}-{version}.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    fake.pages = {"/v1/models": page(MODELS)}
    facts = fake.facts(remote, "transformers", env={"PYTHONPATH": str(tmp_path / "site")})
    assert (facts["engine_version"], facts["model"]) == ("transformers 5.24.0", "tiny")
    assert facts["engine_arguments"] is None
    assert fake.asked == ["/v1/models"]


@pytest.mark.parametrize("kind", ["sglang", "vllm", "llama-server", "kernel"])
@pytest.mark.parametrize(
    "body",
    [None, b"", b"no JSON {", b"[]", b'{"version": {"a": 1}, "data": [], "build_info": null}', b"[" * 100_000, b"\xff"],
    ids=["missing", "empty", "no JSON", "a list", "other shapes", "deep", "no UTF-8"],
)
def test_an_answer_that_is_none_is_unknown(fake: Fake, kind: EngineKind, body: bytes | None) -> None:
    """Missing routes, broken JSON and other shapes leave every value unknown, and nothing fails."""
    if body is not None:
        fake.pages = dict.fromkeys(("/server_info", "/version", "/props", "/v1/models", "/metrics"), body)
    asked = provenance._questions(fake.engine(kind))
    assert set(engine_answers.read(asked).values()) == {None}


def test_nobody_answers(remote: LocalRemote) -> None:
    """With no engine at all the facts are there, and those of the engine are unknown."""
    facts = Fake("http://127.0.0.1:9").facts(remote, "vllm")
    assert (facts["model"], facts["engine_arguments"]) == (None, None)
    assert facts["hostname"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("a" * 1000, "a" * 300),
        ("\ud800", "\\ud800"),
        ("", None),
        (True, "true"),
        (1e999, None),
        (10**30, None),
        ([1], None),
        (0, 0),
    ],
)
def test_only_values_that_can_be_kept(fake: Fake, value: object, expected: object) -> None:
    """Texts are cut and storable, numbers fit a database; anything else is unknown."""
    fake.pages["/x"] = page({"a": value})
    asked = [{"name": "a", "url": f"{fake.base_url}/x", "keys": ["a"]}]
    assert engine_answers.read(asked) == {"a": expected}


def test_an_engine_of_no_kind_is_asked_for_nothing(fake: Fake, remote: LocalRemote) -> None:
    """Without a kind facts are as they were: no request, no fact of arguments."""
    fake.pages = {"/server_info": page(SGLANG_INFO), "/v1/models": page(MODELS)}
    facts = fake.facts(remote, "other")
    assert fake.asked == []
    assert facts["model"] is None
    assert "engine_arguments" not in facts


def test_arguments_must_agree_where_they_are_told() -> None:
    """Two arms with other arguments differ in a compared fact; where no engine tells them nothing is missing."""
    keys = [_comparison_key("h", {}, "c", "1", facts) for facts in ({"engine_arguments": '{"dtype": "auto"}'}, {})]
    assert keys[0]["engine_arguments"] == '{"dtype": "auto"}'
    assert "engine_arguments" not in keys[1]


@pytest.mark.slow
def test_the_tiny_engine_for_real(here: TinyHost) -> None:
    """A running engine that has none of the routes is started, proved and recorded under every kind."""
    engine = here.engine(kind="sglang")
    process = serve.start(here.remote, engine, deployed_digest=None)
    serve.wait_ready(here.remote, engine, process)
    facts = provenance.environment(here.remote, engine, process).facts
    assert facts["engine_version"] is None and facts["engine_arguments"] is None
    assert telemetry.engine_counters(here.remote, engine) == EngineCounters(None, None)


@pytest.mark.integration
@pytest.mark.kernel
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the engine needs torch")
def test_the_engine_of_this_project_for_real(here: TinyHost) -> None:
    """Its model, package and KV pages are on record; what it does not have is unknown."""
    options = ("--layers", "1", "--n-pages", "65", "--device", "cpu", "--model-name", "mine")
    command = (sys.executable, "-m", "kernel.engine", "--port", str(here.port), *options)
    changes = {"command": command, "cwd": str(CHECKOUT), "env": {}, "ready_timeout_s": 120.0}
    engine = here.engine(kind="kernel", **changes)
    process = serve.start(here.remote, engine, deployed_digest=None)
    try:
        serve.wait_ready(here.remote, engine, process)
        facts = provenance.environment(here.remote, engine, process).facts
        assert str(facts["engine_version"]).startswith("kernel ")
        assert (facts["model"], facts["engine_arguments"]) == ("mine", None)
        assert telemetry.engine_counters(here.remote, engine) == EngineCounters(None, 64)
        for kind in ("sglang", "vllm", "llama-server"):
            asked = here.engine(kind=kind, **changes)
            told = '{"max_model_len": 2048}' if kind == "vllm" else None  # both say it at /v1/models
            assert provenance.environment(here.remote, asked, process).facts["engine_arguments"] == told
            assert telemetry.engine_counters(here.remote, asked) == EngineCounters(None, None)
    finally:
        assert serve.stop(here.remote, engine)


@pytest.mark.parametrize(
    ("model", "told", "sent"), [(None, "deepseek", "deepseek"), ("mine", "deepseek", "mine"), (None, None, None)]
)
def test_the_model_that_requests_name(model: str | None, told: str | None, sent: str | None) -> None:
    """That of the inventory; without one, what an engine of a known kind said of itself; else none."""
    engine = Fake("http://127.0.0.1:1").engine("vllm", model=model)
    assert as_served(engine, {"model": told}).model == sent


@pytest.mark.parametrize("kind", get_args(EngineKind))
def test_the_stub_for_real(remote: LocalRemote, kind: EngineKind) -> None:
    """A server that has completions and the name of its model, and no more to say of itself: all else is unknown."""
    command = [sys.executable, SUPPORT / "stub_engine.py", "--ttft-ms", "1", "--itl-ms", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as stub:
        assert stub.stdout is not None
        try:
            engine = Fake(f"http://127.0.0.1:{int(stub.stdout.readline().split()[1])}").engine(kind)
            assert set(engine_answers.read(provenance._questions(engine)).values()) <= {None, "stub"}
            assert telemetry.engine_counters(remote, engine) == EngineCounters(None, None)
        finally:
            stub.terminate()


@pytest.fixture
def here(tmp_path: Path) -> Iterator[TinyHost]:
    """This machine, with a tiny engine."""
    host = TinyHost(tmp_path)
    yield host
    host.close()


# ---- counters


@pytest.mark.parametrize(
    ("kind", "metrics", "expected"),
    [
        ("sglang", SGLANG_METRICS, EngineCounters(2, 161721, 161721, 3072, 8192)),
        ("vllm", VLLM_METRICS, EngineCounters(3, 573, 573 * 16, 1024, 4096)),
        ("llama-server", LLAMA_METRICS, EngineCounters(None, None, None, 100, 1000)),
        ("kernel", "engine_kv_pages 512\nengine_kv_pages_used 3\n", EngineCounters(None, 512)),
        ("transformers", SGLANG_METRICS, EngineCounters(None, None)),
        ("vllm", SGLANG_METRICS, EngineCounters(None, None)),
        ("other", SGLANG_METRICS, EngineCounters(2, 161721, 161721, 3072, 8192)),
        ("other", VLLM_METRICS, EngineCounters(3, 573, 573 * 16, 1024, 4096)),
        ("llama-server", "llamacpp:prompt_tokens_total 900", EngineCounters(None, None)),
        ("vllm", 'vllm:cache_config_info{block_size="16",num_gpu_blocks="None"} 1', EngineCounters(None, None)),
        (
            "vllm",
            'vllm:cache_config_info{block_size="16",num_gpu_blocks="10",kv_cache_size_tokens="99"} 1',
            EngineCounters(None, 10, 99),
        ),
        ("vllm", "vllm:num_preemptions_total 1e300", EngineCounters(None, None)),
        ("sglang", "sglang:max_total_num_tokens NaN", EngineCounters(None, None)),
    ],
)
def test_counters_by_kind(
    fake: Fake, remote: LocalRemote, kind: EngineKind, metrics: str, expected: EngineCounters
) -> None:
    """Each kind's own names count and no others; places of a cache are added up; what is not told is unknown."""
    fake.pages["/metrics"] = metrics.encode()
    assert telemetry.engine_counters(remote, fake.engine(kind)) == expected
    assert fake.asked == ["/metrics"]


def test_sglang_without_metrics_tells_its_pool(fake: Fake, remote: LocalRemote) -> None:
    """Without --enable-metrics the size of the pool comes from /server_info, and all else stays unknown."""
    fake.pages["/server_info"] = page(SGLANG_INFO)
    assert telemetry.engine_counters(remote, fake.engine("sglang")) == EngineCounters(None, 161721, 161721)
    fake.pages["/server_info"] = page({**SGLANG_INFO, "max_total_num_tokens": "many"})
    assert telemetry.engine_counters(remote, fake.engine("sglang")) == EngineCounters(None, None)


# ---- the inventory, and what doctor says


def loaded(folder: Path, *lines: str) -> Engine:
    """The engine of an inventory with these lines."""
    text = "hosts:\n  h:\nengines:\n  e:\n    python: /p\n    command: p\n    base_url: http://h:1\n"
    path = folder / "inventory.yaml"
    path.write_text(text + "".join(f"    {line}\n" for line in lines))
    return inventory.load(path).engines["e"]


@pytest.mark.parametrize(
    ("kind", "flush", "loaded_path"),
    [
        ("sglang", "/flush_cache", None),
        ("vllm", "/reset_prefix_cache", None),
        ("llama-server", None, None),
        ("transformers", None, None),
        ("kernel", None, "/loaded"),
        ("other", None, None),
    ],
)
def test_paths_follow_from_the_kind(
    tmp_path: Path, kind: EngineKind, flush: str | None, loaded_path: str | None
) -> None:
    """A kind gives the paths that are not written; what is written counts, also that there is none."""
    engine = loaded(tmp_path, f"kind: {kind}")
    assert (engine.kind, engine.ready_path) == (kind, "/health")
    assert (engine.cache_flush_path, engine.loaded_path) == (flush, loaded_path)
    written = loaded(tmp_path, f"kind: {kind}", "ready_path: /up", "cache_flush_path: null", "loaded_path: /mine")
    assert (written.ready_path, written.cache_flush_path, written.loaded_path) == ("/up", None, "/mine")


def test_every_kind_is_known() -> None:
    """Each kind of the inventory has its own file of facts, and its questions name each value once."""
    for kind in get_args(EngineKind):
        assert knowledge_of(kind).kind == kind
        assert not {"version", "model"} & knowledge_of(kind).arguments.keys()


def test_doctor_knows_a_ready_path_that_answers_too_early(tmp_path: Path) -> None:
    """SGLang's /v1/models is warned of; the same path of an engine that opens its port when ready is not."""
    finding = doctor_engine.check_url(loaded(tmp_path, "kind: sglang", "ready_path: /v1/models"))
    assert "before it can serve" in finding.text
    assert "before it can serve" not in doctor_engine.check_url(loaded(tmp_path, "kind: sglang")).text
    engine = loaded(tmp_path, "kind: vllm", "ready_path: /v1/models")
    assert "before it can serve" not in doctor_engine.check_url(engine).text


def test_doctor_misses_the_option_for_metrics(tmp_path: Path) -> None:
    """An engine that counts only when told so is looked at; one that always or never counts is not."""
    for kind, option in (("sglang", "--enable-metrics"), ("llama-server", "--metrics")):
        engine = loaded(tmp_path, f"kind: {kind}")
        told = replace(engine, command=("p", option))
        found = [doctor_engine.check_counters(one) for one in (engine, told)]
        assert [finding.status for finding in found if finding] == ["warn", "ok"]
    assert doctor_engine.check_counters(loaded(tmp_path, "kind: vllm")) is None
    assert doctor_engine.check_counters(loaded(tmp_path)) is None
