"""Distances between sets of images, against slow twins, known values and torchmetrics."""

import json

import numpy as np
import pytest
import torch
import tyro

from semmix.cli.generator import GeneratorScoreCommand
from semmix.core.artifact import begin_artifact
from semmix.core.errors import SemmixError
from semmix.data import load_dataset
from semmix.diffusion import quality
from semmix.diffusion.edm import EDMDenoiser, network_preset
from semmix.diffusion.quality import (
    feature_statistics,
    frechet_distance,
    kernel_distance,
    measure_copying,
    nearest_neighbours,
    recognition_rate,
    score_generator,
)
from semmix.diffusion.sampling import MixConfig, sample_classes
from semmix.diffusion.stored import save_generator
from semmix.networks import classifier
from semmix.networks.encoders import load_encoder
from semmix.networks.saved import save_classifier

SAMPLER = MixConfig(num_steps=3, batch_size=50)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def normals(num, dim, seed=0, shift=0.0):
    random = torch.Generator().manual_seed(seed)
    mixing = torch.randn(dim, dim, generator=random)
    return torch.randn(num, dim, generator=random) @ mixing + shift


def frechet_twin(x, y):
    """The definition, by the eigenvalues of the product of the covariances."""
    x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    cov_x, cov_y = np.cov(x.T), np.cov(y.T)
    root_trace = np.sqrt(np.linalg.eigvals(cov_x @ cov_y).astype(complex)).real.sum()
    gap = x.mean(0) - y.mean(0)
    return gap @ gap + np.trace(cov_x) + np.trace(cov_y) - 2 * root_trace


def kernel_twin(x, y):
    """The unbiased squared MMD, one pair at a time."""

    def kernel(a, b):
        return (float(a.double() @ b.double()) / len(a) + 1) ** 3

    m, n = len(x), len(y)
    within_x = sum(kernel(x[a], x[b]) for a in range(m) for b in range(m) if a != b)
    within_y = sum(kernel(y[a], y[b]) for a in range(n) for b in range(n) if a != b)
    across = sum(kernel(a, b) for a in x for b in y)
    return within_x / (m * (m - 1)) + within_y / (n * (n - 1)) - 2 * across / (m * n)


def frechet_of(x, y):
    a, b = feature_statistics([x]), feature_statistics([y])
    return frechet_distance(a.mean, a.covariance, b.mean, b.covariance)


@pytest.mark.parametrize(("num", "dim"), [(50, 3), (400, 16), (200, 64)])
def test_frechet_distance_is_its_definition(num, dim):
    x, y = normals(num, dim), normals(num + 7, dim, seed=1, shift=0.5)
    assert frechet_of(x, y) == pytest.approx(frechet_twin(x, y), rel=1e-9)


def test_frechet_distance_of_known_normals():
    """For covariances that commute: |m1 - m2|² + sum (sqrt a - sqrt b)²."""
    mean1, mean2 = torch.tensor([0.0, 1.0, 2.0]), torch.tensor([1.0, 1.0, 0.0])
    cov1, cov2 = torch.diag(torch.tensor([1.0, 4.0, 0.0])), torch.diag(torch.tensor([9.0, 4, 1]))
    assert frechet_distance(mean1, cov1, mean2, cov2) == pytest.approx(5 + 4 + 0 + 1)
    assert frechet_distance(mean1, cov1, mean1, cov1) == pytest.approx(0, abs=1e-12)


def test_frechet_distance_is_symmetric_and_bears_singular_covariances():
    x, y = normals(20, 40), normals(25, 40, seed=1)  # fewer rows than dimensions
    assert frechet_of(x, y) == pytest.approx(frechet_of(y, x), rel=1e-6)
    assert frechet_of(x, x) == pytest.approx(0, abs=1e-6)


