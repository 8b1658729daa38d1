"""Settings: where they come from, what is rejected with which words, and who reads them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from config import commands
from config.commands import COMMANDS, WIDTH, list_read, read_program, render_help, take_own
from config.errors import ConfigError
from config.settings import ALL, FIELDS, PUBLIC, Settings, about, read_settings

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The current one, with no setting in the environment."""
    for name in [*os.environ]:
        if name.startswith("KIT_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def reject(*arguments: str, names=tuple(FIELDS)) -> list[str]:
    with pytest.raises(ConfigError) as problem:
        read_settings(arguments, names)
    return str(problem.value).splitlines()


def write(folder: Path, text: str, name: str = "kit.toml") -> Path:
    (folder / name).write_text(text)
    return folder / name


def test_the_settings_that_people_give_are_these_39():
    names = """MODELS PRECISION BACKEND MODE WORKERS CORES_PER_WORKER INSTANCES PORT
        SLO_P99_MS DEADLINE_MS BATCH DELAY_MS ALLOCATOR OPENMP HOST METRICS INSECURE CORS_ORIGIN
        TLS_CERT TLS_KEY WEIGHTS CALIBRATION EVAL ALLOW_PICKLE FROM RUN_DIR TOPOLOGY FOREGROUND
        LOG FORMAT VERBOSE TORCH_INDEX PYTHON URL USERS RATE DURATION PAYLOADS ARGS"""
    assert names.split() == [*PUBLIC]
    assert {*FIELDS} - {*PUBLIC} == {"TOKEN_FILE", "MODEL_STORE", "PREFIX", "PINNING", "OFF"}


def test_the_strongest_source_wins(folder, monkeypatch):
    write(folder, 'port = 8001\nprecision = "int8"\nworkers = 3\nusers = 8\nfrom = "/x"\nverbose = true\n')
    monkeypatch.setenv("KIT_PORT", "8002")
    monkeypatch.setenv("KIT_WORKERS", "2")
    settings = read_settings(["PORT=8003"])
    assert (settings.port, settings.workers, settings.precision) == (8003, 2, "int8")
    assert (settings.users, settings.from_, settings.verbose) == ("8", "/x", True)
    assert read_settings(["PRECISION=int8"], ()) == Settings(precision="int8")
    assert Settings() == Settings(port=8080, workers=None), "made of its arguments alone"


def test_what_is_empty_is_not_given_and_a_bare_name_of_the_shell_does_nothing(monkeypatch):
    monkeypatch.setenv("PORT", "9000")
    monkeypatch.setenv("PRECISION", "int8")
    monkeypatch.setenv("KIT_INSTANCES", "")
    assert read_settings(["WORKERS=", "PRECISION="]) == Settings()


def test_models_are_sorted_and_once_each(folder):
    archive = write(folder, "", "my old.mar")
    assert read_settings(["MODELS=resnet50, bert bert"]).models == ("bert", "resnet50")
    assert read_settings([f"MODELS={archive}"]).models == (str(archive),)
    write(folder, f'models = ["bert", "{archive}"]\n')
    assert read_settings([]).models == (str(archive), "bert")
    assert reject("MODELS=a/b")[0].startswith(
        "MODELS must be names of folders in models/, or paths that end in .mar"
    )


def test_models_with_a_table_are_served_and_have_their_own_values(folder):
    text = 'batch = 4\n[models.bert]\nbatch = 8\nbackend = "eager"\n[models.resnet50]\nweights = "random"\n'
    write(folder, text)
    settings = read_settings([])
    assert settings.models == ("bert", "resnet50")
    assert (settings.of_model("batch", "bert"), settings.of_model("batch", "resnet50")) == (8, 4)
    assert (settings.of_model("backend", "bert"), settings.of_model("backend", "resnet50")) == ("eager", None)
    only = read_settings(["MODELS=resnet50"])
    assert (only.models, only.batch, only.backend) == (("resnet50",), {ALL: 4}, {})


@pytest.mark.parametrize(
    ("given", "batch"),
    [
        ([], {ALL: 2, "bert": 8}),
        (["BATCH=bert=16"], {ALL: 2, "bert": 16}),
        (["BATCH=resnet50=1"], {ALL: 2, "bert": 8, "resnet50": 1}),
        (["BATCH=4"], {ALL: 4}),
        (["BATCH=4, bert=1"], {ALL: 4, "bert": 1}),
    ],
)
def test_a_value_of_one_model_replaces_that_and_one_of_all_replaces_all(folder, monkeypatch, given, batch):
    write(folder, "[models.bert]\nbatch = 8\n[models.resnet50]\n")
    monkeypatch.setenv("KIT_BATCH", "2,bert=8")
    assert read_settings(given).batch == batch


def test_another_file_is_named_by_a_variable(folder, monkeypatch):
    monkeypatch.setenv("KIT_FILE", str(write(folder, "port = 8001\n", "other.toml")))
    write(folder, "port = 8002\n")
    assert read_settings([]).port == 8001
    monkeypatch.setenv("KIT_FILE", "nowhere.toml")
    assert reject()[0].startswith("nowhere.toml must be a file in TOML: got ")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("port = ", "kit.toml must be a file in TOML: got "),
        ('precison = "int8"', "unknown setting PRECISON; did you mean PRECISION? (kit.toml)"),
        ("port = 70000", "PORT must be 1 to 64000: got 70000 (kit.toml)"),
        ("port = true", "PORT must not be true or false: got true (kit.toml)"),
        ("batch = 0", "BATCH must be 1 to 128: got 0 (kit.toml)"),
        ("[models.bert]\nport = 1", "[models.bert] must have batch, delay_ms, "),
        ("models = 5", "MODELS must be a list of names: got 5 (kit.toml)"),
        ("models.bert = 8", "[models.bert] must have batch,"),
        ('args = "--driver ab"', "unknown setting ARGS; "),
        ('run_dir = "~/x"', "RUN_DIR must be a path that the shell has expanded: got ~/x; "),
    ],
)  # fmt: skip
def test_what_is_wrong_in_the_file_is_said(folder, text, told):
    write(folder, text)
    (line,) = reject()
    assert line.startswith(told)


