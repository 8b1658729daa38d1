"""An open loop of the standard library: load.py URL TOKEN FILE RATE SECONDS prints what became of each.

With RATE 0 a closed loop of 8 clients. "none" counts requests without a response.
"""

from __future__ import annotations

import http.client
import json
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

URL, TOKEN, FILE, RATE, SECONDS = sys.argv[1:]
BODY, PLACE = Path(FILE).read_bytes(), urlsplit(URL)
HEADERS = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/octet-stream"}
found, said, lock = Counter[str](), Counter[str](), threading.Lock()


def ask() -> None:
    status, text = "none", ""
    try:
        connection = http.client.HTTPConnection(PLACE.hostname or "", PLACE.port, timeout=120)
        connection.request("POST", PLACE.path, BODY, HEADERS)
        answer = connection.getresponse()
        status, text = str(answer.status), answer.read().decode(errors="replace")[:200]
        connection.close()
    except (OSError, http.client.HTTPException) as problem:
        text = f"{type(problem).__name__}: {problem}"
    with lock:
        found[status] += 1
        if status != "200":
            said[text] += 1


def repeat(ends: float) -> None:
    while time.monotonic() < ends:
        ask()


rate, seconds, began = float(RATE), float(SECONDS), time.monotonic()
if rate:
    with ThreadPoolExecutor(256) as pool:
        for number in range(int(rate * seconds)):
            time.sleep(max(0.0, began + number / rate - time.monotonic()))
            pool.submit(ask)
else:
    with ThreadPoolExecutor(8) as pool:
        for _ in range(8):
            pool.submit(repeat, began + seconds)
print(json.dumps({"statuses": found, "said": said, "seconds": time.monotonic() - began}))
