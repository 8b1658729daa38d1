"""Archives: same inputs, same bytes; whole in themselves; rebuilt only when something changed."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from handlers.shared.definition import read_definition
from models import archive
from models.build import build_archive, read_archive_definition
from server.archives import read_archive
from server.contents import check_packed
from tests.conftest import RANDOM, TINY_IMAGE, TINY_TEXT, write_definition
from tests.cpu import NARROW
from tests.models.gates import with_int8

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
def test_same_inputs_give_same_bytes_in_every_precision(tmp_path, raw, monkeypatch):
    """The gate, which calibrates INT8, is a new process each time: addresses and hash seeds differ."""
    definition = write_definition(tmp_path / "models", with_int8(raw))
    archives = []
    for seed in ("1", "2"):
        monkeypatch.setenv("PYTHONHASHSEED", seed)
        build_archive(definition, RANDOM, store=tmp_path / seed)
        archives.append((tmp_path / seed / f"{raw['name']}.mar").read_bytes())
    packed = read_archive_definition(tmp_path / "1" / f"{raw['name']}.mar")
    assert [*packed["accuracy"]] == [f"ipex {precision}" for precision in NARROW]
    assert archives[0] == archives[1]


def test_every_file_is_known_by_its_sum(tiny_image_archive, tiny_image):
    done = subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=tiny_image, check=False)
    assert done.returncode == 0
    with zipfile.ZipFile(tiny_image_archive) as archive:
        listed = {line.split("  ")[1] for line in archive.read("SHA256SUMS").decode().splitlines()}
        assert listed == {*archive.namelist()} - {"SHA256SUMS"}


def test_the_server_the_build_and_the_worker_know_it_by_one_id(tiny_image_archive, tiny_image):
    known = read_archive(tiny_image_archive)
    check_packed([known])
    assert read_archive_definition(tiny_image_archive)["id"] == known.archive_id
    assert read_definition(tiny_image).archive_id == known.archive_id


def test_a_damaged_or_changed_archive_is_built_again(tmp_path, capsys):
    definition = write_definition(tmp_path / "models", TINY_IMAGE)
    build_archive(definition, RANDOM, store=tmp_path)
    archive = tmp_path / "tiny_image.mar"
    whole = archive.read_bytes()
    with zipfile.ZipFile(archive) as packed:
        block = packed.read("model.safetensors")[-64:]
    archive.write_bytes(whole.replace(block, bytes(64)))
    assert build_archive(definition, RANDOM, store=tmp_path)
    said = "tiny_image.mar is not as it was built: "
    assert f"{said}model.safetensors has changed" in capsys.readouterr().out
    assert archive.read_bytes() == whole
    with zipfile.ZipFile(archive, "a") as packed:
        packed.writestr("sitecustomize.py", "")
    assert build_archive(definition, RANDOM, store=tmp_path)
    assert f"{said}sitecustomize.py is missing, or was put in" in capsys.readouterr().out
    archive.write_bytes(whole[: len(whole) // 2])
    assert build_archive(definition, RANDOM, store=tmp_path)
    assert f"{said}it cannot be read: " in capsys.readouterr().out


def test_what_a_killed_build_left_goes_and_what_another_writes_stays(tmp_path):
    left, written = tmp_path / "bert.1.part", tmp_path / "bert.2.part"
    left.write_bytes(b"x")
    with written.open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        build_archive(write_definition(tmp_path / "models", TINY_IMAGE), RANDOM, store=tmp_path)
    assert [path.name for path in tmp_path.glob("*.part")] == ["bert.2.part"]


def test_an_archive_is_on_disk_before_it_has_its_name(tmp_path, monkeypatch):
    order = []
    sync, replace = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda number: (order.append("fsync"), sync(number))[1])
    monkeypatch.setattr(Path, "replace", lambda *paths: (order.append("rename"), replace(*paths))[1])
    with archive._replace_whole(tmp_path / "a.mar") as draft:
        draft.write_bytes(b"x")
    assert order == ["fsync", "rename", "fsync"]


def test_an_archive_holds_no_pickle_and_no_stray_files(tiny_image_archive):
    with zipfile.ZipFile(tiny_image_archive) as archive:
        names = archive.namelist()
    assert names == [*sorted(names[:-1]), "SHA256SUMS"]
    assert not [name for name in names if name.endswith((".pt", ".pth", ".bin", ".pkl", ".pyc"))]
    outside = {name for name in names if "/" not in name}
    assert outside == {
        "SHA256SUMS", "canary.jpg", "canary.json", "cpu_image_classifier.py", "definition.json",
        "labels.json", "model.safetensors", "requirements.txt",
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
