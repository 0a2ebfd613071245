"""The loop that fills a store: one noise per set, and nothing but the set decides an image."""

import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from semmix.cli.generator import GeneratorSampleCommand
from semmix.cli.main import main
from semmix.core.artifact import begin_artifact
from semmix.core.errors import SemmixError
from semmix.core.seeds import fold_seed
from semmix.core.settings import plain
from semmix.diffusion.edm import EDMConfig, EDMDenoiser
from semmix.diffusion.sampling import (
    MixConfig,
    check_knows_classes,
    make_sampler,
    make_solver,
    sample_classes,
    sample_padded,
    to_uint8,
    write_grid,
)
from semmix.diffusion.solvers import karras_sigmas, solver
from semmix.diffusion.stored import MANIFEST, NetworkGenerator, save_generator
from semmix.mixing.draw import mix, set_noise
from semmix.mixing.plan import MixPlan, all_pairs, mix_labels, tournament_pairs
from semmix.mixing.store import MixSets

CONFIG = MixConfig(num_steps=4, batch_size=8)


@pytest.fixture(scope="module")
def generator():
    torch.manual_seed(0)
    config = EDMConfig(
        resolution=8,
        channels=1,
        num_classes=3,
        model_channels=8,
        channel_mult=(1, 2),
        num_blocks=1,
        attn_resolutions=(4,),
    )
    network = EDMDenoiser(config).eval().requires_grad_(False)
    for parameter in network.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)
    return NetworkGenerator("tiny", network, (1, 8, 8), 3, "split", "digest")


def plan(**changes):
    settings = {"num_classes": 3, "num_sets": 7, "pairs": all_pairs(3), "sets_per_shard": 2}
    return MixPlan(**{**settings, **changes})


def test_members_of_a_set_differ_through_the_label_alone(generator, tmp_path):
    store = mix(generator, plan(), CONFIG, tmp_path)
    sample = make_sampler(generator, CONFIG)
    for n in range(store.num_sets):
        i, j = store.pair(n)
        noise = set_noise(store.plan, n, generator.image_shape).expand(8, -1, -1, -1)
        first_to_last = mix_labels(i, j, torch.tensor(store.plan.lams), 3)
        assert torch.equal(store.read_set(n), sample(noise, first_to_last))
        pure = sample(noise, torch.eye(3)[[j] * 4 + [i] * 4])  # plain class samples
        assert torch.equal(store.read_set(n)[0], pure[0])
        assert torch.equal(store.read_set(n)[-1], pure[-1])
        assert not torch.equal(pure[0], pure[-1])


def test_what_a_killed_process_left_is_removed(generator, tmp_path):
    store = mix(generator, plan(), CONFIG, tmp_path / "sets")
    left = store.folder / ".manifest.json.e1b82e73"
    left.write_text("half a manifest")
    mix(generator, plan(), CONFIG, store.folder)
    assert not left.exists()
    assert store.verify() == []


def test_store_names_generator_and_settings(generator, tmp_path):
    store = mix(generator, plan(num_sets=2), CONFIG, tmp_path)
    inputs = store.artifact.manifest["inputs"]
    assert inputs["generator"] == {"digest": "digest", "name": "tiny", "trained_on": "split"}
    assert inputs["sampler"]["precision"] == "float32"
    assert inputs["sampler"]["solver"] == "dpmpp_2m"
    assert store.finished


def test_settings_are_decided_by_the_device_unless_named():
    for device, decided in (("cpu", ("float32", "off", 32)), ("cuda", ("bfloat16", "on", 512))):
        auto = MixConfig().resolve(torch.device(device))
        assert (auto.precision, auto.compile, auto.batch_size) == decided
        named = MixConfig(precision="bfloat16", compile="off", batch_size=77)
        assert named.resolve(torch.device(device)) == named


