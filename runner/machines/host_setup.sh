#!/bin/bash -p
# Sets a GPU host up for host.sh, which lies beside this file, and takes all of it away again. For the host's admin:
#
#   host_setup.sh install --keeper USER --job-user USER [--prefix FOLDER]
#   host_setup.sh uninstall [--prefix FOLDER]
#
# Installing again is how to update, and keeps what host.conf says.
set -u
umask 022
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C

# Whoever is in one of these becomes root when it likes.
readonly STRONG_GROUPS=' root sudo wheel admin adm disk shadow docker podman lxd libvirt kvm '

die() {
    echo "host_setup.sh: $1" >&2
    exit "${2-1}"
}

# ---- what is asked for

readonly USAGE="usage: host_setup.sh install --keeper USER --job-user USER, or uninstall; each with [--prefix FOLDER]"

read_arguments() {
    keeper='' job_user='' prefix=''
    while [ $# -gt 0 ]; do
        [ $# -gt 1 ] || die "$1 needs a value; $USAGE" 2
        case $1 in
            --keeper) keeper=$2 ;;
            --job-user) job_user=$2 ;;
            --prefix) prefix=$2 ;;
            *) die "unknown option $1; $USAGE" 2 ;;
        esac
        shift 2
    done
    [[ $prefix =~ ^(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*$ ]] || die "--prefix must be an absolute path of plain characters" 2
    helper=$prefix/usr/local/libexec/symmem-check-host
    conf=$prefix/etc/symmem-check/host.conf
    state=$prefix/var/lib/symmem-check
}

check_users() {
    local name
    # sudo passes over a file with a dot in its name.
    for name in "$keeper" "$job_user"; do
        [[ $name =~ ^[a-z_][a-z0-9_-]{0,31}$ ]] || die "a user's name has small letters, digits, _ and -; $USAGE" 2
        [ "$name" != root ] || die "neither the keeper nor the job's user may be root" 2
    done
    [ "$keeper" != "$job_user" ] || die "the keeper and the job's user must be two, or a job could start others" 2
}

check_tools() {
    local tool
    for tool in flock setpriv setsid ps find ipcrm awk timeout pkill pgrep sudo visudo useradd; do
        command -v $tool >/dev/null || die "the program $tool is missing; install it"
    done
}

kept() { sed -n "s/^$1=//p" "$conf" 2>/dev/null | head -n 1; }

# ---- install

# Whoever can write above the program could put another in its place.
check_above() {
    local folder=$1 mode
    while folder=$(dirname -- "$folder") && mode=$(stat -c '%u %a' -- "$folder"); do
        [[ $mode =~ ^0\ ([0-7]*[0145][0145]|1[0-7]{3})$ ]] || die "$folder can be written by others than root"
        [ "$folder" != / ] || return 0
    done
    die "$folder can't be looked at"
}

make_users() {
    id -- "$keeper" >/dev/null 2>&1 || useradd --create-home --shell /bin/sh --password '*' "$keeper" ||
        die "the user $keeper could not be made"
    id -- "$job_user" >/dev/null 2>&1 || useradd --system --user-group --no-create-home --home-dir "$state/job" \
        --shell /usr/sbin/nologin "$job_user" || die "the user $job_user could not be made"
    [ "$(getent passwd "$job_user" | cut -d: -f6)" = "$state/job" ] ||
        die "$job_user is somebody's already; give --job-user a name that is free"
    local group
    for group in $(id -Gn -- "$job_user"); do
        [[ $STRONG_GROUPS != *" $group "* ]] || die "$job_user is in the group $group, which is as good as root"
    done
}

write_conf() {
    local public grace smi
    public=$(kept public-repositories) grace=$(kept grace-seconds) smi=$(kept nvidia-smi)
    {
        echo "# What the lines mean is told in docs/machines/ssh.md of symmem-check."
        echo "keeper=$keeper"
        echo "job-user=$job_user"
        echo "public-repositories=${public:-refused}"
        echo "grace-seconds=${grace:-300}"
        echo "nvidia-smi=$smi"
    } >"$conf.new" || die "$conf could not be written"
    mv "$conf.new" "$conf"
}

allow_keeper() {
    local verbs='' verb made file=/etc/sudoers.d/symmem-check-$keeper
    for verb in 'free *' 'start *' 'stop *' list 'journal *'; do
        verbs+="${verbs:+, }$helper $verb"
    done
    made=$(mktemp /etc/sudoers.d/.symmem-check.XXXXXX) || die "/etc/sudoers.d can't be written"
    printf '# Made by host_setup.sh of symmem-check.\n%s ALL=(root) NOPASSWD: %s\n' "$keeper" "$verbs" >"$made"
    chmod 440 "$made"
    visudo -q -c -f "$made" >/dev/null || { rm -f "$made"; die "visudo does not accept the file for sudo"; }
    mv "$made" "$file"
    sudo -l -U "$keeper" "$helper" list >/dev/null ||
        die "sudo does not read $file; is /etc/sudoers.d included in /etc/sudoers?"
}

install_all() {
    local beside old
    beside=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/host.sh
    check_users
    check_tools
    [ ! -e "$state/taken" ] && [ ! -e "$state/dirty" ] || die "a job has the host, or it is dirty; see: $helper list"
    install -d -m 755 "${helper%/*}" "${conf%/*}" || die "the folders could not be made"
    install -d -m 711 "$state" || die "$state could not be made"
    check_above "$helper"
    check_above "$conf"
    check_above "$state/taken"
    make_users
    old=$(kept keeper)
    [ -z "$old" ] || [ "$old" = "$keeper" ] || rm -f "/etc/sudoers.d/symmem-check-$old"
    write_conf
    install -m 755 "$beside" "$helper" || die "$helper could not be written"
    allow_keeper
    echo "installed: $helper, $conf and $state; $keeper may start jobs, which run as $job_user"
}

# ---- uninstall

uninstall_all() {
    keeper=$(kept keeper) job_user=$(kept job-user)
    [ -n "$keeper" ] && [ -n "$job_user" ] || die "there is no $conf; nothing to take away"
    "$helper" unlock >/dev/null || die "a job runs, or something of it is left; see above"
    rm -f "/etc/sudoers.d/symmem-check-$keeper"
    userdel "$job_user" 2>/dev/null
    rm -rf "$state" "${conf%/*}" "$helper"
    echo "taken away; the user $keeper is left, for you to keep or remove"
}

[ "$(id -u)" = 0 ] || die "must be run as root"
verb=${1-}
[ $# = 0 ] || shift
read_arguments "$@"
case $verb in
    install) install_all ;;
    uninstall) uninstall_all ;;
    *) die "$USAGE" 2 ;;
esac
