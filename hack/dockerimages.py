"""Docker images: built from a folder put together for the purpose, tagged by a hash of what they are made of."""

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from hack import pins
from hack.paths import cache_dir
from hack.shell import Context, output


def exists(reference: str) -> bool:
    """Whether the engine has the image."""
    return output("docker", "image", "inspect", "-f", "{{.Id}}", reference, timeout=20) is not None


def done(reference: str) -> str | None:
    """For a step: the image is there."""
    return reference if exists(reference) else None


@contextmanager
def scratch() -> Iterator[Path]:
    """A temporary folder on the file system of the cache, so that big files can be linked into it, not copied."""
    parent = cache_dir() / "tmp"
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=parent) as folder:
        yield Path(folder)


def link(source: Path, target: Path) -> None:
    """Hard-links a file, or copies it where that cannot be."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


@cache
def _builder() -> dict[str, str]:
    """Environment that chooses the classic builder where BuildKit is missing, as in Debian's Docker."""
    return {} if output("docker", "buildx", "version", timeout=20) else {"DOCKER_BUILDKIT": "0"}


def build(
    context: Context,
    reference: str,
    folder: Path,
    dockerfile: Path | str,
    arguments: Mapping[str, str] | None = None,
    network: bool = False,
) -> str:
    """Builds an image from a folder. dockerfile: a path, or the text itself. network: for apt-get, over plain http."""
    file = folder / ".Dockerfile"
    file.write_text(dockerfile if isinstance(dockerfile, str) else dockerfile.read_text())
    options = ["--network", "host" if network else "none"]
    for name, value in (arguments or {}).items():
        options += ["--build-arg", f"{name}={value}"]
    context.run("docker", "build", *options, "-t", reference, "-f", file, folder, env=_builder())
    return reference


def name_of(image: str, tag: str) -> str:
    """Reference of one of our own images."""
    return f"{pins.IMAGE_PREFIX}/{image}:{tag}"


def debootstrap(context: Context, suite: str, reference: str) -> str:
    """A minimal Debian as an image, from packages alone: stands in for debian:<suite>-slim."""
    with scratch() as folder:
        root = folder / "root"
        context.run("debootstrap", "--variant=minbase", "--include=ca-certificates", suite, root)
        for leftover in (root / "var/cache/apt/archives", root / "usr/share/doc", root / "usr/share/man"):
            shutil.rmtree(leftover, ignore_errors=True)
        (root / "var/cache/apt/archives/partial").mkdir(parents=True)
        archive = folder / "root.tar"
        context.run("tar", "-C", root, "-cf", archive, ".")
        context.run("docker", "import", archive, reference)
    return reference
