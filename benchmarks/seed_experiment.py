"""The experiment that orch was made for, on one NVIDIA GPU: two forced configs of the shipped kernel in a live engine.

    python -m benchmarks.seed_experiment FOLDER [--seconds N]

Baseline: three autotuned configs (BLOCK_T, num_warps, num_stages) = (16, 4, 2) (32, 4, 2) (32, 8, 2), the list of
``kernel/seed``; ``--kernel`` names another file that has it. V1 forces (16, 8, 2), V2 forces (16, 4, 3). The engine of
``kernel/`` decodes with CUDA graphs; orch drives it over SSH, with a throwaway server on this machine's loopback (in
Python where there is no sshd). Two starts of the baseline by hand come first: they show how long a start takes. Ends
with the verdicts, and with the page, the Markdown, the JSON, three tables of the record and the kernel in FOLDER/out.

On a machine with several GPUs, CUDA_VISIBLE_DEVICES says which one the engine has.

A machine that is lent for a while at a time: after ``--seconds`` the experiment is interrupted, which puts the host
back; the same command goes on with it. FOLDER is made when missing.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from orchestrator.demo.ssh_host import ThrowawaySshHost, free_port

REPOSITORY = Path(__file__).parent.parent
CONCURRENCY = "1,8,48,64,80,96"
VARIANTS = {
    "V1": (("BLOCK_T=16", "num_warps=8", "num_stages=2"), "twice the warps hide the latency of the gather"),
    "V2": (("BLOCK_T=16", "num_warps=4", "num_stages=3"), "a deeper software pipeline at unchanged warps"),
}
ENGINE = {
    "cuda": ("--layers", "32", "--max-batch", "96", "--n-pages", "2048", "--prefill-chunk", "1024"),
    "cpu": ("--layers", "1", "--max-batch", "96", "--n-pages", "512"),
}
LENGTHS = {"cuda": (512, 128, 2), "cpu": (16, 4, 1)}
"""Input and output tokens, prompts a concurrency: the context is past topk 512 from the first output token on."""

INVENTORY = """\
hosts:
  gpu:
    ssh: 127.0.0.1
    port: {ssh_port}
    user: {user}
    identity: {ssh}/id_ed25519
    known_hosts: {ssh}/known_hosts{ssh_config}
    scratch_dir: {folder}/scratch
engines:
  decode:
    python: {python}
    command: [{python}, -m, kernel.engine, --host, 127.0.0.1, --port, "{port}", --device, {device}{engine}]
    cwd: {folder}/host
    env: {{PYTHONPATH: "{python_path}"{visible}}}
    base_url: http://127.0.0.1:{port}
    loaded_path: /loaded
    ready_timeout_s: 300
    stop_grace_s: 10
targets:
  sparse_mla:
    host: gpu
    engine: decode
    module: kernel.sparse_mla_decode
    kernel: sparse_mla_decode_kernel
    files: [{folder}/host/kernel/sparse_mla_decode.py]
workloads:
  long-context:
    input_tokens: {n_input}
    output_tokens: {n_output}
    prompts_per_concurrency: {n_prompts}
    warmup_per_concurrency: 1
    cache_policy: keep
    seed: 42
    min_token_id: 256
    max_token_id: 4000
