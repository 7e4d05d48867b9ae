"""What an exception means to the job's owner."""

from __future__ import annotations

import pytest
import torch

from gputraining_trainer.config import ConfigError
from gputraining_trainer.failures import DatasetNotFoundError, NonFiniteLossError, describe


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (ConfigError("EPOCHS: got 'x'"), "InvalidConfig", 64),
        (DatasetNotFoundError("mnist: /data does not exist"), "DatasetNotFound", 66),
        (NonFiniteLossError("the loss is nan"), "NonFiniteLoss", 1),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), "OutOfMemory", 1),
        (MemoryError(), "OutOfMemory", 1),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes"), "OutOfMemory", 1),
        (torch.distributed.DistBackendError("NCCL error: remote process exited"), "PeerLost", 1),
        (torch.distributed.DistNetworkError("the client socket has timed out"), "PeerLost", 1),
        (RuntimeError("[/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:4321"), "PeerLost", 1),
        (RuntimeError("[/gloo/x.cc:81] Timed out waiting 1800000ms for recv operation to complete"), "PeerLost", 1),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), "UserCodeError", 1),
        (KeyError("x"), "UserCodeError", 1),
    ],
)
def test_errors_are_told_apart(error: Exception, kind: str, code: int) -> None:
    failure, exit_code = describe(error, rank=3)
    assert (failure.type, exit_code) == (kind, code)
    assert failure.message
    assert "\n" not in failure.message
    if code == 1:
        assert type(error).__name__ in failure.traceback
        assert "rank 3" in failure.message or kind == "NonFiniteLoss"