def test_the_defaults_name_the_stores_made_with_them():
    assert plain(MixConfig()) == {
        "solver": "dpmpp_2m",
        "num_steps": 18,
        "sigma_min": 0.002,
        "sigma_max": 80.0,
        "rho": 7.0,
        "guidance": 1.0,
        "batch_size": 512,
        "precision": "auto",
        "compile": "auto",
    }
    assert MixConfig().grain == 0


class Grey:
    """Pixels are normal around grey, so E[clean | x] is a formula."""

    name, image_shape, num_classes, trained_on = "grey", (1, 8, 8), 3, None
    digest, device = "grey", torch.device("cpu")

    def denoise(self, x, sigma, class_weights):
        return x * 0.3**2 / (0.3**2 + sigma.reshape(-1, 1, 1, 1) ** 2)


@pytest.mark.parametrize("name", ["dpmpp_2m", "heun"])
def test_the_start_is_the_noise_at_the_first_level(name):
    noise, weights = torch.randn(2, 1, 8, 8), torch.eye(3)[:2]
    config = MixConfig(solver=name, num_steps=5, sigma_min=0.01, sigma_max=20.0, rho=5.0)
    levels = karras_sigmas(5, 0.01, 20.0, 5.0)
    expected = solver(name)(lambda x, s: x * 0.09 / (0.09 + s**2), 20 * noise, levels)
    torch.testing.assert_close(make_solver(Grey(), config)(noise, weights), expected)


def test_the_noise_of_a_set_is_normal_and_follows_its_seed():
    store = plan(seed=4)
    fixed = torch.Generator().manual_seed(store.set_seed(2))
    assert torch.equal(set_noise(store, 2, (3, 4, 4)), torch.randn(3, 4, 4, generator=fixed))


class Grainy(Grey):
    """The same, but overlooking a tenth of the noise where there is little."""

    def denoise(self, x, sigma, class_weights):
        overlooked = torch.where(sigma < 0.1, 0.1, 0.0).reshape(-1, 1, 1, 1)
        return x - (x - super().denoise(x, sigma, class_weights)) / (1 + overlooked)


def test_grain_is_noise_the_network_overlooks():
    noise, weights = torch.randn(16, 1, 8, 8), torch.eye(3)[torch.arange(16) % 3]
    clean, some = (make_sampler(Grey(), MixConfig(grain=grain))(noise, weights) for grain in (0.0, 0.1))
    assert torch.equal(some, make_sampler(Grainy(), MixConfig())(noise, weights))
    assert 1.002 < some.float().std() / clean.float().std() < 1.01


@pytest.mark.parametrize("added", [{"grain": 0.02}, {"emphasis": 1.3}])
def test_settings_that_came_later_leave_the_names_of_older_stores_alone(added):
    assert not added.keys() & plain(MixConfig()).keys()
    assert plain(MixConfig(**added)) == {**plain(MixConfig()), **added}


def test_senseless_settings_are_refused():
    for emphasis in (0, -1, 11, math.nan):
        with pytest.raises(SemmixError, match="unusable emphasis"):
            MixConfig(emphasis=emphasis)
    with pytest.raises(SemmixError, match="some hundredths"):
        MixConfig(grain=1.002)
    with pytest.raises(SemmixError, match="rho must be positive"):
        MixConfig(rho=0)


class Coarse(Grey):
    """Answers as a GPU's networks do."""

    knows_no_class = True

    def denoise(self, x, sigma, class_weights):
        return super().denoise(x, sigma, class_weights).bfloat16()


@pytest.mark.parametrize("guidance", [1.0, 2.0])
def test_solvers_compute_in_float32_whatever_the_network_answers(guidance):
    noise, weights = torch.randn(4, 1, 8, 8), torch.eye(3)[[0, 1, 2, 0]]
    assert make_solver(Coarse(), MixConfig(guidance=guidance))(noise, weights).dtype == torch.float32


