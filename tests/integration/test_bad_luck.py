"""Bad luck, from the command line to the host: one plain line each, a truthful record, and a host that is whole."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.demo.ssh_host import free_port
from tests.support.cli_project import Ran
from tests.support.ssh_project import SUPPORT, SessionHost, SshProject, behind_proxy
from tests.support.tcp_proxy import TcpProxy, Traffic
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration


# ---- no way in


def without_a_way_in(project: SshProject, case: str) -> None:
    """Gives the project an ssh configuration that does not lead to the host."""
    ssh = project.host.ssh
    text = ssh.ssh_config_path.read_text()
    other = project.laptop / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(other)], check=True)
    known = project.laptop / "known_hosts"
    if case == "changed key":
        key = other.with_suffix(".pub").read_text().split()
        known.write_text(f"[127.0.0.1]:{ssh.port} {key[0]} {key[1]}\n")
    if case in ("changed key", "unknown key"):
        text = text.replace(str(ssh.known_hosts_path), str(known))
    if case == "no such host":
        text = text.replace("HostName 127.0.0.1", "HostName no-such-host.invalid")
    if case == "nobody listens":
        text = text.replace(f"Port {ssh.port}", f"Port {free_port()}")
    if case == "login refused":
        text = text.replace(str(ssh.identity_path), str(other))
    path = project.laptop / "ssh_config"
    path.write_text(text)
    project.write_inventory(host={"ssh_config": str(path)})


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("unknown key", ("unknown", "SHA256:", "known_hosts")),
        ("changed key", ("CHANGED", "known_hosts:1", "ssh-keygen -R")),
        ("no such host", ("no such name", "no-such-host.invalid", "try `ssh gpu-a`")),
        ("nobody listens", ("refused", "127.0.0.1", "try `ssh gpu-a`")),
        ("login refused", ("does not let", "no key was accepted", "try `ssh gpu-a`")),
    ],
)
def test_a_host_without_a_way_in_is_one_line_and_nothing_is_stored(
    project: SshProject, case: str, words: tuple[str, ...]
) -> None:
    """Every command that needs the host says why not and what to do; the record and the host stay as they were."""
    project.with_variants()
    record, before = record_of(project), project.identity()
    without_a_way_in(project, case)
    for command in (["pull"], ["push", "--variant", "V1"], ["bench", "--concurrency", "1"], ["status"], ["revert"]):
        ran = project.orch(*command)
        assert ran.code == 1, (command, ran.err)
        for word in words:
            assert word in ran.error, (command, ran.error)
        assert ran.out == ""
    assert record_of(project) == record
    assert (project.identity(), project.traces) == (before, [])


def record_of(project: SshProject) -> list[object]:
    """Everything of the record that a command could have written."""
    tables = ("artifacts", "baselines", "observations", "deployments", "trials", "loads")
    return [project.query(f"select count(*) as n from {table}")[0]["n"] for table in tables]


# ---- an engine that does not serve


def fails_to_serve(project: SshProject) -> tuple[str, list[str]]:
    """Benches an engine that fails, and checks that nothing is left but a failed trial. The error and its evidence."""
    ran = project.orch("bench", "--concurrency", "1")
    assert ran.code == 1, ran.out
    (trial,) = project.query("select status, ended_at, loaded_digest, reasons from trials")
    assert trial["status"] == "failed" and trial["ended_at"]
    assert trial["reasons"] != "[]"
    assert project.query("select * from results where status = 'ok'") == []
    assert project.query("select * from deployments where ended_at is null") == []
    assert project.named_pids(b"serving_engine") == []
    assert project.traces == []
    (error,) = [line for line in ran.err.splitlines() if line.startswith("orch: ")]
    return error, ran.evidence


def test_an_engine_that_is_never_ready_is_stopped_and_shown(project: SshProject) -> None:
    """Past ready_timeout_s: what it last answered, the end of its log, and which setting to raise."""
    project.write_inventory("--ready-file", str(project.ready_file), engine={"ready_timeout_s": 1.0})
    project.done("pull")
    error, evidence = fails_to_serve(project)
    assert "was not ready within 1 s" in error and "503 still loading weights" in error
    assert "raise ready_timeout_s" in error
    assert evidence[-1] == "loaded t16-w4-s2"


def test_an_engine_that_dies_at_its_start_shows_its_traceback(project: SshProject) -> None:
    """The evidence is its own last words."""
    project.write_inventory("--die")
    project.done("pull")
    error, evidence = fails_to_serve(project)
    assert "ended before it was ready" in error
    assert evidence[0] == "Traceback (most recent call last):"
    assert evidence[-1] == "RuntimeError: no kernel image is available for execution on the device"


def test_an_engine_that_dies_under_load_costs_one_trial(project: SshProject) -> None:
    """No good row, the variant still live, the engine gone; the next bench works."""
    project.write_inventory("--fault", "2=die:2", workload={"warmup_per_concurrency": 0})
    project.pushed("V1")
    ran = project.orch("bench", "--concurrency", "1,2")
    assert ran.code == 1
    assert "died under load at concurrency 1" in ran.error
    (trial,) = project.query("select id, status from trials")
    assert trial["status"] == "failed"
    assert [row["status"] for row in project.query("select status from loads")] == ["invalid"]
    assert project.query("select * from results where status = 'ok'") == []
    assert project.named_pids(b"serving_engine") == []
    assert project.status()["name"] == "V1"
    project.write_inventory()
    project.done("bench", "--concurrency", "1")
    rows = project.query("select variant, status from results where status = 'ok'")
    assert rows == [{"variant": "V1", "status": "ok"}]


@contextlib.contextmanager
def strangers_engine(project: SshProject) -> Iterator[int]:
    """Somebody else's engine on the same port, from the same files; its pid. It must live to the end."""
    argv = [sys.executable, "-m", "serving_engine", "--port", str(project.port), "--module", "kernels.fast"]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(SUPPORT)}
    process = subprocess.Popen(
        argv, cwd=project.site, env=environment, stdout=subprocess.DEVNULL, start_new_session=True
    )
    try:
        wait_until(project.is_serving)
        yield process.pid
        assert process.poll() is None, "the stranger was ended"
        assert project.get("/config")["pid"] == process.pid
    finally:
        process.kill()
        process.wait()


