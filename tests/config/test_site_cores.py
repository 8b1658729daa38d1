"""CORES: each model on CPUs of its own, in instances of its own."""

from __future__ import annotations

import json

import pytest

from config.rules.cores import parse_cores, render_cores
from config.topology import read_topology
from tests.config.planning import MACHINES, make_model
from tests.config.sites import check_shares, make_door, refuse


def test_each_model_on_its_own_cores():
    site = make_door("single-socket", cores="bert=0-4,resnet50=6,7")
    assert {name: (one.models, one.cpus, one.workers) for name, one in site.plan.instances.items()} == {
        "a1": (("bert",), (0, 1, 2, 3, 4), 5),
        "a2": (("resnet50",), (6, 7), 2),
    }
    assert [plan.layout.server_cpus.value for plan in site.instances.values()] == [[0, 1, 2, 3, 4], [6, 7]]
    assert {name: model.workers.value for name, model in site.plan.models.items()} == {
        "bert": 5, "resnet50": 2,
    }  # fmt: skip
    assert site.plan.layout.worker_cpus.value == [[0], [1], [2], [3], [4], [6], [7]]
    assert [*json.loads(site.plan.environment["CPU_KIT_OPTIONS"].value)] == ["bert", "resnet50"]
    check_shares(read_topology(MACHINES / "single-socket"), site)


def test_an_instance_is_switched_by_the_engines_of_its_own_models():
    site = make_door("single-socket", cores="bert=0-4,resnet50=6,7", backend="bert=eager")
    for name, switch in (("a1", "false"), ("a2", "true")):
        plan = site.instances[name]
        assert plan.properties["ipex_enable"].value == switch
        assert plan.worker_environment["TS_IPEX_ENABLE"].value == switch


def test_more_instances_of_the_model_with_more_cores():
    site = make_door("single-socket", cores="bert=0-4,resnet50=6,7", instances=3, workers=2)
    assert [(one.models, one.cpus, one.workers) for one in site.plan.instances.values()] == [
        (("bert",), (0, 1, 2), 1), (("bert",), (3, 4), 1), (("resnet50",), (6, 7), 2),
    ]  # fmt: skip


def test_smt_siblings_that_are_not_named_are_left_alone():
    site = make_door("cloud-adjacent-siblings", cores="bert=1,2,resnet50=4-7")
    assert [one.cpus for one in site.plan.instances.values()] == [(1, 2), (4, 5, 6, 7)]
    assert site.plan.layout.worker_cpus.value == [[1], [2], [4], [6]]


@pytest.mark.parametrize(
    "text", ["bert=0-3,8,resnet50=4-7", " resnet50=4-7 bert=8,0-3", "resnet50=4-7,bert=0-3 8"]
)
def test_lists_of_cores_are_read_as_people_write_them(text):
    assert parse_cores(text) == {"bert": (0, 1, 2, 3, 8), "resnet50": (4, 5, 6, 7)}
    assert render_cores(parse_cores(text)) == "bert=0-3,8,resnet50=4-7"


@pytest.mark.parametrize(
    ("cores", "message"),
    [
        ("bert", "CORES must be lists of CPUs by model, as bert=0-3,resnet50=4-7: got bert in bert"),
        ("bert=", "CORES must be lists of CPUs by model, as bert=0-3,resnet50=4-7: got bert= in bert="),
        ("bert=x", "CORES must be lists of CPUs by model, as bert=0-3,resnet50=4-7: got bert=x in bert=x"),
        ("=1", "CORES must name each model once, as bert=0-3,resnet50=4-7: got =1"),
        ("bert=1,bert=2", "CORES must name each model once, as bert=0-3,resnet50=4-7: got bert=1,bert=2"),
        ("bert=3-1", "CORES must give bert a CPU, as bert=0-3,resnet50=4-7: got bert=3-1"),
        ("bert=0-3", "CORES must name the models that are served, bert, resnet50: got bert"),
        ("bert=0,resnet50=1,b=2", "CORES must name the models that are served, bert, resnet50: got b, bert, "
         "resnet50"),
        ("bert=0-3,resnet50=4-9", "CORES must be CPUs that this process may use, 0-7: got 8-9 for resnet50"),
        ("bert=0-4,resnet50=4-7", "CORES must give a core to one model: got CPU 4 for bert and resnet50"),
        ("a=0,b=1,c=2,d=3,e=4", "CORES must be of at most 4 models, because each is an instance: got 5"),
    ],
)  # fmt: skip
def test_wrong_cores(cores, message):
    refuse(message, "single-socket", cores=cores)


def test_siblings_are_one_core():
    refuse(
        "CORES must give a core to one model: got CPUs 0-1, which are one core, for bert and resnet50",
        "cloud-adjacent-siblings", cores="bert=0,resnet50=1",
    )  # fmt: skip


def test_cores_beyond_the_quota():
    refuse(
        "CORES must name at most 2 physical cores, which is what the quota of 2.5 CPUs keeps busy "
        "(/sys/fs/cgroup/kubepods.slice/pod1.slice/cpu.max): got 3",
        "container-quota-v2", cores="bert=0-1,resnet50=2",
    )  # fmt: skip


def test_models_of_one_instance_do_not_widen_the_caches_of_another():
    models = (make_model("large"), make_model("small", batch_sizes=(1,)))
    site = make_door("two-cores", models=models, cores="large=0,small=1")
    capacity = [plan.environment["LRU_CACHE_CAPACITY"].value for plan in site.instances.values()]
    assert capacity == ["2048", "256"]
    assert site.plan.environment["LRU_CACHE_CAPACITY"].value == "2048"
    assert site.plan.environment["LRU_CACHE_CAPACITY"].reason.startswith("of a1, each instance has its own: ")
