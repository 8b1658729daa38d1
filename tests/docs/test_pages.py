"""Pages name only what is there, what is made from code is current, words are the field's, commands exist."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess

import pytest

from config.commands import render_help
from tests.docs import write
from tests.docs.pages import (
    PAGES,
    ROOT,
    find_paths,
    find_settings,
    find_targets,
    list_settings,
    list_targets,
    read_anchors,
    read_blocks,
    read_code,
    read_links,
    remove_blocks,
)

README = ROOT / "README.md"
PAGES_BY_NAME = {str(page.relative_to(ROOT)): page for page in PAGES}
LINES, WORDS = 110, 15_000
"""Of README; of docs/ with its tables, without its blocks of code."""
LEFT = re.compile(
    r"\b(?:doors?|knobs?|refus(?:e|ed|es|als?)|strays?|ladders?|rungs?|dear|strangers?|full strength|shall"
    r"|ceilings?|canar(?:y|ies)|pictures?|judged|by hand|unanswered|as asked|left out|told apart|not told"
    r"|cure[ds]?)\b",
    re.IGNORECASE,
)
"""For these the field has: reverse proxy, setting, reject, orphaned, ablation, step, expensive, untrusted,
time to recovery, peak, smoke request, image, validated, override, no response, passed, leave-one-out, fix."""


@pytest.fixture(params=PAGES_BY_NAME)
def text(request):
    return PAGES_BY_NAME[request.param].read_text(encoding="utf-8")


def exists(path: str) -> bool:
    return any(True for _ in ROOT.glob(path.rstrip("/")))


def test_each_command_is_a_target(text):
    named = {target for code in read_code(text) for target in find_targets(code)}
    assert named <= list_targets()


def test_each_setting_is_known(text):
    assert {name for code in read_code(text) for name in find_settings(code)} <= list_settings()


def test_each_path_is_there(text):
    assert [path for code in read_code(text) for path in find_paths(code) if not exists(path)] == []


@pytest.mark.parametrize("name", PAGES_BY_NAME)
def test_each_link_leads_somewhere(name):
    page = PAGES_BY_NAME[name]
    for link in read_links(page.read_text(encoding="utf-8")):
        if link.startswith(("https://", "../../")):  # the latter are pages of the repository's host
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert exists(str(target.relative_to(ROOT))), f"{name}: {link}"
        if anchor:
            assert anchor in read_anchors(target.read_text(encoding="utf-8")), f"{name}: {link}"


def test_readme_is_short_and_maps_every_page():
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= LINES
    linked = {link.partition("#")[0] for link in read_links(text)}
    assert {name for name in PAGES_BY_NAME if name.startswith("docs/")} <= linked


def test_the_pages_are_short():
    pages = [page for name, page in PAGES_BY_NAME.items() if name.startswith("docs/")]
    prose = [remove_blocks(page.read_text(encoding="utf-8")) for page in pages]
    assert sum(bool(re.search(r"\w", word)) for text in prose for word in text.split()) <= WORDS


@pytest.mark.parametrize("page", ["settings.md", *write.PARTS])
def test_what_is_made_from_code_is_current(page):
    assert (write.DOCS / page).read_text(encoding="utf-8") == write.render(page), "do: make docs"


def test_the_plot_is_that_of_the_newest_raw_table():
    assert write.PLOT.read_text(encoding="utf-8").endswith(write.render_source()), "do: make docs"
    assert "+ INT8: 71.5 72.9 74.2 7.36×" in write.render_source()


def read_messages() -> str:
    """Every text of the sources that a person may be shown: those with a blank, without docstrings."""
    found = []
    for folder in ("config", "docker", "handlers", "loadtest", "models", "server", "setup"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            tree = ast.parse(file.read_text(encoding="utf-8"))
            alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
            texts = [one for one in ast.walk(tree) if isinstance(one, ast.Constant) and id(one) not in alone]
            found += [one.value for one in texts if isinstance(one.value, str) and " " in one.value]
    return "\n".join(found)


def test_the_words_are_the_fields():
    sources = {name: page.read_text(encoding="utf-8") for name, page in PAGES_BY_NAME.items()}
    sources |= {"messages": read_messages(), "help": render_help(), "make": (ROOT / "Makefile").read_text()}
    found = {name: LEFT.findall(text) for name, text in sources.items()}
    assert {name: words for name, words in found.items() if words} == {}
    assert LEFT.findall("behind the Door, 3 stray workers, as asked") == ["Door", "stray", "as asked"]


def test_the_figures_are_those_of_the_raw_tables():
    """Rates, ratios and their intervals in README and docs/benchmarks.md."""
    raw = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "benchmarks").rglob("*.md"))
    for name, least in (("README.md", 12), ("docs/benchmarks.md", 40)):
        figures = re.findall(r"\d[\d.]*×? \([\d.]+-[\d.]+\)", PAGES_BY_NAME[name].read_text(encoding="utf-8"))
        assert len(figures) >= least
        assert [figure for figure in figures if figure not in raw] == [], name


def make(*words: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(["make", *words], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done


def find_commands() -> list[str]:
    """Commands of make in the pages' blocks and spans, without those that only name a value left open."""
    code = [one for page in PAGES for one in read_code(page.read_text(encoding="utf-8"))]
    lines = [line for block in code for line in re.split(r"\n|&&", block.replace("\\\n", " "))]
    commands = [line.split("  #")[0].strip() for line in lines if line.strip().startswith("make ")]
    return sorted({one for one in commands if "…" not in one})


@pytest.mark.parametrize("command", find_commands())
def test_the_commands_are_what_make_can_do(command):
    assert make("--dry-run", *shlex.split(command)[1:]).stdout


RUN_IN = {
    "make": "tests/docs/test_pages.py",
    "curl": "tests/end_to_end/test_mission.py",
    ".venv/bin/locust": "tests/loadtest/test_locustfile.py",
    "docker": "tests/image/conftest.py",
    "mkdir": "tests/image/test_compose.py",
}
"""Program → where what a page says of it is run."""


def test_each_command_is_run_by_a_test_or_marked(text):
    for block in [block for kind, block in read_blocks(text) if kind == "sh"]:
        commands = block.replace("\\\n", " ").splitlines()
        programs = {line.split()[0] for line in commands if line.strip() and not line.startswith("#")}
        assert programs <= {*RUN_IN} or "not run by a test" in block.lower(), programs


def test_each_block_says_what_it_is(text):
    assert {kind for kind, _ in read_blocks(text)} <= {"sh", "text", "python", "yaml", "toml"}


def test_where_commands_are_run_exists():
    assert [path for path in RUN_IN.values() if not exists(path)] == []
