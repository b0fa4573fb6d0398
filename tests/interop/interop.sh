#!/usr/bin/env bash
# Compares Nibble with packages of PyPI, in Python environments of its own: transformers in both
# directions (live_check.py), PyYAML on its YAML (yaml_check.py), gRPC's Python client on its
# coordinator's API (foreign_client.py), TensorBoard on its event files (tensorboard_check.py),
# OpenTelemetry's messages on its traces (otlp_check.py), and llm-compressor, compressed-tensors,
# lm-eval and megatron-core on its weights, figures and data (parity_check.py); and reads its dashboards with the models of Grafana's SDK, of the oldest and of a
# recent version (dashboards_check.py); and uploads to moto's S3 server (object_store_check.py, and
# a whole cluster with object_store_cluster_check.py):
#   tests/interop/interop.sh
# There is an environment for each requirements file, in ${XDG_CACHE_HOME:-~/.cache}/nibble; it is
# made again when the file changes. PyPI's torch includes CUDA (some 5 GB, twice: the packages of
# requirements-parity.txt need an older one); to use an index with a smaller torch, set pip's
# PIP_INDEX_URL or PIP_EXTRA_INDEX_URL.
set -euo pipefail
cd "$(dirname "$0")/../.."
here=tests/interop
source third_party/debian/install.sh

# Sets `python` to the interpreter of an environment with the packages of $1.
choose_environment() {
  local made_of environment
  made_of="$(sha256sum "$1" | cut -c1-12)"
  environment="${XDG_CACHE_HOME:-$HOME/.cache}/nibble/interop-$made_of"
  if [[ ! -e $environment/complete ]]; then
    echo "interop: making $environment"
    rm -rf "$environment"
    mkdir -p "$(dirname "$environment")"
    python3 -m venv "$environment"
    "$environment/bin/pip" install --quiet --disable-pip-version-check -r "$1"
    touch "$environment/complete"
  fi
  python="$environment/bin/python"
}

install_packages python3-venv
export PYTHONDONTWRITEBYTECODE=1
bazel build "$(bazel_flags)" //$here:hf-logits //$here:export-random //$here:export-tokenizer \
  //$here:encode-texts //$here:yaml-of-json //client:nibble //server:nibble-coordinator //worker/agent:nibble-worker //worker/trainer/loop:nibble-trainer
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
mkdir "$work/parity"

for version in 10 11; do
  choose_environment $here/requirements-grafana-$version.txt
  "$python" $here/dashboards_check.py deploy/grafana/dashboards/*.json
done

choose_environment $here/requirements.txt
"$python" $here/live_check.py bazel-bin/$here/hf-logits bazel-bin/$here/export-random \
  bazel-bin/$here/export-tokenizer bazel-bin/$here/encode-texts "$work"
"$python" $here/yaml_check.py bazel-bin/$here/yaml-of-json bazel-bin/client/nibble
"$python" $here/foreign_client.py bazel-bin/server/nibble-coordinator "$work"

choose_environment $here/requirements-tensorboard.txt
"$python" $here/tensorboard_check.py bazel-bin/client/nibble \
  bazel-bin/worker/trainer/loop/nibble-trainer "$work"

choose_environment $here/requirements-opentelemetry.txt
"$python" $here/otlp_check.py bazel-bin/client/nibble bazel-bin/server/nibble-coordinator "$work"

choose_environment $here/requirements-object-store.txt
"$python" $here/object_store_check.py bazel-bin/client/nibble "$work"
"$python" $here/object_store_cluster_check.py bazel-bin/client/nibble bazel-bin/server/nibble-coordinator \
  bazel-bin/worker/agent/nibble-worker bazel-bin/worker/trainer/loop/nibble-trainer "$work"

choose_environment $here/requirements-parity.txt
"$python" $here/parity_check.py bazel-bin/client/nibble bazel-bin/$here/hf-logits \
  bazel-bin/$here/export-random "$work/parity"
