#!/usr/bin/env bash
# Checks the Debian package with lintian, installs it into a fresh root, and tries there the programs, the documents, the man pages, the completion
# and the units. Then systemd boots that root, and booted.sh runs the services there.  ./test.sh --images runs it.
#   deploy/debian/test.sh PACKAGE.deb CORPUS      CORPUS: made by examples/prepare_corpus.sh
set -euo pipefail
package=$(readlink -f "$1")
corpus=$(readlink -f "$2")
cd "$(dirname "$0")/../.."
source third_party/debian/install.sh
install_packages lintian mmdebstrap systemd-container
lintian --allow-root --fail-on error,warning "$package"
echo "lintian: no error, no warning"
work=$(mktemp -d)
trap 'umount "$work/root/proc" 2>/dev/null; rm -rf --one-file-system "$work"' EXIT
root=$work/root

mmdebstrap --quiet --variant=apt --aptopt='APT::Install-Recommends "false"' --include=man-db,procps,systemd-sysv \
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
version=$(sed -n 's/.*kVersion\[\] = "\(.*\)";/\1/p' common/version.h)
commit=$(zcat "$root/usr/share/doc/nibble/changelog.gz" | sed -n 's/.* from commit \(.*\)\.$/\1/p')
[[ -n $commit ]] || { echo "FAILED: the changelog names no commit" && exit 1; }
for program in nibble nibble-coordinator nibble-worker nibble-export nibble-trainer; do
  expect "$program $version, commit $commit" inside $program --version
done
expect 'Checkpoint.*jobs' inside man nibble-worker
expect nibble: inside getent passwd nibble
expect _nibble inside bash -c 'source /usr/share/bash-completion/completions/nibble && complete -p nibble'
inside systemd-analyze verify --man=yes /lib/systemd/system/nibble-{coordinator,worker}.service
for unit in coordinator worker; do
  inside systemd-analyze security --offline=true --threshold=25 "/lib/systemd/system/nibble-$unit.service" >"$work/security" ||
    { cat "$work/security" && exit 1; }
  tail -n 1 "$work/security"
done

# The pages' names of files are names there, and Prometheus reads its configuration in place.
python3 deploy/debian/named_files.py "$root/usr/share/doc/nibble"
for file in docs/reference/job-spec.md docs/tutorial.md examples/prepare_corpus.sh deploy/prometheus/rules/alerts.yml deploy/grafana/dashboards/job.json; do
  [[ -s $root/usr/share/doc/nibble/$file ]] || { echo "FAILED: no $file" && exit 1; }
done
[[ -x $root/usr/share/doc/nibble/examples/prepare_corpus.sh ]] || { echo "FAILED: prepare_corpus.sh cannot be run" && exit 1; }
for unit in coordinator worker; do
  grep -q '^# NIBBLE_' "$root/etc/default/nibble-$unit" || { echo "FAILED: no commented flags for nibble-$unit" && exit 1; }
done

# Every program has a man page, and every verb a part of its noun's.
pages=0
for program in nibble nibble-coordinator nibble-worker nibble-export nibble-trainer; do
  inside man --where "$program" >/dev/null || { echo "FAILED: no man page of $program" && exit 1; }
done
verbs_of() { inside nibble "$@" --help | sed -n '/^Subcommands:/,/^$/s/^  \([a-z-]*\) .*/\1/p'; }
for noun in $(verbs_of); do
  [[ $noun != help && $noun != version ]] || continue
  page=$(inside man 1 "nibble-$noun") || { echo "FAILED: no man page of nibble $noun" && exit 1; }
  for verb in $(verbs_of "$noun"); do
    grep -q "^${noun^^} ${verb^^}\|^$noun $verb$" <<<"$page" || { echo "FAILED: nothing of $noun $verb in its man page" && exit 1; }
    pages=$((pages + 1))
  done
done
echo "man pages: 5 programs, $pages verbs"

# The next version: the same files.
dpkg-deb -R "$package" "$work/next"
sed -i 's/^Version: .*/&+next/' "$work/next/DEBIAN/control"
dpkg-deb --root-owner-group -Znone --build "$work/next" "$root/tmp/next.deb" >/dev/null

# systemd boots, runs booted.sh as a service, and ends with its result.
mkdir "$root/trial"
cp deploy/debian/booted.sh tests/hosts/losses.sh "$root/trial/"
mv "$root/tmp/next.deb" "$root/trial/"
cat >"$root/etc/systemd/system/trial.service" <<UNIT
[Unit]
SuccessAction=exit
FailureAction=exit
FailureActionExitStatus=1
[Service]
Type=oneshot
ExecStart=bash /trial/booted.sh /trial/next.deb /corpus ${NIBBLE_STEPS:-300}
StandardOutput=file:/trial/output
StandardError=file:/trial/output
[Install]
WantedBy=multi-user.target
UNIT
inside systemctl --quiet enable trial.service
umount "$root/proc"
# Its runtime directory is on a file system in memory, as systemd-nspawn wants it.
# shellcheck disable=SC2016  # $1 is the root
timeout -k 10 1800 unshare --mount bash -c 'mkdir -p /run/systemd/nspawn && mount -t tmpfs tmpfs /run/systemd/nspawn &&
  exec systemd-nspawn --quiet --directory="$1" --boot --private-network --register=no --keep-unit' - "$root" >"$work/boot.log" 2>&1 </dev/null ||
  { tail -n 40 "$work/boot.log" "$root/trial/output" 2>/dev/null && echo "FAILED: the booted system" && exit 1; }
cat "$root/trial/output"
echo "package: installed, run, upgraded and removed"
