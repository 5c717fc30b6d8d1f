#!/bin/sh
# Tries what was packed in a bare Debian: a root that holds Debian's required packages and no compiler, in namespaces of its
# own with no way out of them. `cargo xtask dist --try` calls it; as root.
#
#   try.sh ARCHIVE PACKAGE WORK       WORK is a directory for the root, which is removed at the end
set -eu

archive=$(realpath "${1:?an archive}") package=$(realpath "${2:?a Debian package}")
root=${3:?a directory}/bare-root
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
rm -rf "$root"
mkdir -p "$root"
trap 'rm -rf "$root"' EXIT

. /etc/os-release
mmdebstrap --quiet --variant=minbase "$VERSION_CODENAME" "$root"
cp "$archive" "$package" "$root/tmp/"
# Debian's installer writes it, and containerd copies it into pods.
echo "127.0.0.1 localhost" > "$root/etc/hosts"

# inside COMMAND: runs it with /proc, /sys and loopback, and no other network.
inside() {
    unshare --mount --net --pid --ipc --uts --cgroup --fork sh -euc '
        ip link set lo up
        mount --bind "$0" "$0"
        mount -t proc proc "$0/proc"
        mount -t sysfs sysfs "$0/sys"
        if [ "$(stat --file-system --format=%T /sys/fs/cgroup)" = cgroup2fs ]; then
            mount -t cgroup2 cgroup2 "$0/sys/fs/cgroup"
        else
            # Version 1: a hierarchy for each set of controllers; the one that has none is version 2 beside them.
            mount -t tmpfs tmpfs "$0/sys/fs/cgroup"
            while IFS=: read -r _ controllers _; do
                if [ -n "$controllers" ]; then
                    mkdir "$0/sys/fs/cgroup/${controllers#name=}"
                    mount -t cgroup -o "$controllers" cgroup "$0/sys/fs/cgroup/${controllers#name=}"
                fi
            done < "$0/proc/self/cgroup"
        fi
        mount -t tmpfs tmpfs "$0/run"
        exec chroot "$0" sh -euc "$1"
    ' "$root" "$1"
}

echo "==> the archive: install, run, remove"
inside '
    ! command -v cargo rustc cc
    find / -xdev -type f | grep -v "^/tmp/" | sort > /tmp/before
    tar --extract --file /tmp/ferry-*.tar.gz --directory /tmp
    /tmp/ferry-*/install.sh
    ferry --version
    ferry kubectl version --client
    /usr/local/share/ferry/uninstall.sh --purge
    find / -xdev -type f | grep -v "^/tmp/" | sort | diff /tmp/before -
'

echo "==> the package: its dependencies, a cluster, three pods that serve, the end"
# Debian's packages come over this machine's network; nothing of Ferry runs yet.
cp /etc/resolv.conf "$root/etc/resolv.conf"
chroot "$root" sh -euc '
    export DEBIAN_FRONTEND=noninteractive
    apt-get update --quiet --quiet
    apt-get install --quiet --quiet --yes --no-install-recommends /tmp/ferry_*.deb
'
inside '
    ferry demo
    # Some items of a demo cluster fail, by design; that all are judged is what counts.
    ferry check security > /tmp/judged || true
    tail -n 1 /tmp/judged | grep "passed, "
    ferry down --purge
'
