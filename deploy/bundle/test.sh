#!/usr/bin/env bash
# Bundles the programs, and runs the job of the quick start with them in a Debian that has no package beyond the essential ones: what
# bundle.sh leaves out is what every machine has. ./test.sh --images runs it.
#   deploy/bundle/test.sh CORPUS      CORPUS: made by examples/prepare_corpus.sh
#   NIBBLE_BIN: directory with the programs; default: those that bazel has built
# Makes ./bundle, without checks and benchmarks. As root, for mmdebstrap and chroot.
set -euo pipefail
corpus=$(readlink -f "$1")
cd "$(dirname "$0")/../.."
source third_party/debian/install.sh
install_packages mmdebstrap systemd
programs=(bazel-bin/client/nibble bazel-bin/server/nibble-coordinator bazel-bin/worker/agent/nibble-worker bazel-bin/worker/agent/nibble-export
  bazel-bin/worker/trainer/loop/nibble-trainer)
[[ -z ${NIBBLE_BIN:-} ]] || programs=("$NIBBLE_BIN"/nibble{,-coordinator,-worker,-export,-trainer})
./bundle.sh "${programs[@]}"
work=$(mktemp -d)
root=$work/root
inside() { chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp LC_ALL=C.UTF-8 NIBBLE_HOME=/tmp/nibble "$@"; }
cleanup() {
  inside /opt/nibble/with.sh nibble cluster down >/dev/null 2>&1
  umount "$root/proc" "$root/dev" 2>/dev/null
  rm -rf --one-file-system "$work"
}
trap cleanup EXIT
mmdebstrap --quiet --variant=essential --dpkgopt='path-exclude=/usr/share/locale/*' bookworm "$root" ${NIBBLE_MIRROR:+"$NIBBLE_MIRROR"}
mkdir -p "$root/opt" "$root/proc" "$root/dev"
cp -r bundle "$root/opt/nibble"
cp -r "$corpus" "$root/corpus"
mount -t proc proc "$root/proc"
mount --bind /dev "$root/dev"

cd "$root/opt/nibble"
grep -q "^# Nibble" INSTALL.md
[[ $(inside /opt/nibble/with.sh nibble --version) == "$(cat VERSION)" ]] || { echo "FAILED: VERSION is $(cat VERSION)" && exit 1; }
for unit in systemd/*.service; do
  start=$(sed -n 's/^ExecStart=//p' "$unit")
  read -r with program _ <<<"$start"
  [[ $with == /opt/nibble/with.sh && -x bin/$program ]] || { echo "FAILED: $unit starts $start" && exit 1; }
done
inside /opt/nibble/with.sh nibble cluster up --workers 2 --slots 1 >"$work/up.log" 2>&1 || { cat "$work/up.log" && exit 1; }
job=$(inside /opt/nibble/with.sh nibble job submit /opt/nibble/examples/quickstart.yaml --set 'data.train=[/corpus/anarchism/train.tokens]' \
  --set 'data.validation=[{name: held-out, path: /corpus/anarchism/validation.tokens}]' --set training.steps=40 --set resources.ranks=2)
inside /opt/nibble/with.sh nibble job wait "$job" --timeout 10m >/dev/null 2>"$work/wait.log" || { cat "$work/wait.log" && exit 1; }
inside /opt/nibble/with.sh nibble job metrics "$job" 2>/dev/null | awk -F, 'END { printf "bundle: %d steps on two ranks, the last loss is %s\n", $2 + 1, $4 }'
echo "bundle: passed, version $(cat VERSION)"
