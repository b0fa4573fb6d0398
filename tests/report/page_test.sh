#!/usr/bin/env bash
# The report's page in a real browser; argument: the program that writes a sample.
exec python3 "$(dirname "$0")/page_test.py" "$@"
