#!/usr/bin/env bash
# From a fresh Debian 12 machine to the numeric core at work: installs what is missing, builds, quantises
# three tensors in several ways, and times the quantisers against memcpy and the linear layer against
# its BF16 product. (Training jobs join it when the trainer and the service have landed.)
set -euo pipefail
cd "$(dirname "$0")"
source third_party/debian/install.sh

install_packages
report_cuda
echo "build: the command line and the benchmarks"
bazel build "$(bazel_flags)" //client:nibble //examples:make_tensors //bench:all

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
nibble=bazel-bin/client/nibble
bazel-bin/examples/make_tensors "$work/tensors.safetensors"

show() {
  echo
  echo "\$ nibble quantize tensors.safetensors out.safetensors $*"
  "$nibble" quantize "$work/tensors.safetensors" "$work/out.safetensors" "$@" | sed "s|$work/||"
}
show --format nvfp4
show --format nvfp4 --block 16x16
show --format nvfp4 --transpose --hadamard 16 --rounding stochastic --seed 1
show --format mxfp4
show --format fp8-block

echo
echo "Quantising against memcpy on the same threads (of_memcpy; target: what it is held to):"
bazel-bin/bench/quantize_bench --benchmark_filter='nvfp4/bf16/row/' --benchmark_min_time=0.3 2>/dev/null
echo
echo "A linear layer in NVFP4 against BF16 alone (of_bf16):"
bazel-bin/bench/linear_bench 2>/dev/null
echo
echo "Next: ./test.sh runs every test; $nibble quantize --help; README.md has the map of the rooms."