WRONG = [
    ("PRECISON=int8", "unknown setting PRECISON; did you mean PRECISION?"),
    ("precision=int8", "unknown setting precision; did you mean PRECISION?"),
    ("CORES_PER=2", "unknown setting CORES_PER; did you mean CORES_PER_WORKER?"),
    ("DESTDIR=/x", "unknown setting DESTDIR; `make help` lists them"),
    ("PRECISION=int9", "PRECISION must be one of fp32, bf16, int8: got int9"),
    ("ALLOCATOR=mimalloc", "ALLOCATOR must be one of jemalloc, tcmalloc, system: got mimalloc"),
    ("MODE=fast", "MODE must be one of throughput, latency: got fast"),
    ("WORKERS=two", "WORKERS must be a whole number: got two"),
    ("WORKERS=0", "WORKERS must be 1 or more: got 0"),
    ("PORT=70000", "PORT must be 1 to 64000: got 70000"),
    ("INSTANCES=5", "INSTANCES must be 1 to 4: got 5"),
    ("DEADLINE_MS=999", "DEADLINE_MS must be 1000 to 300000: got 999"),
    ("SLO_P99_MS=0", "SLO_P99_MS must be 1 to 300000: got 0"),
    ("BATCH=bert=129", "BATCH must be 1 to 128: got 129"),
    ("BATCH=four", "BATCH must be a whole number, or one by model as bert=8,resnet50=4: got four"),
    ("BATCH=bert=8,bert=4", "BATCH must have one value for each model: got bert=8,bert=4"),
    ("BATCH=vgg=8", "BATCH must name models that are served, bert, resnet50: got vgg"),
    ("DELAY_MS=0", "DELAY_MS must be 1 to 10000: got 0"),
    ("BACKEND=onnx", "BACKEND must be one of ipex, openvino, inductor, eager, or by model, as "),
    ("BACKEND=openvino,bert=ipex", "BACKEND must name backends of one package set, because each has a torch"),
    ("TLS_CERT=/x.pem", "TLS_CERT and TLS_KEY must be given together: got TLS_CERT alone"),
    ("ALLOW_PICKLE=yes", "ALLOW_PICKLE must be 0 or 1: got yes"),
    ("DURATION=0", "DURATION must be seconds, more than 0: got 0"),
    ("URL=h:1", "URL must begin with http:// or https://: got h:1"),
    ("HOST=example.com", "HOST must be an IP address such as 0.0.0.0 or ::, got example.com"),
    ("HOST=::", "HOST=:: serves other machines without TLS: give TLS_CERT and TLS_KEY, or INSECURE=1"),
    ("METRICS=::1:9100", "METRICS must be host:port, as 0.0.0.0:9100 or [::]:9100: got ::1:9100"),
    ("CORS_ORIGIN=*", "CORS_ORIGIN must be one origin, as https://app.example: got *"),
    ("OFF=trace,fuse", "OFF must be among channels_last, trace, freeze, packing, buckets: got fuse"),
    ("RUN_DIR=a\tb", "RUN_DIR must be one line, without control characters: got 'a\\tb'"),
    (f"RUN_DIR={os.fsdecode(bytes([0xE9]))}", "RUN_DIR must be UTF-8: got b'\\xe9'"),
    ("RUN_DIR=~/run", "RUN_DIR must be a path that the shell has expanded: got ~/run; do: write $HOME"),
    ("run", "a setting must be NAME=VALUE: got run"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "told"), WRONG, ids=[given.partition("=")[0] + str(n) for n, (given, _) in enumerate(WRONG)]
)
def test_a_wrong_value_is_one_clear_sentence(given, told):
    (line,) = reject(given)
    assert line.startswith(told)


