"""Tables, sentences and picture come from a folder alone; a doubtful rung shows no figure."""

from __future__ import annotations

import json

import pytest

from loadtest import pages
from loadtest.errors import LoadTestError
from loadtest.ladder.__main__ import main
from loadtest.ladder.keep import keep_targets, name_block
from loadtest.ladder.report import list_extras, read_result, render_text, write_report
from loadtest.ladder.rows import find_row
from loadtest.ladder.targets import compare_with_targets
from loadtest.ladder.words import describe_machine
from tests.loadtest.ladder.results import INPUTS, make_header, make_side, write_ladder
from tests.loadtest.summaries import keep_virtual, make_scenario


def find(folder, name):
    return find_row(read_result(folder).rows, name)


def change_block(folder, number, change):
    file = folder / name_block(number)
    block = json.loads(file.read_text())
    change(block)
    file.write_text(json.dumps(block))


def test_figures_ratios_and_verdicts(tmp_path):
    folder = write_ladder(tmp_path)
    ipex, openmp, top = (find(folder, name) for name in ("ipex", "openmp", "top"))
    assert ipex.rate.value == pytest.approx(10 * 1.5**3, rel=0.02)
    assert ipex.to_before.low < 1.5 < ipex.to_before.high
    assert (ipex.verdict, openmp.verdict) == ("helps", "no gain seen on this host")
    assert top.to_stock.low < 1.5**9 < top.to_stock.high


def test_a_chain_over_blocks_is_less_certain_than_one_block(tmp_path):
    rows = [find(write_ladder(tmp_path), name) for name in ("ipex", "top")]
    spans = [row.to_stock.high / row.to_stock.low for row in rows]
    assert spans[0] < spans[1] < 1.2


def test_every_model_has_its_tables_and_its_picture(tmp_path):
    for model in ("resnet50", "bert"):
        result = read_result(write_ladder(tmp_path, make_header(model)))
        page, picture = write_report(result, tmp_path / "docs")
        text = page.read_text()
        assert (page.name, picture.name) == (f"ladder-{model}.md", f"ladder-{model}.png")
        assert picture.read_bytes().startswith(b"\x89PNG")
        assert f"](ladder-{model}.png)" in text
        assert "a 2-core AVX-512 virtual machine (AMD, 23 GiB)" in text
        assert {"resnet50": "7.71×", "bert": "2.20×"}[model] in text
        assert str(tmp_path) not in text


def test_a_page_of_others_is_not_overwritten_and_other_files_do_not_matter(tmp_path):
    result, docs = read_result(write_ladder(tmp_path)), tmp_path / "docs"
    docs.mkdir()
    (docs / "guide.md").write_text("a guide")
    page, _ = write_report(result, docs)
    write_report(result, docs)  # an earlier one of ours is renewed
    page.write_text("notes on ladders")
    expected = r"ladder-\w+\.md is no report of a ladder and would be overwritten"
    with pytest.raises(LoadTestError, match=expected):
        write_report(result, docs)
    assert page.read_text() == "notes on ladders"


def test_what_the_kit_refuses_is_told_with_its_own_reason(tmp_path):
    text = render_text(read_result(write_ladder(tmp_path)))
    assert "without IPEX: cannot be left out: PRECISION=int8 needs IPEX: got --no-ipex" in text


def test_what_does_not_apply_is_listed_without_a_figure(tmp_path):
    text = render_text(read_result(write_ladder(tmp_path, make_header("bert"))))
    assert "does not apply: the model has no convolutions" in text


def plant_not_on(block):
    block["servers"]["jemalloc"]["seen"]["allocator"] = {"state": "system", "detail": "libc.so.6"}


def plant_disturbed(block):
    side = next(one for one in block["sides"] if one["name"] == "jemalloc")
    side.update(make_side("jemalloc", 77.7, others=4.0))


def plant_restarted(block):
    block["changed_workers"]["jemalloc"] = [1, 2]


