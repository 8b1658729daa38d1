"""Calls a server with a door: predictions through the door, questions to the instances behind it."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from server.api import INFERENCE, Client
from server.tokens import read_token


@dataclass(frozen=True, kw_only=True)
class DoorClient(Client):
    """Looks like the client of one TorchServe that has all the workers."""

    parts: tuple[Client, ...]
    """Of the instances."""
    models: tuple[tuple[str, ...], ...]
    """What each of them serves."""
    token_file: Path
    """What the door asks for."""

    def describe(
        self, model: str, *, customized: bool = False, profile: str = "", timeout_s: float = 5.0
    ) -> dict[str, Any]:
        """Of the instances that serve it, all workers together; one of the workers when customized."""
        parts = [part for part, served in zip(self.parts, self.models, strict=True) if model in served]
        if customized:  # whoever asks for a certain worker asks until it has answered
            parts = [random.choice(parts)]
        how: dict[str, Any] = {"customized": customized, "profile": profile, "timeout_s": timeout_s}
        described = [part.describe(model, **how) for part in parts]
        workers = [worker for one in described for worker in one.get("workers", [])]
        return {**described[0], "workers": workers}

    def token(self, kind: str, *, for_s: float = 0.0) -> str:
        """The door's for predictions; it has no other."""
        return read_token(self.token_file) if kind == INFERENCE else ""
