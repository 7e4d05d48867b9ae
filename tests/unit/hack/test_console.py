"""Lines of progress."""

from pathlib import Path

import pytest

from hack.console import Display, failure_text, finished_line, seconds_text, started_line, time_rows
from hack.shell import CommandError
from hack.steps import Outcome, Step, StepFailedError

CLUSTER = Step("cluster", "creates it", lambda _: "", usual=25, advice="try again.")


@pytest.mark.parametrize(("seconds", "text"), [(0.04, "0.0 s"), (9.94, "9.9 s"), (9.96, "10 s"), (59.6, "1 min 00 s"),
                                               (456, "7 min 36 s")])  # fmt: skip
def test_times_are_short(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


def test_a_finished_step_is_one_line_with_its_time_at_the_end() -> None:
    line = finished_line("cluster", "kind gputraining-demo, 3 nodes", 23.2)
    assert line.startswith("✔ cluster ")
    assert line.endswith("23 s")
    assert finished_line("removed", "digits", None).endswith("digits")


def test_a_started_step_says_how_long_it_usually_takes() -> None:
    assert started_line(CLUSTER).endswith("creates it (usually 25 s)")


def test_the_longest_step_comes_first_and_the_quick_are_left_out() -> None:
    outcomes = [Outcome(Step(str(s), "", lambda _: ""), "", s, True) for s in (3, 0.1, 70)]
    assert time_rows(outcomes) == [("70", "1 min 10 s"), ("3", "3.0 s")]


def test_a_failure_shows_the_log_and_what_to_do(tmp_path: Path) -> None:
    log = tmp_path / "cluster.log"
    log.write_text("".join(f"line {i}\n" for i in range(1000)))
    text = failure_text(StepFailedError(CLUSTER, CommandError("kind create", 1, ""), log))
    assert "line 999" in text
    assert "line 1\n" not in text
    assert "What to do: try again." in text
    assert str(log) in text


def test_what_was_there_already_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with Display() as display:
        for name in ("go", "tools"):
            display.ended(Outcome(Step(name, "", lambda _: ""), "x", 0.1, False))
        display.ended(Outcome(CLUSTER, "3 nodes", 23, True))
        display.summary()
        display.summary()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines] == ["cluster", "there"]
    assert lines[1].endswith("2 steps had nothing to do")
