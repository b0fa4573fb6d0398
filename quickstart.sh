#!/usr/bin/env bash
# From a fresh Debian 12 machine to a language model that trains in 4-bit floating point on a cluster of its
# own, and whose precision changes while it does. Asks nothing. What it makes is in ./quickstart.
#
#   ./quickstart.sh          leaves the cluster up, to look around
#   ./quickstart.sh --down   ends it at the end
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
report_cuda
say "build: the command line, the coordinator, the worker daemon, the trainer"
# shellcheck disable=SC2046  # several targets
bazel build "$(bazel_flags)" $(quickstart_targets)

began=$SECONDS
export NIBBLE_HOME="$root/quickstart"
unset NIBBLE_SERVER
mkdir -p "$NIBBLE_HOME"
export PATH="$root/bazel-bin/client:$PATH"

say "a cluster of real processes on this machine"
show nibble cluster up --workers 2 --slots 1
show nibble cluster status

say "a real corpus: 11 MB of English, held-out pages apart"
cd "$NIBBLE_HOME"
show "$root/examples/prepare_corpus.sh" corpus

say "a tiny Mamba-Transformer hybrid, trained in NVFP4"
job="$(nibble job submit "$root/examples/quickstart.yaml")"
echo "\$ nibble job submit examples/quickstart.yaml"
echo "$job"

# Meanwhile: from step 100 on, or right after it, the forward pass is to run in BF16.
{
  nibble job wait "$job" --step 100 >/dev/null &&
    nibble recipe set "$job" fprop=bf16 --reason "to see it happen" >switch.log 2>&1
} &
switch=$!

say "as it trains; in mid-run another command changes its recipe"
show nibble job watch "$job"
wait "$switch" || {
  cat switch.log >&2
  echo "error: the recipe was not changed" >&2
  exit 1
}

say "the change, as it was asked for, and the step at which it took force"
printf '$ nibble recipe set %s fprop=bf16 --reason "to see it happen"\n' "$job"
cat switch.log
show nibble recipe history "$job"

say "what is stored of it"
show nibble checkpoint list "$job"

say "the trained model, as Hugging Face safetensors, and what it writes"
rm -rf model
show nibble checkpoint export "$job" "$NIBBLE_HOME/model"
show nibble generate --from model --prompt "The people " --temperature 0.7 --max-tokens 200

say "done in $((SECONDS - began)) s after the build"
cat <<END
Where to look next, with
  export NIBBLE_HOME=$NIBBLE_HOME PATH=$root/bazel-bin/client:\$PATH

  nibble job describe $job                     everything about it; job events, job logs, job compare
  nibble job fork $job --at-step 200 --set wgrad=bf16 --name ablation --watch
                                                        the same training from there under another recipe
  nibble recipe get $job --table               every layer, operand by operand
  nibble worker list                                    and kill one: kill -9, then nibble job watch
  nibble cluster down                                   ends it; nibble cluster up goes on where it stood
END
if ((down)); then
  say "the end"
  show nibble cluster down
fi
