"""SIGTERM: what Kubernetes sends before it kills a pod."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable


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