def test_distances_agree_with_torchmetrics():
    """Recorded from torchmetrics 1.9.0, with `images` as below:

    class Flat(torch.nn.Module):
        num_features = 12
        def forward(self, x): return x.flatten(1).double() / 255
    fid = FrechetInceptionDistance(Flat(), input_img_size=(3, 2, 2)).set_dtype(torch.float64)
    kid = KernelInceptionDistance(Flat(), subsets=2, subset_size=60)
    for metric in (fid, kid):
        metric.update(images(0), real=True); metric.update(images(1), real=False)
    print(fid.compute().item(), kid.compute()[0].item())
    """

    def images(seed):
        random = torch.Generator().manual_seed(seed)
        shape = (60, 3, 2, 2)
        return torch.randint(0, 256 - 40 * seed, shape, generator=random, dtype=torch.uint8)

    assert (images(0).sum(), images(1).sum()) == (88557, 80374)
    x, y = (images(seed).flatten(1).double() / 255 for seed in (0, 1))
    assert frechet_of(x, y) == pytest.approx(0.14368199005264604, rel=1e-9)
    # subsets of all images: the order in which they are drawn does not matter
    assert kernel_distance(x, y, 2, 60)[0] == pytest.approx(0.013000719125372484, rel=1e-9)


def test_kernel_distance_is_its_definition():
    x, y = normals(12, 5), normals(12, 5, seed=1, shift=0.3)
    mean, std = kernel_distance(x, y, num_subsets=3, subset_size=12)
    assert mean == pytest.approx(kernel_twin(x, y), rel=1e-9)
    assert std == pytest.approx(0, abs=1e-12)


def test_kernel_distance_has_mean_and_deviation_of_its_subsets():
    x, y = normals(20, 3), normals(14, 3, seed=1)
    random = torch.Generator().manual_seed(7)
    twins = []
    for _ in range(3):
        rows = [torch.randperm(len(z), generator=random)[:5] for z in (x, y)]
        twins.append(kernel_twin(x[rows[0]], y[rows[1]]))
    found = kernel_distance(x, y, num_subsets=3, subset_size=5, seed=7)
    assert found == pytest.approx((np.mean(twins), np.std(twins)), rel=1e-9)
    for few in ((x, y, 3, 1), (x, y, 3, 15), (y, x, 3, 15)):
        with pytest.raises(SemmixError, match="use 2 to 14"):
            kernel_distance(*few)
    assert kernel_distance(x, y, 1, 2)[1] == 0


def test_kernel_distance_is_unbiased_over_subsets():
    x, y = normals(600, 4), normals(600, 4, seed=0, shift=0.4)
    whole, _ = kernel_distance(x, y, 1, 600)
    mean, std = kernel_distance(x, y, 400, 50)
    assert abs(mean - whole) < 5 * std / 400**0.5
    assert kernel_distance(x, y, 5, 50, seed=1) == kernel_distance(x, y, 5, 50, seed=1)
    assert kernel_distance(x, y, 5, 50, seed=1) != kernel_distance(x, y, 5, 50, seed=2)
    with pytest.raises(SemmixError, match="use 2 to 600"):
        kernel_distance(x, y)


@pytest.mark.parametrize("batch_size", [1, 7, 100])
def test_statistics_do_not_depend_on_the_batches(batch_size):
    features = normals(100, 6) + 1e4  # far from zero: sums of squares would lose digits
    statistics = feature_statistics(features.split(batch_size))
    assert statistics.num == 100
    twin = features.double().numpy()
    np.testing.assert_allclose(statistics.mean, twin.mean(0), rtol=1e-12)
    np.testing.assert_allclose(statistics.covariance, np.cov(twin.T), rtol=1e-9, atol=1e-9)


def test_statistics_need_two_rows():
    with pytest.raises(SemmixError, match="at least 2"):
        feature_statistics([torch.ones(1, 3)])
    assert feature_statistics([torch.tensor([[1.0], [3.0]])]).covariance.item() == 2
    with pytest.raises(SemmixError, match="at least 2"):
        feature_statistics([])


