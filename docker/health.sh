#!/bin/sh
# The health check: what the supervisor found in its last look (server/supervisor/telling.py). A file is read,
# because to start a Python for each look would take CPU from the workers.
file="${1:-/run/kit}/health"
[ -f "$file" ] || { echo "not ready: starting, or failed (see the log)"; exit 1; }
state=$(cat "$file")
echo "$state"
[ "$state" = ready ] || exit 1
# Looks come every 5 s and wait 5 s for each model at most: an older one means that nobody looks any more, or
# that the file cannot be written (a full disk).
[ -n "$(find "$file" -mmin -1)" ] || { echo "not ready: the last look is over a minute old"; exit 1; }
