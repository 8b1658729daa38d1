"""Keeps a server up: observe the processes, TorchServe and HAProxy; judge what was seen; act."""
