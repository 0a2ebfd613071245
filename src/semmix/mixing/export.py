"""Mixed sets for other people's training code: an image folder, or Parquet for Hugging Face."""

import io
import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from semmix.core.extras import import_extra
from semmix.core.files import remove_file, whole_file, write_bytes
from semmix.core.progress import progress
from semmix.mixing.store import MixSets

ROWS_PER_GROUP = 1024

# How the `datasets` library is told which column holds pictures.
_HUGGING_FACE_FEATURES = {
    "image": {"_type": "Image"},
    "soft_label": {"_type": "Sequence", "feature": {"dtype": "float32", "_type": "Value"}},
    "pair": {"_type": "Sequence", "feature": {"dtype": "int64", "_type": "Value"}},
    **{name: {"dtype": "int64", "_type": "Value"} for name in ("set", "member", "seed")},
    "lam_requested": {"dtype": "float64", "_type": "Value"},
}


def export_folder(store: MixSets, soft_labels: Tensor, out: str | Path) -> Path:
    """Write every image as PNG and `labels.jsonl` with one line per image; return the folder."""
    out, lines = Path(out), []
    labels = out / "labels.jsonl"
    remove_file(labels)  # written last: labels are never beside images of another export
    with progress("export", store.num_sets * store.plan.set_size) as bar:
        for row in iterate_rows(store, soft_labels):
            name = f"images/{row['set']:06d}-{row['member']}.png"
            write_bytes(out / name, png_bytes(row.pop("image")))
            lines.append(json.dumps({"file": name, **row}))
            bar.advance()
    write_bytes(labels, ("\n".join(lines) + "\n").encode())
    return out


def export_parquet(store: MixSets, soft_labels: Tensor, out: str | Path) -> Path:
    """Write one Parquet file, readable by Hugging Face `datasets`; return its path."""
    pa, pq = (import_extra(name, "parquet", "Parquet") for name in ("pyarrow", "pyarrow.parquet"))
    columns = {
        "image": pa.struct([("bytes", pa.binary()), ("path", pa.string())]),
        "soft_label": pa.list_(pa.float32()),
        "pair": pa.list_(pa.int64()),
        **dict.fromkeys(("set", "member", "seed"), pa.int64()),
        "lam_requested": pa.float64(),
    }
    features = json.dumps({"info": {"features": _HUGGING_FACE_FEATURES}})
    schema = pa.schema(list(columns.items()), metadata={"huggingface": features})
    rows, total = iterate_rows(store, soft_labels), store.num_sets * store.plan.set_size
    with progress("export", total) as bar, whole_file(Path(out)) as file, pq.ParquetWriter(file, schema) as writer:
        while group := list(islice(rows, ROWS_PER_GROUP)):
            pictures = [{**row, "image": {"bytes": png_bytes(row["image"]), "path": None}} for row in group]
            writer.write_table(pa.Table.from_pylist(pictures, schema=schema))
            bar.advance(len(group))
    return Path(out)


def png_bytes(image: Tensor) -> bytes:
    """Return a uint8 image [C, H, W], grey or RGB, as PNG."""
    pixels: np.ndarray = image.permute(1, 2, 0).numpy()
    buffer = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(buffer, "PNG")
    return buffer.getvalue()


def iterate_rows(store: MixSets, soft_labels: Tensor) -> Iterator[dict[str, Any]]:
    """Yield one row per image: its pixels, its soft label and where it comes from."""
    lam_requested = store.lam_requested()
    for k in range(store.plan.num_shards):
        images = store.read_shard(k)
        for row, n in enumerate(store.plan.shard(k)):
            for member in range(store.plan.set_size):
                yield {
                    "image": images[row, member],
                    "set": n,
                    "member": member,
                    "pair": store.pair(n),
                    "seed": store.plan.set_seed(n),
                    "lam_requested": float(lam_requested[n, member]),
                    "soft_label": soft_labels[n, member].tolist(),
                }
