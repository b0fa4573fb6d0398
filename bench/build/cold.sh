#!/bin/bash
# A cold build: nothing built before, no cache. Prints the wall time, the actions, where the compile
# time went by room, the twenty dearest files, and the headers that cost most over all files.
#
#   bench/build/cold.sh                what ./quickstart.sh builds
#   bench/build/cold.sh //... [FLAG…]  these targets
#
# Builds in a directory of its own, which it removes, so that nothing already built is lost.
set -euo pipefail
cd "$(dirname "$0")/../.."
source third_party/debian/install.sh
[ $# -gt 0 ] || set -- $(quickstart_targets)
base=$(mktemp -d "${TMPDIR:-/tmp}/nibble-cold.XXXXXX")
trap 'bazel --output_base="$base/out" shutdown >/dev/null 2>&1; chmod -R u+w "$base"; rm -rf "$base"' EXIT
cores=$(nproc)
echo "cold build of $* on $cores cores, $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1)"
begin=$(date +%s)
bazel --output_base="$base/out" build --disk_cache= --profile="$base/profile.gz" "$@"
end=$(date +%s)
printf 'wall %d:%02d\n' $(((end - begin) / 60)) $(((end - begin) % 60))
python3 bench/build/report.py "$base/profile.gz" "$(bazel --output_base="$base/out" info execution_root)"
