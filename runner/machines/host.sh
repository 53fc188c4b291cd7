#!/bin/bash -p
# Keeps a GPU host: lets in one job at a time, as a user of its own, and leaves nothing of it behind.
#
# host_setup.sh installs it. The keeper may call free, start, stop, list and journal: sudo allows it these and nothing
# else. The admin may call unlock. The keeper is the user that logs in by ssh.
# What it hands over is checked here, since a stolen key can send anything. Of the job, nothing is believed: it can't
# reach this program, its files or its processes.
#
# taken    the lock: who has the host, since when and until when. One line: NAME NONCE SINCE DEADLINE
# watch    locked (flock) by the process that answers for what is taken; that lock is lost with the process, and then
#          the next caller cleans up in its place
# change   locked while `taken` is made or looked at for long
# dirty    why the host takes no more jobs
set -u
umask 077
cd /
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C

readonly VERSION=1 USAGE=2 BUSY=10 DIRTY=11 REFUSED=12 FAILED=13
readonly LONGEST_SECONDS=$((5 * 24 * 3600)) LARGEST_BYTES=1000000 JOURNAL_KIB=1024
# Where anybody may write, so where a job can leave something.
readonly OPEN_FOLDERS=(/tmp /var/tmp /dev/shm /dev/mqueue /run/lock /run/screen /var/crash /var/mail /var/spool/cron
    /var/spool/at)

# What belongs to it lies where it lies itself, which is below a prefix where the admin gave one.
self=$(readlink -f -- "${BASH_SOURCE[0]}")
prefix=${self%/usr/local/libexec/symmem-check-host}
readonly self conf=$prefix/etc/symmem-check/host.conf state=$prefix/var/lib/symmem-check

die() {
    echo "symmem-check-host: $2" >&2
    exit "$1"
}

read_conf() {
    job_user='' public='' smi='' grace=300
    [ -f "$conf" ] || die $FAILED "there is no $conf; run host_setup.sh install"
    local key value
    while IFS='=' read -r key value; do
        case $key in
            keeper) ;;
            job-user) job_user=$value ;;
            public-repositories) public=$value ;;
            nvidia-smi) smi=$value ;;
            grace-seconds) grace=$value ;;
            '' | '#'*) ;;
            *) die $FAILED "$conf: unknown key '$key'; take the line out" ;;
        esac
    done <"$conf"
    [[ $public =~ ^(allowed|refused)$ ]] || die $FAILED "$conf: public-repositories must be allowed or refused"
    [[ $grace =~ ^[0-9]{1,4}$ ]] || die $FAILED "$conf: grace-seconds must be a number of up to four digits"
    uid=$(id -u -- "$job_user" 2>/dev/null) || die $FAILED "$conf: there is no user '$job_user'; run install again"
    [ "$uid" != 0 ] || die $FAILED "$conf: job-user is root, which can't be; run install again"
    gid=$(id -g -- "$job_user")
    [ -n "$smi" ] || smi=$(command -v nvidia-smi)
}

check_name() {
    [[ ${1-} =~ ^symmem-[0-9a-f]{8}-[0-9]{1,18}-[0-9]{1,4}-[a-z0-9]([a-z0-9-]{0,18}[a-z0-9])?$ ]] ||
        die $USAGE "that is no machine's name"
}

check_number() {
    [[ $1 =~ ^[1-9][0-9]{0,6}$ ]] && [ "$1" -le "$2" ] || die $USAGE "$3 must be a number from 1 to $2"
}

check_public() {
    case ${1-} in
        private) ;;
        public)
            [ "$public" = allowed ] ||
                die $REFUSED "takes no public repository; to allow it, set public-repositories=allowed in $conf"
            ;;
        *) die $USAGE "public or private must be said" ;;
    esac
}

# ---- the lock

begin_change() {
    exec 8>"$state/change"
    flock -w 60 8 || die $BUSY "is busy with another call"
}

end_change() { exec 8>&-; }

