#!/bin/bash
# Makes ./bundle, and bundle.tar.xz of it: programs for a GPU node that has the driver, CUDA and glibc, and nothing else
# installed.
#
#   ./bundle.sh                builds and bundles the service, the checks and the benchmarks
#   ./bundle.sh PROGRAM...     bundles these programs, which must be built; no bundle.tar.xz
#
# bundle/INSTALL.md says how to install it as a service. On the node, from any directory, each prints a short table last:
#
#   bundle/gpu-check.sh        the quantisers: worked vectors, the CPU's bits, speed
#   bundle/kernel-checks.sh    GEMMs, attention, Mamba-2, rows, gradients of whole models: compared with the CPU, and timed
#   bundle/service-test.sh     the whole service: a job, a live switch, a rank killed 20 times (needs Python)
#   bundle/presets-test.sh     losses of every recipe preset on the card beside the CPU's (needs Python)
#   bundle/trainer-tests.sh    the tests of whole runs, of kills and of resuming, on the card
#   bundle/sanitizer.sh        compute-sanitizer's tools over the checks (needs Python)
#   bundle/nccl-check.sh       collectives between cards: bits, lost ranks, times beside NCCL's own; --ranks 2
#   bundle/ranks-test.sh       a job on several cards, every way in which ranks exchange; 2 ranks; 1: on one card (needs Python)
#   bundle/cluster-test.sh     two daemons with half of the cards each, one job across them: a timeline, a live switch, ranks and a daemon lost,
#                              elastic sizes; `4 cuda 60`: four cards, and ranks that survive keep their process
#   bundle/scaling.sh          the same work per card on 1, 2 and more cards, every level of sharding, beside PyTorch's DDP
#   bundle/step-bench.sh       whole training steps; arguments as step_bench --device cuda
#   bundle/beside-torch.sh     the same beside PyTorch, if it is there
#   bundle/checkpoints.sh      what snapshots cost the steps of a job on the card (needs Python)
#   bundle/learning.sh         losses of BF16, NVFP4 and MXFP4 over 200 M tokens of the node's own text (needs Python)
#   bundle/with.sh PROGRAM...  runs any of the bundled programs, such as nibble
set -euo pipefail
cd "$(dirname "$0")"
source third_party/debian/install.sh