@pytest.mark.parametrize(
    ("plant", "doubt"),
    [
        (plant_not_on, "its setting is not in effect: allocator asked jemalloc: got system (libc.so.6)"),
        (plant_disturbed, "other programs or the host took"),
        (plant_restarted, "a worker died and was started again (1, 2)"),
    ],
)
def test_a_doubtful_rung_is_invalid_and_shows_no_figure(tmp_path, plant, doubt):
    folder = write_ladder(tmp_path)
    change_block(folder, 2, plant)
    result = read_result(folder)
    row, above = find(folder, "jemalloc"), find(folder, "openmp")
    line = next(one for one in render_text(result).splitlines() if one.startswith("| + jemalloc"))
    assert not result.is_valid
    assert row.rate is row.to_before is row.to_stock is None
    assert line.count("INVALID") == 2
    assert f"INVALID: {doubt}" in render_text(result)
    assert above.to_before is None  # nothing is compared with it
    assert above.to_stock is not None  # but by a rung below


def test_an_unfinished_ladder_has_a_report_of_what_is_there(tmp_path):
    result = read_result(write_ladder(tmp_path, blocks=1))
    assert not result.is_finished
    assert find_row(result.rows, "top").state == "not measured yet"
    assert "not measured yet" in render_text(result)
    assert write_report(result, tmp_path / "docs")


def test_the_top_is_compared_with_the_last_targets(tmp_path):
    folder = write_ladder(tmp_path / "results")
    for number, rate in ((1, 99.0), (2, 400.0)):
        sides = {"kit int8": rate, "stock TorchServe": 10.0}
        result = {
            "row": "resnet50-int8",
            "time": "2025-01-01T00:00:00+00:00",
            "sides": [{"name": n, "requests_per_second": {"median": r}} for n, r in sides.items()],
        }
        file = tmp_path / "targets" / f"2025010{number}T000000Z" / "resnet50-int8.json"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps(result))
    result = read_result(folder)
    found = compare_with_targets("resnet50", result.rows, tmp_path / "targets")
    keep_targets(folder, found)
    expected = 10 * 1.5**9
    assert found["figures"][0]["difference"] == pytest.approx(expected / 400 - 1, abs=0.02)
    assert "requests/s of the top: " in render_text(read_result(folder))
    assert compare_with_targets("bert", result.rows, tmp_path / "targets") == {}


def test_the_suites_page_shows_the_latest_whole_ladder(tmp_path):
    write_ladder(tmp_path, make_header(time="2025-01-02T00:00:00+00:00"))
    write_ladder(tmp_path, blocks=1)
    header = make_header()
    write_ladder(
        tmp_path, make_header(rungs=header.rungs[:1], left_out=(), blocks=header.blocks[:1]), blocks=0
    )
    loop, _ = keep_virtual(tmp_path, make_scenario("closed"), level=16)
    page = (pages.write_report([loop], tmp_path, list_extras(tmp_path)).folder / "report.html").read_text()
    assert "<h2>Ladder of ResNet50</h2>" in page
    assert "Ladder of BERT" not in page
    assert page.count("data:image/svg+xml;base64,") == 3


def test_the_host_is_named_by_facts():
    assert describe_machine({**INPUTS["host"], "virtual": False, "flags": ["avx2"]}) == (
        "a 2-core AVX2 machine (AMD, 23 GiB)"
    )


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (["--model", "resnet51"], "MODEL must be one of resnet50, bert: got resnet51"),
        (["--repeats", "1"], "REPEATS must be at least 2: got 1"),
        (["--seconds", "nan"], "SECONDS must be above 0: got nan"),
        (["--seconds", "0"], "SECONDS must be above 0: got 0"),
        (["--resume", "nowhere"], "nowhere holds no ladder"),
    ],
)
def test_what_gives_no_figures_is_refused_before_anything_is_started(capsys, wrong, sentence):
    assert main(["--model", "bert", "--check", *wrong]) == 1
    assert sentence in capsys.readouterr().err


def test_good_values_are_only_looked_at(capsys):
    assert main(["--model", "bert", "--check"]) == 0
    assert capsys.readouterr().out == ""