class Broken(Grey):
    """Diverges for one class."""

    def denoise(self, x, sigma, class_weights):
        return super().denoise(x, sigma, class_weights) / (1 - class_weights[:, 2]).view(-1, 1, 1, 1)


def test_a_broken_generator_fills_no_store(tmp_path):
    with pytest.raises(SemmixError, match="drew NaN or infinity"):
        mix(Broken(), plan(), CONFIG, tmp_path)
    assert not list(tmp_path.rglob("*.safetensors"))


@pytest.mark.parametrize("batch_size", [5, 16, 40])
def test_batch_size_does_not_matter(generator, tmp_path, batch_size):
    expected = mix(generator, plan(), CONFIG, tmp_path / "a").read_all()
    config = MixConfig(num_steps=4, batch_size=batch_size)
    assert torch.equal(mix(generator, plan(), config, tmp_path / "b").read_all(), expected)


def test_shard_size_and_prefix_do_not_matter(generator, tmp_path):
    expected = mix(generator, plan(), CONFIG, tmp_path / "a").read_all()
    other = mix(generator, plan(num_sets=5, sets_per_shard=4), CONFIG, tmp_path / "b")
    assert torch.equal(other.read_all(), expected[:5])


def test_missing_shards_are_made_again_to_the_byte(generator, tmp_path):
    store = mix(generator, plan(), CONFIG, tmp_path)
    path = store.shard_path(1)
    before = path.read_bytes()
    path.unlink()
    mix(generator, plan(), CONFIG, tmp_path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("bad", [1, 3])
def test_a_shard_that_cannot_be_written_ends_the_work(generator, tmp_path, monkeypatch, bad):
    write = MixSets.write_shard

    def write_until_full(store, k, images):
        if k == bad:
            raise OSError("no space left")
        write(store, k, images)

    monkeypatch.setattr(MixSets, "write_shard", write_until_full)
    with pytest.raises(OSError, match="no space left"):
        mix(generator, plan(), CONFIG, tmp_path)
    assert len(list(tmp_path.glob("shard-*"))) == bad  # those before it are there
    monkeypatch.undo()
    whole = mix(generator, plan(), CONFIG, tmp_path)
    assert whole.missing(0, 1) == []


def test_other_settings_are_refused(generator, tmp_path):
    mix(generator, plan(num_sets=1), CONFIG, tmp_path)
    with pytest.raises(SemmixError, match="other inputs"):
        mix(generator, plan(num_sets=1), MixConfig(num_steps=5), tmp_path)


PROCESS = """
import sys, torch
from semmix.mixing.plan import MixPlan, all_pairs, tournament_pairs
from semmix.diffusion.sampling import MixConfig
from semmix.mixing.draw import mix

class Toy:
    name, image_shape, num_classes, trained_on, digest = "toy", (1, 4, 4), 3, None, "1"
    device = torch.device("cpu")
    def denoise(self, x, sigma, class_weights):
        centre = (class_weights @ torch.tensor([-0.5, 0.1, 0.6])).reshape(-1, 1, 1, 1)
        return centre + 0.09 / (0.09 + sigma.reshape(-1, 1, 1, 1) ** 2) * (x - centre)

plan = MixPlan(num_classes=3, num_sets=11, pairs=all_pairs(3), sets_per_shard=2)
mix(Toy(), plan, MixConfig(num_steps=5, batch_size=8), sys.argv[1])
"""


def test_number_of_processes_does_not_matter(tmp_path):
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, str(tmp_path / str(world_size))],
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(world_size)},
        )
        for world_size in (1, 2, 3)
        for rank in range(world_size)
    ]
    assert [process.wait() for process in processes] == [0] * 6
    one, two, three = ({path.name: path.read_bytes() for path in (tmp_path / str(n)).iterdir()} for n in (1, 2, 3))
    assert len(one) == 7  # six shards and the manifest
    assert one == two == three


