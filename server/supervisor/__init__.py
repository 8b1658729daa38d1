"""Keeps a server up: HAProxy in front and the TorchServes behind it, started again when they end or hang."""
