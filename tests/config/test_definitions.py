"""What planning reads of archives, and how one that cannot be used is named."""

from __future__ import annotations

import pytest

from config.definitions import read_definitions
from config.errors import ConfigError
from config.rules.requests import check_models
from handlers.definition import Memory
from handlers.shared.shapes import ShapeGrid
from tests.config.planning import make_model
from tests.server.fakes import make_archive

TEXTS = {"token_lengths": [16, 64, 512], "tokens_per_run": 128, "max_texts_per_request": 8}


def make(folder, name, **described):
    make_archive(folder / f"{name}.mar", **{"name": name, **described})


def test_what_an_archive_says_is_planned_with(tmp_path):
    lost = {"data": "synthetic", "rejected": "agreement 90 %"}
    make(
        tmp_path, "b", batch_sizes=[1, 8], model=TEXTS, limits={"tokens_per_batch": 9}, freeze=False,
        memory={"ipex fp32": {"worker_mib": 900, "request_mib": 30}}, variants={"ipex int8": lost},
    )  # fmt: skip
    make(tmp_path, "a")
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
    make(tmp_path, "bert", batch_sizes=[1, 2, 8], model=TEXTS)
    (model,) = read_definitions(tmp_path, ["bert"])
    lengths, per_run = model.token_lengths, model.tokens_per_run
    grid = ShapeGrid(batch_sizes=model.batch_sizes, lengths=lengths, tokens_per_run=per_run)
    assert model.count_shapes() == len(grid.list_shapes()) == 6


def test_a_missing_archive_is_named_with_its_build(tmp_path):
    with pytest.raises(
        ConfigError, match=r"no archive of bert in .*; build it with: make models MODELS=bert$"
    ):
        read_definitions(tmp_path, ["bert"])
    make(tmp_path, "a")
    words = r"no archive of b, c in .*, which has a; build it with: make models BACKEND=eager MODELS='b c'$"
    with pytest.raises(ConfigError, match=words):
        read_definitions(tmp_path, ["a", "b", "c"], "make models BACKEND=eager")


def test_what_is_no_archive_of_its_name_is_refused(tmp_path):
    (tmp_path / "a.mar").write_bytes(b"PK")
    make_archive(tmp_path / "b.mar", name="c")
    with pytest.raises(
        ConfigError, match=r"a\.mar: not an archive of this kit: .*build it again: make models"
    ):
        read_definitions(tmp_path, ["a"])
    with pytest.raises(ConfigError, match=r"b\.mar is an archive of c: rename it c\.mar"):
        read_definitions(tmp_path, ["b"])


def test_a_variant_that_an_archive_lacks_is_named_with_its_build():
    model = make_model("m", {"fp32": 900, "int8": 900}, memory=make_model("m", {"fp32": 9}).memory)
    words = "ipex int8 is not in the archive of m: no build was asked for it; got ipex fp32, .*; do: "
    with pytest.raises(ConfigError, match=f"{words}make models MODELS=m BACKEND=ipex PRECISION=int8$"):
        check_models([model], {"m": "ipex int8"})
    lost = make_model("m", {"fp32": 9}, precisions=("fp32", "int8"), lost={"ipex int8": "no AVX2"})
    with pytest.raises(ConfigError, match="ipex int8 is not in the archive of m: no AVX2; got"):
        check_models([lost], {"m": "ipex int8"})
