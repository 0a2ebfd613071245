"""Compiled networks, and captured steps where there is a GPU."""

from dataclasses import replace

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from semmix.core.runtime import Runtime
from semmix.networks import classifier
from semmix.training import classifier as loop
from semmix.training.classifier import TrainConfig
from semmix.training.graphs import CapturedStep, compiled


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


def test_a_second_run_compiles_nothing(tmp_path, toy_data, toy_source, monkeypatch):
    """Nor does an epoch's end, which switches the network to evaluation and back."""
    torch._dynamo.reset()
    counter = CompileCounter()
    monkeypatch.setattr(loop, "_forward", lambda net, device: compiled(net, backend=counter))
    config = TrainConfig(method="csm", classifier="small", epochs=2, batch_size=20)
    for seed in range(2):
        loop.train(toy_data, replace(config, seed=seed), tmp_path / str(seed), toy_source, Runtime(device="cpu"))
    assert counter.frame_count == 2  # real and mixed images


def losses(device: torch.device, captures: bool) -> torch.Tensor:
    """Return the losses of a few steps that draw, normalise by batch and learn."""
    torch.manual_seed(0)
    network = classifier("small", 10, 1, 8).to(device).train()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
    labels = torch.arange(40, device=device) % 10

    def body():
        images = (torch.rand(40, 1, 8, 8, device=device) + labels.view(-1, 1, 1, 1)) / 10
        loss = torch.nn.functional.cross_entropy(network(images), labels)
        loss.backward()
        return loss.detach()

    step, seen = CapturedStep(body, network.parameters(), device), []
    step.captures = captures
    step.prepare()
    for seed in range(20):
        torch.manual_seed(seed)
        seen.append(step().clone())
        optimizer.step()
    return torch.stack(seen).cpu()


def test_a_step_that_is_not_captured_is_a_plain_call():
    seen = losses(torch.device("cpu"), captures=False)
    assert seen[-1] < 0.8 * seen[0]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_captured_steps_give_the_plain_curve():
    captured, plain = (losses(torch.device("cuda"), captures) for captures in (True, False))
    assert plain[-1] < 0.8 * plain[0]
    torch.testing.assert_close(captured, plain, rtol=0.02, atol=0.01)