# Sets name, nonce, since, deadline; fails where nobody has the host.
read_taken() {
    name='' nonce='' since='' deadline=''
    { read -r name nonce since deadline <"$state/taken"; } 2>/dev/null
}

taken_by() { read_taken && [ "$name" = "$1" ]; }

try_watch() {
    exec 9>"$state/watch"
    flock "$@" 9 || { exec 9>&-; return 1; }
}

end_watch() { exec 9>&-; }

die_dirty() { die $DIRTY "is dirty and takes no more jobs: $(cat "$state/dirty"); mend it, then: sudo $self unlock"; }

# Within a change: returns where the host can take a job.
require_free() {
    if [ -e "$state/taken" ] && [ ! -e "$state/dirty" ] && try_watch -w 1; then
        finish # its watcher was lost, as in a restart of the host
        end_watch
    fi
    [ ! -e "$state/dirty" ] || die_dirty
    ! read_taken || die $BUSY "is busy with $name since $(date -u -d "@$since" +%FT%TZ)"
    gpu_processes >/dev/null || die $FAILED "nvidia-smi fails, so the GPUs take no job; mend the driver"
}

# ---- leaving nothing

# Those that can still act: a zombie is only a line in a table.
processes() { ps -o pid=,stat=,comm= -U "$uid" -u "$uid" | awk '$2 !~ /^[ZX]/ { print $1, $3 }'; }

# As the job's user and to all at once (-1): the kernel does that in one step, so no fork gets away.
kill_all() {
    local _
    for _ in {1..120}; do
        [ -n "$(processes)" ] || return 0
        (ulimit -u unlimited; exec setpriv --reuid "$uid" --regid "$gid" --clear-groups bash -c 'kill -KILL -1')
        sleep 0.5
    done 2>/dev/null
    dirt="process $(processes | head -n 1) could not be killed"
    return 1
}

# Others come and go in these folders meanwhile, which find takes for errors; only its deadline (124) is one.
files() {
    local folder folders=()
    for folder in "${OPEN_FOLDERS[@]}" "/run/user/$uid"; do
        [ ! -d "$folder" ] || folders+=("$(readlink -f -- "$folder")")
    done
    timeout 120 find "${folders[@]}" -mindepth 1 -xdev -user "$uid" "$@" 2>/dev/null
    [ $? != 124 ]
}

remove_files() {
    local left
    timeout 300 rm -rf --one-file-system "$state/job" 2>/dev/null
    [ ! -e "$state/job" ] || { dirt="$state/job could not be removed"; return 1; }
    # Looked through again only where something was found: there may be very many files of others.
    local _
    for _ in 1 2 3; do
        left=$(files -print -delete) || { dirt="the files of $job_user were not found within two minutes"; return 1; }
        [ -n "$left" ] || return 0
    done
    dirt="the file $(printf %q "${left%%$'\n'*}") could not be removed"
    return 1
}

# Ids of System V objects by owner or creator; the columns differ between the kinds.
shared_objects() {
    awk -v uid="$uid" 'NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i; next }
        $at["uid"] == uid || $at["cuid"] == uid { print $2 }' "/proc/sysvipc/$1"
}

remove_shared_objects() {
    local kind id
    local -A option=([shm]=-m [msg]=-q [sem]=-s)
    for kind in shm msg sem; do
        [ -r "/proc/sysvipc/$kind" ] || continue
        for id in $(shared_objects $kind); do ipcrm "${option[$kind]}" "$id"; done >/dev/null 2>&1
        [ -z "$(shared_objects $kind)" ] || { dirt="a System V object ($kind) could not be removed"; return 1; }
    done
}

# A user's own services, which the system would start again.
stop_services() {
    local _
    [ -d /run/systemd/system ] || return 0
    rm -f "/var/lib/systemd/linger/$job_user"
    timeout 30 loginctl terminate-user "$job_user" >/dev/null 2>&1
    for _ in {1..20}; do
        [ -d "/run/user/$uid" ] || break
        sleep 0.5
    done
}

gpu_processes() {
    [ -n "$smi" ] || return 0
    timeout -k 5 60 "$smi" --query-compute-apps=pid --format=csv,noheader,nounits 2>/dev/null </dev/null
}

