#!/usr/bin/env bash
# From a fresh Debian 12 machine to a language model that trains in 4-bit floating point on a local cluster
# and changes its precision while it trains. Asks no questions; all results are in ./quickstart.
#
#   ./quickstart.sh          leaves the cluster running
#   ./quickstart.sh --down   stops it at the end
set -euo pipefail
cd "$(dirname "$0")"
root="$PWD"
source third_party/debian/install.sh

down=0
case ${1:-} in
  '') ;;
  --down) down=1 ;;
  *)
    echo "usage: ./quickstart.sh [--down]" >&2
    exit 2
    ;;
esac

say() { printf '\n== %s\n' "$*"; }
show() {
  printf '$ %s\n' "$*"
  "$@"
}

install_packages
# The slots of a worker are this machine's cards, or cores.
if command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; then
  device=cuda workers=1
  report_cuda
else
  device=cpu workers=2
  export NIBBLE_CUDA=0
  echo "no NVIDIA card here: CUDA code is left out of this build"
fi
say "build: the command line, the coordinator, the worker daemon, the trainer"
# shellcheck disable=SC2046  # several targets
bazel build "$(bazel_flags)" $(quickstart_targets)

began=$SECONDS
export NIBBLE_HOME="$root/quickstart"
unset NIBBLE_SERVER
mkdir -p "$NIBBLE_HOME"
export PATH="$root/bazel-bin/client:$PATH"

say "a cluster of real processes on this machine"
show nibble cluster up --workers "$workers" --slots 1 --device "$device"
show nibble cluster status

say "a corpus: 11 MB of English, with held-out pages for validation"
cd "$NIBBLE_HOME"
show "$root/examples/prepare_corpus.sh" corpus

say "a tiny Mamba-Transformer hybrid, trained in NVFP4"
job="$(nibble job submit "$root/examples/quickstart.yaml" --set "resources.device=$device")"
echo "\$ nibble job submit examples/quickstart.yaml --set resources.device=$device"
echo "$job"

# In the background: once step 100 is done, switch the forward pass to BF16.
{
  nibble job wait "$job" --step 100 >switch.log 2>&1 &&
    nibble recipe set "$job" fprop=bf16 --reason "live switch" >switch.log 2>&1
} &
switch=$!

say "training; in mid-run another command switches the forward pass to BF16"
show nibble job watch "$job"
wait "$switch" || {
  cat switch.log >&2
  echo "error: the recipe was not changed; nibble's message is above" >&2
  exit 1
}

say "the switch: the command, and the exact step at which it took effect"
printf '$ nibble recipe set %s fprop=bf16 --reason "live switch"\n' "$job"
cat switch.log
show nibble recipe history "$job"

say "its checkpoints"
show nibble checkpoint list "$job"

say "the trained model as Hugging Face safetensors, and text that it generates"
rm -rf model
show nibble checkpoint export "$job" "$NIBBLE_HOME/model"
show nibble generate --from model --prompt "The people " --temperature 0.7 --max-tokens 200

say "done in $((SECONDS - began)) s after the build"
cat <<END
Where to look next, with
  export NIBBLE_HOME=$NIBBLE_HOME PATH=$root/bazel-bin/client:\$PATH

  nibble job describe $job                     state, attempts, recipe; also job events, job logs, job compare
  nibble job fork $job --at-step 200 --set wgrad=bf16 --with-pending --name ablation --watch
                                                        the same training from step 200, with one field of its recipe changed
  nibble recipe get $job --table               the format of every operand of every layer
  nibble cluster status                                 process ids; kill -9 one and watch a job recover
  nibble cluster down                                   stops the cluster; jobs resume after the next nibble cluster up
END
if ((down)); then
  say "stopping the cluster"
  show nibble cluster down
fi
