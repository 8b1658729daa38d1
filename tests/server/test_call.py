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

from server.archives import read_archive, write_samples
from server.call import make_client, render_calls, write_authorization
from server.tokens import write_private
from tests.server.fakes import as_whole, make_archive

TOKEN = "a-token-of-letters"


@pytest.fixture
def bert(tmp_path):
    return read_archive(make_archive(tmp_path / "bert.mar", name="bert", text="it's good"))


@pytest.fixture
def one(plan):
    plan = as_whole(plan)
    return dataclasses.replace(plan, models={"bert": plan.models["bert"]})


@pytest.fixture
def client(plan, run):
    write_private(run.token, TOKEN)
    return make_client(as_whole(plan), run)


def test_the_file_is_for_nobody_else_whatever_was_there_before(run, client):
    run.authorization.write_text("old")
    run.authorization.chmod(0o644)
    file = write_authorization(run, client)
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.read_text() == f"Authorization: Bearer {TOKEN}\n"
    assert [found.name for found in run.path.iterdir() if "authorization" in found.name] == ["authorization"]


@pytest.mark.parametrize(
    ("body", "content_type", "sent"),
    [
        (b"it's good\n", "text/plain; charset=utf-8", {"text": "it's good"}),
        (b'{"text": "it"}', "text/plain; charset=utf-8", {"text": "it"}),
        (b'{\n "rooms": 3, "area": 80}', "application/json", {"rooms": 3, "area": 80}),
        (b"[1, 2]", "application/json", [1, 2]),
    ],
)
def test_the_line_sends_what_proves_the_model(one, run, client, bert, body, content_type, sent):
    example = bert.definition.example.model_copy(update={"content_type": content_type})
    definition = bert.definition.model_copy(update={"example": example})
    archive = dataclasses.replace(bert, definition=definition, body=body)
    file = run.path / "bert.txt"
    line = render_calls(one, {"bert": archive}, {"bert": file}, client, run.authorization).splitlines()[0]
    words = shlex.split(line)
    assert json.loads(words[words.index("-d") + 1]) == sent


@pytest.mark.skipif(not shutil.which("curl"), reason="curl is not installed")
def test_curl_reads_header_and_body_from_files_of_any_name(one, run, client, bert, tmp_path):
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
        url = f"http://127.0.0.1:{server.server_port}"
        client = dataclasses.replace(client, inference_url=url)
        example = bert.definition.example.model_copy(update={"content_type": "image/jpeg", "file": "a.jpg"})
        definition = bert.definition.model_copy(update={"example": example})
        archives = {"bert": dataclasses.replace(bert, definition=definition)}
        samples = write_samples(archives, tmp_path / "the 'server' [1-2]{a,b} \"$(touch F) é\\")
        line = render_calls(one, archives, samples, client, write_authorization(run, client))
        # An office's proxy, which knows no address of this machine.
        kept = {name: value for name, value in os.environ.items() if name.lower() != "no_proxy"}
        subprocess.run(
            ["sh", "-c", line.splitlines()[0]],
            env={**kept, "http_proxy": "http://127.0.0.1:9"},
            check=True, timeout=20, capture_output=True, cwd=tmp_path,
        )  # fmt: skip
    assert seen == [(f"Bearer {TOKEN}", bert.body)]
    assert not (tmp_path / "F").exists()
