#!/usr/bin/env bash
# Builds the image, the Debian package and the tarball, and runs them: the job of the quick start on a coordinator and three workers, each in a container
# with its own network, read-only root, no capabilities and user 10001. While it trains, every container is replaced, as a rolling update does:
# workers drain first, by the hooks of deploy/kubernetes. Its losses are compared bit by bit with an undisturbed run outside of containers.
# Prints sizes and start times. ./test.sh --images runs it.
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
install_packages curl iproute2 mmdebstrap python3 python3-venv runc umoci

made_of=$(sha256sum deploy/images/requirements.txt | cut -c1-12)
tools=${XDG_CACHE_HOME:-$HOME/.cache}/nibble/images-$made_of
if [[ ! -e $tools/complete ]]; then
  rm -rf "$tools" && mkdir -p "$(dirname "$tools")" && python3 -m venv "$tools"
  "$tools/bin/pip" install --quiet --disable-pip-version-check -r deploy/images/requirements.txt
  touch "$tools/complete"
fi
"$tools/bin/hadolint" deploy/images/Containerfile
echo "Containerfile: hadolint has nothing to say"

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
"$tools/bin/pyspdxtools" --infile "$out/nibble-$version-cpu.spdx.json"
echo "list of packages: valid SPDX 2.3, $(grep -c '"versionInfo"' "$out/nibble-$version-cpu.spdx.json") packages"
examples/prepare_corpus.sh "$out/corpus" >"$out/corpus.log" 2>&1 || { cat "$out/corpus.log" && exit 1; }
deploy/debian/test.sh "$out/nibble_${version}_amd64.deb" "$out/corpus"
deploy/bundle/test.sh "$out/corpus"

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
# start NAME: creates a container of COMMAND[NAME] on its host; returns when the program's /readyz is 200.
declare -A address port command
start() {
  local name=$1 began
  # shellcheck disable=SC2086  # a command of several words
  python3 deploy/images/container.py "$work/bundle" "$work/$name" --name "$name" --network "$(network_path "$name")" \
    --state "$work/$name/state" --read-only "$(readlink -f "$out/corpus")=/corpus" \
    --read-only "$PWD/deploy/kubernetes/base/hooks=/etc/nibble-hooks" --read-only "$PWD/examples=/examples" -- ${command[$name]}
  began=$(milliseconds)
  containers+=("$network_tag-$name")
  runc --root "$work/runc" run --detach --bundle "$work/$name" "$network_tag-$name" >"$work/$name/log" 2>&1 </dev/null ||
    { cat "$work/$name/log" && return 1; }
  until on "$name" curl -fso /dev/null "http://${address[$name]}:${port[$name]}/readyz"; do
    (($(milliseconds) < began + 60000)) || { cat "$work/$name/log" && echo "FAILED: $name is not ready" && return 1; }
    sleep 0.02
  done
  echo "$name: ready after $(($(milliseconds) - began)) ms"
}
inside() { runc --root "$work/runc" exec "$network_tag-$1" "${@:2}"; }
client() { inside coordinator env NIBBLE_SERVER=10.77.0.10:7700 nibble "$@"; }

# prepare NAME ADDRESS PORT COMMAND...: its host, and a directory that outlives its containers.
prepare() {
  address[$1]=$2 port[$1]=$3 command[$1]="${*:4}"
  add_host "$1" "$2"
  mkdir -p "$work/$1/state"
  chown 10001:10001 "$work/$1/state"
}
prepare coordinator 10.77.0.10 7701 nibble-coordinator --cluster images --store /var/lib/nibble/store --listen 10.77.0.10:7700 \
  --http 10.77.0.10:7701 --insecure
workers=(worker-1 worker-2 worker-3)
for number in 1 2 3; do
  prepare worker-$number 10.77.0.1$number 7702 nibble-worker --coordinator 10.77.0.10:7700 --data /var/lib/nibble/worker --name worker-$number \
    --address 10.77.0.1$number:7710 --http 10.77.0.1$number:7702 --root /corpus --slots 1 --insecure
