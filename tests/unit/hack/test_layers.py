"""Archives that leave out what a node has."""

import hashlib
import io
import json
import tarfile
from pathlib import Path

from hack.layers import thin_archive


def sha(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


BASE, CODE = b"base layer", b"code layer"


def docker_save(path: Path) -> None:
    """An archive as `docker save` writes it, of an image with two layers."""
    config = json.dumps({"rootfs": {"type": "layers", "diff_ids": [sha(BASE), sha(CODE)]}}).encode()
    listing = json.dumps([{"Config": "c.json", "RepoTags": ["x:1"], "Layers": ["1/layer.tar", "2/layer.tar"]}]).encode()
    with tarfile.open(path, "w") as archive:
        for name, data in (
            ("1/layer.tar", BASE),
            ("2/layer.tar", CODE),
            ("c.json", config),
            ("manifest.json", listing),
        ):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


def contents(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as archive:
        return {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]


def test_a_layer_that_is_present_stays_out_but_is_still_named(tmp_path: Path) -> None:
    docker_save(tmp_path / "saved.tar")
    sent = thin_archive(tmp_path / "saved.tar", tmp_path / "thin.tar", "localhost/x:1", {sha(BASE)})
    files = contents(tmp_path / "thin.tar")
    assert sent == 1
    assert f"blobs/{sha(BASE).replace(':', '/')}" not in files
    assert files[f"blobs/{sha(CODE).replace(':', '/')}"] == CODE
    [entry] = json.loads(files["index.json"])["manifests"]
    assert entry["annotations"] == {"io.containerd.image.name": "localhost/x:1"}
    manifest = files[f"blobs/{entry['digest'].replace(':', '/')}"]
    assert sha(manifest) == entry["digest"]
    assert [(layer["digest"], layer["size"]) for layer in json.loads(manifest)["layers"]] == [
        (sha(BASE), len(BASE)),
        (sha(CODE), len(CODE)),
    ]


def test_every_blob_has_the_digest_that_it_is_filed_under(tmp_path: Path) -> None:
    docker_save(tmp_path / "saved.tar")
    assert thin_archive(tmp_path / "saved.tar", tmp_path / "thin.tar", "localhost/x:1", set()) == 2
    blobs = {name: data for name, data in contents(tmp_path / "thin.tar").items() if name.startswith("blobs/")}
    assert len(blobs) == 4
    assert all(name == f"blobs/{sha(data).replace(':', '/')}" for name, data in blobs.items())
