"""What training scripts save is taken, or rejected with the cause first and the one line that mends it."""

from __future__ import annotations

import argparse
import os
import pathlib
import re
from collections import OrderedDict, defaultdict

import pytest
import torch
from safetensors.torch import load_file
from torchvision.models import get_model

from models.errors import BuildError
from models.request import WeightsRequest
from models.state import load_state, read_checkpoint
from models.tasks.image import prepare
from tests.conftest import TINY_IMAGE, write_definition

CAUSE = 200
"""Characters of an error that a terminal or a log shows of it at least."""


class AttributeDict(dict):
    """As Lightning keeps hyper-parameters: a class that the build does not have, and must not run."""

    def __setstate__(self, state):
        os.abort()


def harm():
    pathlib.Path("harmed").touch()


class Harmful:
    def __reduce__(self):
        return (harm, ())


class Blocked:
    def __reduce__(self):
        return (os.system, ("true",))


def make_net():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        OrderedDict(conv=torch.nn.Conv2d(3, 4, 3), norm=torch.nn.BatchNorm2d(4), fc=torch.nn.Linear(4, 2))
    )


def train_a_step(net):
    """The optimizer's state, which has tensors, too."""
    adam = torch.optim.AdamW(net.parameters())
    for weights in net.parameters():
        weights.grad = torch.ones_like(weights)
    adam.step()
    return adam.state_dict()


NET = make_net()
OPTIMIZER = train_a_step(NET)
STATE = {key: value.clone() for key, value in NET.state_dict().items()}
OTHER = {key: value + 1 for key, value in STATE.items()}
ARGUMENTS = argparse.Namespace(model="resnet18", lr=0.1, out=pathlib.Path("out"), seen=defaultdict(list))


def before(prefix, state=STATE):
    return {prefix + key: value for key, value in state.items()}


AVERAGED = {"n_averaged": torch.tensor(3), **before("module.", OTHER)}
TAKEN = {
    "plain": STATE,
    "DataParallel": before("module."),
    "PyTorch's ImageNet example": {"epoch": 9, "state_dict": before("module."), "best_acc1": 91.0},
    "PyTorch's tutorial": {"epoch": 9, "model_state_dict": STATE, "optimizer_state_dict": OPTIMIZER},
    "compiled": before("_orig_mod."),
    "compiled under DDP": before("module._orig_mod."),
    "DDP, compiled": before("_orig_mod.module."),
    "compiled in part": {key.replace("conv.", "conv._orig_mod."): value for key, value in STATE.items()},
    "torchvision's train.py": {"model": STATE, "optimizer": OPTIMIZER, "epoch": 9, "args": ARGUMENTS},
    "torchvision's, averaged": {"model": before("module."), "model_ema": AVERAGED, "args": ARGUMENTS},
    "averaged alone": {"n_averaged": torch.tensor(3), **before("module.")},
    "timm's train.py": {"state_dict": STATE, "state_dict_ema": OTHER, "args": ARGUMENTS},
    "Lightning": {
        "state_dict": before("model."),
        "hyper_parameters": AttributeDict(lr=0.1),
        "callbacks": {"ModelCheckpoint": {"best_model_score": torch.tensor(0.9)}},
        "optimizer_states": [OPTIMIZER],
    },
    "a backbone": before("net.backbone."),
    "a name of its own": {"classifier": STATE, "epoch": 3},
    "within": {"model": {"state_dict": STATE, "arch": "x"}},
    "harm beside it": {"state_dict": STATE, "logger": Harmful()},
}


def read_form(folder, content, **way):
    torch.save(content, folder / "best.pth", _use_new_zipfile_serialization=way.pop("zipped", True))
    state, note = read_checkpoint(folder / "best.pth", **way)
    net = make_net()
    load_state(net, state, source="best.pth")
    return net.state_dict(), note


@pytest.mark.parametrize(
    ("form", "allow_pickle", "zipped"),
    [
        *((form, True, zipped) for form in TAKEN for zipped in (True, False)),
        # In the process without rights, which has nothing else that it would do otherwise.
        *((form, False, True) for form in ("torchvision's train.py", "timm's train.py", "Lightning")),
        ("harm beside it", False, True),
        ("harm beside it", False, False),
    ],
)
def test_what_training_scripts_save_is_taken(tmp_path, monkeypatch, form, allow_pickle, zipped):
    monkeypatch.chdir(tmp_path)
    got, _ = read_form(tmp_path, TAKEN[form], allow_pickle=allow_pickle, zipped=zipped)
    assert all(torch.equal(got[key], value) for key, value in STATE.items())
    assert not (tmp_path / "harmed").exists()


@pytest.mark.parametrize(
    ("form", "other"), [("timm's train.py", "state_dict_ema"), ("torchvision's, averaged", "model_ema")]
)
def test_which_of_two_is_taken_is_said(tmp_path, form, other):
    assert other in read_form(tmp_path, TAKEN[form])[1]
    assert read_form(tmp_path, TAKEN["Lightning"], allow_pickle=True)[1] == ""


def endless():
    held = {}
    held["model"] = held
    return held


