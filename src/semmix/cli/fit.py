"""`semmix fit`: from a folder of images, or a data set, to a calibrated model and a report."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from tyro.conf import arg

from semmix.cli.options import HELP, TYRO_STYLE, only_given
from semmix.core.progress import say
from semmix.fitting import FitConfig, fit
from semmix.fitting.recipes import recipe_of

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

if TYPE_CHECKING:
    Given = dict[str, Any]
else:
    Given = Annotated[only_given(FitConfig), arg(name="")]


@dataclass(frozen=True, kw_only=True)
class FitCommand:
    """From a folder of images, or a data set, to a calibrated model and a report.

    Defaults depend on the images, so nothing but what was given is read here; `fit` adds the rest.
    """

    given: Given

    def run(self) -> None:
        """Walk the path; what is finished already is not done again."""
        data = dict(self.given.get("data", {}))
        images = data.pop("dataset", "digits")
        fit(images, **{**self.given, "data": data})

    @staticmethod
    def show_help(arguments: Sequence[str]) -> None:
        """Print the options most users want or, after the images' name, all of them with their defaults."""
        if arguments[0] in HELP:
            return say(SHORT_HELP)
        images = "digits" if arguments[0].startswith("-") else arguments[0]
        tyro.cli(FitConfig, prog="semmix fit", args=["--help"], default=recipe_of(images), config=TYRO_STYLE)
