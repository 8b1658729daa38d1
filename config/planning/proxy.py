"""What HAProxy does in front of the instances: how many wait, and for how long.

What each figure does in HAProxy 2.6 was measured with servers that hang, reset and die (tests/proxy/).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from config.errors import ConfigError
from config.plan import ProxyPlan
from config.settings import Settings, parse_address

BUFFER_BYTES = 384 << 10
"""HAProxy sends a request again only if it holds the whole of it in one buffer: a photograph of 300 kB and
its headers."""
REWRITE_BYTES = 8 << 10
"""Of each buffer, kept free for the headers that HAProxy adds."""
HEADER_BYTES = 16 << 10
"""Headers of one request: twice what usual servers take."""
SMALL_BYTES = BUFFER_BYTES - REWRITE_BYTES - HEADER_BYTES
"""Bodies up to here fit into a buffer beside their headers, and so can be sent again."""
BUFFERS_OF_LARGE = 4.5
"""Of a large body, two in each hop and one between them are full, or nearly, while it waits: 4.2 were
measured (200 bodies of 8 MB took 315 MiB)."""
LARGE_SHARE, SMALL_SHARE = 0.55, 0.4
"""Of HAProxy's memory; the rest is HAProxy itself, and its connections."""
CONNECTIONS = 2000
"""A thousand idle ones leave as many for others; an idle one takes a few KiB."""
CORES_OF_THREAD, MAX_THREADS = 16, 4
"""One thread passes on about a gigabyte a second; 16 cores ask for less than a tenth of that."""
LARGEST_DEADLINE_MS = 300_000
RETRIES = 3
"""One try each for a killed process that closes this connection, one that waits in its listener, then the
listener; the fourth goes elsewhere. More would let a request that kills workers kill another one."""
CHECK_MS, HEADERS_S = 1000, 10
BODY_S = 60
"""A body stands still for so long at most: 16 MiB are 280 KB/s."""
IDLE_S = 60
"""As long as load balancers keep connections, at least."""
MAX_REQUEST_BYTES = 16 << 20
"""A phone's photo is up to 12 MB; base64 in JSON adds a third."""
NAME = re.compile(r"[A-Za-z0-9_.-]+")
RESERVED = (".entry", ".queue", ".large")


def check_names(models: Iterable[str]) -> None:
    """Sections of HAProxy are named after models."""
    for name in models:
        if not NAME.fullmatch(name) or name.endswith(RESERVED):
            raise ConfigError(
                "a model's name must be of letters, digits and any of _ . -, and not end with "
                f"{', '.join(RESERVED)}: got {name}; rename it"
            )


def find_metrics_address(settings: Settings) -> tuple[str, int]:
    """Host and port of the metrics page."""
    return parse_address(settings.metrics) or ("127.0.0.1", settings.port + 2)


def plan_proxy(
    settings: Settings, *, models: int, cores: int, memory_mib: int, why: dict[str, str]
) -> ProxyPlan:
    """`models`: how many; `cores`: that compute, of all instances; `memory_mib`: HAProxy's and the
    supervisor's."""
    buffers = (memory_mib << 20) / BUFFER_BYTES / models
    why["proxy.threads"] = (
        f"one for {CORES_OF_THREAD} of the {cores} cores that compute, at most {MAX_THREADS}"
    )
    why["proxy.places"] = (
        f"{SMALL_SHARE:.0%} of {memory_mib} MiB for {models} models, a buffer for each request"
    )
    why["proxy.large_places"] = (
        f"{LARGE_SHARE:.0%} of {memory_mib} MiB for {models} models, {BUFFERS_OF_LARGE} buffers for each "
        "large body"
    )
    why["proxy.memory_mib"] = "a 16th of the memory, kept free of the workers'"
    metrics_host, metrics_port = find_metrics_address(settings)
    return ProxyPlan(
        host=settings.host, port=settings.port, metrics_host=metrics_host, metrics_port=metrics_port,
        cors_origin=settings.cors_origin, tls_cert=settings.tls_cert, tls_key=settings.tls_key,
        token_file=settings.token_file,
        threads=max(1, min(MAX_THREADS, cores // CORES_OF_THREAD)), connections=CONNECTIONS,
        memory_mib=memory_mib, buffer_bytes=BUFFER_BYTES, rewrite_bytes=REWRITE_BYTES,
        header_bytes=HEADER_BYTES, small_bytes=SMALL_BYTES, max_request_bytes=MAX_REQUEST_BYTES,
        places=max(1, int(buffers * SMALL_SHARE)),
        large_places=max(1, int(buffers * LARGE_SHARE / BUFFERS_OF_LARGE)), deadline_ms=settings.deadline_ms,
        largest_deadline_ms=LARGEST_DEADLINE_MS, headers_s=HEADERS_S, body_s=BODY_S, idle_s=IDLE_S,
        check_ms=CHECK_MS, retries=RETRIES,
    )  # fmt: skip
