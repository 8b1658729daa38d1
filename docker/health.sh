#!/bin/sh
# The health check: asks the supervisor's own socket for /ready. A bare Python (-S, 20 ms) is started for it: the
# whole environment would take CPU from the workers at each check.
cd -- "$(dirname -- "$0")/.." || exit 1
exec python3 -S -E - "${1:-/run/kit}" <<'PYTHON'
import pathlib, socket, sys
sys.path.insert(0, ".")
from config.proxy import ProxyFiles

data = b""
try:
    with socket.socket(socket.AF_UNIX) as supervisor:
        supervisor.settimeout(8)
        supervisor.connect(ProxyFiles.of(pathlib.Path(sys.argv[1]).resolve()).supervisor_socket)
        supervisor.sendall(b"GET /ready HTTP/1.0\r\n\r\n")
        while part := supervisor.recv(65536):
            data += part
except OSError as problem:
    sys.exit(f"not ready: starting, or failed (see the log): {problem}")
head, _, body = data.partition(b"\r\n\r\n")
print(body.decode(errors="replace").strip())
sys.exit(0 if head.split(b" ")[1:2] == [b"200"] else 1)
PYTHON
