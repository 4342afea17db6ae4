"""Other load clients in the inventory, in `orch doctor` and in the record: what is accepted, told and compared."""

from __future__ import annotations

import ast
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from orchestrator import inventory
from orchestrator.clients import driven, driver, request_limit
from orchestrator.connection.local import LocalRemote
from orchestrator.doctor.clients import check_clients
from orchestrator.doctor.engine import check_workloads
from orchestrator.errors import ComparisonError, InventoryError, UnknownNameError
from orchestrator.inventory.shapes import json_schema
from orchestrator.records import Engine, Host, Workload
from orchestrator.stats.unplanned import comparable
from orchestrator.store import Store
from tests.support import fake_client, store_records

WITHOUT_WORKLOADS = "hosts:\n  here:\n    transport: local\nworkloads:\n  w:\n"
ENGINE = Engine(name="e", command=("x",), python=sys.executable, base_url="http://127.0.0.1:1", model="m")


def write(folder: Path, *lines: str) -> Path:
    """An inventory with one workload of these lines."""
    path = folder / "inventory.yaml"
    path.write_text(WITHOUT_WORKLOADS + "".join(f"    {line}\n" for line in lines))
    return path


def refused(folder: Path, *lines: str) -> list[str]:
    """Every problem of it, without file and line."""
    with pytest.raises(InventoryError) as caught:
        inventory.load(write(folder, *lines))
    told = list(caught.value.evidence) or [str(caught.value)]
    return [line.partition("workloads.w.")[2] for line in told]


def test_a_workload_with_another_client(tmp_path: Path) -> None:
    """Command as one text or a list, environment with numbers as they are written."""
    for command in ("/opt/a/bin/aiperf profile", "[/opt/a/bin/aiperf, profile]"):
        lines = ["client: aiperf", f"client_command: {command}", "client_env: {A: 1.10}", "tokenizer: /models/m"]
        workload = inventory.load(write(tmp_path, *lines)).workloads["w"]
        assert workload.client_command == ("/opt/a/bin/aiperf", "profile")
        assert (dict(workload.client_env), workload.tokenizer) == ({"A": "1.10"}, "/models/m")


def test_a_kept_inventory_is_the_same(tmp_path: Path) -> None:
    """Read a second time, from the copy in .orch/, the workload is equal to the first one."""
    path = write(tmp_path, "client: vllm", "client_command: /opt/v/bin/vllm", "tokenizer: t", "client_env: {A: b}")
    (tmp_path / "variants").mkdir()
    first, second = inventory.load(path), inventory.load(path)
    assert (tmp_path / ".orch" / "inventory.cache.json").exists()
    assert first.workloads == second.workloads


