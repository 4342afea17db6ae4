# shellcheck shell=sh
# Functions are called through `each`, and the variables of the current file are set through eval; shellcheck sees neither:
# shellcheck disable=SC2154,SC2317,SC2329
# `a && b || c` is meant as "or when either failed":
# shellcheck disable=SC2015
# The side of orch that runs on the host: reads, replaces and restores target files, and holds the lease on them.
#
# Needs POSIX sh and coreutils. It is sent with every call and never installed. One call is one operation on all the
# files of a target:
#
#   stat PATH…
#   read PATH…
#   lock NONCE TTL_S POLL_S HOLDER ON_EXPIRY_BYTES PATH…
#   renew NONCE TTL_S PATH…
#   unlock NONCE PATH…
#   push NONCE TTL_S POLL_S FLOOR_MTIME_S HOLDER ON_RESTORE_BYTES {PATH EXPECTED_SHA NEW_SHA N_BYTES}…
#   revert NONCE|- FORCE(0|1) PATH…
#   watch NONCE POLL_S PATH…          (internal: the dead-man watcher)
#
# push takes the new files on standard input, one after the other, and then the on-restore script; lock takes only an
# on-expiry script.
# The answer begins with "orch-agent 1" and ends with "end"; without both lines there is no answer.
#
# Everything that is remembered lies beside the target, in DIR/.orch-NAME/ :
#   lease        nonce, holder, poll interval, then the paths of the whole target. Its mtime is its expiry, so renewing
#                it needs no free block.
#   journal      "pushing|pushed BASE NEW MTIME PREVIOUS" (digests); no journal means clean.
#   base         the file as it was before the first push: a hard link to it, so that the revert brings back the inode.
#   on-restore   of a push: what the watcher runs after it had to restore the file.
#   on-expiry    of a lock: what the watcher runs when the lease ends without having been given back.
#   watcher.*    an empty file; its name says which process watches for which nonce.
#   foreign.SHA  an edit by somebody else that a forced revert replaced; never removed by orch.
#   tmp.*        of an operation under way; its name says of which process.
# The folder is removed when the target is clean and nobody holds the lease.
#
# The mutex is flock on DIR, which needs no file. Where that does not work (no flock, NFS) it is the symbolic link
# DIR/.orch.mutex, whose text names its owner.

set -u
umask 077
LC_ALL=C
export LC_ALL
unset CDPATH

NEWLINE='
'
TAB='	'
OK=0 USAGE=64 TARGET=66 BUSY=70 WRITE=73 BROKEN=74 STALE=75 FOREIGN=76 LEASE=77 TRANSFER=78 UNRESTORED=79

# ---- tests can stop the agent at every named step; without these variables a step does nothing

step() { # ORCH_KILL, ORCH_STOP, ORCH_FAIL hold a step's name, or with the number of the file: rename, rename.2
    case ${ORCH_KILL:-} in "$1" | "$1.${file:-0}") kill -9 "$(exec sh -c 'echo "$PPID"')" ;; esac
    case ${ORCH_STOP:-} in "$1" | "$1.${file:-0}") kill -STOP "$(exec sh -c 'echo "$PPID"')" ;; esac
    case ${ORCH_FAIL:-} in "$1" | "$1.${file:-0}") return 1 ;; esac
    return 0
}

# ---- answers

say() { printf '%s %s\n' "$1" "$2"; }

