"""`semmix export`: a classifier as a model folder, or mixed sets as files for others; `semmix keep`: small runs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tyro.conf import Positional

from semmix.annotation import Annotation
from semmix.cli.options import not_default
from semmix.core.errors import require
from semmix.core.progress import say
from semmix.deploy import export_model, how_to_predict
from semmix.experiments.results import keep_run
from semmix.mixing.export import export_folder, export_parquet
from semmix.mixing.store import MixSets


@dataclass(frozen=True, kw_only=True)
class ExportCommand:
    """Hand a trained classifier, or mixed sets, to others."""

    source: Positional[Path]
    """A finished training run, which becomes a model folder, or a store of mixed sets."""
    out: Path
    """Folder of the model; of mixed sets, the folder for PNG files or the Parquet file."""
    onnx: bool = True
    """Of a run: write model.onnx too, which needs semmix[onnx]."""
    annotation: Path | None = None
    """Of mixed sets: folder of the annotation; `annotation` unless the labels are requested."""
    labels: str | None = None
    """Of mixed sets: reannotated (default), requested, one_hot, position, biased, encoder_softmax,
    third_class, or the controls requested_matched and smoothed_matched."""
    format: Literal["png", "parquet"] | None = None
    """Of mixed sets: PNG files with labels.jsonl (default), or one Parquet file for Hugging Face
    datasets."""

    def run(self) -> None:
        """See what the source is, and write it in the form that others can use."""
        if (self.source / "config.json").exists():
            self._refuse("a training run", ("annotation", "labels", "format"))
            export_model(self.source, self.out, onnx=self.onnx)
            say(f"next: {how_to_predict(self.out)}; what it is: {self.out / 'README.md'}")
            return
        fix = "name a finished training run, or a store of mixed sets"
        require((self.source / "manifest.json").exists(), "nothing to export here", self.source, fix)
        self._refuse("a store of mixed sets", ("onnx",))
        requested, fix = self.labels == "requested", "leave out --annotation, or choose labels that were read back"
        require(not (requested and self.annotation), "requested labels need no annotation", self.annotation, fix)
        store = MixSets.open(self.source)
        if requested:
            soft_labels = store.soft_labels(store.lam_requested())
        else:
            annotation = Annotation.open(self.annotation or Path("annotation"), store)
            soft_labels = annotation.soft_labels(self.labels or "reannotated")
        write = export_parquet if self.format == "parquet" else export_folder
        say(f"wrote {write(store, soft_labels, self.out)}")

    def _refuse(self, what: str, options: tuple[str, ...]) -> None:
        """Raise the error for options that mean nothing for this source."""
        given, fix = not_default(self, options), "leave these options out, or name another source"
        require(not given, f"{self.source} is {what}, which these do not fit", given, fix)


@dataclass(frozen=True, kw_only=True)
class KeepCommand:
    """Keep finished runs in a form small enough to commit."""

    runs: Positional[tuple[Path, ...]]
    """Folders of finished runs."""
    out: Path = Path("results")
    """Folder that gets one folder for each run, of the same name."""

    def __post_init__(self) -> None:
        require(self.runs, "nothing to keep", "no runs", "name at least one run folder")

    def run(self) -> None:
        """Copy what the numbers of the runs come from."""
        for run in self.runs:
            say(f"kept {keep_run(run, self.out)}")
