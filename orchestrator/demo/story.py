"""What ``orch demo`` tells, step by step, with the commands that a user would type.

Every step is the real command on a real SSH host (OpenSSH on loopback where it is installed) with a real decode engine
that runs a copy of ``kernel/``. Owns: the throwaway folder. Must not: touch anything outside it, or leave anything
running. However it ends, the host's file is put back and its digest is shown.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shlex
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from orchestrator.demo.ssh_host import ThrowawaySshHost
from orchestrator.errors import OrchError, RevertError, UsageError
from orchestrator.interrupts import shielded
from orchestrator.records import digest_of, short

KERNEL_FILE = "kernel/sparse_mla_decode.py"
SEED_FILE = "kernel/seed/sparse_mla_decode.py"
"""What the demo puts in the former's place: the story is about tiles, warps and stages, which that one has."""
CONCURRENCIES = "1,8"
LEASE_S = "300"
NEEDS = ("torch", "aiohttp", "numpy")
INTERRUPTED = 130
NO_USE = 4
"""How `orch check` ends for a variant that cannot launch."""

RunCommand = Callable[[list[str]], int]
Say = Callable[[str], None]

CHECK_SETTINGS = """\
    check:  # what `orch check` must be told: the GPU, for this host has none, and what the launcher passes
      arch: sm_120
      varies: [rows_bucket]
      arguments:
        nope_ptr: "*fp8e4nv"
        scale_ptr: "*u8"
        indices_ptr: "*i32"
        length_ptr: "*i32"
        acc_ptr: "*fp32"
        max_sum_ptr: "*fp32"
        "*_ptr": "*bf16"
        qk_scale: fp32
        page_size: 64
        page_bytes: 37440
        n_heads: 16
        topk: 512
        n_splits: 16
        first_split: 0
        rows_bucket: 8
        max_sum_stride_s: 32
        "*_stride_*": i32:16
        HAS_LENGTH: false
        BLOCK_H: 16
        COMPUTE: tl.bfloat16
      reference: [{python}, -m, kernel.check, "{{file}}", --json]
"""
"""What `orch check` is told of this kernel, for 8 sequences of 16 heads on a GPU of 132 SMs."""

INVENTORY = """\
# Made by `orch demo`: one SSH host on loopback, one target, one engine, one workload.
hosts:
  demo-host:
    ssh: 127.0.0.1
    port: {ssh_port}
    user: {user}
    identity: {identity}
    known_hosts: {known_hosts}{ssh_config}
    scratch_dir: {scratch}

targets:
  sparse_mla:
    host: demo-host
    engine: decode
    files: [{target}]
    kernel: sparse_mla_decode_kernel
    module: kernel.sparse_mla_decode
{check}
engines:
  decode:
    command: [{python}, -m, kernel.engine, --host, 127.0.0.1, --port, "{port}", --device, {device}]
    cwd: {checkout}
    python: {python}
    base_url: http://127.0.0.1:{port}
    loaded_path: /loaded
    ready_timeout_s: 120
    stop_grace_s: 5

workloads:
  short:
    input_tokens: 128
    output_tokens: 16
    prompts_per_concurrency: 10
    warmup_per_concurrency: 1
    seed: 42
    min_token_id: 256
    max_token_id: 4000
    request_timeout_s: 60
"""


@dataclass(slots=True)
class Story:
    """One demo: where it lives, how commands are run, how text is shown."""

    folder: Path
    run_command: RunCommand
    say: Say

    @property
    def inventory(self) -> Path:
        """The demo project's inventory."""
        return self.folder / "inventory.yaml"

    @property
    def live_file(self) -> Path:
        """The file on the "host" that the engine loads."""
        return self.folder / "host" / KERNEL_FILE

    def title(self, text: str) -> None:
        """A heading."""
        self.say(f"\n── {text}")

    def orch(self, *words: str, wanted: tuple[int, ...] = (0,)) -> int:
        """Runs one command of orch as a user would, and stops the story when it ends otherwise than it should."""
        self.say(f"\n$ orch {shlex.join(words)}")
        code = self.run_command(["--inventory", str(self.inventory), *words])
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        if code not in wanted:
            raise OrchError(
                f"`orch {shlex.join(words)}` ended with exit code {code}", next_step="see its message above"
            )
        return code


