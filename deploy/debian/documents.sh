#!/usr/bin/env bash
# Installs what people read and copy into a package's root. Below usr/share/doc/nibble files have the names of the repository, which the
# pages use.
#   deploy/debian/documents.sh ROOT
set -euo pipefail
cd "$(dirname "$0")/../.."
target=$1/usr/share/doc/nibble
# Without what only a build needs.
find -L README.md CONTRIBUTING.md docs examples/*.yaml examples/*.jsonl examples/prepare_corpus.sh third_party/debian/install.sh deploy/prometheus deploy/grafana \
  deploy/kubernetes -type f ! -name BUILD ! -name '*.cc' ! -name '*.h' ! -name '*_test.*' ! -name '*.pyc' -print0 |
  while IFS= read -r -d '' file; do
    mode=644
    [[ ! -x $file || $(head -c 2 "$file") != '#!' ]] || mode=755
    install -D -m $mode "$file" "$target/$file"
  done
