"""Model folders as the diffusers library writes them: small, randomly initialised, real."""

import json
import sys

import pytest
import torch

from semmix.core.errors import SemmixError
from semmix.diffusion import load_generator
from semmix.diffusion.adapters import load_adapter
from semmix.diffusion.sampling import MixConfig, make_sampler
from semmix.diffusion.solvers import heun, karras_sigmas
from semmix.mixing.draw import mix, set_noise
from semmix.mixing.plan import MixPlan, all_pairs

diffusers = pytest.importorskip("diffusers")
transformers = pytest.importorskip("transformers")

CPU = torch.device("cpu")
PROMPTS = ["a cat", "a dog", "an eel"]
CONFIG = MixConfig(num_steps=3, batch_size=4)
SCHEDULE = {"beta_start": 0.0001, "beta_end": 0.02, "prediction_type": "v_prediction"}
KINDS = ("diffusers", "dit", "sd")


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def lively(network):
    """Return the network with every weight drawn anew: fresh ones often answer zero."""
    for parameter in network.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)
    return network


def tiny_unet(**changes):
    settings = {
        "sample_size": 8,
        "in_channels": 1,
        "out_channels": 1,
        "block_out_channels": (8, 16),
        "layers_per_block": 1,
        "norm_num_groups": 4,
        "num_class_embeds": 3,
        "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
        "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
    }
    return lively(diffusers.UNet2DModel(**{**settings, **changes}))


def tiny_vae():
    return lively(
        diffusers.AutoencoderKL(
            down_block_types=("DownEncoderBlock2D",) * 2,
            up_block_types=("UpDecoderBlock2D",) * 2,
            block_out_channels=(8, 8),
            latent_channels=4,
            norm_num_groups=4,
            sample_size=16,
        )
    )


def tiny_dit():
    return lively(
        diffusers.DiTTransformer2DModel(
            num_attention_heads=2,
            attention_head_dim=8,
            in_channels=4,
            out_channels=8,
            num_layers=3,
            sample_size=8,
            patch_size=2,
            num_embeds_ada_norm=3,
            norm_num_groups=4,
        )
    )


def tiny_tokenizer(folder):
    """Write a CLIP tokenizer that knows single letters."""
    folder.mkdir(parents=True)
    letters = [*"abcdefghijklmnopqrstuvwxyz"]
    ends = ["<|startoftext|>", "<|endoftext|>"]
    words = [*letters, *(f"{letter}</w>" for letter in letters), *ends]
    (folder / "vocab.json").write_text(json.dumps({w: n for n, w in enumerate(words)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "CLIPTokenizer", "model_max_length": 12})
    )
    return transformers.CLIPTokenizer.from_pretrained(folder)


