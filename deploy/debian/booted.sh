#!/usr/bin/env bash
# Runs in a Debian that systemd has booted, where deploy/debian/test.sh has installed the package: both services, their watchdog, the job
# of the quick start, an upgrade while a job runs, removal and purge.
#   booted.sh NEXT.deb CORPUS STEPS     NEXT: the same package under a greater version
set -euo pipefail
next=$1 corpus=$2 steps=$3
source "$(dirname "$0")/losses.sh"
units=(nibble-coordinator nibble-worker)
fail() {
  echo "FAILED: $*"
  systemctl --no-pager --full status "${units[@]}" || true
  exit 1
}
# until_true SECONDS WHAT COMMAND...
until_true() {
  local left=$(($1 * 5)) what=$2
  shift 2
  until "$@" >/dev/null 2>&1; do
    ((left-- > 0)) || fail "$what"
    sleep 0.2
  done
}
shown() { systemctl show --value --property "$2" "$1"; }
milliseconds() { echo $(($(date +%s%N) / 1000000)); }

for unit in "${units[@]}"; do
  [[ $(systemctl is-enabled $unit) == disabled && $(systemctl is-active $unit) == inactive ]] || fail "$unit: enabled or started by the installation"
done
sed -i 's/--slots 1/--slots 2/' /etc/default/nibble-worker
for unit in "${units[@]}"; do
  began=$(milliseconds)
  systemctl enable --now $unit 2>/dev/null || fail "$unit does not start"
  echo "$unit: started after $(($(milliseconds) - began)) ms; it reports: $(shown $unit StatusText)"
  process=$(shown $unit MainPID)
  [[ $(stat -c %U "/proc/$process") == nibble ]] || fail "$unit: not the user nibble"
  grep -q '^CapEff:.0*$' "/proc/$process/status" || fail "$unit has capabilities"
  grep -q '^NoNewPrivs:.1$' "/proc/$process/status" || fail "$unit may gain privileges"
  if nsenter --mount --target "$process" touch /usr/file 2>/dev/null; then fail "$unit: /usr is writable"; fi
  [[ $(stat -c '%U %a' /var/lib/$unit) == "nibble 750" ]] || fail "$unit: owner or mode of its state"
done

submit() {
  nibble job submit /usr/share/doc/nibble/examples/quickstart.yaml --name "$1" --set "data.train=[$corpus/anarchism/train.tokens]" \
    --set "data.validation=[{name: held-out, path: $corpus/anarchism/validation.tokens}]" --set "training.steps=$steps" \
    --set resources.ranks=2 --set checkpoints.every=20 --set metrics.log_every=1 --set restarts.backoff=1
}
finished() { nibble job wait "$1" --timeout 10m >/dev/null 2>&1 || fail "job $1: $(nibble job describe "$1")"; }
submit plain >/dev/null
finished plain
nibble job metrics plain | exact_figures | tail -n 1 >/tmp/plain
echo "services: the job's last step, loss and gradient norm are $(cat /tmp/plain)"

# A daemon that makes no progress is restarted. It cannot end by itself either, so that it is killed after TimeoutAbortSec.
mkdir -p /run/systemd/system/nibble-worker.service.d
printf '[Service]\nWatchdogSec=3\nTimeoutAbortSec=1\n' >/run/systemd/system/nibble-worker.service.d/watchdog.conf
systemctl daemon-reload
systemctl restart nibble-worker
stopped=$(shown nibble-worker MainPID)
kill -STOP "$stopped"
restarted() { (($(shown nibble-worker NRestarts) == 1)) && [[ $(systemctl is-active nibble-worker) == active ]]; }
until_true 60 "the watchdog does not restart a stopped daemon" restarted
[[ $(shown nibble-worker MainPID) != "$stopped" ]] || fail "the stopped daemon is still there"
rm /run/systemd/system/nibble-worker.service.d/watchdog.conf
systemctl daemon-reload
systemctl restart nibble-worker
echo "watchdog: a worker that stood still was restarted"

# An upgrade restarts what runs, keeps what the administrator changed, and the job continues to the same bits.
user=$(id -u nibble)
submit upgraded >/dev/null
nibble job wait upgraded --step $((steps / 3)) --timeout 5m >/dev/null 2>&1 || fail "job upgraded does not begin"
before="$(shown nibble-coordinator MainPID) $(shown nibble-worker MainPID)"
dpkg --install "$next" >/tmp/upgrade 2>&1 || fail "upgrade: $(cat /tmp/upgrade)"
[[ $(dpkg-query -W -f '${Version}' nibble) == *+next ]] || fail "the package was not upgraded"
for unit in "${units[@]}"; do
  [[ $(systemctl is-active $unit) == active && $(systemctl is-enabled $unit) == enabled ]] || fail "$unit does not run after the upgrade"
  [[ " $before " != *" $(shown $unit MainPID) "* ]] || fail "$unit was not restarted by the upgrade"
done
grep -q -- '--slots 2' /etc/default/nibble-worker || fail "the upgrade lost the administrator's flags"
[[ $(id -u nibble) == "$user" ]] || fail "the upgrade changed the user"
finished upgraded
nibble job metrics upgraded | exact_figures | tail -n 1 >/tmp/upgraded
cmp -s /tmp/plain /tmp/upgraded || fail "figures after the upgrade: $(cat /tmp/upgraded)"
echo "upgrade: both services restarted, flags kept, the job's last loss is the same"

dpkg --remove nibble >/tmp/remove 2>&1 || fail "removal: $(cat /tmp/remove)"
for unit in "${units[@]}"; do
  [[ $(systemctl is-active $unit) != active ]] || fail "$unit runs after the removal"
done
[[ ! -e /usr/bin/nibble && -e /etc/default/nibble-worker ]] || fail "the removal left programs, or took the administrator's flags"
dpkg --purge nibble >/tmp/purge 2>&1 || fail "purge: $(cat /tmp/purge)"
left=$(find /etc /usr /lib /var/log -name 'nibble*' ! -path '/usr/src/*')
[[ -z $left ]] || fail "files are left after the purge: $left"
[[ -d /var/lib/nibble-worker/data && -d /var/lib/nibble-coordinator/store ]] || fail "the purge took state"
echo "removal: services stopped, nothing left but their state"
