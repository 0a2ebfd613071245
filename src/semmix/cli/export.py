"""`semmix export`: a trained classifier as a model folder, or mixed sets as files for others."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tyro.conf import Positional

from semmix.annotation import Annotation
from semmix.cli.options import not_default
from semmix.core.errors import SemmixError
from semmix.core.progress import say
from semmix.deploy import export_model, how_to_predict
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
        elif (self.source / "manifest.json").exists():
            self._refuse("a store of mixed sets", ("onnx",))
            self._export_mixsets()
        else:
            fix = "name a finished training run, or a store of mixed sets"
            raise SemmixError("nothing to export here", self.source, fix)

    def _refuse(self, what: str, options: tuple[str, ...]) -> None:
        """Raise the error for options that mean nothing for this source."""
        if given := not_default(self, options):
            fix = "leave these options out, or name another source"
            raise SemmixError(f"{self.source} is {what}, which these do not fit", given, fix)

    def _export_mixsets(self) -> None:
        if self.labels == "requested" and self.annotation:
            fix = "leave out --annotation, or choose labels that were read back"
            raise SemmixError("requested labels need no annotation", self.annotation, fix)
        store = MixSets.open(self.source)
        if self.labels == "requested":
            soft_labels = store.soft_labels(store.lam_requested())
        else:
            annotation = Annotation.open(self.annotation or Path("annotation"), store)
            soft_labels = annotation.soft_labels(self.labels or "reannotated")
        write = export_parquet if self.format == "parquet" else export_folder
        say(f"wrote {write(store, soft_labels, self.out)}")