def test_nearest_neighbours_are_the_nearest(monkeypatch):
    monkeypatch.setattr(quality, "CHUNK", 4)  # several chunks of queries and of the pool
    queries, pool = normals(11, 5), normals(90, 5, seed=1)
    pool[77] = queries[6]
    distances, rows = nearest_neighbours(queries, pool)
    for query, distance, row in zip(queries, distances, rows, strict=True):
        all_distances = [float((query - p).norm()) for p in pool]
        assert row == int(np.argmin(all_distances))
        assert distance == pytest.approx(min(all_distances))
    assert rows[6] == 77
    assert distances[6] == 0
    with pytest.raises(SemmixError, match="pool"):
        nearest_neighbours(queries, pool[:0])


def test_copies_are_found():
    everything = normals(3000, 8)
    train, held_out, fresh = everything[:1000], everything[1000:2000], everything[2000:]
    copied = torch.cat([train[:300] + 1e-3, fresh[:700]])
    honest, caught = (measure_copying(x, held_out, train) for x in (fresh, copied))
    assert honest.near < 0.03
    assert honest.samples == pytest.approx(honest.held_out, rel=0.1)
    assert 0.3 <= caught.near < 0.33
    assert measure_copying(train, held_out, train).samples == 0
    twice = torch.cat([train[:100], held_out])  # held-out images that are training images, too
    assert measure_copying(train, twice, train).near == 1


def test_the_median_of_an_even_number_lies_between_the_middle_two():
    train = torch.zeros(1, 1)
    found = measure_copying(torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0], [7.0]]), train)
    assert (found.samples, found.held_out) == (1.5, 5.0)


@pytest.fixture(scope="module")
def data():
    return load_dataset("digits", train_size=200)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("run")
    save_classifier(classifier("small", 10, 1, 8), "small", (1, 8, 8), folder)
    return folder


class MeanDigits:
    """A generator that knows the mean of each class, and that pixels vary around it."""

    name, image_shape, num_classes = "means", (1, 8, 8), 10
    digest, device = "0123456789abcdef", torch.device("cpu")

    def __init__(self, split, trained_on=None):
        images = split.images.float() / 127.5 - 1
        self.means = torch.stack([images[split.labels == k].mean(0) for k in range(10)])
        self.spread, self.trained_on = float(images.var(0).mean() ** 0.5), trained_on

    def denoise(self, x, sigma, class_weights):
        mean = torch.tensordot(class_weights, self.means, 1)
        shrink = self.spread**2 / (self.spread**2 + sigma.reshape(-1, 1, 1, 1) ** 2)
        return mean + shrink * (x - mean)


def test_real_images_are_nearer_than_noise(data, run):
    encoder = load_encoder(f"classifier:{run}")
    noise = torch.randint(0, 256, data.val.images.shape, dtype=torch.uint8)
    train, val, bad = (encoder.embed(x) for x in (data.train.images, data.val.images, noise))
    assert 10 * frechet_of(val, train) < frechet_of(bad, train)
    assert 10 * kernel_distance(val, train, 10, 100)[0] < kernel_distance(bad, train, 10, 100)[0]


def test_recognition_is_the_share_of_right_answers(data, run):
    network = load_encoder(f"classifier:{run}").network
    with torch.no_grad():
        own = network(data.val.images).argmax(1)
    assert recognition_rate(network, data.val.images, own) == 1
    half = torch.where(torch.arange(len(own)) % 2 == 0, own, (own + 1) % 10)
    assert recognition_rate(network, data.val.images, half) == pytest.approx(0.5, abs=0.01)


def test_a_score_names_what_it_was_measured_with(data, run):
    encoder = load_encoder(f"classifier:{run}")
    generator = MeanDigits(data.train, data.train.digest)
    score = score_generator(
        generator, data, encoder, num_samples=95, sampler=SAMPLER, classifier=encoder.network, few=True
    )
    assert score.num_samples == 100  # equally many of each class
    assert (score.num_reference, score.reference_digest) == (200, data.train.digest)
    assert score.recognised is not None
    assert score.recognised_real is not None
    for line in score.lines()[:2]:
        assert f"classifier:{run} {encoder.digest[:12]}" in line
        assert "100 samples of means 0123456789ab against 200 images of digits train" in line
    assert len(score.lines()) == 5
    assert all("100 samples of means" in line for line in score.lines())


