"""Builds the image and runs it with docker, podman or buildah, whichever is there; standard library alone."""
