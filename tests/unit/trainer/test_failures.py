"""What an exception means to the job's owner."""

from __future__ import annotations

import pytest
import torch

from gputraining_trainer.config import ConfigError
from gputraining_trainer.failures import CheckpointNotFoundError, DatasetNotFoundError, NonFiniteLossError, describe

NCCL = "NCCL error in: NCCLUtils.hpp:268, unhandled system error (run with NCCL_DEBUG=INFO), NCCL version 2.21.5 "


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
        (torch.distributed.DistBackendError(NCCL + "Last error: Call to ibv_create_qp failed"), "NcclError", 1),
        (
            torch.distributed.DistBackendError("NCCL error in: x.cpp:1, invalid usage, NCCL version 2.21"),
            "NcclError",
            1,
        ),
        (
            torch.distributed.DistBackendError(NCCL + "socketPollConnect: connect returned Connection refused"),
            "PeerLost",
            1,
        ),
        (torch.distributed.DistBackendError("Watchdog caught collective operation timeout: OpType"), "PeerLost", 1),
        (CheckpointNotFoundError("checkpoint.resume: got 'Required'"), "CheckpointNotFound", 67),
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


def test_out_of_memory_tells_the_batch_size_and_what_torch_knows() -> None:
    error = torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.06 GiB is "
        "free. Including non-PyTorch memory, this process has 78.03 GiB memory in use."
    )
    failure, _ = describe(error, rank=1, batch="batchSize 512 x 2 accumulated")
    assert failure.message.startswith(
        "rank 1: out of memory (batchSize 512 x 2 accumulated, wanted 2.00 GiB, of 79.10 GiB, free 1.06 GiB); fix: "
    )
    assert "training.onOutOfMemory: ReduceBatchSize" in failure.message
    assert describe(MemoryError(), rank=0)[0].message.startswith("rank 0: out of memory; fix: ")
