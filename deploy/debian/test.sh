#!/usr/bin/env bash
# Installs the Debian package into a fresh root and runs there `nibble --version`, the man pages, the completion and the job of the quick
# start on a local cluster; then removes it.  ./test.sh --images runs it.
#   deploy/debian/test.sh PACKAGE.deb CORPUS      CORPUS: made by examples/prepare_corpus.sh
set -euo pipefail
package=$(readlink -f "$1")
corpus=$(readlink -f "$2")
cd "$(dirname "$0")/../.."
source third_party/debian/install.sh
install_packages mmdebstrap
work=$(mktemp -d)
trap 'umount "$work/root/proc" 2>/dev/null; rm -rf --one-file-system "$work"' EXIT
root=$work/root

mmdebstrap --quiet --variant=apt --aptopt='APT::Install-Recommends "false"' --include=procps,systemd,man-db \
  --dpkgopt='path-exclude=/usr/share/locale/*' bookworm "$root" ${NIBBLE_MIRROR:+"$NIBBLE_MIRROR"}
cp "$package" "$root/tmp/nibble.deb"
cp -r "$corpus" "$root/corpus"
mount -t proc proc "$root/proc"
inside() { chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 "$@"; }
expect() {
  local wanted=$1 found
  shift
  found=$("$@" 2>&1) || { echo "FAILED: $*: $found" && exit 1; }
  grep -q -- "$wanted" <<<"$found" || { echo "FAILED: $*: no '$wanted' in: $found" && exit 1; }
}

cp /etc/resolv.conf "$root/etc/resolv.conf"
{ inside apt-get update && inside env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends /tmp/nibble.deb; } \
  >"$work/install.log" 2>&1 || { tail -n 20 "$work/install.log" && exit 1; }
expect "$(sed -n 's/.*kVersion\[\] = "\(.*\)";/\1/p' common/version.h)" inside nibble --version
expect 'Checkpoint.*jobs' inside man nibble-worker
expect nibble: inside getent passwd nibble
expect _nibble inside bash -c 'source /usr/share/bash-completion/completions/nibble && complete -p nibble'
inside systemd-analyze verify --man=yes /lib/systemd/system/nibble-{coordinator,worker}.service
for unit in coordinator worker; do
  inside systemd-analyze security --offline=true --threshold=25 "/lib/systemd/system/nibble-$unit.service" >"$work/security" ||
    { cat "$work/security" && exit 1; }
  tail -n 1 "$work/security"
done

# The services' programs, as their user and in their directories: the job of the quick start.
inside install -d -o nibble -g nibble /var/lib/nibble-test
as_nibble() { inside setpriv --reuid nibble --regid nibble --clear-groups env HOME=/var/lib/nibble-test NIBBLE_HOME=/var/lib/nibble-test "$@"; }
as_nibble nibble cluster up --workers 2 --slots 1 >"$work/up.log" 2>&1 || { cat "$work/up.log" && exit 1; }
trap 'as_nibble nibble cluster down >/dev/null 2>&1; umount "$work/root/proc"; rm -rf --one-file-system "$work"' EXIT
job=$(as_nibble nibble job submit /usr/share/doc/nibble/examples/quickstart.yaml --set 'data.train=[/corpus/anarchism/train.tokens]' \
  --set 'data.validation=[{name: held-out, path: /corpus/anarchism/validation.tokens}]' --set "training.steps=${NIBBLE_STEPS:-300}")
as_nibble nibble job wait "$job" --timeout 10m >/dev/null 2>"$work/client.log"
as_nibble nibble job metrics "$job" | awk -F, 'END { printf "package: %d steps, the last loss is %s\n", $2 + 1, $4 }'
as_nibble nibble cluster down >"$work/down.log" 2>&1 || { cat "$work/down.log" && exit 1; }
trap 'umount "$work/root/proc"; rm -rf --one-file-system "$work"' EXIT
inside apt-get purge -y nibble >"$work/purge.log" 2>&1 || { tail -n 20 "$work/purge.log" && exit 1; }
[[ ! -e $root/usr/bin/nibble && ! -e $root/etc/default/nibble-worker ]] || { echo "FAILED: files are left after the purge" && exit 1; }
echo "package: installed, run and removed"
