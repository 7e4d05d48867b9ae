"""torchrun, for a pod with several processes; it ends with the exit code of the process that failed first.

torchrun itself would end with 1 whatever its processes ended with, and a pod that is to be resumed would look broken.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence

from gputraining_trainer.config import read_termination_log
from gputraining_trainer.failures import EXIT_PREEMPTED, EXIT_TERMINATED
from gputraining_trainer.report import State


def main(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run torchrun with these arguments; gives the exit code."""
    # The kernel ignores signals that the first process of a container does not handle, and torchrun begins to do so
    # only when its workers start.
    signal.signal(signal.SIGTERM, lambda _number, _frame: os._exit(EXIT_TERMINATED))

    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as torchrun

    try:
        torchrun(list(arguments))
    except ChildFailedError as error:
        print(error, file=sys.stderr, flush=True)
        code = error.get_first_failure()[1].exitcode
        return code if code >= 0 else 128 - code  # a negative one is a signal
    except SignalException:  # it has passed the signal on, and waited for the processes
        state = _last_state(environment)
        ends = {State.PREEMPTED: EXIT_PREEMPTED, State.COMPLETE: 0}
        return ends.get(state, EXIT_TERMINATED) if state else EXIT_TERMINATED
    return 0


def _last_state(environment: Mapping[str, str]) -> State | None:
    try:
        return State(json.loads(read_termination_log(environment).read_bytes())["state"])
    except (OSError, ValueError, LookupError, TypeError):
        return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