def test_class_samples_do_not_depend_on_their_number(generator, tmp_path):
    few = sample_classes(generator, 2, CONFIG)
    many = sample_classes(generator, 5, CONFIG)
    assert few.shape == (3, 2, 1, 8, 8)
    assert torch.equal(many[:, :2], few)
    assert not torch.equal(sample_classes(generator, 2, CONFIG, seed=1), few)
    write_grid(tmp_path / "grid.png", few, pixels=16)
    picture = Image.open(tmp_path / "grid.png")
    assert picture.size == (2 * 9 * 2, 3 * 9 * 2)  # two columns, three rows, a line, twice as big
    assert picture.getpixel((0, 0)) == few[0, 0, 0, 0, 0]


@pytest.mark.parametrize("batch_size", [2, 8])
def test_every_class_sample_starts_from_a_noise_of_its_own(generator, batch_size):
    config = replace(CONFIG, batch_size=batch_size)
    sample = make_sampler(generator, config)
    samples = sample_classes(generator, 2, config, seed=5)
    for k in range(3):
        for m in range(2):
            fixed = torch.Generator().manual_seed(fold_seed("class", 5, k, m))
            noise = torch.randn(1, 8, 8, generator=fixed).expand(batch_size, -1, -1, -1)
            assert torch.equal(samples[k, m], sample(noise, torch.eye(3)[[k] * batch_size])[0])


def test_a_grid_has_a_row_for_each_class(tmp_path):
    images = torch.arange(2 * 3 * 3 * 2 * 4).reshape(2, 3, 3, 2, 4).to(torch.uint8)
    write_grid(tmp_path / "grid.png", images, pixels=1)
    picture = torch.from_numpy(np.array(Image.open(tmp_path / "grid.png")))  # [6, 15, 3]
    for row in range(2):
        for column in range(3):
            tile = picture[3 * row : 3 * row + 3, 5 * column : 5 * column + 5].permute(2, 0, 1)
            assert torch.equal(tile[:, :2, :4], images[row, column])
            assert (tile[:, 2] == 128).all()
            assert (tile[:, :, 4] == 128).all()


def test_few_class_samples_are_not_filled_up_to_a_batch(generator):
    shown = []

    class Counted:
        def __getattr__(self, name):
            return getattr(generator, name)

        def denoise(self, x, sigma, class_weights):
            shown.append(len(x))
            return generator.denoise(x, sigma, class_weights)

    samples = sample_classes(Counted(), 2, replace(CONFIG, batch_size=512))
    assert set(shown) == {6}
    many = sample_classes(Counted(), 11, replace(CONFIG, batch_size="auto"))
    assert set(shown) == {6, 32}
    assert torch.equal(samples, many[:, :2])
    assert torch.equal(samples, sample_classes(generator, 2, CONFIG))


def test_a_picture_of_samples_is_a_png(tmp_path):
    with pytest.raises(SemmixError, match=r"end its name in \.png"):
        GeneratorSampleCommand(generator="zoo:any", out=tmp_path / "samples.jpg")


def test_a_row_of_no_samples_is_refused(generator):
    with pytest.raises(SemmixError, match="at least 1"):
        sample_classes(generator, 0, CONFIG)


@pytest.mark.parametrize(
    ("num_classes", "command", "words"),
    [
        (0, "generator sample lone", "knows no classes to draw: 0 in lone"),
        (0, "mix lone", "knows no classes to mix: 0 in lone"),
        (1, "mix lone", "knows no classes to mix: 1 in lone"),
        (1, "mix lone --pairs 0:1", "knows no classes to mix: 1 in lone"),
    ],
)
def test_too_few_classes_are_named(capsys, tmp_path, monkeypatch, num_classes, command, words):
    monkeypatch.chdir(tmp_path)
    config = EDMConfig(
        resolution=8,
        channels=1,
        num_classes=num_classes,
        model_channels=8,
        channel_mult=(1,),
        num_blocks=1,
        attn_resolutions=(),
    )
    artifact = begin_artifact(Path("lone"), MANIFEST, "generator", {})
    save_generator(artifact, config, EDMDenoiser(config).state_dict(), None)
    assert main([*command.split(), "--out", "out", "--device", "cpu"]) == 1
    assert words in " ".join(capsys.readouterr().err.split())
    assert not Path("out").exists()


