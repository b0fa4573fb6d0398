#!/usr/bin/env bash
# A cluster on four hosts with addresses of their own: a coordinator and three workers in network namespaces. A job trains while every host
# loses packets. One worker's cable is cut while its rank trains: the job continues on the others, the worker returns. Every loss is, bit for
# bit, that of an undisturbed run. With --secure a worker's certificate also expires: it is shut out, until the certificate is renewed.
#   tests/hosts/rehearsal.sh [--secure] [BIN]    BIN: directory with the programs; default: those that bazel has built
#   --secure        certificates and tokens (docs/guide/security.md)
#   NIBBLE_STEPS    steps of the job; default: 200
#   NIBBLE_LOSS     packets that are lost, in percent; default: 2
# Needs root. ./test.sh --hosts runs it.
set -euo pipefail
cd "$(dirname "$0")/../.."
source third_party/debian/install.sh
source tests/hosts/network.sh
source tests/hosts/losses.sh
here=tests/hosts
secure=0
[[ ${1:-} == --secure ]] && secure=1 && shift
steps=${NIBBLE_STEPS:-200}
((EUID == 0)) || { echo "error: tests/hosts/rehearsal.sh needs root" >&2 && exit 1; }
loss=${NIBBLE_LOSS:-2}
install_packages faketime iproute2 nftables openssl python3

