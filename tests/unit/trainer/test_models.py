"""The model zoo."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gputraining_trainer.config import MODELS
from gputraining_trainer.models import make_model


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("channels", "size"), [(1, 8), (3, 32), (1, 96)])
def test_every_model_takes_every_kind_of_image(name: str, channels: int, size: int) -> None:
    model = make_model(name, channels, classes=7, image_size=size).eval()
    with torch.inference_mode():
        assert model(torch.zeros(2, channels, size, size)).shape == (2, 7)


def test_small_cnn_is_four_convolutions_with_norm_and_three_linear_layers() -> None:
    layers = list(make_model("smallcnn", 3, 10, 32).modules())
    kinds = (nn.Conv2d, nn.BatchNorm2d, nn.AdaptiveAvgPool2d, nn.Linear)
    assert [sum(isinstance(layer, kind) for layer in layers) for kind in kinds] == [4, 4, 1, 3]


def test_small_images_keep_their_size_through_the_stem() -> None:
    small, large = make_model("resnet18", 3, 10, 32), make_model("resnet18", 3, 10, 224)
    assert small.conv1(torch.zeros(1, 3, 32, 32)).shape == (1, 64, 32, 32)  # type: ignore[operator]
    assert isinstance(small.maxpool, nn.Identity)
    assert large.conv1(torch.zeros(1, 3, 224, 224)).shape == (1, 64, 112, 112)  # type: ignore[operator]
    assert isinstance(large.maxpool, nn.MaxPool2d)
