"""The data sets, from files in their real formats."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gputraining_trainer.config import TrainingConfig
from gputraining_trainer.data import sets
from gputraining_trainer.data.files import find_files
from gputraining_trainer.data.readers import read_cifar10, read_idx, read_idx_pair
from gputraining_trainer.failures import DatasetNotFoundError
from tests.unit.trainer.formats import idx_bytes, write_cifar10, write_imagefolder, write_mnist


def test_digits_are_real_complete_and_split_by_class() -> None:
    digits = sets.load(TrainingConfig(dataset="digits"))
    assert (len(digits.train), len(digits.test)) == (1433, 364)
    assert digits.train.images.shape == (1433, 1, 8, 8)
    # The counts per digit that the source publishes.
    counts = torch.bincount(torch.cat([digits.train.labels, digits.test.labels]))
    assert counts.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert torch.bincount(digits.test.labels).tolist() == [36, 37, 36, 37, 37, 37, 37, 36, 35, 36]
    train = {image.numpy().tobytes() for image in digits.train.images}
    assert not any(image.numpy().tobytes() in train for image in digits.test.images)
    assert digits.train.images.max() == digits.scale
    normalised = (digits.train.images / digits.scale - digits.mean[0]) / digits.std[0]
    assert abs(float(normalised.mean())) < 0.02
    assert abs(float(normalised.std()) - 1) < 0.02


def test_digits_need_no_torchvision() -> None:
    code = (
        "import sys; from gputraining_trainer import run; assert 'torch' not in sys.modules\n"
        "from gputraining_trainer.config import TrainingConfig; from gputraining_trainer.data import sets\n"
        "from gputraining_trainer import models; sets.load(TrainingConfig()); models.make_model('smallcnn', 1, 10, 8)\n"
        "assert 'torchvision' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("layout", ["", "raw", "MNIST/raw"])
@pytest.mark.parametrize("zipped", [False, True])
def test_mnist_as_published_and_as_torchvision_lays_it_out(tmp_path: Path, layout: str, zipped: bool) -> None:
    written = write_mnist(tmp_path / layout, zipped=zipped)
    mnist = sets.load(TrainingConfig(dataset="mnist", dataset_path=tmp_path))
    assert torch.equal(mnist.train.images, written["train-images-idx3-ubyte"].unsqueeze(1))
    assert torch.equal(mnist.train.labels, written["train-labels-idx1-ubyte"].long())
    assert torch.equal(mnist.test.images, written["t10k-images-idx3-ubyte"].unsqueeze(1))
    assert torch.equal(mnist.test.labels, written["t10k-labels-idx1-ubyte"].long())
    assert mnist.image_size == 28


def test_our_reader_agrees_with_torchvisions(tmp_path: Path) -> None:
    from torchvision.datasets import MNIST

    write_mnist(tmp_path / "MNIST" / "raw")
    theirs = MNIST(str(tmp_path), train=True)
    ours = sets.load(TrainingConfig(dataset="mnist", dataset_path=tmp_path)).train
    assert torch.equal(ours.images.squeeze(1), theirs.data)
    assert torch.equal(ours.labels, theirs.targets)


@pytest.mark.parametrize("layout", ["", "cifar-10-batches-py"])
def test_cifar10(tmp_path: Path, layout: str) -> None:
    written = write_cifar10(tmp_path / layout)
    cifar = sets.load(TrainingConfig(dataset="cifar10", dataset_path=tmp_path))
    assert (len(cifar.train), len(cifar.test)) == (20, 4)
    assert torch.equal(cifar.train.images[4].flatten(), torch.from_numpy(written["data_batch_2"][0]))
    assert cifar.test.labels.tolist() == [0, 1, 2, 9]


def test_a_pickle_that_would_run_code_is_refused(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (Path.mkdir, (str(tmp_path / "ran"),))

    path = tmp_path / "data_batch_1"
    path.write_bytes(pickle.dumps({b"data": Evil(), b"labels": []}))
    with pytest.raises(ValueError, match=re.escape(f"{path}: no batch of CIFAR-10 (it names ")):
        read_cifar10([path])
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "no IDX file"),
        (b"<html>not found</html>", "no IDX file"),
        (idx_bytes(torch.zeros(2, 3, dtype=torch.uint8))[:-1], "truncated"),
        (b"\0\0\x08\x03\0", "truncated"),
        (b"\0\0\x0d\x01\0\0\0\0", "no IDX file"),  # floats
    ],
)
def test_damaged_idx_files_are_named(tmp_path: Path, data: bytes, said: str) -> None:
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=rf"^{re.escape(str(path))}: .*{said}"):
        read_idx(path)


def test_images_and_labels_must_belong_together(tmp_path: Path) -> None:
    (tmp_path / "images").write_bytes(idx_bytes(torch.zeros(3, 2, 2, dtype=torch.uint8)))
    (tmp_path / "labels").write_bytes(idx_bytes(torch.zeros(2, dtype=torch.uint8)))
    with pytest.raises(ValueError, match="do not belong together"):
        read_idx_pair(tmp_path / "images", tmp_path / "labels")


def test_a_truncated_cifar10_batch_is_named(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    path = tmp_path / "data_batch_3"
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(ValueError, match="data_batch_3: no batch of CIFAR-10"):
        sets.load(TrainingConfig(dataset="cifar10", dataset_path=tmp_path))


@pytest.mark.parametrize("test_name", ["val", "test"])
def test_imagefolder(tmp_path: Path, test_name: str) -> None:
    write_imagefolder(tmp_path, test_name)
    pictures = sets.load(TrainingConfig(dataset="imagefolder", dataset_path=tmp_path))
    assert (len(pictures.train), len(pictures.test), pictures.classes) == (12, 4, 2)
    image, label = pictures.test[3]
    assert (image.dtype, image.shape, label) == (torch.uint8, (3, 224, 224), 1)


def test_imagefolder_halves_must_have_the_same_classes(tmp_path: Path) -> None:
    write_imagefolder(tmp_path)
    (tmp_path / "val" / "dog").rename(tmp_path / "val" / "wolf")
    with pytest.raises(ValueError, match=r"different classes \(dog, wolf\); fix: the same folders in both"):
        sets.load(TrainingConfig(dataset="imagefolder", dataset_path=tmp_path))


def test_synthetic_is_always_the_same() -> None:
    one, two = (sets.load(TrainingConfig(dataset="synthetic", seed=seed)) for seed in (0, 1))
    assert torch.equal(one.train.images, two.train.images)
    assert torch.equal(one.test.labels, two.test.labels)
    assert one.train.images.shape == (4096, 3, 32, 32)


@pytest.mark.parametrize(
    ("dataset", "looked_for"),
    [
        ("mnist", "train-images-idx3-ubyte"),
        ("cifar10", "data_batch_1..5 and test_batch"),
        ("imagefolder", "train and val (or test)"),
    ],
)
def test_what_is_missing_is_told_with_the_fix(tmp_path: Path, dataset: str, looked_for: str) -> None:
    absent = TrainingConfig(dataset=dataset, dataset_path=tmp_path / "absent")
    with pytest.raises(DatasetNotFoundError, match=f"^{dataset}: {tmp_path}/absent does not exist; fix: "):
        find_files(absent)
    (tmp_path / "file").touch()
    with pytest.raises(DatasetNotFoundError, match="is no folder"):
        find_files(TrainingConfig(dataset=dataset, dataset_path=tmp_path / "file"))
    with pytest.raises(DatasetNotFoundError, match=re.escape(looked_for)) as caught:
        find_files(TrainingConfig(dataset=dataset, dataset_path=tmp_path))
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert find_files(TrainingConfig(dataset="digits")) is None


def test_one_missing_file_of_four_is_missing(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(DatasetNotFoundError):
        find_files(TrainingConfig(dataset="mnist", dataset_path=tmp_path))
