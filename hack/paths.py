"""Where things lie: the repository, the cache and the logs."""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

HACK = Path(__file__).resolve().parent
REPO = HACK.parent
MANIFESTS = HACK / "manifests"
GOMOD = HACK / "gomod"


def cache_dir() -> Path:
    """The folder of everything that is expensive to make; safe to delete while no cluster runs."""
    own = os.environ.get("GPUTRAINING_CACHE")
    if own:
        return Path(own).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser().absolute() / "gputraining"


def uv() -> str:
    """The uv that runs us (it says so in UV), else the one on PATH."""
    return os.environ.get("UV") or "uv"


def logs_dir() -> Path:
    """Folder of the steps' logs, made if absent."""
    path = cache_dir() / "logs"
    path.mkdir(parents=True, exist_ok=True)
    return path


def files_under(*roots: Path) -> list[Path]:
    """All files at and under the roots, sorted, without what Python leaves behind."""
    found: set[Path] = set()
    for root in roots:
        if root.is_file():
            found.add(root)
        else:
            found |= {p for p in root.rglob("*") if p.is_file() and "__pycache__" not in p.parts}
    return sorted(found)


def digest(*parts: str | bytes) -> str:
    """A short stable hash of the parts; their boundaries count, so ("ab", "c") differs from ("a", "bc")."""
    total = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        total.update(len(data).to_bytes(8, "big"))
        total.update(data)
    return total.hexdigest()[:12]


def digest_files(files: Iterable[Path], root: Path, *more: str) -> str:
    """A short hash of the files' relative names, executable bits and contents, and of `more`."""
    parts: list[str | bytes] = list(more)
    for file in sorted(files):
        parts += [file.relative_to(root).as_posix(), "x" if file.stat().st_mode & 0o100 else "-", file.read_bytes()]
    return digest(*parts)