done
for name in coordinator "${workers[@]}"; do start $name; done
echo "programs: $(inside worker-1 nibble --version)"
inside worker-1 sh -c '! touch /file 2>/dev/null' || { echo "FAILED: the root file system is writable" && exit 1; }
[[ $(inside worker-1 id -u) == 10001 ]] || { echo "FAILED: not user 10001" && exit 1; }
inside worker-1 grep -q '^CapEff:.0*$' /proc/self/status || { echo "FAILED: a container has capabilities" && exit 1; }

# Two ranks, one in each container because a worker has one slot, connected by Gloo.
settings=(--set resources.ranks=2 --set "training.steps=$steps" --set metrics.log_every=1 --set checkpoints.every=25 --set restarts.backoff=1
  --set 'data.train=[/corpus/anarchism/train.tokens]' --set 'data.validation=[{name: held-out, path: /corpus/anarchism/validation.tokens}]')
job=$(client job submit /examples/quickstart.yaml "${settings[@]}")
reaches() { client job wait "$job" --step "$1" --timeout 5m >/dev/null 2>"$work/client.log" || { client job describe "$job" && exit 1; }; }

# What a rolling update does with a pod: the hook before the stop, SIGTERM, a new container with the same volume, the hook after the start.
hook() {
  inside "$1" env POD_NAME="$1" NIBBLE_SERVER=10.77.0.10:7700 NIBBLE_DRAIN_SECONDS=120 sh "/etc/nibble-hooks/$2.sh" >/dev/null
}
stop() {
  runc --root "$work/runc" kill "$network_tag-$1" TERM
  local began
  began=$(milliseconds)
  until runc --root "$work/runc" state "$network_tag-$1" | grep -q '"status": "stopped"'; do
    (($(milliseconds) < began + 60000)) || { echo "FAILED: $1 does not stop" && exit 1; }
    sleep 0.02
  done
  runc --root "$work/runc" delete "$network_tag-$1"
}
reaches $((steps / 6))
turn=1
for name in "${workers[@]}"; do
  began=$(milliseconds)
  hook "$name" drain
  client worker describe "$name" | grep -q '^slots *0 of' || { echo "FAILED: ranks are left on $name, which its hook drained" && exit 1; }
  client worker describe "$name" | grep -q 'its pod stops' || { echo "FAILED: the hook did not drain $name" && exit 1; }
  echo "$name: drained after $(($(milliseconds) - began)) ms"
  stop "$name"
  start "$name"
  hook "$name" return
  if client worker describe "$name" | grep -q 'its pod stops'; then echo "FAILED: $name stays drained" && exit 1; fi
  turn=$((turn + 1))
  reaches $((steps * turn / 6))
done
stop coordinator
start coordinator
client job wait "$job" --timeout 10m >/dev/null 2>"$work/client.log" || { client job describe "$job" && exit 1; }
attempts=$(client job describe "$job" -o json | python3 tests/hosts/rank_worker.py --attempt)
((attempts > 1)) || { echo "FAILED: no drain moved the job" && exit 1; }
# Steps that two attempts have computed have the same figures.
for attempt in $(seq "$attempts"); do client job metrics "$job" --attempt "$attempt" | exact_figures; done >"$work/attempts.figures"
sort -u "$work/attempts.figures" | sort -n >"$work/inside.figures"
echo "rolling update: every container was replaced; the job had $attempts attempts"

# The same outside of containers. Tokens are where the containers see them.
export NIBBLE_HOME=$work/outside
bazel-bin/client/nibble cluster up --workers 2 --slots 1 >"$work/up.log" 2>&1 || { cat "$work/up.log" && exit 1; }
settings=("${settings[@]//\/corpus\//$(readlink -f "$out/corpus")/}")
job=$(bazel-bin/client/nibble job submit examples/quickstart.yaml "${settings[@]}")
bazel-bin/client/nibble job wait "$job" --timeout 10m >/dev/null 2>"$work/client.log"
bazel-bin/client/nibble job metrics "$job" | exact_figures >"$work/outside.figures"
same_figures "$work/outside.figures" "$work/inside.figures" "$steps"
echo "images: passed"