work=$(mktemp -d)
processes=()
cleanup() {
  ((${#processes[@]} == 0)) || kill "${processes[@]}" 2>/dev/null || true
  wait
  remove_network
  rm -rf "$work"
}
trap cleanup EXIT
fail() {
  echo "FAILED: $*"
  tail -n 5 "$work"/*.log
  exit 1
}
bin=${1:-$work/bin}
if [[ $bin == "$work/bin" ]]; then
  mkdir "$bin"
  cp bazel-bin/client/nibble bazel-bin/server/nibble-coordinator bazel-bin/worker/agent/nibble-worker bazel-bin/worker/agent/nibble-export \
    bazel-bin/worker/trainer/loop/nibble-trainer "$bin/"
fi

coordinator_security=(--insecure)
client_security=()
worker_security() { echo --insecure; }
if ((secure)); then
  certs=$work/certs
  "$bin/nibble" cluster certs "$certs" --worker worker-1 --worker worker-2 --worker worker-3 --client rehearsal >/dev/null
  coordinator_security=(--tls-cert "$certs/coordinator.pem" --tls-key "$certs/coordinator-key.pem" --tls-ca "$certs/ca.pem"
    --bootstrap-token-file "$work/token")
  client_security=(--tls-cert "$certs/rehearsal.pem" --tls-key "$certs/rehearsal-key.pem" --tls-ca "$certs/ca.pem" --token-file "$work/token")
  worker_security() { echo --tls-cert "$certs/$1.pem" --tls-key "$certs/$1-key.pem" --tls-ca "$certs/ca.pem"; }
fi

# start HOST PROGRAM ARGUMENTS...: in the background, until the end of the rehearsal.
start() {
  local host=$1
  shift
  ip netns exec "$network_tag-$host" "$bin/$1" "${@:2}" >"$work/$host.log" 2>&1 &
  processes+=($!)
}
client() { on coordinator env NIBBLE_SERVER=10.77.0.10:7700 "$bin/nibble" "$@" "${client_security[@]}"; }
# until_true SECONDS WHAT COMMAND...: repeats the command.
until_true() {
  local left=$(($1 * 5)) what=$2
  shift 2
  until "$@" >/dev/null 2>&1; do
    ((left-- > 0)) || fail "$what"
    sleep 0.2
  done
}
worker_is() { [[ $(client worker describe "$1" -o json | python3 "$here/rank_worker.py" --presence) == "$2" ]]; }

make_network
declare -A address=([coordinator]=10.77.0.10 [worker-1]=10.77.0.11 [worker-2]=10.77.0.12 [worker-3]=10.77.0.13)
add_host coordinator "${address[coordinator]}"
start coordinator nibble-coordinator --cluster hosts --store "$work/store" --listen 10.77.0.10:7700 --lease-ms 3000 "${coordinator_security[@]}"
for number in 1 2 3; do
  name=worker-$number
  add_host $name "${address[$name]}"
  # shellcheck disable=SC2046  # several flags
  start $name nibble-worker --coordinator 10.77.0.10:7700 --data "$work/$name" --name $name --address "${address[$name]}:7710" --slots 1 \
    $(worker_security $name)
done
for number in 1 2 3; do until_true 60 "worker-$number does not connect" worker_is worker-$number present; done
echo "hosts: a coordinator and three workers$( ((secure)) && echo ', with certificates and tokens')"

for number in $(seq 400); do echo "Line $number of a text: the quick brown fox $((number * 7919 % 1000)) jumps over $((number * 104729 % 997)) lazy dogs."; done >"$work/text.txt"
cat >"$work/job.yaml" <<JOB
name: hosts
model: tiny-hybrid
recipe: nvfp4
data: {train: [$work/text.txt], validation: [{name: text, path: $work/text.txt}], sequence: 64}
training: {steps: $steps, batch: 4}
checkpoints: {every: 20, keep_last: 3}
metrics: {log_every: 1}
resources: {ranks: 2}
restarts: {backoff: 1}
JOB
submit() { client job submit "$work/job.yaml" --name "$1"; }

plain=$(submit plain)
client job wait "$plain" --timeout 5m >/dev/null 2>"$work/client.log" || fail "the job without a cut: $(client job describe "$plain")"
client job metrics "$plain" | exact_figures >"$work/plain.figures"

for name in coordinator worker-1 worker-2 worker-3; do lose_packets $name "$loss"; done
began=$SECONDS
lossy=$(submit lossy)
client job wait "$lossy" --timeout 8m >/dev/null 2>"$work/client.log" || fail "the job that loses packets: $(client job describe "$lossy")"
lost=0
for name in coordinator worker-1 worker-2 worker-3; do
  lost=$((lost + $(lost_packets $name)))
  lose_packets $name 0
done
((lost > 0)) || fail "no packet was lost"
client job metrics "$lossy" | exact_figures >"$work/lossy.figures"
[[ $(client job describe "$lossy" -o json | python3 "$here/rank_worker.py" --attempt) == 1 ]] || fail "a lost packet ended an attempt"
echo "loss: $lost packets lost, $loss of a hundred; trained in $((SECONDS - began)) s, one attempt"
same_figures "$work/plain.figures" "$work/lossy.figures" "$steps" || fail "figures"

cut=$(submit cut)
client job wait "$cut" --step $((steps / 4)) --timeout 2m >/dev/null 2>"$work/client.log" || fail "the job does not begin"
# The worker of rank 1: rank 0's log, with the figures of this attempt, stays in reach.
victim=$(client job describe "$cut" -o json | python3 "$here/rank_worker.py" 1) || fail "no worker has rank 1"
cut_cable "$victim"
began=$SECONDS
until_true 30 "$victim is not lost after its lease" worker_is "$victim" lost
echo "cut: $victim, lost after at most $((SECONDS - began)) s"
client job wait "$cut" --timeout 5m >/dev/null 2>"$work/client.log" || fail "the job with the cut: $(client job describe "$cut")"
mend_cable "$victim"
until_true 60 "$victim does not return" worker_is "$victim" present
echo "mended: $victim is present"
for attempt in 1 2; do
  client job metrics "$cut" --attempt $attempt | exact_figures >"$work/attempt-$attempt.figures"
  [[ -s $work/attempt-$attempt.figures ]] || fail "no figures of attempt $attempt"
done
# Steps between the checkpoint and the cut were computed twice, with the same result.
sort -u "$work"/attempt-[12].figures | sort -n >"$work/cut.figures"
same_figures "$work/plain.figures" "$work/cut.figures" "$steps" || fail "figures"

if ((secure)); then
  # Its certificate expires, and its connection breaks: it does not come back until the certificate is renewed. No process is restarted.
  # issue FAKETIME FLAGS...: a new certificate of the same authority, for the victim alone.
  issue() {
    rm -rf "$work/issued"
    mkdir "$work/issued"
    cp "$certs"/ca*.pem "$work/issued/"
    faketime -f "$1" "$bin/nibble" cluster certs "$work/issued" --worker "$victim" "${@:2}" >/dev/null 2>&1
    mv "$work/issued/$victim-key.pem" "$work/issued/$victim.pem" "$certs/"
  }
  issue -86395s --days 1
  until_true 30 "the certificate does not expire" bash -c "! openssl x509 -in '$certs/$victim.pem' -noout -checkend 0"
  cut_cable "$victim"
  until_true 30 "$victim is not lost after its lease" worker_is "$victim" lost
  mend_cable "$victim"
  on coordinator bash -c ": >/dev/tcp/${address[$victim]}/7710" || fail "$victim is not reached over the mended cable"
  lines=$(wc -l <"$work/coordinator.log")
  refused() { tail -n +"$((lines + 1))" "$work/coordinator.log" | grep -q 'certificate verify failed'; }
  until_true 30 "the coordinator does not refuse an expired certificate" refused
  worker_is "$victim" lost || fail "an expired certificate was accepted"
  said() { grep -o 'the certificate .* expired at .*; renew it' "$work/$victim.log"; }
  until_true 30 "$victim does not say that its certificate has expired" said
  echo "expired: $victim is refused, and says: $(said | tail -n 1)"
  issue +0
  until_true 60 "$victim does not return with its renewed certificate" worker_is "$victim" present
  echo "renewed: $victim is present"
  renewed=$(client job submit "$work/job.yaml" --name renewed --set resources.ranks=3 --set training.batch=6 --set training.steps=20)
  client job wait "$renewed" --timeout 3m >/dev/null 2>"$work/client.log" || fail "the job on three workers: $(client job describe "$renewed")"
  echo "renewed: a job trained on all three workers"
fi
echo "hosts: passed"