def tiny_stable_diffusion(folder):
    text = transformers.CLIPTextModel(
        transformers.CLIPTextConfig(
            vocab_size=54,
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=12,
            bos_token_id=52,
            eos_token_id=53,
            pad_token_id=53,
        )
    )
    unet = lively(
        diffusers.UNet2DConditionModel(
            sample_size=8,
            block_out_channels=(8, 16),
            layers_per_block=1,
            norm_num_groups=4,
            cross_attention_dim=16,
            attention_head_dim=2,
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        )
    )
    return diffusers.StableDiffusionPipeline(
        vae=tiny_vae(),
        text_encoder=text,
        tokenizer=tiny_tokenizer(folder / "letters"),
        unet=unet,
        scheduler=diffusers.PNDMScheduler(
            beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", steps_offset=1, skip_prk_steps=True
        ),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """One folder for each kind, written by the library's own `save_pretrained`."""
    root = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    pipelines = {
        "diffusers": diffusers.DDPMPipeline(tiny_unet(), diffusers.DDPMScheduler(**SCHEDULE)),
        "dit": diffusers.DiTPipeline(tiny_dit(), tiny_vae(), diffusers.DDIMScheduler()),
        "sd": tiny_stable_diffusion(root),
    }
    for kind, pipeline in pipelines.items():
        pipeline.save_pretrained(root / kind)
    (root / "sd" / "semmix.json").write_text(json.dumps({"prompts": PROMPTS}))
    return {kind: root / kind for kind in pipelines}


@pytest.fixture(scope="module")
def generators(folders):
    return {kind: load_generator(f"{kind}:{folder}", "cpu") for kind, folder in folders.items()}


def input_shape(generator):
    return getattr(generator, "latent_shape", generator.image_shape)


def inputs(generator, num=4, sigma=2.0):
    x = torch.randn((num, *input_shape(generator)), generator=torch.Generator().manual_seed(1))
    return sigma * x, torch.full((num,), sigma)


@pytest.mark.parametrize("kind", KINDS)
def test_members_at_both_ends_are_the_plain_class_samples(generators, kind, tmp_path):
    generator = generators[kind]
    plan = MixPlan(num_classes=3, num_sets=3, pairs=all_pairs(3), lams=(0.0, 0.4, 0.6, 1.0))
    store = mix(generator, plan, CONFIG, tmp_path)
    sample = make_sampler(generator, CONFIG)
    for n, (i, j) in enumerate(plan.pairs):
        noise = set_noise(plan, n, input_shape(generator)).expand(4, -1, -1, -1)
        pure = sample(noise, torch.eye(3)[[j, j, i, i]])
        members = store.read_set(n)
        assert members.shape == (4, *generator.image_shape)
        assert torch.equal(members[0], pure[0])
        assert torch.equal(members[-1], pure[-1])
        assert len({tuple(member.flatten().tolist()) for member in members}) == 4


def test_one_hot_weights_answer_as_integers_do(folders, generators):
    labels = torch.tensor([0, 2, 1, 2])
    times = torch.tensor([10.0, 200.0, 500.0, 900.0])
    unet = diffusers.UNet2DModel.from_pretrained(folders["diffusers"] / "unet").eval()
    dit = diffusers.DiTTransformer2DModel.from_pretrained(folders["dit"] / "transformer").eval()
    for kind, network in (("diffusers", unet), ("dit", dit)):
        generator = generators[kind]
        x, _ = inputs(generator, sigma=1.0)
        rows = torch.eye(generator.num_rows)[labels]
        with torch.no_grad():
            plain = network(x, times, class_labels=labels).sample
            assert torch.equal(generator.network(x, times, rows), plain)
            mixed = generator.network(x, times, (rows + rows.roll(1, 0)) / 2)
        assert not torch.allclose(mixed, plain, atol=1e-4)


def test_every_block_of_a_dit_mixes_its_own_table(generators):
    blocks = generators["dit"].network.network.transformer_blocks
    tables = [block.norm1.emb.class_embedder.embedding_table for block in blocks]
    assert {type(table).__name__ for table in tables} == {"MixedEmbedding"}
    assert not torch.equal(tables[0].weight, tables[1].weight)


def test_prompts_are_embedded_as_the_pipeline_does(folders, generators):
    pipeline = diffusers.StableDiffusionPipeline.from_pretrained(
        folders["sd"], safety_checker=None, requires_safety_checker=False
    )
    with torch.no_grad():
        embeddings, none = pipeline.encode_prompt(PROMPTS, "cpu", 1, True)
    table = generators["sd"].network.prompts.weight
    torch.testing.assert_close(table[:3], embeddings)
    torch.testing.assert_close(table[3:], none[:1])


@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction", "sample"])
def test_denoised_images_are_those_of_the_librarys_scheduler(tmp_path, prediction):
    torch.manual_seed(0)
    unet = tiny_unet().eval()
    scheduler = diffusers.DDPMScheduler(
        prediction_type=prediction, beta_schedule="squaredcos_cap_v2", clip_sample=False
    )
    diffusers.DDPMPipeline(unet, scheduler).save_pretrained(tmp_path)
    generator = load_adapter(f"diffusers:{tmp_path}", CPU)
    noisy = torch.randn(2, 1, 8, 8)
    for time in (5, 300, 900):
        alpha = scheduler.alphas_cumprod[time]
        with torch.no_grad():
            answer = unet(noisy, time, torch.tensor([0, 2])).sample
            sigma = ((1 - alpha) / alpha).sqrt().expand(2)
            clean = generator.denoise(noisy / alpha.sqrt(), sigma, torch.eye(3)[[0, 2]])
        expected = scheduler.step(answer, time, noisy).pred_original_sample
        torch.testing.assert_close(clean, expected, rtol=2e-4, atol=2e-4)


@pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning")  # the library and numpy 2
def test_samples_are_those_of_the_librarys_heun_solver(folders, generators):
    """The same start, noise levels and network must end in the same image."""
    generator, steps = generators["diffusers"], 6
    scheduler = diffusers.HeunDiscreteScheduler(**SCHEDULE, use_karras_sigmas=True)
    scheduler.set_timesteps(steps)
    unet = diffusers.UNet2DModel.from_pretrained(folders["diffusers"] / "unet").eval()
    x = start = scheduler.sigmas[0] * inputs(generator, 2, 1.0)[0]
    labels = torch.tensor([0, 2])
    with torch.no_grad():
        for time in scheduler.timesteps:
            answer = unet(scheduler.scale_model_input(x, time), time, labels).sample
            x = scheduler.step(answer, time, x).prev_sample
        ours = heun(
            lambda x, s: generator.denoise(x, torch.full((2,), s), torch.eye(3)[labels]),
            start,
            karras_sigmas(steps, *generator.sigma_range),
        )
    torch.testing.assert_close(ours, x, rtol=1e-4, atol=1e-4)


def test_latents_are_decoded_as_the_pipeline_does(folders, generators):
    vae = diffusers.AutoencoderKL.from_pretrained(folders["dit"] / "vae").eval()
    generator = generators["dit"]
    latents = torch.randn(18, *generator.latent_shape)  # more than are decoded at once
    with torch.no_grad():
        expected = vae.decode(latents / 0.18215).sample
        torch.testing.assert_close(generator.decode(latents), expected)
    assert expected.shape[1:] == generator.image_shape == (3, 16, 16)


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_can_be_mixed_instead(folders, generators, kind):
    by_outputs = load_adapter(f"{kind}:{folders[kind]}", CPU, mixing="outputs")
    x, sigma = inputs(by_outputs)
    pure = [generators[kind].denoise(x, sigma, torch.eye(3)[[k] * 4]) for k in (0, 2)]
    mixed = by_outputs.denoise(x, sigma, torch.tensor([[0.25, 0, 0.75]] * 4))
    torch.testing.assert_close(mixed, 0.25 * pure[0] + 0.75 * pure[1])
    assert torch.equal(by_outputs.denoise(x, sigma, torch.eye(3)[[2] * 4]), pure[1])
    assert by_outputs.digest != generators[kind].digest


@pytest.mark.parametrize("kind", ["dit", "sd"])
def test_guidance_starts_from_no_class(folders, generators, kind):
    generator = generators[kind]
    guided = load_adapter(f"{kind}:{folders[kind]}", CPU, guidance=2.0)
    x, sigma = inputs(generator)
    weights = torch.tensor([[0.5, 0.5, 0]] * 4)
    no_class = generator.times.denoise(generator.network, x, sigma, torch.eye(4)[[3] * 4])
    expected = no_class + 2 * (generator.denoise(x, sigma, weights) - no_class)
    torch.testing.assert_close(guided.denoise(x, sigma, weights), expected)


def test_a_last_row_can_mean_no_class(folders):
    spec = f"diffusers:{folders['diffusers']}"
    guided = load_adapter(spec, CPU, num_classes=2, guidance=2.0)
    assert (guided.num_classes, guided.num_rows) == (2, 3)
    x, sigma = inputs(guided)
    assert guided.denoise(x, sigma, torch.eye(2)[[0, 1, 1, 0]]).shape == x.shape
    with pytest.raises(SemmixError, match="row for no class"):
        load_adapter(spec, CPU, guidance=2.0)
    with pytest.raises(SemmixError, match="does not fit the classes"):
        load_adapter(spec, CPU, num_classes=5)


def test_the_digest_names_weights_and_settings(folders, generators, tmp_path):
    generator = generators["diffusers"]
    assert load_generator(f"diffusers:{folders['diffusers']}", "cpu").digest == generator.digest
    torch.manual_seed(5)
    diffusers.DDPMPipeline(tiny_unet(), diffusers.DDPMScheduler()).save_pretrained(tmp_path)
    assert load_adapter(f"diffusers:{tmp_path}", CPU).digest != generator.digest
    (tmp_path / "semmix.json").write_text('{"trained_on": "abc"}')
    assert load_adapter(f"diffusers:{tmp_path}", CPU).trained_on == "abc"
    assert generator.name == "diffusers:diffusers"
    assert repr(generator) == "Generator('diffusers:diffusers': 1 x 8 x 8, 3 classes, LabelNetwork on cpu)"
    assert generator.trained_on is None


def test_pickled_weights_are_refused(tmp_path):
    pipeline = diffusers.DDPMPipeline(tiny_unet(), diffusers.DDPMScheduler())
    pipeline.save_pretrained(tmp_path, safe_serialization=False)
    with pytest.raises(SemmixError, match="safetensors"):
        load_adapter(f"diffusers:{tmp_path}", CPU)


@pytest.mark.parametrize("kind", ["diffusers", "dit", "sd"])
def test_networks_are_frozen_and_ready_to_predict(generators, kind):
    network = generators[kind].network
    assert not (network.unet if kind == "sd" else network.network).training
    assert not any(parameter.requires_grad for parameter in network.parameters())


def test_a_missing_library_is_named_with_the_command_that_installs_it(folders, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(
        SemmixError, match=r"diffusers:FOLDER need \['transformers'\](.|\n)*pip install .*\[diffusers\]"
    ):
        load_adapter(f"diffusers:{folders['diffusers']}", CPU)


def test_user_mistakes_are_explained(folders, tmp_path):
    with pytest.raises(SemmixError, match="no unet, scheduler"):
        load_generator(f"diffusers:{tmp_path}")
    with pytest.raises(SemmixError, match="unknown adapter: 'diffuser'"):
        load_adapter(f"diffuser:{tmp_path}", CPU)
    with pytest.raises(SemmixError, match="no transformer"):
        load_generator(f"dit:{folders['sd']}")
    with pytest.raises(SemmixError, match="a prompt for each class"):
        load_adapter(f"sd:{folders['sd']}", CPU, prompts=())
    unlabelled = diffusers.DDPMPipeline(tiny_unet(num_class_embeds=None), diffusers.DDPMScheduler())
    unlabelled.save_pretrained(tmp_path)
    with pytest.raises(SemmixError, match="no label table"):
        load_adapter(f"diffusers:{tmp_path}", CPU)
    fourier = diffusers.DDPMPipeline(tiny_unet(time_embedding_type="fourier"), diffusers.DDPMScheduler())
    fourier.save_pretrained(tmp_path)
    with pytest.raises(SemmixError, match="unknown time embedding: fourier"):
        load_adapter(f"diffusers:{tmp_path}", CPU)
    of_any_size = diffusers.DDPMPipeline(tiny_unet(sample_size=None), diffusers.DDPMScheduler())
    of_any_size.save_pretrained(tmp_path)
    with pytest.raises(SemmixError, match="how large its images are"):
        load_adapter(f"diffusers:{tmp_path}", CPU)
    flow = diffusers.FlowMatchEulerDiscreteScheduler()
    flow.save_pretrained(tmp_path / "scheduler")
    with pytest.raises(SemmixError, match="no betas"):
        load_adapter(f"diffusers:{tmp_path}", CPU)