def play(folder: Path | None, run_command: RunCommand, say: Say, *, device: str = "cpu") -> Path:
    """Plays the whole demo.

    Args:
        folder: where; a new temporary folder when None. It is kept.
        run_command: runs ``orch`` with these words and returns its exit code.
        say: prints one line.
        device: ``cpu``, ``cuda`` or ``auto`` for the engine.

    Returns:
        The folder.

    Raises:
        UsageError: torch is not installed, or the folder is not empty.
        RevertError: the file on the throwaway host is not what it was.
    """
    _require_packages()
    story = Story(_new_folder(folder), run_command, say)
    say(f"demo project: {story.folder} (kept)")
    checkout = _copy_kernel(story.folder / "host")
    before = digest_of(story.live_file.read_bytes())
    with ThrowawaySshHost(story.folder / "ssh") as host:
        say(f"throwaway SSH host: {host.server} on 127.0.0.1:{host.port}, with keys and known_hosts of its own")
        _write_inventory(story, host, checkout, device)
        with _always_restored(story, before):
            _tell(story)
    say(f"\nthe host's file is as it was: {short(before)}; nothing of the demo is running")
    _show_next(story)
    return story.folder


def _tell(story: Story) -> None:
    story.title("1. pull the kernel file, and make two variants of it")
    story.orch("pull")
    wider = ("--set", "BLOCK_T=64", "--set", "num_warps=8")
    story.orch("variant", "new", "V1", *wider, "-m", "larger tiles: fewer steps of the online softmax")
    story.orch("variant", "new", "V2", "--set", "num_stages=3", "-m", "deeper pipeline; cannot matter on a CPU")
    story.title("2. check before any GPU time: compiled for an sm_120 GPU, which this machine need not have")
    _check(story, wider)
    story.title("3. measure the baseline, then each variant: push, restart, prove what was loaded, load")
    story.orch("bench", "--concurrency", CONCURRENCIES)
    for name in ("V1", "V2"):
        story.orch("push", "--variant", name, "--ttl", LEASE_S)
        story.orch("bench", "--concurrency", CONCURRENCIES)
    story.orch("status")
    story.title("4. compare: ratios, and why there is no verdict yet")
    story.orch("compare", "V1")
    story.orch("compare", "V2")
    story.title("5. a colleague edits the file on the host behind orch's back")
    with story.live_file.open("a", encoding="utf-8") as file:
        file.write("# a colleague was here\n")
    story.say(f'$ echo "# a colleague was here" >> {story.live_file}')
    story.orch("drift")
    story.say("\norch refuses to write over it, in both directions:")
    story.orch("push", "--variant", "V1", "--ttl", LEASE_S, wanted=(1,))
    story.orch("revert", wanted=(1,))
    story.title("6. put the host back (the edit is kept beside the file)")
    story.orch("revert", "--force")
    story.orch("drift")
    story.title("7. the record")
    story.orch(
        "query",
        "select variant, short_digest, concurrency, output_tokens_per_s, ttft_ms_p50, tpot_ms_p50, status from results",
    )


def _check(story: Story, wider: tuple[str, ...]) -> None:
    """What the offline check finds; a system without Triton has only the check on the host."""
    if not _has_triton():
        story.say("(no Triton is installed here, so nothing can be compiled; what follows goes without)")
    else:
        story.orch("check", "--variant", "V2")
        story.orch("variant", "new", "V3", *wider, "--set", "num_stages=15", "-m", "the deepest pipeline")
        story.orch("check", "--variant", "V3", wanted=(NO_USE,))
        story.orch("check", "--sweep", "num_stages=2..5")
    story.orch("check", "--variant", "V1", "--remote")


