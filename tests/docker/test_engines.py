"""docker, podman and buildah: which is taken, what each is told, and what a person is told without any."""

from __future__ import annotations

import pytest

from docker.image.__main__ import build_parser, main
from docker.image.build import check_values, judge_size, list_engines, read_certificates, render_build
from docker.image.engines import Engine, ImageError, find_engine, parse_size
from docker.image.run import check_file, list_knobs, render_run

HERE = ["--tag", "kit:1"]


def find(*there: str, silent: tuple[str, ...] = (), asked: str = "") -> str:
    return find_engine(
        asked, lambda name: name if name in (*there, *silent) else None, lambda name: name in there
    ).name


def test_the_first_that_answers_is_taken():
    assert find("buildah", "podman", "docker") == "docker"
    assert find("buildah", "podman") == "podman"
    assert find("buildah", silent=("docker",)) == "buildah"
    assert find("docker", "podman", asked="podman") == "podman"


@pytest.mark.parametrize(
    ("silent", "asked", "text"),
    [
        ((), "", "docker, podman or buildah: none is installed; install one: apt-get install podman"),
        (("docker",), "", "docker is installed but does not answer; start its service"),
        ((), "podman", "an image needs podman: none is installed"),
        ((), "rkt", "ENGINE must be one of docker, podman, buildah: got rkt"),
    ],
)
def test_without_an_engine_it_says_what_to_install(silent, asked, text):
    with pytest.raises(ImageError) as error:
        find(silent=silent, asked=asked)
    assert text in str(error.value)


def test_main_prints_it_in_one_line(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["build"]) == 1
    assert capsys.readouterr().err.startswith("error: an image needs docker, podman or buildah: none is ")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("docker", ["docker", "build"]),
        ("podman", ["podman", "build", "--format", "docker"]),
        ("buildah", ["buildah", "bud", "--format", "docker"]),
    ],
)
def test_a_build_passes_on_only_what_is_given(name, words):
    options = build_parser().parse_args(["build", *HERE, "--models", "bert", "--torch-index", ""])
    command = render_build(Engine(name=name), options, {"VERSION": "1", "REVISION": ""})
    assert command == [
        *words, "--file", "docker/Dockerfile", "--tag", "kit:1",
        "--build-arg", "MODELS=bert", "--build-arg", "VERSION=1", ".",
    ]  # fmt: skip


def test_a_build_is_told_which_engines_to_install():
    options = build_parser().parse_args(["build", *HERE, "--backend", "bert=openvino,resnet50=ipex"])
    assert list_engines(options) == {"openvino", "ipex"}
    assert "BACKEND=bert=openvino,resnet50=ipex" in render_build(Engine(name="podman"), options, {})
    with pytest.raises(ImageError, match=r"^BACKEND must be one of ipex, openvino, inductor, eager"):
        check_values(build_parser().parse_args(["build", *HERE, "--backend", "tpu"]))


def test_a_build_is_told_which_stack_it_is():
    options = build_parser().parse_args(["build", *HERE, "--stack", "current"])
    assert list_engines(options) == {"openvino"}
    assert "STACK=current" in render_build(Engine(name="podman"), options, {})
    for words, text in (
        (("--stack", "newest"), "STACK must be one of ipex, current: got newest"),
        (
            ("--stack", "current", "--backend", "bert=ipex"),
            "BACKEND must be among openvino, inductor, eager for STACK=current: got ipex",
        ),
    ):
        with pytest.raises(ImageError, match=f"^{text}$"):
            check_values(build_parser().parse_args(["build", *HERE, *words]))


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (
            ["--models", "bert"],
            "WEIGHTS must be pretrained or random where MODELS are baked in: got nothing for bert",
        ),
        (["--models", "bert", "--weights", "auto"], "got auto for bert; auto takes random weights where"),
        (
            ["--models", "bert resnet50", "--weights", "bert=random,resnet50=auto"],
            "got bert=random,resnet50=auto for resnet50",
        ),
        (["--models", "bert resnet50", "--weights", "bert=random"], "got bert=random for resnet50"),
        (["--torch-index", "https://me:secret@x.example/"], "TORCH_INDEX must hold no name or password"),
        (["--pip-index", "https://secret@x.example/"], "--pip-index must hold no name or password"),
    ],
)
def test_what_an_image_would_carry_to_others_is_refused(words, text):
    with pytest.raises(ImageError) as error:
        check_values(build_parser().parse_args(["build", *HERE, *words]))
    assert text in str(error.value)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--models", "bert", "--weights", "random"],
        ["--models", "bert resnet50", "--weights", "bert=random,resnet50=pretrained"],
        ["--torch-index", "https://x.example/a@b"],
    ],
)
def test_what_is_said_in_so_many_words_is_built(words):
    check_values(build_parser().parse_args(["build", *HERE, *words]))


