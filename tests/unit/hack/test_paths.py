"""Keys of the cache: what changes them and what does not."""

from pathlib import Path

import pytest

from hack.paths import cache_dir, digest, digest_files, files_under


def test_boundaries_between_parts_count() -> None:
    assert digest("ab", "c") != digest("a", "bc")
    assert digest("a", "b") == digest("a", b"b")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "src" / "__pycache__").mkdir(parents=True)
    (tmp_path / "src" / "a.py").write_text("a")
    (tmp_path / "src" / "b.py").write_text("b")
    return tmp_path


def key(tree: Path) -> str:
    return digest_files(files_under(tree / "src"), tree)


def test_content_name_and_mode_of_files_count(tree: Path) -> None:
    keys = {key(tree)}
    (tree / "src" / "a.py").write_text("A")
    keys.add(key(tree))
    (tree / "src" / "a.py").rename(tree / "src" / "c.py")
    keys.add(key(tree))
    (tree / "src" / "c.py").chmod(0o755)
    keys.add(key(tree))
    assert len(keys) == 4


def test_what_python_leaves_behind_and_dates_do_not_count(tree: Path) -> None:
    before = key(tree)
    (tree / "src" / "__pycache__" / "a.pyc").write_text("x")
    (tree / "src" / "a.py").write_text("a")
    assert key(tree) == before


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("GPUTRAINING_CACHE", raising=False)
    assert cache_dir() == tmp_path / "gputraining"
    monkeypatch.setenv("GPUTRAINING_CACHE", str(tmp_path / "own"))
    assert cache_dir() == tmp_path / "own"
