"""The mission on the real thing: ResNet50 and BERT served as `make serve` serves them, asked, and measured.

What is asserted here is never weakened. Only `served`, the readers right below it and conftest's `load_with`
may follow how a server is started, describes itself and is put under load.
"""

from __future__ import annotations

import io
import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torchvision.models import ResNet50_Weights, resnet50

from config.topology import read_topology
from tests.config.planning import MACHINES
from tests.end_to_end.kit import Kit

MODELS = ("resnet50", "bert")
ALLOCATORS = {"--enable_jemalloc": "libjemalloc", "--enable_tcmalloc": "libtcmalloc"}
DESCRIBE_SECONDS = 60
TWO_NODES = MACHINES / "two-sockets-smt"
MACHINE = read_topology()
needs_own_cores = pytest.mark.skipif(
    MACHINE.quota_cpus is not None and MACHINE.quota_cpus < len(MACHINE.cpus_allowed) == MACHINE.cpu_total,
    reason="a CPU quota without a cpuset: the cores are shared, so none are named",
)
of_each_model = pytest.mark.parametrize("model", MODELS)


@pytest.fixture(scope="module")
def served(kit: Kit) -> Kit:
    """Both models, ready."""
    return kit


@pytest.fixture(scope="module")
def described(served: Kit) -> dict[str, dict[int, Any]]:
    """Model → process id of each of its workers → its own account."""
    return {model: dict(ask_workers(served, model)) for model in MODELS}


def ask_workers(kit: Kit, model: str) -> Iterator[tuple[int, Any]]:
    """TorchServe puts the question to whichever worker is free, so it is asked until each has answered."""
    (listed,) = kit.request(f"models/{model}", management=True).json
    assert listed["workers"]
    assert {worker["status"] for worker in listed["workers"]} == {"READY"}
    left, ends = {worker["pid"] for worker in listed["workers"]}, time.monotonic() + DESCRIBE_SECONDS
    while left:
        assert time.monotonic() < ends, f"no answer of {left}"
        (answer,) = kit.request(f"models/{model}?customized=true", management=True).json
        account = answer["customizedMetadata"]
        if account["pid"] in left:
            left.remove(account["pid"])
            yield account["pid"], account


def plan_for(machine: Path, kit: Kit, run_dir: Path) -> list[dict[str, str]]:
    """config.properties of each instance that `make plan TOPOLOGY=machine` plans."""
    planned = Kit(run_dir=run_dir, store=kit.store, port=kit.port)
    planned.plan(" ".join(MODELS), TOPOLOGY=machine, INSTANCES=None)
    return [read_properties(file) for file in sorted(run_dir.rglob("config.properties"))]


@dataclass(frozen=True, kw_only=True)
class Account:
    """What a worker says of its model."""

    operators: Mapping[str, int]
    """Of the graph that it ran last → how often each is in it."""
    frozen: bool
    steps: Mapping[str, str]
    """Of its load → what became of it."""
    convolutions: int
    channels_last: int
    """Those of them whose weights were channels_last before IPEX packed them."""
    input_layout: str


def read_account(raw: Mapping[str, Any]) -> Account:
    return Account(
        operators=raw["graph"]["operators"],
        frozen=raw["graph"]["kind"] == "frozen torchscript",
        steps={step["name"]: step["status"] for step in raw["steps"]},
        convolutions=raw["memory_format"]["convolutions"],
        channels_last=raw["memory_format"]["channels_last_weights"],
        input_layout=raw["memory_format"]["input"],
    )


# All that follows is read where TorchServe, its launcher and the kernel have it, whatever becomes of the kit.


def read_properties(file: Path) -> dict[str, str]:
    lines = (line for line in file.read_text().splitlines() if line and not line.startswith("#"))
    return {key: value for key, _, value in (line.partition("=") for line in lines)}


def read_words(pid: int, name: str) -> list[str]:
    return Path(f"/proc/{pid}/{name}").read_text().split("\0")


def read_environment(pid: int) -> dict[str, str]:
    return dict(word.split("=", 1) for word in read_words(pid, "environ") if "=" in word)


def find_properties(worker: int) -> Path:
    """The file that the TorchServe above a worker was started with (`ModelServer … -f FILE`)."""
    pid = worker
    while pid > 1:
        words = read_words(pid, "cmdline")
        if "org.pytorch.serve.ModelServer" in words:
            return Path(words[words.index("-f") + 1])
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    raise AssertionError(f"no TorchServe above worker {worker}")