fail() { # exit code, word, then pairs of key and value. Undoes what is half done, while the mutex is still held.
    if [ -n "$on_fail" ]; then
        undo=$on_fail on_fail=
        "$undo"
    fi
    [ -z "$trouble" ] || set -- "$UNRESTORED" unrestored path "$trouble" found "$trouble_found" wanted "$trouble_wanted" \
        base "$trouble_base" backup "$trouble_backup" because "$complaint"
    code=$1
    printf 'orch-agent 1\nerror %s\n' "$2"
    shift 2
    while [ $# -ge 2 ]; do
        say "$1" "$(printf '%s' "$2" | tr '\n' ' ')"
        shift 2
    done
    printf 'end\n'
    exit "$code"
}

usage() { fail "$USAGE" usage because "$1"; }

# ---- the host's own dialect: GNU, busybox, BSD

# Every process costs a millisecond, so what the shell can do itself it does; a function inside $(…) costs one more.

digest_of() { # sets digest; fails when the file cannot be read
    digest=$($hash 2>/dev/null <"$1") 2>/dev/null
    digest=${digest%% *}
    [ ${#digest} -eq 64 ]
}

facts_of() { # sets facts: size, mode, inode, links, mtime, ctime, uid:gid:user:group
    facts=$(stat -c '%s %a %i %h %Y %.9Z %u:%g:%U:%G' "$1" 2>/dev/null) && return
    [ -e "$1" ] && facts=$(stat -f '%z %Lp %i %l %m %Fc %u:%g:%Su:%Sg' "$1" 2>/dev/null)
}

split_facts() { # sets mode, inode, mtime, owner (uid:gid). No here-document: bash needs a writable /tmp for those.
    # shellcheck disable=SC2086 # splitting is wanted
    set -- $facts
    mode=$2 inode=$3 mtime=$5 owner=$7
    owner=${owner%":${owner#*:*:}"}
}

mtime_of() { # sets mtime
    facts_of "$1" && split_facts
}

nap() { sleep 0.05 2>/dev/null || sleep 1; }

is_number() { case $1 in '' | *[!0-9]*) return 1 ;; esac }

find_tools() {
    for hash in sha256sum 'shasum -a 256' 'openssl dgst -sha256 -r' ''; do
        command -v "${hash%% *}" >/dev/null 2>&1 && break
    done
    [ -n "$hash" ] || fail "$BROKEN" tools because 'none of sha256sum, shasum, openssl is installed'
    if command -v flock >/dev/null 2>&1; then has_flock=yes; else has_flock=no; fi
    # nohup only protects against a hangup, which is all that can be had where there is no setsid
    if command -v setsid >/dev/null 2>&1; then detach='setsid'; else detach='nohup'; fi
}

# ---- the files of this call, numbered from 1

resolve() { # path as asked; sets target (after every symbolic link), dir, name, state
    case $1 in *"$NEWLINE"*) fail "$USAGE" usage because 'a path with a line break' ;; esac
    case $1 in /*) ;; *) fail "$USAGE" usage because "not an absolute path: $1" ;; esac
    target=$1 hops=0
    while [ -h "$target" ]; do
        hops=$((hops + 1))
        [ "$hops" -le 40 ] || fail "$TARGET" target path "$1" reason 'a loop of symbolic links'
        link=$(readlink "$target")
        case $link in /*) target=$link ;; *) target=${target%/*}/$link ;; esac
    done
    name=${target##*/}
    dir=${target%/*}
    dir=$(cd -P "${dir:-/}" 2>/dev/null && pwd -P) || fail "$TARGET" target path "$1" reason \
        'its folder is missing, or this login may not enter it'
    dir=${dir%/}
    target=$dir/$name
    state=$dir/.orch-$name
    case $target in *"$NEWLINE"*) fail "$USAGE" usage because 'a path with a line break' ;; esac
}

add_file() { # path, expected digest, new digest, number of bytes
    resolve "$1"
    n_files=$((n_files + 1))
    for earlier in $files; do
        eval "[ \"\$target_$earlier\" != \"\$target\" ]" || fail "$USAGE" usage because "named twice: $target"
    done
    eval "asked_$n_files=\$1 target_$n_files=\$target dir_$n_files=\$dir name_$n_files=\$name state_$n_files=\$state
        expected_$n_files=\$2 new_$n_files=\$3 n_bytes_$n_files=\$4 offset_$n_files=\$total
        outcome_$n_files= previous_$n_files= mtime_$n_files= kept_$n_files= verdict_$n_files= is_new_lease_$n_files= is_first_$n_files="
    files="$files $n_files"
    total=$((total + $4))
}

use_file() { # makes file N the current one
    file=$1
    eval "asked=\$asked_$1 target=\$target_$1 dir=\$dir_$1 name=\$name_$1 state=\$state_$1
        expected=\$expected_$1 new=\$new_$1 n_bytes=\$n_bytes_$1 offset=\$offset_$1"
}

note() { eval "$1_$file=\$2"; }      # remembers something about the current file
noted() { eval "noted=\$$1_$file"; } # sets noted

each() { # runs a command for every file, until one fails
    for number in $files; do
        use_file "$number"
        "$@" || return
    done
}

forget_files() { n_files=0 files='' total=0; }

add_paths() {
    for path in "$@"; do add_file "$path" - - 0; done
    order_locks
}

order_locks() { # sets lock_order: one file of each folder, by the folder's name, so that two calls cannot deadlock
    lock_order='1 '
    [ "$n_files" -eq 1 ] || lock_order=$(each say_dir | sort | one_of_each_dir)
}

say_dir() { printf '%s%s%s\n' "$dir" "$TAB" "$file"; }

one_of_each_dir() {
    last_dir=-
    while IFS= read -r line; do
        [ "${line%"$TAB"*}" = "$last_dir" ] || printf '%s ' "${line##*"$TAB"}"
        last_dir=${line%"$TAB"*}
    done
}

# ---- the mutex: held for milliseconds, by folder

with_mutex() { hold "$lock_order" "$@"; }

hold() { # numbers of the files whose folders are still to be locked, then the command to run
    case $1 in
        '')
            shift
            "$@"
            return
            ;;
    esac
    use_file "${1%% *}"
    if [ "$has_flock" = yes ] && [ -r "${dir:-/}" ]; then
        hold_by_flock "$@"
        hold_status=$?
        [ "$flock_is" = unusable ] || return "$hold_status"
    fi
    hold_by_link "$@"
}

hold_by_flock() { # children inherit the lock on purpose: a mv that outlives this shell is still covered by it
    flock_is=unusable
    {
        wait_for_flock && {
            rest=${1#* }
            shift
            hold "$rest" "$@"
            hold_status=$?
            flock_is=held
            return "$hold_status"
        }
    } 9<"${dir:-/}"
}

wait_for_flock() { # fails where the file system has no such lock
    deadline=
    while :; do
        flock -n 9 2>/dev/null
        case $? in 0) return 0 ;; 1) ;; *) return 1 ;; esac
        if is_too_late; then
            [ "$may_write" = yes ] || return 1 # only looking: then without it
            fail "$BUSY" busy path "$asked" owner "another operation, in ${dir:-/}"
        fi
        nap
    done
}

is_too_late() { # 15 seconds after its first call with an empty deadline
    : "${deadline:=$(($(date +%s) + 15))}"
    [ "$(date +%s)" -ge "$deadline" ]
}

hold_by_link() {
    if [ "$may_write" = yes ]; then take_link; fi
    rest=${1#* }
    shift
    hold "$rest" "$@"
    hold_status=$?
    [ -z "$links" ] || release_links
    return "$hold_status"
}

# ---- what is there

read_journal() { # sets phase, base, pushed, published, before
    phase=clean base=- pushed=- published=0 before=-
    [ -f "$state/journal" ] || return 0
    read -r phase base pushed published before <"$state/journal" || :
    case $phase in
        pushing | pushed) ;;
        *) fail "$BROKEN" damaged path "$asked" because "$state/journal cannot be read" ;;
    esac
}

look() { # sets found: digest of the target, "-" when there is none, "?" when it is no readable file
    found=-
    if [ -f "$target" ] && digest_of "$target"; then
        found=$digest
    elif [ -e "$target" ] || [ -h "$target" ]; then
        found='?'
    fi
}

require_file() {
    [ -e "$target" ] || fail "$TARGET" target path "$asked" reason missing
    [ ! -d "$target" ] || fail "$TARGET" target path "$asked" reason 'a directory'
    [ -f "$target" ] || fail "$TARGET" target path "$asked" reason 'not a regular file'
    [ -r "$target" ] || fail "$TARGET" target path "$asked" reason 'not readable by this login'
}

allow_missing() { [ ! -e "$target" ] || require_file; }

read_lease() { # sets lease_nonce, lease_holder, lease_poll, lease_expiry; fails when there is none
    lease_nonce='' lease_holder='' lease_poll=''
    {
        IFS= read -r lease_nonce && IFS= read -r lease_holder && IFS= read -r lease_poll
    } 2>/dev/null <"$state/lease" || return 1
    mtime_of "$state/lease" || return 1
    lease_expiry=$mtime
} 2>/dev/null

describe() {
    look
    say file "$asked"
    say real "$target"
    say digest "$found"
    facts_of "$target" || facts=-
    say facts "$facts"
    read_journal
    say journal "$phase $base $pushed $published $before"
    if read_lease; then
        say lease "$lease_nonce $lease_expiry $lease_poll"
        say holder "$lease_holder"
    fi
    for key in outcome previous mtime kept; do
        noted "$key"
        [ -z "$noted" ] || say "$key" "$noted"
    done
}

answer() {
    printf 'orch-agent 1\n'
    say now "$(date +%s)"
    each describe
    printf 'end\n'
}

observe() {
    may_write=no # where only the symbolic link would do, look without it
    with_mutex answer
}

answer_with_bytes() { # without the mutex, for the line may be slow; the caller compares digests
    printf 'orch-agent 1\n'
    say now "$(date +%s)"
    each describe
    printf 'bytes\n'
    each cat_target
    printf '\nend\n'
}

cat_target() { cat "$target"; }

# ==== only to change things: not sent with stat and read

# ---- who is alive: PID.START.BOOT.HOST is an identity that a reused pid cannot fake

start_of() { # pid; sets start ("-" where there is no /proc); fails when there is no such process
    start=-
    if [ ! -r /proc/self/stat ]; then
        kill -0 "$1" 2>/dev/null
        return
    fi
    { read -r stat_line <"/proc/$1/stat"; } 2>/dev/null || return 1
    # the program's name may hold spaces; after its last ")" come the fields 3 (state) … 22 (start)
    # shellcheck disable=SC2086 # splitting is wanted
    set -- ${stat_line##*) }
    case $1 in Z | X) return 1 ;; esac
    start=${20}
}

identify() { # sets boot, host, me
    boot=0 host=
    { read -r boot </proc/sys/kernel/random/boot_id; } 2>/dev/null
    boot=${boot%%-*}
    { read -r host </proc/sys/kernel/hostname; } 2>/dev/null || host=$(uname -n)
    start_of "$$" || :
    me=$$.$start.$boot.$host
}

is_alive() { # identity. Of another host (a shared file system) nothing is known: alive.
    rest=${1#*.*.}
    [ "${rest#*.}" = "$host" ] || return 0
    [ "${rest%%.*}" = "$boot" ] || return 1
    started=${1#*.}
    start_of "${1%%.*}" && [ "$start" = "${started%%.*}" ]
}

# ---- writing

attempt() { # runs a command and keeps what it complains about
    complaint=$("$@" 2>&1 >/dev/null)
}

cannot_write() { fail "$WRITE" write path "$asked" doing "$1" n_replaced "$n_committed" because "$complaint"; }

remember_trouble() { # the current file could not be restored: the loudest thing there is to say
    trouble=$target trouble_found=$found trouble_wanted=$base trouble_base=$state/base trouble_backup=lost
    if digest_of "$state/base" && [ "$digest" = "$base" ]; then trouble_backup=whole; fi
}

set_mtime() { # file, seconds since the epoch; proved by reading it back
    touch -d "@$2" "$1" 2>/dev/null || touch -t "$(date -r "$2" +%Y%m%d%H%M.%S 2>/dev/null)" "$1" 2>/dev/null
    mtime_of "$1" && [ "$mtime" = "$2" ]
}

to_disk() { # file or folder; an old sync knows no names and writes everything
    sync "$1" 2>/dev/null || sync
}

drop_bytecode() { # Python trusts whole-second mtime and size; with its cache gone it has to read the source
    case $name in *.py) rm -f "$dir/__pycache__/${name%.py}".*.pyc 2>/dev/null ;; esac
    return 0
}

# ---- the mutex where flock does not work

take_link() {
    mutex=$dir/.orch.mutex
    deadline=
    until ln -s "$me" "$mutex" 2>/dev/null; do
        owner=$(readlink "$mutex" 2>/dev/null)
        if [ -n "$owner" ]; then
            is_alive "$owner" || remove_dead "$mutex" "$owner"
        elif [ ! -w "${dir:-/}" ]; then
            complaint='this login may not write the folder, or it is read-only'
            cannot_write "lock $dir"
        fi
        ! is_too_late || fail "$BUSY" busy path "$asked" owner "${owner:-somebody} ($mutex)"
        nap
    done
    links="$links $file"
}

remove_dead() { # link, owner as seen. Only inside the second link may a dead one be removed, so nobody's live one is.
    ln -s "$me" "$1.steal" 2>/dev/null || {
        thief=$(readlink "$1.steal" 2>/dev/null)
        [ -z "$thief" ] || is_alive "$thief" || rm -f "$1.steal"
        return 0
    }
    [ "$(readlink "$1" 2>/dev/null)" != "$2" ] || rm -f "$1"
    rm -f "$1.steal"
}

release_links() {
    for number in $links; do
        eval "mutex=\$dir_$number/.orch.mutex"
        [ "$(readlink "$mutex" 2>/dev/null)" != "$me" ] || rm -f "$mutex"
    done
    links=
}

# ---- the state folder

make_state() { [ -d "$state" ] || attempt make_folder || [ -d "$state" ]; }

make_folder() { # others may look (who holds the lease), not write
    umask 022
    mkdir "$state"
}

write_journal() { # phase base pushed published before
    journal_draft=$state/tmp.journal.$me
    (umask 022 && printf '%s\n' "$*" >"$journal_draft") 2>/dev/null || return
    # "pushed" says no more than the digests do, and need not survive a power cut
    [ "$1" = pushed ] || to_disk "$journal_draft"
    read -r written <"$journal_draft" && [ "$written" = "$*" ] && attempt mv -f "$journal_draft" "$state/journal" || return
    [ "$1" = pushed ] || to_disk "$state"
}

remove_empty_state() {
    for left in "$state"/*; do [ ! -e "$left" ] || return 0; done
    rmdir "$state" 2>/dev/null
    return 0
}

tidy() { # under the mutex: removes what dead processes left, and everything when clean and not leased
    for leftover in "$state"/tmp.*; do
        identity=${leftover##*/tmp.}
        [ ! -e "$leftover" ] || is_alive "${identity#*.}" || rm -f "$leftover"
    done
    [ -f "$state/lease" ] || rm -f "$state/on-restore" "$state/on-expiry" "$state"/watcher.* 2>/dev/null
    [ -f "$state/lease" ] || [ -f "$state/journal" ] || [ ! -f "$state/base" ] || rm -f "$state/base" 2>/dev/null
    remove_empty_state
}