def test_as_many_classes_as_a_task_needs_are_enough():
    check_knows_classes(Grey(), 3)
    with pytest.raises(SemmixError, match="3 in grey, 4 at least"):
        check_knows_classes(Grey(), 4)


def test_padding_shows_one_shape_to_the_sampler():
    seen = []

    def sample(noise, class_weights):
        seen.append(noise.shape[0])
        return noise.to(torch.uint8)

    images = sample_padded(sample, torch.arange(7.0).reshape(7, 1, 1, 1), torch.eye(7), 3)
    assert seen == [3, 3, 3]
    assert images.flatten().tolist() == [0, 1, 2, 3, 4, 5, 6]


def test_rounding_is_edms():
    values = torch.tensor([-1.5, -1.0, -0.5, 0.0, 0.003, 0.5, 1.0, 1.5])
    assert to_uint8(values).tolist() == [0, 0, 64, 128, 128, 191, 255, 255]


def test_latent_generators_are_decoded(tmp_path):
    class Latent:
        name, image_shape, num_classes, trained_on, digest = "latent", (3, 4, 4), 2, None, "1"
        latent_shape, device = (1, 2, 2), torch.device("cpu")

        def denoise(self, x, sigma, class_weights):
            return class_weights[:, :1, None, None].expand_as(x) - 0.5

        def decode(self, latents):
            return latents.repeat(1, 3, 2, 2)

    two = MixPlan(num_classes=2, num_sets=1, pairs=((0, 1),), lams=(0.0, 1.0))
    images = mix(Latent(), two, CONFIG, tmp_path).read_set(0)
    assert images.shape == (2, 3, 4, 4)
    assert images[0].unique().tolist() == [64]
    assert images[1].unique().tolist() == [191]


def test_user_mistakes_are_explained(generator, tmp_path):
    with pytest.raises(SemmixError, match="differ in classes"):
        mix(generator, plan(num_classes=4), CONFIG, tmp_path)
    with pytest.raises(SemmixError, match="solver"):
        MixConfig(solver="huen")
    for few in ({"num_steps": 1}, {"batch_size": 0}):
        with pytest.raises(SemmixError, match="at least 2 steps and 1 image"):
            MixConfig(**few)
    MixConfig(num_steps=2, batch_size=1)
    for levels in (
        {"sigma_min": 90},
        {"sigma_min": 80},
        {"sigma_min": 0},
        {"sigma_max": math.inf},
        {"sigma_max": math.nan},
    ):
        with pytest.raises(SemmixError, match="sigma_min < sigma_max"):
            MixConfig(**levels)
    for rho in (0.001, 0.01, 0.2, 1e15, math.inf):
        with pytest.raises(SemmixError, match="no noise levels come of these: rho="):
            MixConfig(rho=rho)
    for rho in (0.5, 1, 7, 20, 1000):
        MixConfig(rho=rho)


class Shifted:
    """Images of class 0 are at 0.3, of class 1 at -0.1, of no class at 0."""

    name, image_shape, num_classes, trained_on, digest = "toy", (1, 2, 2), 2, None, "1"
    device, knows_no_class, takes_emphasis = torch.device("cpu"), True, True

    def denoise(self, x, sigma, class_weights):
        return (class_weights @ torch.tensor([0.3, -0.1])).reshape(-1, 1, 1, 1).expand_as(x)