def test_a_score_measures_the_generators_own_samples(data, run):
    """The numbers are those of the parts, and a worse generator has worse ones."""
    encoder = load_encoder(f"classifier:{run}")
    settings = {"num_samples": 200, "sampler": SAMPLER, "few": True}
    good = score_generator(MeanDigits(data.train), data, encoder, **settings)
    blind = MeanDigits(data.train)
    blind.means = torch.zeros_like(blind.means)
    bad = score_generator(blind, data, encoder, **settings)
    assert good.frechet < bad.frechet
    assert good.kernel < bad.kernel
    assert good.recognised is None
    assert len(good.lines()) == 4

    samples = encoder.embed(sample_classes(MeanDigits(data.train), 20, SAMPLER).flatten(0, 1))
    assert good.frechet == pytest.approx(frechet_of(samples, encoder.embed(data.train.images)))
    on_val = score_generator(MeanDigits(data.train), data, encoder, reference="val", **settings)
    assert on_val.frechet == pytest.approx(frechet_of(samples, encoder.embed(data.val.images)))
    assert on_val.feature_copying == good.feature_copying


def test_a_score_is_made_of_its_parts(data, run):
    encoder = load_encoder(f"classifier:{run}")
    network = encoder.network
    score = score_generator(
        MeanDigits(data.train),
        data,
        encoder,
        num_samples=50,
        sampler=SAMPLER,
        reference="val",
        classifier=network,
        seed=3,
        few=True,
    )
    images = sample_classes(MeanDigits(data.train), 5, SAMPLER, seed=3).flatten(0, 1)
    sets = (images, data.val.images, data.train.images)
    features = [encoder.embed(x) for x in sets]
    pixels = [x.flatten(1).float() / 255 for x in sets]
    for found, spaces in ((score.feature_copying, features), (score.pixel_copying, pixels)):
        parts = measure_copying(*spaces)
        assert (found.samples, found.held_out) == pytest.approx((parts.samples, parts.held_out))
        assert found.near == parts.near
    parts = kernel_distance(features[0], features[1], num_subsets=100, subset_size=25)
    assert (score.kernel, score.kernel_std) == pytest.approx(parts)
    labels = torch.arange(10).repeat_interleave(5)
    assert score.recognised == recognition_rate(network, images, labels)
    assert score.recognised_real == recognition_rate(network, data.val.images, data.val.labels)
    assert (score.seed, score.num_samples, score.num_reference) == (3, 50, len(data.val))
    assert (score.reference, score.reference_digest) == ("digits val", data.val.digest)


def test_queries_are_spread_evenly():
    rows = torch.arange(10)[:, None]
    assert quality._spread(rows, 4).flatten().tolist() == [0, 3, 6, 9]
    assert torch.equal(quality._spread(rows, 20), rows)


def test_few_samples_and_other_data_are_refused(data, run, monkeypatch):
    encoder = load_encoder(f"classifier:{run}")
    generator = MeanDigits(data.train)
    with monkeypatch.context() as patch, pytest.raises(SemmixError, match=r"100\n.*--few"):
        patch.setattr(quality, "MIN_SAMPLES", 150)  # of which there are enough real ones
        score_generator(generator, data, encoder, sampler=SAMPLER, num_samples=100)
    with pytest.raises(SemmixError, match=r"200\n.*--few"):  # the reference is what is small
        score_generator(generator, data, encoder, sampler=SAMPLER)
    with pytest.raises(SemmixError, match="learned from another split"):
        other = MeanDigits(data.train, trained_on="digest of other images")
        score_generator(other, data, encoder, sampler=SAMPLER, few=True)
    generator.num_classes = 9
    with pytest.raises(SemmixError, match="generator and data differ"):
        score_generator(generator, data, encoder, sampler=SAMPLER, few=True)


