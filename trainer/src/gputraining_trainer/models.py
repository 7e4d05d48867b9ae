"""The model zoo: a small CNN, and torchvision's ResNets with a stem that fits small images."""

from __future__ import annotations

from typing import Final

import torch
from torch import nn

SMALL_IMAGE: Final = 64
"""Images of up to so many pixels would be nearly gone after the usual stem of a ResNet."""


class SmallCNN(nn.Module):
    """Four convolutions with batch norm, adaptive pooling, three fully connected layers.

    Takes images [N, channels, H, W] of any size from 4 × 4, gives logits [N, classes].
    """

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *_convolution(channels, 32),
            *_convolution(32, 64),
            nn.MaxPool2d(2),
            *_convolution(64, 128),
            *_convolution(128, 128),
            nn.MaxPool2d(2),
            nn.AdaptiveAvgPool2d(2),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Linear(128 * 2 * 2, 256),
            nn.ReLU(inplace=True),
            nn.Dropout(0.2),
            nn.Linear(256, 128),
            nn.ReLU(inplace=True),
            nn.Linear(128, classes),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.classifier(self.features(images))
        return logits


def make_model(name: str, channels: int, classes: int, image_size: int) -> nn.Module:
    """A freshly initialised model for images [N, channels, image_size, image_size]."""
    if name == "smallcnn":
        return SmallCNN(channels, classes)
    from torchvision import models  # slow to import, so only where it is needed

    model: nn.Module = {"resnet18": models.resnet18, "resnet34": models.resnet34, "resnet50": models.resnet50}[name](
        weights=None, num_classes=classes
    )
    if image_size <= SMALL_IMAGE:
        model.conv1 = nn.Conv2d(channels, 64, kernel_size=3, stride=1, padding=1, bias=False)
        model.maxpool = nn.Identity()
    elif channels != 3:
        model.conv1 = nn.Conv2d(channels, 64, kernel_size=7, stride=2, padding=3, bias=False)
    return model


def _convolution(channels_in: int, channels_out: int) -> tuple[nn.Module, ...]:
    return (
        nn.Conv2d(channels_in, channels_out, kernel_size=3, padding=1, bias=False),
        nn.BatchNorm2d(channels_out),
        nn.ReLU(inplace=True),
    )
