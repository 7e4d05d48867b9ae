"""The operator's and the trainer's images: dependencies from uv.lock, then code, tagged by what went in."""

import os
import platform
import shutil
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from hack import dockerimages, pins
from hack.facts import Way
from hack.paths import REPO, cache_dir, digest, digest_files, files_under, uv
from hack.shell import Context, UserError, output

IMAGES = REPO / "images"
CPU_BASE_DOCKERFILE = IMAGES / "cpu-base" / "Dockerfile"
PYTHON_BASE_DOCKERFILE = IMAGES / "python-base" / "Dockerfile"

# What the base image of each distribution brings itself.
_OF_THE_BASE = {"gputraining-operator": (), "gputraining-trainer": ("torch", "torchvision")}
# manylinux tags that glibc 2.36 (Debian bookworm) and newer run.
_GLIBC = (17, 28, 31, 34, 35, 36)


@dataclass(frozen=True)
class Images:
    """References of the images of one state of the sources."""

    operator: str
    trainer: str


@cache
def requirements(package: str) -> str:
    """The locked third-party requirements of a workspace member, with hashes. Raises UserError."""
    prune = [word for name in _OF_THE_BASE[package] for word in ("--prune", name)]
    text = output(
        uv(), "export", "--frozen", "--quiet", "--project", REPO, "--package", package, "--no-dev",
        "--no-emit-workspace", "--no-header", "--no-annotate", *prune,
    )  # fmt: skip
    if text is None:
        raise UserError(f"uv could not export the requirements of {package}: run `uv lock` and look at its message")
    return text


def wheels_dir(package: str) -> Path:
    """Folder of a package's downloaded requirements."""
    key = digest(requirements(package), pins.IMAGE_PYTHON, platform.machine(), pins.PIP_PACKAGE)
    return cache_dir() / "wheels" / f"{package}-{key}"


def wheels_done(package: str) -> str | None:
    """For a step: the wheels are there."""
    folder = wheels_dir(package)
    return f"{len(list(folder.glob('*.whl')))} wheels" if (folder / "requirements.txt").exists() else None


def download_wheels(context: Context, package: str) -> str:
    """Downloads the wheels of a package's requirements for the images' Python, checked against the lock's hashes.

    On the host, not in the image: `docker build` needs no network then, and none of the host's certificates.
    """
    target = wheels_dir(package)
    shutil.rmtree(target, ignore_errors=True)
    with dockerimages.scratch() as folder:
        (folder / "all.txt").write_text(requirements(package))
        chosen = folder / "wheels" / "requirements.txt"
        chosen.parent.mkdir()
        # pip would judge environment markers by the host's Python; uv judges them by the image's.
        context.run(
            uv(), "pip", "compile", "--quiet", "--no-deps", "--generate-hashes", "--no-header", "--no-annotate",
            "--python-version", pins.IMAGE_PYTHON, "--python-platform", f"{platform.machine()}-manylinux_2_36",
            folder / "all.txt", "-o", chosen,
        )  # fmt: skip
        platforms = [w for minor in _GLIBC for w in ("--platform", f"manylinux_2_{minor}_{platform.machine()}")]
        platforms += ["--platform", f"manylinux2014_{platform.machine()}"]
        context.run(
            uv(), "tool", "run", pins.PIP_PACKAGE.replace("==", "@"), "download", "--quiet", "--no-deps",
            "--require-hashes", "--only-binary=:all:", "--disable-pip-version-check", "--python-version",
            pins.IMAGE_PYTHON, "--implementation", "cp", *platforms, "--dest", chosen.parent, "-r", chosen,
        )  # fmt: skip
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(chosen.parent, target)
    return f"{len(list(target.glob('*.whl')))} wheels of {package}"


def cpu_base() -> str:
    """Tag of the CPU PyTorch base."""
    return dockerimages.name_of("cpu-base", digest(CPU_BASE_DOCKERFILE.read_bytes(), pins.DEBIAN_IMAGE))


def python_base(way: Way) -> str:
    """What the operator's image stands on."""
    if way is Way.BUILT:
        return dockerimages.name_of("python-base", digest(PYTHON_BASE_DOCKERFILE.read_bytes(), pins.DEBIAN_IMAGE))
    return pins.OPERATOR_BASE_IMAGE


def build_debian_based(context: Context, reference: str, dockerfile: Path) -> str:
    """Builds an image that is Debian with some of its packages."""
    with dockerimages.scratch() as folder:
        arguments = {"BASE_IMAGE": pins.DEBIAN_IMAGE}
        return dockerimages.build(context, reference, folder, dockerfile, arguments, network=True)


def trainer_base(way: Way) -> str | None:
    """What the trainer's image stands on; None for the Dockerfile's own default, PyTorch with CUDA."""
    chosen = os.environ.get("TRAINER_BASE_IMAGE")
    return chosen or (None if way is Way.EXISTING else cpu_base())


def _tag(name: str, base: str | None) -> str:
    files = files_under(REPO / name / "src", IMAGES / name)
    return digest_files(files, REPO, requirements(f"gputraining-{name}"), base or "")


def current(way: Way) -> Images | None:
    """The images that belong to the sources as they are now.

    For a cluster of the user's own they go to the registry IMAGE_REGISTRY (an address with a path, no tag); without
    one there is nowhere to put them: None, and the chart's released images are used.
    """
    prefix = os.environ.get("IMAGE_REGISTRY", "").rstrip("/") if way is Way.EXISTING else pins.IMAGE_PREFIX
    if not prefix:
        return None
    return Images(
        f"{prefix}/operator:{_tag('operator', python_base(way))}",
        f"{prefix}/trainer:{_tag('trainer', trainer_base(way))}",
    )


def build(context: Context, name: str, way: Way, reference: str) -> str:
    """Builds the image "operator" or "trainer" from a context of requirements.txt, wheels/ and src/."""
    package = f"gputraining-{name}"
    base = python_base(way) if name == "operator" else trainer_base(way)
    with dockerimages.scratch() as folder:
        shutil.copytree(wheels_dir(package), folder / "wheels", copy_function=_link, ignore=_no_requirements)
        shutil.copy2(wheels_dir(package) / "requirements.txt", folder)
        shutil.copytree(REPO / name / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
        for file in files_under(IMAGES / name):
            if file.name != "Dockerfile":
                shutil.copy2(file, folder)
        _settle(folder)
        arguments = {"BASE_IMAGE": base} if base else {}
        return dockerimages.build(context, reference, folder, IMAGES / name / "Dockerfile", arguments)


def push(context: Context, reference: str) -> str:
    """Pushes an image to its registry."""
    context.run("docker", "push", reference)
    return reference


def _link(source: str, target: str) -> None:
    dockerimages.link(Path(source), Path(target))


def _no_requirements(_: str, names: list[str]) -> list[str]:
    return [name for name in names if name == "requirements.txt"]


def _settle(folder: Path) -> None:
    """Modes that do not depend on this machine's umask: part of a layer's identity."""
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
