"""Archives: same inputs, same bytes; whole in themselves; rebuilt only when something changed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile

import pytest

from models.build import build_archive, read_archive_definition
from tests.conftest import RANDOM, TINY_IMAGE, TINY_TEXT, write_definition

LOAD_ALONE = """
import importlib, json, pathlib, sys
module = importlib.import_module(json.load(open("definition.json"))["handler"])
classes = [k for k in vars(module).values() if isinstance(k, type) and k.__module__ == module.__name__]
assert len(classes) == 1, classes

class Metrics:
    def add_counter(self, name, value): pass

class Context:
    model_name = "alone"
    metrics = Metrics()
    system_properties = {"model_dir": "."}
    def get_all_request_header(self, position): return {}
    def set_response_content_type(self, position, value): pass

handler = classes[0]()
handler.initialize(Context())
canary = json.load(open("canary.json"))
(answer,) = handler.handle([{"body": pathlib.Path(canary["file"]).read_bytes()}], Context())
import handlers
print(json.dumps({"answer": json.loads(answer), "handlers": handlers.__file__}))
"""


@pytest.mark.parametrize("archive", ["tiny_image", "tiny_text"])
def test_an_archive_works_alone_in_a_clean_process(archive, request):
    folder = request.getfixturevalue(archive)
    environment = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", LOAD_ALONE],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["handlers"].startswith(str(folder))
    assert result["answer"]


@pytest.mark.parametrize("raw", [TINY_IMAGE, TINY_TEXT], ids=["image", "text"])
def test_same_inputs_give_same_bytes(tmp_path, raw):
    definition = write_definition(tmp_path / "models", raw)
    first, second = tmp_path / "first", tmp_path / "second"
    for store in (first, second):
        build_archive(definition, RANDOM, store=store)
    name = f"{raw['name']}.mar"
    assert (first / name).read_bytes() == (second / name).read_bytes()


def test_an_archive_holds_no_pickle_and_no_stray_files(tiny_image_archive):
    with zipfile.ZipFile(tiny_image_archive) as archive:
        names = archive.namelist()
    assert names == sorted(names)
    assert not [name for name in names if name.endswith((".pt", ".pth", ".bin", ".pkl", ".pyc"))]
    outside = {name for name in names if "/" not in name}
    assert outside == {
        "canary.jpg", "canary.json", "cpu_image_classifier.py", "definition.json", "labels.json",
        "model.safetensors", "requirements.txt",
    }  # fmt: skip


def test_the_manifest_packs_no_settings_that_would_beat_config_properties(tiny_image_archive):
    with zipfile.ZipFile(tiny_image_archive) as archive:
        manifest = json.loads(archive.read("MAR-INF/MANIFEST.json"))
    assert manifest["model"]["handler"] == "cpu_image_classifier.py"
    assert "configFile" not in manifest["model"]


def test_handler_names_are_none_of_torchserves_own(tiny_image_archive):
    # On an ImportError in the handler file TorchServe silently takes its own handler of that name.
    import ts.torch_handler

    own = {
        path.stem
        for folder in ts.torch_handler.__path__
        for path in __import__("pathlib").Path(folder).glob("*.py")
    }
    assert not own & {"cpu_image_classifier", "cpu_text_classifier"}


def test_a_fresh_archive_is_not_built_again_and_a_changed_one_is(tmp_path, capsys):
    definition = write_definition(tmp_path / "models", TINY_IMAGE)
    assert build_archive(definition, RANDOM, store=tmp_path)
    assert not build_archive(definition, RANDOM, store=tmp_path)
    assert "up to date (weights: random (seed 0))" in capsys.readouterr().out
    before = read_archive_definition(tmp_path / "tiny_image.mar")["id"]
    changed = write_definition(tmp_path / "models", {**TINY_IMAGE, "batch_sizes": [1, 2]})
    assert build_archive(changed, RANDOM, store=tmp_path)
    assert read_archive_definition(tmp_path / "tiny_image.mar")["id"] != before


def test_a_broken_archive_is_taken_for_missing(tmp_path):
    (tmp_path / "broken.mar").write_bytes(b"no zip")
    assert read_archive_definition(tmp_path / "broken.mar") is None
    assert read_archive_definition(tmp_path / "absent.mar") is None
