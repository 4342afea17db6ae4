"""Which host keys are trusted: the lines that OpenSSH would accept, and no others."""

from __future__ import annotations

import base64
import shutil
import subprocess
from pathlib import Path

import pytest

from orchestrator.connection.known_hosts import KnownKey, fingerprint, known_keys, verify
from orchestrator.connection.ssh_config import SshSettings
from orchestrator.errors import HostKeyError

_PREFIX = b"\0\0\0\x0bssh-ed25519\0\0\0\x20"
BLOB, OTHER = _PREFIX + b"k" * 32, _PREFIX + b"o" * 32
KEY = f"ssh-ed25519 {base64.b64encode(BLOB).decode()}"


def _settings(tmp_path: Path, text: str, *, port: int = 22, alias: str | None = None) -> SshSettings:
    path = tmp_path / "known_hosts"
    path.write_text(text)
    return SshSettings(
        alias="gpu-a",
        hostname="GPU-a.example",
        user="u",
        port=port,
        host_key_alias=alias,
        user_known_hosts=(str(path), str(tmp_path / "missing")),
    )


@pytest.mark.parametrize(
    ("names", "port", "alias", "is_known"),
    [
        ("gpu-a.example", 22, None, True),
        ("other,GPU-A.example", 22, None, True),
        ("*.example", 22, None, True),
        ("gpu-?.example", 22, None, True),
        ("*.example,!gpu-a.example", 22, None, False),
        ("gpu-a", 22, None, False),
        ("[gpu-a.example]:2322", 2322, None, True),
        ("[gpu-a.example]:2322", 22, None, False),
        ("[gpu-a.example]:2323", 2322, None, False),
        ("gpu-a.example", 2322, None, True),  # ssh, too, falls back to the bare name
        ("cluster", 2322, "cluster", True),
        ("gpu-a.example", 22, "cluster", False),
        ("[gpu-a.example]:*", 2322, None, True),
    ],
)
def test_names_match_as_in_openssh(tmp_path: Path, names: str, port: int, alias: str | None, is_known: bool) -> None:
    """Lists, wildcards, negation, ports and HostKeyAlias."""
    settings = _settings(tmp_path, f"# comment\n\n{names} {KEY} me@here\nbroken line\n", port=port, alias=alias)
    assert bool(known_keys(settings)) is is_known


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs ssh-keygen")
def test_hashed_names_match(tmp_path: Path) -> None:
    """What ``ssh-keygen -H`` wrote is found under the name with the port, and under no other."""
    settings = _settings(tmp_path, f"[gpu-a.example]:2322 {KEY}\n", port=2322)
    subprocess.run(["ssh-keygen", "-H", "-f", settings.user_known_hosts[0]], check=True, capture_output=True)
    assert Path(settings.user_known_hosts[0]).read_text().startswith("|1|")
    assert [key.blob for key in known_keys(settings)] == [BLOB]
    assert known_keys(_settings(tmp_path, Path(settings.user_known_hosts[0]).read_text(), port=2323)) == ()


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs ssh-keygen")
def test_fingerprint_is_that_of_ssh_keygen(tmp_path: Path) -> None:
    """The user compares it with what ``ssh-keygen -l`` prints on the host."""
    (tmp_path / "key.pub").write_text(KEY + "\n")
    shown = subprocess.run(["ssh-keygen", "-lf", str(tmp_path / "key.pub")], check=True, capture_output=True, text=True)
    assert fingerprint(BLOB) in shown.stdout


def test_the_known_key_is_accepted_among_others(tmp_path: Path) -> None:
    """A host may have several lines; one of them is enough."""
    settings = _settings(tmp_path, "")
    keys = [KnownKey("", "x", "ssh-ed25519", blob, "f:1") for blob in (OTHER, BLOB)]
    verify(settings, keys, "ssh-ed25519", BLOB)


def test_changed_key_shows_both_fingerprints_and_the_line(tmp_path: Path) -> None:
    """The message says CHANGED, what was known and where, what was offered, and how to remove it."""
    settings = _settings(tmp_path, f"# first\n[gpu-a.example]:2322 {KEY}\n", port=2322)
    with pytest.raises(HostKeyError, match="CHANGED") as caught:
        verify(settings, known_keys(settings), "ssh-ed25519", OTHER)
    path = settings.user_known_hosts[0]
    for part in (fingerprint(BLOB), fingerprint(OTHER), f"{path}:2", f"ssh-keygen -R '[gpu-a.example]:2322' -f {path}"):
        assert part in str(caught.value)


def test_unknown_key_gives_the_command_that_adds_it(tmp_path: Path) -> None:
    """ssh-keyscan with port, type and file; behind a jump or with an alias the line itself."""
    settings = _settings(tmp_path, "", port=2322)
    with pytest.raises(HostKeyError, match="unknown") as caught:
        verify(settings, (), "ecdsa-sha2-nistp256", OTHER)
    assert f"ssh-keyscan -p 2322 -t ecdsa GPU-a.example >> {settings.user_known_hosts[0]}" in str(caught.value)
    assert fingerprint(OTHER) in str(caught.value)
    with pytest.raises(HostKeyError) as caught:
        verify(_settings(tmp_path, "", alias="cluster"), (), "ssh-ed25519", BLOB)
    assert f"echo 'cluster {KEY}' >> " in str(caught.value)


def test_revoked_key_is_refused_though_another_line_knows_it(tmp_path: Path) -> None:
    """@revoked wins."""
    settings = _settings(tmp_path, f"gpu-a.example {KEY}\n@revoked * {KEY}\n")
    with pytest.raises(HostKeyError, match="revoked"):
        verify(settings, known_keys(settings), "ssh-ed25519", BLOB)


def test_certificate_authority_is_not_a_host_key(tmp_path: Path) -> None:
    """A key that may sign host keys is not accepted as one, and the message says why the line does not help."""
    settings = _settings(tmp_path, f"@cert-authority *.example {KEY}\n")
    with pytest.raises(HostKeyError, match="unknown") as caught:
        verify(settings, known_keys(settings), "ssh-ed25519", BLOB)
    assert any("@cert-authority" in line for line in caught.value.evidence)
