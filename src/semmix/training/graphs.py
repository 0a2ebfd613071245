"""Compiled networks, and one training step as one CUDA graph: a launch instead of thousands."""

from collections.abc import Callable, Iterable
from typing import TypeVar, cast

import torch
from torch import Tensor, nn

NUM_WARM_UPS = 3
NUM_COMPILED = 64
"""Networks and batch sizes compiled in one process; torch runs further ones uncompiled."""

N = TypeVar("N", bound=nn.Module)


def compiled(network: N, backend: str | Callable = "inductor") -> N:
    """Return the network compiled for fixed shapes.

    Weights are inputs of what is compiled: the next network of the same kind finds it ready.
    """
    from torch._dynamo import config  # slow to import

    config.cache_size_limit = NUM_COMPILED  # recompile_limit is its other name, since torch 2.6
    return cast(N, torch.compile(network, dynamic=False, backend=backend))


class CapturedStep:
    """Runs `body`, which leaves gradients in the parameters, and returns what it returns.

    On a GPU, once prepared, `body` is captured and replayed; elsewhere it is a plain call.

    `body` reads from and writes to tensors that live as long as this object, draws random numbers from the default
    generator alone, and never looks at a value on the host. Seed the default generator before each call. Optimiser and
    learning rate stay outside.

    `prepare` runs `body` a few times: call it before seeding, and before setting up what `body` changes (batch-norm
    statistics, for example). Several captured steps may share parameters; each brings back its own gradients.
    """

    def __init__(
        self, body: Callable[[], Tensor], parameters: Iterable[nn.Parameter], device: torch.device, world_size: int = 1
    ):
        self.body, self.parameters = body, list(parameters)
        self.captures = device.type == "cuda" and world_size == 1  # processes exchange values within a step
        self.graph: torch.cuda.CUDAGraph | None = None

    def prepare(self) -> None:
        """Warm up and capture `body`, where it is captured at all."""
        if not self.captures or self.graph is not None:
            return
        with torch.backends.cudnn.flags(enabled=True, benchmark=True):  # baked into the graph
            self.graph = self._capture()

    def _capture(self) -> torch.cuda.CUDAGraph:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # compilation, autotuning and lazy setup must not be captured
            for _ in range(NUM_WARM_UPS):
                self._clear()
                self.body()
        torch.cuda.current_stream().wait_stream(side)
        self._clear()  # the captured backward then writes gradients instead of adding to them
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.result = self.body()
        self.grads = [parameter.grad for parameter in self.parameters]
        return graph

    def __call__(self) -> Tensor:
        """Run the step; the result is overwritten by the next one."""
        if self.graph is None:
            self._clear()
            return self.body()
        self.graph.replay()
        for parameter, grad in zip(self.parameters, self.grads, strict=True):
            parameter.grad = grad
        return self.result

    def _clear(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None
