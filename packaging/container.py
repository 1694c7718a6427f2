"""Build the Dockerfile and run the services of docker-compose.yml as they stand, without a container engine.

``sudo make container-test`` (root, Linux; buildah, debootstrap, iproute2 and Chromium from Debian). The base image
comes from debootstrap instead of a registry: Debian bookworm's Python 3.11 under the name that the Dockerfile asks for.
Each service is a process in a mount namespace of its own: root file system, user, volume, tmpfs, environment, command
and health check are those of the compose file. Process numbers are this machine's; services and browser share a network
of their own, with nothing but a loopback. The browser gives the token, traces a bundled picture, looks at every view.

CONTAINER_BUILD_ARGS takes arguments of the build, such as ``TORCH_INDEX=…`` where another index is nearer.
``--built`` takes the image of the last time.
Left behind: ``build/container/`` with the log of each service and a picture of the page.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import re
import secrets
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "build" / "container"
BASE_PACKAGES = "python3,python3-venv,python3-pip,ca-certificates,libgomp1"
IMAGE = "tokenpaths-container-test"
START_SECONDS = 240.0
CLONE_NEWNET = 0x40000000
"""of `unshare(2)`; `os.unshare` comes with Python 3.12"""
Service = dict[str, Any]


def interpolated(text: str, variables: Mapping[str, str]) -> str:
    """``text`` with ``${NAME}``, ``${NAME:-default}`` and ``${NAME:?message}`` replaced as Compose does."""

    def value(match: re.Match[str]) -> str:
        name, kind, rest = match["name"], match["kind"], match["rest"]
        if variables.get(name):
            return variables[name]
        if kind == ":-":
            return rest
        raise SystemExit(f"docker-compose.yml wants {name}: {rest or 'it is not set'}")

    return re.sub(r"\$\{(?P<name>\w+)(?:(?P<kind>:-|:\?)(?P<rest>[^}]*))?\}", value, text)


def services(variables: Mapping[str, str]) -> dict[str, Service]:
    """The services of docker-compose.yml by name, anchors and variables resolved."""
    text = interpolated((ROOT / "docker-compose.yml").read_text(encoding="utf-8"), variables)
    composed: dict[str, Service] = yaml.safe_load(text)["services"]
    return composed


def run(*command: str | Path, **options: Any) -> str:
    """Output of a command that must succeed."""
    return subprocess.run(
        [str(part) for part in command], check=True, text=True, stdout=subprocess.PIPE, **options
    ).stdout


def require_tools() -> None:
    """End with a sentence where something is missing."""
    missing = [tool for tool in ("buildah", "debootstrap", "ip", "unshare", "setpriv") if shutil.which(tool) is None]
    if os.geteuid() != 0 or missing:
        raise SystemExit(
            f"The container test needs root and, on Debian, `apt-get install buildah debootstrap iproute2`; "
            f"missing here: {', '.join(missing) or 'root'}."
        )


def make_base(name: str) -> None:
    """An image ``name`` of Debian's own packages, where none of that name is there yet."""
    if name in run("buildah", "images", "--format", "{{.Name}}:{{.Tag}}").split():
        return
    with tempfile.TemporaryDirectory(prefix="tokenpaths-base-") as folder:
        run("debootstrap", "--variant=minbase", f"--include={BASE_PACKAGES}", "bookworm", folder)
        (Path(folder) / "usr/bin/python").symlink_to("python3")
        (Path(folder) / "usr/lib/python3.11/EXTERNALLY-MANAGED").unlink(missing_ok=True)
        container = run("buildah", "from", "scratch").strip()
        run("buildah", "copy", "--quiet", container, folder, "/")
        run("buildah", "commit", "--quiet", container, name)
        run("buildah", "rm", container)


