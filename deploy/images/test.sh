#!/usr/bin/env bash
# Builds the image and the Debian package, and runs them: the job of the quick start on a coordinator and two workers, each in a container
# with its own network, read-only root, no capabilities and user 10001, compared bit by bit with a run outside of containers. Prints sizes
# and start times. ./test.sh --images runs it.
#   deploy/images/test.sh [DIRECTORY]    default: dist, where image and package are kept
#   NIBBLE_STEPS: steps of the job; default: 300, all of it
#   NIBBLE_KEEP_IMAGE=1: uses the image and package that are there; otherwise both are built twice, and must have the same bytes
# As root: containers, their networks and mmdebstrap need it. Containers are runc's, the image is unpacked by umoci.
set -euo pipefail
cd "$(dirname "$0")/../.."
source third_party/debian/install.sh
source tests/hosts/network.sh
source tests/hosts/losses.sh
out=${1:-dist}
steps=${NIBBLE_STEPS:-300}
version=$(sed -n 's/.*kVersion\[\] = "\(.*\)";/\1/p' common/version.h)
image=$out/nibble-$version-cpu.tar
((EUID == 0)) || { echo "error: deploy/images/test.sh needs root" >&2 && exit 1; }
install_packages curl iproute2 mmdebstrap python3 runc umoci

if [[ -z ${NIBBLE_KEEP_IMAGE:-} || ! -e $image ]]; then
  deploy/images/build.sh "$out"
  again=$(mktemp -d)
  deploy/images/build.sh "$again" >/dev/null
  for made in "nibble_${version}_amd64.deb" "nibble-$version-cpu.tar" "nibble-$version-cpu.spdx.json"; do
    cmp "$out/$made" "$again/$made" || { echo "FAILED: $made differs between two builds; the second is in $again" && exit 1; }
  done
  rm -rf "$again"
  echo "built twice: package, image and list of packages have the same bytes"
fi
examples/prepare_corpus.sh "$out/corpus" >"$out/corpus.log" 2>&1 || { cat "$out/corpus.log" && exit 1; }
deploy/debian/test.sh "$out/nibble_${version}_amd64.deb" "$out/corpus"

work=$(mktemp -d)
containers=()
cleanup() {
  local one
  for one in "${containers[@]}"; do
    runc --root "$work/runc" delete --force "$one" 2>/dev/null
  done
  remove_network
  NIBBLE_HOME=$work/outside bazel-bin/client/nibble cluster down >/dev/null 2>&1
  rm -rf --one-file-system "$work"
}
trap cleanup EXIT

mkdir "$work/layout"
tar -C "$work/layout" -xf "$image"
umoci unpack --image "$work/layout:localhost/nibble:$version-cpu" "$work/bundle" 2>"$work/umoci.log" || { cat "$work/umoci.log" && exit 1; }
echo "image: $(du -h --apparent-size "$image" | cut -f1) compressed, $(du -sh "$work/bundle/rootfs" | cut -f1) unpacked"

milliseconds() { echo $(($(date +%s%N) / 1000000)); }
make_network
# start NAME ADDRESS PORT COMMAND...: returns when the program's /readyz on PORT is 200.
start() {
  local name=$1 address=$2 port=$3 began
  shift 3
  add_host "$name" "$address"
  mkdir -p "$work/$name/state"
  chown 10001:10001 "$work/$name/state"
  python3 deploy/images/container.py "$work/bundle" "$work/$name" --name "$name" --network "$(network_path "$name")" \
    --state "$work/$name/state" --read-only "$(readlink -f "$out/corpus")=/corpus" \
    --read-only "$PWD/deploy/kubernetes/base/hooks=/etc/nibble-hooks" --read-only "$PWD/examples=/examples" -- "$@"
  began=$(milliseconds)
  containers+=("$network_tag-$name")
  runc --root "$work/runc" run --detach --bundle "$work/$name" "$network_tag-$name" >"$work/$name/log" 2>&1 </dev/null ||
    { cat "$work/$name/log" && return 1; }
  until on "$name" curl -fso /dev/null "http://$address:$port/readyz"; do
    (($(milliseconds) < began + 60000)) || { cat "$work/$name/log" && echo "FAILED: $name is not ready" && return 1; }
    sleep 0.02
  done
  echo "$name: ready after $(($(milliseconds) - began)) ms"
}
inside() { runc --root "$work/runc" exec "$network_tag-$1" "${@:2}"; }
client() { inside coordinator env NIBBLE_SERVER=10.77.0.10:7700 nibble "$@"; }

start coordinator 10.77.0.10 7701 nibble-coordinator --cluster images --store /var/lib/nibble/store --listen 10.77.0.10:7700 \
  --http 10.77.0.10:7701 --insecure
for number in 1 2; do
  start worker-$number 10.77.0.1$number 7702 nibble-worker --coordinator 10.77.0.10:7700 --data /var/lib/nibble/worker --name worker-$number \
    --address 10.77.0.1$number:7710 --http 10.77.0.1$number:7702 --slots 1 --insecure
done
inside worker-1 sh -c '! touch /file 2>/dev/null' || { echo "FAILED: the root file system is writable" && exit 1; }
[[ $(inside worker-1 id -u) == 10001 ]] || { echo "FAILED: not user 10001" && exit 1; }
inside worker-1 grep -q '^CapEff:.0*$' /proc/self/status || { echo "FAILED: a container has capabilities" && exit 1; }

# Two ranks, one in each container because a worker has one slot, connected by Gloo.
settings=(--set resources.ranks=2 --set "training.steps=$steps" --set metrics.log_every=1 --set 'data.train=[/corpus/anarchism/train.tokens]'
  --set 'data.validation=[{name: held-out, path: /corpus/anarchism/validation.tokens}]')
job=$(client job submit /examples/quickstart.yaml "${settings[@]}")
client job wait "$job" --timeout 10m >/dev/null 2>"$work/client.log" || { client job describe "$job" && exit 1; }
client job metrics "$job" | exact_figures >"$work/inside.figures"

# The hooks of the manifests: a drained worker has no ranks, and comes back.
hook() { inside worker-2 env POD_NAME=worker-2 NIBBLE_SERVER=10.77.0.10:7700 NIBBLE_DRAIN_SECONDS=60 sh "/etc/nibble-hooks/$1.sh" >/dev/null; }
hook drain
client worker describe worker-2 | grep -q 'its pod stops' || { echo "FAILED: the hook did not drain worker-2" && exit 1; }
hook return
if client worker describe worker-2 | grep -q 'its pod stops'; then echo "FAILED: worker-2 stays drained" && exit 1; fi
echo "hooks: worker-2 drained and returned"

# The same outside of containers. Tokens are where the containers see them.
export NIBBLE_HOME=$work/outside
bazel-bin/client/nibble cluster up --workers 2 --slots 1 >"$work/up.log" 2>&1 || { cat "$work/up.log" && exit 1; }
settings=("${settings[@]//\/corpus\//$(readlink -f "$out/corpus")/}")
job=$(bazel-bin/client/nibble job submit examples/quickstart.yaml "${settings[@]}")
bazel-bin/client/nibble job wait "$job" --timeout 10m >/dev/null 2>"$work/client.log"
bazel-bin/client/nibble job metrics "$job" | exact_figures >"$work/outside.figures"
same_figures "$work/outside.figures" "$work/inside.figures" "$steps"
echo "images: passed"
