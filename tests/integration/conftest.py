"""A real sshd on the loopback for the whole session, and a connection to it for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.connection.ssh import SshRemote
from orchestrator.demo.ssh_host import ThrowawaySshHost, find_sshd
from orchestrator.records import Host
from tests.support.ssh_project import project, session_host

__all__ = ["project", "session_host"]  # fixtures


@pytest.fixture(scope="session")
def ssh_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThrowawaySshHost]:
    """A running sshd with keys and a configuration of its own."""
    if find_sshd() is None:
        pytest.skip("no sshd is installed here")
    with ThrowawaySshHost(tmp_path_factory.mktemp("sshd")) as server:
        yield server


@pytest.fixture
def host(ssh_host: ThrowawaySshHost, tmp_path: Path) -> Host:
    """That sshd as an inventory would name it, with a scratch folder inside the test's own."""
    return Host(
        name="gpu-a",
        ssh=ssh_host.alias,
        ssh_config=str(ssh_host.ssh_config_path),
        scratch_dir=str(tmp_path / "scratch"),
        connect_timeout_s=10.0,
    )


@pytest.fixture
def remote(host: Host) -> Iterator[SshRemote]:
    """An open connection to it."""
    with SshRemote(host) as opened:
        yield opened