def test_certificates_are_read_and_looked_at(tmp_path):
    file = tmp_path / "ca.pem"
    with pytest.raises(ImageError, match="CA_FILE cannot be read"):
        read_certificates(str(file))
    file.write_text("nothing")
    with pytest.raises(ImageError, match="CA_FILE must hold certificates as PEM"):
        read_certificates(str(file))
    file.write_text("-----BEGIN CERTIFICATE-----\nx\n")
    assert read_certificates(str(file)).endswith("x\n")
    file.write_text(file.read_text() + "x" * 100_000)
    with pytest.raises(ImageError, match=r"CA_FILE may have 100000 bytes: got 1000\d+ .*not all that the"):
        read_certificates(str(file))


@pytest.mark.parametrize(
    ("size", "cuda", "good", "text"),
    [
        (1_799_000_000, False, True, "kit: 1.80 GB (at most 1.80 GB)"),
        (7_800_000_000, True, True, "kit: 7.80 GB: it holds the CUDA build of torch, which is all"),
        (1_900_000_000, False, False, "error: kit: 1.90 GB, must be at most 1.80 GB"),
    ],
)
def test_only_the_cuda_build_excuses_a_large_image(size, cuda, good, text):
    line, verdict = judge_size("kit", size, lambda: cuda)
    assert verdict is good
    assert line.startswith(text)


def test_an_engine_that_was_asked_for_has_room():
    line, good = judge_size("kit", 1_900_000_000, lambda: False, 2_400_000_000)
    assert (line, good) == ("kit: 1.90 GB (at most 2.40 GB)", True)


@pytest.mark.parametrize(("code", "answer"), [(0, True), (1, False)])
def test_what_is_asked_inside_an_image_is_answered_by_the_exit_code(tmp_path, monkeypatch, code, answer):
    fake_podman(tmp_path, monkeypatch, f"exit {code}")
    assert Engine(name="podman").succeeds_inside("kit", "test", "-d", "/x") is answer


def test_an_engine_that_cannot_run_it_has_answered_nothing(tmp_path, monkeypatch):
    """Podman in a sandbox: without this the image is blamed for a folder that was never looked for."""
    fake_podman(tmp_path, monkeypatch, "echo 'error setting rlimit' >&2; exit 126")
    with pytest.raises(ImageError, match=r"failed \(126\): error setting rlimit"):
        Engine(name="podman").succeeds_inside("kit", "test", "-d", "/x")


def fake_podman(folder, monkeypatch, script):
    program = folder / "podman"
    program.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_sizes_as_buildah_prints_them():
    assert [parse_size(text) for text in ("7.94 GB", "512 MB", "3 kB")] == [7_940_000_000, 512_000_000, 3000]
    with pytest.raises(ImageError):
        parse_size("large")


def make_run(*words: str) -> list[str]:
    return render_run("docker", build_parser().parse_args(["run", *HERE, *words]))


