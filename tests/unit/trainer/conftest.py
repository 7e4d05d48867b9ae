"""What the trainer's tests share."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.unit.trainer.launch import TrainerProcess

SCHEMA = Path(__file__).parents[3] / "crds" / "progress.schema.json"
Check = Callable[[Any], None]
Launch = Callable[..., TrainerProcess]


@pytest.fixture(scope="session")
def check_record() -> Check:
    """Asserts that a value is a progress record, by way of JSON as a reader gets it."""
    validator = Draft202012Validator(json.loads(SCHEMA.read_text()), format_checker=Draft202012Validator.FORMAT_CHECKER)

    def check(record: Any) -> None:
        validator.validate(json.loads(json.dumps(record, allow_nan=False)))

    return check


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """Starts trainer processes, each with files of its own under the test's folder; kills what is left at the end."""
    started: list[TrainerProcess] = []

    def start(environment: Mapping[str, str], *, torchrun: int | None = None) -> TrainerProcess:
        started.append(TrainerProcess(tmp_path / f"process-{len(started)}", environment, torchrun))
        return started[-1]

    yield start
    for process in started:
        process.kill()
