"""Archives that others made, in the plan: an instance of their own, TorchServe's defaults, and YAML that
wins."""

from __future__ import annotations

import pytest

from config.errors import ConfigError
from config.planning import read_facts
from config.settings import Settings
from tests.config.planning import MODELS, find_machine, make_foreign, plan_machine
from tests.config.test_archives import make_foreign as pack_foreign
from tests.config.test_archives import make_kit
from tests.config.test_instances import check_shares


def plan_foreign(*archives, models=(), machine="two-cores", **changes):
    return plan_machine(machine, models, foreign=archives or (make_foreign(),), **changes)


def test_it_is_served_with_torchserves_own_defaults():
    plan = plan_foreign()
    check_shares(find_machine("two-cores"), plan)
    for name, instance in plan.instances.items():
        (model,) = instance.models.values()
        store = f"/kit/run/instances/{name}/store"
        properties = instance.properties
        assert (instance.kit, model.kit) == (False, False)
        assert (model.backend, model.precision, model.limits) == ("", "", {})
        assert (model.batch_size, model.max_batch_delay_ms, model.response_timeout_s) == (1, 100, 120)
        assert model.archives == {"1.0": "/archives/old-1.0.mar"}
        assert (properties["model_store"], properties["load_models"]) == (store, "old=old-1.0.mar")
        assert properties["allowed_urls"] == f"(?-i)file://{store}/[^/]*\\.mar"
        assert (properties["decode_input_request"], properties["ipex_enable"]) == ("true", "true")
        assert instance.worker_environment["TS_DECODE_INPUT_REQUEST"] == "true"
        assert not {"CPU_KIT_OPTIONS", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"} & {*instance.environment}
        assert "nothing for TorchScript" in plan.reasons[f"{name}.properties.ipex_enable"]


def test_launcher_allocator_and_openmp_are_planned_as_for_the_kits_models():
    instances, kits = plan_foreign().instances.values(), plan_machine().instances.values()
    for instance, own in zip(instances, kits, strict=True):
        keys = "cpu_launcher_enable", "cpu_launcher_args", "install_py_dep_per_model", "enable_model_api"
        assert [instance.properties[key] for key in keys] == [own.properties[key] for key in keys]
        assert (instance.worker_cpus, instance.memory_nodes) == (own.worker_cpus, own.memory_nodes)
        assert instance.environment["MALLOC_CONF"] == own.environment["MALLOC_CONF"]
        for key in ("LD_PRELOAD", "OMP_NUM_THREADS", "KMP_AFFINITY"):
            assert instance.worker_environment[key] == own.worker_environment[key]


@pytest.mark.parametrize(
    ("machine", "changes", "serving"),
    [
        ("two-cores", {}, ["kit", "foreign"]),
        ("single-socket", {"mode": "latency"}, ["kit", "foreign"]),
        ("sub-numa-clusters", {}, ["kit", "kit", "kit", "foreign"]),
        ("single-socket", {"instances": 3}, ["kit", "kit", "foreign"]),
    ],
)
def test_beside_kit_models_the_last_instance_is_theirs(machine, changes, serving):
    plan = plan_foreign(models=MODELS, machine=machine, **changes)
    assert ["kit" if one.kit else "foreign" for one in plan.instances.values()] == serving
    assert {*plan.models} == {"bert", "resnet50", "old"}
    assert plan.list_serving("old") == [[*plan.instances][-1]]
    check_shares(find_machine(machine), plan)


def test_beside_kit_models_two_instances_are_needed():
    with pytest.raises(ConfigError, match="need an instance each"):
        plan_foreign(models=MODELS, machine="container-quota-v1")
    with pytest.raises(ConfigError, match="INSTANCES must be 2 to 2"):
        plan_foreign(models=MODELS, instances=1)


def test_workers_are_shared_out_to_those_that_serve_a_model():
    plan = plan_foreign(models=MODELS, machine="single-socket", workers=4, instances=3)
    assert [len(one.worker_cpus) for one in plan.instances.values()] == [2, 2, 2]


YAML = {"batchSize": 4, "maxBatchDelay": 20, "responseTimeout": 33, "startupTimeout": 44}


def test_what_its_yaml_says_is_planned():
    plan = plan_foreign(make_foreign(config=YAML))
    model = plan.models["old"]
    assert (model.batch_size, model.max_batch_delay_ms) == (4, 20)
    assert (model.response_timeout_s, model.startup_timeout_s) == (33, 44)
    assert "YAML" in plan.reasons["a1.old.batch_size"]
    assert model.maxconn == 2 * 1 * 4


def test_a_yaml_that_does_not_say_time_outs_has_torchserves_in_force():
    for config in ({}, None):
        model = plan_foreign(make_foreign(config=config)).models["old"]
        assert (model.response_timeout_s, model.startup_timeout_s) == (120, 120)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"batch": {"old": 8}}, "BATCH of old .*batchSize: 4.*got 8"),
        ({"delay_ms": {"*": 1}}, "DELAY_MS of old .*got 1"),
    ],
)
def test_a_setting_that_its_yaml_would_beat_is_an_error(changes, named):
    with pytest.raises(ConfigError, match=named):
        plan_foreign(make_foreign(config=YAML), **changes)
    model = plan_foreign(batch={"old": 8}, delay_ms={"*": 1}).models["old"]
    assert (model.batch_size, model.max_batch_delay_ms) == (8, 1)


