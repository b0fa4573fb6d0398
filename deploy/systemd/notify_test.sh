#!/usr/bin/env bash
# See notify_test.py.
export PYTHONDONTWRITEBYTECODE=1
exec python3 deploy/systemd/notify_test.py "$@"
