"""inventory.yaml: what is accepted, what is refused, and how exactly a refusal says where."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator import inventory
from orchestrator.errors import InventoryError, UnknownNameError
from orchestrator.inventory.shapes import SECTIONS, allowed_keys
from orchestrator.records import CheckSettings, Launcher

GOOD = """\
version: 1
hosts:
  gpu-a:
  gpu-b: {ssh: 10.0.0.7, port: 2222, identity: keys/id, known_hosts: ~/kh}
engines:
  sglang:
    python: /opt/sglang/bin/python
    command: python -m sglang.launch_server --model-path '/models/a b'
    base_url: http://127.0.0.1:30000
    env: {A: 1, B: 2.10, C: "true", D: ''}
targets:
  mla:
    host: gpu-b
    module: sglang.attention.mla
    kernel: mla_kernel
    files:
      - /opt/sglang/attention/mla.py
      - {path: /opt/sglang/ops/merge.py, module: sglang.ops.merge}
workloads:
  short:
"""


def write(folder: Path, text: str | bytes) -> Path:
    """Writes an inventory and gives its path."""
    path = folder / "inventory.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def refused(folder: Path, text: str | bytes) -> list[str]:
    """Every problem of a refused inventory, with the folder cut off."""
    with pytest.raises(InventoryError) as caught:
        inventory.load(write(folder, text))
    lines = list(caught.value.evidence) or [str(caught.value)]
    assert lines[0] in str(caught.value)
    return [line.replace(f"{folder}/", "") for line in lines]


def with_lines(**changed: str) -> str:
    """The good inventory with a line replaced: ``kernel="    kernal: x"``."""
    lines = GOOD.splitlines()
    for key, replacement in changed.items():
        places = [i for i, line in enumerate(lines) if line.strip().startswith(f"{key.rstrip('_')}:")]
        assert len(places) == 1, (key, places)
        lines[places[0]] = replacement
    return "\n".join(lines) + "\n"


def with_check(*lines: str) -> str:
    """The good inventory whose target has a ``check`` (line 16) with these lines."""
    block = "".join(f"      {line}\n" for line in lines)
    return GOOD.replace("    kernel: mla_kernel\n", f"    kernel: mla_kernel\n    check:\n{block}")


def with_launcher(keys: str) -> str:
    """The good inventory whose engine has a launcher in place of what only a command has, on line 8."""
    lines = [line for line in GOOD.splitlines() if not line.startswith("    env:")]
    return "\n".join(f"    launcher: {{{keys}}}" if "command:" in line else line for line in lines) + "\n"


# ---- accepted


def test_a_good_inventory_becomes_records(tmp_path: Path) -> None:
    """Shorter forms are spelled out: a command as words, plain paths, an empty entry, numbers in env as written."""
    loaded = inventory.load(write(tmp_path, GOOD))
    engine, target, host = loaded.engines["sglang"], loaded.targets["mla"], loaded.hosts["gpu-b"]
    assert engine.command == ("python", "-m", "sglang.launch_server", "--model-path", "/models/a b")
    assert engine.env == {"A": "1", "B": "2.10", "C": "true", "D": ""}
    assert [(f.name, f.module) for f in target.files] == [
        ("attention/mla.py", "sglang.attention.mla"),
        ("ops/merge.py", "sglang.ops.merge"),
    ]
    assert target.engine == "sglang"  # the only one, so it may be left out
    assert loaded.hosts["gpu-a"].ssh is None and loaded.workloads["short"].name == "short"
    assert host.identity == str(tmp_path / "keys/id")
    assert host.known_hosts == str(Path("~/kh").expanduser())


def test_the_template_loads_as_it_is(tmp_path: Path) -> None:
    """What `orch init` writes is accepted, and so is it with every commented example switched on."""
    text = inventory.template()
    assert list(inventory.load(write(tmp_path, text)).targets) == ["flash_mla"]
    opened = [
        line.replace("# ", "", 1) if line.startswith(("    # ", "      # ")) else line for line in text.splitlines()
    ]
    assert inventory.load(write(tmp_path, "\n".join(opened))).hosts["gpu-a"].port == 22


CHECK = (
    "arguments: {q_ptr: '*bf16', '*_stride*': i32:16, stride_token: i32:1, n: 1, eps: 1.0, causal: true, bias: null}",
    "varies: [batch]",
    "reference: python -m check {file} ''",
    "reference_timeout_s: 30",
)


def test_what_check_needs_to_know(tmp_path: Path) -> None:
    """Arguments keep their order and kind of value; a command as words; an argument may be called like a secret."""
    target = inventory.load(write(tmp_path, with_check(*CHECK, "arch: [sm_120, SM_90a, '86', 100]"))).targets["mla"]
    assert list(target.check.arguments.items()) == [
        ("q_ptr", "*bf16"),
        ("*_stride*", "i32:16"),
        ("stride_token", "i32:1"),
        ("n", 1),
        ("eps", 1.0),
        ("causal", True),
        ("bias", None),
    ]
    assert [type(value) for value in target.check.arguments.values()][3:] == [int, float, bool, type(None)]
    assert target.check.arch == ("sm_120", "sm_90", "sm_86", "sm_100")
    assert target.check.reference == ("python", "-m", "check", "{file}", "")
    assert (target.check.varies, target.check.reference_timeout_s) == (("batch",), 30.0)
    assert inventory.load(write(tmp_path, with_check("arch: sm_120"))).targets["mla"].check.arch == ("sm_120",)
    for nothing in (GOOD, with_check()):
        assert inventory.load(write(tmp_path, nothing)).targets["mla"].check == CheckSettings()


def test_an_engine_names_who_starts_it(tmp_path: Path) -> None:
    """A launcher by its kind alone, or with its keys: then no command is needed. The kept copy has it too."""
    assert inventory.load(write(tmp_path, GOOD)).engines["sglang"].launcher == Launcher()
    by_name = GOOD.replace("    env:", "    launcher: command\n    env:")
    assert inventory.load(write(tmp_path, by_name)).engines["sglang"].launcher == Launcher()
    assert inventory.load(write(tmp_path, with_launcher("kind: manual"))).engines["sglang"].command == ()
    (tmp_path / "variants").mkdir()
    text = with_launcher("kind: manual, restart_command: sh -c 'pkill -x engine', timeout_s: 30")
    for _ in ("read", "kept"):
        launcher = inventory.load(write(tmp_path, text)).engines["sglang"].launcher
        assert launcher == Launcher(kind="manual", restart_command=("sh", "-c", "pkill -x engine"), timeout_s=30.0)
        assert not launcher.runs_command and not launcher.can_be_stopped


def test_anchors_and_merged_keys_work(tmp_path: Path) -> None:
    """An entry may take over another's keys, and its own win."""
    text = GOOD.replace("  gpu-a:\n", "  gpu-a: &a {port: 22, user: me}\n  gpu-c: {<<: *a, port: 24}\n")
    host = inventory.load(write(tmp_path, text)).hosts["gpu-c"]
    assert (host.user, host.port) == ("me", 24)