def test_a_strangers_engine_on_the_port_is_refused_and_left_alone(project: SshProject) -> None:
    """Its 200 is not taken for ours: nothing is measured, its pid and command are told, and it lives on."""
    project.done("pull")
    with strangers_engine(project) as pid:
        ran = project.orch("bench", "--concurrency", "1")
        assert ran.code == 1
        for word in (f"port {project.port}", f"pid {pid}", "did not start", "inventory.yaml"):
            assert word in ran.error
        assert project.query("select * from loads") == []
        assert [row["status"] for row in project.query("select status from trials")] == ["failed"]
        assert "none that orch started" in project.done("status").out
        assert "no engine that orch started" in project.done("revert").out


# ---- a load that cannot be believed


@pytest.mark.parametrize(
    ("fault", "workload", "reason"),
    [
        ("1=stall:1", {"request_timeout_s": 1.0}, "1 of 4 requests failed: no end within 1 s ×1 (1 chunks had come)"),
        ("1=http:500", {}, "1 of 4 requests failed: HTTP 500 ×1"),
        ("1=short:3", {}, "1 of 4 requests failed"),
    ],
)
def test_a_load_with_a_bad_answer_is_invalid_and_has_no_numbers(
    project: SshProject, fault: str, workload: dict[str, float], reason: str
) -> None:
    """A stall, an error or a short answer: the load is stored as invalid with the reason, every request, no metric."""
    given = {"warmup_per_concurrency": 1, "prompts_per_concurrency": 2, **workload}
    project.write_inventory("--skip", "2", "--fault", fault, workload=given)
    project.done("pull")
    ran = project.orch("bench", "--concurrency", "2")
    assert ran.code == 1
    assert "concurrency 2 is invalid" in ran.out and reason in ran.out
    (row,) = project.query("select * from results")
    assert row["status"] == "invalid"
    assert row["output_tokens_per_s"] is None and row["ttft_ms_p50"] is None
    assert len(project.query("select * from requests")) == 4
    refused = project.orch("compare", "baseline", "--to", "baseline")
    assert refused.code == 1 and "baseline" in refused.error


# ---- somebody else is at work


def test_an_edit_during_the_load_contaminates_the_trial(project: SshProject) -> None:
    """The numbers are kept and marked: digest before and after, no ok row, drift knows it, revert leaves it alone."""
    project.write_inventory("--hold-file", str(project.hold_file))
    project.done("pull")
    baseline = project.digest
    project.hold_file.touch()
    bench = project.begin("bench", "--concurrency", "1")
    project.await_held_load()
    with project.live.open("a") as file:
        file.write("# a colleague was here\n")
    project.hold_file.unlink()
    ran = bench.end()
    assert ran.code == 1
    assert "CONTAMINATED: the live file changed under load" in ran.out
    (trial,) = project.query("select status, digest, digest_before, digest_after from trials")
    assert trial == {
        "status": "contaminated",
        "digest": baseline,
        "digest_before": baseline,
        "digest_after": project.digest,
    }
    (row,) = project.query("select status, load_status, is_contaminated from results")
    assert row == {"status": "contaminated", "load_status": "ok", "is_contaminated": 1}
    drift = project.done("drift", "--json").document
    assert drift["now"]["is_unexpected"]
    assert (baseline, project.digest, "bench-after") in {
        (r["before"], r["after"], r["source"]) for r in drift["on_record"]
    }
    refused = project.orch("revert")
    assert refused.code == 1 and "somebody else's edit, left alone" in refused.error
    assert project.live.read_text().endswith("# a colleague was here\n")


