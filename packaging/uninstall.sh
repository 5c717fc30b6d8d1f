#!/bin/sh
# Removes what install.sh put there. A cluster that runs is ended first.
#
#   uninstall.sh [--prefix DIRECTORY] [--purge]      --purge removes /var/lib/ferry and /etc/ferry too
set -eu

prefix=/usr/local
purge=
while [ $# -gt 0 ]; do
    case $1 in
        --prefix) prefix=${2:?--prefix takes a directory}; shift 2 ;;
        --prefix=*) prefix=${1#--prefix=}; shift ;;
        --purge) purge=yes; shift ;;
        *) sed -n '2,5s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
    esac
done
root=${DESTDIR:-}
if [ -z "$root" ] && [ "$(id -u)" != 0 ]; then
    echo "removing from $prefix takes root: sudo $0" >&2
    exit 1
fi
if [ -z "$root" ]; then
    if [ -d /run/systemd/system ]; then systemctl disable --now ferry 2>/dev/null || true; fi
    if [ -d /var/lib/ferry ] && [ -x "$prefix/bin/ferry" ]; then
        "$prefix/bin/ferry" down ${purge:+--purge}
    fi
fi
rm -f "$root$prefix/bin/ferry" \
    "$root$prefix"/share/man/man1/ferry.1 "$root$prefix"/share/man/man1/ferry-*.1 \
    "$root$prefix/share/bash-completion/completions/ferry" \
    "$root$prefix/share/zsh/site-functions/_ferry" \
    "$root$prefix/share/fish/vendor_completions.d/ferry.fish" \
    "$root/etc/systemd/system/ferry.service"
rm -rf "$root$prefix/share/doc/ferry" "$root$prefix/share/ferry"
if [ -n "$purge" ]; then rm -rf "$root/etc/ferry"; fi
if [ -z "$root" ] && [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
echo "removed from $prefix"
