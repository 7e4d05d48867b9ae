"""The batches of a rank: whose samples, in which order, how changed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image

from gputraining_trainer.config import Process, TrainingConfig
from gputraining_trainer.data import sets
from gputraining_trainer.data.batches import Batches, draw_offsets, draw_turned, make_batches, mirrored, shifted
from gputraining_trainer.data.sets import Dataset, TensorSplit
from tests.unit.trainer.formats import write_imagefolder

CPU = torch.device("cpu")


def numbered(train: int, test: int) -> Dataset:
    """Images of one pixel, with their own number as label."""

    def split(count: int) -> TensorSplit:
        return TensorSplit(torch.arange(count, dtype=torch.uint8).view(-1, 1, 1, 1), torch.arange(count))

    return Dataset("numbered", 10, 1, 1, split(train), split(test), mean=(0.0,), std=(1.0,), scale=1.0)


def ranks(dataset: Dataset, world: int, batch_size: int, seed: int = 0) -> list[Batches]:
    config = TrainingConfig(batch_size=batch_size, seed=seed)
    return [make_batches(dataset, config, Process(rank=rank, world_size=world), CPU) for rank in range(world)]


def order(batches: Batches, epoch: int) -> list[int]:
    return [int(label) for _, labels in batches.train(epoch) for label in labels]


def test_an_epoch_gives_each_sample_to_one_rank_and_another_order_each_time() -> None:
    both = ranks(numbered(64, 8), world=2, batch_size=8)
    first, second = ([order(batches, epoch) for batches in both] for epoch in (1, 2))
    assert sorted(first[0] + first[1]) == list(range(64))
    assert sorted(second[0] + second[1]) == list(range(64))
    assert first[0] != second[0]
    assert [order(batches, 1) for batches in ranks(numbered(64, 8), world=2, batch_size=8)] == first
    assert order(ranks(numbered(64, 8), world=2, batch_size=8, seed=5)[0], 1) != first[0]


def test_images_stay_with_their_labels() -> None:
    for images, labels in ranks(numbered(30, 4), world=1, batch_size=7)[0].train(1):
        assert images.flatten().tolist() == labels.tolist()
        assert images.dtype == torch.float32


@pytest.mark.parametrize(
    ("samples", "world", "size", "expected"), [(64, 2, 10, [10] * 3), (5, 1, 64, [5]), (7, 2, 4, [3])]
)
def test_all_steps_are_equally_large_on_all_ranks(samples: int, world: int, size: int, expected: list[int]) -> None:
    for batches in ranks(numbered(samples, 4), world, size):
        assert [len(labels) for _, labels in batches.train(1)] == expected
        assert (batches.order.steps_left(), batches.order.step_samples) == (len(expected), expected[0])


@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_the_test_set_is_shared_without_double_count(world: int) -> None:
    seen = [int(n) for batches in ranks(numbered(10, 7), world, 4) for _, labels in batches.test() for n in labels]
    assert sorted(seen) == list(range(7))


def test_fewer_samples_than_processes_cannot_be_shared() -> None:
    with pytest.raises(ValueError, match=r"^3 training samples for 4 processes; fix: fewer workers"):
        make_batches(numbered(3, 3), TrainingConfig(), Process(world_size=4), CPU)


def test_normalisation() -> None:
    images = torch.full((2, 3, 4, 4), 51, dtype=torch.uint8)
    split = TensorSplit(images, torch.zeros(2, dtype=torch.int64))
    dataset = Dataset("flat", 10, 3, 4, split, split, mean=(0.2, 0.1, 0.0), std=(0.5, 0.1, 0.2))
    batch, _ = next(make_batches(dataset, TrainingConfig(), Process(), CPU).test())
    assert torch.allclose(batch[0, :, 0, 0], torch.tensor([0.0, 1.0, 1.0]), atol=1e-6)
    assert batch.is_contiguous(memory_format=torch.channels_last)


def test_shifts_move_whole_images_and_reach_every_offset() -> None:
    image = torch.zeros(1, 1, 5, 5, dtype=torch.uint8)
    image[0, 0, 2, 2] = 9
    moved = shifted(image.expand(500, 1, 5, 5), 1, draw_offsets(500, 1, torch.Generator().manual_seed(0)))
    assert moved.flatten(1).sum(dim=1).tolist() == [9] * 500
    places = {tuple(place) for place in moved.nonzero()[:, 2:].tolist()}
    assert places == {(row, column) for row in (1, 2, 3) for column in (1, 2, 3)}


def test_mirroring_turns_about_half() -> None:
    image = torch.tensor([[[[1, 2, 3]]]], dtype=torch.uint8).expand(1000, 1, 1, 3)
    turned = int((mirrored(image, draw_turned(1000, torch.Generator().manual_seed(0)))[:, 0, 0, 0] == 3).sum())
    assert 400 < turned < 600


def test_augmentation_repeats_with_the_epoch_and_differs_between_ranks() -> None:
    digits = sets.load(TrainingConfig())
    one = ranks(digits, world=2, batch_size=16)[0]
    first, again, later = (next(iter(one.train(epoch)))[0] for epoch in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, later)


@pytest.mark.parametrize("workers", [0, 1])
def test_pictures_come_through_a_loader(tmp_path: Path, workers: int) -> None:
    write_imagefolder(tmp_path)
    config = TrainingConfig(dataset="imagefolder", dataset_path=tmp_path, batch_size=4, data_loader_workers=workers)
    pictures = sets.load(config)
    both = [make_batches(pictures, config, Process(rank=rank, world_size=2), CPU) for rank in range(2)]
    for batches in both[: 2 - workers]:  # a worker process takes seconds to start
        for epoch in (1, 2):
            shapes = [tuple(images.shape) for images, _ in batches.train(epoch)]
            assert shapes == [(4, 3, 224, 224)] * batches.order.steps_left() == [(4, 3, 224, 224)]
    labels = [label for batches in both[: 2 - workers] for _, share in batches.test() for label in share.tolist()]
    assert sorted(labels) == [0, 0, 1, 1][:: 1 + workers]


def test_a_loader_leaves_the_models_randomness_alone(tmp_path: Path) -> None:
    write_imagefolder(tmp_path)
    config = TrainingConfig(dataset="imagefolder", dataset_path=tmp_path, batch_size=4)
    batches = make_batches(sets.load(config), config, Process(), CPU)
    torch.manual_seed(5)
    untouched = torch.rand(3)
    torch.manual_seed(5)
    next(iter(batches.train(1)))
    assert torch.equal(torch.rand(3), untouched)


def test_a_pictures_random_changes_depend_on_seed_epoch_and_sample_alone(tmp_path: Path) -> None:
    write_imagefolder(tmp_path)
    for path in tmp_path.glob("*/*/*.png"):
        Image.linear_gradient("L").save(path)  # each part of it looks different

    def pictures(world: int, epoch: int, size: int) -> dict[int, torch.Tensor]:
        config = TrainingConfig(dataset="imagefolder", dataset_path=tmp_path, batch_size=size)
        loaded = sets.load(config)
        loaded.train.samples[:] = [(path, number) for number, (path, _) in enumerate(loaded.train.samples)]
        shares = [make_batches(loaded, config, Process(rank=rank, world_size=world), CPU) for rank in range(world)]
        return {
            int(label): image
            for batches in shares
            for images, labels in batches.train(epoch)
            for image, label in zip(images, labels, strict=True)
        }

    alone, shared, cut = pictures(1, 1, 12), pictures(2, 1, 6), pictures(1, 1, 5)
    assert len(alone) == len(shared) == 12
    assert all(torch.equal(alone[name], shared[name]) for name in alone)
    assert all(torch.equal(alone[name], cut[name]) for name in cut)
    other = pictures(1, 2, 12)
    assert not all(torch.equal(alone[name], other[name]) for name in alone)


def test_the_way_a_step_is_cut_changes_none_of_its_images() -> None:
    digits = sets.load(TrainingConfig())
    whole, cut = (
        make_batches(digits, TrainingConfig(batch_size=size, gradient_accumulation_steps=parts), Process(), CPU)
        for size, parts in ((64, 1), (16, 4))
    )
    assert (whole.parts, cut.parts) == (1, 4)
    assert whole.order.steps_left() == cut.order.steps_left()
    left, right = (torch.cat([images for images, _ in batches.train(3)]) for batches in (whole, cut))
    assert torch.equal(left, right)
