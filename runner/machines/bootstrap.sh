# What every machine runs, wherever it came from: GitHub's runner for one job, watched, and ended without fail.
# The lines before this one set:
#   NAME           the machine's name, for its messages
#   JIT            the runner's just-in-time configuration; or empty, and JIT_FILE is where it will come
#   JIT_SECONDS    how long to wait for JIT_FILE
#   DEADLINE       seconds after which all ends, whatever runs
#   IDLE           seconds without a job after which all ends
#   RUNNER         the folder with the runner program; or empty, and RUNNER_URL with RUNNER_SHA256 is fetched
#   WORK           the folder to work in; nothing of it is left
#   RUN_AS         the user that the job is (root's to choose); empty: whoever this is
#   POWER_OFF      1: the machine is this job's alone, so it is switched off at the end
set -u
umask 077

say() { echo "symmem-check machine $NAME: $*"; }

power_off() {
    [ "$POWER_OFF" = 1 ] || return 0
    shutdown -h now || poweroff --force --force
}

# The runner and all that its job started. A session of its own is not left by fork or by a new process group.
end_job() {
    [ -n "${runner:-}" ] || return 0
    for signal in TERM KILL; do
        pkill "-$signal" -s "$runner" 2>/dev/null
        for _ in 1 2 3 4 5 6 7 8 9 10; do
            pgrep -s "$runner" >/dev/null || break 2
            sleep 0.5
        done
    done
    runner=
}

clean_up() {
    status=$?
    trap - EXIT INT TERM HUP
    end_job
    rm -rf "${WORK:?}/${NAME:?}"
    [ -n "$JIT_FILE" ] && rm -f "$JIT_FILE"
    say "ended"
    power_off
    exit "$status"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

began=$SECONDS
left() { echo $((DEADLINE - SECONDS + began)); }

if [ "$POWER_OFF" = 1 ]; then
    # Two clocks, since everything hangs on it: the system's own shutdown, and one that asks no service.
    shutdown -h +$(((DEADLINE + 59) / 60)) || say "shutdown could not be set up"
    (trap - EXIT INT TERM HUP; sleep $((DEADLINE + 120)); poweroff --force --force) </dev/null >/dev/null 2>&1 &
fi

while [ -z "$JIT" ]; do
    if [ -s "$JIT_FILE" ]; then
        JIT=$(cat "$JIT_FILE")
    elif [ $((SECONDS - began)) -ge "$JIT_SECONDS" ] || [ "$(left)" -le 0 ]; then
        say "no runner was registered for this machine within $JIT_SECONDS s"
        exit 1
    else
        sleep 1
    fi
done
[ -n "$JIT_FILE" ] && rm -f "$JIT_FILE"

mkdir -p "$WORK/$NAME" || exit 1
if [ -n "$RUNNER" ]; then
    cp -R "$RUNNER/." "$WORK/$NAME" || { say "there is no runner program in $RUNNER"; exit 1; }
else
    archive=$WORK/$NAME/runner.tar.gz
    curl --fail --silent --show-error --location --retry 5 --max-time 600 --output "$archive" "$RUNNER_URL" ||
        { say "the runner program could not be fetched from $RUNNER_URL"; exit 1; }
    echo "$RUNNER_SHA256  $archive" | sha256sum --check --status ||
        { say "the runner program from $RUNNER_URL is not the one with SHA-256 $RUNNER_SHA256"; exit 1; }
    tar -xzf "$archive" -C "$WORK/$NAME" && rm -f "$archive" || exit 1
fi

# GitHub's runner calls this when a job begins: the way to tell an idle runner from a busy one. Its own file of variables
# wins over those that it is started with, and may have a hook of the folder's owner, which is called then.
started=$WORK/$NAME/job-started
hook=ACTIONS_RUNNER_HOOK_JOB_STARTED
touch "$WORK/$NAME/.env"
older=$(sed -n "s/^$hook=//p" "$WORK/$NAME/.env" | tail -n 1)
{
    printf '#!/bin/sh\ntouch "%s"\n' "$started"
    [ -z "$older" ] || printf 'exec "%s" "$@"\n' "$older"
} >"$WORK/$NAME/job-started.sh"
chmod 755 "$WORK/$NAME/job-started.sh"
sed -i "/^$hook=/d" "$WORK/$NAME/.env"
echo "$hook=$WORK/$NAME/job-started.sh" >>"$WORK/$NAME/.env"
as=()
if [ -n "$RUN_AS" ]; then
    id "$RUN_AS" >/dev/null 2>&1 || useradd --create-home --shell /bin/bash "$RUN_AS" || exit 1
    chmod 755 "$WORK" && chown -R "$RUN_AS:" "$WORK/$NAME" || exit 1
    as=(runuser -u "$RUN_AS" --)
fi

cd "$WORK/$NAME" || exit 1
# The configuration goes by the variable that GitHub's own controller of runners uses, and the runner takes it out of its
# environment: a command line is there for every user of the machine to read, as long as the job runs.
# A shell has what it starts in the background ignore SIGINT, by which GitHub's runner cancels a step.
(
    trap - INT QUIT
    for variable in "${!SYMMEM_CHECK_@}" "${!GITHUB_@}"; do export -n "${variable?}"; done
    if [ -n "$RUN_AS" ]; then
        HOME=$(getent passwd "$RUN_AS" | cut -d: -f6)
        export HOME USER="$RUN_AS" LOGNAME="$RUN_AS"
    fi
    export ACTIONS_RUNNER_INPUT_JITCONFIG="$JIT"
    exec setsid ${as[@]+"${as[@]}"} ./run.sh </dev/null
) &
runner=$!
JIT=
say "the runner is up"

idle_since=$SECONDS
while kill -0 "$runner" 2>/dev/null; do
    if [ "$(left)" -le 0 ]; then
        say "the deadline of $DEADLINE s is over"
        exit 1
    elif [ ! -e "$started" ] && [ $((SECONDS - idle_since)) -ge "$IDLE" ]; then
        say "no job came within $IDLE s"
        exit 1
    fi
    sleep 1
done
wait "$runner"
ended=$?
say "the runner ended with status $ended"
exit "$ended"
