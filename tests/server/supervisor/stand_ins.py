"""A TorchServe of plain Python: the command, its Java, a launcher and a worker, and both sockets."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

from config.plan import Libraries, Plan
from server.launch import CLASSES
from server.processes import JAVA_MAIN, LAUNCHER_MODULE, WORKER_SCRIPT
from server.rundir import RunDir
from tests.plans import make_instance, make_model, make_plan
from tests.server.fakes import make_archive

RIGHT = {"label": "good", "probabilities": {"good": 0.75}}
WRONG = {"label": "bad", "probabilities": {"bad": 0.75}}
ANSWER = "answer.json"
"""In the instance's folder: what each prediction is answered, or a status."""
COMMAND = f"""\
import subprocess, sys
file = sys.argv[sys.argv.index("--ts-config") + 1]
keys = dict(line.rstrip().split("=", 1) for line in open(file) if "=" in line)
paths = [keys[f"{{name}}_address"].removeprefix("unix:") for name in ("management", "inference")]
sys.exit(subprocess.call([sys.executable, {{java!r}}, {JAVA_MAIN!r}, *paths]))
"""
LAUNCHER = f"""\
import subprocess, sys
words = [sys.executable, "-c", "import time; time.sleep(600)", {WORKER_SCRIPT!r}]
worker = subprocess.Popen(words, start_new_session=True)  # as torch's launcher does
print(worker.pid, flush=True)
worker.wait()
"""
JAVA = f"""\
import http.server, json, signal, socketserver, subprocess, sys, threading
words = [sys.executable, "-c", {LAUNCHER!r}, {LAUNCHER_MODULE!r}, {WORKER_SCRIPT!r}]
launcher = subprocess.Popen(words, stdout=subprocess.PIPE)
worker = int(launcher.stdout.readline())

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        self.answer(200, [{{"workers": [{{"pid": worker, "status": "READY"}}]}}])
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        said = json.loads(open({ANSWER!r}).read())
        self.answer(*((said, {{}}) if isinstance(said, int) else (200, said)))
    def answer(self, status, fields):
        body = json.dumps(fields).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def address_string(self):
        return ""
    def log_message(self, *_):
        pass

class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True

for path in sys.argv[2:]:
    threading.Thread(target=Server(path, Handler).serve_forever, daemon=True).start()
def end(*_):
    launcher.kill()
    sys.exit(subprocess.call(["kill", str(worker)]))

signal.signal(signal.SIGTERM, end)
while True:
    signal.pause()
"""

HAPROXY = """\
#!{python}
import os, socket
path = {path!r}
listener = socket.socket(socket.AF_UNIX)
listener.bind(path)
listener.listen()
while True:
    connection, _ = listener.accept()
    said = connection.recv(4096).decode()
    rows = "# pxname,svname,qcur,scur,slim,hrsp_2xx,hrsp_3xx,hrsp_4xx,hrsp_5xx,rtime,act,status\\n"
    for name in ("bert.entry", "bert.large.entry", "bert", "bert.large"):
        rows += f"{{name}},BACKEND,0,0,,,,,,0,1,UP\\n"
    connection.sendall(rows.encode() if said.startswith("show stat") else b"\\n")
    connection.close()
"""


def make_haproxy(run: RunDir, file: Path) -> Path:
    """A program that answers on HAProxy's runtime socket, and serves nobody."""
    file.write_text(HAPROXY.format(python=sys.executable, path=run.proxy_files.admin_socket))
    file.chmod(0o755)
    return file


def make_stand_in(run: RunDir, folder: Path, *, instances: int = 1) -> Plan:
    """A plan of one model whose TorchServe is that; `folder` takes its environment and the archive."""
    (folder / "bin").mkdir()
    (folder / CLASSES).mkdir(parents=True)
    (folder / "java.py").write_text(JAVA)
    (folder / "bin/python").symlink_to(sys.executable)
    (folder / "bin/torchserve").write_text(COMMAND.replace("{java!r}", repr(str(folder / "java.py"))))
    make_archive(folder / "bert.mar", name="bert")
    plan = make_plan(
        instances, run_dir=run.path, prefix=str(folder), model_store=str(folder),
        libraries=Libraries(
            allocator="system", allocator_path=None, allocator_link=None, openmp="gnu", openmp_path=None
        ),
    )  # fmt: skip
    own = {}
    for number, name in enumerate(plan.instances, start=1):
        one = run.instance(name)
        one.path.mkdir(parents=True)
        sockets = {
            f"{kind}_address": f"unix:{one.temporary}/{kind}.sock" for kind in ("management", "inference")
        }
        one.properties.write_text("".join(f"{key}={value}\n" for key, value in sockets.items()))
        set_answer(one, RIGHT)
        cpu = min(os.sched_getaffinity(0))
        made = make_instance(number, {"bert": make_model("bert")}, worker_cpus=((cpu,),), server_cpus=None)
        ports = {
            f"grpc_{kind}_port": str(20000 + os.getpid() % 20000 + number)
            for kind in ("inference", "management")
        }
        own[name] = replace(made, properties={**made.properties, **sockets, **ports})
    return replace(plan, instances=own)


def set_answer(run: RunDir, answer: object) -> None:
    """What the instance's predictions are answered from now on: JSON, or a status."""
    (run.path / ANSWER).write_text(json.dumps(answer))
