"""Runs the fault matrix on the kind cluster and prints a table; see docs/chaos.md.

python -m tests.chaos [SCENARIO ...] [--list] [--seed N] [--json FILE]
"""

from __future__ import annotations

import argparse
import random
import secrets
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from hack import kindcluster
from tests.chaos.bare import Bare, kill_in_bare_job
from tests.chaos.matrix import SCENARIOS
from tests.chaos.report import summary, table, verdict, write_json
from tests.chaos.runner import run_scenario, undisturbed
from tests.chaos.scenario import AT_MOST_ONE_INTERVAL, Result, Scenario
from tests.contract.kube import KubeApi
from tests.e2e.world import INTERVAL_STEPS

WIDTH_IN_FILES = 120
COMPARED = "kill-rank-1"
"""The scenario that is also carried out on a bare PyTorchJob."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what was asked for; 0 when all verdicts are right."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__.splitlines()[0])
    parser.add_argument("scenario", nargs="*", help="names of scenarios; all when none is given")
    parser.add_argument("--list", action="store_true", help="only print the names")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6), help="of the random steps and moments")
    parser.add_argument("--json", type=Path, default=Path("build/chaos.json"), help="where the figures go")
    options = parser.parse_args(arguments)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH_IN_FILES)
    if options.list:
        for scenario in SCENARIOS:
            console.print(f"{scenario.name:24}{scenario.fault}")
        return 0
    if kindcluster.existing():
        print(
            "E2E_USE_EXISTING_CLUSTER is set: make chaos pauses nodes, and does so only on its kind cluster",
            file=sys.stderr,
        )
        return 2
    names = {scenario.name for scenario in SCENARIOS}
    if unknown := set(options.scenario) - names:
        print(f"no such scenario: {', '.join(sorted(unknown))}; there are: {', '.join(sorted(names))}", file=sys.stderr)
        return 2
    chosen = [scenario for scenario in SCENARIOS if not options.scenario or scenario.name in options.scenario]
    return carry_out(chosen, options.seed, options.json, console)


def carry_out(chosen: Sequence[Scenario], seed: int, json_file: Path, console: Console) -> int:
    """Runs scenarios one after another, and tells of each; 0 when all verdicts are right."""
    begin, kube, results = time.monotonic(), KubeApi(), list[Result]()
    console.print(f"{len(chosen)} scenarios, seed {seed}")
    model = None
    if any(scenario.expected.same_model for scenario in chosen):
        model, took = undisturbed(kube)
        console.print(f"  undisturbed training: {took:.0f} s, model sha256 {model[:12]}")
    for scenario in chosen:
        # Of its own name too, so that a scenario alone is struck as it is among all.
        result = run_scenario(scenario, kube, random.Random(f"{seed} {scenario.name}"), model)
        results.append(result)
        console.print(f"  {result.scenario:24}{result.wall:4.0f} s  ", verdict(result))
        for problem in result.problems:
            console.print(problem, style="dim", markup=False)
    bare = kill_in_bare_job(kube) if any(scenario.name == COMPARED for scenario in chosen) else None
    wall = time.monotonic() - begin
    console.print(table(results, f"Faults on a training of 2 workers, a checkpoint every {INTERVAL_STEPS} steps"))
    if bare is not None:
        console.print(beside(results, bare))
    console.print(summary(results, wall))
    facts = {
        "seed": seed,
        "seconds": wall,
        "intervalSteps": INTERVAL_STEPS,
        "allowedLostSteps": AT_MOST_ONE_INTERVAL,
        "barePyTorchJob": None if bare is None else vars(bare),
    }
    write_json(json_file, results, facts)
    return int(any(result.problems for result in results))


def beside(results: Sequence[Result], bare: Bare) -> str:
    """The same kill on a GpuTraining and on a bare PyTorchJob."""
    ours = next(result for result in results if result.scenario == COMPARED)
    mine = "never" if ours.to_next_step is None else f"{ours.to_next_step:.1f} s, {ours.lost_steps} steps lost"
    other = bare.seen if bare.to_next_step is None else f"{bare.to_next_step:.1f} s, {bare.lost_steps} steps lost"
    return f"kill -9 of rank 1 → next step:  GpuTraining {mine};  bare PyTorchJob (OnFailure) {other}"


if __name__ == "__main__":
    sys.exit(main())
