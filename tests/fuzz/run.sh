#!/bin/sh
# Fuzzes one target and folds what it finds into the target's corpus:
#
#   tests/fuzz/run.sh TARGET [RUNS]      e.g. tests/fuzz/run.sh safetensors 1000000
#
# A target is TARGET_fuzz.cc, its library sources in the table below, optionally TARGET.dict, and
# corpus/TARGET/ with the seeds. There, files called rule-* are written by hand and always kept:
# each fails if one check is missing. The others are found and named by libFuzzer
# and are replaced by each run. Inputs that fail stay in the build folder and are
# named in the output; the script then fails and leaves the corpus alone. The bounds are chosen
# so that an allocation which follows a number in the input instead of its size is a finding.
#
# FUZZ_BUILD_DIR: where to build and keep findings (default: a new folder under TMPDIR).
set -eu

target=${1:?usage: tests/fuzz/run.sh TARGET [RUNS=1000000]}
runs=${2:-1000000}
cd "$(dirname "$0")/../.."

# Sources of the spec parser.
spec_sources="$(ls job/*.cc model/*.cc recipe/*.cc common/near_name.cc common/yaml_scalar.cc |
  grep -v -e '_test\.cc$' -e '_main\.cc$' -e '/write_reference')"
# Files of nibble.v1 that are compiled in.
protos=

case $target in
  safetensors)
    sources="common/safetensors/dtype.cc common/safetensors/header.cc
             common/safetensors/limits.cc common/safetensors/reader.cc
             common/errno_error.cc"
    packages="absl_status absl_statusor absl_strings absl_str_format absl_span absl_cleanup"
    max_len=4096
    ;;
  shard | raw_tokens | megatron)
    sources="worker/trainer/data/mapped_file.cc worker/trainer/data/token_source.cc
             worker/trainer/data/foreign_tokens.cc worker/trainer/data/shard.cc
             common/crc32c.cc common/errno_error.cc"
    packages="absl_status absl_statusor absl_strings absl_str_format absl_span absl_cleanup"
    max_len=2048
    ;;
  spec)
    sources="$spec_sources"
    packages="absl_status absl_statusor absl_strings absl_str_format absl_span
              absl_flat_hash_map yaml-cpp"
    max_len=4096
    ;;
  update)
    sources="$spec_sources common/crc32c.cc
             $(ls server/state/*.cc | grep -v -e '_test\.cc$' -e 'testing\.cc$')"
    packages="absl_status absl_statusor absl_strings absl_str_format absl_span absl_time
              absl_flat_hash_map yaml-cpp protobuf"
    protos="checkpoint common entities figure job job_requests metrics queue recipe update worker
            worker_link"
    max_len=4096
    ;;
  *)
    echo "tests/fuzz/run.sh: no target '$target' in its table (known: safetensors shard" \
      "raw_tokens megatron spec update)" >&2
    exit 2
    ;;
esac

build=${FUZZ_BUILD_DIR:-$(mktemp -d "${TMPDIR:-/tmp}/fuzz-$target.XXXXXX")}
mkdir -p "$build/new" "$build/merged" "$build/findings"

# Compiling an empty target tells whether both clang and its runtime are there.
if ! echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) {return 0;}' |
  clang++ -x c++ -fsanitize=fuzzer,address,undefined -o "$build/probe" - 2>/dev/null; then
  echo "tests/fuzz/run.sh: needs clang with libFuzzer: apt install clang libclang-rt-14-dev" >&2
  exit 2
fi

for proto in $protos; do
  protoc -I. --cpp_out="$build" "proto/nibble/v1/$proto.proto"
  sources="$sources $build/proto/nibble/v1/$proto.pb.cc"
done

# shellcheck disable=SC2046,SC2086  # lists of words
clang++ -std=c++20 -O1 -g -fno-omit-frame-pointer -Wall -Wextra -Werror -Wno-missing-field-initializers \
  -I. -I"$build" \
  -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all \
  "tests/fuzz/${target}_fuzz.cc" $sources $(pkg-config --cflags --libs $packages) \
  -o "$build/${target}_fuzz"

corpus=tests/fuzz/corpus/$target
mkdir -p "$corpus"
bounds="-rss_limit_mb=512 -malloc_limit_mb=256 -timeout=10 -max_len=$max_len"
dict=
[ ! -f "tests/fuzz/$target.dict" ] || dict=-dict=tests/fuzz/$target.dict

# shellcheck disable=SC2086
"$build/${target}_fuzz" $bounds $dict -runs="$runs" -print_final_stats=1 -use_value_profile=1 \
  -artifact_prefix="$build/findings/" "$build/new" "$corpus"

# Merges into an empty folder, so that stored inputs that add no coverage are dropped; the
# smallest inputs that reach every branch are kept. How often a loop runs (use_counters) tells
# fuzzing sessions apart, but would store several times as many files.
# shellcheck disable=SC2086
"$build/${target}_fuzz" $bounds -set_cover_merge=1 -use_counters=0 -artifact_prefix="$build/findings/" \
  "$build/merged" "$corpus" "$build/new" 2>"$build/merge.log" || {
  cat "$build/merge.log" >&2
  exit 1
}
find "$corpus" -type f ! -name 'rule-*' -delete
cp "$build/merged/"* "$corpus/"
echo "corpus: $(find "$corpus" -type f | wc -l) files," \
  "$(find "$corpus" -type f -exec cat {} + | wc -c) bytes"
