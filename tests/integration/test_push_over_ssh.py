"""push and revert through a real sshd, over a line that is cut at chosen bytes, in both directions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator import push
from orchestrator.connection import connect
from orchestrator.connection.base import Remote
from orchestrator.demo.ssh_host import ThrowawaySshHost
from orchestrator.pull import pull
from orchestrator.records import Host, SourceFile, Target, TargetFile
from tests.support.agent_script import HostFile, watchers_of
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration
OLD, VARIANT = b"num_stages = 2\n" * 4000, b"num_stages = 3\n" * 4000
SHARES = (0.001, 0.05, 0.3, 0.6, 0.9, 0.999)


@pytest.fixture
def proxy(ssh_host: ThrowawaySshHost) -> Iterator[TcpProxy]:
    """A network in front of the sshd that a test can break."""
    with TcpProxy(ssh_host.port) as running:
        yield running


@pytest.fixture
def through_proxy(ssh_host: ThrowawaySshHost, proxy: TcpProxy, tmp_path: Path) -> Iterator[Remote]:
    """A connection over that network."""
    known = ssh_host.known_hosts_path.read_text().split()
    keys, config = tmp_path / "known_hosts", tmp_path / "ssh_config"
    keys.write_text(f"through-proxy {known[1]} {known[2]}\n")
    lines = (f"Port {proxy.port}", "HostKeyAlias through-proxy", f"UserKnownHostsFile {keys}")
    config.write_text("\n  ".join([f"Host {ssh_host.alias}", *lines]) + "\n" + ssh_host.ssh_config_path.read_text())
    with connect(Host(name="gpu-a", ssh=ssh_host.alias, ssh_config=str(config), connect_timeout_s=10.0)) as opened:
        yield opened


@pytest.fixture
def file(tmp_path: Path) -> Iterator[HostFile]:
    """The target's file; nothing of orch's may be left in the end."""
    made = HostFile.make(tmp_path / "site" / "kernel.py", OLD)
    before = made.identity()
    yield made
    assert made.identity() == before
    assert not made.has_trace
    wait_until(lambda: not watchers_of(made.path))


@pytest.fixture
def target(file: HostFile) -> Target:
    """A target with that file."""
    return Target(
        name="mla",
        host="gpu-a",
        engine="sglang",
        files=(TargetFile(path=str(file.path), name="kernel.py"),),
        kernel="_decode",
    )


def deploy(remote: Remote, target: Target, **given: float) -> push.Deployment:
    """Pushes the variant over the old file."""
    expected = {"kernel.py": SourceFile.of("kernel.py", OLD).digest}
    files = [SourceFile.of("kernel.py", VARIANT)]
    return push.push(
        remote, target, files, expected=expected, nonce="aa", holder="ann", **{"ttl_s": 60, "poll_s": 0.2, **given}
    )


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["to_server", "to_client"])
def test_a_push_and_a_revert_survive_a_cut_anywhere(
    through_proxy: Remote, proxy: TcpProxy, target: Target, file: HostFile, direction: str
) -> None:
    """Wherever the line is cut, both end acknowledged, the file was never torn, and the host is as before."""
    before = file.identity()
    proxy.reset_traffic()
    deploy(through_proxy, target)
    pushed_bytes = getattr(proxy.traffic, direction)
    proxy.reset_traffic()
    push.revert(through_proxy, target, nonce="aa")
    reverted_bytes = getattr(proxy.traffic, direction)
    for share in SHARES:
        proxy.cut_after(**{direction: max(1, int(pushed_bytes * share))})
        deployment = deploy(through_proxy, target)
        proxy.cut_after()
        assert (deployment.files[0].previous_digest, file.path.read_bytes()) == (
            SourceFile.of("kernel.py", OLD).digest,
            VARIANT,
        )
        proxy.cut_after(**{direction: max(1, int(reverted_bytes * share))})
        push.revert(through_proxy, target, nonce="aa", expected={"kernel.py": deployment.previous_digest})
        proxy.cut_after()
        assert file.identity() == before
    assert proxy.n_connections > len(SHARES)


def test_the_watcher_outlives_the_connection(through_proxy: Remote, target: Target, file: HostFile) -> None:
    """The controller is gone for good: the host restores itself when the lease ends."""
    before = file.identity()
    deploy(through_proxy, target, ttl_s=2)
    assert pull(through_proxy, target).files[0].content == VARIANT
    through_proxy.close()
    assert len(watchers_of(file.path)) == 1
    wait_until(lambda: not file.has_trace)
    assert file.identity() == before