def test_it_runs_without_rights_and_is_published_on_loopback_alone(tmp_path):
    assert make_run("--store", str(tmp_path)) == [
        "docker", "run", "--rm", "--name=cpu-kit", "--stop-timeout=60", "--read-only", "--cap-drop=ALL",
        "--security-opt=no-new-privileges", "--pids-limit=2048", "--publish=127.0.0.1:8080:8080", "kit:1",
    ]  # fmt: skip


def test_limits_archives_and_knobs_are_passed_on(tmp_path):
    (tmp_path / "a.mar").touch()
    command = make_run(
        "--store", str(tmp_path), "--cpus", "1.5", "--cpuset", "0-2", "--memory", "3g", "--port", "9000",
        "--precision", "bf16", "--backend", "eager", "--bind-memory", "1", "--front", "haproxy",
        "--deadline-ms", "2000",
    )  # fmt: skip
    expected = {
        "--cap-add=SYS_NICE", "--cpus=1.5", "--cpuset-cpus=0-2", "--memory=3g",
        "--publish=127.0.0.1:9000:8080", f"--volume={tmp_path}:/model-store:ro", "--env=PRECISION=bf16",
        "--env=BACKEND=eager", "--env=FRONT=haproxy", "--env=DEADLINE_MS=2000",
    }  # fmt: skip
    assert expected <= set(command)


def test_on_the_hosts_network_the_port_is_the_servers_own():
    options = build_parser().parse_args(["run", "--network", "host", "--port", "9000"])
    assert list_knobs(options) == ["PORT=9000"]
    assert "--network=host" in make_run("--network", "host")
    assert not [word for word in make_run("--network", "host") if word.startswith("--publish")]


@pytest.mark.parametrize(
    ("option", "knob", "inside"),
    [
        ("--token-file", "TOKEN_FILE", "/run/secrets/token"),
        ("--tls-cert", "TLS_CERT", "/run/secrets/tls-cert"),
        ("--tls-key", "TLS_KEY", "/run/secrets/tls-key"),
    ],
)
def test_a_file_is_mounted_and_named_where_it_is_inside(tmp_path, option, knob, inside):
    file = tmp_path / "secret"
    file.touch()
    command = make_run("--store", str(tmp_path), option, str(file))
    assert {f"--volume={file}:{inside}:ro", f"--env={knob}={inside}"} <= set(command)


@pytest.mark.parametrize(("option", "knob"), [("--store", "STORE"), ("--tls-key", "TLS_KEY")])
def test_a_path_that_engines_would_split_is_refused(tmp_path, option, knob):
    folder = tmp_path / "a:b, 'c'"
    folder.mkdir()
    (folder / "x.mar").touch()
    given = folder if knob == "STORE" else folder / "x.mar"
    with pytest.raises(ImageError, match=f"^{knob} must be a path without colons"):
        make_run("--store", str(tmp_path / "none"), option, str(given))
    plain = tmp_path / "b, 'c' =é"
    folder.rename(plain)
    given = plain if knob == "STORE" else plain / "x.mar"
    words = make_run("--store", str(tmp_path / "none"), option, str(given))
    assert [word for word in words if word.startswith(f"--volume={given}:/")]


@pytest.mark.parametrize(
    ("knob", "do"), [("TOKEN_FILE", "make one: openssl rand -base64 24 > "), ("TLS_KEY", "give TLS_CERT and")]
)
def test_a_file_that_the_container_cannot_read_is_refused(tmp_path, knob, do):
    file = tmp_path / "secret"
    with pytest.raises(ImageError, match=f"^{knob}: no such file: {file}; {do}"):
        check_file(knob, file)
    file.write_text("x")
    file.chmod(0o600)
    with pytest.raises(ImageError, match=f"^{knob}: user 10001 of the container cannot read"):
        check_file(knob, file)
    file.chmod(0o644)
    assert check_file(knob, file) == file