class UnwantedGenerator(MeanDigits):
    """Fails where it is asked for a sample."""

    def denoise(self, x, sigma, class_weights):
        raise AssertionError("sampled before all else was checked")


def test_as_many_samples_as_wanted_are_enough(data, run, monkeypatch):
    monkeypatch.setattr(quality, "MIN_SAMPLES", 100)
    with pytest.raises(AssertionError, match="sampled"):
        encoder, generator = load_encoder(f"classifier:{run}"), UnwantedGenerator(data.train)
        score_generator(generator, data, encoder, sampler=SAMPLER, num_samples=100)


def test_what_does_not_fit_is_refused_before_a_sample_is_drawn(data, run):
    encoder, generator = load_encoder(f"classifier:{run}"), UnwantedGenerator(data.train)
    colours = torch.zeros(1, 3, 8, 8, dtype=torch.uint8)
    with pytest.raises(SemmixError, match="3 channels, it takes 1"):
        encoder.embed(colours)
    with pytest.raises(SemmixError, match="knows 9, digits has 10"):
        score_generator(generator, data, encoder, sampler=SAMPLER, few=True, classifier=classifier("small", 9, 1, 8))

    class Broken(type(encoder)):
        def embed(self, images):
            raise SemmixError("cannot read", "images", "name another")

    with pytest.raises(SemmixError, match="cannot read"):
        score_generator(generator, data, Broken(str(run), torch.device("cpu")), sampler=SAMPLER, few=True)


@pytest.mark.parametrize(
    ("num_classes", "shape", "extractor", "recogniser"),
    [
        (10, (1, 16, 16), r"takes \(1, 16, 16\), they are \(1, 8, 8\)", r"takes \(1, 16, 16\)"),
        (9, (1, 8, 8), None, "knows 9, there are 10"),
        (10, (3, 8, 8), None, None),  # grey images are repeated
    ],
)
def test_the_command_takes_runs_of_such_images_alone(data, run, tmp_path, num_classes, shape, extractor, recogniser):
    network = classifier("small", num_classes, *shape[:2])
    save_classifier(network, "small", shape, tmp_path)
    for name, used, complaint in (
        ("extractor", f"--extractor classifier:{tmp_path}", extractor),
        ("classifier", f"--extractor classifier:{run} --classifier {tmp_path}", recogniser),
    ):
        arguments = f"no-such-{name} digits {used} --few --train-size 200".split()
        # what fits gets as far as the generator, which is not there
        with pytest.raises(SemmixError, match=complaint or f"no-such-{name}"):
            tyro.cli(GeneratorScoreCommand, args=arguments).run()


def test_few_images_have_a_spread_that_means_something(data, run):
    """Subsets of all images would be one and the same."""
    score = score_generator(
        MeanDigits(data.train), data, load_encoder(f"classifier:{run}"), num_samples=200, sampler=SAMPLER, few=True
    )
    assert score.kernel_std > 0.01 * abs(score.kernel)


def test_the_command_prints_and_writes(data, run, tmp_path, capsys):
    torch.manual_seed(0)
    config = network_preset("digits", (1, 8, 8), 10)
    artifact = begin_artifact(tmp_path / "tiny", "generator.json", "generator", {})
    save_generator(artifact, config, EDMDenoiser(config).state_dict(), data.train.digest)
    arguments = (
        f"{tmp_path / 'tiny'} digits --extractor classifier:{run} --classifier {run} --samples 50 "
        f"--few --num-steps 2 --batch-size 50 --out {tmp_path / 'score.json'} --train-size 200 "
        "--reference val --seed 3"
    ).split()
    tyro.cli(GeneratorScoreCommand, args=arguments).run()
    printed = capsys.readouterr().out
    assert "Fréchet distance" in printed
    assert "50 samples of tiny" in printed
    assert "recognised as their class" in printed
    written = json.loads((tmp_path / "score.json").read_text())
    assert written["num_samples"] == 50
    assert (written["reference"], written["seed"]) == ("digits val", 3)
    assert written["sampler"]["precision"] == "float32"
    assert written["pixel_copying"]["held_out"] > 0
