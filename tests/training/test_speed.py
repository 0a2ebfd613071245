"""How fast a device is: how many steps are timed, of how many images."""

import pytest
import torch

from semmix.training import speed
from semmix.training.speed import measure_speed, seconds_per_step

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("seconds", "most", "num_calls"),
    [(0.25, 100, 5), (0.3, 100, 5), (1.0, 100, 2), (5.0, 100, 2), (0.25, 2, 3), (0.25, 1, 2)],
)
def test_as_many_steps_are_timed_as_fit_in_a_second(monkeypatch, seconds, most, num_calls):
    """The first, which is slower, is not timed."""
    clock, calls = [0.0], []

    def forward():
        calls.append(torch.is_grad_enabled())
        clock[0] += seconds if len(calls) > 1 else 100.0
        return torch.zeros(1)

    monkeypatch.setattr(speed.time, "perf_counter", lambda: clock[0])
    assert seconds_per_step(forward, CPU, learns=False, max_steps=most) == pytest.approx(seconds)
    assert calls == [False] * num_calls


@pytest.mark.parametrize("learns", [True, False])
def test_gradients_are_part_of_a_step_that_learns(learns):
    weight = torch.nn.Parameter(torch.tensor([1.0, 3.0]))
    seconds = seconds_per_step(lambda: 2 * weight, CPU, learns, max_steps=1)
    assert 0 < seconds < 1
    assert (weight.grad is not None) == learns
    if learns:  # of the mean of squares, twice: once to warm up
        assert weight.grad.tolist() == [8.0, 24.0]


@pytest.mark.parametrize(("size", "num"), [(8, 512), (32, 32), (256, 2)])
def test_a_step_has_as_many_images_as_a_cpu_likes(monkeypatch, size, num):
    asked = []

    def timed(forward, device, learns):
        if size == 8:
            assert len(forward()) == num
        asked.append(learns)
        return len(asked)

    monkeypatch.setattr(speed, "seconds_per_step", timed)
    network = "digits" if size < 32 else "cpu32"
    found = measure_speed((1, size, size), 3, ["small"], network, CPU)
    assert found.classifiers == {"small": 1 / num}
    assert (found.generator, found.drawing) == (2 / num, 3 / num)
    assert asked == [True, True, False]
