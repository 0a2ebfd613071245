"""What must hold for every method in the folder, the ones not yet written included."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from semmix.methods import Batch, list_methods, method
from semmix.networks import classifier

NUM, CLASSES = 8, 4


def make_batch(num_mixed):
    torch.manual_seed(1)
    return Batch(
        images=torch.rand(NUM, 1, 8, 8),
        labels=torch.arange(NUM) % CLASSES,
        index=torch.arange(NUM),
        mixed_images=torch.rand(NUM * num_mixed, 1, 8, 8) if num_mixed else None,
        mixed_labels=torch.rand(NUM * num_mixed, CLASSES).softmax(-1) if num_mixed else None,
    )


def prepared(name):
    chosen = method(name, num_classes=CLASSES)
    batch = make_batch(chosen.num_mixed)
    chosen.setup(batch.labels)
    return chosen, batch


@pytest.mark.parametrize("name", list_methods())
def test_it_learns(name):
    chosen, batch = prepared(name)
    torch.manual_seed(0)
    net = classifier("small", num_classes=CLASSES, in_channels=1, image_size=8)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for _ in range(30):
        optimiser.zero_grad()
        loss = chosen.step(net, batch)["loss"]
        loss.backward()
        optimiser.step()
        assert torch.isfinite(loss)
        assert loss.shape == ()
    net.eval()
    chosen.end_epoch(net(batch.images).detach(), batch.labels)
    accuracy = (net(batch.images).argmax(-1) == batch.labels).float().mean()
    assert accuracy > 0.7


@pytest.mark.parametrize("name", list_methods())
def test_the_same_seed_gives_the_same_step(name):
    losses = []
    for _ in range(2):
        chosen, batch = prepared(name)
        torch.manual_seed(5)
        net = classifier("small", num_classes=CLASSES, in_channels=1, image_size=8)
        losses.append(chosen.step(net, batch)["loss"].item())
    assert losses[0] == losses[1]


def loss_and_gradient(name, dtype):
    """Return a step's loss and the gradient of a linear network, its logits in `dtype`."""
    chosen, batch = prepared(name)
    if batch.mixed_labels is not None:
        batch.mixed_labels = batch.mixed_labels.to(dtype)
    torch.manual_seed(3)
    weights = torch.randn(64, CLASSES).to(dtype).requires_grad_()
    loss = chosen.step(lambda images: images.flatten(1).to(dtype) @ weights, batch)["loss"]
    loss.backward()
    assert loss.dtype == dtype
    return loss.detach().double(), weights.grad.double()


@pytest.mark.parametrize("name", list_methods())
def test_single_precision_is_enough(name):
    # The images, and so all draws and mixups, are the same: only logits and losses differ.
    single, double = (loss_and_gradient(name, dtype) for dtype in (torch.float32, torch.float64))
    torch.testing.assert_close(single, double, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", list_methods())
def test_a_step_never_waits_for_the_device(name):
    # Fake tensors have shapes but no values: reading one, or a shape that depends on one, raises.
    with FakeTensorMode():
        chosen, batch = prepared(name)
        net = classifier("small", num_classes=CLASSES, in_channels=1, image_size=8)
        chosen.step(net, batch)["loss"].backward()


@pytest.mark.parametrize("name", list_methods())
def test_memory_keeps_its_tensors(name):
    chosen, batch = prepared(name)
    before = {key: tensor.data_ptr() for key, tensor in chosen.state_dict().items()}
    net = classifier("small", num_classes=CLASSES, in_channels=1, image_size=8)
    chosen.step(net, batch)
    chosen.end_epoch(net(batch.images).detach(), batch.labels)
    assert before == {key: tensor.data_ptr() for key, tensor in chosen.state_dict().items()}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", list_methods())
def test_a_captured_step_equals_the_plain_one(name):
    chosen, batch = prepared(name)
    batch = Batch(**{key: t if t is None else t.cuda() for key, t in vars(batch).items()})
    chosen.setup(batch.labels)
    memory = {key: tensor.clone() for key, tensor in chosen.state_dict().items()}
    net = classifier("small", num_classes=CLASSES, in_channels=1, image_size=8).cuda().eval()

    def step():
        loss = chosen.step(net, batch)["loss"]
        loss.backward()
        return loss.detach()  # the graph of gradients must not outlive the stream it was made on

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            net.zero_grad()
            step()
    torch.cuda.current_stream().wait_stream(side)
    net.zero_grad()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    captured_grads = [parameter.grad for parameter in net.parameters()]
    chosen.load_state_dict(memory)
    torch.manual_seed(7)
    graph.replay()
    chosen.load_state_dict(memory)
    net.zero_grad()
    torch.manual_seed(7)
    plain = step()
    grads = [parameter.grad for parameter in net.parameters()]
    # Kernels may add in another order.
    torch.testing.assert_close([captured, *captured_grads], [plain, *grads], rtol=1e-3, atol=1e-4)