drop_own() { # what this call has not finished, but for the file that kept names
    for left in "$state"/tmp.*."$me"; do
        [ ! -e "$left" ] || [ "$left" = "$kept" ] || rm -f "$left" 2>/dev/null
    done
    remove_empty_state
}

leave() {
    each drop_own
    release_links
}

# ---- the lease

is_live() { [ "$(date +%s)" -lt "$lease_expiry" ]; }

refuse_if_held() { # fails when somebody else holds a live lease
    if read_lease && [ "$lease_nonce" != "$nonce" ] && is_live; then
        fail "$LEASE" held path "$asked" holder "$lease_holder" remaining_s "$((lease_expiry - $(date +%s)))" \
            nonce "$lease_nonce"
    fi
}

require_lease() { # the fence: no write without it
    read_lease && [ "$lease_nonce" = "$nonce" ] && is_live || fail "$LEASE" lost path "$asked"
}

write_lease() { # for all files of this call
    lease_draft=$state/tmp.lease.$me
    tries=0
    until (umask 022 && {
        printf '%s\n' "$nonce" "$holder" "$poll"
        for number in $files; do
            use_file "$number"
            printf '%s\n' "$target"
        done
    } >"$lease_draft") 2>/dev/null; do
        tries=$((tries + 1))
        { [ "$tries" -lt 3 ] && make_state; } || cannot_write 'write the lease'
    done
    n_lines=0
    while IFS= read -r _; do n_lines=$((n_lines + 1)); done <"$lease_draft"
    [ "$n_lines" -eq "$((n_files + 3))" ] && set_mtime "$lease_draft" "$expiry" &&
        attempt mv -f "$lease_draft" "$state/lease" || cannot_write 'write the lease'
}

