"""`semmix annotate`: read back how much of each class the mixed images show."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tyro.conf import OmitArgPrefixes

from semmix.annotation import annotate
from semmix.core.device import pick_device, rank_and_world
from semmix.core.errors import require
from semmix.core.progress import say
from semmix.data.config import DatasetConfig
from semmix.mixing.store import MixSets
from semmix.networks.encoders import load_encoder
from semmix.networks.saved import check_takes
from semmix.report.annotation_page import judge_images, write_diagnosis


@dataclass(frozen=True, kw_only=True)
class AnnotateCommand:
    """Annotate mixed sets."""

    data: OmitArgPrefixes[DatasetConfig]
    """The real images: prototypes come from the training split, the scale from validation."""
    encoder: str = "clip:openai/clip-vit-base-patch32"
    """The encoder as kind:what; classifier:RUN, one of your own, needs nothing from outside. Kinds:
    classifier, clip, dino, efficientnet, inception, mobilenet, onnx, resnet50, timm."""
    mixsets: Path = Path("mixsets")
    """Folder of the store."""
    out: Path = Path("annotation")
    """Folder of the annotation."""
    scale: float | Literal["auto"] = "auto"
    """The scale s, such as 4.0 for CLIP ViT-B/32; auto chooses it on the validation split."""
    report: bool = False
    """Say how good the labels are: diagnosis.json and diagnosis.html beside the annotation."""
    judge: Path | None = None
    """With --report: a trained run, other than the encoder, to compare the labels with."""
    device: str = "auto"
    """auto, cpu or cuda."""

    def run(self) -> None:
        """Annotate the shards that are not yet."""
        require(self.report or not self.judge, "a judge is needed for the report alone", self.judge, "add --report")
        data = self.data.load()
        device = pick_device(self.device)
        encoder = load_encoder(self.encoder, device)
        store = MixSets.open(self.mixsets)
        if self.judge:  # used last, refused first
            check_takes(self.judge, store.image_shape, store.plan.num_classes)
        annotation = annotate(store, encoder, data, self.out, None if self.scale == "auto" else self.scale)
        if self.report and rank_and_world()[0] == 0:
            judge = judge_images(store, self.judge, device) if self.judge else None
            say(f"diagnosis in {write_diagnosis(annotation, self.out, data.class_names, judge)}")
        say(f"annotation in {self.out}, scale {annotation.scale:.2f}; next: semmix train")