def test_workers_of_its_yaml_are_those_of_each_instance():
    workers = {"minWorkers": 2, "maxWorkers": 2}
    plan = plan_foreign(make_foreign(config=workers), machine="single-socket")
    assert [one.worker_cpus for one in plan.instances.values()] == [((0, 1), (2, 3)), ((4, 5), (6, 7))]
    assert list(plan_foreign(make_foreign(config=workers)).instances) == ["a1"], "two cores hold them once"
    with pytest.raises(ConfigError, match=r"WORKERS must be 1 to 2 .*: got 3"):
        plan_foreign(make_foreign(config={"minWorkers": 3, "maxWorkers": 3}))
    with pytest.raises(ConfigError, match=r"one number of workers .*got old 2, WORKERS=4"):
        plan_foreign(make_foreign(config=workers), machine="single-socket", instances=1, workers=4)
    other = make_foreign("other", config={"minWorkers": 1, "maxWorkers": 1})
    with pytest.raises(ConfigError, match=r"got old 2, other 1"):
        plan_foreign(make_foreign(config=workers), other, machine="single-socket")


def test_several_archives_and_versions_are_in_one_server():
    versions = [make_foreign(version=version) for version in ("2.9", "2.10")]
    plan = plan_foreign(*versions, make_foreign("other"))
    model, instance = plan.models["old"], plan.instances["a1"]
    assert (model.version, {*model.archives}) == ("2.10", {"2.9", "2.10"})
    assert instance.properties["load_models"] == "old=old-2.10.mar,old=old-2.9.mar,other=other-1.0.mar"
    with pytest.raises(
        ConfigError, match=r"versions of old must say the same batchSize .*got 2\.9 None, 1\.0 4"
    ):
        plan_foreign(versions[0], make_foreign(config={"batchSize": 4}))


def test_memory_is_estimated_by_the_archives_size():
    assert list(plan_foreign(make_foreign(size_mib=2000)).instances) == ["a1", "a2"]
    with pytest.raises(ConfigError, match=r"one worker of each model \(old\): needed 3\d\d\d\d MiB"):
        plan_foreign(make_foreign(size_mib=9000))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"precision": "int8"}, "PRECISION is of the kit's models"),
        ({"backend": {"old": "openvino"}}, "BACKEND of old must be ipex or eager"),
        ({"batch": {"new": 1}}, "BATCH must name models that are served, old"),
    ],
)
def test_settings_of_kit_models_alone_are_rejected(changes, named):
    with pytest.raises(ConfigError, match=named):
        plan_foreign(**changes)


@pytest.mark.parametrize(
    ("changes", "switch"),
    [({}, "true"), ({"backend": {"*": "eager"}}, "false"), ({"package_set": "current"}, "false")],
)
def test_ipex_is_on_in_its_package_set(changes, switch):
    assert plan_foreign(**changes).instances["a1"].properties["ipex_enable"] == switch


def test_a_queue_of_its_own_that_is_too_short_is_named():
    with pytest.raises(ConfigError, match=r"jobQueueSize in its YAML must be at least .*got 2"):
        plan_foreign(make_foreign(config={"jobQueueSize": 2}))


def read(tmp_path, *files, **changes):
    asked = {"prefix": str(tmp_path / "none"), "model_store": str(tmp_path), **changes}
    return read_facts(
        Settings(models=tuple(map(str, files)), topology="tests/config/machines/two-cores", **asked)
    )


def test_models_are_names_and_paths(tmp_path):
    make_kit(tmp_path / "bert.mar")
    new = pack_foreign(tmp_path / "new.mar", model={"modelVersion": "2.0"})
    old = pack_foreign(tmp_path / "old.mar")
    facts = read(tmp_path, new, "bert", old)
    assert [one.name for one in facts.kit] == ["bert"]
    assert [one.version for one in facts.foreign["old"]] == ["2.0", "1.0"]
    assert facts.foreign["old"][0].path == new
    assert not facts.live
    with pytest.raises(ConfigError, match=r"two archives of old 1.0"):
        read(tmp_path, old, pack_foreign(tmp_path / "again.mar"))
    with pytest.raises(ConfigError, match=r"two archives of bert 1.0: got .* beside the kit's model"):
        read(tmp_path, "bert", pack_foreign(tmp_path / "mine.mar", model={"modelName": "bert"}))


def test_two_files_of_one_name_cannot_be_linked_into_one_store(tmp_path):
    (tmp_path / "b").mkdir()
    one = pack_foreign(tmp_path / "x.mar")
    other = pack_foreign(tmp_path / "b" / "x.mar", model={"modelVersion": "2.0"})
    with pytest.raises(ConfigError, match=r"MODELS has two files of one name, x\.mar"):
        read(tmp_path, one, other)


def test_what_the_environment_lacks_is_found_on_this_machine_alone(tmp_path):
    file = pack_foreign(tmp_path / "x.mar", **{"handler.py": "import no_such_module"})
    assert read(tmp_path, file).foreign
    with pytest.raises(ConfigError, match="no_such_module"):
        read_facts(Settings(models=(str(file),), model_store=str(tmp_path)))
