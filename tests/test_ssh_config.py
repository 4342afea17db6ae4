"""How a host is reached: ``ssh -G`` decides, the inventory overrides, and without ssh only the inventory counts."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

import pytest

from orchestrator.connection import ssh_config
from orchestrator.connection.ssh_config import parse_ssh_g, resolve
from orchestrator.errors import InventoryError, UsageError
from orchestrator.records import Host

needs_ssh = pytest.mark.skipif(shutil.which("ssh") is None, reason="needs the ssh program")


def _host(tmp_path: Path, config: str, **fields: object) -> Host:
    path = tmp_path / "config"
    path.write_text(config)
    return Host(**{"name": "gpu-a", "ssh_config": str(path), **fields})  # type: ignore[arg-type]


@needs_ssh
def test_everything_of_the_configuration_arrives(tmp_path: Path) -> None:
    """Each setting that orch honours is taken from ``ssh -G``, with home folder and tokens replaced."""
    config = """
    Include {folder}/more
    Match host gpu-* exec "false"
      User wrong
    Host gpu-a   # a comment
      HostName 10.0.0.%%h
      HostName 10.0.0.7
      Port 2322
      IdentityFile ~/keys/%r@%h
      IdentityFile "{folder}/with blank"
      IdentitiesOnly yes
      IdentityAgent {folder}/agent
      CertificateFile {folder}/cert.pub
      UserKnownHostsFile {folder}/known1 {folder}/known2
      GlobalKnownHostsFile /dev/null
      HostKeyAlias cluster
      ServerAliveInterval 7
      ServerAliveCountMax 2
      ProxyJump none
    """.replace("{folder}", str(tmp_path)).replace("HostName 10.0.0.%%h\n", "")
    (tmp_path / "more").write_text("Host gpu-a\n  User alice\n")
    settings = resolve(_host(tmp_path, config))
    assert settings.address == "alice@10.0.0.7:2322"
    assert settings.identity_files == (f"{Path.home()}/keys/alice@10.0.0.7", f"{tmp_path}/with blank")
    assert settings.identities_only
    assert settings.identity_agent == f"{tmp_path}/agent"
    assert settings.certificate_files == (f"{tmp_path}/cert.pub",)
    assert settings.user_known_hosts == (f"{tmp_path}/known1", f"{tmp_path}/known2")
    assert settings.global_known_hosts == ("/dev/null",)
    assert settings.host_key_alias == "cluster"
    assert (settings.server_alive_interval_s, settings.server_alive_count_max) == (7.0, 2)
    assert settings.proxy_jump == ()
    assert settings.proxy_command is None
    assert settings.resolved_by == "ssh -G"


@needs_ssh
def test_inventory_overrides_the_configuration(tmp_path: Path) -> None:
    """user, port, identity and known_hosts of the inventory win; a given identity is the only one that is offered."""
    config = "Host eng\n HostName h\n User bob\n Port 1\n IdentityFile /k\n UserKnownHostsFile /kh\n"
    host = _host(
        tmp_path, config, ssh="eng", user="alice", port=22022, identity="~/mine", known_hosts=str(tmp_path / "kh")
    )
    settings = resolve(host)
    assert settings.address == "alice@h:22022"
    assert settings.identity_files == (str(Path.home() / "mine"),)
    assert settings.identities_only
    assert settings.user_known_hosts == (str(tmp_path / "kh"),)


@needs_ssh
@pytest.mark.parametrize("where", ["configuration", "inventory"])
def test_jump_hosts_are_resolved_by_the_same_configuration(tmp_path: Path, where: str) -> None:
    """Every hop has its own settings; a first hop's own ProxyJump comes before it."""
    config = """
    Host outer
      HostName 192.0.2.1
      User gate
    Host inner
      HostName 192.0.2.2
      Port 99
      ProxyJump outer
    Host gpu-a
      HostName 192.0.2.3
    """
    jump = "inner,carol@last:2200"
    if where == "configuration":
        config += f"  ProxyJump {jump}\n"
    settings = resolve(_host(tmp_path, config, jump=jump if where == "inventory" else None))
    hops = [(hop.user if i != 1 else "", hop.hostname, hop.port) for i, hop in enumerate(settings.proxy_jump)]
    assert hops == [("gate", "192.0.2.1", 22), ("", "192.0.2.2", 99), ("carol", "last", 2200)]
    assert all(hop.proxy_jump == () for hop in settings.proxy_jump)


@needs_ssh
def test_a_loop_of_jumps_is_an_error(tmp_path: Path) -> None:
    """Two hosts that jump through each other end in one line, not in a recursion."""
    with pytest.raises(UsageError, match="hops"):
        resolve(_host(tmp_path, "Host gpu-a\n ProxyJump b\nHost b\n ProxyJump gpu-a\n"))


@needs_ssh
def test_proxy_command_has_its_tokens_replaced(tmp_path: Path) -> None:
    """%h, %p and %r of a ProxyCommand are those of the host; %% is a percent sign."""
    config = "Host gpu-a\n HostName h\n User u\n Port 7\n ProxyCommand connect %h:%p as %r 100%%\n"
    assert resolve(_host(tmp_path, config)).proxy_command == "connect h:7 as u 100%"


@needs_ssh
def test_a_broken_configuration_names_its_line(tmp_path: Path) -> None:
    """ssh's own complaint is the evidence."""
    with pytest.raises(UsageError, match="ssh rejects") as caught:
        resolve(_host(tmp_path, "Host gpu-a\n  NoSuchOption 1\n"))
    assert any("line 2" in line for line in caught.value.evidence)


@needs_ssh
def test_a_name_that_looks_like_an_option_stays_a_name(tmp_path: Path) -> None:
    """``-oProxyCommand=…`` as a host runs nothing."""
    marker = tmp_path / "ran"
    with pytest.raises(UsageError):
        resolve(_host(tmp_path, "", ssh=f"-oProxyCommand=touch {marker}"))
    assert not marker.exists()


def test_a_missing_configuration_file_is_named(tmp_path: Path) -> None:
    """ssh would silently take an empty configuration."""
    with pytest.raises(InventoryError, match="none is not there"):
        resolve(Host(name="a", ssh_config=str(tmp_path / "none")))


def test_without_ssh_the_inventory_counts_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No ssh program: the inventory's fields, an attribute that says it, and one log line for all hosts."""
    monkeypatch.setenv("PATH", os.devnull)
    ssh_config._log_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        settings = resolve(Host(name="a", ssh="u@h", port=7, identity="/k", known_hosts="/kh", jump="j1,x@j2:8"))
        resolve(Host(name="b"))
    assert settings.resolved_by == "inventory"
    assert settings.address == "u@h:7"
    assert (settings.identity_files, settings.user_known_hosts) == (("/k",), ("/kh",))
    assert [(hop.hostname, hop.port) for hop in settings.proxy_jump] == [("j1", 22), ("j2", 8)]
    assert sum("no ssh program" in record.message for record in caplog.records) == 1


def test_without_ssh_a_configuration_file_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A setting that could not be honoured is an error, not ignored."""
    monkeypatch.setenv("PATH", os.devnull)
    with pytest.raises(InventoryError, match="no ssh program"):
        resolve(_host(tmp_path, "Host gpu-a\n"))


def test_repeated_keywords_keep_their_order() -> None:
    """``ssh -G`` prints one line for each identity file."""
    assert parse_ssh_g("identityfile a\nport 22\nidentityfile b c\n") == {"identityfile": ["a", "b c"], "port": ["22"]}
