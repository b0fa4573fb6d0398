#!/usr/bin/env bash
# The dashboards are those that the generator makes; dashboards, rules and runbook pass lint.py; promtool accepts
# the configuration and runs the unit tests of the alerts; and lint.py finds faults that are put in.
set -uo pipefail
root=$PWD
export PYTHONDONTWRITEBYTECODE=1
failures=0

fail() {
  echo "FAILED: $*"
  failures=$((failures + 1))
}

command -v promtool >/dev/null || {
  echo "promtool: not found; install Debian's package prometheus"
  exit 1
}

python3 deploy/grafana/generate.py --check || fail "generated dashboards"
python3 deploy/lint.py "$root" || fail "lint"
promtool check config deploy/prometheus/prometheus.yml || fail "promtool check config"
promtool test rules deploy/prometheus/tests/alerts.yml || fail "promtool test rules"

# Each fault, put into a copy by sed, is found.
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
expect_fault() {
  local file=$1 edit=$2 message=$3
  rm -rf "$copy/docs" "$copy/deploy"
  cp -rL docs deploy "$copy"
  chmod -R u+w "$copy"
  sed -i "$edit" "$copy/$file"
  cmp -s "$file" "$copy/$file" && fail "the edit '$edit' changes nothing in $file"
  local found
  found=$(python3 deploy/lint.py "$copy")
  grep -q "$message" <<<"$found" || fail "no fault '$message' after '$edit', but: $found"
}
boards=deploy/grafana/dashboards
expect_fault $boards/job.json 's/"legendFormat": "MFU"/"legendFormat": ""/' "MFU: no legend"
expect_fault $boards/job.json 's/"unit": "flops"/"unit": ""/' "no unit"
expect_fault $boards/fleet.json 's/"title": "Slots"/"title": ""/' "no title"
expect_fault $boards/nodes.json '0,/"description": "Slots of each worker"/s//"description": ""/' "Slots: no description"
expect_fault $boards/nodes.json 's/Temperature of the chip. Needs an NVIDIA card./Temperature of the chip./' "does not say so"
expect_fault $boards/fleet.json '0,/"uid": "${datasource}"/s//"uid": "P1"/' "rather than the variable"
expect_fault $boards/fleet.json 's/cluster=\\"$cluster\\"/cluster=\\"lab\\"/' "is not a variable"
expect_fault $boards/fleet.json 's/nibble_slots_used{/nibble_slots_taken{/' "no program exports nibble_slots_taken"
expect_fault deploy/prometheus/rules/alerts.yml 's/severity: info/severity: low/' "severity is not"
expect_fault docs/guide/alerts.md 's/^## NibbleGuardActed/## Guards/' "NibbleGuardActed: no section"
expect_fault deploy/prometheus/tests/alerts.yml 's/alertname: NibbleWorkerLost/alertname: NibbleNoProgress/' "NibbleWorkerLost: no unit test in which it fires"
expect_fault deploy/prometheus/tests/alerts.yml 's/exp_alerts: \[\]//' "NibbleWorkerLost: no unit test in which it is quiet"

((failures == 0)) || exit 1
echo "dashboards, rules and runbook agree"
