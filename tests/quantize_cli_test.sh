#!/usr/bin/env bash
# The command `nibble quantize` as users run it: exit codes, stdout and stderr, no output file after an
# error.
set -uo pipefail
nibble=$1
make_tensors=$2
work="${TEST_TMPDIR:?}"
failures=0

check() { # name, condition already evaluated in $?
  if [[ $2 != 0 ]]; then echo "FAILED: $1" && failures=$((failures + 1)); fi
}
expect_exit() { # code, name, command...
  local code=$1 name=$2
  shift 2
  "$@" >"$work/stdout" 2>"$work/stderr"
  local got=$?
  [[ $got == "$code" ]]
  check "$name: exit code $got, expected $code" $?
}

"$make_tensors" "$work/in.safetensors"
check "make_tensors" $?

expect_exit 2 "no verb is a usage error" "$nibble"
expect_exit 2 "an unknown flag is a usage error" "$nibble" quantize a b --format nvfp4 --nope
expect_exit 2 "a missing format is a usage error" "$nibble" quantize a b
expect_exit 0 "help is not an error" "$nibble" quantize --help
expect_exit 0 "the version is printed" "$nibble" --version

expect_exit 0 "a table is printed" "$nibble" quantize "$work/in.safetensors" "$work/out.safetensors" --format nvfp4
grep -q 'gradient' "$work/stdout"
check "the table names the tensors" $?
[[ -s $work/out.safetensors && ! -s $work/stderr ]]
check "the output is written and stderr is empty" $?

expect_exit 0 "JSON is printed" "$nibble" quantize "$work/in.safetensors" "$work/out2.safetensors" \
  --format nvfp4 --block 16x16 --transpose -o json
grep -q '"relative_error": 0\.' "$work/stdout"
check "JSON has the figures" $?

# Equal draws give equal files; another step gives different ones.
stochastic=(--format nvfp4 --rounding stochastic --hadamard 16 --transpose --seed 7 --stream 3)
expect_exit 0 "stochastic a" "$nibble" quantize "$work/in.safetensors" "$work/a" "${stochastic[@]}" --step 1 --threads 1
expect_exit 0 "stochastic b" "$nibble" quantize "$work/in.safetensors" "$work/b" "${stochastic[@]}" --step 1 --isa scalar
expect_exit 0 "stochastic c" "$nibble" quantize "$work/in.safetensors" "$work/c" "${stochastic[@]}" --step 2
cmp -s "$work/a" "$work/b"
check "threads and instruction set do not matter" $?
! cmp -s "$work/a" "$work/c"
check "the step matters" $?

expect_exit 2 "an unknown format is a usage error" "$nibble" quantize "$work/in.safetensors" "$work/none" --format nvfp5
grep -q "nvfp5 not in {nvfp4,mxfp4" "$work/stderr"
check "the formats are listed" $?
head -c 1000 "$work/in.safetensors" >"$work/cut.safetensors"
expect_exit 1 "a truncated file is an error" "$nibble" quantize "$work/cut.safetensors" "$work/none" --format nvfp4
[[ ! -e $work/none && ! -s $work/stdout ]]
check "no output after an error" $?
expect_exit 1 "an output that cannot be written is an error" \
  "$nibble" quantize "$work/in.safetensors" "$work/no/such/folder/out" --format nvfp4

# Without standard output the descriptor's number must not go to the output file, nor the loss of the table unnoticed.
for lost in '>&-' '>/dev/full'; do
  expect_exit 1 "lost output is an error ($lost)" bash -c "'$nibble' quantize '$work/in.safetensors' '$work/lost' \
    --format nvfp4 $lost"
  grep -q 'cannot write to stdout' "$work/stderr"
  check "lost output is named ($lost)" $?
  cmp -s "$work/lost" "$work/out.safetensors"
  check "the output file has only what belongs there ($lost)" $?
done

if ((failures > 0)); then exit 1; fi
echo "all as expected"
