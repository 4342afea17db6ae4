"""The POSIX sh sources behind the shared methods of ``Remote``: scratch folder, read, write, spawn.

They need ``sh`` and coreutils, and run the same through every transport. Each reports by exit code (the constants
below) and leaves the words to ``base.py``. Nothing here is built from a caller's text: values come as ``$1 …``.
"""

from __future__ import annotations

NO_DIGEST_TOOL = 69
CANNOT_WRITE = 73
MISSING = 66
NOT_A_FILE = 67
UNREADABLE = 77
BAD_TRANSFER = 78
CANNOT_START = 79

DIGEST_FUNCTION = r"""
digest() {  # hex sha256 of standard input; 69 where the host has no tool for it
  if command -v sha256sum >/dev/null 2>&1; then set -- "$(sha256sum)"
  elif command -v shasum >/dev/null 2>&1; then set -- "$(shasum -a 256)"
  elif command -v openssl >/dev/null 2>&1; then set -- "$(openssl dgst -sha256 -r)"
  else echo "none of sha256sum, shasum, openssl is installed" >&2; return 69
  fi
  printf '%s\n' "${1%% *}"
}
"""

SCRATCH_DIR = r"""
# $1 folder or empty. A folder that exists keeps its mode: it may be shared on purpose.
dir=$1
if [ -z "$dir" ]; then
  case ${XDG_CACHE_HOME:-} in
    /*) dir=$XDG_CACHE_HOME/orch ;;
    *) [ -n "${HOME:-}" ] || { echo "the login has no HOME" >&2; exit 73; }; dir=$HOME/.cache/orch ;;
  esac
fi
case $dir in /*) ;; *) echo "$dir is not absolute" >&2; exit 73 ;; esac
umask 077
[ -d "$dir" ] || mkdir -p -- "$dir" || exit 73
if ! [ -w "$dir" ] || ! [ -x "$dir" ]; then echo "$dir is not writable" >&2; exit 73; fi
cd -P -- "$dir" && pwd -P
"""

READ = (
    DIGEST_FUNCTION
    + r"""
# $1 path. Writes one line with the digest, then the bytes.
[ -d "$1" ] && exit 67
[ -e "$1" ] || [ -h "$1" ] || exit 66
[ -e "$1" ] || { echo "a symbolic link to nothing" >&2; exit 66; }
[ -f "$1" ] || exit 67
[ -r "$1" ] || exit 77
# One after the other on purpose: side by side both could read the same mixture of old and new bytes.
digest <"$1" || exit 69
cat <"$1" || exit 77
"""
)

WRITE = (
    DIGEST_FUNCTION
    + r"""
# $1 path, $2 mode, $3 hex digest; content on standard input.
# The temporary file lies beside the path: a rename is atomic only inside one file system.
umask 077
[ -d "$1" ] && { echo "$1 is a directory" >&2; exit 73; }
dir=$(dirname -- "$1")
[ -d "$dir" ] || mkdir -p -- "$dir" || exit 73
new=$dir/.orch-new.$$
trap 'rm -f -- "$new"' EXIT
trap 'exit 74' HUP INT TERM
cat >"$new" || exit 73
dd if=/dev/null of="$new" conv=notrunc,fsync 2>/dev/null || :  # no fsync in an old BSD dd: the digest still decides
found=$(digest <"$new") || exit 69
[ "$found" = "$3" ] || exit 78
chmod -- "$2" "$new" && mv -f -- "$new" "$1" || exit 73
"""
)

SPAWN = r"""
# $1 log, $2 folder, $3 token, $4 number of NAME=value words that follow; then the argument vector.
log=$1 folder=$2 token=$3
shift 3
cd -- "$folder" || exit 79
dir=$(dirname -- "$log")
(umask 077; { [ -d "$dir" ] || mkdir -p -- "$dir"; } && : >"$log") || exit 79

# A shell starts its background jobs with INT and QUIT ignored, and dash cannot undo that: the engine would never see
# its stop signal.
# setsid: its own session, so that neither the end of this one nor a signal to it arrives there.
# shellcheck disable=SC2016 # perl expands these
with_perl='use POSIX (); $SIG{INT} = $SIG{QUIT} = "DEFAULT"; POSIX::setsid() > 0 or die "setsid: $!";
exec { $ARGV[0] } @ARGV; exit 127'
with_python='import os, signal, sys
for name in ("SIGINT", "SIGQUIT", "SIGPIPE"): signal.signal(getattr(signal, name), signal.SIG_DFL)
os.setsid(); os.execvp(sys.argv[1], sys.argv[1:])'
detach() {
  trap - INT QUIT
  if command -v setsid >/dev/null 2>&1 && env --default-signal=INT,QUIT true 2>/dev/null; then
    exec env --default-signal=INT,QUIT setsid "$@"
  elif command -v perl >/dev/null 2>&1; then exec perl -e "$with_perl" -- "$@"
  elif command -v python3 >/dev/null 2>&1; then exec python3 -c "$with_python" "$@"
  elif command -v setsid >/dev/null 2>&1; then exec setsid "$@"
  fi
  echo "the host has none of setsid, perl, python3 to detach a process with"
  exit 127
}

started=$(date +%s.%N 2>/dev/null)
case $started in *[!0-9.]* | "" | *.) started=$(date +%s) ;; esac
# shellcheck disable=SC2016 # the inner shell expands these
detach sh -c 'n=$1; shift; while [ "$n" -gt 0 ]; do export "$1"; shift; n=$((n - 1)); done; exec "$@"' "$token" "$@" \
  </dev/null >"$log" 2>&1 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&- &
pid=$!

command_of() {
  if [ -r "/proc/$$/cmdline" ]; then tr '\0' ' ' <"/proc/$1/cmdline"; else ps -ww -o command= -p "$1"; fi 2>/dev/null
}
look() {  # sets state (empty when the process is gone) and ticks
  if [ -r "/proc/$$/stat" ]; then
    stat=$(cat "/proc/$pid/stat" 2>/dev/null)
    # after the last ")", for the program's name may hold spaces: field 3 is the state, field 22 the start
    state=${stat##*) } ticks=-
    case $state in ?*) ticks=$(printf '%s' "$state" | cut -d ' ' -f 20) ;; esac
  else state=$(ps -o stat= -p "$pid" 2>/dev/null) ticks=-
  fi
}
# The program has started when it has replaced our shell, whose command line is this one's or holds the token.
own=$(command_of "$$")
tries=0
while [ "$tries" -lt 200 ]; do
  look
  case $state in "" | Z* | X*) break ;; esac
  case $(command_of "$pid") in "" | "$own" | *"$token"*) ;; *) break ;; esac
  tries=$((tries + 1))
  [ "$tries" -lt 10 ] || sleep 0.05 2>/dev/null || sleep 1
done
case $state in
  "" | Z* | X*)  # over already: did it ever run?
    wait "$pid"
    case $? in 126 | 127) tail -n 25 -- "$log" >&2; exit 79 ;; esac ;;
esac
printf '%s %s %s\n' "$pid" "$ticks" "$started"
"""
