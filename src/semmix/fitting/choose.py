"""Which recipe `semmix fit` starts from: it depends on the images."""

from __future__ import annotations

from collections.abc import Sequence

import tyro

from semmix.core.errors import SemmixError
from semmix.core.progress import say
from semmix.data import list_datasets
from semmix.data.listing import looks_like_path
from semmix.fitting.digits import digits
from semmix.fitting.fit import FitConfig, fit
from semmix.fitting.images import images, own_images, planned

__all__ = ["FitConfig", "fit", "recipe_for"]

HELP = ("-h", "--help")
SHORT_HELP = """\
usage: semmix fit IMAGES [options]

Teach a classifier your images, and to say how sure it really is. It looks at the images, says what
is wrong with them, makes a plan that fits your time, follows it, and leaves a report and a model.

IMAGES is one of
  a folder            photos/cat/1.jpg, photos/dog/7.png: one folder for each class;
                      or photos/train/cat/1.jpg, photos/test/... if you have divided them yourself
  a .csv or .jsonl    a row for each image: path (relative to the file), label, perhaps split
  a known data set    digits (the demo), cifar10, ...: see semmix data list

the options you may want
  --minutes 30        how long it may take: a plan for less time trains smaller networks for less
  --quality good      draft (5 minutes, to see that it works), good (30) or best (180)
  --out runs/photos   where everything goes
  --size 32           pixels of a side at which images are learned: 32, 64 or 128
  --device cpu        auto takes the GPU where there is one
  --seeds 3           how often each method is trained: several show what is chance
  --strict            stop if a file cannot be used, rather than leave it out

Stop it whenever you like with Ctrl-C: the same command goes on where it was.

  semmix fit photos --quality draft         try it
  semmix predict runs/photos/model *.jpg    use what came out

semmix fit IMAGES --help shows every setting of every stage."""


def recipe_for(arguments: Sequence[str]) -> FitConfig:
    """Return the recipe of the images that the arguments name; the demo's if they name none.

    For images of one's own that is a plan, so they are looked at here.

    >>> recipe_for(["digits", "--seeds", "2"]).train.classifier
    'small'
    >>> recipe_for(["--seeds", "2", "cifar10"]).train.classifier
    'resnet18'
    """
    if any(word in HELP for word in arguments[:1]):
        say(SHORT_HELP)
        raise SystemExit(0)
    named = _named(arguments)
    if named not in list_datasets() and looks_like_path(named):
        recipe = own_images(named)
        wants_help = any(word in HELP for word in arguments)
        return recipe if wants_help else planned(_read(arguments, recipe))
    recipe = digits() if named == "digits" else images(named)
    for option in ("--minutes", "--quality"):
        if any(word.split("=")[0] == option for word in arguments):
            fix = f"leave it out, or set the stages: semmix fit {named} --help"
            raise SemmixError(f"{option} plans for images of your own", named, fix)
    return recipe


def _named(arguments: Sequence[str]) -> str:
    """Return the images that the arguments name, usually first."""
    if arguments and not arguments[0].startswith("-"):
        return arguments[0]
    return _read(arguments, digits()).data.dataset


def _read(arguments: Sequence[str], recipe: FitConfig) -> FitConfig:
    return tyro.cli(FitConfig, prog="semmix fit", args=list(arguments), default=recipe)
