"""The kit's own lines in a worker's log: one JSON object each."""

from __future__ import annotations

import json
import logging
import os
from typing import Any

logger = logging.getLogger("cpu_kit")


def log(event: str, model: str, **facts: Any) -> None:
    """One line; `facts` must be JSON, and hold nothing of what a client sent."""
    logger.info(json.dumps({"cpu_kit": event, "model": model, "pid": os.getpid(), **facts}))
