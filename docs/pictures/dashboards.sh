#!/usr/bin/env bash
# Makes docs/pictures/dashboard-*.svg: starts a cluster with Prometheus on this machine, runs jobs to which things
# happen for some minutes, and draws the dashboards from what Prometheus has stored.
#
#   docs/pictures/dashboards.sh [MINUTES]      default: 4
#
# Needs Debian's prometheus and python3. Prometheus scrapes every 5 seconds here, rather than every 15.
set -euo pipefail
cd "$(dirname "$0")/../.."
source third_party/debian/install.sh
minutes=${1:-4}
# shellcheck disable=SC2046  # several targets
bazel build "$(bazel_flags)" $(quickstart_targets)
NIBBLE_HOME="$(mktemp -d)"
export NIBBLE_HOME PATH="$PWD/bazel-bin/client:$PATH"
unset NIBBLE_SERVER
trap 'exit 1' INT TERM # so that the next one runs
trap 'nibble cluster down --grace 1 >/dev/null || true; rm -rf "$NIBBLE_HOME"' EXIT

nibble cluster up --workers 3 --slots 2 --dashboards
status="$(nibble cluster status -o json)"
# A field of Prometheus' entry.
of_prometheus() {
  python3 -c 'import json, sys
for one in json.load(sys.stdin)["processes"]:
    if one["role"] == "prometheus": print(one[sys.argv[1]])' "$1" <<<"$status"
}
sed -i 's/15s/5s/' "$NIBBLE_HOME/cluster/prometheus/prometheus.yml"
kill -HUP "$(of_prometheus pid)"

cat >"$NIBBLE_HOME/job.yaml" <<'YAML'
name: reference
model: tiny-hybrid
recipe: bf16
data: {train: [/usr/share/common-licenses/GPL-3], sequence: 64, validation_fraction: 0.1}
training: {steps: 100000, batch: 4}
optimizer: {lr: 0.003, warmup_steps: 20}
checkpoints: {every: 100, keep_last: 2}
metrics: {precision_every: 20, log_every: 1}
resources: {threads: 1}
guards: {max_skips: 1000000}
YAML
submit() { nibble job submit "$NIBBLE_HOME/job.yaml" --name "$@" | tail -n 1; }
reference="$(submit reference)"
job="$(submit train --set recipe=nvfp4 --set resources.ranks=2)"
wait_until() { while ((SECONDS < began + minutes * 60 * $1 / 100)); do sleep 1; done; }
began=$SECONDS
wait_until 40
nibble recipe set "$job" fprop=bf16 --reason "compare" >/dev/null
submit impossible --set resources.ranks=64 --set training.batch=64 >/dev/null
wait_until 55
nibble worker drain worker-1 --reason "maintenance" >/dev/null
submit broken --set optimizer.lr=10 --set optimizer.weight_decay=10 >/dev/null
wait_until 70
nibble worker uncordon worker-1 >/dev/null
wait_until 100
docs/pictures/dashboards.py "$(of_prometheus url)" --minutes "$minutes" --window 20s --set cluster=local \
  --set "job=$job" --set "reference=$reference" -o docs/pictures deploy/grafana/dashboards/*.json
