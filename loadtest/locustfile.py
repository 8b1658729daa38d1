"""Users of ResNet50 and BERT over REST. It runs alone:

    locust -f loadtest/locustfile.py --host http://127.0.0.1:8080 --tags resnet50
    locust -f loadtest/locustfile.py --host http://127.0.0.1:8080 --tags bert --rate 20 --headless -t 60

Without --rate, each user sends the next request after an answer (closed loop): the rate is throughput, and
the response times are no latency under load, as a server that stalls is asked less. With --rate, requests
come when they are due, whatever became of the earlier ones (open loop, Poisson): the arrivals are planned
without a look at the server, the users share the rate, and a response time counts from when the request was
due.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gevent
import gevent.pool
from geventhttpclient.client import HTTPClientPool
from locust import FastHttpUser, constant, events, tag, task
from locust.argument_parser import LocustArgumentParser
from locust.runners import WorkerRunner

sys.path.append(str(Path(__file__).resolve().parents[1]))
from loadtest.errors import LoadTestError
from loadtest.payloads import USUAL, Payload, make_payloads, read_manifest
from loadtest.record import State, count_users
from loadtest.schedule import list_gaps, order_payloads

MOST_CONNECTIONS = 20_000
"""Of an open loop; more requests under way than this would be more than a machine has ports."""


@events.init_command_line_parser.add_listener
def add_arguments(parser: LocustArgumentParser) -> None:
    """Locust hands them on to its workers, and shows them in its page."""
    add = parser.add_argument
    add("--rate", type=float, default=0.0, env_var="LOCUST_RATE",
        help="requests a second of all users together, in an open loop; 0: a closed loop")  # fmt: skip
    add("--model", default="", help="ask this model alone, by its name on the server")
    add("--payloads", default="", env_var="LOCUST_PAYLOADS",
        help="a folder (images, .txt, .json, .bin) or a set: photos, texts, one-photo, one-text")  # fmt: skip
    add("--in-order", action="store_true", help="send them as they are listed; else each round is shuffled")
    add("--seed", type=int, default=1, help="of arrivals and order (default: 1)")
    add("--request-timeout", type=float, default=60.0, help="seconds until an answer is whole (default: 60)")
    add("--token-file", default="", env_var="LOCUST_TOKEN_FILE", include_in_web_ui=False,
        help="a file with the token of the inference API, sent as `Authorization: Bearer`")  # fmt: skip


class Requests:
    """What the users of this process send in one run."""

    def __init__(self, environment: Any) -> None:
        options, runner = environment.parsed_options, environment.runner
        self.environment, self.options = environment, options
        worker = max(0, runner.worker_index) if isinstance(runner, WorkerRunner) else 0
        self.seed = options.seed + 1000 * worker
        self.seeds = itertools.count(self.seed)
        models = [options.model] if options.model else find_models()
        listed = read_manifest(Path(options.payloads))  # of the kit's bench: it names its models itself
        self.listed = listed is not None
        self.payloads = choose_payloads(options.payloads, models) if listed is None else listed
        self.orders = {
            model: self._order([number for number, one in enumerate(self.payloads) if one.model == model])
            for model in {one.model for one in self.payloads}
        }
        self.every = self._order([*range(len(self.payloads))])
        if options.token_file and not getattr(options, "token", ""):
            # A master hands it on with its arguments: workers elsewhere do not have the file.
            options.token = Path(options.token_file).read_text(encoding="ascii").strip()
        token = getattr(options, "token", "")
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}
        timeout = Client.network_timeout = Client.connection_timeout = options.request_timeout
        Client.client_pool = None
        if options.rate:
            Client.client_pool = HTTPClientPool(
                concurrency=MOST_CONNECTIONS, network_timeout=timeout, connection_timeout=timeout
            )
        State.recorder.digest = hashlib.sha256(
            "".join(one.digest for one in self.payloads).encode()
        ).hexdigest()

    def _order(self, numbers: list[int]) -> Iterator[int]:
        if self.options.in_order:
            return itertools.cycle(numbers)
        return (numbers[place] for place in order_payloads(len(numbers), seed=self.seed))

    def arrivals(self) -> Iterator[float]:
        """When each request of one user is due; its share of the rate follows the number of users."""
        due = -State.recorder.warm_up_s
        for gap in list_gaps(seed=next(self.seeds)):
            due += gap * count_users(self.environment) / self.options.rate
            yield due


REQUESTS: Requests


def find_models() -> list[str]:
    """That the tasks ask which the tags leave."""
    return sorted({getattr(one, "__name__", "") for one in Client.tasks} & {*USUAL})


def choose_payloads(asked: str, models: list[str]) -> list[Payload]:
    """Of the models."""
    if asked and len(models) > 1:
        raise LoadTestError(f"--payloads are of one model: got {', '.join(models)}; add --model or --tags")
    return [one for model in models for one in make_payloads(asked, model=model)]


@events.test_start.add_listener
def start(environment: Any, **_: Any) -> None:
    """A mistake in the arguments ends the run with a sentence. Now, a worker has its master's arguments."""
    global REQUESTS
    try:
        REQUESTS = Requests(environment)
        if environment.parsed_options.model or REQUESTS.listed:
            Client.tasks = [Client.next_one]  # all users send the same; else there are the two with tags
    except (LoadTestError, OSError) as problem:
        print(f"error: {problem}", file=sys.stderr)
        environment.process_exit_code = 2
        sys.exit(2)


