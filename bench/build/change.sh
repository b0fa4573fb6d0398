#!/bin/bash
# Change one file, run its room's tests: for each room, the seconds from the change to the last result, and how long
# its longest test program ran. What is not changed has been built and tested before.
#
#   bench/build/change.sh [ROOM…]      e.g. recipe server/scheduler
#
# The change is one line at the end of the room's largest source file; it is taken back.
set -euo pipefail
cd "$(dirname "$0")/../.."
source third_party/debian/install.sh
[ $# -gt 0 ] || set -- common recipe job server/scheduler server/state server/store worker/checkpoint worker/link \
  worker/trainer/data client/shell
changed=""
restore() { [ -z "$changed" ] || sed -i '$ d' "$changed"; changed=""; }
trap restore EXIT
cores=$(nproc)
echo "on $cores cores, $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1)"
printf '%-24s %-32s %8s %8s\n' room 'changed file' seconds tests
for room in "$@"; do
  log=$(mktemp)
  bazel test "$(bazel_flags)" "//$room:all" >"$log" 2>&1 || { tail -n 20 "$log"; exit 1; }
  changed=$(ls -S "$room"/*.cc | grep -vE '_test\.cc$|testing\.cc$|main\.cc$' | head -1)
  # A function of the file's own, so that its object differs.
  echo "namespace nibble { int ChangedAt$(date +%s)() { return 1; } }" >>"$changed"
  begin=$EPOCHREALTIME
  bazel test "$(bazel_flags)" "//$room:all" >"$log" 2>&1 || { tail -n 20 "$log"; exit 1; }
  seconds=$(awk "BEGIN { print $EPOCHREALTIME - $begin }")
  tests=$(grep -oE 'PASSED in [0-9.]+' "$log" | awk '{ if ($3 > most) most = $3 } END { print most }')
  printf '%-24s %-32s %8.1f %8.1f\n' "$room" "$(basename "$changed")" "$seconds" "$tests"
  restore
  rm -f "$log"
done
