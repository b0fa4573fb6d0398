#!/usr/bin/env bash
# The programs of the last release beside those of this tree; ./test.sh --upgrade runs it.
#   tests/upgrade/upgrade.sh [BAZEL-FLAGS...]
# The release is the commit that RELEASE names. Its source is that of git, built once, in a folder of its own below ~/.cache/nibble.
set -euo pipefail
cd "$(dirname "$0")/../.."
source third_party/debian/install.sh
install_packages

release="$(grep -v '^#' tests/upgrade/RELEASE)"
git cat-file -e "$release^{commit}" || {
  echo "upgrade: git has no commit '$release', the release of tests/upgrade/RELEASE; if the clone is shallow: git fetch --unshallow"
  exit 1
}
programs="${XDG_CACHE_HOME:-$HOME/.cache}/nibble/release-${release:0:12}"
if [[ ! -e $programs/complete ]]; then
  echo "upgrade: building the release, ${release:0:12}"
  rm -rf "$programs"
  mkdir -p "$programs/source"
  git archive "$release" | tar -x -C "$programs/source"
  (
    cd "$programs/source"
    # Also ends the server of this folder, however the build ends: its objects stay in the disk cache.
    trap 'bazel clean --expunge' EXIT
    bazel build "$(bazel_flags)" --define=COMMIT="${release:0:12}" //client:nibble //server:nibble-coordinator \
      //worker/agent:nibble-worker //worker/agent:nibble-export //worker/trainer/loop:nibble-trainer
    install -m 755 bazel-bin/client/nibble bazel-bin/server/nibble-coordinator bazel-bin/worker/agent/nibble-worker \
      bazel-bin/worker/agent/nibble-export bazel-bin/worker/trainer/loop/nibble-trainer "$programs/"
  )
  rm -rf "$programs/source"
  touch "$programs/complete"
fi
bazel test "$(bazel_flags)" "$@" --test_output=errors --test_env=NIBBLE_RELEASE_PROGRAMS="$programs" //tests/upgrade:upgrade_test
