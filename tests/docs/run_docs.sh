#!/usr/bin/env bash
# Runs the commands of the documentation against the real programs.
#
#   run_docs.sh PAGE.md...      from the root of the repository, or of a test's runfiles
#
# A fenced block that begins with
#   ```sh                  is run. The blocks of a page run in order, in one shell and one directory
#   ```sh no-test: REASON  is not run; its nibble commands and options must exist all the same
# Any other fenced block must not contain a line that starts with one of our commands.
#
# Each page gets a directory of its own with examples/ (jobs shrunk by shrink.sed, prepare_corpus.sh
# replaced by one that installs nothing), bazel-bin/ and an empty NIBBLE_HOME. NIBBLE_BIN names the
# programs' folder where that is not the current directory.
set -uo pipefail
root=$PWD
bin=${NIBBLE_BIN:-$root}
here="$root/tests/docs"
nibble="$bin/client/nibble"
failures=0
page="" work="" runner=""

fail() {
  echo "FAILED: $*"
  failures=$((failures + 1))
}

# Ends what the page has started.
clean_up() {
  [[ -n $runner ]] && kill "$runner" 2>/dev/null && wait "$runner" 2>/dev/null
  runner=""
  [[ -n $work ]] || return 0
  NIBBLE_HOME="$work/home" "$nibble" cluster down --grace 0 >/dev/null 2>&1
  rm -rf "$work"
  work=""
}

# The block that is running or has failed, and the end of its output.
show_current() {
  [[ -f $work/current ]] || return 0
  cat "$work/current"
  tail -n 40 "$work/output" | sed 's/^/  | /'
}

trap 'fail "$page: ended by a signal while it ran:"; show_current; clean_up; exit 1' TERM INT
trap clean_up EXIT

