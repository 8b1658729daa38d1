"""Decides what a ladder measures and in which blocks, or takes both from one that was cut off."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from loadtest.bench import Bench
from loadtest.errors import LoadTestError
from loadtest.expected import FP32, compute
from loadtest.ladder.agreement import SAMPLE
from loadtest.ladder.blocks import Block, cut_blocks
from loadtest.ladder.inputs import estimate_memory, read_available_mib, read_inputs, read_layout, read_model
from loadtest.ladder.keep import Header, check_same, read_header, start_folder
from loadtest.ladder.payloads import pick_each_length, write_payloads
from loadtest.ladder.progress import Progress, estimate
from loadtest.ladder.run import Ladder, find_done
from loadtest.ladder.rungs import Rung, find_rung, list_left_out, list_rungs
from loadtest.ladder.settings import Layout, Settings, make_arguments
from loadtest.payload_sets import Payload
from loadtest.payloads import read_list
from loadtest.servers import write_plan
from server.archives import read_archive

ANY_LAYOUT = Layout(workers=0, cores_per_worker=0)
"""The top names none: the kit decides."""


def prepare(
    bench: Bench,
    model: str,
    say: Callable[[str], None],
    *,
    only: Sequence[str] = (),
    resume: Path | None = None,
) -> Ladder:
    """Everything but the servers."""
    archive = bench.store / f"{model}.mar"
    if not archive.is_file():
        raise LoadTestError(f"no archive {archive.name} in the store: `make ladder` builds it")
    arguments = [*make_arguments(Settings(), ANY_LAYOUT), "--model-store", str(bench.store)]
    plan = write_plan(bench.folder / "plan", port=bench.first_port, model=model, arguments=arguments)
    payloads = write_payloads(bench.folder / "payloads", model, bench.store)
    rungs, left_out = choose(list_rungs(model), only), choose(list_left_out(model), only)
    inputs = read_inputs(plan, archive, payloads, [*rungs, *left_out], bench.timing)
    if resume:
        header, folder = read_header(resume), resume
        check_same(header, inputs, folder)
    else:
        header = Header(
            model=model,
            time=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            inputs=inputs,
            facts={**describe_archive(archive), "fp32": answer_exactly(archive, payloads, say)},
            rungs=tuple(rungs),
            left_out=tuple(left_out),
            blocks=tuple(make_blocks(model, [*rungs, *left_out], read_layout(plan))),
        )
        folder = start_folder(header)
    return Ladder(
        bench=bench,
        header=header,
        folder=folder,
        payloads=payloads,
        layout=read_layout(plan),
        each_length=pick_each_length(payloads, model, bench.store),
        progress=make_progress(bench, header, folder, say),
    )


def make_progress(bench: Bench, header: Header, folder: Path, say: Callable[[str], None]) -> Progress:
    """Of what is still to be measured."""
    done = find_done(folder, header)
    missing = [block for number, block in enumerate(header.blocks, start=1) if number not in done]
    return Progress(say=say, planned=estimate(missing, bench.timing, header.model))


def choose(rungs: Sequence[Rung], names: Sequence[str]) -> list[Rung]:
    """All, or for a trial these alone; what is compared with none of them is compared with nothing."""
    if not names:
        return list(rungs)
    others = {rung.name for rung in rungs} - set(names)
    chosen = [rung for rung in rungs if rung.name in names]
    return [replace(rung, before=None, own=()) if rung.before in others else rung for rung in chosen]


def make_blocks(model: str, rungs: Sequence[Rung], layout: Layout) -> list[Block]:
    """By what the machine's memory holds now."""
    memory = read_model(model).worker_memory_mib

    def need(name: str) -> int:
        return estimate_memory(find_rung(rungs, name), memory, layout)

    return cut_blocks(rungs, need, read_available_mib())


def describe_archive(archive: Path) -> dict[str, Any]:
    """What a reader must know of the weights."""
    known = read_archive(archive)
    return {"weights": known.weights, "notes": list(known.notes)}


def answer_exactly(archive: Path, payloads: Path, say: Callable[[str], None]) -> list[Any]:
    """Eager FP32's answers to the sample, without any server."""
    say(f"answers of eager FP32 to {SAMPLE} payloads, without a server")
    bodies = [
        Payload(name=one.file, body=(payloads / one.file).read_bytes(), content_type=one.content_type)
        for one in read_list(payloads)[:SAMPLE]
    ]
    return compute(archive, FP32, bodies)
