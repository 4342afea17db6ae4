"""The sh sources by which a load client lives detached on its host: claim, start, look, stop, remove.

POSIX sh; values come as ``$1 …``. They know one folder a load, whose files ``bench.py`` lists, and find the client's
process by pid and start time, so that a pid which was given to another process is never taken for it.
"""

from __future__ import annotations

ALIVE = r"""
alive() {  # $1 pid, $2 start ticks or -
  if [ -r "/proc/$$/stat" ]; then
    stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
    stat=${stat##*) }  # the program's name may hold spaces: go on after its closing bracket
    case $stat in "" | Z* | X*) return 1 ;; esac
    [ "$2" = - ] || [ "$(printf '%s' "$stat" | cut -d ' ' -f 20)" = "$2" ]
  else kill -0 "$1" 2>/dev/null
  fi
}
running() {  # $1 folder of a load; sets pid and ticks
  [ -d "$1/started" ] && [ ! -e "$1/exit" ] || return 1
  read -r pid ticks _ 2>/dev/null <"$1/process" && alive "$pid" "$ticks"
}
"""

CLAIM = (
    ALIVE
    + r"""
# $1 folder. An earlier load there is kept beside it, unless it still runs.
if running "$1"; then echo "process $pid still runs a load in $1" >&2; exit 75; fi
if [ -d "$1/started" ]; then mv -- "$1" "$1.before-$(date +%s)-$$" || exit 73; fi
mkdir -p -- "$1"
"""
)

WRAPPER = r"""
# $1 folder, then the client's argument vector.
run=$1
shift
mkdir -- "$run/started" 2>/dev/null || exit 0  # started already: the line was lost before we could be told
exec >"$run/client.log" 2>&1
ticks=-
if [ -r "/proc/$$/stat" ]; then
  stat=$(cat "/proc/$$/stat")
  ticks=$(printf '%s' "${stat##*) }" | cut -d ' ' -f 20)
fi
printf '%s %s %s\n' "$$" "$ticks" "$(date +%s)" >"$run/process.new" && mv -- "$run/process.new" "$run/process"
trap : TERM INT HUP  # stay until the client has put its result away, and tell how it ended
"$@"
code=$?
printf '%s\n' "$code" >"$run/exit.new" && mv -- "$run/exit.new" "$run/exit"
kill -TERM 0  # this process group: workers that a client left behind would disturb the next load
"""

LOOK = (
    ALIVE
    + r"""
# $1 folder, $2 progress file or empty, $3 lines of log. Writes: state, start, now, exit code; progress; log once ended.
state=none started=- code=-
if [ -d "$1/started" ]; then
  state=starting
  if [ -e "$1/process" ]; then
    read -r _ _ started <"$1/process"
    if running "$1"; then state=running
    else
      state=ended  # asked after the process was found gone, so it cannot come later
      [ -e "$1/exit" ] && read -r code <"$1/exit"
    fi
  fi
fi
printf '%s %s %s %s\n' "$state" "$started" "$(date +%s)" "$code"
if [ -n "$2" ] && [ -r "$2" ]; then tr '\n' ' ' <"$2"; fi
echo
[ "$state" != ended ] || tail -n "$3" -- "$1/client.log" 2>/dev/null || :
"""
)

STOP = (
    ALIVE
    + r"""
# $1 folder, $2 tenths of a second between TERM and KILL
mkdir -- "$1/started" 2>/dev/null && exit 0  # nothing had been started, and now nothing can be
tries=0
until [ -e "$1/process" ] || [ "$tries" -ge 20 ]; do tries=$((tries + 1)); sleep 0.1 2>/dev/null || sleep 1; done
running "$1" || exit 0
kill -TERM "-$pid" || exit 1
tries=0
while running "$1"; do
  [ "$tries" -ne "$2" ] || kill -KILL "-$pid"
  [ "$tries" -le "$(($2 + 50))" ] || { echo "process group $pid does not end" >&2; exit 75; }
  tries=$((tries + 1))
  sleep 0.1 2>/dev/null || sleep 1
done
"""
)

REMOVE = (
    ALIVE
    + r"""
# $1 folder
[ -d "$1" ] || exit 0
[ -d "$1/started" ] || { echo "$1 is not the folder of a load" >&2; exit 75; }
if running "$1"; then echo "process $pid still runs a load in $1" >&2; exit 75; fi
rm -rf -- "$1"
"""
)
