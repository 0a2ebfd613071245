"""Compiled networks; captured steps are tested on a GPU, by tests/methods/test_all.py."""

import torch
from torch._dynamo.testing import CompileCounter

from semmix.classifiers import classifier
from semmix.training.graphs import compiled


def run(network, counter, *batch_sizes) -> None:
    forward = compiled(network.train(), backend=counter)
    for num in batch_sizes:
        forward(torch.rand(num, 1, 8, 8)).sum().backward()


def test_networks_of_one_kind_share_what_is_compiled():
    torch._dynamo.reset()
    counter = CompileCounter()
    networks = [classifier("small", 10, 1, 8) for _ in range(3)]
    for network in networks:
        run(network, counter, 6, 12)
    assert counter.frame_count == 2  # one for each batch size
    # They share code, not weights.
    images = torch.rand(6, 1, 8, 8)
    first, second = (compiled(net, backend=counter)(images) for net in networks[:2])
    assert counter.frame_count == 2
    torch.testing.assert_close(first, networks[0](images))
    assert not torch.allclose(first, second)


def test_many_kinds_and_batch_sizes_are_all_compiled():
    torch._dynamo.reset()
    counter = CompileCounter()
    for num_classes in (3, 4):
        run(classifier("small", num_classes, 1, 8), counter, *range(2, 14, 2))
    assert counter.frame_count == 12  # torch's own limit is 8
