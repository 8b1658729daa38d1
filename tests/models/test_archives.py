"""Archives: same inputs, same bytes; whole in themselves; rebuilt only when something changed."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import zipfile

import pytest

from handlers.definition import read_packed
from handlers.sums import identify_folder
from models.build import build_archive
from server.archives import check_packed, read_archive
from tests.conftest import RANDOM, TINY_IMAGE, TINY_TEXT, with_int8, write_definition
from tests.cpu import NARROW

LOAD_ALONE = """
import importlib, json, pathlib, sys
manifest = json.load(open("MAR-INF/MANIFEST.json"))
module = importlib.import_module(manifest["model"]["handler"].removesuffix(".py"))
classes = [k for k in vars(module).values() if isinstance(k, type) and k.__module__ == module.__name__]
assert len(classes) == 1, classes

class Context:
    model_name = "alone"
    system_properties = {"model_dir": "."}
    def get_all_request_header(self, position): return {}
    def set_response_content_type(self, position, value): pass

handler = classes[0]()
handler.initialize(Context())
smoke = json.load(open("definition.json"))["example"]
(answer,) = handler.handle([{"body": pathlib.Path(smoke["file"]).read_bytes()}], Context())
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
    packed = read_packed(tmp_path / "1" / f"{raw['name']}.mar").definition
    assert packed.served == [f"ipex {precision}" for precision in NARROW]
    assert archives[0] == archives[1]


def test_every_file_is_known_by_its_sum(tiny_image_archive, tiny_image):
    done = subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=tiny_image, check=False)
    assert done.returncode == 0
    with zipfile.ZipFile(tiny_image_archive) as archive:
        listed = {line.split("  ")[1] for line in archive.read("SHA256SUMS").decode().splitlines()}
        assert listed == {*archive.namelist()} - {"SHA256SUMS"}


def test_the_server_and_the_worker_know_it_by_one_id(tiny_image_archive, tiny_image):
    known = read_archive(tiny_image_archive)
    check_packed([known])
    assert identify_folder(tiny_image) == known.archive_id


def test_a_damaged_or_changed_archive_is_built_again(tmp_path):
    left, written, archive = (tmp_path / name for name in ("bert.1.part", "bert.2.part", "tiny_image.mar"))
    left.write_bytes(b"x")
    definition = write_definition(tmp_path / "models", TINY_IMAGE)
    with written.open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert build_archive(definition, RANDOM, store=tmp_path)
    # What a killed build left is gone, what another one writes is not.
    assert [path.name for path in tmp_path.glob("*.part")] == ["bert.2.part"]
    assert not build_archive(definition, RANDOM, store=tmp_path)
    whole, first = archive.read_bytes(), read_packed(archive).archive_id
    with zipfile.ZipFile(archive) as packed:
        block = packed.read("model.safetensors")[-64:]
    archive.write_bytes(whole.replace(block, bytes(64)))
    assert build_archive(definition, RANDOM, store=tmp_path)
    assert archive.read_bytes() == whole
    with zipfile.ZipFile(archive, "a") as packed:
        packed.writestr("sitecustomize.py", "")
    assert build_archive(definition, RANDOM, store=tmp_path)
    archive.write_bytes(whole[: len(whole) // 2])
    assert build_archive(definition, RANDOM, store=tmp_path)
    changed = write_definition(tmp_path / "models", {**TINY_IMAGE, "batch_sizes": [1, 2]})
    assert build_archive(changed, RANDOM, store=tmp_path)
    assert read_packed(archive).archive_id != first


def test_an_archive_holds_no_pickle_no_left_over_files_and_no_settings_of_torchserves(tiny_image_archive):
    with zipfile.ZipFile(tiny_image_archive) as archive:
        names = archive.namelist()
        manifest = json.loads(archive.read("MAR-INF/MANIFEST.json"))
    assert manifest["model"]["handler"] == "kit_image_classifier.py"
    assert "configFile" not in manifest["model"]  # it would beat config.properties
    assert names == [*sorted(names[:-1]), "SHA256SUMS"]
    assert not [name for name in names if name.endswith((".pt", ".pth", ".bin", ".pkl", ".pyc"))]
    outside = {name for name in names if "/" not in name}
    assert outside == {
        "SHA256SUMS", "example.jpg", "kit_image_classifier.py", "definition.json",
        "model.safetensors", "requirements.txt",
    }  # fmt: skip
