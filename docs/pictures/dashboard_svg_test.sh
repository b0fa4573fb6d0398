#!/usr/bin/env bash
PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=docs/pictures exec python3 docs/pictures/dashboard_svg_test.py