# Splits the page $1 into $2/NNNN.run and $2/NNNN.skip, named by line; prints what is wrong with a fence.
split_page() {
  awk -v page="$page" -v out="$2" '
    !inside && /^ *```/ {
      inside = 1
      info = $0
      sub(/^ *```/, "", info)
      file = ""
      if (info == "sh") file = sprintf("%s/%04d.run", out, NR)
      else if (info ~ /^sh no-test: ./) file = sprintf("%s/%04d.skip", out, NR)
      else if (info ~ /^sh/) printf "%s:%d: \"%s\" is neither \"sh\" nor \"sh no-test: REASON\"\n", page, NR, info
      if (file) printf "" > file
      next
    }
    inside && /^ *```/ { inside = 0; if (file) close(file); next }
    inside && file { print > file; next }
    inside && /^(nibble|nibble-[a-z]+|bazel|grpcurl|\.\/[a-z]|(examples|bench|tests)\/[a-z_\/]+\.sh)( |$)/ {
      printf "%s:%d: a command in a block that is not marked \"sh\": %s\n", page, NR, $0
    }
    END { if (inside) printf "%s: the last block is not closed\n", page }' "$1"
}

# The help of the program and verb that the words of a command name; nothing where there is none.
help_of() {
  local text
  case $1 in
    nibble)
      # `checkpoint trash` has verbs of its own.
      "$nibble" help "${@:2:3}" 2>/dev/null && return
      "$nibble" help "${@:2:2}" 2>/dev/null && return
      # A noun without verbs, such as generate, is followed by its arguments.
      text="$("$nibble" help "$2" 2>/dev/null)"
      grep -q '^Subcommands:' <<<"$text" || echo "$text"
      ;;
    nibble-coordinator)
      # Its only verbs are those of backups.
      if [[ ${2:-} == backup ]]; then
        "$bin/server/nibble-coordinator" "${@:2:2}" --help 2>/dev/null
      else
        "$bin/server/nibble-coordinator" --help
      fi
      ;;
    nibble-worker) "$bin/worker/agent/nibble-worker" --help ;;
    nibble-trainer) "$bin/worker/trainer/loop/nibble-trainer" --help ;;
  esac
}

# Checks that the commands of the block $1, which is not run, and their options exist.
check_commands() {
  local line words word text
  sed -e ':join' -e '/\\$/N; s/\\\n//; t join' "$1" | while IFS= read -r line; do
    line=${line%%[[:space:]]# *}
    read -ra words <<<"$line"
    [[ ${words[0]:-} == nibble || ${words[0]:-} == nibble-* ]] || continue
    text="$(help_of "${words[@]}")"
    [[ -n $text ]] || echo "$page: there is no command '${words[*]:0:3}'"
    for word in "${words[@]}"; do
      [[ $word == --?* ]] || continue
      grep -qE -- "(^|[ ,])${word%%=*}([ ,:]|$)" <<<"$text" || echo "$page: '$line': there is no option ${word%%=*}"
    done
  done
}

# What every page may use, in $work.
make_directory() {
  mkdir -p "$work/home" "$work/examples" "$work/bazel-bin"
  local file
  for file in "$root"/examples/*.yaml; do
    sed -f "$here/shrink.sed" "$file" >"$work/examples/$(basename "$file")"
  done
  [[ $(grep -cE 'threads: 1|batch: 8|sequence: 128|tiny-transformer' "$work/examples/quickstart.yaml") == 4 ]] ||
    fail "examples/quickstart.yaml: shrink.sed did not change all four of threads, batch, sequence and model"
  cp "$root/examples/questions.jsonl" "$work/examples/questions.jsonl"
  cp "$here/prepare_corpus.sh" "$work/examples/prepare_corpus.sh"
  for file in client server worker; do ln -s "$bin/$file" "$work/bazel-bin/$file"; done
}

# Runs the blocks of the page in one shell; the first command that fails ends it.
run_blocks() {
  cd "$work" || exit 1
  export HOME="$work" NIBBLE_HOME="$work/home" PATH="$work/bazel-bin/client:$work/bazel-bin/worker/trainer/loop:$PATH"
  PATH="$work/bazel-bin/server:$work/bazel-bin/worker/agent:$PATH"
  # What a page started in the background ends with it.
  trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
  unset NIBBLE_SERVER
  set -eE
  trap 'echo "    $BASH_COMMAND" >>"$work/current"' ERR
  local block
  for block in "$work"/blocks/*.run; do
    printf '%s:%s, the block\n' "$page" "$((10#$(basename "$block" .run)))" >"$work/current"
    sed 's/^/    /' "$block" >>"$work/current"
    echo "failed in:" >>"$work/current"
    # shellcheck disable=SC1090
    source "$block" >"$work/output" 2>&1 </dev/null
  done
}

(($# > 0)) || fail "usage: run_docs.sh PAGE.md..."
for page in "$@"; do
  began=$SECONDS
  before=$failures
  # A short path: sockets lie below it.
  work="$(mktemp -d /tmp/nibble-docs-XXXXXX)"
  mkdir "$work/blocks"
  while IFS= read -r problem; do fail "$problem"; done < <(split_page "$root/$page" "$work/blocks")
  runnable="$(find "$work/blocks" -name '*.run' | wc -l)"
  skipped="$(find "$work/blocks" -name '*.skip' | wc -l)"
  for block in "$work"/blocks/*; do [[ $block == *.run ]] && sed -i -f "$here/shrink.sed" "$block"; done
  while IFS= read -r problem; do fail "$problem"; done < <(
    for block in "$work"/blocks/*.skip; do [[ -f $block ]] && check_commands "$block"; done
  )
  make_directory
  if ((runnable == 0 && skipped == 0)); then
    fail "$page: no block is marked \"sh\", so nothing of it is tested"
  elif ((runnable > 0)); then
    run_blocks &
    runner=$!
    if ! wait "$runner"; then
      fail "$page: a command failed:"
      show_current
    fi
    runner=""
  fi
  ((failures == before)) && echo "ok: $page: $runnable blocks ran, $skipped did not, $((SECONDS - began)) s"
  clean_up
done
((failures == 0)) || exit 1
