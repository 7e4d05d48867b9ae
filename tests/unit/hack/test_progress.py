"""What a training's status is shown as."""

from typing import Any

import pytest

from hack.progress import View, claim_of, closing, view, worth_a_line

RUNNING: dict[str, Any] = {
    "phase": "Running",
    "progress": {
        "percent": 43, "epoch": 13, "totalEpochs": 30, "samplesPerSecond": "2310", "estimatedRemainingSeconds": 370,
        "metrics": [{"name": "loss", "value": "0.412"}, {"name": "accuracy", "value": "0.871"}],
    },
}  # fmt: skip


def test_a_new_training_has_no_status_yet() -> None:
    assert view({}) == View("Pending", 0, "waiting for the operator")


def test_a_waiting_training_shows_why() -> None:
    status = {"phase": "Pending", "message": "waiting for GPUs", "progress": {"percent": 0}}
    assert view({"status": status}) == View("Pending", 0, "waiting for GPUs")


def test_a_running_training_shows_its_figures() -> None:
    text = "epoch 13/30  loss 0.412  accuracy 0.871  2,310 samples/s  6 min 10 s left"
    assert view({"status": RUNNING}) == View("Running", 43, text)


@pytest.mark.parametrize(
    ("phase", "over"), [("Pending", False), ("Running", False), ("Complete", True), ("Failed", True)]
)
def test_when_it_is_over(phase: str, over: bool) -> None:
    assert View(phase, 0, "").over is over


def test_the_closing_line() -> None:
    status = RUNNING | {
        "phase": "Complete", "startTime": "2026-11-21T10:00:04Z", "completionTime": "2026-11-21T10:00:52Z",
        "outputPath": "digits-out:/trained-model.pth",
    }  # fmt: skip
    assert closing(status) == "in 48 s, accuracy 0.871, model in volume digits-out:/trained-model.pth"
    assert closing({}) == ""


def test_a_log_gets_few_lines() -> None:
    def pending(text: str) -> View:
        return View("Pending", 0, text)

    assert worth_a_line(None, pending("x"))
    assert not worth_a_line(pending("pulling (4s)"), pending("pulling (1m20s)"))
    assert worth_a_line(pending("pulling (4s)"), pending("connecting"))
    assert not worth_a_line(View("Running", 41, "a"), View("Running", 49, "b"))
    assert worth_a_line(View("Running", 49, "a"), View("Running", 50, "b"))
    assert worth_a_line(View("Running", 100, "a"), View("Complete", 100, "a"))


def test_the_claim_in_an_output_path() -> None:
    assert claim_of("digits-out:/trained-model.pth") == ("digits-out", "trained-model.pth")
    assert claim_of("/output/trained-model.pth") is None
    assert claim_of("") is None
