#!/bin/sh
# Runs before a worker's pod stops: its jobs write a checkpoint and move to other workers. Returns when no rank runs here and no shard of a
# checkpoint is only here (or no other worker can take it), or after NIBBLE_DRAIN_SECONDS. Without a coordinator there is nowhere to move
# to: the pod then stops at once, and its jobs resume from their newest checkpoints.
#
#   POD_NAME              the worker's name
#   NIBBLE_SERVER         host:port of the coordinator
#   NIBBLE_CLIENT_FLAGS   flags of the command line for security: --tls-cert=FILE ... of the worker's own certificate, which suffices
set -u
# shellcheck disable=SC2086  # several flags
nibble worker drain "$POD_NAME" --reason "its pod stops" --timeout 20s ${NIBBLE_CLIENT_FLAGS:-} || exit 0
seconds=0
while [ "$seconds" -lt "${NIBBLE_DRAIN_SECONDS:-600}" ]; do
  # shellcheck disable=SC2086
  described=$(nibble worker describe "$POD_NAME" --timeout 5s ${NIBBLE_CLIENT_FLAGS:-})
  if echo "$described" | grep -q '^slots *0 of' && ! echo "$described" | grep -q '^only here'; then
    exit 0
  fi
  sleep 1
  seconds=$((seconds + 1))
done
