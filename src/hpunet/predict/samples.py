"""`hpunet sample`: what is written of every slice: samples, their mean and spread, and distinct hypotheses.

sample-01.png …     label maps, the class of every pixel
mean.png, std.png   mean and standard deviation of the summed probability of the stochastic classes; 65535 is 1
hypotheses.json     distinct hypotheses, their shares and samples (null for instance ids)
measurements.*      their sizes and those of all samples (`measurements.py`); none for instance ids
representatives.json if asked for: so many samples, with the weights by which they stand for all
outer.png, inner.png, guarantee.json   with --guarantee: masks, areas, and what is guaranteed (`guarantee.py`)
state.json          what makes the samples again from image and model, also edited (`Predictor.replay`)
sheet.png           all of it on one page

Each slice of a volume has its own folder, `z-012`. Other formats are of the whole: `export/registry.py`.

Of a series whose future was predicted, future.json has sizes day by day and the probability of growth, in place of
measurements; hypotheses are of the future alone, and the sheet shows four futures beside the past.

A model of volumes samples the volume at once: there is one folder, without PNGs of maps. NIfTI then holds samples,
mean.nii.gz, std.nii.gz, hypothesis-A.nii.gz and so on, and, with --guarantee, outer.nii.gz and inner.nii.gz.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from hpunet.predict.export.collector import sample_name
from hpunet.predict.export.results import letters
from hpunet.predict.future import FILE
from hpunet.predict.measurements import CSV_FILE, JSON_FILE, measurement_files
from hpunet.predict.prediction import Prediction
from hpunet.sampling.hypotheses import Hypothesis, summarise
from hpunet.utils.pictures import save_picture


def save_pictures(part: Prediction, folder: Path, *, colour: str | None) -> None:
    """Write the maps and the sheet of a slice; of a volume the sheet."""
    save_picture(part.sheet(colour=colour), folder / "sheet.png")
    if part.axes == "zyx":
        return
    for number, labels in enumerate(part.samples):
        save_picture(Image.fromarray(labels), folder / f"{sample_name(number)}.png")
    for name in ("mean", "std"):
        values = np.rint(getattr(part, name) * 65535).astype(np.uint16)
        save_picture(Image.fromarray(values), folder / f"{name}.png")


def volume_maps(part: Prediction) -> dict[str, np.ndarray]:
    """The map of each hypothesis of a volume, by its name; of slices there are none, since each has its own."""
    if part.axes == "yx":
        return {}
    return {f"hypothesis-{letters(number)}": found.labels for number, found in enumerate(part.hypotheses)}


def save_record(part: Prediction, folder: Path, *, representatives: int | None = None) -> None:
    """Write hypotheses, measurements and state of a slice, which are there in every format."""
    hypotheses = part.hypotheses
    if representatives is not None:
        few = {
            "format": "hpunet-representatives",
            "version": 1,
            "image": part.name,
            "representatives": _listed(part.representatives(representatives)),
        }
        (folder / "representatives.json").write_text(json.dumps(few, indent=1) + "\n")
    about = {
        "format": "hpunet-hypotheses",
        "version": 1,
        "image": part.name,
        **asdict(part.origin),
        **asdict(part.options),
        "notes": part.notes,
    }
    grouping = {"same_iou": hypotheses[0].same_iou, "summary": summarise(hypotheses)} if hypotheses else {}
    content = {**about, **grouping, "hypotheses": _listed(hypotheses) or None}
    (folder / "hypotheses.json").write_text(json.dumps(content, indent=1) + "\n")
    if part.future is not None:
        (folder / FILE).write_text(part.future.content())
    elif not part.info.has_instances:
        tables = measurement_files(part)
        (folder / CSV_FILE).write_bytes(tables[CSV_FILE])
        (folder / JSON_FILE).write_text(json.dumps(tables[JSON_FILE], indent=1, allow_nan=False) + "\n")
    (folder / "state.json").write_text(json.dumps(part.state()) + "\n")


def _listed(hypotheses: Sequence[Hypothesis]) -> list[dict[str, Any]]:
    return [
        {
            "share": hypothesis.share,
            "count": len(hypothesis.members),
            "description": hypothesis.description,
            ("area_pixels" if hypothesis.labels.ndim == 2 else "volume_voxels"): hypothesis.area,
            "num_parts": hypothesis.num_parts,
            "representative": sample_name(hypothesis.representative),
            "members": [sample_name(member) for member in hypothesis.members],
        }
        for hypothesis in hypotheses
    ]


def save_guarantee(part: Prediction, folder: Path, *, level: float) -> dict[str, UInt8[np.ndarray, "*s"]]:
    """Write what holds for a slice or volume with this probability; returns the masks of a volume, by name."""
    found = part.guarantee(level)
    masks = {name: getattr(found, name).astype(np.uint8) for name in ("outer", "inner")}
    calibration = found.calibration
    size: dict[str, Any] = {"area_pixels": list(found.area)}
    if part.axes == "zyx":
        size = {"volume_voxels": list(found.area), "volume_ml": list(found.volume) if found.volume else None}
    else:
        for name, mask in masks.items():
            save_picture(Image.fromarray(mask), folder / f"{name}.png")
    about = {
        "format": "hpunet-guarantee",
        "version": 1,
        "image": part.name,
        "guarantee": level,
        "miss_rate": found.miss_rate,
        **size,
        "statement": found.note,
        "calibrated_on": {"data": calibration.data, "split": calibration.split, "patients": calibration.num_patients},
        "image_is_unusual": found.is_unusual,
        "notes": calibration.notes,
    }
    (folder / "guarantee.json").write_text(json.dumps(about, indent=1) + "\n")
    return masks if part.axes == "zyx" else {}
