"""What planning reads of archives: the kit's own, and those that others made; how one that cannot be used is
named."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from config.archives import check_imports, read_definitions, read_foreign
from config.errors import ConfigError
from handlers.definition import Definition, Memory, render_definition
from handlers.shared.shapes import ShapeGrid

TEXTS = {"token_lengths": [16, 64, 512], "tokens_per_run": 128, "max_texts_per_request": 8}


def make_kit(file: Path, **described) -> Path:
    """An archive of the kit, without a model in it."""
    fields = {
        "name": file.stem, "handler": "", "weights": "random", "batch_sizes": [1], "model": {}, "inputs": "",
        "example": {"file": "example.txt", "content_type": "text/plain"},
        "precisions": {"fp32": {"self_check_relative_error": 1, "answer_relative": 0, "answer_absolute": 0}},
        "origin": {"source": "random", "path": "", "files": ""}, "built_with": {"torch": "2.8.0"},
    }  # fmt: skip
    members = {
        "definition.json": render_definition(Definition(**{**fields, **described})),
        "example.txt": "hello",
    }
    sums = "".join(f"{hashlib.sha256(text.encode()).hexdigest()}  {name}\n" for name, text in members.items())
    return pack(file, **members, SHA256SUMS=sums)


def pack(file: Path, **members: str) -> Path:
    with zipfile.ZipFile(file, "w") as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    return file


def make_foreign(file: Path, *, model=None, runtime="python", yaml=None, needs=None, **members: str) -> Path:
    """As torch-model-archiver packs it."""
    named = {"modelName": "old", "modelVersion": "1.0", "handler": "handler.py", **(model or {})}
    if yaml is not None:
        named["configFile"], members["settings.yaml"] = "settings.yaml", yaml
    if needs is not None:
        named["requirementsFile"], members["requirements.txt"] = "requirements.txt", needs
    manifest = json.dumps({"runtime": runtime, "archiverVersion": "0.12.0", "model": named})
    return pack(file, **{"MAR-INF/MANIFEST.json": manifest, "handler.py": "", **members})


def test_what_an_archive_says_is_planned_with(tmp_path):
    make_kit(
        tmp_path / "b.mar", batch_sizes=[1, 8], model=TEXTS, limits={"tokens_per_batch": 9}, freeze=False,
        memory={"ipex fp32": {"worker_mib": 900, "request_mib": 30}},
        variants={"ipex int8": {"data": "synthetic", "rejected": "agreement 90 %"}},
    )  # fmt: skip
    make_kit(tmp_path / "a.mar")
    texts, plain = read_definitions(tmp_path, ["b", "a"])
    assert (texts.name, texts.batch_sizes, texts.precisions) == ("b", (1, 8), ("fp32",))
    assert texts.memory == {"ipex fp32": Memory(worker_mib=900, request_mib=30)}
    assert (texts.lost, [*texts.limits], texts.freeze) == (
        {"ipex int8": "agreement 90 %"}, ["tokens_per_batch"], False,
    )  # fmt: skip
    assert (texts.token_lengths, texts.tokens_per_run, texts.max_texts_per_request) == ((16, 64, 512), 128, 8)
    assert (plain.token_lengths, plain.tokens_per_run, plain.max_texts_per_request) == ((), None, 1)
    assert (plain.freeze, plain.count_shapes()) == (True, 1)


def test_as_many_shapes_are_counted_as_the_handler_warms(tmp_path):
    make_kit(tmp_path / "bert.mar", batch_sizes=[1, 2, 8], model=TEXTS)
    (model,) = read_definitions(tmp_path, ["bert"])
    grid = ShapeGrid(
        batch_sizes=model.batch_sizes, lengths=model.token_lengths, tokens_per_run=model.tokens_per_run
    )
    assert model.count_shapes() == len(grid.list_shapes()) == 6


def test_a_missing_archive_is_named_with_its_build(tmp_path):
    with pytest.raises(ConfigError, match=r"no archive of bert in .*: make models MODELS=bert$"):
        read_definitions(tmp_path, ["bert"])
    make_kit(tmp_path / "a.mar")
    words = r"no archive of b, c in .*, which has a; build it with: make models BACKEND=eager MODELS='b c'$"
    with pytest.raises(ConfigError, match=words):
        read_definitions(tmp_path, ["a", "b", "c"], "make models BACKEND=eager")


def test_what_is_no_archive_of_its_name_is_rejected(tmp_path):
    (tmp_path / "a.mar").write_bytes(b"PK")
    make_kit(tmp_path / "b.mar", name="c")
    with pytest.raises(
        ConfigError, match=r"a\.mar: not an archive of this kit: .*build it again: make models"
    ):
        read_definitions(tmp_path, ["a"])
    with pytest.raises(ConfigError, match=r"b\.mar is an archive of c: rename it c\.mar"):
        read_definitions(tmp_path, ["b"])


YAML = (
    "minWorkers: 2\nmaxWorkers: 4\nbatchSize: 8\nmaxBatchDelay: 0\nresponseTimeout: '60'\ndeviceType: cpu\n"
)


def test_one_that_others_made_says_name_version_and_what_its_yaml_sets(tmp_path):
    read = read_foreign(make_foreign(tmp_path / "x.mar", yaml=YAML, needs="# none\n\nnumpy>=1\n"))
    assert (read.name, read.version, read.handler, read.size_mib) == ("old", "1.0", "handler.py", 1)
    # TorchServe ignores what is no whole number above 0
    numbers = [
        read.read_number(key) for key in ("batchSize", "maxBatchDelay", "responseTimeout", "startupTimeout")
    ]
    assert (numbers, read.workers, read.requirements) == ([8, None, None, None], 2, ("numpy>=1",))
    plain = read_foreign(make_foreign(tmp_path / "y.mar", model={"modelName": None, "modelVersion": None}))
    assert (plain.name, plain.version, plain.config, plain.workers) == ("y", "1.0", None, None)
    assert read_foreign(make_foreign(tmp_path / "z.mar", yaml="minWorkers: 2")).workers is None


def test_one_of_torch_model_archiver_is_read(tmp_path):
    pytest.importorskip("model_archiver")
    (tmp_path / "weights.pt").write_bytes(b"0" * (3 << 20))
    (tmp_path / "settings.yaml").write_text("batchSize: 4\n")
    words = "--model-name old --version 2.1 --handler image_classifier --force --serialized-file weights.pt "
    words += "--config-file settings.yaml --export-path ."
    command = [sys.executable, "-m", "model_archiver.model_packaging", *words.split()]
    subprocess.run(command, cwd=tmp_path, check=True)
    read = read_foreign(tmp_path / "old.mar")
    assert (read.name, read.version, read.handler) == ("old", "2.1", "image_classifier")
    assert (read.config, read.size_mib) == ({"batchSize": 4}, 1)  # of zeros


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"yaml": "deviceType: gpu"}, "deviceType is 'gpu'"),
        ({"yaml": "parallelType: pp"}, "parallelType is 'pp'"),
        ({"yaml": "a: ["}, "settings.yaml must be YAML"),
        ({"yaml": "- 1"}, "settings.yaml must be a YAML mapping: got list"),
        ({"runtime": "LSP"}, "runtime is 'LSP'"),
        ({"model": {"handler": ""}}, "handler is ''"),
        ({"model": {"configFile": "none.yaml"}}, "must be an archive of torch-model-archiver"),
    ],
)
def test_what_cannot_be_served_is_rejected_by_name(tmp_path, changes, said):
    with pytest.raises(ConfigError, match=said):
        read_foreign(make_foreign(tmp_path / "x.mar", **changes))


def test_what_is_no_archive_is_rejected(tmp_path):
    (tmp_path / "a.mar").write_bytes(b"not a zip")
    pack(tmp_path / "b.mar", **{"handler.py": ""})
    make_foreign(tmp_path / "a,b=c.mar")
    for name, said in (
        ("a", r"a\.mar must be an archive of torch-model-archiver \(a ZIP file\)"),
        ("b", r"got a ZIP without MAR-INF/MANIFEST\.json"),
        ("none", r"none\.mar cannot be read: No such file"),
        ("a,b=c", r"its file name is 'a,b=c\.mar'; rename it"),
    ):
        with pytest.raises(ConfigError, match=said):
            read_foreign(tmp_path / f"{name}.mar")


def find_missing(tmp_path, folders, **changes) -> str:
    """What is said of an archive in such an environment."""
    try:
        check_imports(read_foreign(make_foreign(tmp_path / "x.mar", **changes)), [*map(str, folders)])
    except ConfigError as problem:
        return str(problem)
    return ""


def of_source(text: str) -> dict[str, str]:
    return {"handler.py": text}


@pytest.mark.parametrize(
    ("changes", "missing"),
    [
        (of_source("import os, json\nfrom collections import abc\nimport installed.part"), ""),
        (of_source("import no_such\nfrom nowhere.part import x"), "no_such, nowhere"),
        # another module of the archive, and what that imports
        (of_source("from helper import f"), "deep"),
        (of_source("import folder.part"), ""),
        # what may be missing, or is needed by a call only
        (of_source("try:\n    import captum\nexcept ImportError:\n    captum = None"), ""),
        (of_source("def f():\n    import captum"), ""),
        (of_source("from ts.torch_handler.base_handler import BaseHandler"), ""),
        (of_source("from ts.torch_handler import vision_handler"), "captum"),
        (of_source("from ts.torch_handler.vision_handler import VisionHandler"), "captum"),
        (of_source("import captum.attr"), "captum"),
        (of_source("this is no Python"), ""),
        # a handler of TorchServe's own
        ({"model": {"handler": "vision_handler"}}, "captum"),
        ({"model": {"handler": "base_handler"}}, ""),
        ({"model": {"handler": "other"}}, "other"),
    ],
)
def test_modules_that_are_missing_are_named(tmp_path, changes, missing):
    """Found without importing anything."""
    handlers = tmp_path / "site" / "ts" / "torch_handler"
    handlers.mkdir(parents=True)
    (tmp_path / "site" / "installed.py").write_text("raise AssertionError('imported')")
    (handlers / "base_handler.py").write_text("import abc")
    (handlers / "vision_handler.py").write_text(
        "from captum.attr import X\nfrom .base_handler import BaseHandler"
    )
    files = {"helper.py": "import deep", "folder/part.py": "import unseen"}
    said = find_missing(tmp_path, [tmp_path / "site"], **files, **changes)
    names = said.partition("lacks: ")[2].partition(";")[0]
    assert names.partition(":")[0] == missing
    assert ("the extra of TorchServe's own" in said) == (missing == "captum")
    assert ("uv pip install" in said) == bool(missing)


@pytest.mark.parametrize(
    ("needs", "lacking"),
    [
        ("pytest\n", ""),
        ("pytest>=1,<999 # a test's", ""),
        ("pytest>=999\n", "pytest>=999"),
        ("no-such-package==1.0\npytest", "no-such-package==1.0"),
        ("windows-only; sys_platform == 'win32'", ""),
        ("-r other.txt", "-r other.txt"),
    ],
)
def test_requirements_that_are_not_met_are_named_with_their_installation(tmp_path, needs, lacking):
    said = find_missing(tmp_path, sys.path, needs=needs)
    assert (f"does not meet: {lacking}; " in said, "uv pip install" in said) == (bool(lacking), bool(lacking))
