"""A faster way to the first step: torch's compiler is loaded only if something really uses it.

Making any optimizer, and any DistributedDataParallel, imports ``torch._dynamo`` (with sympy, the inductor and much
more: 2 to 3 s, as long as torch itself) merely to ask whether a compiler is at work. Training without
``torch.compile`` never needs the rest of it. So a stand-in answers those few questions, and loads the real module for
any other.
"""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable
from typing import Any, Final

_NAME: Final = "torch._dynamo"


def defer_compiler_import() -> None:
    """Put the stand-in in place. Not for trainings that use ``torch.compile``. Call after ``import torch``."""
    if _NAME not in sys.modules:
        sys.modules[_NAME] = _StandIn(_NAME)


class _StandIn(types.ModuleType):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.utils = _Part("utils", get_optimize_ddp_mode=lambda: "ddp_optimizer")
        self.config = _Part("config", _get_optimize_ddp_mode=lambda: "ddp_optimizer")  # where torch 2.6 has it
        self.trace_rules = _Part("trace_rules", clear_lru_cache=lambda: None)

    def graph_break(self, *_: object, **__: object) -> None:
        """Nothing to break: no graph is being traced."""

    def disable(self, fn: Callable[..., Any] | None = None, *_: object, **__: object) -> Callable[..., Any]:
        """Nothing to disable: the function stays as it is."""
        return fn if fn is not None else lambda function: function

    def __getattr__(self, attribute: str) -> Any:  # asked only for what is not here
        return getattr(_load(), attribute)


class _Part:
    """A submodule of the stand-in: what it cannot answer comes from the real one."""

    def __init__(self, name: str, **answers: Any) -> None:
        self._name = name
        self.__dict__.update(answers)

    def __getattr__(self, attribute: str) -> Any:
        return getattr(getattr(_load(), self._name), attribute)


def _load() -> types.ModuleType:
    """The real module, in the stand-in's place from now on."""
    if isinstance(sys.modules.get(_NAME), _StandIn):
        del sys.modules[_NAME]
    return importlib.import_module(_NAME)
