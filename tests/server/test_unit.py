"""The systemd unit: what it says for which server, what is refused, and what systemd says of it."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
from pathlib import Path

import pytest

from config.__main__ import parse_inputs
from server import ready, unit
from server.errors import ServerError
from server.processes import GRACEFUL_SECONDS, KILL_SECONDS, TERMINATE_SECONDS
from server.unit_text import Facts, escape, quote, render_unit

GOLDEN = Path(__file__).parent / "golden" / "cpu-kit.service"
"""Written anew by: python -m tests.server.test_unit"""
MOST_EXPOSED = 1.4
"""systemd 252, of a server on loopback, of an ordinary user, outside of home folders (docs/systemd.md)."""
FACTS = Facts(
    checkout=Path("/opt/kit"),
    run=Path("/opt/kit/run"),
    user="kit",
    python=Path("/opt/kit/.venv/bin/python"),
    needed=(Path("/opt/kit"), Path("/opt/kit/.venv"), Path("/usr"), Path("/opt/kit/model-store")),
    temporary=Path("/opt/kit/run/tmp"),
    models=("bert", "resnet50"),
    supervised=True,
    bind="127.0.0.1",
    start_s=540,
    stop_s=110,
    path="/usr/bin:/bin",
    java_home="",
)


def render(**changes: object) -> str:
    return render_unit(dataclasses.replace(FACTS, **changes))  # type: ignore[arg-type]


def read_values(text: str, name: str) -> list[str]:
    """All values of a setting, in order."""
    pairs = (line.partition("=") for line in text.splitlines() if not line.startswith("#"))
    return [value for key, _, value in pairs if key == name]


def test_it_is_the_known_unit():
    assert render() == GOLDEN.read_text(encoding="utf-8")


def test_each_group_of_settings_has_its_reason():
    blocks = GOLDEN.read_text(encoding="utf-8").split("\n\n")
    bare = [block for block in blocks if "#" not in block]
    assert bare == ["[Install]\nWantedBy=multi-user.target\n"]


@pytest.mark.parametrize("name", ["CPUAffinity", "AllowedCPUs", "CPUQuota", "NUMAPolicy", "MemoryMax"])
def test_what_the_plan_or_the_admin_decides_is_not_set(name):
    text = render()
    assert read_values(text, name) == []
    assert f"{name}=" in text  # why, in a comment


@pytest.mark.parametrize(
    ("changes", "name", "values"),
    [
        ({}, "ProtectHome", ["yes"]),
        ({}, "BindReadOnlyPaths", []),
        ({"needed": (Path("/home/a/kit"), Path("/home/a/kit/.venv"))}, "ProtectHome", ["tmpfs"]),
        (
            {
                "needed": (
                    Path("/home/a/kit"),
                    Path("/home/a/kit/.venv"),
                    Path("/usr"),
                    Path("/root/.pyenv/3"),
                )
            },
            "BindReadOnlyPaths",
            ['"/home/a/kit"', '"/root/.pyenv/3"'],
        ),
        ({"run": Path("/home/a/run"), "temporary": Path("/home/a/run/tmp")}, "ProtectHome", ["tmpfs"]),
        ({"run": Path("/home/a/run"), "temporary": Path("/home/a/run/tmp")}, "BindPaths", ['"/home/a/run"']),
        ({"needed": (Path("/homes/kit"),)}, "ProtectHome", ["yes"]),
        ({}, "PrivateTmp", ["yes"]),
        ({}, "ReadWritePaths", ['"/opt/kit/run"']),
        ({"temporary": Path("/tmp/cpu-kit-1000-abc")}, "PrivateTmp", ["no"]),
        ({"temporary": Path("/tmp/cpu-kit-1000-abc")}, "ReadWritePaths", ['"/opt/kit/run"', '"/tmp"']),
        ({"needed": (Path("/tmp/kit"),)}, "PrivateTmp", ["no"]),
        ({}, "IPAddressDeny", ["any"]),
        ({"bind": "0.0.0.0"}, "IPAddressDeny", []),
        ({"bind": "0.0.0.0"}, "IPAddressAllow", []),
        ({"java_home": "/opt/jdk 17"}, "Environment", ['"PATH=/usr/bin:/bin"', '"JAVA_HOME=/opt/jdk 17"']),
        ({"user": "1234"}, "User", ["1234"]),
        ({}, "Type", ["notify"]),
        ({}, "WatchdogSec", ["30"]),
        ({"supervised": False}, "Type", ["exec"]),
        ({"supervised": False}, "WatchdogSec", []),
        ({"supervised": False}, "NotifyAccess", []),
    ],
)
def test_lines_that_depend_on_the_server(changes, name, values):
    assert [value for value in read_values(render(**changes), name) if "PYTHONUTF8" not in value] == values


def test_root_is_named_in_the_unit():
    assert "so all runs as root" in render(user="root")
    assert "so all runs as root" not in render()


@pytest.mark.parametrize(
    ("path", "quoted", "plain"),
    [
        ("/a/b", '"/a/b"', "/a/b"),
        ("/a b/c", '"/a b/c"', "/a b/c"),
        ("/50%/%h", '"/50%%/%%h"', "/50%%/%%h"),
        ('/a"b', '"/a\\"b"', '/a"b'),
        ("/a\\x20", '"/a\\\\x20"', "/a\\x20"),
        ("/ä $HOME", '"/ä $HOME"', "/ä $HOME"),
    ],
)
def test_paths_are_written_as_systemd_reads_them(path, quoted, plain):
    assert (quote(path), escape(path)) == (quoted, plain)


@pytest.mark.parametrize("path", ["/a\nUser=root", "/a\t", "/a ", "/a\x7f"])
def test_what_a_unit_cannot_name_is_refused(path):
    with pytest.raises(ServerError, match="a unit cannot name a path with control characters or blanks at"):
        render(run=Path(path))


def test_the_time_outs_are_longer_than_the_kits_own(plan, run):
    facts = unit.read_facts(run, plan)
    loading = max(model.startup_timeout_s.value for model in plan.models.values())
    assert facts.start_s > loading + ready._EXTRA_SECONDS
    assert facts.stop_s > 2 * GRACEFUL_SECONDS + TERMINATE_SECONDS + KILL_SECONDS


def test_what_is_needed_is_followed_through_links(plan, run, tmp_path):
    home = tmp_path / "python"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "python3").touch()
    (tmp_path / "env" / "bin").mkdir(parents=True)
    (tmp_path / "env" / "bin" / "python").symlink_to(home / "bin" / "python3")
    (tmp_path / "env" / "pyvenv.cfg").write_text("home = /opt/current/bin\nversion = 3.11\n")
    (tmp_path / "venv").symlink_to(tmp_path / "env")
    changed = with_inputs(plan, prefix=str(tmp_path / "venv"))
    assert {tmp_path / "venv", tmp_path / "env", home, Path("/opt/current")} <= {
        *unit.read_facts(run, changed).needed
    }


def with_inputs(plan, **changes):
    return dataclasses.replace(plan, inputs=dataclasses.replace(plan.inputs, **changes))


@pytest.fixture
def here(plan, monkeypatch, tmp_path):
    """The recorded plan with an environment that is there."""
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch(mode=0o755)
    monkeypatch.setattr(unit, "CHECKOUT", tmp_path)
    return with_inputs(plan, prefix=str(tmp_path / "venv"))


def test_a_recorded_machines_plan_is_refused(here, planned):
    with pytest.raises(
        ServerError, match=r"a unit serves on this machine: .*plan\.json is for the machine rec"
    ):
        unit.check(planned, with_inputs(here, topology="tests/config/machines/x"), None)


def test_an_environment_that_is_gone_is_refused(here, planned):
    python = Path(here.inputs.prefix) / "bin" / "python"
    python.unlink()
    with pytest.raises(
        ServerError, match=r"no Python to serve with: .*bin/python; run: make setup && make c"
    ):
        unit.check(planned, here, None)
    python.symlink_to("/no/such/python3")
    with pytest.raises(ServerError, match="a link to /no/such/python3, which is gone; run: make setup"):
        unit.check(planned, here, None)


def test_another_plan_than_asked_for_is_refused(here, planned):
    unit.check(planned, here, here.inputs)
    asked = dataclasses.replace(here.inputs, precision="int8")
    with pytest.raises(
        ServerError, match="has precision 'fp32', asked for is 'int8'; give the values that were"
    ):
        unit.check(planned, here, asked)


def test_anothers_run_directory_is_refused(here, planned, monkeypatch):
    own = planned.path.stat()

    class Other:
        st_uid = own.st_uid + 1

    stat = Path.stat
    monkeypatch.setattr(Path, "stat", lambda path, **k: Other() if path == planned.path else stat(path, **k))
    with pytest.raises(ServerError, match="RUN_DIR must be of the checkout's owner, whom the unit runs as"):
        unit.check(planned, here, None)


def test_the_command_prints_the_unit_and_nothing_else(here, planned, capsys, monkeypatch):
    no_link = dataclasses.replace(
        here.libraries, allocator_link=dataclasses.replace(here.libraries.allocator_link, value=None)
    )
    planned.plan.write_text(dataclasses.replace(here, libraries=no_link).to_json())
    monkeypatch.setattr(unit, "name_owner", lambda path: "root")
    assert unit.main(["--run-dir", str(planned.path)]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("# The TorchServe CPU kit under systemd")
    assert read_values(out, "ReadWritePaths")[0] == f'"{planned.path}"'
    assert "TorchServe and its workers would run as root" in err


def test_the_allocators_link_is_made_before_the_unit_may_not(here, planned, capsys, tmp_path):
    link, target = tmp_path / "venv" / "lib" / "libjemalloc.so", tmp_path / "libjemalloc.so.2"
    target.touch()
    libraries = dataclasses.replace(
        here.libraries,
        allocator_link=dataclasses.replace(here.libraries.allocator_link, value=str(link)),
        allocator_path=dataclasses.replace(here.libraries.allocator_path, value=str(target)),
    )
    planned.plan.write_text(dataclasses.replace(here, libraries=libraries).to_json())
    assert unit.main(["--run-dir", str(planned.path)]) == 0
    assert link.resolve() == target
    assert f"linked {link} to {target}: the unit may not write there" in capsys.readouterr().err


def test_without_a_plan_it_says_what_to_do(run, capsys):
    assert unit.main(["--run-dir", str(run.path)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "make config" in err


def test_knobs_are_read_as_config_reads_them(plan):
    words = ["--models", "resnet50 bert", "--port", "9000", "--precision", ""]
    asked = unit.parse_asked(words, plan)
    assert (asked.models, asked.port, asked.precision) == (("bert", "resnet50"), 9000, "fp32")
    assert unit.parse_asked([], plan) is None
    assert parse_inputs(unit.build_parser().parse_args(words), ("bert", "resnet50")) == asked


needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed (Debian: systemd)"
)


def analyze(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["systemd-analyze", *words], capture_output=True, text=True, check=False)


def write(folder: Path, **changes: object) -> Path:
    """A unit that could start here: verify looks for the program, and for the user."""
    folder.mkdir(exist_ok=True)
    python = folder / "python"
    python.touch(mode=0o755)
    file = folder / "cpu-kit.service"
    file.write_text(render(**{"python": python, "user": "daemon", **changes}), encoding="utf-8")
    return file


@needs_systemd
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"bind": "0.0.0.0", "java_home": "/opt/jdk 17", "supervised": False},
        {"run": Path("/home/a b/50%/run"), "temporary": Path("/tmp/x"), "needed": (Path('/home/a b/"kit"'),)},
    ],
)
def test_systemd_finds_nothing_wrong(tmp_path, changes):
    done = analyze("verify", str(write(tmp_path / "a b 50% $x", **changes)))
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@needs_systemd
def test_systemd_would_find_something(tmp_path):
    file = write(tmp_path)
    file.write_text(file.read_text().replace("ProtectClock=yes", "ProtectClok=yes"))
    assert "ProtectClok" in analyze("verify", str(file)).stderr


@needs_systemd
def test_the_exposure_is_what_the_page_says(tmp_path):
    done = analyze(
        "security", "--offline=true", f"--threshold={round(MOST_EXPOSED * 10)}", str(write(tmp_path))
    )
    assert done.returncode == 0, done.stdout + done.stderr
    page = (unit.CHECKOUT / "docs/systemd.md").read_text(encoding="utf-8")
    assert f"{MOST_EXPOSED}" in page


if __name__ == "__main__":
    GOLDEN.write_text(render(), encoding="utf-8")
