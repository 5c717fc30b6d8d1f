#!/bin/sh
# Installs Ferry from the directory this script is in. Needs no network.
#
#   ./install.sh [--prefix DIRECTORY]      /usr/local when not given
#
# DESTDIR puts everything below another root, for packages and images.
set -eu

prefix=/usr/local
while [ $# -gt 0 ]; do
    case $1 in
        --prefix) prefix=${2:?--prefix takes a directory}; shift 2 ;;
        --prefix=*) prefix=${1#--prefix=}; shift ;;
        *) sed -n '2,7s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
    esac
done
root=${DESTDIR:-}
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
cd "$here"

if [ -z "$root" ] && [ "$(id -u)" != 0 ]; then
    echo "installing to $prefix takes root: sudo $0" >&2
    exit 1
fi
# What was cut short on its way must not be run.
sha256sum --check --quiet SHA256SUMS

put() { # MODE FILE DIRECTORY
    mkdir -p "$root$3"
    # Over a name that runs: the old program goes on with its file.
    cp "$2" "$root$3/.$(basename "$2").new"
    chmod "$1" "$root$3/.$(basename "$2").new"
    mv -f "$root$3/.$(basename "$2").new" "$root$3/$(basename "$2")"
}

put 755 ferry "$prefix/bin"
for page in man/*.1; do put 644 "$page" "$prefix/share/man/man1"; done
put 644 completions/ferry "$prefix/share/bash-completion/completions"
put 644 completions/_ferry "$prefix/share/zsh/site-functions"
put 644 completions/ferry.fish "$prefix/share/fish/vendor_completions.d"
for text in LICENSE README.md CHANGELOG.md SECURITY.md licences.txt sbom.cdx.json; do
    put 644 "$text" "$prefix/share/doc/ferry"
done
put 755 uninstall.sh "$prefix/share/ferry"
if [ ! -e "$root/etc/ferry/ferry.yaml" ]; then put 644 ferry.yaml /etc/ferry; fi
mkdir -p "$root/etc/systemd/system"
sed "s|/usr/local/bin/ferry|$prefix/bin/ferry|" ferry.service > "$root/etc/systemd/system/ferry.service"
if [ -z "$root" ] && [ -d /run/systemd/system ]; then systemctl daemon-reload; fi

echo "installed $prefix/bin/ferry"
if [ -z "$root" ]; then
    for program in containerd runc nft conntrack; do
        if ! command -v "$program" >/dev/null 2>&1 && [ ! -x "/usr/sbin/$program" ]; then
            echo "missing: $program (Debian: $([ "$program" = nft ] && echo nftables || echo "$program"))"
        fi
    done
fi
cat <<EOF
Next, as root:
  $prefix/bin/ferry demo                       one command's life, followed; works without the internet
  $prefix/bin/ferry up                         a cluster in the background
  systemctl enable --now ferry         a cluster that starts with the machine
  $prefix/share/ferry/uninstall.sh             removes it again; --purge takes the data too
EOF
