#!/usr/bin/env bash
# Replaces examples/prepare_corpus.sh in the test of the documentation: it makes the same files, from
# the licence texts that every Debian has, and installs no package.
set -euo pipefail
out="$1/anarchism"
mkdir -p "$out/text"
for file in /usr/share/common-licenses/*; do
  [[ -L $file ]] || cp "$file" "$out/text/$(basename "$file").md"
done
nibble data tokenize "$out/text" --output-dir "$out" --overwrite --validation-fraction 0.2 --seed 1 --split file
nibble data verify "$out"/*.tokens