take_lease() { # new, or renewed when it is ours; 3 when somebody else's expired one has to be ended first
    refuse_if_held
    if [ -n "$lease_nonce" ]; then
        [ "$lease_nonce" = "$nonce" ] || return 3
    else
        make_state || cannot_write "make $state"
        note is_new_lease yes
    fi
    write_lease
    step lease || cannot_write 'write the lease'
}

drop_new_lease() { # a call that achieved nothing leaves nothing; what could not be restored stays watched
    noted is_new_lease
    [ -z "$noted" ] || [ -f "$state/journal" ] || {
        rm -f "$state/lease"
        end_watchers
    }
}

give_up_leases() {
    each drop_own
    each drop_new_lease
    each tidy
}

take_leases() { # under the mutex
    on_fail=give_up_leases
    each take_lease
    take_status=$?
    on_fail=
    return "$take_status"
}

acquire() { # live for all files, after ending expired ones of others
    tries=0
    expiry=$(($(date +%s) + ttl))
    each end_expired
    until with_mutex take_leases; do
        tries=$((tries + 1))
        [ "$tries" -lt 5 ] || fail "$BUSY" busy path "$asked" owner 'leases that keep expiring'
        each end_expired
    done
}

end_expired() { # first contact after a holder and its watcher died: does what the watcher would have done
    read_lease && [ "$lease_nonce" != "$nonce" ] && ! is_live || return 0
    (
        kept=${received:-} # what this push has received is still needed
        trap leave EXIT
        take_nonce "$lease_nonce"
        lease_file=$state/lease
        forget_files
        add_lease_paths "$lease_file"
        [ -z "$files" ] || expire_group || refuse_unexpired
    ) || exit
}

