#!/usr/bin/env bash
# Prepares a corpus from Debian packages: text, and token shards for training and for validation. Whole
# documents are held out for validation.
#
#   examples/prepare_corpus.sh DIRECTORY [NAME...]
#
#   NAME        package          text
#   anarchism   anarchism        143 long pages of English, 11.7 MB (the default)
#   wordnet     wordnet-base     117,659 meanings with their words, 11.6 MB
#   python      python3.11-doc   the sources of Python's documentation, 11.0 MB
#
# DIRECTORY/NAME then contains text/, train.tokens and validation.tokens. Missing packages are installed
# (apt-get, as root or with sudo). An existing corpus that was made with the same package and options is
# kept.
#
#   NIBBLE      the command (default: bazel-bin/client/nibble of this repository, else the one on PATH)
#   TOKENIZER   bytes (default); a SentencePiece .model file; or a number N: trains a model with N
#               pieces on the first NAME; the others use it too, so that they can be blended
#   VALIDATION  share of the documents that is held out (default 0.05)
set -euo pipefail

usage="usage: examples/prepare_corpus.sh DIRECTORY [anarchism|wordnet|python]..."
directory=${1:?$usage}
shift
names=("$@")
((${#names[@]} > 0)) || names=(anarchism)
repository="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
source "$repository/third_party/debian/install.sh"
nibble=${NIBBLE:-$repository/bazel-bin/client/nibble}
[[ -n ${NIBBLE:-} || -x $nibble ]] || nibble=$(command -v nibble || echo "$nibble")
tokenizer=${TOKENIZER:-bytes}
validation=${VALIDATION:-0.05}

fail() {
  echo "error: $*" >&2
  exit 1
}

# NAME -> its package, the text's directory in the package, how the text is split into documents.
describe() {
  case $1 in
    anarchism) package=anarchism source=/usr/share/doc/anarchism/markdown split=(--split file) ;;
    wordnet) package=wordnet-base source=/usr/share/wordnet split=(--split paragraphs) ;;
    python) package=python3.11-doc source=/usr/share/doc/python3.11/html/_sources split=(--split file) ;;
    *) fail "NAME: '$1' is not anarchism, wordnet or python; $usage" ;;
  esac
}

for name in "${names[@]}"; do describe "$name"; done
[[ -x $nibble ]] || fail "there is no program $nibble; run 'bazel build //client:nibble' or set NIBBLE"
case $tokenizer in
  bytes) ;;
  *[!0-9]*) [[ -f $tokenizer ]] || fail "TOKENIZER: there is no file $tokenizer" ;;
esac

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

# Provides the package's text under $root$source. Minimal systems (containers) may skip /usr/share/doc
# when they install; then the package is unpacked into the work directory.
fetch() {
  root=""
  if ! dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed'; then
    echo "$name: installing the Debian package $package"
    apt_install "$package"
  fi
  [[ -d $source ]] && return
  echo "$name: $package is installed without $source; unpacking the package into a temporary directory"
  (cd "$work" && apt-get download "$package") >"$work/apt.log" 2>&1 || {
    tail -n 20 "$work/apt.log" >&2
    fail "apt-get could not download $package"
  }
  root="$work/$package"
  dpkg-deb -x "$work/${package}"_*.deb "$root"
  [[ -d $root$source ]] || fail "$package has no $source"
}

# $root$source -> the folder $1 of text files.
extract() {
  mkdir -p "$1"
  local file
  case $name in
    anarchism)
      for file in "$root$source"/*.md*; do
        if [[ $file == *.gz ]]; then
          gunzip -c "$file" >"$1/$(basename "$file" .gz)"
        else
          cp "$file" "$1/"
        fi
      done
      ;;
    wordnet)
      # offset file type count(hex) word id word id ... | meaning; the licence above has lines that begin
      # with spaces. An empty line after each entry allows a document to end there.
      for file in noun verb adj adv; do
        awk '/^[0-9]/ {
          bar = index($0, " | ")
          words = ""
          n = strtonum16($4)
          for (i = 0; i < n; ++i) words = words (i ? ", " : "") $(5 + 2 * i)
          gsub("_", " ", words)
          meaning = substr($0, bar + 3)
          sub(/ +$/, "", meaning)
          print words ": " meaning "\n"
        }
        function strtonum16(hex,  value, k) {
          value = 0
          for (k = 1; k <= length(hex); ++k)
            value = 16 * value + index("0123456789abcdef", substr(hex, k, 1)) - 1
          return value
        }' "$root$source/data.$file" >"$1/$file.txt"
      done
      ;;
    python)
      (cd "$root$source" && find . -name '*.rst.txt' -printf '%P\n' | sort) |
        while IFS= read -r file; do
          cp "$root$source/$file" "$1/${file//\//-}"
        done
      ;;
  esac
}

mkdir -p "$directory"
for name in "${names[@]}"; do
  describe "$name"
  out="$directory/$name"
  flags=(--validation-fraction "$validation" --seed 1 "${split[@]}")
  case $tokenizer in
    bytes) ;;
    *[!0-9]*) flags+=(--tokenizer "$tokenizer") ;;
    *) flags+=(--train-tokenizer "$tokenizer") ;;
  esac
  fetch
  version="$(dpkg-query -W -f='${Version}' "$package")"
  made="$package $version, ${flags[*]}"
  if [[ -f $out/train.tokens && "$(cat "$out/made" 2>/dev/null)" == "$made" ]]; then
    echo "$name: already in $out"
  else
    rm -rf "$out/text" "$out/made"
    mkdir -p "$out"
    extract "$out/text.new"
    mv "$out/text.new" "$out/text"
    echo "$name: $(find "$out/text" -type f | wc -l) files of text, $(du -sk "$out/text" | cut -f1) kB"
    "$nibble" data tokenize "$out/text" --output-dir "$out" --overwrite "${flags[@]}"
    "$nibble" data verify "$out"/*.tokens
    echo "$made" >"$out/made"
  fi
  if [[ $tokenizer != bytes && $tokenizer != *[!0-9]* ]]; then
    label="$("$nibble" data inspect "$out/train.tokens" | awk '$1 == "tokenizer" { print $2 }')"
    tokenizer="$out/${label/:/-}.model"
  fi
done
