#!/usr/bin/env bash
# Installs what is missing, builds everything, runs every test; ends with the line `N passed, N failed`.
#   ./test.sh                    all tests
#   ./test.sh --sanitizers       numbers, checkpoints, readers, coordinator and daemon again under address and undefined-behaviour sanitizers
#   ./test.sh --threads          clang's thread-safety analysis of the rooms that share data between threads
#   ./test.sh --tsan             most of these rooms under the thread sanitizer
#   ./test.sh --quickstart       also quickstart.sh, from the cluster's start to its end
#   ./test.sh --interop          also beside PyPI's transformers, llm-compressor, lm-eval, megatron-core and Grafana's SDK, live, in environments of its own
#   ./test.sh --kubernetes       also the manifests: rendered, and checked against Kubernetes' schemas
#   ./test.sh --images           also the Debian package and the image: built, installed, and run in containers (needs root)
#   ./test.sh --hosts            also a cluster on hosts of their own that loses packets, a host and a certificate (needs root)
#   ./test.sh --upgrade          also the programs of the last release beside those of this tree, in one cluster
#   ./test.sh --config=tsan ...  any further flags go to Bazel
# NIBBLE_VECTORS=FILE:FILE names more files of worked vectors (testdata/vectors) to be tried.
set -uo pipefail
cd "$(dirname "$0")"
source third_party/debian/install.sh

sanitizers=0
threads=0
tsan=0
interop=0
quickstart=0
kubernetes=0
images=0
hosts=0
upgrade=0
flags=()
for argument in "$@"; do
  case $argument in
    --sanitizers) sanitizers=1 ;;
    --threads) threads=1 ;;
    --tsan) tsan=1 ;;
    --interop) interop=1 ;;
    --quickstart) quickstart=1 ;;
    --kubernetes) kubernetes=1 ;;
    --images) images=1 ;;
    --hosts) hosts=1 ;;
    --upgrade) upgrade=1 ;;
    *) flags+=("$argument") ;;
  esac
done

passed=0
failed=0

# A stage's name, after the minutes since the beginning.
stage() { printf '%d:%02d  %s\n' $((SECONDS / 60)) $((SECONDS % 60)) "$1"; }

finish() {
  stage "end"
  echo "$passed passed, $failed failed"
  ((failed == 0 && passed > 0)) || exit 1
  exit 0
}

# promtool checks what the programs show, Python generates and lints the dashboards and lints the manifests, Chromium opens a job's report.
extra=(prometheus python3 python3-yaml chromium)
((threads || sanitizers)) && extra+=(clang)
((sanitizers)) && extra+=(libclang-rt-dev)
install_packages "${extra[@]}" || { failed=1 && finish; }
report_cuda

# Counts test programs. A target that does not build is a failed one.
run_tests() {
  local log
  log="$(mktemp)"
  bazel test "$(bazel_flags)" "$@" 2>&1 | tee "$log" | grep --line-buffered -vE '^(Loading|Analyzing|INFO: (Build|Elapsed|From Linking|[0-9]))|gold: warning: Cannot export local symbol .__asan'
  local status=${PIPESTATUS[0]}
  local ok bad
  ok=$(grep -cE '^//[^ ]+ +(\(cached\) )?PASSED' "$log")
  bad=$(grep -cE '^//[^ ]+ .*(FAILED|TIMEOUT|NO STATUS)' "$log")
  if ((status != 0 && bad == 0)); then bad=1; fi
  passed=$((passed + ok))
  failed=$((failed + bad))
  rm -f "$log"
}

stage "build: everything"
if ! bazel build "$(bazel_flags)" "${flags[@]}" //... 2>&1 | grep --line-buffered -vE '^(Loading|Analyzing)'; [[ ${PIPESTATUS[0]} != 0 ]]; then
  failed=1
  finish
fi
stage "test: everything"
run_tests "${flags[@]}" //...
# In a run of its own: results of tests are kept by their environment.
if [[ -n ${NIBBLE_VECTORS:-} ]]; then
  stage "test: the worked vectors of NIBBLE_VECTORS"
  run_tests "${flags[@]}" --test_env=NIBBLE_VECTORS --test_filter='*Vector*' //kernels/cpu:tests
fi
if ((threads)); then
  stage "test: locks, by clang's thread-safety analysis"
  if tests/threads/analysis.sh; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
fi
if ((quickstart)); then
  stage "test: quickstart.sh"
  log="$(mktemp)"
  # The change of the recipe is there, and a step that ranks have run under it.
  if ./quickstart.sh --down >"$log" 2>&1 && grep -qE '^ +2 +[0-9]+ +yes .*fprop=bf16' "$log" &&
    grep -qE '^ *300 .*committed' "$log"; then
    grep '^== done' "$log"
    passed=$((passed + 1))
  else
    tail -n 40 "$log"
    failed=$((failed + 1))
  fi
  rm -f "$log"
fi
# A script that is one test.
run_script() {
  stage "test: $1"
  if "${@:2}"; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
}
if ((kubernetes)); then run_script "the manifests for Kubernetes" deploy/kubernetes/test.sh; fi
if ((images)); then run_script "the Debian package and the image" deploy/images/test.sh; fi
if ((images)) && cuda_home >/dev/null; then run_script "the image with CUDA" deploy/images/cuda_test.sh; fi
if ((hosts)); then
  run_script "a cluster on four hosts" tests/hosts/rehearsal.sh
  run_script "a cluster on four hosts, with certificates and tokens" tests/hosts/rehearsal.sh --secure
fi
if ((upgrade)); then run_script "the programs of the last release beside these" tests/upgrade/upgrade.sh "${flags[@]}"; fi
if ((interop)); then
  stage "test: models, figures, data and calls, compared with other packages'"
  if tests/interop/interop.sh; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
fi
if ((sanitizers)); then
  stage "test: numbers, checkpoints, readers, coordinator and daemon under address and undefined-behaviour sanitizers"
  # Without the layer kernels, and the tests that link them, such as the daemon's that run the trainer: four instrumented
  # instruction sets of them take longer than all the rest.
  run_tests "${flags[@]}" --config=asan --config=ubsan --build_tests_only -- //common/... //kernels/... \
    //recipe/... //job/... //worker/checkpoint/... //worker/trainer/data/... //worker/corpus/... //worker/link/... //tests/fuzz/... \
    //server/... //worker/agent/... //worker/metrics/... //client/shell/... //client/remote/... //client/cluster/... \
    -//kernels/cpu/layers/... -//kernels/late/... -//worker/agent:daemon_test -//worker/agent:daemon_gang_test
fi
if ((tsan)); then
  stage "test: coordinator, daemon, their link and collectives under the thread sanitizer"
  # Rooms that share data between threads: pure ones have none. Without the tests that link the layer kernels, as above,
  # and without Gloo between four processes, which takes minutes here.
  run_tests "${flags[@]}" --config=tsan --build_tests_only -- //tests/threads:races_test //common:tests //common/metrics/... \
    //server/store/... //server/backup/... //server/notify/... //server/controller/... //server/service/... //server/metrics/... \
    //worker/agent/... //worker/link/... //worker/metrics/... //worker/trainer/comm/... \
    -//worker/agent:daemon_test -//worker/agent:daemon_gang_test -//worker/trainer/comm:staged_collective_test \
    -//worker/trainer/comm:gloo_collective_test -//worker/trainer/comm:gloo_failure_test -//worker/trainer/comm:gloo_loss_test
fi
finish