def read_ids(text: str) -> set[int]:
    """The kernel's "0-3,8"."""
    pairs = (part.partition("-") for part in text.strip().split(",") if part)
    return {cpu for first, _, last in pairs for cpu in range(int(first), int(last or first) + 1)}


def read_nodes(machine: Path) -> dict[int, set[int]]:
    """NUMA node → its CPUs, of this machine or a recorded one; a kernel without nodes has one of all CPUs."""
    lists = {str(file): file.read_text() for file in machine.glob("sys/devices/system/node/node*/cpulist")}
    if (recording := machine / "recording.txt").exists():
        lists = dict(line.split(":", 1) for line in recording.read_text().splitlines() if ":" in line)
    found = ((re.search(r"system/node/node(\d+)/cpulist$", name), ids) for name, ids in lists.items())
    nodes = {int(match[1]): read_ids(ids) for match, ids in found if match}
    return nodes or {0: set(range(os.cpu_count() or 1))}


def read_named_cpus(arguments: str, nodes: Mapping[int, set[int]]) -> list[list[int]]:
    """CPUs that the launcher's arguments name: of a node, or a list, cut as the launcher cuts it."""
    words = arguments.split()
    if "--node_id" in words:
        return [sorted(nodes[int(words[words.index("--node_id") + 1])])]
    cores = [int(core) for core in words[words.index("--core_list") + 1].split(",")]
    size = int(words[words.index("--ncores_per_instance") + 1])
    return [cores[first : first + size] for first in range(0, len(cores), size)]


def read_thread_cpus(pid: int) -> list[set[int]]:
    """Those each thread may run on."""
    lists = [
        re.search(r"^Cpus_allowed_list:\s*(\S+)", (task / "status").read_text(), re.MULTILINE)
        for task in Path(f"/proc/{pid}/task").iterdir()
    ]
    return [read_ids(found[1]) for found in lists if found]


@pytest.fixture(scope="module")
def workers(described) -> list[int]:
    return [pid for accounts in described.values() for pid in accounts]


@pytest.fixture(scope="module")
def properties(workers) -> list[dict[str, str]]:
    """config.properties of each live TorchServe."""
    return [read_properties(file) for file in sorted({find_properties(pid) for pid in workers})]


def test_config_properties_switch_on_ipex_and_the_launcher(properties):
    for each in properties:
        assert (each["ipex_enable"], each["cpu_launcher_enable"]) == ("true", "true")


def test_cpu_launcher_args_name_an_allocator(properties):
    for each in properties:
        assert len(set(each["cpu_launcher_args"].split()) & set(ALLOCATORS)) == 1


@needs_own_cores
def test_cpu_launcher_args_name_cores_of_ours_each_worker_within_a_node(properties):
    nodes = read_nodes(Path("/"))
    for each in properties:
        for cpus in read_named_cpus(each["cpu_launcher_args"], nodes):
            assert cpus
            assert set(cpus) <= os.sched_getaffinity(0)
            assert any(set(cpus) <= node for node in nodes.values())


def test_on_several_nodes_each_worker_and_its_memory_are_bound_to_one(served, tmp_path):
    nodes = read_nodes(TWO_NODES)
    assert len(nodes) == 2
    used = set()
    for each in plan_for(TWO_NODES, served, tmp_path / "run"):
        assert (each["ipex_enable"], each["cpu_launcher_enable"]) == ("true", "true")
        # The launcher calls `numactl -C cores -m node` unless it is told not to.
        assert not {"--disable_numactl", "--disable_taskset"} & set(each["cpu_launcher_args"].split())
        for cpus in read_named_cpus(each["cpu_launcher_args"], nodes):
            (node,) = (number for number, those in nodes.items() if set(cpus) <= those)
            used.add(node)
    assert used == set(nodes)


@needs_own_cores
@of_each_model
def test_every_thread_of_a_live_worker_keeps_to_its_own_cores(described, model):
    nodes = read_nodes(Path("/"))
    taken: set[int] = set()
    for pid in described[model]:
        own = set().union(*read_thread_cpus(pid))
        named = read_properties(find_properties(pid))["cpu_launcher_args"]
        assert own <= {cpu for cpus in read_named_cpus(named, nodes) for cpu in cpus}
        assert own <= os.sched_getaffinity(0)
        assert any(own <= node for node in nodes.values())
        assert read_environment(pid).get("OMP_NUM_THREADS") == str(len(own))
        assert not own & taken
        taken |= own


