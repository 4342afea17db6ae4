"""What the host itself can tell in one exec: tools, clock, disks, target files, the engine's program. Writes nothing.

The script only looks and reports; what it means is decided by the checks.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.connection import Remote
from orchestrator.errors import RemoteCommandError
from orchestrator.records import Engine, Target

TOOLS = (
    *("basename", "cat", "chmod", "cp", "cut", "date", "dd", "dirname", "env", "head", "id", "kill", "ln", "mkdir"),
    *("mv", "readlink", "rm", "rmdir", "sleep", "sort", "stat", "sync", "tail", "touch", "tr", "uname", "wc"),
)
"""Everything outside the shell that orch's scripts run on a host, but those that have a substitute."""

WITH_SUBSTITUTE = ("sha256sum", "shasum", "openssl", "flock", "setsid", "perl", "python3")

SCRIPT = r"""
# $1 scratch folder or empty, $2 engine's python, $3 its folder, $4 its PATH or empty, $5 its program, $6 its log or
# empty, $7 tools, then the target files. Writes "key value" pairs, each with a NUL behind it.
scratch=$1 python=$2 folder=$3 search=${4:-$PATH} program=$5 log=$6 tools=$7
shift 7
LC_ALL=C
export LC_ALL

say() { printf '%s %s\0' "$1" "$2"; }
clock() {
  seconds=$(date +%s.%N 2>/dev/null)
  case $seconds in "" | *. | *[!0-9.]*) seconds=$(date +%s) ;; esac
  say "$1" "$seconds"
}
nearest() {  # sets near: the deepest part of a path that is there
  near=$1
  until [ -e "$near" ] || [ -z "$near" ]; do near=${near%/*}; done
  near=${near:-/}
}
is_mount_point() {
  [ -r /proc/self/mountinfo ] || return 1
  while read -r _ _ _ _ point _; do [ "$point" != "$1" ] || return 0; done </proc/self/mountinfo
  return 1
}

clock began_s
say system "$(uname -s) $(uname -r)"
say user "$(id -un 2>/dev/null || id -u)"
say uid "$(id -u)"
say shell "${SHELL:-}"
for tool in $tools; do
  if command -v "$tool" >/dev/null 2>&1; then say has "$tool"; fi
done
if stat -c %s / >/dev/null 2>&1; then say stat GNU
elif stat -f %z / >/dev/null 2>&1; then say stat BSD
fi

if [ -n "$scratch" ]; then
  say scratch_df "$(df -Pk "$scratch" 2>/dev/null | tail -n 1)"
  for run in "$scratch"/runs/*; do
    if [ -d "$run" ]; then say run "$run"; fi
  done
fi

target() {  # $1 number, $2 path
  kind=missing
  if [ -d "$2" ]; then kind=folder
  elif [ -f "$2" ]; then kind='file'
  elif [ -e "$2" ]; then kind=other
  elif [ -h "$2" ]; then kind=dangling
  fi
  say "kind.$1" "$kind"
  nearest "$2"
  say "near.$1" "$near"
  real=$(readlink -f "$2" 2>/dev/null) || real=$2
  say "real.$1" "$real"
  dir=${real%/*}
  dir=${dir:-/}
  say "folder.$1" "$dir"
  if [ -r "$real" ]; then say "is_readable.$1" yes; fi
  if [ -w "$dir" ] && [ -x "$dir" ]; then say "is_folder_writable.$1" yes; fi
  if is_mount_point "$real"; then say "is_mount_point.$1" yes; fi
  say "stat.$1" "$({ stat -c '%s %a %h %u %U:%G' "$real" || stat -f '%z %Lp %l %u %Su:%Sg' "$real"; } 2>/dev/null)"
  say "df.$1" "$(df -Pk "$dir" 2>/dev/null | tail -n 1)"
  for kept in "$dir/.orch-${real##*/}"/foreign.*; do
    if [ -e "$kept" ]; then say "kept.$1" "$kept"; fi
  done
  if [ -h "$dir/.orch.mutex" ]; then say "mutex.$1" "$(readlink "$dir/.orch.mutex")"; fi
}
number=0
for file in "$@"; do
  target "$number" "$file"
  number=$((number + 1))
done

if command -v "$python" >/dev/null 2>&1; then
  say python_says "$("$python" -I -S -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>&1 | tail -n 1)"
else
  nearest "$python"
  say python_near "$near"
fi
nearest "$folder"
if [ -d "$folder" ] && [ -x "$folder" ]; then say is_folder yes; else say folder_near "$near"; fi
program_path=$(  # builtins only: PATH is the engine's here
  cd "$folder" 2>/dev/null || cd / || exit
  PATH=$search
  case $program in
    */*) [ -f "$program" ] && [ -x "$program" ] && cd "${program%/*}" && printf '%s/%s' "$(pwd)" "${program##*/}" ;;
    *) command -v "$program" ;;
  esac
)
say program_path "$program_path"
first=
if [ -r "$program_path" ]; then first=$(head -c 300 "$program_path" | tr -d '\0' | head -n 1); fi
case $first in
  '#!'*)
    first=${first#??}
    while :; do case $first in ' '*) first=${first# } ;; *) break ;; esac; done
    interpreter=${first%%[ 	]*}
    if [ ! -x "$interpreter" ]; then say interpreter_missing "$interpreter"; fi ;;
esac
if [ -n "$log" ]; then
  nearest "${log%/*}"
  say log_near "$near"
  if [ -d "$near" ] && [ -w "$near" ] && [ ! -d "$log" ] && { [ ! -e "$log" ] || [ -w "$log" ]; }; then
    say is_log_writable yes
  fi
fi
clock ended_s
"""


