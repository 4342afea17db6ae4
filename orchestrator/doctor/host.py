"""The host itself: tools, clock, scratch folder. Judges what ``host_facts`` saw."""

from __future__ import annotations

from orchestrator.connection import Remote
from orchestrator.doctor.findings import Finding, fail, failed_by, ok, warn
from orchestrator.doctor.host_facts import TOOLS, Disk, HostFacts, bytes_text
from orchestrator.errors import OrchError
from orchestrator.records import Host

CLOCK_LIMIT_S = 60.0
SCRATCH_WANTED_BYTES = 1 << 30
SCRATCH_NEEDED_BYTES = 16 << 20
DIGEST_TOOLS = ("sha256sum", "shasum", "openssl")
DETACHING_TOOLS = ("setsid", "perl", "python3")


def check_tools(host: Host, facts: HostFacts) -> Finding:
    """Whether everything is there that the agent's shell scripts run."""
    has = facts.all("has")
    digest = next((tool for tool in DIGEST_TOOLS if tool in has), None)
    detaching = next((tool for tool in DETACHING_TOOLS if tool in has), None)
    missing = [tool for tool in TOOLS if tool not in has]
    if digest is None:
        missing.append("sha256sum (or shasum, openssl)")
    if detaching is None:
        missing.append("setsid (or perl, python3)")
    if not facts.one("stat"):
        missing.append("a stat that knows -c (GNU, busybox) or -f (BSD)")
    if missing:
        return fail(
            "host tools",
            f"{host.name} lacks {', '.join(missing)}",
            f"install them on {host.name} (packages coreutils and util-linux), or correct its PATH",
        )
    lock = "flock" if "flock" in has else "no flock (a symbolic link serves as lock)"
    shell = facts.one("shell") or "unknown shell"
    user = f"{facts.one('user')} with {shell}"
    return ok("host tools", f"{facts.one('system')}, {user}; {facts.one('stat')} stat, {digest}, {lock}, {detaching}")


def check_clock(host: Host, facts: HostFacts) -> Finding:
    """How far the host's clock is from this machine's: it is the host's that judges a lease."""
    offset = facts.clock_offset_s
    if offset is None:
        return warn("clock", f"{host.name} did not tell its time", f"try `date +%s` on {host.name}")
    ahead_s, error_s = offset
    words = f"{host.name} is {abs(ahead_s):.2f} s {'ahead of' if ahead_s >= 0 else 'behind'} this machine"
    text = f"{words} (± {error_s:.2f} s)"
    if abs(ahead_s) <= CLOCK_LIMIT_S:
        return ok("clock", text)
    return warn(
        "clock",
        f"{text}; leases and the times of files go by the host's clock, the record by this one",
        f"set both by NTP; `timedatectl` on {host.name} shows whether it does",
    )


def find_scratch(remote: Remote) -> str | OrchError:
    """The scratch folder, made when missing; or why there is none."""
    try:
        return remote.scratch_dir()
    except OrchError as exc:
        return exc


def check_scratch(host: Host, scratch: str | OrchError, facts: HostFacts) -> Finding:
    """Whether logs, results and caches have a place, with room."""
    setting = f"set scratch_dir of host {host.name} in inventory.yaml to a folder that {facts.one('user')} may write"
    if isinstance(scratch, OrchError):
        return failed_by("scratch folder", scratch, setting)
    disk = facts.disk("scratch_df")
    if disk is None:
        return ok("scratch folder", f"{scratch}, free space unknown")
    text = f"{scratch}, {free_text(disk)}"
    elsewhere = f"free some, or set scratch_dir of host {host.name} in inventory.yaml to a larger disk"
    if disk.free_bytes < SCRATCH_NEEDED_BYTES:
        return fail("scratch folder", f"{text}: too little for a load's result", elsewhere)
    if disk.free_bytes < SCRATCH_WANTED_BYTES:
        return warn("scratch folder", f"{text}: engine logs and Triton caches may fill it", elsewhere)
    return ok("scratch folder", text)


def free_text(disk: Disk) -> str:
    """``12 GiB free on /var``."""
    return f"{bytes_text(disk.free_bytes)} free on {disk.mount_point}"
