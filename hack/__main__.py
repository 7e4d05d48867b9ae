"""Cluster, images, operators and the demo from one place: `uv run python -m hack --help`."""

import argparse
import shutil
import sys
from collections.abc import Sequence

from hack import addons, demo, engine, facts, gotools, images, kindcluster, pins, runner
from hack.console import failure_text, finished_line
from hack.paths import cache_dir, logs_dir
from hack.shell import CommandError, Context, UserError
from hack.steps import StepFailedError


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="python -m hack", description=__doc__)
    commands = top.add_subparsers(dest="command", required=True)
    cluster = commands.add_parser("cluster", help="the kind cluster with its images and volumes")
    cluster.add_argument("action", choices=("up", "down"))
    cluster.add_argument("--purge", action="store_true", help="down: remove the cache too, with all built images")
    commands.add_parser("images", help="the operator's and the trainer's images").add_argument(
        "action", choices=("build", "names"), help="build: builds and loads; names: prints the references"
    )
    for name, what in (("training-operator", "the Kubeflow training-operator"), ("operator", "this operator")):
        commands.add_parser(name, help=what).add_argument("action", choices=("install", "uninstall"))
    commands.add_parser("operators", help="a cluster with both operators, as the tests need it").add_argument(
        "action", choices=("install",)
    )
    commands.add_parser("demo", help="all of it, then examples/digits.yaml with live progress")
    fetch = commands.add_parser("fetch-model", help="copies what a training wrote to its volume")
    fetch.add_argument("training", nargs="?", default="digits")
    fetch.add_argument("--namespace", default="default")
    fetch.add_argument("--to", default="model", help="folder (default: %(default)s)")
    commands.add_parser("env", help="prints shell lines: KUBECONFIG, and PATH with the tools that were built")
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; the exit status."""
    options = parser().parse_args(arguments)
    try:
        return _run(options)
    except StepFailedError as failure:
        print(failure_text(failure), file=sys.stderr)
    except (UserError, CommandError, TimeoutError) as error:
        print(f"✘ {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print("stopped; run the same command again to go on", file=sys.stderr)
        return 130
    return 1


def _run(options: argparse.Namespace) -> int:
    match options.command, getattr(options, "action", None):
        case "cluster", "up":
            runner.bring_up("cluster")
        case "cluster", "down":
            _down(options.purge)
        case "images", "build":
            runner.bring_up("images")
        case "images", "names":
            built = images.current(facts.decide(facts.observe()))
            print("" if built is None else f"operator {built.operator}\ntrainer {built.trainer}")
        case (("training-operator" | "operator"), "install"):
            runner.bring_up(options.command)
        case "operators", "install":
            runner.bring_up("cluster", "training-operator", "operator")
        case "training-operator", "uninstall":
            addons.uninstall_training_operator(Context(logs_dir() / "training-operator-uninstall.log"))
        case "operator", "uninstall":
            addons.uninstall_operator(Context(logs_dir() / "operator-uninstall.log"))
        case "demo", _:
            return demo.run()
        case "fetch-model", _:
            print(demo.fetch(options.namespace, options.training, options.to))
        case "env", _:
            print(f"export KUBECONFIG={kindcluster.kubeconfig()}")
            if gotools.bin_dir().exists():
                print(f'export PATH="{gotools.bin_dir()}:$PATH"')
    return 0


def _down(purge: bool) -> None:
    if kindcluster.existing():
        raise UserError("E2E_USE_EXISTING_CLUSTER is set: a cluster of your own is not removed")
    removed = False
    if engine.answers() or engine.revive():
        removed = kindcluster.down(Context(logs_dir() / "cluster-down.log"))
    print(finished_line("cluster", f"{pins.CLUSTER_NAME} removed" if removed else "there was none", None))
    if purge:
        engine.stop()
        shutil.rmtree(cache_dir(), ignore_errors=True)
        print(finished_line("cache", f"{cache_dir()} removed", None))
    elif cache_dir().exists():
        print(f"Kept for the next time: programs and images in {cache_dir()}; `cluster down --purge` removes them too.")


if __name__ == "__main__":
    sys.exit(main())
