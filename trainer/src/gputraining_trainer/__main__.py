"""Entry point: ``python -m gputraining_trainer``, under torchrun or alone."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from gputraining_trainer import run
from gputraining_trainer.config import ConfigError, processes_per_node, read_config, read_termination_log
from gputraining_trainer.report import Report


def main() -> int:
    """Become torchrun where this pod has to run several processes, else train; gives the exit code."""
    environment = dict(os.environ)
    try:
        count = processes_per_node(environment)
        if count is not None:
            # torchrun costs seconds: what is wrong anyway is told before it starts.
            read_config(environment)
            os.execv(sys.executable, torchrun_command(environment, count))
    except ConfigError as error:
        return run.fail(error, Report(), read_termination_log(environment))
    return run.main(environment)


def torchrun_command(environment: dict[str, str], count: str) -> list[str]:
    """The torchrun command line for this pod's place in the job, from what PyTorchJob injects."""
    command = [sys.executable, "-m", "gputraining_trainer.agent", f"--nproc-per-node={count}", "--max-restarts=0"]
    nodes = environment.get("PET_NNODES", "1")
    if nodes == "1":
        return [*command, "--standalone", "-m", "gputraining_trainer"]
    return [
        *command,
        f"--nnodes={nodes}",
        f"--node-rank={environment.get('PET_NODE_RANK', environment.get('RANK', '0'))}",
        f"--master-addr={environment.get('PET_MASTER_ADDR') or environment.get('MASTER_ADDR', '')}",
        f"--master-port={environment.get('PET_MASTER_PORT') or environment.get('MASTER_PORT', '29500')}",
        "-m",
        "gputraining_trainer",
    ]


def end(code: int) -> NoReturn:
    """End at once. All is written by now, and tearing down torch's threads and sockets can only take time, or hang:
    a pod that has done its work must not stay."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    end(main())
