"""A Docker Swarm of several hosts on this machine: each has namespaces (network, mount, process) of its
own, and a cgroup with cores of its own. Needs root, docker.io, tini and iptables of Debian, and iproute2.

Read with moby's issues 24005 (no IPVS: no routing mesh) and 30477 (services take no cpuset).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

DOCKERD = "/usr/sbin/dockerd"
NET, NET6 = "10.77.0", "fd77:"
NO_WAIT = ((), ("nodad",))
"""For IPv4, IPv6: nobody else has the address."""
HUB = "kit-hub"
"""Namespace with the bridge: nothing outside of it has a route to the hosts, and nothing leaves it."""


def run(*words: object, text: str | None = None, check: bool = True, seconds: float = 60) -> str:
    command = [str(word) for word in words]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=seconds)
    if check and done.returncode:
        raise RuntimeError(f"{' '.join(map(str, words))}: {done.stdout[-500:]}{done.stderr[-2000:]}")
    return done.stdout


def find_lack() -> str:
    """What is missing; "" where a swarm can be made."""
    if os.geteuid():
        return "network namespaces need root"
    missing = [one for one in (DOCKERD, "tini", "ip", "unshare", "nsenter") if not shutil.which(one)]
    if missing:
        return f"no {', '.join(missing)}: apt-get install docker.io tini iptables iproute2"
    done = subprocess.run(
        ["unshare", "--mount", "--net", "true"], capture_output=True, text=True, check=False
    )
    return "" if done.returncode == 0 else f"no namespaces can be made: {done.stderr.strip()}"


def wait_for(check: Callable[[], Any], seconds: float, why: Callable[[], object] = lambda: "") -> Any:
    ends = time.monotonic() + seconds
    while not (found := check()):
        assert time.monotonic() < ends, f"not within {seconds} s: {why()}"
        time.sleep(0.25)
    return found


class Host:
    """One machine of the swarm."""

    def __init__(self, number: int, folder: Path, cpus: str) -> None:
        self.number, self.folder, self.cpus = number, folder / f"host{number}", cpus
        self.name, self.space, self.address = f"node{number}", f"kit-n{number}", f"{NET}.{number}"
        self.group = f"/kit-fleet-{os.getpid()}/n{number}"
        self._process: subprocess.Popen[bytes] | None = None
        self.folder.mkdir(parents=True)
        (self.folder / "client").mkdir()

    def connect(self) -> None:
        """To the hub's bridge."""
        run("ip", "netns", "add", self.space)
        run("ip", "-n", self.space, "link", "set", "lo", "up")
        link = ("type", "veth", "peer", "name", self._port, "netns", HUB)
        run("ip", "link", "add", "eth0", "netns", self.space, *link)
        for address in (f"{self.address}/24", f"{NET6}:{self.number}/64"):
            run("ip", "-n", self.space, "addr", "add", address, "dev", "eth0", *NO_WAIT[":" in address])
        run("ip", "-n", self.space, "link", "set", "eth0", "up")
        run("ip", "-n", HUB, "link", "set", self._port, "master", "br0", "up")

    @property
    def _port(self) -> str:
        return f"v{self.number}"

    def boot(self) -> None:
        """A daemon in a process namespace of its own: what ends its first process ends all within."""
        for name in ("exec", "pid"):  # as /run after a boot
            shutil.rmtree(self.folder / name, ignore_errors=True)
            (self.folder / name).unlink(missing_ok=True)
        make_group(self.group, self.cpus)
        (self.folder / "resolv.conf").write_text("nameserver 127.0.0.1\n")  # look-ups fail at once
        daemon = [
            DOCKERD, "--data-root", self.folder / "data", "--exec-root", self.folder / "exec",
            "-H", f"unix://{self.folder}/d.sock", "--pidfile", self.folder / "pid", "--bridge=none",
            "--iptables=false", "--ip6tables=false", "--ip-forward=false", "--userland-proxy=false",
            "--cgroup-parent", self.group, "--exec-opt", "native.cgroupdriver=cgroupfs", "--log-level=warn",
        ]  # fmt: skip
        names = f"mount --bind {self.folder}/resolv.conf /etc/resolv.conf"
        script = f'hostname {self.name}; {names}; exec tini -- "$@"'
        command = [
            "nsenter", f"--net=/run/netns/{self.space}", "unshare", "--mount", "--uts", "--ipc", "--pid",
            "--fork", "--kill-child=KILL", "--mount-proc", "sh", "-c", script, "sh", *map(str, daemon),
        ]  # fmt: skip
        # Without a registry a pull would wait for a name service at each start of a task.
        environment = {**os.environ, "DOCKER_SERVICE_PREFER_OFFLINE_IMAGE": "1"}
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        wait_for(lambda: self._is_up(), 60, lambda: (self.folder / "log").read_text()[-2000:])

    def _is_up(self) -> bool:
        with contextlib.suppress(RuntimeError, subprocess.TimeoutExpired):
            self.docker("info")
            return True
        return False

    def docker(self, *words: object, **more: Any) -> str:
        command = ["env", f"DOCKER_CONFIG={self.folder}/client", "/usr/bin/docker", "-H"]
        return run(*command, f"unix://{self.folder}/d.sock", *words, **more)

    def cut(self) -> None:
        """From the network: nothing it sends arrives any more."""
        run("ip", "-n", HUB, "link", "set", self._port, "down")

    def kill(self) -> None:
        """As a loss of power."""
        if self._process:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(30)
            self._process = None