def test_an_engine_replaced_during_the_load_is_noticed(project: SshProject) -> None:
    """Somebody kills ours and starts his own on the port: no good row, and his is left alone."""
    project.write_inventory("--hold-file", str(project.hold_file))
    project.with_variants()
    project.hold_file.touch()
    bench = project.begin("bench", "--concurrency", "1")
    project.await_held_load()
    os.kill(project.get("/config")["pid"], signal.SIGKILL)
    wait_until(lambda: not project.is_serving())
    with strangers_engine(project):
        project.hold_file.unlink()
        ran = bench.end()
        assert ran.code == 1
        assert "died under load" in ran.error
        assert [row["status"] for row in project.query("select status from trials")] == ["failed"]
        assert project.query("select * from results where status = 'ok'") == []
        assert "no engine that orch started" in project.done("revert").out


def test_of_two_projects_that_push_at_once_exactly_one_wins(project: SshProject, tmp_path: Path) -> None:
    """Both have sent their bytes and go for the lease together: the loser is told who has it, and cannot undo it."""
    before = project.identity()
    others = SshProject(tmp_path, project.host, laptop="other-laptop")
    others.write_inventory()
    project.with_variants()
    others.with_variants()
    project.host.set_fault("STOP", "transfer")
    pushes = {project: project.begin("push", "--variant", "V1"), others: others.begin("push", "--variant", "V2")}
    wait_until(lambda: len(project.host.stopped_agents()) == 2)
    project.host.let_go()
    ran = {one: push.end() for one, push in pushes.items()}
    winner, loser = sorted(ran, key=lambda one: ran[one].code)
    assert (ran[winner].code, ran[loser].code) == (0, 1)
    for word in (f"pid {pushes[winner].process.pid}", "holds", "wait for it"):
        assert word in ran[loser].error
    assert project.digest == winner.digest_of("V1" if winner is project else "V2")
    assert [row["status"] for row in loser.query("select status from deployments")] == ["failed"]
    assert "SOMEBODY ELSE" in loser.done("status").out
    for words in (["revert"], ["push", "--variant", "V1"], ["bench", "--concurrency", "1"]):
        refused = loser.orch(*words)
        assert refused.code == 1 and f"pid {pushes[winner].process.pid}" in refused.error, refused.err
    winner.done("revert")
    assert (project.identity(), project.traces) == (before, [])
    loser.done("push", "--variant", "V2")
    loser.done("revert")
    assert project.identity() == before


# ---- the disk


@pytest.fixture
def small_disk(session_host: SessionHost, tmp_path: Path) -> Iterator[SshProject]:
    """A project whose target lies on a file system of 256 KiB of its own."""
    if os.geteuid() != 0:
        pytest.skip("needs root to mount")
    made = SshProject(tmp_path, session_host)
    folder = made.live.parent
    folder.mkdir(parents=True)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", folder], check=False).returncode:
        pytest.skip("cannot mount here")
    made.write_host()
    made.write_inventory()
    yield made
    session_host.reset()
    made.close()
    wait_until(lambda: subprocess.run(["umount", folder], capture_output=True, check=False).returncode == 0)