add_lease_paths() { # lease file; its lines from the fourth are paths. A folder that is gone has nothing to restore.
    n_line=0
    while IFS= read -r line; do
        n_line=$((n_line + 1))
        [ "$n_line" -le 3 ] || [ ! -d "${line%/*}" ] || add_file "$line" - - 0
    done <"$1"
    order_locks
}

refuse_unexpired() {
    [ "$expire_status" -ne "$FOREIGN" ] || fail "$FOREIGN" foreign path "$foreign_path" found "$foreign_found"
    fail "$WRITE" write path "$asked" doing 'restore what an expired lease left' n_replaced 0 \
        because "$complaint"
}

# ---- the dead-man watcher

has_watcher() { # for this nonce and file
    for mark in "$state/watcher.$nonce".*; do
        [ -e "$mark" ] || continue
        is_alive "${mark##*"/watcher.$nonce."}" && return 0
        rm -f "$mark"
    done
    return 1
}

mark_watcher() { # identity; an empty file, so that a full disk does not matter
    true >"$state/watcher.$nonce.$1"
} 2>/dev/null

ensure_watcher() { # not under the mutex: the watcher must not inherit its descriptor
    each has_watcher && return
    [ -n "${ORCH_SOURCE:-}" ] || ORCH_SOURCE=$(cat "$0")
    set --
    for number in $files; do
        use_file "$number"
        set -- "$@" "$target"
    done
    # shellcheck disable=SC2016 # expanded by the new shell, so that no command line carries the whole script
    ORCH_SOURCE=$ORCH_SOURCE "$detach" /bin/sh -c 'eval "$ORCH_SOURCE"' orch-watch watch "$nonce" "$poll" "$@" \
        </dev/null >/dev/null 2>&1 &
    watcher=$!
    start_of "$watcher" || fail "$BROKEN" watcher because 'the dead-man watcher did not start'
    each mark_watcher "$watcher.$start.$boot.$host" || :
}

end_watchers() { # of the current file, once its lease is gone
    for mark in "$state"/watcher.*; do
        [ -e "$mark" ] || continue
        identity=${mark##*/watcher.}
        identity=${identity#*.}
        case $identity in
            "$$".*) ;;
            *.-.*) ;; # without /proc a reused pid cannot be told: the watcher ends by itself
            *) [ "${identity#*.*.*.}" = "$host" ] && is_alive "$identity" && kill_group KILL "${identity%%.*}" ;; # told, it would restore
        esac
        rm -f "$mark"
    done
}

kill_group() { kill -s "$1" -- "-$2" 2>/dev/null || kill -s "$1" "$2" 2>/dev/null || :; }

look_at_lease() {
    read_lease && [ "$lease_nonce" = "$nonce" ] || return 0
    is_ours=yes
    is_live || is_over=yes
}

doze() { # a signal that is caught ends the wait; one that came just before it, too
    sleep "$1" &
    [ "$is_told" = yes ] || ! wait "$!" || return 0
    kill "$!" 2>/dev/null || :
    [ "$is_told" = yes ] || sleep 1 # no such fraction of a second here, or no process left
}

watch() { # until the lease is gone or over, or the watcher is told to end
    unset ORCH_SOURCE
    cd / || exit
    trap - HUP INT
    trap 'is_told=yes' TERM # the host shuts down, its batch job is cancelled: there may be no later
    while :; do
        doze "$poll"
        is_ours=no is_over=$is_told
        each look_at_lease
        [ "$is_ours" = yes ] || exit 0
        [ "$is_over" = yes ] || continue
        (
            trap leave EXIT
            expire_group
        )
        case $? in "$OK" | "$FOREIGN") exit ;; esac # anything else may pass (a full disk, a stuck operation): again
        each drop_own # of a child that was killed, which ran no trap
        [ "$is_told" = no ] || sleep 1
    done
}

expire() { # under the mutex: restores every file whose lease of this nonce is over
    is_restored=no expire_status=0 foreign_path='' foreign_found=''
    each expire_file
    each take_script
    each tidy
    return "$expire_status"
}

expire_group() { # and then runs the stored script, for which no mutex may be held: the engine would inherit it
    script=
    with_mutex expire
    group_status=$?
    [ -z "$script" ] || run_script
    return "$group_status"
}

expire_file() {
    read_lease && [ "$lease_nonce" = "$nonce" ] || return 0
    [ "$is_told" = yes ] || ! is_live || return 0
    read_journal
    if [ "$phase" != clean ]; then
        judge
        case $verdict in
            foreign)
                expire_status=$FOREIGN foreign_path=$target foreign_found=$found
                return 0 # the other files are restored all the same
                ;;
            lost)
                expire_status=$UNRESTORED
                remember_trouble
                return 0
                ;;
        esac
        restore || {
            expire_status=$WRITE
            remember_trouble
            return 0
        }
        is_restored=yes
    fi
    rm -f "$state/lease"
    step expire-lease || :
}

