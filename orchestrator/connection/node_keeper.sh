#!/bin/sh
# The keeper of a node: the batch job through which orch works on a node that Slurm has given it. POSIX sh.
#
#   node_keeper.sh IDLE_S          (Slurm sets SLURM_JOB_ID)
#
# A step of `srun` ends with everything that it started. So a step only hands its script over here and takes the
# answer back, and what the script detaches (a watcher, an engine, a load) belongs to the batch job. All lies on the
# node itself, in <folder>/ = /tmp/orch-node-UID-JOB:
#
#   begun          the keeper's pid; made last when it is ready
#   requests/N     a script and its input, as it came; appears whole
#   taken/N        the same while it runs
#   answers/N.out  N.err   what it wrote;   answers/N.done   appears when both are whole
#
# Nobody asks, nothing runs and no watcher holds a file for IDLE_S seconds: the job ends, for a node costs money.
# Told to end (scancel, the time limit), it waits until the watchers have restored what they hold.

idle_s=$1
folder=/tmp/orch-node-$(id -u)-$SLURM_JOB_ID
is_ending=no

main() {
    umask 077
    rm -rf "$folder" # left by a node that went down: a job has one keeper, and nobody can remove somebody else's
    mkdir "$folder" || exit 1 # somebody else's folder of this name is no place for us
    mkdir "$folder/requests" "$folder/taken" "$folder/answers" || exit 1
    trap 'is_ending=yes' TERM INT HUP
    trap 'rm -rf "$folder"' EXIT
    echo "$$" >"$folder/begun.new" && mv "$folder/begun.new" "$folder/begun" || exit 1
    echo "orch keeps $(uname -n) as job $SLURM_JOB_ID; it is given back after $idle_s s without work"
    now
    last_s=$now_s pause=0.05
    while [ "$is_ending" = no ]; do
        now
        if take_requests; then
            last_s=$now_s pause=0.05
        elif [ $((now_s - last_s)) -ge 5 ]; then
            pause=0.2 # a measurement may be under way: look less often
            is_idle && break
        fi
        sleep "$pause" & # a signal is taken at once while the shell waits, and only then
        wait "$!"
    done
    await_watchers
    if [ "$is_ending" = yes ]; then echo 'told to end'; else echo "without work for $idle_s s"; fi
}

now() { now_s=$(date +%s); }

take_requests() { # 0 when there was one
    found=1
    for request in "$folder"/requests/*; do
        [ -f "$request" ] || continue
        number=${request##*/}
        mv "$request" "$folder/taken/$number" || continue
        found=0
        answer "$number" &
    done
    return "$found"
}

answer() { # runs a request; its streams are whole before the mark says so
    trap - TERM INT HUP EXIT
    # shellcheck disable=SC2016 # expanded by the new shell
    /bin/sh -c 'IFS= read -r s; eval "$(printf %b "$s")"' orch \
        <"$folder/taken/$1" >"$folder/answers/$1.out" 2>"$folder/answers/$1.err"
    rm -f "$folder/taken/$1"
    true >"$folder/answers/$1.done"
}

is_idle() {
    [ $((now_s - last_s)) -ge "$idle_s" ] || return 1
    for request in "$folder"/taken/*; do
        [ ! -f "$request" ] || return 1
    done
    ! each_watcher true
}

each_watcher() { # calls $1 with the pid of each watcher that this job started; 1 when there is none
    found=1
    # shellcheck disable=SC2013 # no such name holds a blank
    for command in $(grep -l -s -a 'orch-watc[h]' /proc/[0-9]*/cmdline); do
        process=${command%/cmdline}
        tr '\0' '\n' <"$process/environ" 2>/dev/null | grep -q -x "SLURM_JOB_ID=$SLURM_JOB_ID" || continue
        found=0
        "$1" "${process##*/}"
    done
    return "$found"
}

tell() { kill "$1" 2>/dev/null; }

await_watchers() { # Slurm may have told this script alone
    [ "$is_ending" = no ] || each_watcher tell
    while each_watcher true; do
        sleep 0.1
    done
}

main
