"""The container's environment: what is taken from it, and what is refused with which words."""

from __future__ import annotations

import pytest

from config.__main__ import build_parser
from docker.settings import SettingsError, find_token, read_settings
from docker.settings import parse_seconds as parse

TOKEN = "a-token-of-24-characters"


@pytest.fixture
def store(tmp_path):
    for name in ("bert", "resnet50"):
        (tmp_path / f"{name}.mar").touch()
    return tmp_path


def test_every_archive_is_served_unless_models_are_named(store):
    assert read_settings({"MODEL_STORE": str(store)}).models == ("bert", "resnet50")
    assert read_settings({"MODEL_STORE": str(store), "MODELS": "resnet50"}).models == ("resnet50",)


def test_without_archives_it_says_how_to_bring_them(tmp_path):
    with pytest.raises(SettingsError) as error:
        read_settings({"MODEL_STORE": str(tmp_path)})
    assert str(error.value).startswith(f"no archive in {tmp_path}: got nothing; mount a folder")


def test_a_missing_archive_is_named_with_those_that_are_there(store):
    with pytest.raises(SettingsError, match=r"no archive of vgg16 in .*: got bert, resnet50; mount"):
        read_settings({"MODEL_STORE": str(store), "MODELS": "bert vgg16"})


def test_knobs_become_the_arguments_of_config(store):
    given = {"CORES_PER_WORKER": "2", "PRECISION": "bf16", "BACKEND": "bert=openvino", "WORKERS": ""}
    environment = {"MODEL_STORE": str(store), **given}
    assert read_settings(environment).plan_arguments() == [
        "--models", "bert resnet50", "--bind", "0.0.0.0", "--precision", "bf16",
        "--backend", "bert=openvino", "--cores-per-worker", "2",
        "--model-store", str(store), "--run-dir", "/run/kit", "--drain-seconds", "35",
        "--tuned", "/run/kit/tuned.json",
    ]  # fmt: skip


def test_a_tuned_plan_is_used_unless_it_is_switched_off(store):
    given = {"MODEL_STORE": str(store), "RUN_DIR": "/x"}
    for switch in ("", "1"):
        assert read_settings({**given, "TUNED": switch}).plan_arguments()[-2:] == ["--tuned", "/x/tuned.json"]
    assert "--tuned" not in read_settings({**given, "TUNED": "0"}).plan_arguments()
    with pytest.raises(SettingsError, match=r"^TUNED must be one of 0, 1: got yes$"):
        read_settings({**given, "TUNED": "yes"})


@pytest.mark.parametrize(
    ("given", "meant"), [("PRECISON", "PRECISION"), ("workers", "WORKERS"), ("MODEL", "MODELS")]
)
def test_a_misspelt_knob_is_refused_with_the_right_name(store, given, meant):
    """Else it serves with the default, and nobody is told."""
    expected = f"^the environment has {given}, which nothing reads and which is nearly {meant}; do: name it"
    with pytest.raises(SettingsError, match=expected):
        read_settings({"MODEL_STORE": str(store), "HOSTNAME": "x", given: "y"})


def test_a_value_that_no_file_could_hold_is_refused_by_name(store):
    with pytest.raises(SettingsError, match="TLS_CERT must be one line, without"):
        read_settings({"MODEL_STORE": str(store), "TLS_CERT": "/run/secrets/x\n"})


def test_what_else_is_in_a_containers_environment_is_no_concern(store):
    """Kubernetes adds a service's names, and knobs of other programs may be shared."""
    others = ("MODELS_PORT", "MODELS_SERVICE_HOST", "CPU_KIT_PORT", "WEIGHTS", "USER", "HOME", "OPENMPI")
    given = {"MODEL_STORE": str(store), **dict.fromkeys(others, "x")}
    assert read_settings(given).models == ("bert", "resnet50")


def test_a_token_of_a_file_reaches_the_plan_and_is_kept_out_of_the_log(store, tmp_path):
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    settings = read_settings({"MODEL_STORE": str(store), "TOKEN_FILE": str(file)})
    assert settings.plan_arguments()[-6:-2] == ["--drain-seconds", "35", "--token-file", str(file)]
    assert "--hide-token" in settings.start_arguments()


def test_without_a_token_file_the_server_makes_one(store, tmp_path):
    assert find_token("", tmp_path / "no-secret") is None
    # The lines it prints are pasted outside the container; its log is kept by others.
    assert "--hide-token" in read_settings({"MODEL_STORE": str(store)}).start_arguments()


@pytest.mark.parametrize(
    "text",
    ["short", "", "with a blank, but long enough", "ünlesbar-und-lang-genug", "two-lines-of-it\nsecond"],
)
def test_a_bad_token_is_refused_with_what_to_do(tmp_path, text):
    """By the one rule that the door has too (server/tokens.py)."""
    file = tmp_path / "token"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(SettingsError) as error:
        find_token(str(file), tmp_path)
    assert str(error.value).startswith("TOKEN_FILE: the token must have 16 or more letters, digits or any of")
    assert str(error.value).endswith(f"; make one: openssl rand -base64 24 > {file}")


def test_a_token_file_that_was_named_must_be_there(tmp_path):
    with pytest.raises(SettingsError, match=r"^TOKEN_FILE: no token: .*/nothing: .*; make one: "):
        find_token(str(tmp_path / "nothing"), tmp_path)


def test_a_file_that_is_no_text_is_no_token(tmp_path):
    file = tmp_path / "token"
    file.write_bytes(b"\xff" * 20)
    with pytest.raises(SettingsError, match=r"^TOKEN_FILE: no token: "):
        find_token(str(file), tmp_path)


def test_the_doors_knobs_reach_the_plan(store):
    knobs = {"FRONT": "haproxy", "INSTANCES": "2", "CORES": "bert=0,resnet50=1", "DEADLINE_MS": "2000",
             "TLS_CERT": "/c", "TLS_KEY": "/k"}  # fmt: skip
    given = read_settings({"MODEL_STORE": str(store), **knobs}).plan_arguments()
    asked = build_parser().parse_args(given)
    assert {name: getattr(asked, name.lower()) for name in knobs} == knobs
    assert (asked.bind, asked.models) == ("0.0.0.0", "bert resnet50")


def test_a_reload_plans_as_the_start_did(store):
    settings = read_settings({"MODEL_STORE": str(store), "FRONT": "haproxy"})
    command, *places = settings.reload_arguments()
    assert (command, places[:3]) == ("reload", ["--run-dir", "/run/kit", "--"])
    assert places[3:] == settings.plan_arguments()


def test_the_time_to_stop_leaves_java_time_to_end():
    assert (parse(""), parse("90")) == (45, 90)
    for text in ("10", "soon", "-5"):
        with pytest.raises(SettingsError, match=f"whole number above 10: got {text}"):
            parse(text)
