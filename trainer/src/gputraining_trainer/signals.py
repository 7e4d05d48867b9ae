"""SIGTERM: what Kubernetes sends before it kills a pod."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable
from typing import Final

LONGEST_GRACE_SECONDS: Final = 15.0
"""A spot node may go away this soon, whatever grace period its pods ask for (GKE gives pods 15 s)."""
MARGIN_SECONDS: Final = 2.0
"""Kept for the last word and the end of the process."""


class Stop:
    """Whether this training shall stop. Whoever heeds it stops by himself; otherwise the end is abrupt.

    Args:
        grace_seconds: from SIGTERM until the pod is killed.
        give_up: ends the process at once.
    """

    def __init__(self, grace_seconds: float, give_up: Callable[[], None]) -> None:
        grace = min(grace_seconds, LONGEST_GRACE_SECONDS)
        self._seconds = max(grace - MARGIN_SECONDS, grace / 2)
        self._give_up = give_up
        self._lock = threading.Lock()
        self.heeded = False
        """Set while somebody looks at ``wanted``."""
        self.wanted = False

    def request(self) -> None:
        """Ask to stop; the process ends in any case when the grace period is over. From any thread, more than once."""
        if not self.heeded:
            self._give_up()
            return
        with self._lock:
            if self.wanted:
                return
            self.wanted = True
        watchdog = threading.Timer(self._seconds, self._give_up)
        watchdog.daemon = True
        watchdog.start()


def on_terminate(act: Callable[[], None]) -> None:
    """Call ``act`` in a thread of its own when SIGTERM comes. Only the main thread may ask for this.

    Python runs signal handlers in the main thread between two bytecodes, hence never while that thread waits inside
    a collective for a peer that is gone: just when SIGTERM must still be heard. The interpreter's C handler, however,
    writes to the wake-up descriptor at once, and a thread listens there.
    """
    listen, wake = socket.socketpair()
    wake.setblocking(False)

    def wait() -> None:
        while signal.SIGTERM not in listen.recv(64):
            pass
        act()

    threading.Thread(target=wait, name="sigterm", daemon=True).start()
    signal.set_wakeup_fd(wake.detach(), warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, lambda _number, _frame: None)