REJECTED = {
    "a whole model": (NET, "holds a whole pickled model (torch.nn.modules.container.Sequential)"),
    "a model in a checkpoint": ({"model": NET, "epoch": 3}, "holds a whole pickled model (torch.nn.modules"),
    "several": ({"encoder": STATE, "head": OTHER}, "holds several state dicts: encoder, head; save the one"),
    "an optimizer": (OPTIMIZER, "holds no state dict, which is tensors by name: got {'state': dict"),
    "arguments": (ARGUMENTS, "holds no state dict, which is tensors by name: got a argparse.Namespace"),
    "itself": (endless(), "holds no state dict"),
    "empty": ({}, "holds no state dict"),
    "a command": ({"state_dict": STATE, "x": Blocked()}, "(Trying to load unsupported GLOBAL posix.system"),
    "more beside it": (
        {"state_dict": {**before("model."), "loss.weight": torch.ones(2)}},
        "holds loss.weight beside a whole model under 'model.'",
    ),
    "another model": ({"x.weight": torch.ones(1)}, "does not fit the model: missing keys: conv.bias"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("form", "allow_pickle"),
    [*((form, True) for form in REJECTED), ("a whole model", False), ("a command", False)],
)
def test_what_cannot_be_served_is_rejected_in_our_words(tmp_path, form, allow_pickle):
    content, cause = REJECTED[form]
    with pytest.raises(BuildError) as caught:
        read_form(tmp_path, content, allow_pickle=allow_pickle)
    message = str(caught.value)
    assert message.startswith("best.pth ")
    assert cause in message[:CAUSE]
    assert "weights_only" not in message
    assert "torch.save(" in message or form == "another model"
    assert len(message) < 2 * CAUSE


def test_a_torchscript_file_is_rejected_with_the_line_that_saves_its_weights(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.jit.script(NET).save("best.pt")
    with pytest.raises(BuildError, match=r"^best\.pt is a TorchScript file, which holds code") as caught:
        read_checkpoint(tmp_path / "best.pt")
    (line,) = re.findall(r"torch\.save\(.*\)", str(caught.value))
    exec(line)
    assert read_checkpoint(tmp_path / "weights.pth")[0].keys() == STATE.keys()


@pytest.fixture
def definition(tmp_path):
    raw = {**TINY_IMAGE, "architecture": "squeezenet1_1", "labels": ["ants", "bees"]}
    return write_definition(tmp_path / "models", raw)


def make_squeezenet(classes=2):
    torch.manual_seed(1)
    return get_model("squeezenet1_1", num_classes=classes).eval()


def build(definition, folder, content):
    (folder / "staging").mkdir(exist_ok=True)
    torch.save(content, folder / "best.pth")
    request = WeightsRequest(source="path", path=folder / "best.pth")
    return prepare(definition, request, folder / "staging")


def test_an_image_models_checkpoint_is_packed_as_its_weights(tmp_path, definition):
    state = make_squeezenet().state_dict()
    shifted = {key: value + 1 for key, value in state.items()}
    content = {"state_dict": before("model._orig_mod.", state), "args": ARGUMENTS}
    content["state_dict_ema"] = before("model._orig_mod.", shifted)
    prepared = build(definition, tmp_path, content)
    packed = load_file(tmp_path / "staging" / "model.safetensors")
    assert all(torch.equal(packed[key], value) for key, value in state.items())
    assert ["state_dict is served" in note for note in prepared.notes] == [True]


def test_a_model_of_grey_pictures_is_rejected_with_the_line_that_cures_it(tmp_path, definition):
    grey = make_squeezenet()
    grey.features[0] = torch.nn.Conv2d(1, 64, 3, 2)
    with pytest.raises(BuildError, match=r"^best\.pth takes images of 1 channel, grey") as caught:
        build(definition, tmp_path, grey.state_dict())
    key, factor = re.findall(r"multiply (\S+) by (torch\.tensor\(.*?\)\.view\(.*?\))", str(caught.value))[0]
    state = grey.state_dict()
    state[key] = state[key] * eval(factor)  # noqa: S307
    build(definition, tmp_path, state)
    mended = make_squeezenet()
    mended.load_state_dict(load_file(tmp_path / "staging" / "model.safetensors"))
    colours = torch.rand(1, 3, 64, 64)
    # ITU-R 601, as Pillow's convert("L").
    luma = (colours * torch.tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)).sum(1, keepdim=True)
    with torch.no_grad():
        torch.testing.assert_close(mended((colours - 0.5) / 0.2), grey.eval()((luma - 0.5) / 0.2))


def test_an_architecture_that_cannot_be_built_without_memory_is_read(tmp_path):
    raw = {**TINY_IMAGE, "architecture": "regnet_y_400mf", "labels": ["ants", "bees"]}
    torch.manual_seed(1)
    state = get_model("regnet_y_400mf", num_classes=2).state_dict()
    build(write_definition(tmp_path / "models", raw), tmp_path, state)
    packed = load_file(tmp_path / "staging" / "model.safetensors")
    assert all(torch.equal(packed[key], value) for key, value in state.items())
