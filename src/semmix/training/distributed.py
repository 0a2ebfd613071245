"""Several processes (torchrun) that do the work of one."""

import atexit
import contextlib
from collections.abc import Callable
from datetime import timedelta
from functools import lru_cache

import torch
from torch import Tensor
from torch import distributed as dist

from semmix.core.device import rank_and_world
from semmix.core.errors import require
from semmix.core.seeds import fold_seed
from semmix.methods import Forward

PATIENCE = timedelta(seconds=10)
"""How long a process that ends waits for the others."""


def join_processes(device: torch.device, batch_size: int) -> tuple[int, int]:
    """Return this process's rank and their number, connected to the others."""
    rank, world_size = rank_and_world()
    fix = f"use a multiple of {world_size}"
    require(batch_size % world_size == 0, "the batch cannot be shared equally", batch_size, fix)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if world_size > 1 and not dist.is_initialized():
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
        atexit.register(_leave)
    return rank, world_size


def _leave() -> None:
    """Leave together: on a CPU, a process that is still shutting down when another is gone may abort."""
    with contextlib.suppress(RuntimeError):  # another has failed: wait no longer
        if dist.get_backend() == "gloo":
            dist.monitored_barrier(timeout=PATIENCE)
    dist.destroy_process_group()


def sum_over_processes(tensors: list[Tensor], world_size: int) -> None:
    """Replace every tensor by its sum over all processes, in one exchange."""
    if world_size == 1 or not tensors:
        return
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    dist.all_reduce(flat)
    parts = flat.split([tensor.numel() for tensor in tensors])
    for tensor, part in zip(tensors, parts, strict=True):
        tensor.copy_(part.view_as(tensor))


def average_over_processes(tensors: list[Tensor], world_size: int) -> None:
    """Replace every tensor by its mean over all processes."""
    if world_size > 1:
        sum_over_processes(tensors, world_size)
        for tensor in tensors:
            tensor.div_(world_size)


def gradients_of(network: torch.nn.Module) -> list[Tensor]:
    """Return the gradients that a backward pass left in a network."""
    return [p.grad for p in network.parameters() if p.grad is not None]


def gather_rows(own: Tensor, rank: int, world_size: int) -> Tensor:
    """Return all processes' rows, in the order of their ranks."""
    if world_size == 1:
        return own
    parts = [torch.empty_like(own) for _ in range(world_size)]
    dist.all_gather(parts, own.detach().contiguous())
    parts[rank] = own  # gradients flow into these rows alone: summed over processes they are the whole ones
    return torch.cat(parts)


def own_draws(forward: Callable[..., Tensor], rank: int, world_size: int) -> Callable[..., Tensor]:
    """Return the same function, whose random draws (dropout) are this process's own.

    All processes are seeded alike for every step, so that they draw the same batch; the masks of their rows must differ
    all the same. What is drawn before and after stays common to all.
    """
    if world_size == 1:
        return forward
    last_seed, num_passes = None, 0

    def apart(images: Tensor, *conditions: Tensor) -> Tensor:
        nonlocal last_seed, num_passes
        seed = torch.initial_seed()
        num_passes = num_passes + 1 if seed == last_seed else 0  # counted within the step
        last_seed = seed
        with torch.random.fork_rng([images.device] if images.is_cuda else []):
            torch.manual_seed(fold_seed("forward", seed, num_passes, rank))
            return forward(images, *conditions)

    return apart


def shared_forward(forward: Forward, rank: int, world_size: int) -> Forward:
    """Return the same function of a whole batch, each process computing its share of the rows.

    Whatever is done with the logits then happens on the whole batch in every process: losses that compare images, and
    methods with memory, need not know that there are several.
    """
    if world_size == 1:
        return forward
    own_forward = own_draws(forward, rank, world_size)

    def whole(images: Tensor) -> Tensor:
        order = _shuffled(len(images), images.device)
        own = own_forward(images[order.view(world_size, -1)[rank]])
        return gather_rows(own, rank, world_size)[order.argsort()]

    return whole


@lru_cache
def _shuffled(num: int, device: torch.device) -> Tensor:
    # Fixed; so no process gets all of one kind (ends of sets, mixups), which its batch statistics would show.
    return torch.randperm(num, generator=torch.Generator().manual_seed(num)).to(device)


def from_first(value: int, world_size: int) -> int:
    """Return process 0's value on all."""
    shared = [value]
    if world_size > 1:
        dist.broadcast_object_list(shared)
    return shared[0]


def wait_for_all(world_size: int) -> None:
    """Return when every process has come here."""
    if world_size > 1:
        dist.barrier()
