"""Telemetry over a real sshd: it outlives the connection that started it, and ends with the load."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from orchestrator import bench, telemetry
from orchestrator.connection.ssh import SshRemote
from orchestrator.demo.ssh_host import ThrowawaySshHost, find_sshd
from orchestrator.records import Engine, Host, Workload
from tests.support.fake_smi import fake_smi
from tests.support.stub_engine import running_stub
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration

WORKLOAD = Workload(name="small", input_tokens=8, output_tokens=8, prompts_per_concurrency=5)


@pytest.mark.skipif(find_sshd() is None, reason="no sshd is installed here")
def test_a_load_is_watched_though_the_line_is_lost(tmp_path: Path) -> None:
    """The watching goes on when its connection is closed, sees the whole load, and leaves no process behind."""
    session = tmp_path / "session"
    session.write_text(f'#!/bin/sh\nPATH={tmp_path}/smi:$PATH\nexec /bin/sh -c "$SSH_ORIGINAL_COMMAND"\n')
    session.chmod(0o755)
    server = ThrowawaySshHost(tmp_path / "sshd", alias="gpu-a", sshd_options=[f"ForceCommand exec {session}"])
    run_dir = str(tmp_path / "scratch" / "runs" / "fast-1-c2")
    with fake_smi(tmp_path / "smi") as smi, running_stub("--ttft-ms", 20, "--itl-ms", 20) as stub, server:
        host = Host(
            name="gpu-a",
            ssh=server.alias,
            ssh_config=str(server.ssh_config_path),
            scratch_dir=str(tmp_path / "scratch"),
        )
        engine = Engine(name="stub", command=("stub",), python=sys.executable, base_url=stub.base_url)
        with SshRemote(host) as first:
            telemetry.start(first, engine, run_dir=run_dir, interval_s=0.05)
        with SshRemote(host) as second:
            load = bench.run_load(second, engine, WORKLOAD, 2, run_dir=run_dir, poll_s=0.1)
            wait_until(lambda: not smi.loops())
            samples = telemetry.collect(second, run_dir=run_dir)
            bench.remove_load(second, run_dir)
    assert load.status == "ok"
    assert samples and samples[-1].at_s - samples[0].at_s >= (load.metrics["duration_s"] or 0)
    assert not Path(run_dir).exists()