targets=(
  //client:nibble //server:nibble-coordinator //worker/agent:nibble-worker //worker/agent:nibble-export //worker/trainer/loop:nibble-trainer
  //kernels/cuda:gpu_check //kernels/cuda/gemm:gemm_check
  //kernels/cuda/layers:attention_check //kernels/cuda/layers:mamba_check //kernels/cuda/layers:row_check
  //bench/nccl:nccl_check //bench/step:gradient_check //bench/step:step_bench //tests/trainer:tests_program
)
packed=0
if [ $# -eq 0 ]; then
  packed=1
  install_packages
  report_cuda
  commit=$(git describe --always --dirty --exclude '*' --abbrev=12 2>/dev/null || true)
  bazel build "$(bazel_flags)" --define=COMMIT="$commit" --//third_party/cuda:targets=90a,100a "${targets[@]}"
  for target in "${targets[@]}"; do
    path=${target#//}
    set -- "$@" "bazel-bin/${path/://}"
  done
fi

out=bundle
rm -rf "$out"
mkdir -p "$out/bin" "$out/lib" "$out/vectors"
cp testdata/vectors/*.md "$out/vectors/"

# How to install it, with the units of the Debian package for programs in /opt/nibble.
mkdir -p "$out/systemd" "$out/guide" "$out/examples"
cp deploy/bundle/INSTALL.md "$out/"
cp docs/guide/*.md "$out/guide/"
cp examples/*.yaml "$out/examples/"
cp deploy/systemd/*.default "$out/systemd/"
for unit in deploy/systemd/*.service; do
  sed 's#^ExecStart=/usr/bin/#ExecStart=/opt/nibble/with.sh #' "$unit" > "$out/systemd/${unit##*/}"
done

# Libraries of glibc and CUDA are the node's; all others are bundled.
on_node='^(linux-vdso|ld-linux|libc|libm|libdl|librt|libpthread|libresolv|libutil|libanl|libmvec|libnsl)\b|^lib(cuda|cudart|cublas|cublasLt|cudnn|nccl|nvrtc|nvidia|nvJitLink|cufft|curand|cusparse|cusolver)'

for program in "$@"; do
  name=$(basename "$program")
  install -m 755 "$program" "$out/bin/$name"
  strip "$out/bin/$name"
  missing=$(ldd "$program" | grep 'not found' | grep -vE '^\s*lib(cuda|nccl|cudnn)' || true)
  if [ -n "$missing" ]; then
    echo "bundle: $program needs libraries that are not installed:" >&2
    echo "$missing" >&2
    exit 1
  fi
  ldd "$program" | awk '$2 == "=>" && $3 ~ /^\// { print $1, $3 }' | while read -r soname path; do
    if [[ ! $soname =~ $on_node ]]; then
      install -m 644 "$(readlink -f "$path")" "$out/lib/$soname"
    fi
  done
done

[ ! -e "$out/bin/nibble" ] || "$out/bin/nibble" --version > "$out/VERSION"

# Where programs find their libraries: the bundle, CUDA, the system, and NCCL if only a Python package has it.
cat > "$out/libraries.sh" <<'SCRIPT'
export LD_LIBRARY_PATH="$here/lib:/usr/local/cuda/targets/x86_64-linux/lib:/usr/lib/x86_64-linux-gnu${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
if ! (IFS=:; for folder in $LD_LIBRARY_PATH; do [ -e "$folder/libnccl.so.2" ] && exit 0; done; exit 1); then
  nccl=$(python3 -c 'import nvidia.nccl; print(list(nvidia.nccl.__path__)[0] + "/lib")' 2> /dev/null || true)
  if [ -n "$nccl" ]; then export LD_LIBRARY_PATH="$LD_LIBRARY_PATH:$nccl"; fi
fi
SCRIPT

cat > "$out/with.sh" <<'SCRIPT'
#!/bin/bash
# Runs a bundled program with the bundled libraries: with.sh nibble cluster status
here=$(cd "$(dirname "$0")" && pwd)
source "$here/libraries.sh"
exec "$here/bin/$1" "${@:2}"
SCRIPT

cat > "$out/gpu-check.sh" <<'SCRIPT'
#!/bin/bash
# Compares the CUDA backend with the worked vectors and, bit for bit, with the CPU backend; then measures its
# speed. Arguments are passed to gpu_check.
here=$(cd "$(dirname "$0")" && pwd)
vectors=()
for file in "$here"/vectors/*.md; do vectors+=(--vectors "$file"); done
exec "$here/with.sh" gpu_check "${vectors[@]}" "$@"
SCRIPT

cat > "$out/kernel-checks.sh" <<'SCRIPT'
#!/bin/bash
# Checks and times the kernels of a training step. One check that fails or hangs does not hide the others; details in
# kernel-checks/.
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p kernel-checks
failed=0
run() {
  local name=$1
  shift
  if timeout -k 5 300 "$here/with.sh" "$@" > "kernel-checks/$name.log" 2>&1; then
    echo "$name: $(tail -1 "kernel-checks/$name.log")"
  else
    echo "$name: FAILED, see kernel-checks/$name.log"
    failed=1
  fi
}
run rows row_check
for path in rows simple mma hopper; do run "attention-$path" attention_check --path "$path" --no-time; done
run attention-times attention_check --no-check
run mamba mamba_check
run products gemm_check check
run product-times gemm_check time
run gradients gradient_check --device cuda
exit $failed
SCRIPT

cat > "$out/nccl-check.sh" <<'SCRIPT'
#!/bin/bash
# The collectives between the cards of this machine. Arguments are passed to nccl_check.
here=$(cd "$(dirname "$0")" && pwd)
exec "$here/with.sh" nccl_check "$@"
SCRIPT

for test in service presets ranks cluster; do
  cat > "$out/$test-test.sh" <<SCRIPT
#!/bin/bash
# A test on a card; see $test.py.
here=\$(cd "\$(dirname "\$0")" && pwd)
source "\$here/libraries.sh"
exec python3 "\$here/tests/$test.py" "\$here/bin" "\$@"
SCRIPT
done

cat > "$out/trainer-tests.sh" <<'SCRIPT'
#!/bin/bash
# tests/trainer with the card as the device of every run. Arguments are those of googletest.
here=$(cd "$(dirname "$0")" && pwd)
source "$here/libraries.sh"
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
mkdir -p "$tree/nibble/worker/trainer/loop" "$tree/nibble/client" "$tree/tmp"
ln -s "$here/bin/nibble-trainer" "$tree/nibble/worker/trainer/loop/"
ln -s "$here/bin/nibble" "$tree/nibble/client/"
cd "$tree/nibble"
# The late device stands in for a card; its tests are not for one.
NIBBLE_TEST_DEVICE=cuda TEST_SRCDIR="$tree" TEST_WORKSPACE=nibble TEST_TMPDIR="$tree/tmp" \
  "$here/bin/tests_program" "${@:---gtest_filter=-*LateDevice*:*ATraceHasTheSteps*}"
SCRIPT

cat > "$out/step-bench.sh" <<'SCRIPT'
#!/bin/bash
# Whole training steps and each operation of one. Arguments are passed to step_bench.
here=$(cd "$(dirname "$0")" && pwd)
exec "$here/with.sh" step_bench --device cuda "$@"
SCRIPT

cat > "$out/beside-torch.sh" <<'SCRIPT'
#!/bin/bash
# Training steps beside PyTorch's; see beside_torch.py.
here=$(cd "$(dirname "$0")" && pwd)
source "$here/libraries.sh"
exec python3 "$here/gpu/beside_torch.py" "$here/bin" "$@"
SCRIPT

cat > "$out/checkpoints.sh" <<'SCRIPT'
#!/bin/bash
# Steps around a job's snapshots; see checkpoints.py.
here=$(cd "$(dirname "$0")" && pwd)
source "$here/libraries.sh"
exec python3 "$here/gpu/checkpoints.py" "$here/bin" "$@"
SCRIPT

cat > "$out/scaling.sh" <<'SCRIPT'
#!/bin/bash
# Weak scaling over the cards of this machine; see scaling.py.
here=$(cd "$(dirname "$0")" && pwd)
source "$here/libraries.sh"
exec python3 "$here/gpu/scaling.py" "$here/bin" "$@"
SCRIPT

cat > "$out/sanitizer.sh" <<'SCRIPT'
#!/bin/bash
# compute-sanitizer over the checks; see sanitizer.py.
here=$(cd "$(dirname "$0")" && pwd)
source "$here/libraries.sh"
exec python3 "$here/tests/sanitizer.py" "$here/bin" "$@"
SCRIPT

cat > "$out/learning.sh" <<'SCRIPT'
#!/bin/bash
# One model under several recipes on real text; see learning.py.
here=$(cd "$(dirname "$0")" && pwd)
source "$here/libraries.sh"
exec python3 "$here/gpu/learning.py" "$here/bin" "$@"
SCRIPT
chmod 755 "$out"/*.sh

mkdir -p "$out/tests" "$out/gpu" "$out/guards" "$out/peers"
cp tests/gpu/*.py "$out/tests/"
cp bench/gpu/*.py "$out/gpu/"
cp bench/guards/*.py "$out/guards/"
cp bench/peers/torch_transformer.py bench/peers/mamba_kernels.py bench/peers/copy_engines.py "$out/peers/"
du -sh "$out" | awk '{ print "bundle: " $1 " in " $2 }'
if [ $packed = 1 ]; then
  # The programs share most of their code: a dictionary that holds all of them keeps it once.
  tar cf - "$out" | xz --lzma2=preset=1,dict=512MiB > bundle.tar.xz
  sha256sum bundle.tar.xz > bundle.tar.xz.sha256
  du -sh bundle.tar.xz | awk '{ print "bundle: " $1 " in " $2 }'
fi