def test_live_workers_run_on_the_allocator_that_was_named(workers):
    for pid in workers:
        arguments = read_properties(find_properties(pid))["cpu_launcher_args"].split()
        (library,) = (ALLOCATORS[word] for word in arguments if word in ALLOCATORS)
        first = re.split("[ :]", read_environment(pid).get("LD_PRELOAD", ""))
        preloaded = [os.path.realpath(path) for path in first if library in path]
        assert len(preloaded) == 1
        assert preloaded[0] in Path(f"/proc/{pid}/maps").read_text()


def test_live_workers_have_ipex_in_them(workers):
    for pid in workers:
        assert read_environment(pid)["TS_IPEX_ENABLE"] == "true"
        assert "/libintel-ext-pt" in Path(f"/proc/{pid}/maps").read_text()


def test_the_image_model_is_channels_last_in_every_worker(described):
    convolutions = sum(isinstance(each, torch.nn.Conv2d) for each in resnet50().modules())
    for raw in described["resnet50"].values():
        account = read_account(raw)
        assert account.convolutions == account.channels_last == convolutions == 53
        assert account.input_layout == "channels_last"


@of_each_model
def test_the_graph_was_traced_and_frozen_when_the_model_was_loaded(described, model):
    for raw in described[model].values():
        account = read_account(raw)
        assert account.frozen
        assert account.steps["trace"] == account.steps["freeze"] == "applied"
        assert set(account.steps.values()) <= {"applied", "not applicable"}


@pytest.mark.parametrize(
    ("model", "left", "fewest", "most"),
    [
        # 53 convolutions with batch norms folded in, and a Linear; each of 16 blocks may be one operator.
        ("resnet50", {"aten::conv2d", "aten::_convolution", "aten::batch_norm", "aten::linear"}, 18, 54),
        # Six Linears in each of 12 layers, where query, key and value may be one; pooler and classifier.
        ("bert", {"aten::linear", "aten::addmm"}, 50, 74),
    ],
)
def test_ipex_optimized_every_convolution_and_linear_of_the_graph(described, model, left, fewest, most):
    for raw in described[model].values():
        operators = read_account(raw).operators
        assert not left & set(operators)
        packed = sum(count for kind, count in operators.items() if kind.startswith("ipex_prepack::"))
        assert fewest <= packed <= most


def test_a_image_is_answered_with_its_likeliest_classes(served):
    image = io.BytesIO()
    Image.radial_gradient("L").convert("RGB").save(image, format="JPEG")
    answer = served.predict("resnet50", image.getvalue())
    assert answer.status == 200
    categories = ResNet50_Weights.IMAGENET1K_V2.meta["categories"]
    assert [set(each) for each in answer.json] == [{"label", "index", "probability"}] * 5
    assert [each["label"] for each in answer.json] == [categories[each["index"]] for each in answer.json]
    assert len({each["index"] for each in answer.json}) == 5
    likely = [each["probability"] for each in answer.json]
    assert likely == sorted(likely, reverse=True)
    # The five best of a thousand that sum to 1.
    assert 5 / 1000 <= sum(likely) <= 1 + 1e-5
    assert min(likely) > 0


def test_a_text_is_answered_with_the_probability_of_each_class(served):
    answer = served.predict("bert", b'{"text": "a fine day"}', "application/json")
    assert answer.status == 200
    assert set(answer.json) == {"label", "probabilities"}
    probabilities = answer.json["probabilities"]
    assert set(probabilities) == {"negative", "positive"}
    assert sum(probabilities.values()) == pytest.approx(1, abs=1e-5)
    assert all(0 < each < 1 for each in probabilities.values())
    assert answer.json["label"] == max(probabilities, key=probabilities.__getitem__)


@of_each_model
@pytest.mark.parametrize("driver", ["locust", "ab"])
def test_each_load_generator_gives_a_rate_with_every_request_answered(load_with, driver, model):
    series = load_with(driver).series[model]
    (window,) = series.windows
    assert series.load.driver == driver
    assert window.requests > 0
    assert window.errors == 0
    assert window.rate > 0


def test_what_is_served_is_what_was_planned(served):
    assert served.verify() == (0, {})