REFUSED = {
    "loadgen with what only others have": (
        ["tokenizer: t", "client_command: /a", "client_env: {A: b}"],
        [
            "client_command: has no meaning with client: loadgen; leave it out",
            "client_env: has no meaning with client: loadgen; leave it out",
            "tokenizer: has no meaning with client: loadgen; leave it out",
        ],
    ),
    "token ids for a client that takes none": (
        ["client: vllm", "tokenizer: t", "min_token_id: 5"],
        ["min_token_id: has no meaning with client: vllm; leave it out"],
    ),
    "no tokenizer": (
        ["client: vllm"],
        ["tokenizer: missing; vllm makes its prompts with one: give the model's folder"],
    ),
    "no command": (
        ["client: guidellm", "tokenizer: t"],
        ["client_command: missing; how guidellm is called on the host, as /opt/guidellm/bin/guidellm run"],
    ),
    "a program of the PATH": (
        ["client: aiperf", "tokenizer: t", "client_command: aiperf profile"],
        ["client_command: wanted a program from '/', found \"aiperf\""],
    ),
    "sglang without a module": (
        ["client: sglang", "tokenizer: t", "client_command: /opt/s/bin/python serving.py"],
        ['client_command: wanted PYTHON -m sglang.benchmark.serving, found "/opt/s/bin/python serving.py"'],
    ),
    "an unknown client": (
        ["client: vlm"],
        ['client: wanted one of loadgen, sglang, vllm, guidellm, aiperf, found "vlm" (did you mean vllm?)'],
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_client_does_not_need_or_lacks_is_refused(case: str, tmp_path: Path) -> None:
    """Each wrong key is named with what is wanted."""
    lines, problems = REFUSED[case]
    assert sorted(refused(tmp_path, *lines)) == sorted(problems)


SHORT = """\
  short:
    input_tokens: 1024
    cache_policy: flush
    request_timeout_s: 90
    load_timeout_s: 900
    max_token_id: 9000
  again: {recipe: short, request_timeout_s: 300, client: vllm, tokenizer: t}
  long: {input_tokens: 4096}
"""


def with_short(folder: Path, entry: str) -> Path:
    """An inventory with workloads of two recipes, and one more entry."""
    path = folder / "inventory.yaml"
    path.write_text("hosts:\n  here:\n    transport: local\nworkloads:\n" + SHORT + f"  w: {entry}\n")
    return path


def test_a_workload_by_the_recipe_of_another(tmp_path: Path) -> None:
    """It is the same load: lengths, counts, seed, cache policy, limits unless it has its own; nothing of a client."""
    loaded = inventory.load(with_short(tmp_path, "{recipe: short}"))
    short, again, w = (loaded.workloads[name] for name in ("short", "again", "w"))
    assert short.recipe == again.recipe == w.recipe != loaded.workloads["long"].recipe
    assert (again.input_tokens, again.cache_policy, again.client) == (1024, "flush", "vllm")
    assert (again.request_timeout_s, again.load_timeout_s) == (300, 900)
    assert (w.client, w.max_token_id) == ("loadgen", 31000)


def test_workloads_of_one_recipe_are_found(tmp_path: Path) -> None:
    """By the name of any of them; without a name only where the inventory has one recipe."""
    loaded = inventory.load(with_short(tmp_path, "{input_tokens: 1024, cache_policy: flush}"))
    for name in ("short", "again", "w"):
        found = inventory.workloads_of_recipe(loaded, name)
        assert [one.name for one in found] == ["short", "again", "w"]
    with pytest.raises(UnknownNameError, match="several workloads"):
        inventory.workloads_of_recipe(loaded, None)
    alone = inventory.load(write(tmp_path, "input_tokens: 8"))
    assert [one.name for one in inventory.workloads_of_recipe(alone, None)] == ["w"]


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("{recipe: shrot}", 'no other workload "shrot"; workloads here: short, again, long (did you mean short?)'),
        ("{recipe: w}", 'no other workload "w"; workloads here: short, again, long'),
        ("{recipe: 5}", "no other workload 5; workloads here: short, again, long"),
        ("{recipe: again}", 'again has the recipe of "short" itself; name that one'),
        ("{recipe: short, seed: 7}", "seed: is part of the recipe, which is that of short; leave it out"),
    ],
)
def test_a_recipe_that_is_none_is_refused(entry: str, problem: str, tmp_path: Path) -> None:
    """The refusal names what there is, and nothing else is refused with it."""
    with pytest.raises(InventoryError) as caught:
        inventory.load(with_short(tmp_path, entry))
    assert str(caught.value).partition("workloads.w.")[2].removeprefix("recipe: ") == problem


def test_secrets_of_a_client_are_refused(tmp_path: Path) -> None:
    """A token in the client's environment or command is a secret as anywhere else."""
    told = refused(tmp_path, "client: vllm", "tokenizer: t", "client_env: {HF_TOKEN: abc}")
    assert "looks like a secret" in told[0] and "abc" not in told[0]
    told = refused(tmp_path, "client: vllm", "tokenizer: t", "client_command: /v --api-key abc")
    assert "holds a secret's value" in told[0] and "abc" not in told[0]


def test_the_schema_for_editors_allows_what_the_loader_does() -> None:
    """A command may be one text, a variable a number."""
    properties = json_schema()["$defs"]["workloads"]["anyOf"][1]["properties"]
    assert {"type": "string"} in properties["client_command"]["anyOf"]
    assert properties["client_env"]["additionalProperties"] == {"type": ["string", "number"]}
    assert properties["recipe"]["type"] == "string"


# ---- orch doctor


def looked_at(tmp_path: Path, **fields: Any) -> tuple[str, str]:
    """Status and text of the one finding on a workload that vLLM's client makes."""
    workload = Workload(name="w", client="vllm", **{"tokenizer": str(tmp_path), **fields})
    remote = LocalRemote(Host(name="here", transport="local", scratch_dir=str(tmp_path)))
    (finding,) = check_clients(remote, ENGINE, {"w": workload, "own": Workload(name="own")})
    return finding.status, finding.text


def test_doctor_asks_the_client_for_its_version(tmp_path: Path) -> None:
    """A client that is there is told with its version, in its own environment."""
    fake = (sys.executable, str(Path(fake_client.__file__)))
    status, text = looked_at(tmp_path, client_command=fake)
    assert (status, text) == ("ok", f"w: vllm {fake_client.VERSION}, {' '.join(fake)} bench serve")
    says = ("/bin/sh", "-c", 'echo "version $TOLD"')
    assert looked_at(tmp_path, client_command=says, client_env={"TOLD": "1.2"})[1].startswith("w: vllm 1.2,")


