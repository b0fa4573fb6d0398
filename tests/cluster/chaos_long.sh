#!/bin/bash
# The long chaos test: a hundred faults for each of three seeds, or as given:
#   tests/cluster/chaos_long.sh [FAULTS [SEED…]]
# The same seed gives the same faults in the same order.
set -euo pipefail
cd "$(dirname "$0")/../.."
faults=${1:-100}
shift || true
[ $# -gt 0 ] || set -- 1 2 3
bazel build --disk_cache="$HOME/.cache/nibble/bazel" //tests/cluster:chaos_test
program=$PWD/bazel-bin/tests/cluster/chaos_test
export TEST_SRCDIR=$program.runfiles TEST_WORKSPACE=nibble
for seed in "$@"; do
  "$program" --faults="$faults" --seed="$seed"
done