def test_all_problems_are_said_at_once(folder, monkeypatch):
    write(folder, "workers = 0\n")
    monkeypatch.setenv("KIT_INSTANCE", "2")
    monkeypatch.setenv("KIT_STATE_a1", "of haproxy.cfg")
    assert reject("PORT=x", "PRECISON=int8") == [
        "unknown setting INSTANCE; did you mean INSTANCES? (environment)",
        "unknown setting PRECISON; did you mean PRECISION?",
        "WORKERS must be 1 or more: got 0 (kit.toml)",
        "PORT must be a whole number: got x",
    ]


@pytest.fixture
def make_pair(folder):
    """A self-signed certificate and its key, by name."""

    def make(name: str, *options: str) -> None:
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
        command += ["-subj", f"/CN={name}", "-days", "1", "-out", f"{name}.pem", "-keyout", f"{name}.key"]
        subprocess.run([*command, *(options or ["-nodes"])], check=True, capture_output=True)

    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificates")
    return make


def test_a_certificate_and_its_key_are_named_by_absolute_paths(make_pair, folder):
    make_pair("one")
    settings = read_settings(["TLS_CERT=one.pem", "TLS_KEY=one.key"])
    assert (settings.tls_cert, settings.tls_key) == (str(folder / "one.pem"), str(folder / "one.key"))


def test_a_certificate_and_key_that_do_not_belong_together_are_rejected(make_pair):
    make_pair("one")
    make_pair("other")
    make_pair("locked", "-passout", "pass:secret")  # which nobody is asked for
    (line,) = reject("TLS_CERT=one.pem", "TLS_KEY=other.key")
    assert "KEY_VALUES_MISMATCH" in line
    (line,) = reject("TLS_CERT=locked.pem", "TLS_KEY=locked.key")
    assert "without a password" in line


@pytest.mark.parametrize(
    ("cert", "key", "said"),
    [
        ("/nowhere", "text", "TLS_CERT must be a file that can be read: got /nowhere: "),
        ("text", ".", "TLS_KEY must be a file that can be read: got .: "),
        ("text", "text", "TLS_CERT and TLS_KEY must be a certificate and its own key"),
    ],
)
def test_files_of_tls_are_read_where_settings_are(folder, cert, key, said):
    write(folder, "hello", "text")
    (line,) = reject(f"TLS_CERT={cert}", f"TLS_KEY={key}")
    assert line.startswith(said)
    assert Settings(tls_cert=cert, tls_key=key).tls_cert == cert


def test_no_slip_keeps_a_server_from_being_stopped(folder, monkeypatch):
    """What a command does not read is not validated; a source that it needs nothing of is not read."""
    write(folder, 'precison = "int8"\nport = 70000\nrun_dir = "other"\n')
    monkeypatch.setenv("KIT_PRECISON", "int8")
    assert read_settings([], list_read("stop")).run_dir == "other"
    assert len(reject(names=list_read("serve"))) == 3
    write(folder, "broken")
    assert read_settings(["RUN_DIR=x"], list_read("stop")).run_dir == "x"


