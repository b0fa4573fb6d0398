#!/usr/bin/env bash
# Clang's thread-safety analysis of the rooms that share data between threads: it is an error to access a
# member declared ABSL_GUARDED_BY a lock without holding the lock.
#
# Needs clang++, and the generated headers of a build (bazel-bin).
set -uo pipefail
cd "$(dirname "$0")/../.."

rooms=(common common/metrics server/state server/store server/scheduler server/access server/controller server/service
  server/backup server/metrics server/notify worker/agent worker/checkpoint worker/link worker/metrics worker/trainer/comm)
flags=(-std=c++20 -fsyntax-only -DNOMINMAX -I. -Ibazel-bin -Wno-everything -Wthread-safety -Werror=thread-safety)
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

# First checks that the analysis detects an error.
cat >"$work/wrong.cc" <<'WRONG'
#include "common/mutex.h"
struct Counter {
  int Next() { return ++count_; }
  nibble::Mutex mutex_;
  int count_ ABSL_GUARDED_BY(mutex_) = 0;
};
WRONG
if clang++ "${flags[@]}" "$work/wrong.cc" 2>/dev/null; then
  echo "thread-safety analysis: error: a member read without its lock was not reported" >&2
  exit 1
fi

analyse() {
  local room=$1 file="$work/${1//\//_}.cc" source
  for source in "$room"/*.cc; do
    case $source in *_test.cc | *testing.cc | *main.cc) ;; *) echo "#include \"$source\"" ;; esac
  done >"$file"
  if clang++ "${flags[@]}" "$file" >"$file.log" 2>&1; then
    echo "thread-safety analysis: $room: $(grep -hc . "$file") files, $(grep -ho GUARDED_BY "$room"/*.h "$room"/*.cc | wc -l) guarded members"
  else
    cat "$file.log" >&2
    echo "thread-safety analysis: $room: error" >&2
    return 1
  fi
}
export -f analyse
export work
declare -p flags >"$work/flags"
printf '%s\n' "${rooms[@]}" | xargs -P "$(nproc)" -I{} bash -c 'source "$work/flags"; analyse {}'