def test_the_schema_knows_every_key_and_no_name(tmp_path: Path) -> None:
    """An editor offers exactly the keys that are accepted, and the shorter forms."""
    schema = inventory.json_schema()
    assert set(schema["properties"]) == {*SECTIONS, "version"}
    for section in SECTIONS:
        entry: dict[str, Any] = schema["$defs"][section]
        entry = entry["anyOf"][1] if "anyOf" in entry else entry
        assert sorted(entry["properties"]) == allowed_keys(section)
        assert entry["additionalProperties"] is False
    references = [part.split('"')[0] for part in json.dumps(schema).split("#/$defs/")[1:]]
    assert set(references) <= set(schema["$defs"])
    assert {"type": "string"} in schema["$defs"]["engines"]["properties"]["command"]["anyOf"]
    check = schema["$defs"]["CheckSettings"]
    assert sorted(check["properties"]) == sorted(field.name for field in dataclasses.fields(CheckSettings))
    launcher = schema["$defs"]["Launcher"]
    assert sorted(launcher["properties"]) == sorted(field.name for field in dataclasses.fields(Launcher))
    assert "systemd" in schema["$defs"]["engines"]["properties"]["launcher"]["anyOf"][0]["enum"]
    assert {"type": "string"} in check["properties"]["reference"]["anyOf"] and len(check["properties"]["arch"]) == 1