def pip_options(folder: Path) -> list[str]:
    """Mounts that let pip inside the build ask whatever package index this machine's pip asks."""
    listed = run(sys.executable, "-m", "pip", "config", "list")
    values = dict(re.findall(r"^global\.([\w-]+)='(.*)'$", listed, re.MULTILINE))
    paths = {part.removeprefix("file://") for value in values.values() for part in value.split() if "/" in part}
    # An index in a folder names files beside itself.
    mounts = {Path(path).parent if path.endswith("/simple") else Path(path) for path in paths if Path(path).exists()}
    file = folder / "pip.conf"
    file.write_text("[global]\n" + "".join(f"{name} = {value}\n" for name, value in values.items()))
    certificates = Path("/etc/ssl/certs/ca-certificates.crt")
    return [f"--volume={file}:/etc/pip.conf:ro", *(f"--volume={path}:{path}:ro" for path in {*mounts, certificates})]


def build() -> None:
    """The image of the Dockerfile as it is."""
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    base = re.findall(r"^FROM (\S+)", dockerfile, re.MULTILINE)[0]
    make_base(f"docker.io/library/{base}")
    with tempfile.TemporaryDirectory(prefix="tokenpaths-build-") as folder:
        options = pip_options(Path(folder))
        options += [f"--build-arg={value}" for value in os.environ.get("CONTAINER_BUILD_ARGS", "").split()]
        with open(OUT / "build.log", "w") as log:
            command = ["buildah", "bud", "--isolation=chroot", "--pull-never", *options, "--tag", IMAGE, str(ROOT)]
            subprocess.run(command, check=True, stdout=log, stderr=subprocess.STDOUT)


def enter(root: Path, service: Service, volume: Path, environment: Mapping[str, str], hosts: Path) -> list[str]:
    """Command line that runs what follows it inside the image as the service does."""
    inside = shlex.quote(str(root))
    steps = [f"mount --rbind {inside} {inside}", f"mount --bind {shlex.quote(str(hosts))} {inside}/etc/hosts"]
    steps += [f"mount --bind {shlex.quote(str(volume))} {inside}{part.split(':')[1]}" for part in service["volumes"]]
    if service.get("read_only"):
        steps.append(f"mount -o remount,bind,ro {inside}")
    steps += [f"mount -t tmpfs tmpfs {inside}{path}" for path in service.get("tmpfs", [])]
    steps += [f"mount -t proc proc {inside}/proc", f"mount --rbind /dev {inside}/dev"]
    user = service.get("user", "root")
    values = [f"{name}={value}" for name, value in environment.items()]
    workdir = "/app"
    shell = f'cd {workdir} && exec setpriv --reuid={user} --regid={user} --init-groups --no-new-privs "$@"'
    steps.append(f'exec chroot {inside} sh -c {shlex.quote(shell)} sh env -i {shlex.join(values)} "$@"')
    return ["unshare", "--mount", "--propagation=private", "sh", "-ec", "\n".join(steps), "sh"]


def isolate_network() -> None:
    """Give this process, and what it starts, a network of its own.

    On this machine's, a server at one of the ports would keep a service from starting and answer its health check.
    """
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET) != 0:
        raise SystemExit(f"The services get no network of their own here: {os.strerror(ctypes.get_errno())}.")
    run("ip", "link", "set", "lo", "up")


def image_environment() -> dict[str, str]:
    """The environment of the image."""
    lines = run(
        "buildah", "inspect", "--type=image", "--format", '{{range .OCIv1.Config.Env}}{{.}}{{"\\n"}}{{end}}', IMAGE
    )
    return dict(line.split("=", 1) for line in lines.splitlines() if "=" in line)


