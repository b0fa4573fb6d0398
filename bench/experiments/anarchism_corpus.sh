#!/bin/bash
# Writes the corpus of precision_gap.py: the markdown of Debian's package anarchism as one text file, its
# files in the order of their names, and prints the file's size and SHA-256. Install the package first
# (apt-get install anarchism).
#   bench/experiments/anarchism_corpus.sh OUT.txt
set -euo pipefail
out=${1:?usage: bench/experiments/anarchism_corpus.sh OUT.txt}
source=/usr/share/doc/anarchism/markdown
[[ -d $source ]] || {
  echo "error: no directory $source: apt-get install anarchism (an image may leave out /usr/share/doc when it installs)" >&2
  exit 1
}
find "$source" -maxdepth 1 -type f | LC_ALL=C sort | while read -r file; do zcat -f "$file"; done >"$out"
wc -c <"$out"
sha256sum "$out"