# ---- refused: case → (text, the problems expected, in order)

REFUSALS: dict[str, tuple[str | bytes, list[str]]] = {
    "unknown key with the nearest name": (
        with_lines(kernel="    kernal: mla_kernel"),
        [
            "inventory.yaml:15: targets.mla.kernal: unknown key; allowed: check, engine, files, host, kernel, "
            "module (did you mean kernel?)",
        ],
    ),
    "a required key missing": (
        with_lines(python="    # none"),
        ["inventory.yaml:6: engines.sglang.python: missing"],
    ),
    "unknown section": (
        "hosts: {a: }\ntarget: {}\n",
        ["inventory.yaml:2: target: unknown key; allowed: engines, hosts, "],
    ),
    "unknown key of a file": (
        GOOD.replace("module: sglang.ops.merge", "modul: x"),
        ["inventory.yaml:18: targets.mla.files[1].modul: unknown key; allowed: module, path (did you mean module?)"],
    ),
    "the entry's key is its name": (
        GOOD.replace("{ssh: 10.0.0.7", "{name: b, ssh: 10.0.0.7"),
        ["inventory.yaml:4: hosts.gpu-b.name: unknown key; the entry's own key is its name"],
    ),
    "text for a number": (
        GOOD.replace("port: 2222", "port: '2222'"),
        ['inventory.yaml:4: hosts.gpu-b.port: wanted a whole number, found "2222"'],
    ),
    "a number out of bounds": (
        GOOD.replace("port: 2222", "port: 70000"),
        ["inventory.yaml:4: hosts.gpu-b.port: wanted at most 65535, found 70000"],
    ),
    "not one of the choices": (
        GOOD.replace("port: 2222", "transport: sssh"),
        ['inventory.yaml:4: hosts.gpu-b.transport: wanted one of ssh, local, found "sssh" (did you mean ssh?)'],
    ),
    "a list for a mapping": (
        "hosts: [a]\n",
        ['inventory.yaml:1: hosts: wanted a mapping of names to hosts, found ["a"]'],
    ),
    "text for an entry": (
        "hosts: {a: 10.0.0.7}\n",
        ["inventory.yaml:1: hosts.a: wanted a mapping with the keys connect_timeout_s, identity, "],
    ),
    "text for a list of files": (
        "hosts: {a: }\nengines: {e: {command: x, python: /p, base_url: 'http://h'}}\n"
        "targets: {t: {kernel: k, files: /a.py}}\n",
        ['inventory.yaml:3: targets.t.files: wanted a list, found "/a.py"'],
    ),
    "no files": (
        "hosts: {a: }\nengines: {e: {command: x, python: /p, base_url: 'http://h'}}\n"
        "targets: {t: {kernel: k, files: []}}\n",
        ["inventory.yaml:3: targets.t.files: wanted at least one entry, found none"],
    ),
    "an unknown host": (
        with_lines(host="    host: gpu-c"),
        ['inventory.yaml:13: targets.mla.host: no host "gpu-c"; hosts here: gpu-a, gpu-b (did you mean gpu-b?)'],
    ),
    "no host named where there are two": (
        with_lines(host="    # none"),
        ["inventory.yaml:12: targets.mla.host: missing; hosts here: gpu-a, gpu-b"],
    ),
    "an unknown engine": (
        with_lines(host="    host: gpu-b\n    engine: vllm"),
        ['inventory.yaml:14: targets.mla.engine: no engine "vllm"; engines here: sglang'],
    ),
    "a bad name": ("hosts: {'../x': }\n", ["inventory.yaml:1: hosts.../x: wanted a name of letters, digits"]),
    "a relative path on the host": (
        with_lines(python="    python: bin/python"),
        ["inventory.yaml:7: engines.sglang.python: wanted a path on the host from '/' (an absolute path without"],
    ),
    "a home folder on the host": (
        GOOD.replace("- /opt/sglang/attention/mla.py", "- ~/mla.py"),
        ["inventory.yaml:17: targets.mla.files[0]: wanted a path on the host from '/' ('~' is not expanded on a host)"],
    ),
    "a file twice": (
        GOOD.replace("/opt/sglang/ops/merge.py", "/opt/sglang/attention/mla.py"),
        ['inventory.yaml:18: targets.mla.files[1]: "/opt/sglang/attention/mla.py" is given twice'],
    ),
    "the module of the first file twice": (
        GOOD.replace("- /opt/sglang/attention/mla.py", "- {path: /opt/sglang/attention/mla.py, module: x.y}"),
        ["inventory.yaml:14: targets.mla.module: given here and with the first file"],
    ),
    "a module that is a path": (
        with_lines(module="    module: sglang/mla.py"),
        ["inventory.yaml:12: targets.mla: wanted a dotted module name"],
    ),
    "an address with a path": (
        with_lines(base_url="    base_url: http://127.0.0.1:30000/v1"),
        ["inventory.yaml:9: engines.sglang.base_url: wanted http://ADDRESS:PORT and nothing after it"],
    ),
    "a truth value in env": (
        GOOD.replace("A: 1,", "A: true,"),
        ["inventory.yaml:10: engines.sglang.env.A: wanted text, found true; engines read this differently"],
    ),
    "an unknown key of check": (
        with_check("arguements: {n: i32}"),
        [
            "inventory.yaml:17: targets.mla.check.arguements: unknown key; allowed: arch, arguments, reference, "
            "reference_timeout_s, varies (did you mean arguments?)",
        ],
    ),
    "no architecture": (
        with_check("arch: [sm_120, ada]"),
        ['inventory.yaml:17: targets.mla.check.arch[1]: wanted an architecture such as sm_120 or sm_90, found "ada"'],
    ),
    "a number that is no architecture": (
        with_check("arch: 12.0"),
        ["inventory.yaml:17: targets.mla.check.arch: wanted an architecture such as sm_120 or sm_90, found 12.0"],
    ),
    "an argument that is a list": (
        with_check("arguments: {n: [i32], m: i32}"),
        ['inventory.yaml:17: targets.mla.check.arguments.n: wanted a type or a value, found ["i32"]'],
    ),
    "a pointer without quotes": (
        with_check("arguments: {q: *bf16}"),
        ["inventory.yaml:17: bad YAML: found undefined alias 'bf16'; quote a text that begins with '*'"],
    ),
    "text for check": (
        GOOD.replace("    kernel: mla_kernel\n", "    kernel: mla_kernel\n    check: sm_120\n"),
        ['inventory.yaml:16: targets.mla.check: wanted a mapping, found "sm_120"'],
    ),
    "text for what varies": (
        with_check("varies: batch"),
        ['inventory.yaml:17: targets.mla.check.varies: wanted a list, found "batch"'],
    ),
    "a reference without time": (
        with_check("reference_timeout_s: 0"),
        ["inventory.yaml:17: targets.mla.check.reference_timeout_s: wanted more than 0, found 0"],
    ),
    "an unclosed quote in the reference": (
        with_check("reference: python 'x"),
        ["inventory.yaml:17: targets.mla.check.reference: cannot be split into arguments (No closing quotation)"],
    ),
    "an unclosed quote in the command": (
        GOOD.replace("'/models/a b'", "'/models"),
        ["inventory.yaml:8: engines.sglang.command: cannot be split into arguments (No closing quotation)"],
    ),
    "ssh settings of a local host": (
        "hosts: {a: {transport: local, port: 22}}\n",
        ["inventory.yaml:1: hosts.a.port: has no meaning with transport: local; leave it out"],
    ),
    "an option in place of an address": (
        "hosts: {a: {ssh: -oProxyCommand=x}}\n",
        ["inventory.yaml:1: hosts.a.ssh: may not begin with '-'"],
    ),
    "an empty text": ("hosts: {a: {user: ''}}\n", ["inventory.yaml:1: hosts.a.user: is empty; leave the key out"]),
    "no host at all": ("hosts:\n", ["inventory.yaml:1: hosts: wanted at least one host"]),
    "another version": ("version: 2\nhosts: {a: }\n", ["inventory.yaml:1: version: wanted 1, found 2"]),
    "a launcher that does not exist": (
        with_launcher("kind: systemctl"),
        [
            "inventory.yaml:8: engines.sglang.launcher.kind: wanted one of command, systemd, container, manual, "
            'found "systemctl" (did you mean systemd?)'
        ],
    ),
    "a launcher by a wrong name": (
        GOOD.replace("    env:", "    launcher: docker\n    env:"),
        ['inventory.yaml:10: engines.sglang.launcher: wanted a mapping, found "docker"'],
    ),
    "a misspelt key of a launcher": (
        with_launcher("kind: systemd, units: x"),
        ["inventory.yaml:8: engines.sglang.launcher.units: unknown key; allowed: kind, mode, name,"],
    ),
    "keys of another kind of launcher": (
        with_launcher("kind: systemd, unit: x, name: y"),
        ["inventory.yaml:8: engines.sglang.launcher.name: has no meaning with kind: systemd; its keys: kind, unit,"],
    ),
    "keys of a command under a unit": (
        GOOD.replace("    env:", "    launcher: {kind: systemd, unit: x}\n    cwd: /x\n    env:"),
        [
            "inventory.yaml:8: engines.sglang.command: has no meaning with launcher: systemd; it is started by what is",
            "inventory.yaml:11: engines.sglang.cwd: has no meaning with launcher: systemd; it is started where it",
            "inventory.yaml:12: engines.sglang.env: has no meaning with launcher: systemd; set it where the engine is",
        ],
    ),
    "a unit without a name": (
        with_launcher("kind: systemd"),
        ["inventory.yaml:8: engines.sglang.launcher.unit: missing; the unit that runs the engine, as sglang.service"],
    ),
    "a container without its own python": (
        with_launcher("kind: container, name: x, python: python3"),
        ["inventory.yaml:8: engines.sglang.launcher.python: wanted a path inside the container from '/' (an"],
    ),
    "an exec without a command": (
        with_launcher("kind: container, name: x, python: /p, mode: exec"),
        ["inventory.yaml:6: engines.sglang.command: missing"],
    ),
    "a unit of the login that wants root": (
        with_launcher("kind: systemd, unit: x, user: true, sudo: true"),
        ["inventory.yaml:8: engines.sglang.launcher.sudo: has no meaning with user: true"],
    ),
    "an option in place of a unit": (
        with_launcher("kind: systemd, unit: --now"),
        ["inventory.yaml:8: engines.sglang.launcher.unit: may not begin with '-'"],
    ),
    "an empty restart command": (
        with_launcher("kind: manual, restart_command: []"),
        ["inventory.yaml:8: engines.sglang.launcher.restart_command: the first argument, the program, is empty"],
    ),
    "an engine without a command": (
        GOOD.replace("    command: python -m sglang.launch_server --model-path '/models/a b'\n", ""),
        ["inventory.yaml:6: engines.sglang.command: missing"],
    ),
    "an engine with an empty command": (
        with_lines(command="    command: []"),
        ["inventory.yaml:8: engines.sglang.command: wanted at least one entry, found none"],
    ),
    "a key twice": (
        "hosts:\n  a:\n  b:\n  a:\n  b:\n",
        ["inventory.yaml:4: hosts.a: given twice; first on line 2", "inventory.yaml:5: hosts.b: given twice"],
    ),
    "an infinite time": (
        "hosts: {a: {connect_timeout_s: .inf}}\n",
        ["inventory.yaml:1: hosts.a.connect_timeout_s: wanted a finite number"],
    ),
    "a tag": ("hosts: {a: {user: !vault x}}\n", ['inventory.yaml:1: hosts.a.user: the tag "!vault" is not understood']),
    "an alias inside itself": ("hosts: &h {a: *h}\n", ["inventory.yaml:1: hosts.a: an alias inside its own anchor"]),
    "not YAML": ("hosts: {a: }\nx: [1\ny: 2\n", ["inventory.yaml:3: bad YAML: expected ',' or ']'"]),
    "a quote that is never closed": (
        'hosts: {a: "x\n\n\n',
        [
            "inventory.yaml:4: bad YAML: found unexpected end of stream, "
            "while scanning a quoted scalar that began on line 1"
        ],
    ),
    "a tab": ("hosts:\n\ta:\n", ["inventory.yaml:2: bad YAML: a tab, where YAML wants spaces"]),
    "two documents": ("hosts: {a: }\n---\nx: 1\n", ["inventory.yaml:2: bad YAML: a second document"]),
    "a control character": ("hosts: {a: }\n# \x01\n", ["inventory.yaml:1: is not YAML (unacceptable character"]),
    "a plain text": (
        "hello\n",
        ['inventory.yaml:1: wanted the keys hosts, targets, engines, workloads, version, found "he'],
    ),
    "only comments": ("# nothing\n", ["inventory.yaml: holds only comments"]),
    "an empty file": ("", ["inventory.yaml: is empty"]),
    "not UTF-8": (b"hosts:\n  a: \xff\n", ["inventory.yaml:2: byte 0xff is not UTF-8"]),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_a_refusal_names_line_key_and_reason(case: str, tmp_path: Path) -> None:
    """A wrong inventory is refused with file, line, dotted key and a reason in words, and never with a traceback."""
    text, expected = REFUSALS[case]
    found = refused(tmp_path, text)
    for line in expected:
        assert any(one.startswith(line) for one in found), found
    assert len(found) == len(expected), found


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    """Two mistakes far apart come in one refusal, in the order of the file."""
    text = GOOD.replace("port: 2222", "prot: 2222").replace("  short:\n", "  short: {seed: x}\n")
    found = refused(tmp_path, text)
    assert [line.split(": ")[1] for line in found] == ["hosts.gpu-b.prot", "workloads.short.seed"]


def test_a_missing_file_sends_to_init(tmp_path: Path) -> None:
    """Somebody in the wrong folder learns how to begin."""
    with pytest.raises(InventoryError, match=r"no such file: .*orch init"):
        inventory.load(tmp_path / "inventory.yaml")
    with pytest.raises(InventoryError, match="cannot be read"):
        inventory.load(tmp_path)


# ---- secrets

TOKEN = "hf_" + "a1B2" * 8

SECRETS: dict[str, str] = {
    "password key": "hosts: {a: {password: hunter2hunter}}\n",
    "key of any depth": "hosts: {a: }\nx: {y: [{api_key: hunter2hunter}]}\n",
    "env by name": "hosts: {a: }\nengines: {e: {env: {HF_TOKEN: hunter2hunter}}}\n",
    "by shape under an innocent key": f"hosts: {{a: {{user: {TOKEN}}}}}\n",
    "in a comment": f"hosts: {{a: }}\n# old: {TOKEN}\n",
    "private key": "hosts:\n  a:\n    user: |\n      -----BEGIN OPENSSH PRIVATE KEY-----\n      hunter2hunter\n",
    "option of the command": "hosts: {a: }\nengines: {e: {command: serve --api-key hunter2hunter}}\n",
    "option of a command list": "hosts: {a: }\nengines: {e: {command: [serve, --api-key=hunter2hunter]}}\n",
    "assignment in the command": "hosts: {a: }\nengines: {e: {command: env HF_TOKEN=hunter2hunter serve}}\n",
    "option of the reference": with_check("reference: python check.py --api-key hunter2hunter"),
    "in an address": "hosts: {a: }\nengines: {e: {base_url: 'http://me:hunter2hunter@h:1'}}\n",
    "cloud key": "hosts: {a: {user: AKIAABCDEFGHIJKLMNOP}}\n",
}


@pytest.mark.parametrize("case", SECRETS)
def test_a_secret_is_refused_and_never_repeated(case: str, tmp_path: Path) -> None:
    """What looks like a secret is refused with advice, and its value is in no message."""
    found = refused(tmp_path, SECRETS[case])
    assert all("host's own environment" in line for line in found), found
    assert not any(part in line for line in found for part in ("hunter2", TOKEN, "AKIA")), found


def test_words_that_only_sound_like_secrets_are_free(tmp_path: Path) -> None:
    """Token counts, tokenizers and paths of token files are no secrets."""
    text = GOOD.replace("  short:\n", "  short: {input_tokens: 5, output_tokens: 6}\n")
    text = text.replace("A: 1,", "MAX_TOKENS: 5, HF_TOKEN_PATH: /run/token, TOKENIZER: x, HF_TOKEN: '',")
    text = text.replace("--model-path", "--tokenizer x --max-total-tokens 5 --model-path")
    assert inventory.load(write(tmp_path, text)).engines["sglang"].env["MAX_TOKENS"] == "5"


# ---- picking


def test_the_only_one_needs_no_name(tmp_path: Path) -> None:
    """A name may be left out while there is one; among several, and for an unknown one, the names are listed."""
    loaded = inventory.load(write(tmp_path, GOOD))
    assert inventory.pick_target(loaded, None).name == "mla"
    assert inventory.pick_workload(loaded, "short").name == "short"
    with pytest.raises(UnknownNameError, match=r"several hosts: name one of gpu-a, gpu-b"):
        inventory.pick_host(loaded, None)
    with pytest.raises(UnknownNameError, match=r"no target 'mlb' .* did you mean mla\? targets: mla"):
        inventory.pick_target(loaded, "mlb")
    bare = inventory.load(write(tmp_path, "hosts: {a: }\n"))
    with pytest.raises(UnknownNameError, match="has no target: add one under `targets:`"):
        inventory.pick_target(bare, None)


# ---- the kept copy


def test_a_kept_inventory_is_the_same_and_costs_no_imports(tmp_path: Path) -> None:
    """In a project in use the second reading imports neither YAML nor pydantic, and gives equal records."""
    (tmp_path / "variants").mkdir()
    path = write(tmp_path, with_check(*CHECK))
    first = inventory.load(path)
    script = (
        "import sys; from orchestrator import inventory; loaded = inventory.load(sys.argv[1]);"
        "print(repr(loaded)); print([m for m in ('pydantic', 'ruamel.yaml', 'libcst') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [repr(first), "[]"]
    assert inventory.load(path) == first


def test_a_changed_inventory_is_read_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kept copy is used for exactly the same bytes in the same place with the same home folder only."""
    (tmp_path / "variants").mkdir()
    path = write(tmp_path, GOOD)
    inventory.load(path)
    write(tmp_path, GOOD.replace("2222", "2223"))
    assert inventory.load(path).hosts["gpu-b"].port == 2223
    monkeypatch.setenv("HOME", "/elsewhere")
    assert inventory.load(path).hosts["gpu-b"].known_hosts == "/elsewhere/kh"
    write(tmp_path, GOOD.replace("2222", "x"))
    with pytest.raises(InventoryError):
        inventory.load(path)


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"key": 1}', None])
def test_a_damaged_copy_is_not_used(damage: str | None, tmp_path: Path) -> None:
    """Whatever stands in the kept copy, the inventory itself decides."""
    (tmp_path / "variants").mkdir()
    path = write(tmp_path, GOOD)
    first = inventory.load(path)
    kept = tmp_path / ".orch" / "inventory.cache.json"
    if damage is None:
        record = json.loads(kept.read_text())
        damage = json.dumps({**record, "inventory": {**record["inventory"], "hosts": {"x": {"bad": 1}}}})
    kept.write_text(damage)
    assert inventory.load(path) == first
    assert os.listdir(kept.parent) == [kept.name]  # noqa: PTH208 # names alone, no leftover of the write


def test_reading_some_inventory_leaves_no_trace(tmp_path: Path) -> None:
    """Outside a project in use nothing is written."""
    inventory.load(write(tmp_path, GOOD))
    assert [entry.name for entry in tmp_path.iterdir()] == ["inventory.yaml"]