def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


@contextlib.contextmanager
def _always_restored(story: Story, before: str) -> Iterator[None]:
    """Whatever happens inside: the engine ends and the host's file is what it was, or ``RevertError``."""
    try:
        yield
    finally:
        with shielded("putting the throwaway host back"):
            if digest_of(story.live_file.read_bytes()) != before or _is_leased(story):
                story.say("\nputting the throwaway host back")
                story.run_command(["--inventory", str(story.inventory), "revert", "--force"])
            after = digest_of(story.live_file.read_bytes())
    if after != before:
        raise RevertError(
            f"demo-host: {story.live_file} is {short(after)}, it was {short(before)}",
            next_step=f"run `orch --inventory {story.inventory} revert --force`",
        )


def _is_leased(story: Story) -> bool:
    return any(path.name == "lease" for path in story.live_file.parent.glob(".orch-*/*"))


def _show_next(story: Story) -> None:
    shown = _this_program()
    inventory = f"--inventory {shlex.quote(str(story.inventory))}"
    story.say("\nnext, with what the demo left (its SSH host is gone, its record is not):")
    story.say(f"  {shown} {inventory} compare V1")
    story.say(f"  {shown} {inventory} variant show V2")
    story.say(f"  {shown} {inventory} query 'select * from drift'")
    story.say("and with your own GPU host:")
    story.say(f"  {shown} init my-kernel")


def _this_program() -> str:
    """How to call this orch from here: by name when it is the one on PATH, else by its path."""
    program = Path(sys.argv[0])
    found = shutil.which("orch")
    if program.name != "orch" or not program.exists() or (found and Path(found).samefile(program)):
        return "orch"
    return shlex.quote(min(os.path.relpath(program), str(program.absolute()), key=len))


def _require_packages() -> None:
    missing = [name for name in NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"the demo's engine needs {', '.join(missing)}, which this Python ({sys.executable}) does not have",
            next_step="run `make demo` in a checkout, or `pip install '.[kernel,demo]'` there",
        )


def _new_folder(folder: Path | None) -> Path:
    if folder is None:
        return Path(tempfile.mkdtemp(prefix="orch-demo-"))
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty", next_step="name a new folder, or none for a temporary one")
    return folder.absolute()


def _copy_kernel(checkout: Path) -> Path:
    """A copy of ``kernel/`` as the "host's" checkout, with the kernel of ``kernel/seed``.

    It is found without importing it: that would import torch.
    """
    spec = importlib.util.find_spec("kernel")
    if spec is None or not spec.submodule_search_locations:
        raise UsageError("the package `kernel` is not installed beside orch", next_step="run `make demo` in a checkout")
    source = Path(next(iter(spec.submodule_search_locations)))
    shutil.copytree(source, checkout / "kernel", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copyfile(checkout / SEED_FILE, checkout / KERNEL_FILE)
    return checkout


def _write_inventory(story: Story, host: ThrowawaySshHost, checkout: Path, device: str) -> None:
    scratch = story.folder / "host" / "scratch"
    scratch.mkdir(mode=0o700)
    text = INVENTORY.format(
        check=CHECK_SETTINGS.format(python=_yaml(sys.executable)),
        ssh_port=host.port,
        user=_yaml(host.user),
        identity=_yaml(host.identity_path),
        known_hosts=_yaml(host.known_hosts_path),
        ssh_config=f"\n    ssh_config: {_yaml(host.ssh_config_path)}  # instead of yours"
        if shutil.which("ssh")
        else "",
        scratch=_yaml(scratch),
        target=_yaml(story.live_file),
        checkout=_yaml(checkout),
        python=_yaml(sys.executable),
        port=_free_port(),
        device=device,
    )
    story.inventory.write_text(text, encoding="utf-8")


def _yaml(value: object) -> str:
    import json

    return json.dumps(str(value), ensure_ascii=False)  # a JSON string is a YAML string: any path is safe


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