"""
"""The engine has no prefix cache, so there is nothing to flush."""

TABLES = {
    "loads": "select * from results order by 1, 2",
    "starts": "select * from experiment_starts order by id",
    "telemetry": "select trials.variant, trials.id as trial_id, loads.concurrency_cap as concurrency, telemetry.* "
    "from telemetry join loads on loads.id = telemetry.load_id join trials on trials.id = loads.trial_id order by at_s",
}


def main() -> int:
    """Makes or continues the experiment; returns orch's exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--kernel", type=Path, default=REPOSITORY / "kernel" / "seed" / "sparse_mla_decode.py", metavar="FILE"
    )
    parser.add_argument("--seconds", type=float, help="interrupt the experiment after so many seconds")
    parser.add_argument("--device", choices=tuple(ENGINE), default="cuda", help="cpu: a small rehearsal without a GPU")
    parser.add_argument("--pairs", default="6", help="planned looks")
    parser.add_argument("--by-hand", type=int, default=2, metavar="N", help="starts of the baseline before it")
    given = parser.parse_args()
    deadline_s = time.monotonic() + given.seconds if given.seconds else None
    folder = given.folder.absolute()
    (folder / "scratch").mkdir(mode=0o700, parents=True, exist_ok=True)
    is_new = not (folder / "host").exists()
    if is_new:
        shutil.copytree(REPOSITORY / "kernel", folder / "host" / "kernel", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copyfile(given.kernel, folder / "host" / "kernel" / "sparse_mla_decode.py")
    with ThrowawaySshHost(folder / "ssh", alias="gpu") as host:
        print(f"SSH host: {host.server} on 127.0.0.1:{host.port}", flush=True)
        write_inventory(folder, host, given.device)
        if is_new:
            prepare(folder, given.by_hand)
        code = conduct(folder, given.pairs, deadline_s)
        orch(folder, "revert", check=False)  # ends the engine, which the experiment leaves serving the baseline
        export(folder)
    return code


def write_inventory(folder: Path, host: ThrowawaySshHost, device: str) -> None:
    """Written anew each time: the SSH host has another port."""
    n_input, n_output, n_prompts = LENGTHS[device]
    port_file = folder / "engine-port"
    if not port_file.exists():
        port_file.write_text(str(free_port()))  # part of the engine's command, which must not change in mid-experiment
    text = INVENTORY.format(
        ssh_port=host.port,
        user=json.dumps(host.user),
        ssh=folder / "ssh",
        ssh_config=f"\n    ssh_config: {host.ssh_config_path}" if shutil.which("ssh") else "",
        folder=folder,
        python=sys.executable,
        python_path=os.environ.get("PYTHONPATH", ""),
        visible="".join(f', {name}: "{os.environ[name]}"' for name in ("CUDA_VISIBLE_DEVICES",) if name in os.environ),
        port=port_file.read_text(),
        device=device,
        engine="".join(f', "{word}"' for word in ENGINE[device]),
        n_input=n_input,
        n_output=n_output,
        n_prompts=n_prompts,
    )
    (folder / "inventory.yaml").write_text(text)


def prepare(folder: Path, n_by_hand: int) -> None:
    """Pulls the file, makes the variants, and starts the baseline by hand."""
    orch(folder, "pull")
    for name, (settings, why) in VARIANTS.items():
        orch(folder, "variant", "new", name, *(word for one in settings for word in ("--set", one)), "-m", why)
    for _ in range(n_by_hand):
        orch(folder, "bench", "--concurrency", CONCURRENCY)


def conduct(folder: Path, pairs: str, deadline_s: float | None) -> int:
    """Runs the experiment, or goes on with it, until its end or the deadline; orch's exit code."""
    begun = folder / "begun"
    if begun.exists():
        words = ["resume"]
    else:
        begun.touch()
        words = [
            "run",
            *VARIANTS,
            "--concurrency",
            CONCURRENCY,
            "--primary",
            "64",
            "--pairs",
            pairs,
            "--seed",
            "20261130",
        ]
        words += ["-m", "V1 (8 warps) is worse at every concurrency; V2 (3 stages) regresses at none and helps at 64"]
    print("\n$ orch " + " ".join(words), flush=True)
    running = subprocess.Popen(command(folder, *words))
    try:
        return running.wait(None if deadline_s is None else max(1.0, deadline_s - time.monotonic()))
    except subprocess.TimeoutExpired:
        running.send_signal(signal.SIGINT)
        return running.wait()


def export(folder: Path) -> None:
    """The report in its three forms, and the loads and starts as tables."""
    out = folder / "out"
    out.mkdir(exist_ok=True)
    shutil.copyfile(folder / "inventory.yaml", out / "inventory.yaml")
    shutil.copyfile(
        folder / "variants" / "sparse_mla" / "baseline" / "sparse_mla_decode.py", out / "sparse_mla_decode.py"
    )
    shutil.copyfile(folder / "results.db", out / "results.db")
    orch(folder, "report", "--html", str(out / "report.html"), check=False)
    for option, name in (("--md", "report.md"), ("--json", "report.json")):
        keep(folder, out / name, "report", option)
    for name, sql in TABLES.items():
        keep(folder, out / f"{name}.csv", "query", sql, "--csv")


def keep(folder: Path, path: Path, *words: str) -> None:
    """Keeps what a command prints."""
    with path.open("wb") as file:
        subprocess.run(command(folder, *words), stdout=file, check=False)


def orch(folder: Path, *words: str, check: bool = True) -> None:
    """Runs one command of orch and shows it."""
    print("\n$ orch " + " ".join(words), flush=True)
    subprocess.run(command(folder, *words), check=check)


def command(folder: Path, *words: str) -> list[str]:
    """orch with this Python."""
    return [sys.executable, "-m", "orchestrator", "--inventory", str(folder / "inventory.yaml"), *words]


if __name__ == "__main__":
    sys.exit(main())
