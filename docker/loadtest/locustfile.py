"""Users who wait for each answer before they ask again: photographs or texts, as the model takes them."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

from locust import FastHttpUser, task

MODEL = os.environ.get("MODEL") or "resnet50"
TOKEN_FILE = Path("/run/secrets/token")
TEXTS = (
    "a quiet, generous film",
    "two hours that feel like four, and not one of them is needed",
    "The first half is slow. The second makes up for it with a story that is told with care, played with "
    "restraint and filmed with an eye for what a room looks like when nobody speaks.",
)
BODIES = {
    "image": [file.read_bytes() for file in sorted(Path("/photos").glob("*.jpg"))],
    "text": [text.encode() for text in TEXTS],
}
CONTENT_TYPES = {"image": "image/jpeg", "text": "text/plain"}


class Client(FastHttpUser):
    """One closed-loop user."""

    connection_timeout = network_timeout = 60.0

    def on_start(self) -> None:
        kind = "text" if MODEL == "bert" else "image"
        self.bodies = itertools.cycle(BODIES[kind])
        token = TOKEN_FILE.read_text(encoding="ascii").strip() if TOKEN_FILE.exists() else ""
        self.headers = {"Content-Type": CONTENT_TYPES[kind], "Authorization": f"Bearer {token}"}

    @task
    def predict(self) -> None:
        body = next(self.bodies)  # bytes are sent as they are; the annotation of `data` lacks them
        self.client.post(f"/predictions/{MODEL}", data=body, headers=self.headers)  # type: ignore[arg-type]
