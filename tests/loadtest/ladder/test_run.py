"""Each block is kept once it is finished, servers are carried over, and a run that was cut off goes on."""

from __future__ import annotations

import contextlib
import json
from types import SimpleNamespace

import pytest

from loadtest.errors import LoadTestError, RefusedError
from loadtest.ladder import fleet as fleet_module
from loadtest.ladder import run as run_module
from loadtest.ladder.keep import read_blocks
from loadtest.ladder.progress import Progress, estimate
from loadtest.ladder.run import Ladder
from loadtest.ladder.settings import Layout
from loadtest.turns import Timing
from tests.loadtest.ladder.results import make_header, make_side, write_ladder
from tests.loadtest.making import FakeSide

TIMING = Timing(seconds=5.0, warm_up_seconds=3.0, repeats=2)


class FakeFleet(fleet_module.Fleet):
    """Starts nothing; `log` says what would have been."""

    log: list[str]

    def bring(self, rung):
        self.log.append(f"+{rung.name}")
        if rung.name == "without-ipex":
            raise RefusedError("config failed", "int8 needs IPEX")
        if rung.name == self.broken:
            raise LoadTestError("the machine is on fire")
        agreement = {"same": 1, "judged": 1, "largest_difference": 0.0}
        stack = contextlib.ExitStack()
        stack.callback(self.log.append, f"-{rung.name}")
        self.up[rung.name] = SimpleNamespace(rung=rung, stack=stack, facts={"agreement": agreement})
        return self.up[rung.name]

    def find_changed_workers(self, name):
        return ()


@pytest.fixture
def start(monkeypatch, tmp_path):
    """Makes a ladder without servers, and the log of what it starts, stops and warms up."""

    def make_side(self, fleet, name):
        side = FakeSide(name=name, rates=[10.0] * 9)
        side.locust = SimpleNamespace(users=8)
        return side

    def make(folder, header, broken=""):
        log: list[str] = []
        monkeypatch.setattr(FakeFleet, "log", log, raising=False)
        monkeypatch.setattr(FakeFleet, "broken", broken, raising=False)
        monkeypatch.setattr(run_module, "Fleet", FakeFleet)
        monkeypatch.setattr(Ladder, "_make_side", make_side)
        progress = Progress(say=log.append, planned=1000.0)
        return (
            Ladder(
                bench=SimpleNamespace(timing=TIMING, report=None),
                header=header,
                folder=folder,
                payloads=tmp_path,
                layout=Layout(workers=2, cores_per_worker=1),
                each_length=[],
                progress=progress,
            ),
            log,
        )

    return make


def test_all_blocks_are_kept_and_nothing_stays_up(start, tmp_path):
    header = make_header()
    folder = write_ladder(tmp_path, header, blocks=0)
    ladder, log = start(folder, header)
    ladder.run()
    blocks = read_blocks(folder, header)
    started = [line[1:] for line in log if line.startswith("+")]
    assert set(blocks) == set(range(1, len(header.blocks) + 1))
    assert sorted(set(started)) == sorted(started)  # each once: those in several blocks are carried over
    assert {line[1:] for line in log if line.startswith("-")} == set(started) - {"without-ipex"}
    assert [block["refused"] for block in blocks.values() if block["refused"]] == [
        {"without-ipex": "int8 needs IPEX"}
    ]


def test_what_was_carried_over_is_not_warmed_again(start, tmp_path):
    header = make_header()
    ladder, log = start(write_ladder(tmp_path, header, blocks=0), header)
    ladder.run()
    warmed = [line.split("warm: ")[1].split()[0] for line in log if "warm: " in line]
    assert len(warmed) == len(set(warmed))


def test_a_run_that_is_cut_off_keeps_what_is_finished_and_goes_on(start, tmp_path):
    header = make_header()
    folder = write_ladder(tmp_path, header, blocks=0)
    ladder, log = start(folder, header, broken=header.blocks[1].new[-1])
    with pytest.raises(LoadTestError, match="on fire"):
        ladder.run()
    assert set(read_blocks(folder, header)) == {1}
    assert sum(line.startswith("-") for line in log) == sum(line.startswith("+") for line in log) - 1
    first = (folder / "block-01.json").read_text()
    ladder, log = start(folder, header)
    ladder.run()
    assert (folder / "block-01.json").read_text() == first
    assert set(read_blocks(folder, header)) == set(range(1, len(header.blocks) + 1))
    assert "+stock" not in log


def test_a_block_that_was_disturbed_is_measured_again(start, tmp_path):
    header = make_header()
    folder = write_ladder(tmp_path, header)
    file = folder / "block-02.json"
    block = json.loads(file.read_text())
    block["sides"][0] = make_side(block["sides"][0]["name"], 10.0, others=4.0)
    file.write_text(json.dumps(block))
    ladder, log = start(folder, header)
    ladder.run()
    assert [line for line in log if "block " in line] == [
        f"[0 min, 17 left] block 2 of {len(header.blocks)}: {', '.join(header.blocks[1].members)}"
    ]
    assert (folder / "block-02-try-2.json").exists()


def test_the_estimate_counts_starts_once_and_turns_in_each_block():
    blocks = make_header().blocks
    one, both = (estimate(blocks[:number], TIMING, "resnet50") for number in (1, 2))
    carried = set(blocks[0].members) & set(blocks[1].members)
    assert carried
    assert both - one < estimate(blocks[1:2], TIMING, "resnet50")


def test_the_time_that_is_left_shrinks_with_what_is_done():
    progress = Progress(say=print, planned=600.0)
    assert progress.describe() == "0 min, 10 left"
    progress.began -= 300
    progress.add(300)
    assert progress.describe() == "5 min, 5 left"
