"""Pages name only what is there: commands, settings, files, headings, errors; and README's commands run."""

from __future__ import annotations

import re
import shlex
import subprocess

import pytest

from tests.docs.pages import (
    PAGES,
    ROOT,
    find_paths,
    find_settings,
    find_targets,
    list_settings,
    list_targets,
    read_anchors,
    read_code,
    read_links,
)

README = ROOT / "README.md"
PAGES_BY_NAME = {str(page.relative_to(ROOT)): page for page in PAGES}
LINES = 120


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
        if link.startswith("https://"):
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
    assert {name for name in PAGES_BY_NAME if name.startswith("docs/") and "ablation" not in name} <= linked


def test_readmes_figures_are_those_of_the_results():
    figures = re.findall(r"\d[\d.]*×? \([\d.]+-[\d.]+\)", README.read_text(encoding="utf-8"))
    assert len(figures) == 18, "both rates and a ratio of each row"
    results = PAGES_BY_NAME["docs/results.md"].read_text(encoding="utf-8")
    assert [figure for figure in figures if figure not in results] == []


def make(*words: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(["make", *words], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done


def find_commands(page: str) -> list[str]:
    """Commands of make in the page's blocks and spans, without those that only name a value left open."""
    code = read_code(PAGES_BY_NAME[page].read_text(encoding="utf-8"))
    lines = [line for block in code for line in re.split(r"\n|&&", block)]
    commands = [line.split("#")[0].strip() for line in lines if line.strip().startswith("make ")]
    return sorted({one for one in commands if "…" not in one})


@pytest.mark.parametrize("command", find_commands("README.md"))
def test_readmes_commands_are_what_make_can_do(command):
    assert make("--dry-run", *shlex.split(command)[1:]).stdout
