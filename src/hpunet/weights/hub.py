"""Published weights in the layout of a model hub, such as Hugging Face: a folder to upload, or one downloaded.

config.json          as `model.json` of published weights (`published.py`); SHA-256 and size of the weights
model.safetensors    all weights, float16
README.md            the card: YAML front matter, what the model is, how to use it; may be edited
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from hpunet.errors import CheckpointError, ConfigError
from hpunet.utils.files import atomic_folder, dump_hashed_json, is_hash_entry, write_hashed, write_synced
from hpunet.weights.published import (
    ABOUT,
    HUB_DESCRIPTION,
    HUB_WEIGHTS,
    Published,
    check_name,
    halved,
    read_description,
    read_tensors,
)
from hpunet.weights.safetensors_io import encode

FORMAT, VERSION = "hpunet-hub", 1
CARD = "README.md"
_KEYS = {"format": str, "version": int, "model_type": str, **ABOUT, "files": dict}
_LICENSE = re.compile(r"[a-z0-9][a-z0-9.-]{0,40}")
_POSTERIOR = "posterior."
_NETWORKS = {"hpu": "Hierarchical Probabilistic U-Net", "punet": "Probabilistic U-Net"}


def read_hub(folder: Path, *, name: str | None = None) -> Published:
    """Read and verify the weights. The name in them must be `name`, if given."""
    path = folder / HUB_DESCRIPTION
    found = read_description(path, kind=FORMAT, version=VERSION, keys=_KEYS, name=name)
    files = found["files"]
    if files.keys() != {HUB_WEIGHTS} or not is_hash_entry(files[HUB_WEIGHTS]):
        raise CheckpointError(f"{path}: expected SHA-256 and size of {HUB_WEIGHTS}")
    weights = read_tensors(folder / HUB_WEIGHTS, files[HUB_WEIGHTS], listed_in=HUB_DESCRIPTION)
    posterior = {key: tensor for key, tensor in weights.items() if key.startswith(_POSTERIOR)}
    sampling = {key: tensor for key, tensor in weights.items() if key not in posterior}
    return Published(**{key: found[key] for key in ABOUT}, sampling=sampling, posterior=posterior or None)


def write_hub(
    out: Path, *, about: Mapping[str, Any], weights: Mapping[str, Tensor], license: str
) -> dict[str, dict[str, Any]]:
    """Write the folder `out` atomically; returns SHA-256 and size of the files.

    `about` as in `write_published`; `license` is the hub's word, such as apache-2.0, or other.
    """
    check_name(about["name"])
    if not _LICENSE.fullmatch(license):
        raise ConfigError(f"license: expected a hub's word such as apache-2.0, cc-by-4.0 or other, got {license!r}")
    halves = halved(weights)
    with atomic_folder(out) as folder:
        files = {HUB_WEIGHTS: write_hashed(folder / HUB_WEIGHTS, encode(halves, name=HUB_WEIGHTS))}
        config = {"format": FORMAT, "version": VERSION, "model_type": "hpunet", **about, "files": files}
        write_synced(folder / HUB_DESCRIPTION, dump_hashed_json(config, name=HUB_DESCRIPTION))
        files[CARD] = write_hashed(folder / CARD, _card(about, license=license).encode())
    return files


def _card(about: Mapping[str, Any], *, license: str) -> str:
    """The model card; text from outside is quoted, so that it cannot end the front matter or become markup."""
    name, info, model = about["name"], about["info"], about["settings"]["model"]
    front = {"license": license, "library_name": "hpunet", "pipeline_tag": "image-segmentation"}
    tags = ["hpunet", "image-segmentation", "uncertainty", "probabilistic-segmentation"]
    classes = ", ".join(map(json.dumps, info["fixed_classes"]))
    words = ("an image", "Images", "pixels", "image.png"), ("a volume", "Volumes", "voxels", "volume.nii.gz")
    one, many, units, file = words[model["ndim"] == 3]
    sizes = "×".join(map(str, info["image_size"] or about["settings"]["data"]["crop"]))
    lines = [
        "---",
        *(f"{key}: {value}" for key, value in front.items()),
        "tags:",
        *(f"- {tag}" for tag in tags),
        "---",
        "",
        f"# {name}",
        "",
        f"A {_NETWORKS[model['kind']]} that draws several plausible segmentations of {one}, trained for "
        f"{about['step']:,} iterations.",
        "",
        f"- {many}: {info['in_channels']} channel(s), {info['image_bits']} bits, {sizes} {units} in training",
        f"- Classes: {classes}",
        f"- Orientations that samples are drawn from: {model['orientations']}",
        "",
        "```python",
        "import hpunet",
        "",
        'predictor = hpunet.load("FOLDER")  # of these files',
        f'prediction = predictor("{file}", num_samples=16)',
        "for hypothesis in prediction.hypotheses:",
        '    print(f"{hypothesis.share:.0%}: {hypothesis.description}")',
        "```",
        "",
        "Not a medical device.",
        "",
        "## Licence and credit",
        "",
        *(f"    {line}".rstrip() for line in (about["credit"] or "Nothing stated.").splitlines()),
        "",
    ]
    return "\n".join(lines)
