"""The paper on one page: from handwritten digits to a table that says whether semantic mixing helps.

A generator learns to draw the training images. It draws mixed sets: images that share one noise and slide from class to
class. A plain classifier reads back how much of each class they show. Classifiers of both methods then learn, with
three seeds each, and the table compares how sure they are with how often they are right.

    python examples/csm.py            # a few minutes on two CPU cores
    python examples/csm.py --quick    # to see that it runs
"""

import sys
from dataclasses import replace
from pathlib import Path

import semmix

quick = "--quick" in sys.argv
out = Path("runs/csm-quick" if quick else "runs/csm")

# Ten images of each digit to learn from, and no augmentation: a network learns them by heart and is over-confident.
data = semmix.load_dataset("digits", train_size=100)
print(data)

# 1. A class-conditional diffusion model of the training split.
config = semmix.GeneratorConfig(network="digits", num_images=640 if quick else 20_000, batch_size=64)
generator = semmix.train_generator(data, config, out / "generator")

# 2. Mixed sets x(lam) ~ p(x | lam q_i + (1 - lam) q_j, x_T): one noise x_T for each set, lam from 0 to 1.
sampling = semmix.MixConfig(num_steps=4 if quick else 10, batch_size=400)
sets = semmix.mix(generator, config=sampling, out=out / "mixsets", sets_per_pair=1 if quick else 20)
print(sets)

# 3. A plain classifier (cross-entropy) is the first rival, and the encoder that reads the mixed images back.
settings = semmix.TrainConfig(
    method="ce", classifier="small", epochs=2 if quick else 100, batch_size=50, schedule="cosine", pad=0, flip=False
)
seeds = range(2 if quick else 3)
plain = [semmix.train(data, replace(settings, seed=seed), out / f"ce-{seed}") for seed in seeds]

# 4. Soft labels lam = sigmoid(s (lambda_E - 1/2)): where a feature lies between the prototypes of its two classes.
annotation = semmix.annotate(sets, semmix.backbone(plain[0]), data, out / "annotation")
print(annotation)

# 5. CSM: cross-entropy on real images, L2 on mixed ones.
settings = replace(settings, method="csm")
mixing = [semmix.train(data, replace(settings, seed=seed), out / f"csm-{seed}", mixed=annotation) for seed in seeds]

# 6. Is it better calibrated, by more than chance?
print(semmix.results_table([*plain, *mixing]))
for run in (plain[0], mixing[0]):
    print(run, "ECE", semmix.interval(semmix.ece, run.before.probs, run.before.labels))