def fill(folder: Path) -> Path:
    """Leaves no free block."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    return filler


def test_a_full_disk_stops_a_push_and_not_a_revert(small_disk: SshProject) -> None:
    """No room: the push is refused with the reason, the target untouched. A revert needs no room."""
    project = small_disk
    before = project.identity()
    project.with_variants()
    filler = fill(project.live.parent)
    ran = project.orch("push", "--variant", "V1")
    assert ran.code == 1
    for word in ("gpu-a: could not", "No space left", "the target is untouched", "free some space"):
        assert word in ran.error
    assert (project.identity(), project.traces) == (before, [])
    (pushed,) = project.query("select status, error, ended_at from deployments")
    assert pushed["status"] == "failed" and "No space left" in pushed["error"] and pushed["ended_at"]
    filler.unlink()
    project.done("push", "--variant", "V1")
    fill(project.live.parent)
    assert project.status()["name"] == "V1"
    assert "is restored" in project.done("revert").out
    assert (project.identity(), project.traces) == (before, [])


# ---- the line


def tells_the_truth(project: SshProject) -> None:
    """``orch status`` names what really is there."""
    names = {project.digest_of(name): name for name in ("baseline", "V1", "V2")}
    now = project.status()
    assert now["digest"] == project.digest
    assert now["name"] == names[project.digest]
    assert now["is_clean"] == (now["name"] == "baseline")


@pytest.mark.slow
def test_a_push_cut_at_any_byte_is_told_and_mended(project: SshProject, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten offsets of what goes out, and orch gives up at once: old or new, never torn; status tells, revert mends."""
    monkeypatch.setattr("orchestrator.push.RECONNECT_PAUSES_S", ())
    project.with_variants()
    with behind_proxy(project) as proxy:
        total = traffic_of_a_push(project, proxy).to_server
        codes = set()
        for cut_at in range(total // 10 - 40, total, total // 10):
            before = project.identity()
            proxy.cut_after(to_server=cut_at)
            ran = project.orch("push", "--variant", "V1")
            proxy.cut_after()
            project.host.await_no_agent()
            codes.add(ran.code)
            assert ran.code == 0 or ran.error, cut_at
            assert ran.code != 0 or project.digest == project.digest_of("V1"), cut_at
            tells_the_truth(project)
            project.done("revert")
            assert (project.identity(), project.traces) == (before, []), cut_at
            assert project.query("select * from deployments where ended_at is null") == [], cut_at
        assert 1 in codes


@pytest.mark.parametrize("direction", ["to_server", "to_client"])
def test_a_push_survives_a_line_that_is_cut_once(project: SshProject, direction: str) -> None:
    """In the middle of the bytes, or of the answer: orch connects again and asks, and the push is one push."""
    project.with_variants()
    before = project.identity()
    with behind_proxy(project) as proxy:
        total = vars(traffic_of_a_push(project, proxy))[direction]
        n_before = proxy.n_connections
        proxy.cut_after(**{direction: total * 9 // 10})
        project.done("push", "--variant", "V1")
        assert proxy.n_connections == n_before + 2
        assert project.digest == project.digest_of("V1")
        tells_the_truth(project)
        project.done("revert")
    assert (project.identity(), project.traces) == (before, [])


def traffic_of_a_push(project: SshProject, proxy: TcpProxy) -> Traffic:
    """How many bytes an undisturbed push of V1 takes; it is reverted again."""
    proxy.reset_traffic()
    project.done("push", "--variant", "V1")
    traffic = replace(proxy.traffic)
    project.done("revert")
    return traffic


def test_a_push_whose_answer_never_came_is_unknown_until_the_host_is_asked(
    project: SshProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line ends after the bytes went out, and nobody can connect again: told, recorded as unknown, then found."""
    monkeypatch.setattr("orchestrator.push.RECONNECT_PAUSES_S", (0.1, 0.1))
    project.with_variants()
    before = project.identity()
    ran: list[Ran] = []
    push = threading.Thread(target=lambda: ran.append(project.orch("push", "--variant", "V1")))
    with behind_proxy(project):
        project.host.set_fault("STOP", "journal")
        push.start()
        project.host.await_stopped_agent()
    push.join()
    project.host.let_go()
    project.write_inventory()
    assert ran[0].code == 1 and "cannot be reached" in ran[0].error
    assert [row["status"] for row in project.query("select status from deployments")] == ["unknown"]
    wait_until(lambda: project.digest == project.digest_of("V1"))
    tells_the_truth(project)
    assert [row["status"] for row in project.query("select status from deployments")] == ["pushed"]
    project.done("revert")
    assert (project.identity(), project.traces) == (before, [])


def test_a_frozen_line_is_noticed_and_replaced(project: SshProject) -> None:
    """Nothing comes any more in the middle of a push: orch gives the line up, connects again, and asks."""
    project.with_variants()
    before = project.identity()
    with behind_proxy(project, "ServerAliveInterval 1", "ServerAliveCountMax 1") as proxy:
        n_bytes = traffic_of_a_push(project, proxy).to_server
        n_before = proxy.n_connections
        proxy.freeze_after(to_server=n_bytes * 2 // 3)
        push = project.begin("push", "--variant", "V1")
        wait_until(lambda: proxy.n_connections == n_before + 2, timeout_s=60.0)
        proxy.thaw()
        ran = push.end()
        assert ran.code == 0, ran.err
        assert project.digest == project.digest_of("V1")
        tells_the_truth(project)
        project.done("revert")
    assert (project.identity(), project.traces) == (before, [])


def test_a_host_that_accepts_and_says_nothing_is_given_up(project: SshProject) -> None:
    """A frozen line from the start: no answer within connect_timeout_s, one line."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        project.write_inventory(host={"ssh": "gpu-a", "port": silent.getsockname()[1], "connect_timeout_s": 1.0})
        ran = project.orch("pull")
    assert ran.code == 1
    assert "no answer within 1 s" in ran.error and "try `ssh gpu-a`" in ran.error
