"""The experiments, in the order in which they run: a name, what it does, and what it must not do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from loadtest.experiments.harm import bodies
from loadtest.experiments.harm.client import Request, send_all
from loadtest.experiments.harm.crowds import HELD, LONG_SECONDS, dribble, hold_bodies, send_long_texts
from loadtest.experiments.harm.faults import halt_worker, kill_worker, pipeline
from loadtest.experiments.harm.row import Promise, Seen
from loadtest.experiments.harm.victim import Victim

IMAGE_MIB, IMAGE_CPU_S = 400.0, 2.0
"""What no body of up to 16 MiB may cost (`limits` of the plan)."""
KEPT_MIB = 100.0
"""A quarter of that: what allocators keep of it for the next one."""
COPIES = 4
"""Of a refused body: what came over the socket, what the worker's protocol makes of it, and as much spare."""
REFUSED_FORMAT = frozenset({"415"})
REFUSED = frozenset({"400", "413", "415", "422", "429", "503"})


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One thing that could take the server down."""

    name: str
    title: str
    run: Callable[[Victim], Seen]
    promise: Promise


def sending(
    make: Callable[[Victim], Sequence[Request]], *, clients: int = 1, seconds: float = LONG_SECONDS,
    at_most_s: float = LONG_SECONDS,
) -> Callable[[Victim], Seen]:  # fmt: skip
    """The experiments that are nothing but requests."""

    def run(victim: Victim) -> Seen:
        requests = make(victim)
        outcomes = send_all(requests, victim.port, clients=clients, seconds=seconds, at_most_s=at_most_s)
        missing = len(requests) - len(outcomes)
        late = (f"{missing} of {len(requests)} requests could not be sent within {at_most_s:g} s",)
        return Seen(outcomes=outcomes, faults=late if missing else ())

    return run


def overload(victim: Victim) -> list[Request]:
    """600 noisy PNGs of 8 MB each."""
    return [victim.ask("resnet50", bodies.make_noise_png(1650), bodies.PNG)] * 600


def send_as_curl_does(victim: Victim) -> Seen:
    """A photograph by `--data-binary` with curl's own content type, then by `-F data=@photo.jpg`."""
    photo = victim.canary("resnet50").body
    wrong, right = (
        victim.send(victim.ask("resnet50", body, kind))
        for body, kind in ((photo, bodies.FORM), (bodies.make_upload(photo), bodies.MULTIPART))
    )
    faults = []
    if b"Content-Type" not in wrong.body:
        faults.append(f"the answer to curl's default must name the right line: got {wrong.body[:100]!r}")
    if not victim.is_right("resnet50", right):
        faults.append(f"curl -F data=@photo.jpg must be classified: got {right.kind} {right.body[:100]!r}")
    return Seen(outcomes=[wrong], notes=(f"curl -F: {right.kind}",), faults=tuple(faults))


def scan_beside_photos(victim: Victim) -> list[Request]:
    """A JPEG of 100 megapixels and 24,000 scans, and seven photographs at the same time."""
    scans = victim.ask("resnet50", bodies.make_scans(10_000, 24_000), bodies.JPEG)
    return [scans, *[victim.canary("resnet50")] * 7]


def send_bad_urls(_: Victim) -> list[Request]:
    """Addresses that cannot be decoded, by somebody without a token."""
    return [Request(path="/%zz")] * 1000


Make = Callable[[Victim], list[Request]]


def _one(model: str, make: Callable[[], bytes], kind: str, count: int = 1) -> Make:
    return lambda victim: [victim.ask(model, make(), kind)] * count


def _send_wide_json(count: int) -> Make:
    return _one("bert", lambda: bodies.make_wide_json(bodies.MOST_BYTES), bodies.JSON, count)