take_script() { # sets script to a name that tidy leaves alone. Only our own: it would run with this login's rights.
    [ ! -f "$state/lease" ] || return 0
    for stored in "$state/on-restore" "$state/on-expiry"; do
        case $stored:$is_restored in *on-restore:no) continue ;; esac
        mtime_of "$stored" && [ "${owner%%:*}" = "$(id -u)" ] || continue
        script=$state/tmp.script.$me
        mv -f "$stored" "$script"
    done
}

run_script() { # detached. Read before it runs, so that its file can go and no command line shows what is in it.
    {
        # shellcheck disable=SC2016 # expanded by the new shell
        "$detach" /bin/sh -c 'unset ORCH_SOURCE; cd /; script=$(cat); exec </dev/null; eval "$script"' orch-script \
            <&8 8<&- >/dev/null 2>&1 &
    } 8<"$script"
    rm -f "$script"
}

# ---- restoring: needs no free block, for the disk may be full

judge() { # sets verdict: whole (nothing to do), ours, foreign, lost (no base to restore from)
    look
    verdict=ours
    if [ "$found" = "$base" ]; then
        is_same_inode && verdict=whole
    elif [ "$found" != "$pushed" ] && [ "$found" != "$before" ] && [ "$found" != - ]; then
        verdict=foreign
    fi
    [ "$verdict" = whole ] || { digest_of "$state/base" && [ "$digest" = "$base" ]; } || {
        if [ "$found" = "$base" ]; then verdict=whole; else verdict=lost; fi
    }
}

is_same_inode() {
    facts_of "$state/base" && split_facts || return 1
    base_inode=$inode
    facts_of "$target" && split_facts && [ "$inode" = "$base_inode" ]
}

restore() { # after judge; leaves the target as it was before the first push, inode and mtime too
    [ "$verdict" = whole ] || put_back || return
    look
    [ "$found" = "$base" ] || return 1
    step restore-verify || return
    rm -f "$state/journal"
    step restore-journal || return
    keep_damaged_base
    rm -f "$state/base"
    step restore-base || return
    note outcome restored
}

put_back() {
    back=$state/tmp.back.$me
    rm -f "$back"
    step restore-link || return
    ln "$state/base" "$back" 2>/dev/null || back=$state/base # no hard links here: the base itself moves
    step restore-rename || return
    attempt mv -f "$back" "$target" || return
    step restore-sync || return
    to_disk "${dir:-/}"
    drop_bytecode
    step restore-bytecode
}

keep_damaged_base() { # somebody wrote into the old file after the push: that edit is kept too
    [ -f "$state/base" ] && digest_of "$state/base" && [ "$digest" != "$base" ] || return 0
    mv -f "$state/base" "$state/foreign.$digest" && note kept "$state/foreign.$digest"
}

keep_foreign() { # a link needs no block; no restore without it
    [ "$found" != '?' ] || return 1
    foreign=$state/foreign.$found
    rm -f "$foreign"
    ln "$target" "$foreign" 2>/dev/null || attempt cp -p "$target" "$foreign" || return
    digest_of "$foreign" && [ "$digest" = "$found" ] || return
    note kept "$foreign"
    step restore-foreign
}

# ---- push: stage all, then commit all, then verify all

receive() { # everything that comes, before any lock: the line may be slow
    use_file 1
    [ "$((total + script_bytes))" -gt 0 ] || return 0
    received=$state/tmp.receive-$nonce.$me
    tries=0
    until make_state && true >"$received"; do
        tries=$((tries + 1))
        [ ! -d "$state" ] || complaint="no file can be made in $state"
        [ "$tries" -lt 5 ] || cannot_write "write in $dir"
    done 2>/dev/null
    step receive || cannot_write 'receive the new content'
    complaint=$(cat 2>&1 >"$received") || cannot_write 'receive the new content'
    size=$(wc -c <"$received")
    [ "$size" -eq "$((total + script_bytes))" ] ||
        fail "$TRANSFER" transfer path "$asked" because "received $((size)) bytes of $((total + script_bytes))"
    [ "$total" -eq 0 ] || each check_piece
    step transfer || cannot_write 'receive the new content'
}

piece() { # offset, number of bytes: that part of what was received
    [ "$2" -eq 0 ] || tail -c "+$(($1 + 1))" "$received" | head -c "$2"
}

check_piece() {
    digest=$(piece "$offset" "$n_bytes" | $hash)
    digest=${digest%% *}
    [ "$digest" = "$new" ] || fail "$TRANSFER" transfer path "$asked" because "received $digest, sent $new"
}

stage() { # everything that can fail for lack of space or rights, without touching the target
    require_file
    read_journal
    look
    if [ "$phase" != clean ] && [ "$found" = "$new" ] && [ "$pushed" = "$new" ]; then
        note outcome already
        note previous "$before"
        note mtime "$published"
        return
    fi
    refuse_stale
    if [ "$phase" = clean ]; then keep_base; else require_base; fi
    write_draft
    step stage || cannot_write 'write the new content'
}

refuse_stale() {
    [ "$found" = "$expected" ] || fail "$STALE" stale path "$asked" found "$found" expected "$expected"
    [ "$phase" = clean ] && return
    case $found in
        "$base" | "$pushed" | "$before") ;;
        *) fail "$FOREIGN" foreign path "$asked" found "$found" ;; # pushing over it, the revert would lose it
    esac
}

