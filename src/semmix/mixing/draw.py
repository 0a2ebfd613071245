"""The loop that fills a store with mixed sets: x(lam) ~ p(x | lam q_i + (1 - lam) q_j, x_T).

All members of a set start from one noise x_T, drawn from the set's own seed, and the network always sees the same batch
shape. So an image depends on its set alone, not on the shard, the process or a restart: on the same machine it is the
same to the byte.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor

from semmix.core.device import rank_and_world
from semmix.core.errors import require
from semmix.core.files import remove_leftovers
from semmix.core.progress import progress
from semmix.core.settings import plain
from semmix.diffusion import Generator, load_generator
from semmix.diffusion.sampling import MixConfig, Sampler, check_knows_classes, chunks, make_sampler, sample_padded
from semmix.mixing.plan import MixPlan, all_pairs, fair_pairs, mix_labels
from semmix.mixing.store import MixSets


def mix(
    generator: Generator | str | Path,
    plan: MixPlan | None = None,
    config: MixConfig | None = None,
    out: str | Path = "mixsets",
    *,
    num_sets: int | None = None,
    sets_per_pair: int | None = None,
    seed: int = 0,
    device: str = "auto",
) -> MixSets:
    """Draw mixed sets into a folder, and return them.

    Sets that are there already are kept. Started by `torchrun`, each process draws its own shards.

    Args:
        generator: A generator, or how `load_generator` finds one: its folder, or `zoo:NAME`.
        plan: Which sets to draw; unless given, 1000 of all pairs of classes.
        config: How to draw them.
        out: Folder of the sets.
        num_sets: How many sets to draw without a plan.
        sets_per_pair: The same, for each pair of classes.
        seed: Decides the noise of every set drawn without a plan.
        device: Where a generator that is named computes; `auto` takes a GPU if there is one.

    Raises:
        SemmixError: If the generator does not fit the plan, or `out` holds sets drawn otherwise.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as out:
        ...     sets = mix("zoo:cifar10", config=MixConfig(num_steps=2, batch_size=8), out=out, num_sets=1)
        ...     sets.pair(0), sets.read_set(0).shape
        mixed images: 8/8  took ...
        ((0, 9), torch.Size([8, 3, 32, 32]))
    """
    if isinstance(generator, str | Path):
        generator = load_generator(generator, device)
    if plan is None:
        plan = _simple_plan(generator, num_sets, sets_per_pair, seed)
    else:
        seen = f"num_sets={num_sets}, sets_per_pair={sets_per_pair}, seed={seed}"
        alone = (num_sets, sets_per_pair, seed) == (None, None, 0)
        require(alone, "the plan says which sets there are", seen, "leave out the plan, or the others")
    seen = f"the generator knows {generator.num_classes}, the plan has {plan.num_classes}"
    same = generator.num_classes == plan.num_classes
    require(same, "generator and plan differ in classes", seen, "use matching ones")
    return _fill(generator, plan, (config or MixConfig()).resolve(generator.device), out)


def _simple_plan(generator: Generator, num_sets: int | None, sets_per_pair: int | None, seed: int) -> MixPlan:
    check_knows_classes(generator, 2)
    seen = f"num_sets={num_sets}, sets_per_pair={sets_per_pair}"
    require(num_sets is None or sets_per_pair is None, "the number of sets is given twice", seen, "leave one out")
    if sets_per_pair is not None:
        num_sets = sets_per_pair * len(all_pairs(generator.num_classes))
    num_sets = 1000 if num_sets is None else num_sets
    pairs = fair_pairs(generator.num_classes, num_sets)
    return MixPlan(num_classes=generator.num_classes, num_sets=num_sets, pairs=pairs, seed=seed)


def _fill(generator: Generator, plan: MixPlan, config: MixConfig, out: str | Path) -> MixSets:
    named = {"digest": generator.digest, "name": generator.name, "trained_on": generator.trained_on}
    sample = make_sampler(generator, config)  # which settings can break: before a folder is claimed
    store = MixSets.create(out, plan, generator.image_shape, named, plain(config))
    batch_size = config.images_at_once(generator.device)
    rank, world_size = rank_and_world()
    own, missing = plan.shards_of(rank, world_size), store.missing(rank, world_size)
    total, left = (plan.set_size * sum(len(plan.shard(k)) for k in ks) for ks in (own, missing))
    with progress("mixed images", total, total - left) as bar, ThreadPoolExecutor(1) as writer:
        writing = None
        for k in missing:
            drawn = []
            for sets in chunks(plan.shard(k), max(1, batch_size // plan.set_size)):
                drawn.append(_draw_sets(generator, plan, sample, sets, batch_size))
                bar.advance(plan.set_size * len(sets))
            if writing:
                writing.result()  # where the last shard could not be written, stop
            writing = writer.submit(store.write_shard, k, torch.cat(drawn))  # beside the next one
        if writing:
            writing.result()
    if world_size == 1:  # else another process may be writing its last file
        remove_leftovers(store.folder)
    return store


def set_noise(plan: MixPlan, n: int, shape: tuple[int, int, int]) -> Tensor:
    """Return the noise all members of set `n` start from, drawn on the CPU from the set's seed."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(plan.set_seed(n)))


def _draw_sets(generator: Generator, plan: MixPlan, sample: Sampler, sets: range, batch_size: int) -> Tensor:
    """Return the images of `sets`, uint8 [sets, members, C, H, W]."""
    shape = getattr(generator, "latent_shape", generator.image_shape)
    noise = torch.stack([set_noise(plan, n, shape) for n in sets])
    noise = noise.repeat_interleave(plan.set_size, dim=0)  # [sets * members, C, H, W]
    i, j = torch.tensor([plan.pair(n) for n in sets]).unsqueeze(-1).unbind(1)
    class_weights = mix_labels(i, j, torch.tensor([plan.set_lams(n) for n in sets]), plan.num_classes).flatten(0, 1)
    return sample_padded(sample, noise, class_weights, batch_size).unflatten(0, (len(sets), plan.set_size))