def make_group(path: str, cpus: str) -> None:
    """A cgroup with these CPUs, and memory nodes, of version 1 or 2."""
    root = Path("/sys/fs/cgroup")
    first = Path(path).parts[1]
    if (root / "cgroup.controllers").exists():
        for folder in (root, root / first):
            folder.mkdir(exist_ok=True)
            (folder / "cgroup.subtree_control").write_text("+cpuset +cpu +memory +pids")
        (root / path.lstrip("/")).mkdir(exist_ok=True)
        (root / path.lstrip("/") / "cpuset.cpus").write_text(cpus)
        return
    whole = (root / "cpuset/cpuset.cpus").read_text(), (root / "cpuset/cpuset.mems").read_text()
    for folder, allowed in ((root / "cpuset" / first, whole[0]), (root / "cpuset" / path.lstrip("/"), cpus)):
        folder.mkdir(exist_ok=True)
        (folder / "cpuset.cpus").write_text(allowed)
        (folder / "cpuset.mems").write_text(whole[1])


def remove_groups() -> None:
    for top in Path("/sys/fs/cgroup").glob(f"**/kit-fleet-{os.getpid()}"):
        for folder in sorted(top.rglob("*"), key=lambda one: -len(one.parts)):
            if folder.is_dir():
                with contextlib.suppress(OSError):
                    folder.rmdir()
        with contextlib.suppress(OSError):
            top.rmdir()


class Swarm:
    """Host 1 is the manager."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        self.hosts, self.manager = hosts, hosts[0]

    def join(self) -> None:
        manager = self.manager
        at = ("--advertise-addr", manager.address, "--listen-addr", f"{manager.address}:2377")
        manager.docker("swarm", "init", *at, "--default-addr-pool", "10.78.0.0/16")
        manager.docker("swarm", "update", "--dispatcher-heartbeat", "2s")
        manager.docker("network", "rm", "ingress", text="y\n")  # no IPVS: no routing mesh
        token = manager.docker("swarm", "join-token", "-q", "worker").strip()
        for host in self.hosts[1:]:
            at = ("--advertise-addr", host.address, "--listen-addr", f"{host.address}:2377")
            host.docker("swarm", "join", *at, "--token", token, f"{manager.address}:2377")
        wait_for(lambda: [*self.read_nodes().values()].count("Ready") == len(self.hosts), 60, self.read_nodes)

    def read_nodes(self) -> dict[str, str]:
        """Name → Ready or Down."""
        return dict(line.split() for line in self.manager.docker(
            "node", "ls", "--format", "{{.Hostname}} {{.Status}}").splitlines())  # fmt: skip

    def deploy(self, files: Sequence[Path], **variables: str) -> None:
        words = [word for file in files for word in ("-c", file)]
        named = [f"{name}={value}" for name, value in variables.items()]
        client = f"DOCKER_CONFIG={self.manager.folder}/client"
        run("env", client, *named, "/usr/bin/docker", "-H", f"unix://{self.manager.folder}/d.sock", "stack",
            "deploy", "--resolve-image", "never", *words, "kit")  # fmt: skip

    def read_update(self) -> str:
        said = self.manager.docker("service", "inspect", "kit_server", "--format", "{{json .UpdateStatus}}")
        return str((json.loads(said) or {}).get("State", ""))

    def list_tasks(self) -> list[tuple[str, str, str]]:
        """(Node, state, error) of each task that should run."""
        form = "{{.Node}}|{{.CurrentState}}|{{.Error}}"
        lines = self.manager.docker("service", "ps", "kit_server", "--filter", "desired-state=running",
                                    "--no-trunc", "--format", form).splitlines()  # fmt: skip
        return [
            (node, state.split()[0], error) for node, state, error in (one.split("|", 2) for one in lines)
        ]

    def find_serving(self) -> set[str]:
        """Nodes with a task that is healthy."""
        return {node for node, state, _ in self.list_tasks() if state == "Running"}


@contextlib.contextmanager
def make_swarm(folder: Path, cpus: Mapping[int, str]) -> Iterator[Swarm]:
    """Number of a host → its CPUs. All is taken down at the end."""
    hosts = [Host(number, folder, own) for number, own in cpus.items()]
    try:
        run("ip", "netns", "add", HUB)
        run("ip", "-n", HUB, "link", "set", "lo", "up")
        run("ip", "-n", HUB, "link", "add", "br0", "type", "bridge")
        for address in (f"{NET}.254/24", f"{NET6}:254/64"):
            run("ip", "-n", HUB, "addr", "add", address, "dev", "br0", *NO_WAIT[":" in address])
        run("ip", "-n", HUB, "link", "set", "br0", "up")
        for host in hosts:
            host.connect()
            host.boot()
        swarm = Swarm(hosts)
        swarm.join()
        yield swarm
    finally:
        for host in hosts:
            host.kill()
        for space in (HUB, *(host.space for host in hosts)):
            run("ip", "netns", "del", space, check=False)
        wait_for(lambda: not has_daemons(folder), 20)
        remove_groups()
        shutil.rmtree(folder, ignore_errors=True)


def has_daemons(folder: Path) -> bool:
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if str(folder).encode() in (process / "cmdline").read_bytes():
                return True
    return False