def test_emphasis_moves_away_from_the_mean_of_all_classes():
    noise, mixed = torch.randn(3, 1, 2, 2), mix_labels(0, 1, torch.tensor([0.0, 0.75, 1.0]), 2)
    for emphasis in (1.0, 1.5, 0.5):
        sample = make_sampler(Shifted(), MixConfig(num_steps=4, batch_size=3, emphasis=emphasis))
        expected = to_uint8(0.1 + emphasis * (torch.tensor([-0.1, 0.2, 0.3]) - 0.1))
        assert torch.equal(sample(noise, mixed)[:, 0, 0, 0], expected)


def test_emphasis_needs_a_generator_that_takes_it(generator, tmp_path):
    with pytest.raises(SemmixError, match=r"beyond 0 and 1: grey\n.*our own networks"):
        make_sampler(Grey(), MixConfig(emphasis=1.3))
    with pytest.raises(SemmixError, match="beyond 0 and 1"):
        mix(Grey(), plan(), MixConfig(emphasis=1.3), tmp_path / "mixsets")
    assert not (tmp_path / "mixsets").exists()
    noise, weights = torch.randn(3, *generator.image_shape), torch.eye(3)
    plain, some = (
        make_sampler(generator, replace(CONFIG, emphasis=emphasis))(noise, weights) for emphasis in (1.0, 3.0)
    )
    assert not torch.equal(plain, some)


def test_guidance_moves_away_from_no_class(tmp_path):
    noise, mixed = torch.randn(3, 1, 2, 2), mix_labels(0, 1, torch.tensor([0.0, 0.75, 1.0]), 2)
    for guidance in (1.0, 2.0, 0.5):
        sample = make_sampler(Shifted(), MixConfig(num_steps=4, batch_size=3, guidance=guidance))
        expected = to_uint8(guidance * torch.tensor([-0.1, 0.2, 0.3]))
        assert torch.equal(sample(noise, mixed)[:, 0, 0, 0], expected)


def test_guidance_needs_a_generator_that_knows_no_class(generator, tmp_path):
    for unguided in (generator, Grey()):
        with pytest.raises(SemmixError, match="label dropout"):
            make_sampler(unguided, MixConfig(guidance=2.0))
    with pytest.raises(SemmixError, match="label dropout"):
        mix(generator, plan(), MixConfig(guidance=2.0), tmp_path / "mixsets")
    assert not (tmp_path / "mixsets").exists()  # none is claimed by what cannot begin


def test_sets_need_no_plan(generator, tmp_path):
    few = mix(generator, config=CONFIG, out=tmp_path / "few", num_sets=2, seed=5)
    assert few.plan == MixPlan(num_classes=3, num_sets=2, pairs=tournament_pairs(3), seed=5)
    every = mix(generator, config=CONFIG, out=tmp_path / "every", sets_per_pair=2)
    assert every.plan == MixPlan(num_classes=3, num_sets=6, pairs=all_pairs(3))
    assert repr(every) == f"MixSets('{tmp_path}/every': 6 sets of 8 images 1 x 8 x 8, 3 classes)"


def test_a_thousand_sets_are_drawn_unless_a_number_is_given(tmp_path):
    sets = mix(Grey(), config=MixConfig(num_steps=2, batch_size=4000), out=tmp_path)
    assert sets.plan == MixPlan(num_classes=3, num_sets=1000, pairs=all_pairs(3))


def test_a_generator_of_one_class_mixes_nothing(tmp_path):
    lone = Grey()
    lone.num_classes = 1
    with pytest.raises(SemmixError, match="knows no classes to mix"):
        mix(lone, out=tmp_path / "no")
    assert not (tmp_path / "no").exists()


def test_sets_are_counted_once(generator, tmp_path):
    with pytest.raises(SemmixError, match="given twice"):
        mix(generator, out=tmp_path / "no", num_sets=2, sets_per_pair=1)
    for named in ({"num_sets": 2}, {"sets_per_pair": 1}, {"seed": 1}):
        with pytest.raises(SemmixError, match="the plan says"):
            mix(generator, plan(), CONFIG, tmp_path / "no", **named)
    assert not (tmp_path / "no").exists()