keep_base() {
    rm -f "$state/base"
    step stage-base || cannot_write 'keep the original'
    ln "$target" "$state/base" 2>/dev/null || copy_base || cannot_write 'keep the original'
    digest_of "$state/base" && [ "$digest" = "$expected" ] ||
        fail "$STALE" stale path "$asked" found "${digest:--}" expected "$expected"
    note is_first yes
}

require_base() { # no further push where a revert would already fail
    digest_of "$state/base" && [ "$digest" = "$base" ] && return
    remember_trouble
    fail "$UNRESTORED" unrestored
}

copy_base() { # no hard links here, or not for a file of somebody else: then the revert must still give it back to its owner
    attempt cp -p "$target" "$state/base" || return
    mtime_of "$target"
    target_owner=$owner
    mtime_of "$state/base"
    complaint="the backup would belong to $owner instead of $target_owner: log in as the file's owner"
    [ "$owner" = "$target_owner" ]
}

write_draft() { # cp -p first: owner, mode and access list come from the target
    draft=$state/tmp.new.$me
    step stage-copy || cannot_write 'write the new content'
    attempt cp -p "$target" "$draft" || cannot_write 'write the new content'
    mtime_of "$target"
    is_writable=yes
    [ -w "$draft" ] || is_writable=no
    [ "$is_writable" = yes ] || chmod u+w "$draft"
    attempt piece_to "$draft" || cannot_write 'write the new content'
    [ "$is_writable" = yes ] || chmod "$mode" "$draft"
    choose_mtime
    set_mtime "$draft" "$chosen" || cannot_write "set the time of change to $chosen"
    note mtime "$chosen"
    step stage-sync || cannot_write 'write the new content'
    to_disk "$draft"
    digest_of "$draft" && [ "$digest" = "$new" ] || cannot_write 'write the new content'
}

piece_to() { piece "$offset" "$n_bytes" >"$1"; }

choose_mtime() { # after mtime_of the target; sets chosen: strictly later than any that Python can have seen
    newest=$floor
    [ "$published" -le "$newest" ] || newest=$published
    [ "$mtime" -le "$newest" ] || newest=$mtime
    chosen=$(date +%s)
    [ "$chosen" -gt "$newest" ] || chosen=$((newest + 1))
}

store_script() { # on-restore or on-expiry, with the first file; it came after the files
    use_file 1
    rm -f "$state/on-expiry" "$state/$1" # a lock leaves the on-restore script of an earlier push alone
    [ "$script_bytes" -gt 0 ] || return 0
    script_draft=$state/tmp.script.$me
    attempt script_to "$script_draft" && [ "$(wc -c <"$script_draft")" -eq "$script_bytes" ] &&
        attempt mv -f "$script_draft" "$state/$1" || cannot_write "write the $1 script"
    step script || cannot_write "write the $1 script"
}

script_to() { piece "$total" "$script_bytes" >"$1"; }

commit() {
    noted outcome
    [ "$noted" != already ] || return 0
    read_journal
    look
    [ "$found" = "$expected" ] || fail "$STALE" stale path "$asked" found "$found" expected "$expected"
    [ "$phase" != clean ] || base=$found
    noted mtime
    step commit || cannot_write 'write the journal'
    write_journal pushing "$base" "$new" "$noted" "$found" || cannot_write 'write the journal'
    step journal || cannot_write 'replace the file'
    attempt mv -f "$state/tmp.new.$me" "$target" || refuse_rename
    n_committed=$((n_committed + 1))
    note outcome pushed
    note previous "$found"
    step rename || cannot_write 'replace the file'
    to_disk "${dir:-/}"
    step sync || cannot_write 'replace the file'
    drop_bytecode
    step bytecode || cannot_write 'replace the file'
}

refuse_rename() { # the digest decides, not the exit code of mv
    look
    [ "$found" = "$expected" ] || n_committed=$((n_committed + 1))
    cannot_write 'replace the file'
}

verify() {
    step verify || cannot_write 'verify the new content'
    look
    complaint="found $found right after it was written"
    [ "$found" = "$new" ] || cannot_write 'verify the new content'
}

refuse_late_edit() { # somebody wrote into the old file, through a descriptor opened before the push: give it back
    noted is_first
    [ -n "$noted" ] || return 0
    digest_of "$state/base" && [ "$digest" != "$expected" ] || return 0
    edit=$digest
    attempt mv -f "$state/base" "$target" && rm -f "$state/journal"
    fail "$STALE" stale path "$asked" found "$edit" expected "$expected"
}

acknowledge() { # best effort: the digests tell the same
    read_journal
    [ "$phase" = pushed ] || write_journal pushed "$base" "$pushed" "$published" "$before" || :
    step journal-pushed || :
}

abandon() { # one file failed: the target as a whole goes back, and what this call began is removed
    each undo_file
    each drop_own
    each drop_new_lease
    each tidy
}

undo_file() {
    read_journal
    [ "$phase" != clean ] || return 0
    if [ "$n_committed" -eq 0 ]; then # nothing of this call is live: a first push is forgotten, an earlier one stays
        noted is_first
        [ -z "$noted" ] || rm -f "$state/journal"
        return 0
    fi
    judge
    case $verdict in
        whole | ours) restore || remember_trouble ;;
        *) remember_trouble ;;
    esac
}

push_all() { # under the mutex
    on_fail=abandon
    each require_lease
    each stage
    store_script on-restore
    each commit
    each verify
    each refuse_late_edit
    on_fail=
    each acknowledge
    each drop_own
    answer
    step answer
}

# ---- revert

has_no_trace() { [ ! -d "$state" ] && [ ! -h "$dir/.orch.mutex" ]; }

