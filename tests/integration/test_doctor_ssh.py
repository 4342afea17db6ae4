"""``orch doctor`` over a real sshd: what it says of the way to the host, good and broken."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.ssh_project import SshProject
from tests.support.tiny_host import free_port

pytestmark = pytest.mark.integration

LOCAL_NAMES = ["workloads", "results.db", "workspace"]


def doctor(project: SshProject) -> dict[str, dict[str, Any]]:
    """The findings by name; each failure says what to do, and makes the exit code 1."""
    ran = project.orch("doctor", "--json")
    findings = {finding["name"]: finding for finding in ran.document["findings"]}
    failed = [finding for finding in findings.values() if finding["status"] == "fail"]
    assert all(finding["next_step"] for finding in failed)
    assert ran.code == (1 if failed else 0)
    return findings


def assert_stopped_at(findings: dict[str, dict[str, Any]], name: str) -> None:
    """Nothing but this failed, nothing on the host was looked at, and this machine's part was."""
    assert [one["name"] for one in findings.values() if one["status"] == "fail"] == [name]
    assert findings["host"]["status"] == "skipped"
    assert list(findings)[-3:] == LOCAL_NAMES
    assert "host tools" not in findings


def test_a_good_way(project: SshProject) -> None:
    """Configuration, address, key of the host and of the user are told, and everything behind them is ok."""
    findings = doctor(project)
    address = f"127.0.0.1:{project.host.ssh.port}"
    assert f"`ssh -G` ({project.host.ssh.ssh_config_path}): gpu-a is " in findings["ssh config"]["text"]
    assert f"keys {project.host.ssh.identity_path}" in findings["ssh config"]["text"]
    assert f"[127.0.0.1]:{project.host.ssh.port}: ssh-ed25519" in findings["host key"]["text"]
    assert address in findings["login"]["text"]
    slow = {"round trip"}  # a busy machine may well need 100 ms to start a shell
    assert {one["name"] for one in findings.values() if one["status"] != "ok"} <= slow


def test_an_unknown_host_key(project: SshProject, tmp_path: Path) -> None:
    """The step is the command that adds the key, and with it the next look is good."""
    known_hosts = tmp_path / "known_hosts"
    known_hosts.touch()
    project.write_inventory(host={"known_hosts": str(known_hosts)})
    findings = doctor(project)
    assert_stopped_at(findings, "host key")
    command = findings["host key"]["next_step"].rpartition("add it with ")[2].strip("`")
    subprocess.run(command, shell=True, check=True, capture_output=True)
    assert doctor(project)["host key"]["status"] == "ok"


def test_a_changed_host_key(project: SshProject, tmp_path: Path) -> None:
    """A key that is not the known one is never called unknown."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "other")], check=True)
    key = (tmp_path / "other.pub").read_text().split()[1]
    (tmp_path / "known_hosts").write_text(f"[127.0.0.1]:{project.host.ssh.port} ssh-ed25519 {key}\n")
    project.write_inventory(host={"known_hosts": str(tmp_path / "known_hosts")})
    findings = doctor(project)
    assert_stopped_at(findings, "host key")
    assert "has CHANGED" in findings["host key"]["text"]


def test_a_refused_login(project: SshProject, tmp_path: Path) -> None:
    """The host's key was compared before the login was refused; the keys that were tried are the evidence."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "stranger")], check=True)
    project.write_inventory(host={"identity": str(tmp_path / "stranger")})
    findings = doctor(project)
    assert_stopped_at(findings, "login")
    assert findings["host key"]["status"] == "ok"
    assert str(tmp_path / "stranger") in findings["login"]["evidence"][0]


def test_no_key_at_all(project: SshProject, tmp_path: Path) -> None:
    """An identity file that is not there is told before the login fails for it."""
    project.write_inventory(host={"identity": str(tmp_path / "none")})
    findings = doctor(project)
    assert_stopped_at(findings, "login")
    assert findings["ssh config"]["status"] == "warn"
    assert str(tmp_path / "none") in findings["ssh config"]["text"]


def test_nobody_listens(project: SshProject) -> None:
    """A host that cannot be reached fails as login; a key that could not be compared is not called good."""
    project.write_inventory(host={"port": free_port()})
    findings = doctor(project)
    assert_stopped_at(findings, "login")
    assert findings["host key"]["status"] == "skipped"
    assert "cannot be reached" in findings["login"]["text"]


def test_a_configuration_that_ssh_rejects(project: SshProject, tmp_path: Path) -> None:
    """The line that ssh complains about is the evidence."""
    (tmp_path / "config").write_text("Host gpu-a\n  NoSuchKeyword yes\n")
    project.write_inventory(host={"ssh_config": str(tmp_path / "config")})
    findings = doctor(project)
    assert_stopped_at(findings, "ssh config")
    assert "nosuchkeyword" in "".join(findings["ssh config"]["evidence"]).lower()


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_slow_start_files(project: SshProject) -> None:
    """Start files that hold up every exec are told apart from the line, with the file and the line that helps."""
    if Path(pwd.getpwuid(os.getuid()).pw_shell).name != "bash":
        pytest.skip("this login's shell is not bash")
    start_file = project.host.ssh.home_path / ".bashrc"
    start_file.write_text("sleep 0.3\n")
    try:
        found = doctor(project)["round trip"]
        assert found["status"] == "warn"
        assert "are the login's start files, at every exec" in found["text"]
        line = found["next_step"].partition("begin ~/.bashrc with ")[2].strip("`")
        start_file.write_text(f"{line}\nsleep 30\n")
        assert doctor(project)["host tools"]["status"] == "ok"
    finally:
        start_file.unlink()
