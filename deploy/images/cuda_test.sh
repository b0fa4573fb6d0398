#!/usr/bin/env bash
# Builds the image with CUDA and runs it on a machine without a card: the libraries that the programs load are there, with everything that they
# load in turn; a job on the CPU trains; a job on a card is refused for want of a driver, by name. Prints sizes. ./test.sh --images runs it
# where CUDA's toolkit is.
#   deploy/images/cuda_test.sh [DIRECTORY]    default: dist, where image and package are kept and corpus is
#   NIBBLE_KEEP_IMAGE=1: uses the image that is there
# As root: containers and mmdebstrap need it.
set -euo pipefail
cd "$(dirname "$0")/../.."
source third_party/debian/install.sh
source tests/hosts/network.sh
out=${1:-dist}
version=$(sed -n 's/.*kVersion\[\] = "\(.*\)";/\1/p' common/version.h)
image=$out/nibble-$version-cuda.tar
((EUID == 0)) || { echo "error: deploy/images/cuda_test.sh needs root" >&2 && exit 1; }
install_packages iproute2 mmdebstrap python3 runc umoci
[[ -n ${NIBBLE_KEEP_IMAGE:-} && -e $image ]] || deploy/images/build.sh --cuda "$out"
[[ -d $out/corpus/anarchism ]] || examples/prepare_corpus.sh "$out/corpus"

work=$(mktemp -d)
cleanup() {
  runc --root "$work/runc" delete --force "$network_tag-alone" 2>/dev/null
  remove_network
  rm -rf --one-file-system "$work"
}
trap cleanup EXIT
mkdir -p "$work/layout" "$work/alone/state" "$work/jobs"
tar -C "$work/layout" -xf "$image"
umoci unpack --image "$work/layout:localhost/nibble:$version-cuda" "$work/bundle" 2>"$work/umoci.log" || { cat "$work/umoci.log" && exit 1; }
echo "image: $(du -h --apparent-size "$image" | cut -f1) compressed, $(du -sh "$work/bundle/rootfs" | cut -f1) unpacked"
grep -q 'NVIDIA_DRIVER_CAPABILITIES=compute,utility' "$work/bundle/config.json" || { echo "FAILED: containers do not ask for the driver" && exit 1; }

# Jobs of a few steps, on the CPU and on a card.
sed 's/^  steps: .*/  steps: 20/; s/warmup_steps: 20/warmup_steps: 5/; s#\bcorpus/#/corpus/#' examples/quickstart.yaml >"$work/jobs/cpu.yaml"
{ cat "$work/jobs/cpu.yaml" && printf '\nresources:\n  device: cuda\n'; } >"$work/jobs/card.yaml"
for device in cpu card; do printf '\noutput:\n  directory: /var/lib/nibble/%s\n' $device >>"$work/jobs/$device.yaml"; done
chown -R 10001:10001 "$work/alone/state"
chmod -R a+rX "$work/jobs" && chmod a+x "$work"
make_network
add_host alone 10.77.0.10

# inside COMMAND...: in a container of its own.
inside() {
  python3 deploy/images/container.py "$work/bundle" "$work/alone" --name alone --network "$(network_path alone)" --state "$work/alone/state" \
    --read-only "$(readlink -f "$out/corpus")=/corpus" --read-only "$work/jobs=/jobs" -- "$@"
  runc --root "$work/runc" run --bundle "$work/alone" "$network_tag-alone" </dev/null
}
# shellcheck disable=SC2016  # variables of the container's shell
inside sh -c 'for name in libcublasLt.so libnccl.so; do
  library=$(/sbin/ldconfig -p | sed -n "s/.*=> \(.*$name\..*\)/\1/p" | head -n 1)
  [ -n "$library" ] || { echo "FAILED: $name is not where programs search" && exit 1; }
  found=$(/lib64/ld-linux-x86-64.so.2 --list "$library") || exit 1
  case $found in *"not found"*) echo "FAILED: $library: $found" && exit 1 ;; esac
  echo "$library: found, $(stat -Lc %s "$library" | awk "{ printf \"%.0f MB\", \$1 / 1e6 }")"
done' 2>&1 | tee "$work/libraries"
if grep -q FAILED "$work/libraries"; then exit 1; fi
echo "programs: $(inside nibble --version)"
inside nibble-trainer --spec /jobs/cpu.yaml >"$work/cpu.log" 2>&1 || { tail -n 20 "$work/cpu.log" && exit 1; }
echo "on the CPU: $(tail -n 1 "$work/cpu.log")"
if inside nibble-trainer --spec /jobs/card.yaml >"$work/card.log" 2>&1; then
  echo "FAILED: a job for a card ran without one" && exit 1
fi
grep 'no NVIDIA driver' "$work/card.log" || { cat "$work/card.log" && echo "FAILED: the refusal does not name the driver" && exit 1; }
echo "image with CUDA: passed"
