#!/bin/sh
# Runs when a worker's pod has started: makes the worker schedulable again if drain.sh drained it, and leaves alone one that an operator
# drained or cordoned. Variables as in drain.sh.
set -u
# shellcheck disable=SC2086  # several flags
if nibble worker describe "$POD_NAME" --timeout 60s ${NIBBLE_CLIENT_FLAGS:-} | grep -q 'its pod stops'; then
  # shellcheck disable=SC2086
  nibble worker uncordon "$POD_NAME" --timeout 60s ${NIBBLE_CLIENT_FLAGS:-}
fi
exit 0