@dataclass(frozen=True, slots=True)
class Disk:
    """The file system of a folder."""

    free_bytes: int
    mount_point: str


@dataclass(frozen=True, slots=True)
class HostFacts:
    """The script's answer.

    Attributes:
        values: every value by key, in order; ``KEY.0`` belongs to the first target file.
        asked_s, answered_s: this machine's clock around the exec.
    """

    values: Mapping[str, tuple[str, ...]]
    asked_s: float = 0.0
    answered_s: float = 0.0

    def one(self, key: str) -> str:
        """The only value; empty when the host did not say."""
        return next(iter(self.values.get(key, ())), "")

    def all(self, key: str) -> tuple[str, ...]:
        """Every value of a key."""
        return self.values.get(key, ())

    def disk(self, key: str) -> Disk | None:
        """A line of ``df -Pk``; None when there is none that can be read."""
        found = re.search(r"\s\d+\s+-?\d+\s+(-?\d+)\s+\S+%\s+(.+)$", self.one(key))
        return Disk(int(found[1]) * 1024, found[2]) if found else None

    @property
    def clock_offset_s(self) -> tuple[float, float] | None:
        """How far the host's clock is ahead of this machine's, and how wrong that may be; None when it did not say.

        From both ends of the exec, so that neither the line nor a slow host counts as difference.
        """
        try:
            most_s = float(self.one("began_s")) - self.asked_s
            least_s = float(self.one("ended_s")) - self.answered_s
        except ValueError:
            return None
        return (most_s + least_s) / 2, abs(most_s - least_s) / 2


def starts_by(engine: Engine) -> str:
    """The program on the host by which the engine is started; empty where its user does it."""
    launcher = engine.launcher
    programs = {"systemd": ("systemctl",), "container": (launcher.runtime,), "manual": launcher.restart_command}
    return next(iter(programs.get(launcher.kind, engine.command)), "")


def ask(remote: Remote, scratch_dir: str | None, target: Target, engine: Engine) -> HostFacts:
    """Asks the host for everything that a shell can see.

    Raises:
        RemoteCommandError: the script itself failed.
        ConnectionError_, RemoteTimeoutError: no answer.
    """
    folder = engine.cwd or scratch_dir or "/"
    words = [scratch_dir or "", engine.python, folder, engine.env.get("PATH", ""), starts_by(engine), engine.log or ""]
    words += [" ".join((*TOOLS, *WITH_SUBSTITUTE)), *(file.path for file in target.files)]
    asked_s = time.time()
    done = remote.run(SCRIPT, words)
    answered_s = time.time()
    if done.exit_code:
        raise RemoteCommandError(
            f"{remote.host.name}: /bin/sh could not run the script that looks at the host (exit code {done.exit_code})",
            evidence=done.stderr.decode("utf-8", "backslashreplace").splitlines()[-10:],
        )
    return HostFacts(parse(done.stdout), asked_s, answered_s)


def parse(answer: bytes) -> Mapping[str, tuple[str, ...]]:
    """``key value`` pairs, each ended by a NUL."""
    values: dict[str, tuple[str, ...]] = {}
    for pair in answer.split(b"\0"):
        key, _, value = pair.decode("utf-8", "backslashreplace").partition(" ")
        if key:
            values[key] = (*values.get(key, ()), value)
    return values


def bytes_text(n_bytes: int) -> str:
    """``15 KiB``, ``1.2 GiB``; bytes below a kibibyte."""
    size, unit = float(n_bytes), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.3g} {unit}" if size < 1000 else f"{size:.0f} {unit}"