# Those that only cost something first, those that kill workers last.
EXPERIMENTS = (
    Experiment(
        name="curl",
        title="a photograph with curl's default content type",
        run=send_as_curl_does,
        promise=Promise(kinds=REFUSED_FORMAT),
    ),
    Experiment(
        name="bad-urls",
        title="1,000 addresses that cannot be decoded, without a token",
        run=sending(send_bad_urls),
        promise=Promise(kinds=frozenset({"400", "401", "403", "404"}), log_kib=100.0),
    ),
    Experiment(
        name="iptc",
        title="a picture that says 16×16 and is 13,000×13,000",
        run=sending(_one("resnet50", lambda: bodies.make_iptc(13_000), bodies.OCTETS)),
        promise=Promise(kinds=REFUSED_FORMAT, peak_mib=IMAGE_MIB, kept_mib=KEPT_MIB, cpu_s=IMAGE_CPU_S),
    ),
    Experiment(
        name="large-png",
        title="24 megapixels with transparency",
        run=sending(_one("resnet50", lambda: bodies.make_plain_png(4898, mode="RGBA"), bodies.PNG)),
        promise=Promise(
            kinds=frozenset({"200", "413"}), peak_mib=IMAGE_MIB, kept_mib=KEPT_MIB, cpu_s=IMAGE_CPU_S
        ),
    ),
    Experiment(
        name="scans",
        title="a JPEG of 24,000 scans beside seven photographs",
        run=sending(scan_beside_photos, clients=8),
        # A second more for the photographs.
        promise=Promise(
            kinds=frozenset({"200", "413", "422"}),
            peak_mib=IMAGE_MIB,
            kept_mib=KEPT_MIB,
            cpu_s=IMAGE_CPU_S + 1,
        ),
    ),
    Experiment(
        name="qoi",
        title="16 pictures of a format whose decoder is written in Python",
        run=sending(_one("resnet50", lambda: bodies.make_qoi(4090), bodies.OCTETS, 16), clients=16),
        promise=Promise(kinds=REFUSED_FORMAT | {"413", "429", "503"}, cpu_s=16 * IMAGE_CPU_S),
    ),
    Experiment(
        name="wide-json",
        title="5.5 million empty lists in one body",
        run=sending(_send_wide_json(1)),
        promise=Promise(kinds=REFUSED, peak_mib=COPIES * 16, cpu_s=IMAGE_CPU_S),
    ),
    Experiment(
        name="wide-json-16",
        title="the same, 16 at once",
        run=sending(_send_wide_json(16), clients=16),
        promise=Promise(kinds=REFUSED, peak_mib=16 * COPIES * 16, cpu_s=16 * IMAGE_CPU_S),
    ),
    Experiment(
        name="form",
        title="a form of 8 million fields",
        run=sending(_one("resnet50", lambda: bodies.make_form(bodies.MOST_BYTES - 2), bodies.FORM)),
        promise=Promise(kinds=REFUSED_FORMAT),
    ),
    Experiment(
        name="parts",
        title="a multipart form of as many empty fields as fit",
        run=sending(_one("resnet50", lambda: bodies.make_parts(bodies.MOST_BYTES - 2), bodies.MULTIPART)),
        promise=Promise(kinds=REFUSED),
    ),
    Experiment(
        name="dribble",
        title=f"{HELD} clients whose headers never end",
        run=dribble,
        promise=Promise(kinds=frozenset({"200"})),
    ),
    Experiment(
        name="half-sent",
        title=f"{HELD} bodies of 16 MB that stay unfinished, without a token",
        run=hold_bodies(with_token=False),
        promise=Promise(kinds=frozenset({"200"})),
    ),
    Experiment(
        name="half-sent-token",
        title="the same with a token",
        run=hold_bodies(with_token=True),
        promise=Promise(kinds=frozenset({"200"})),
    ),
    Experiment(
        name="overload",
        title="200 clients send 600 pictures of 8 MB",
        run=sending(overload, clients=200, seconds=60.0, at_most_s=120.0),
        promise=Promise(),
    ),
    Experiment(
        name="long-texts",
        title="16 requests of 8 long texts each beside short sentences",
        run=send_long_texts,
        promise=Promise(kinds=frozenset({"200", "413", "422", "429", "503"})),
    ),
    Experiment(
        name="pipeline",
        title="two requests in one write",
        run=pipeline,
        promise=Promise(kinds=None),
    ),
    Experiment(
        name="halted-worker",
        title="a worker hangs for half a minute",
        run=halt_worker,
        promise=Promise(kinds=None),
    ),
    Experiment(
        name="killed-worker",
        title="kill -9 of a worker with requests under way",
        run=kill_worker,
        promise=Promise(kinds=None, workers_lost=1),
    ),
)