def test_doctor_names_what_is_missing(tmp_path: Path) -> None:
    """No program, or no tokenizer, is a failure that says which."""
    status, text = looked_at(tmp_path, client_command=("/nowhere/vllm",))
    assert status == "fail" and text.startswith("w: no vllm: /nowhere/vllm bench serve: ") and "No such file" in text
    status, text = looked_at(tmp_path, tokenizer="/nowhere/model")
    assert (status, text) == ("fail", "w: tokenizer /nowhere/model is not there")


def test_doctor_knows_when_vllm_cannot_flush() -> None:
    """vLLM's flush without the switch that it needs is a warning; with it, it is not."""
    engine = replace(ENGINE, cache_flush_path="/reset_prefix_cache")
    flushing = {"w": Workload(name="w", cache_policy="flush")}
    finding = check_workloads(engine, flushing)
    assert finding.status == "warn" and "VLLM_SERVER_DEV_MODE=1" in finding.text
    switched = replace(engine, env={"VLLM_SERVER_DEV_MODE": "1"})
    assert check_workloads(switched, flushing).status == "ok"
    assert check_workloads(engine, {"w": Workload(name="w")}).status == "ok"


# ---- the program on the host


@pytest.mark.parametrize("program", [driver, request_limit])
def test_what_drives_a_client_is_python_3_8_with_the_standard_library_alone(program: ModuleType) -> None:
    """It parses as 3.8 and imports nothing that an engine's Python might not have, but what it does without."""
    tree = ast.parse(driven.source(program), feature_version=(3, 8))
    imported = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {alias.name for node in imported if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in imported if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in names} - {"aiohttp"} <= sys.stdlib_module_names


# ---- the record


def measured_with(tmp_path: Path, *made: tuple[Workload, str, str]) -> list[Any]:
    """One measurement for each (workload, client, version), in the same store."""
    with Store.open(tmp_path / "results.db") as store:
        store.record_snapshot(store_records.snapshot())
        store.set_baseline(store_records.snapshot())
        for workload, client, version in made:
            load = replace(store_records.load(), client=client, client_version=version)
            digest = store_records.FASTER.digest
            trial = store.begin_trial(host="gpu-a", target="flash", variant="V2", digest=digest, workload=workload)
            store.record_service(trial, store_records.service(digest, None))
            store.record_load(trial, load)
            store.end_trial(trial, "ok", digest_after=digest)
        return store.measurements("flash", "short", digest=store_records.FASTER.digest)


def test_loads_of_two_clients_or_versions_are_not_compared(tmp_path: Path) -> None:
    """The refusal names the client, or its version; where the program lies makes no difference."""
    own = replace(store_records.WORKLOAD, client="vllm", tokenizer="/t")
    moved = replace(own, client_command=("/elsewhere/vllm",))
    first, other, newer, same = measured_with(
        tmp_path, (own, "vllm", "0.32.0"), (own, "sglang", "0.32.0"), (own, "vllm", "0.33.0"), (moved, "vllm", "0.32.0")
    )
    with pytest.raises(ComparisonError, match=r"client \(vllm against sglang\)"):
        comparable(first, other)
    with pytest.raises(ComparisonError, match=r"client_version \(0\.32\.0 against 0\.33\.0\)"):
        comparable(first, newer)
    comparable(first, same)
    (tmp_path / "b").mkdir()
    (elsewhere,) = measured_with(tmp_path / "b", (replace(own, tokenizer="/u"), "vllm", "0.32.0"))
    with pytest.raises(ComparisonError, match=r"workload\.tokenizer"):
        comparable(first, elsewhere)


def test_a_workload_of_loadgen_is_recorded_as_before(tmp_path: Path) -> None:
    """Keys that only other clients have do not make new starts unlike the old ones."""
    (one,) = measured_with(tmp_path, (store_records.WORKLOAD, "loadgen", "1"))
    assert not {"workload.client_command", "workload.client_env", "workload.tokenizer"} & set(one.comparison_key)


def test_a_recorded_workload_is_the_one_that_was_asked_for() -> None:
    """Through JSON and back it is equal, so that a start can be taken over."""
    workload = Workload(name="w", client="vllm", client_command=("/v", "bench"), client_env={"A": "b"}, tokenizer="t")
    fields = json.loads(json.dumps({name: getattr(workload, name) for name in Workload.__slots__}))
    assert Workload(**fields) == workload
