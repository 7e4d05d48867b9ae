"""The training loop, in one process."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from gputraining_trainer.config import ConfigError, Process, TrainingConfig
from gputraining_trainer.data import sets
from gputraining_trainer.data.batches import Batch, TensorBatches, make_batches
from gputraining_trainer.data.order import Order
from gputraining_trainer.failures import NonFiniteLossError
from gputraining_trainer.loop import accumulate_gradients, cosine, curve_share, evaluate, settle, train
from gputraining_trainer.meter import LocalTime
from gputraining_trainer.models import make_model
from gputraining_trainer.parallel import Group
from gputraining_trainer.precision import _automatic, choose_precision
from gputraining_trainer.report import Report, State
from gputraining_trainer.state import Position

CPU = torch.device("cpu")
ALONE = Group(Process(), CPU)
FP32 = choose_precision("FP32", CPU)


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)).double()


def double_batches(size: int) -> list[Batch]:
    random = torch.Generator().manual_seed(1)
    images = torch.randn(32, 1, 8, 8, generator=random, dtype=torch.float64)
    labels = torch.randint(10, (32,), generator=random)
    return list(zip(images.split(size), labels.split(size), strict=True))  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("size", [8, 12])
def test_several_batches_give_the_gradients_of_one_of_thirty_two(size: int) -> None:
    one, four = linear(), linear()
    scaler, local_time = FP32.make_scaler(), LocalTime(CPU)
    loss_one = accumulate_gradients(one, iter(double_batches(32)), 1, 32, FP32, scaler, local_time)
    loss_four = accumulate_gradients(
        four, iter(double_batches(size)), 32 // size + (32 % size > 0), 32, FP32, scaler, local_time
    )
    assert torch.allclose(loss_one, loss_four, rtol=1e-12)
    for left, right in zip(one.parameters(), four.parameters(), strict=True):
        assert left.grad is not None
        assert right.grad is not None
        assert torch.allclose(left.grad, right.grad, rtol=1e-9, atol=1e-12)


def test_learning_rate_falls_from_the_base_along_half_a_cosine() -> None:
    start = Position(total_steps=100)
    rates = [cosine(0.1, curve_share(start, step)) for step in range(100)]
    assert rates[0] == 0.1
    assert rates[50] == pytest.approx(0.05)
    assert 0 < rates[99] < 0.0001
    assert rates == sorted(rates, reverse=True)


def run(
    config: TrainingConfig, report: Report | None = None, model: nn.Module | None = None, report_interval: float = 0.0
) -> tuple[nn.Module, float, Report]:
    report = report or Report()
    torch.manual_seed(config.seed)
    dataset = sets.load(config)
    small = replace(
        dataset,
        train=sets.TensorSplit(dataset.train.images[:320], dataset.train.labels[:320]),
        test=sets.TensorSplit(dataset.test.images[:100], dataset.test.labels[:100]),
    )
    model = ALONE.distribute(model or make_model(config.model, small.channels, small.classes, small.image_size))
    batches = make_batches(small, config, Process(), CPU)
    precision = choose_precision(config.precision, CPU)
    result = train(model, batches, config, precision, ALONE, report, report_interval)
    return model, result.accuracy, report


def test_a_training_learns_and_reports_on_the_way() -> None:
    class Recorder(Report):
        steps: list[int]

        def update(self, **changes: object) -> None:
            super().update(**changes)  # type: ignore[arg-type]
            self.steps.append(self.progress.step or 0)

    report = Recorder()
    report.steps = []
    config = TrainingConfig(epochs=6, batch_size=32, learning_rate=0.003, gradient_accumulation_steps=3)
    _, accuracy, _ = run(config, report)
    progress = report.progress
    assert accuracy > 0.7
    assert (progress.epoch, progress.total_epochs, progress.step, progress.total_steps) == (6, 6, 18, 18)
    assert report.steps == sorted(report.steps)
    assert set(range(19)) == set(report.steps)
    assert progress.state is State.EVALUATING
    assert progress.remaining_seconds == 0
    assert progress.samples_per_second is not None
    assert progress.samples_per_second > 0
    assert sorted(progress.metrics) == ["accuracy", "learningRate", "loss", "testLoss"]
    assert progress.metrics["accuracy"] == accuracy


def test_half_the_batch_with_twice_the_accumulation_is_the_same_training() -> None:
    curves = []
    for size, parts in ((40, 1), (20, 2), (10, 4)):

        class Recorder(Report):
            losses: list[float]

            def update(self, **changes: Any) -> None:
                super().update(**changes)
                if "learningRate" in (changes.get("metrics") or {}):
                    self.losses.append(self.progress.metrics["loss"])

        report = Recorder()
        report.losses = []
        config = TrainingConfig(epochs=3, batch_size=size, gradient_accumulation_steps=parts)
        run(config, report, linear().float())
        assert report.progress.total_steps == 24
        curves.append(report.losses)
    assert curves[0] == pytest.approx(curves[1], rel=1e-4)
    assert curves[0] == pytest.approx(curves[2], rel=1e-4)


def test_other_steps_than_planned_let_the_learning_rate_go_on_from_where_it_was() -> None:
    one, two = (Order(samples=80, seed=0, rank=0, world_size=world, wanted_step_samples=10) for world in (1, 2))
    fresh = settle(Position(), one, epochs=5)
    assert (fresh.total_steps, fresh.rate_step, fresh.rate_share) == (40, 0, 0.0)
    stopped = replace(fresh, step=20, epoch=3, consumed=40, epoch_steps=4)
    assert settle(stopped, one, epochs=5) == stopped
    resumed = settle(stopped, two, epochs=5)
    assert (resumed.total_steps, resumed.rate_step) == (20 + 2 + 2 * 4, 20)
    assert curve_share(resumed, 20) == pytest.approx(curve_share(fresh, 20)) == 0.5
    assert curve_share(resumed, 29) < 1 == pytest.approx(curve_share(resumed, 30))
    again = replace(resumed, step=26, epoch=5, consumed=0, epoch_steps=0)
    assert settle(again, two, epochs=5) == again


def test_the_step_at_which_the_loss_went_is_named_however_seldom_reports_are() -> None:
    steps = []
    for interval in (0.0, 1000.0):
        report = Report()
        with pytest.raises(NonFiniteLossError, match=r"^rank 0: the loss is (nan|inf) at step \d+ of \d+; fix: "):
            run(TrainingConfig(epochs=50, batch_size=32, learning_rate=1e8), report, report_interval=interval)
        steps.append(report.progress.step)
    assert steps[0] == steps[1]


def test_the_same_seed_gives_the_same_weights() -> None:
    config = TrainingConfig(epochs=1, batch_size=64, seed=3)
    (one, *_), (two, *_), (other, *_) = run(config), run(config), run(replace(config, seed=4))
    first, second, third = (model.state_dict() for model in (one, two, other))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not all(torch.equal(first[name], third[name]) for name in first)


@pytest.mark.parametrize("precision", ["FP16", "BF16"])
def test_low_precision_learns_too(precision: str) -> None:
    _, accuracy, _ = run(TrainingConfig(epochs=3, batch_size=32, learning_rate=0.003, precision=precision))
    assert accuracy > 0.3  # chance is 0.1


def test_precision_follows_the_device() -> None:
    assert [_automatic(capability) for capability in (None, (6, 1), (7, 0), (7, 5), (8, 0), (9, 0))] == [
        *("FP32", "FP32", "FP16", "FP16", "BF16", "BF16")
    ]
    assert choose_precision("Auto", CPU).name == "FP32"
    assert choose_precision("FP16", CPU).make_scaler().is_enabled()
    assert not choose_precision("BF16", CPU).make_scaler().is_enabled()


def test_bf16_is_refused_where_the_gpu_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    with pytest.raises(
        ConfigError, match=r"^training.precision \(MIXED_PRECISION\): got 'BF16', .*Tesla T4 has no bf16; fix: "
    ):
        choose_precision("BF16", torch.device("cuda", 0))
    assert choose_precision("Auto", torch.device("cuda", 0)).name == "FP16"


def test_a_loss_that_is_no_number_ends_the_training() -> None:
    report = Report()
    with pytest.raises(NonFiniteLossError, match=r"^rank 0: the loss is (nan|inf) at step \d+ of \d+; fix: "):
        run(TrainingConfig(epochs=50, batch_size=32, learning_rate=1e8), report)
    assert not math.isfinite(report.progress.metrics["loss"])
    assert report.record()["metrics"]["loss"] in {"NaN", "Infinity"}


def test_evaluation_is_the_mean_over_samples_not_over_batches() -> None:
    class Shares(TensorBatches):
        def __init__(self) -> None:  # only its test set is used
            pass

        def test(self) -> Iterator[Batch]:
            yield torch.tensor([[9.0, 0.0], [9.0, 0.0], [9.0, 0.0]]), torch.tensor([0, 0, 0])
            yield torch.tensor([[9.0, 0.0]]), torch.tensor([1])

    loss, accuracy = evaluate(nn.Identity(), Shares(), FP32, ALONE)
    assert accuracy == 0.75
    assert loss == pytest.approx((4 * math.log1p(math.exp(-9)) + 9) / 4, rel=1e-4)
