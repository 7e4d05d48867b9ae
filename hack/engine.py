"""The Docker engine: finds one that answers, else installs and starts Debian's."""

import os
import shutil
import subprocess
import time
from pathlib import Path

from hack import pins
from hack.paths import HACK, cache_dir
from hack.shell import Context, UserError, output, tail


def answers() -> bool:
    """Whether a Docker engine answers this user."""
    return output("docker", "info", timeout=10) is not None


def version() -> str | None:
    """Version of the engine that answers, or None."""
    return (output("docker", "version", "-f", "{{.Server.Version}}", timeout=10) or "").strip() or None


def state_dir() -> Path:
    """Where an engine that we started keeps its images and containers; it outlives the engine."""
    return cache_dir() / "docker"


def lacks_sys_resource(cap_bnd_hex: str) -> bool:
    """Whether a capability bounding set (CapBnd of /proc/self/status) is without CAP_SYS_RESOURCE, bit 24."""
    return not int(cap_bnd_hex, 16) >> 24 & 1


def bounding_set(status: str) -> str:
    """CapBnd, hexadecimal, from the text of /proc/<pid>/status."""
    return next(line.split()[1] for line in status.splitlines() if line.startswith("CapBnd:"))


def missing_packages(installed: str) -> list[str]:
    """Which of our Debian packages are not in dpkg-query's lines of "name status"."""
    present = {line.split()[0] for line in installed.splitlines() if line.endswith(" installed")}
    return [package for package in pins.APT_PACKAGES if package not in present]


def installed_packages() -> str:
    """dpkg-query's lines of "name status" for our packages; unknown ones have no line."""
    command = ["dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n", *pins.APT_PACKAGES]
    # It fails when any package is unknown, yet prints the others: the exit status says nothing here.
    return subprocess.run(command, capture_output=True, text=True).stdout


def packages_done() -> str | None:
    """For a step: the packages are there."""
    return None if missing_packages(installed_packages()) else ", ".join(pins.APT_PACKAGES)


def install_packages(context: Context) -> str:
    """Installs what is missing of our Debian packages."""
    missing = missing_packages(installed_packages())
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    context.run("apt-get", "update", "-q", env=quiet)
    context.run("apt-get", "install", "-y", "-q", "--no-install-recommends", *missing, env=quiet)
    if not shutil.which("docker"):
        # A package of its own since Debian trixie, and only recommended.
        context.run("apt-get", "install", "-y", "-q", "--no-install-recommends", "docker-cli", env=quiet)
    return ", ".join(missing)


def engine_done() -> str | None:
    """For a step: an engine answers."""
    found = version()
    return f"Docker {found}" if found else None


def start(context: Context) -> str:
    """Starts Docker: by systemd where that runs, else dockerd itself with its state under our cache."""
    if Path("/run/systemd/system").exists() and not state_dir().exists():
        context.run("systemctl", "start", "docker")
        _await_answer(30)
    else:
        _launch(context)
    return f"Docker {version()}"


def revive() -> bool:
    """Starts our engine again if an earlier session left one behind; whether one answers then."""
    if os.geteuid() != 0 or not (state_dir() / "data").exists() or not shutil.which("dockerd"):
        return False
    context = Context(cache_dir() / "logs" / "docker-engine.log")
    _launch(context)
    return True


def _launch(context: Context) -> None:
    dockerd = shutil.which("dockerd") or "/usr/sbin/dockerd"
    state = state_dir()
    state.mkdir(parents=True, exist_ok=True)
    _forget_dead(state)
    command = [dockerd, "--data-root", str(state / "data"), "--exec-root", str(state / "run")]
    command += ["--pidfile", str(state / "pid")]
    if lacks_sys_resource(bounding_set(Path("/proc/self/status").read_text())):
        # Root in a sandbox: a privileged container asks for every capability and would be refused.
        runtime = state / "runc-bounded"
        shutil.copy2(HACK / "runc-bounded", runtime)
        command += ["--add-runtime", f"bounded={runtime}", "--default-runtime", "bounded"]
    context.say(" ".join(command))
    with (state / "log").open("wb") as log:
        # A session of its own: it outlives this command.
        daemon = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd="/"
        )
    _await_answer(40, daemon)


def _await_answer(seconds: float, daemon: subprocess.Popen[bytes] | None = None) -> None:
    end = time.monotonic() + seconds
    while not answers():
        if time.monotonic() > end or (daemon and daemon.poll() is not None):
            raise UserError(f"the Docker engine did not start; the end of its log:\n{tail(state_dir() / 'log')}")
        time.sleep(0.3)


def _forget_dead(state: Path) -> None:
    """Removes pid files whose process is gone, or is now some other program: the daemons believe them otherwise."""
    for file, program in ((state / "pid", "dockerd"), (state / "run" / "containerd" / "containerd.pid", "containerd")):
        if not file.exists():
            continue
        pid = file.read_text().strip()
        comm = Path("/proc") / pid / "comm"
        alive = pid.isdigit() and comm.exists() and comm.read_text().strip() == program
        if not alive:
            file.unlink()


def stop() -> bool:
    """Ends the engine that we started, if it runs; whether there was one."""
    file = state_dir() / "pid"
    if not file.exists():
        return False
    pid = file.read_text().strip()
    comm = Path("/proc") / pid / "comm"
    if not (pid.isdigit() and comm.exists() and comm.read_text().strip() == "dockerd"):
        return False
    os.kill(int(pid), 15)
    end = time.monotonic() + 30
    while comm.exists() and time.monotonic() < end:
        time.sleep(0.2)
    return True