class Services:
    """The three services, started in the order of their dependencies and stopped together."""

    def __init__(self, root: Path, volume: Path, hosts: Path, variables: Mapping[str, str]) -> None:
        self.root, self.volume, self.hosts = root, volume, hosts
        self.services = services(variables)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.environment = image_environment()

    def command(self, name: str, command: list[str]) -> list[str]:
        """What runs ``command`` inside service ``name``."""
        service = self.services[name]
        environment = {"PATH": "/usr/local/bin:/usr/bin:/bin"} | self.environment | service.get("environment", {})
        return [*enter(self.root, service, self.volume, environment, self.hosts), *command]

    def start(self) -> None:
        """Start each once what it depends on is healthy; SystemExit with the log where one does not get there."""
        waiting = list(self.services)
        while waiting:
            ready = [name for name in waiting if not set(self.services[name].get("depends_on", ())) & set(waiting)]
            for name in ready:
                log = open(OUT / f"{name}.log", "wb")  # noqa: SIM115 - lives as long as the process
                words = shlex.split(self.services[name]["command"])
                self.processes[name] = subprocess.Popen(
                    self.command(name, words), stdout=log, stderr=subprocess.STDOUT, start_new_session=True
                )
                self.wait(name)
                waiting.remove(name)

    def wait(self, name: str) -> None:
        """Until the health check of the compose file passes."""
        end = time.monotonic() + START_SECONDS
        kind, *words = self.services[name]["healthcheck"]["test"]
        assert kind == "CMD", "the health checks are commands"
        while subprocess.run(self.command(name, words), stdout=subprocess.DEVNULL).returncode != 0:
            ended = self.processes[name].poll() is not None
            if ended or time.monotonic() > end:
                tail = (OUT / f"{name}.log").read_text(errors="replace")[-3000:]
                raise SystemExit(f"service {name} {'ended' if ended else 'is not healthy'}:\n{tail}")
            time.sleep(1)
        print(f"{name}: healthy", flush=True)

    def stop(self) -> None:
        """SIGTERM to all, as `docker compose down` sends it; SIGKILL after ten seconds."""
        for process in self.processes.values():
            process.terminate()
        for name, process in self.processes.items():
            try:
                print(f"{name}: ended with {process.wait(10)}")
            except subprocess.TimeoutExpired:
                process.kill()
                print(f"{name}: did not end within 10 s")


def look(token: str) -> None:
    """Give the token, trace a bundled picture, look at every view in a browser."""
    code = [sys.executable, "-m", "tests.browser.container_walk", "http://127.0.0.1:8501", str(OUT)]
    subprocess.run(code, check=True, cwd=ROOT, env=os.environ | {"TOKENPATHS_TOKEN": token})


def check_closed(services: Services) -> None:
    """Neither the root file system nor another user's rights can be had inside."""
    probe = "import os; print(os.getuid()); open('/app/probe', 'w')"
    done = subprocess.run(services.command("api", ["python", "-c", probe]), text=True, capture_output=True)
    if done.stdout.strip() == "0" or "Read-only file system" not in done.stderr:
        raise SystemExit(f"the root file system is not read-only to a plain user: {done.stdout}{done.stderr}")
    print(f"inside: user {done.stdout.strip()}, root file system read-only")


def main() -> None:
    """Build, start, look, stop."""
    require_tools()
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    variables = {"TOKENPATHS_TOKEN": secrets.token_hex(16), "TOKENPATHS_WORKER_SECRET": secrets.token_hex(16)}
    started = time.monotonic()
    if sys.argv[1:] != ["--built"]:
        build()
        print(f"built in {time.monotonic() - started:.0f} s", flush=True)
    isolate_network()
    container = run("buildah", "from", "--pull-never", IMAGE).strip()
    volume = Path(tempfile.mkdtemp(prefix="tokenpaths-volume-"))
    try:
        root = Path(run("buildah", "mount", container).strip())
        hosts = volume.with_suffix(".hosts")
        hosts.write_text("127.0.0.1 localhost worker api page\n")
        entry = next(line for line in (root / "etc/passwd").read_text().splitlines() if line.startswith("tokenpaths:"))
        os.chown(volume, int(entry.split(":")[2]), int(entry.split(":")[3]))
        running = Services(root, volume, hosts, variables)
        try:
            started = time.monotonic()
            running.start()
            print(f"three services healthy after {time.monotonic() - started:.0f} s", flush=True)
            check_closed(running)
            look(variables["TOKENPATHS_TOKEN"])
        finally:
            running.stop()
    finally:
        run("buildah", "rm", container)
        shutil.rmtree(volume, ignore_errors=True)
    print(f"logs and pictures: {OUT.relative_to(ROOT)} (as {pwd.getpwuid(os.getuid()).pw_name})")


if __name__ == "__main__":
    main()
