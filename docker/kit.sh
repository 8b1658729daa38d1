#!/bin/sh
# `docker exec NAME kit verify`: python -m server for the container's own run directory.
cd /opt/kit || exit 1
# A reload plans anew: by the container's environment, as its start did.
[ "$1" = reload ] && exec .venv/bin/python -m docker.entrypoint reload
# What is printed is pasted outside the container, where the file with the token is not.
[ "$1" = status ] && set -- "$@" --hide-token
exec .venv/bin/python -m server "$@" RUN_DIR=/run/kit