def test_settings_are_rendered_as_the_command_line_takes_them():
    given = ["MODELS=bert", "BATCH=4,bert=8", "PINNING=0", "OFF=trace,buckets", "FROM=/x", "DURATION=2.5"]
    settings = read_settings(given)
    words = [f"{name}={value}" for name, value in commands.render_settings(settings).items()]
    assert {"PINNING=0", "OFF=buckets trace", "BATCH=4,bert=8"} <= {*words}
    assert read_settings(words) == settings
    assert commands.render_settings(Settings()) == {}


@pytest.mark.parametrize(
    ("command", "given", "own"),
    [
        ("serve", ["--goals=serve", "PRECISION=int8"], ["PRECISION=int8"]),
        ("stop", ["--goals=stop serve", "PRECISION=int8", "RUN_DIR=x"], ["RUN_DIR=x"]),
        ("loadtest", ["--goals=loadtest", "USERS=3", "WEIGHTS=random"], ["USERS=3", "WEIGHTS=random"]),
        ("dev", ["--goals=lint", "TORCH_INDEX=default", "PYTHON=x"], ["TORCH_INDEX=default", "PYTHON=x"]),
        ("serve", ["--goals=serve", "SHELL=/bin/sh"], []),
        ("stop", ["--below", "DESTDIR=/x", "PRECISION=int8", "RUN_DIR=x"], ["RUN_DIR=x"]),
        ("serve", ["TOKEN_FILE=/x"], ["TOKEN_FILE=/x"]),
    ],
)  # fmt: skip
def test_a_command_takes_what_it_reads_of_makes_command_line(command, given, own):
    assert take_own(given, command) == own


@pytest.mark.parametrize(
    ("command", "given", "told"),
    [
        ("serve", ["--goals=serve", "WORKER=2"], "unknown setting WORKER; did you mean WORKERS?"),
        ("serve", ["--goals=serve", "TOKEN_FILE=/x"], "unknown setting TOKEN_FILE; "),
        ("models", ["--goals=models", "WORKERS=2"], "WORKERS is read by make plan, serve, reload, tune, "),
        ("stop", ["--goals=stop status", "USERS=3"], "USERS is read by make loadtest, "),
        ("plan", ["--goals=plan", "WEIGHTS=random"], "WEIGHTS is read by make models, serve, "),
    ],
)
def test_what_no_goal_reads_is_rejected(command, given, told):
    with pytest.raises(ConfigError, match=f"^{re.escape(told)}"):
        take_own(given, command)


def test_options_of_a_program_stand_in_one_setting():
    words = ["run", "URL=http://h:1", "ARGS=--driver ab --results 'a b'", "--repeats", "2"]
    settings, options = read_program(words)
    expected = ["run", "--repeats", "2", "--driver", "ab", "--results", "a b"]
    assert (settings.url, options) == ("http://h:1", expected)
    with pytest.raises(ConfigError, match="ARGS must be words as a shell reads them"):
        read_program(["ARGS='"])


def test_a_set_up_is_told_what_a_command_needs(capsys):
    assert commands.check("serve", ["--goals=serve", "BACKEND=bert=openvino"])["set"] == "current"
    assert commands.check("lint", [])["set"] == "ipex"
    assert commands.main(["check", "serve", "PORT=x", "WORKERS=y"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "error: WORKERS must be a whole number: got y", "error: PORT must be a whole number: got x"
    ]  # fmt: skip


def test_the_page_and_help_are_written_from_the_model():
    page = (ROOT / "docs/settings.md").read_text()
    assert re.findall(r"^\| `([A-Z0-9_]+)`", page, re.MULTILINE) == [*PUBLIC]
    assert re.findall(r"^  ([A-Z][A-Z0-9_]*) ", render_help(), re.MULTILINE) == [*PUBLIC]
    assert [line for line in render_help().splitlines() if len(line) > WIDTH] == []


def test_every_word_that_a_command_reads_is_a_setting_or_a_group():
    groups = {about(field)["group"] for field in FIELDS.values()}
    for name, command in COMMANDS.items():
        assert {*command.reads.split()} <= groups | {*PUBLIC}, name
    read = {name for command in COMMANDS for name in list_read(command)}
    assert read == {*PUBLIC}
