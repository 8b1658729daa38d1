"""Package sets: which one BACKEND means, what the plan says of it, and what the launcher is told."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from config.__main__ import main
from config.rules.pinning import choose_pinning
from config.topology import read_topology
from handlers.backends.catalogue import BACKENDS, DEFAULT, DEFAULT_SET, SETS, choose_set, name_store, read_set
from tests.config.planning import MACHINES, plan_machine

ROOT = Path(__file__).resolve().parents[2]


def test_every_backend_has_a_set_with_what_it_needs():
    assert {backend for backends in SETS.values() for backend in backends} == {*BACKENDS}
    assert SETS[DEFAULT_SET][0] == DEFAULT
    for name, backends in SETS.items():
        pins = (ROOT / f"requirements/{name}/serve.in").read_text()
        for backend in backends:
            needed = BACKENDS[backend].distribution
            assert needed is None or f"\n{needed}==" in pins
    assert len({name_store(name) for name in SETS}) == len(SETS)


@pytest.mark.parametrize(
    ("backend", "package_set"),
    [
        *(("", "ipex"), ("eager", "ipex"), ("ipex", "ipex"), ("bert=eager,resnet50=ipex", "ipex")),
        *(("openvino", "current"), ("inductor", "current"), ("bert=eager,resnet50=openvino", "current")),
        *(("bert=inductor openvino", "current"), ("nonsense", "ipex")),
    ],
)
def test_backend_names_the_set(backend, package_set):
    assert choose_set(backend) == package_set


@pytest.mark.parametrize("backend", ["resnet50=openvino,bert=ipex", "ipex,bert=inductor"])
def test_a_mix_of_two_sets_is_refused_by_name(backend, capsys):
    ipex, current = sorted(backend.split(","), key=lambda word: "ipex" not in word)
    for part in (f"{ipex} needs ipex", f"{current} needs current", "do: serve them by two servers"):
        with pytest.raises(ValueError, match=re.escape(part)):
            choose_set(backend)
    assert main(["--check", "--backend", backend]) == 2
    assert "config: BACKEND must name backends of one package set" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("backend", "backends"),
    [
        ("", ("openvino", "openvino")),
        ("bert=eager", ("eager", "openvino")),
        ("inductor", ("inductor", "inductor")),
    ],
)
def test_openvino_computes_what_nobody_named(backend, backends):
    plan = plan_machine("two-cores", package_set="current", backend=backend)
    assert tuple(plan.models[name].backend.value for name in ("bert", "resnet50")) == backends
    assert plan.properties["ipex_enable"].value == "false"


@pytest.mark.parametrize(
    ("written", "package_set"), [(None, None), ({"location": "/x"}, None), ({"set": "current"}, "current")]
)
def test_an_environment_says_what_it_is_for(tmp_path: Path, written, package_set):
    if written is not None:
        (tmp_path / "setup.json").write_text(json.dumps(written))
    assert read_set(tmp_path) == package_set


@pytest.mark.parametrize(("workers", "said"), [(1, " --ninstances 1"), (2, "")])
def test_a_launcher_that_does_not_count_is_told(workers, said):
    """TorchServe itself says how many there are where there is more than one."""
    topology = read_topology(MACHINES / "cloud-adjacent-siblings")
    chunks = [(0, 2, 4, 6)] if workers == 1 else [(0, 2), (4, 6)]
    args = choose_pinning(topology, chunks, counted=True).args
    assert args is not None
    assert args.render() == f"--core_list 0,2,4,6 --ncores_per_instance {len(chunks[0])}{said}"
    plain = choose_pinning(topology, chunks).args
    assert plain is not None
    assert "--ninstances" not in plain.render()
