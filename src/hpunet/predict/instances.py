"""`hpunet instances`: cluster samples into an instance map (Algorithm 1, App. G and H).

<out>/<name>/instances.png      16 bits: 0 is background, every other value one instance
<out>/<name>/overlay.png        the image with coloured instances, next to the true ones if they are known
<out>/<name>/instances.json     how they were found
<out>/<name>/instances.nii.gz   if the input is a volume; its slices are clustered one by one

A model of volumes clusters the volume at once: then there is no instances.png, and overlay.png shows three planes.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float32, Int32
from PIL import Image

from hpunet.errors import ConfigError, DataError
from hpunet.evaluation.scores import instances_of
from hpunet.metrics import rand_error
from hpunet.predict.export.collector import INSTANCES
from hpunet.predict.export.registry import PNG
from hpunet.predict.export.writer import Writer
from hpunet.predict.output_folder import result_folder
from hpunet.predict.prediction import Prediction
from hpunet.predict.predictor import Predictor
from hpunet.predict.volume_sheet import Planes
from hpunet.utils.label_painter import colour_instances, overlay
from hpunet.utils.pictures import save_picture, sheet

MAX_INSTANCES = 2**16 - 1
_LONGER_SIDE = 512  # minimum for pictures, in pixels


def require_instances(predictor: Predictor) -> None:
    """Raise a `ConfigError` unless the model was trained on instances."""
    if not predictor.info.has_instances:
        classes = ", ".join(predictor.info.fixed_classes)
        raise ConfigError(
            f"{predictor.name}: was trained on classes ({classes}), not on instances; use hpunet sample"
        )


def save_instances(
    parts: Iterable[Prediction],
    target: Path,
    *,
    alpha: int,
    connected: bool = False,
    erosion: int | None = None,
    formats: Sequence[str] | None = None,
    truth: Int32[np.ndarray, "*s"] | None = None,
    replace: bool = False,
) -> dict[str, Int32[np.ndarray, "*s"]]:
    """Write the instances of one image's slices into the folder `target`; returns them by the name of the slice.

    `truth` holds the true instances of a single image or volume, for the picture; `formats` are as for `export`.
    """
    found: dict[str, np.ndarray] = {}
    with result_folder(target, replace=replace) as folder:
        writer = Writer(folder, formats)
        for part in parts:
            place = writer.begin(part, has_regions=True)
            how: dict[str, Any] = {"alpha": alpha, "connected": connected, "erosion": erosion}
            instances = found[part.name] = instances_of(part.samples, info=part.info, seed=part.options.seed, **how)
            if instances.max() > MAX_INSTANCES:
                raise DataError(f"{instances.max()} instances, a map holds {MAX_INSTANCES}; choose a larger --alpha")
            small = instances.astype(np.uint16)
            if PNG in writer.formats:
                maps: dict[str, Any] = {"image": part.image, "instances": instances, "truth": truth}
                if part.axes == "zyx":
                    planes = Planes.through(instances[None] > 0, spacing=part.spacing)
                    maps = {name: None if each is None else planes.of(each) for name, each in maps.items()}
                else:
                    save_picture(Image.fromarray(small), place / "instances.png")
                save_picture(instances_picture(**maps), place / "overlay.png")
            about = {"format": "hpunet-instances", "version": 1, "image": part.name}
            about |= {**asdict(part.origin), **asdict(part.options), "notes": part.notes}
            about |= {"alpha": alpha, "connected": connected, "num_instances": len(np.unique(small[small > 0]))}
            (place / "instances.json").write_text(json.dumps(about, indent=1) + "\n")
            writer.add(part, {INSTANCES: small})
        writer.finish()
    return found


def instances_picture(
    *,
    image: Float32[np.ndarray, "c h w"],
    instances: Int32[np.ndarray, "h w"],
    truth: Int32[np.ndarray, "h w"] | None = None,
) -> Image.Image:
    """The image with its instances, neighbours in different colours; next to it the true ones, if known.

    Small images are enlarged. An instance has the colour of the true one it overlaps most, if no neighbour has it.
    """
    factor = max(1, -(-_LONGER_SIDE // max(instances.shape)))

    def painted(colours: np.ndarray, regions: np.ndarray) -> np.ndarray:
        large = [maps.repeat(factor, axis=-2).repeat(factor, axis=-1) for maps in (image, colours, regions)]
        return overlay(image=large[0], labels=large[1], regions=large[2])

    if truth is None:
        return Image.fromarray(painted(colour_instances(instances), instances))
    true_colours = colour_instances(truth)
    found = painted(colour_instances(instances, prefer=true_colours), instances)
    return sheet([[found, painted(true_colours, truth)]], columns=["instances found", "true instances"], tile=None)


def rand_error_of(
    instances: Int32[np.ndarray, "*s"], *, truth: Int32[np.ndarray, "*s"], valid: Bool[np.ndarray, "*s"]
) -> float:
    """The Rand error of one image or volume; NaN without true instances."""
    return float(rand_error(prediction=instances[None], truth=truth[None], valid=valid[None])[0])
