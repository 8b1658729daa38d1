#!/bin/sh
# `docker exec NAME kit verify`: python -m server for the container's own run directory.
cd /opt/kit || exit 1
exec .venv/bin/python -m server "$@" --run-dir "${RUN_DIR:-/run/kit}"
