"""The start is fast: what is slow to import and not needed stays out, and is there all the same when asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.unit.trainer.launch import free_port

SETTLE = "import sys, torch; from gputraining_trainer.startup import defer_compiler_import; defer_compiler_import()\n"


def python(code: str) -> None:
    """Run code in an interpreter of its own, since imports cannot be undone."""
    done = subprocess.run([sys.executable, "-W", "error::FutureWarning", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_nothing_before_torch_imports_torch() -> None:
    python("import sys; from gputraining_trainer import __main__; assert 'torch' not in sys.modules")


def test_a_training_of_digits_leaves_out_what_it_does_not_need() -> None:
    python(
        "import sys, tempfile; from gputraining_trainer import run\n"
        "settings = {'EPOCHS': '1', 'GPUTRAINING_PROGRESS_PORT': '0', 'OUTPUT_PATH': tempfile.mkdtemp()}\n"
        "assert run.main(settings) == 0\n"
        "loaded = {'torchvision', 'prometheus_client', 'sympy', 'torch._inductor', 'torch.onnx'} & set(sys.modules)\n"
        "assert not loaded, loaded"
    )


def test_data_parallel_training_needs_no_compiler() -> None:
    python(
        SETTLE + "import torch.distributed as dist; from torch.nn.parallel import DistributedDataParallel\n"
        f"dist.init_process_group('gloo', init_method='tcp://127.0.0.1:{free_port()}', rank=0, world_size=1)\n"
        "model = DistributedDataParallel(torch.nn.Linear(2, 2))\n"
        "optimizer = torch.optim.AdamW(model.parameters())\n"
        "with model.no_sync(): model(torch.ones(1, 2)).sum().backward()\n"
        "model(torch.ones(1, 2)).sum().backward(); optimizer.step()\n"
        "assert 'sympy' not in sys.modules; dist.destroy_process_group()"
    )


@pytest.mark.parametrize(
    "use",
    [
        "assert torch.compile(lambda x: x + 1, backend='eager')(torch.ones(1)).item() == 2",
        "from torch._dynamo.utils import counters",
        "import torch._dynamo.config as config; assert config.cache_size_limit",
        "assert torch._dynamo.config.cache_size_limit and callable(torch._dynamo.utils.same)",
        "torch._dynamo.reset()",
    ],
)
def test_the_compiler_is_there_when_asked_for(use: str) -> None:
    python(SETTLE + use + "\nassert sys.modules['torch._dynamo'].__spec__ is not None")