class Client(FastHttpUser):
    """A client who waits for each answer, or with --rate one who does not."""

    wait_time = constant(0)
    concurrency = 1

    @tag("resnet50")
    @task
    def resnet50(self) -> None:
        self.ask(REQUESTS.orders["resnet50"])

    @tag("bert")
    @task
    def bert(self) -> None:
        self.ask(REQUESTS.orders["bert"])

    def next_one(self) -> None:
        """The next payload, whichever model it is for."""
        self.ask(REQUESTS.every)

    def ask(self, order: Iterator[int]) -> None:
        """One request of a closed loop; in an open one all that are due until the end."""
        wait = -State.recorder.warm_up_s - State.recorder.now()
        if State.recorder.stopping.wait(max(0.0, wait)) if wait > 0 else State.recorder.stopping.is_set():
            return
        if REQUESTS.options.rate:
            self.send_when_due()
        else:
            self.send(next(order), math.nan)

    def send_when_due(self) -> None:
        """Whatever became of the earlier ones."""
        under_way, stopping = gevent.pool.Group(), State.recorder.stopping
        for due in REQUESTS.arrivals():
            wait = due - State.recorder.now()
            if stopping.wait(wait) if wait > 0 else stopping.is_set():
                break
            under_way.spawn(self.send, next(REQUESTS.every), due)
        under_way.join()

    def send(self, number: int, due: float) -> None:
        """A network time-out starts anew with each byte; the timer here bounds the whole request."""
        payload, timeout = REQUESTS.payloads[number], REQUESTS.options.request_timeout
        context = {"payload": number, "due": due, "sent": State.recorder.now()}
        headers = {"Content-Type": payload.content_type, **REQUESTS.headers}
        body: Any = payload.body  # bytes are sent as they are; the annotation of `data` lacks them
        timer = gevent.Timeout(timeout)
        timer.start()
        try:
            # `with`, so that the time Locust shows can count from when the request was due.
            with self.client.post(
                payload.path, data=body, headers=headers, context=context, catch_response=True
            ) as response:
                if not math.isnan(due):
                    response.request_meta["response_time"] += 1000 * (context["sent"] - due)
        except gevent.Timeout:
            self.environment.events.request.fire(
                request_type="POST", name=payload.path, response_time=1000 * timeout, response_length=0,
                response=None, context=context,
                exception=TimeoutError(f"no whole answer within {timeout:g} s"),
            )  # fmt: skip
        finally:
            timer.close()