revert_all() { # under the mutex
    [ "$force" = 1 ] || each refuse_if_held
    [ "$nonce" = - ] || each end_unfinished
    each plan_restore
    each carry_out
    [ -z "$trouble" ] || fail "$UNRESTORED" unrestored
    each drop_lease
    each tidy
    answer
    step answer
}

end_unfinished() { # a push of this nonce whose caller is gone, and which still waits to write
    for received in "$state/tmp.receive-$nonce".*; do
        identity=${received##*"/tmp.receive-$nonce."}
        [ -e "$received" ] && [ "${identity#*.*.*.}" = "$host" ] && is_alive "$identity" || continue
        kill_group TERM "${identity%%.*}"
        rm -f "$received"
    done
}

plan_restore() { # refuses before anything is touched
    read_journal
    verdict=clean
    [ "$phase" = clean ] || judge
    [ "$verdict" != foreign ] || [ "$force" = 1 ] || fail "$FOREIGN" foreign path "$asked" found "$found"
    note verdict "$verdict"
    step restore-plan || remember_trouble
}

carry_out() { # goes on with the other files when one fails
    noted verdict
    verdict=$noted
    [ "$verdict" != clean ] || return 0
    read_journal
    look
    case $verdict in
        lost) remember_trouble ;;
        foreign) { keep_foreign && restore; } || remember_trouble ;;
        *) restore || remember_trouble ;;
    esac
}

drop_lease() {
    rm -f "$state/lease"
    step restore-lease || :
    end_watchers
}

# ---- the operations that change things

renew_all() {
    each require_own_lease
    each renew_lease
}

require_own_lease() { # one that is over but not yet ended is as good: nothing has happened to the file
    read_lease && [ "$lease_nonce" = "$nonce" ] || fail "$LEASE" lost path "$asked"
}

renew_lease() { set_mtime "$state/lease" "$expiry" || cannot_write 'renew the lease'; }

unlock_all() {
    each unlock_file
    answer
}

unlock_file() {
    if read_lease && [ "$lease_nonce" = "$nonce" ]; then
        rm -f "$state/lease"
        end_watchers
    fi
    tidy
}

take_nonce() { case $1 in '' | *[!A-Za-z0-9]*) usage "not a nonce: $1" ;; *) nonce=$1 ;; esac }

take_seconds() { # ttl, poll
    is_number "$1" || usage "not whole seconds: $1"
    case $2 in '' | *[!0-9.]*) usage "not seconds: $2" ;; esac
    ttl=$1 poll=$2
}

take_pushed_files() {
    while [ $# -ge 4 ]; do
        is_number "$4" || usage "not a size: $4"
        add_file "$1" "$2" "$3" "$4"
        shift 4
    done
    [ $# -eq 0 ] || usage 'push needs four words for each file'
    order_locks
}

do_lock() { # nonce ttl poll holder on_expiry_bytes path…
    take_nonce "$1"
    take_seconds "$2" "$3"
    is_number "$5" || usage "not a number: $5"
    holder=$4 script_bytes=$5
    shift 5
    add_paths "$@"
    each require_file
    receive
    acquire
    ensure_watcher
    with_mutex finish_lock
}

finish_lock() {
    each require_lease
    store_script on-expiry
    each drop_own
    answer
}

do_renew() { # nonce ttl path…
    take_nonce "$1"
    take_seconds "$2" 1
    shift 2
    add_paths "$@"
    each require_own_lease
    expiry=$(($(date +%s) + ttl))
    with_mutex renew_all
    poll=$lease_poll
    ensure_watcher
    answer
}

do_unlock() { # nonce path…
    take_nonce "$1"
    shift
    add_paths "$@"
    if each has_no_trace; then answer; else with_mutex unlock_all; fi
}

do_push() { # nonce ttl poll floor holder script_bytes {path expected new size}…
    take_nonce "$1"
    take_seconds "$2" "$3"
    is_number "$4" && is_number "$6" || usage "not a number: $4 $6"
    floor=$4 holder=$5 script_bytes=$6
    shift 6
    take_pushed_files "$@"
    each require_file
    receive
    acquire
    ensure_watcher
    step watcher
    with_mutex push_all
}

do_revert() { # nonce|- force path…
    nonce=$1 force=$2
    [ "$nonce" = - ] || take_nonce "$1"
    shift 2
    add_paths "$@"
    if each has_no_trace; then answer; else with_mutex revert_all; fi
}

do_watch() { # nonce poll path…
    take_nonce "$1"
    take_seconds 0 "$2"
    shift 2
    add_paths "$@"
    watch
}

begin_change() {
    trap leave EXIT
    trap 'exit 74' HUP INT TERM
    identify
}

# ==== always

main() {
    on_fail='' trouble='' complaint='' links='' kept='' may_write=yes n_committed=0 is_told=no
    forget_files
    find_tools
    operation=${1:-none}
    shift || :
    case $operation:$# in
        stat:0 | read:0 | lock:[0-5] | renew:[0-2] | unlock:[01] | push:[0-9] | revert:[0-2] | watch:[0-2])
            usage "too few words for $operation"
            ;;
    esac
    case $operation in
        stat) add_paths "$@" && each allow_missing && observe ;;
        read) add_paths "$@" && each require_file && answer_with_bytes ;;
        lock | renew | unlock | push | revert | watch) begin_change && "do_$operation" "$@" ;;
        *) usage "no such operation: $operation" ;;
    esac
    exit "$OK"
}

main "$@"