# No process of the job is left by now; a GPU that lists one which isn't there still holds its memory.
check_gpus() {
    local pids pid left _
    for _ in {1..10}; do
        pids=$(gpu_processes) || { dirt="nvidia-smi fails since the job"; return 1; }
        left=
        for pid in $pids; do
            [ -d "/proc/$pid" ] || grep -qx "$pid" "$state/gpu-before" 2>/dev/null || left=$pid
        done
        [ -n "$left" ] || return 0
        sleep 2
    done
    dirt="a GPU still holds memory of process $left, which is gone"
    return 1
}

clean() { kill_all && stop_services && kill_all && remove_files && remove_shared_objects && check_gpus; }

# Holding the watch: the end of a job, whatever it was, and of the lock.
finish() {
    if clean; then
        rm -f "$state/dirty" "$state/stop" "$state/taken"
    else
        echo "$dirt" >"$state/dirty"
        return 1
    fi
}

# ---- what the keeper may ask

do_free() {
    check_public "${1-}"
    [ $# = 1 ] || die $USAGE "free takes one argument"
    begin_change
    require_free
    echo "$state/job"
}

do_start() {
    [ $# = 4 ] || die $USAGE "start takes four arguments"
    check_name "$1"
    check_number "$2" $LONGEST_SECONDS "the seconds"
    check_number "$3" $LARGEST_BYTES "the bytes"
    check_public "$4"
    # All of it first: a connection that is lost on the way must start nothing.
    local given jit script
    { given=$(timeout 60 head -c "$3"; echo x); } 2>/dev/null
    given=${given%x}
    [ ${#given} = "$3" ] || die $USAGE "the script came in part"
    jit=${given%%$'\n'*} script=${given#*$'\n'} given=
    [[ -n $jit && $jit != *[!A-Za-z0-9+/=_-]* ]] || die $USAGE "the first line must be the runner's configuration"
    # From here on it's the host that decides, and not the connection.
    trap : HUP INT TERM PIPE
    begin_change
    require_free
    try_watch -w 10 || die $BUSY "is busy with the end of a job"
    gpu_processes >"$state/gpu-before"
    finish || die_dirty
    name=$1 since=$(date +%s) nonce=$(od -An -N8 -tx1 /dev/urandom | tr -d ' \n')
    deadline=$((since + $2))
    echo "$name $nonce $since $deadline" >"$state/taken.new"
    mv "$state/taken.new" "$state/taken"
    make_folder "$jit" "$script"
    jit=
    launch "$2"
    echo "$since $deadline"
}

# A shell ignores these in what it starts in the background, and GitHub's runner ends a job's step by SIGINT.
no_signals_ignored() { trap - INT QUIT; }

make_folder() {
    mkdir -p "$state/job/home"
    printf '%s' "$1" >"$state/job/jit"
    printf '%s' "$2" >"$state/job/start.sh"
    chown -R "$uid:$gid" "$state/job" && return
    finish
    die $FAILED "the job's folder could not be made; is the disk full?"
}

launch() {
    local _
    rm -f "$state"/journal-* "$state/watched"
    end_watch
    if [ -d /run/systemd/system ]; then
        # mixed: what is left of a killed supervisor's job is killed at once, and then `lost` cleans up.
        systemd-run --quiet --collect --unit="symmem-check-$name-$nonce" --service-type=exec -p KillMode=mixed \
            -p OOMPolicy=continue -p TasksMax=infinity -p RuntimeMaxSec=$(($1 + grace + 300)) -p TimeoutStopSec=300 \
            -p "ExecStopPost=$self lost $nonce" "$self" supervise "$nonce" 8>&- >/dev/null
    else
        (no_signals_ignored; exec setsid "$self" supervise "$nonce") </dev/null >/dev/null 2>&1 8>&- &
    fi
    for _ in {1..300}; do
        [ ! -e "$state/watched" ] || return 0
        sleep 0.1
    done
    try_watch -w 10 && finish
    die $FAILED "the job's supervisor did not start"
}

do_stop() {
    [ $# = 1 ] || die $USAGE "stop takes one argument"
    check_name "$1"
    trap : HUP PIPE
    begin_change
    taken_by "$1" || return 0
    : >"$state/stop"
    end_change
    local _
    for _ in {1..240}; do
        taken_by "$1" || return 0
        if try_watch -n; then
            ! taken_by "$1" || finish || die_dirty
            end_watch
        else
            sleep 0.5
        fi
    done
    die $FAILED "$1 has not ended yet; ask again"
}

do_list() {
    [ $# = 0 ] || die $USAGE "list takes no arguments"
    local how=running
    [ ! -e "$state/stop" ] || how=ending
    [ ! -e "$state/dirty" ] || how="dirty $(cat "$state/dirty")"
    ! read_taken || { echo "$name $since $deadline $how"; return; }
    [ ! -e "$state/dirty" ] || echo "- 0 0 $how"
}

do_journal() {
    [ $# = 1 ] || die $USAGE "journal takes one argument"
    check_name "$1"
    [ ! -f "$state/journal-$1" ] || tail -c 16384 "$state/journal-$1" | tr -d '\000-\010\013-\037\177'
}

# ---- what watches the job

# The job may write without end, and keep the pipe when its script has ended; the file is never its own.
keep_journal() {
    exec 9>&-
    (ulimit -c 0; ulimit -f $JOURNAL_KIB; exec cat >"$state/journal-$name") 2>/dev/null
    exec cat >/dev/null
}

# No way back to more rights: neither by sudo nor by any program that is another user's when it runs.
run_job() {
    exec 9>&- </dev/null
    no_signals_ignored
    ulimit -c 0
    # Half of the numbers that processes can have: the rest is for those that end it. A container may not allow these.
    {
        echo 0 >/proc/self/oom_score_adj
        ulimit -l unlimited
        ulimit -u $(($(</proc/sys/kernel/pid_max) / 2))
    } 2>/dev/null
    cd "$state/job" || exit 1
    exec env -i HOME="$state/job/home" USER="$job_user" LOGNAME="$job_user" PATH="$PATH" LANG=C.UTF-8 \
        setsid setpriv --reuid "$uid" --regid "$gid" --init-groups --no-new-privs --inh-caps=-all \
        --bounding-set=-all bash start.sh
}

do_supervise() {
    try_watch -w 60 && read_taken && [ "$nonce" = "${1-}" ] || exit 1
    local job end stopping='' _
    end=$((SECONDS + deadline - since + grace))
    trap 'stopping=1' TERM INT
    { echo -900 >/proc/self/oom_score_adj; } 2>/dev/null
    run_job > >(keep_journal) 2>&1 &
    job=$!
    : >"$state/watched"
    while kill -0 "$job" 2>/dev/null && [ -z "$stopping" ] && [ ! -e "$state/stop" ] && [ $SECONDS -lt $end ]; do
        sleep 1
    done
    kill -TERM "$job" 2>/dev/null
    for _ in {1..40}; do
        kill -0 "$job" 2>/dev/null || break
        sleep 0.25
    done
    finish
}

# After a supervisor that was killed.
do_lost() {
    try_watch -w 240 && read_taken && [ "$nonce" = "${1-}" ] || return 0
    [ -e "$state/dirty" ] || finish
}

# ---- what the admin does

do_unlock() {
    begin_change
    try_watch -w 1 || die $BUSY "a job is running; stop it, or wait for its end"
    finish || die_dirty
    echo "clean, and free for the next job"
}

verb=${1-}
[ $# = 0 ] || shift
case $verb in
    free | start | stop | list | journal) echo "symmem-check-host $VERSION" ;;
    supervise | lost | unlock) ;;
    *) die $USAGE "unknown: $(printf %q "$verb"); there are free, start, stop, list, journal, and unlock" ;;
esac
[ "$(id -u)" = 0 ] || die $USAGE "must be run as root, by sudo"
read_conf
"do_$verb" "$@"
