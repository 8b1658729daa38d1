"""The lines to paste: the token stays in a file that nobody else can read."""

from __future__ import annotations

import dataclasses
import http.server
import json
import os
import shlex
import shutil
import subprocess
import threading

import pytest

from server import call
from server.api import bearer
from server.archives import read_archive
from server.call import render_calls
from server.rundir import RunDir
from server.tokens import write_private
from tests.plans import make_model
from tests.server.fakes import make_archive

TOKEN = "a-token-of-letters"


@pytest.fixture
def one(plan, run, tmp_path):
    """bert alone, its archive, and a token."""
    write_private(run.token, TOKEN)
    make_archive(tmp_path / "bert.mar", name="bert", text="it's good")
    instance = dataclasses.replace(plan.instances["a1"], models={"bert": make_model("bert")})
    return dataclasses.replace(plan, instances={"a1": instance}, model_store=str(tmp_path))


def with_example(monkeypatch, archive, body, **changes):
    """The archive is seen with another example."""
    example = archive.definition.example.model_copy(update=changes)
    definition = archive.definition.model_copy(update={"example": example})
    seen = {"bert": dataclasses.replace(archive, definition=definition, body=body)}
    monkeypatch.setattr(call, "read_archives_left", lambda _: seen)


def test_the_file_with_the_token_is_for_nobody_else_whatever_was_there_before(one, run):
    run.authorization.write_text("old")
    run.authorization.chmod(0o644)
    lines = render_calls(one, run)
    assert run.authorization.stat().st_mode & 0o777 == 0o600
    assert run.authorization.read_text() == f"Authorization: {bearer(TOKEN)['Authorization']}\n"
    assert [file.name for file in run.path.iterdir() if "authorization" in file.name] == ["authorization"]
    assert TOKEN not in lines + render_calls(one, run, elsewhere=True)


@pytest.mark.parametrize(
    ("body", "content_type", "sent"),
    [
        (b"it's good\n", "text/plain; charset=utf-8", {"text": "it's good"}),
        (b'{"text": "it"}', "text/plain; charset=utf-8", {"text": "it"}),
        (b'{\n "rooms": 3, "area": 80}', "application/json", {"rooms": 3, "area": 80}),
        (b"[1, 2]", "application/json", [1, 2]),
    ],
)
def test_the_line_sends_what_proves_the_model(one, run, tmp_path, monkeypatch, body, content_type, sent):
    with_example(monkeypatch, read_archive(tmp_path / "bert.mar"), body, content_type=content_type)
    words = shlex.split(render_calls(one, run).splitlines()[0])
    assert json.loads(words[words.index("-d") + 1]) == sent
    assert words[-1] == "http://127.0.0.1:8080/predictions/bert"


def test_an_archive_without_an_example_gets_a_line_too(one, run, tmp_path):
    """One that others made, and one that is gone: with the sample of an earlier call, and without."""
    old = make_model("old", kit=False, backend="", precision="", archives={"1.0": "/a/old.mar"})
    instance = dataclasses.replace(one.instances["a1"], models={"old": old})
    foreign = dataclasses.replace(one, instances={"a1": instance})
    comment, line, _ = render_calls(foreign, run).splitlines()
    assert comment.startswith("# old: ")
    assert shlex.split(line)[-3:] == ["-T", "FILE", "http://127.0.0.1:8080/predictions/old"]
    render_calls(one, run)
    (tmp_path / "bert.mar").unlink()
    sample = run.samples / "bert-example.txt"
    assert shlex.split(render_calls(one, run).splitlines()[0])[-3:-1] == ["-T", str(sample)]
    sample.unlink()
    assert render_calls(one, run).startswith("# bert: no sample, because bert.mar is gone")


@pytest.mark.skipif(not shutil.which("curl"), reason="curl is not installed")
def test_curl_reads_header_and_body_from_files_of_any_name(one, run, tmp_path, monkeypatch):
    """Of its own arguments everyone on the machine may read; the token is not there."""
    seen = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_PUT(self):
            length = int(self.headers["Content-Length"])
            seen.append((self.headers["Authorization"], self.rfile.read(length)))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        one = dataclasses.replace(one, proxy=dataclasses.replace(one.proxy, port=server.server_port))
        image = {"content_type": "image/jpeg", "file": "a.jpg"}
        with_example(monkeypatch, read_archive(tmp_path / "bert.mar"), b"\0 image", **image)
        odd = RunDir.at(tmp_path / "the 'server' [1-2]{a,b} \"$(touch F) é\\")
        odd.path.mkdir()
        write_private(odd.token, TOKEN)
        line = render_calls(one, odd)
        # An office's proxy, which knows no address of this machine.
        kept = {name: value for name, value in os.environ.items() if name.lower() != "no_proxy"}
        subprocess.run(
            ["sh", "-c", line.splitlines()[0]],
            env={**kept, "http_proxy": "http://127.0.0.1:9"},
            check=True, timeout=20, capture_output=True, cwd=tmp_path,
        )  # fmt: skip
    assert seen == [(f"Bearer {TOKEN}", b"\0 image")]
    assert not (tmp_path / "F").exists()
