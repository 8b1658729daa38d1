"""More than the server can take, against a real TorchServe: refusals, and the next request is answered."""

from __future__ import annotations

import re
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from loadtest.experiments.harm.bodies import OCTETS, PNG, make_noise_png
from loadtest.experiments.harm.client import Outcome, Request, hold_open, send_all

CLIENTS, REQUESTS = 60, 120
"""48 bodies of 8 MB at once broke a server whose memory was not planned for them."""


def ask(kit, body, kind, token=None):
    token = kit.key_file["inference"]["key"] if token is None else token
    return Request(path="/predictions/resnet50", body=body, content_type=kind, token=token)


def answered_soon(kit, canary):
    began = time.monotonic()
    answer = kit.predict("resnet50", canary)
    return answer.status == 200 and time.monotonic() - began < 30


def find_memory_errors(kit):
    """Java's and netty's; the flag ExitOnOutOfMemoryError is named in the logs, too."""
    texts = [file.read_text(errors="replace") for file in (kit.run_dir / "logs").glob("*.log")]
    return re.findall(r"Out\w*MemoryError:.*", "".join(texts))


def test_large_pictures_of_many_clients_end_in_answers_or_refusals(kit, canary):
    workers = kit.workers("resnet50")
    requests = [ask(kit, make_noise_png(1650), PNG)] * REQUESTS
    outcomes = send_all(requests, kit.port, clients=CLIENTS, seconds=120.0)
    kinds = Counter(outcome.kind for outcome in outcomes)
    assert set(kinds) == {"200", "503"}, kinds
    assert answered_soon(kit, canary)
    assert kit.workers("resnet50") == workers
    assert find_memory_errors(kit) == []


def test_bodies_that_never_end_keep_nobody_out(kit, canary):
    half = b"\0" * 8_000_000
    for token in ("", None):
        head = ask(kit, b"\0" * 16_000_000, OCTETS, token).render_head()
        with ThreadPoolExecutor(20) as pool:
            held = list(
                pool.map(lambda _, head=head: hold_open(head, [half], kit.port, seconds=5.0), range(20))
            )
        try:
            assert answered_soon(kit, canary)
        finally:
            for link, _ in held:
                link.close()
        # With a token as many are kept open as there is room for; the others are told at once.
        assert {fate for _, fate in held} <= ({"401"} if token == "" else {"open", "503", "408"})
    assert find_memory_errors(kit) == []


def test_who_shows_no_token_is_told_so_before_a_body_is_read(kit):
    outcome: Outcome = send_all([ask(kit, b"\0" * 16_000_000, OCTETS, "wrong")], kit.port, clients=1)[0]
    assert outcome.kind == "401"
