"""`hpunet export MODEL --onnx FOLDER`: a folder that needs neither torch nor hpunet.

    encode.onnx      image → features (see `networks.py`)
    decode.onnx      features and noise → logits and labels
    metadata.json    what goes in and comes out, how noise and orientations are drawn, credit, SHA-256 of all files
    example.py       samples of an image with numpy and onnxruntime

The files are computed with onnxruntime and compared with torch before the folder appears.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hpunet import __version__
from hpunet.data.types import SetInfo
from hpunet.errors import CheckpointError, ConfigError
from hpunet.models.base import SegmentationModel
from hpunet.sampling.orientations import num_orientations, orient, undo_orientation
from hpunet.utils.files import atomic_folder, dump_hashed_json, write_hashed, write_synced
from hpunet.weights.load import TrainedModel

FORMAT, VERSION = "hpunet-onnx", 1
ENCODER, DECODER, METADATA, EXAMPLE = "encode.onnx", "decode.onnx", "metadata.json", "example.py"
MAX_DIFFERENCE = 1e-5
"""Between logits of onnxruntime and torch, as a share of the largest logit."""
_RULES = {
    "image": "float32 (batch, channels, height, width) of stored pixel values, channels as in training; height and "
    "width are multiples of size_multiple (pad with border pixels, half on each side, and cut the results)",
    "window": "(low, high): the stored values that become 0 and 1, others are clipped; equal numbers: the smallest "
    "and largest value of each image",
    "orientation": "int64, one per image of the batch, below `orientations`, and below 4 unless height equals width. "
    "Bit 0 flips left and right, bit 1 up and down, then bit 2 transposes; decode returns upright maps. Each sample "
    "has a random one; 0 is the image as it is. Without this input there is only one",
    "entry": "int64, one per sample: the row of the features (an image in an orientation) that it is drawn from",
    "noise": "float32 (samples, channels, height / stride, width / stride), or 1×1 where stride is 0: standard "
    "normal numbers; 0 gives the mean, t times the numbers are temperature t. hpunet draws one row per sample, from "
    "torch.Generator().manual_seed(seed): the latents, coarsest first, then, if `orientations` is above 1, one "
    "number x more, for orientation floor(count · Φ(x)); count is `orientations`, at most 4 if not square",
    "labels": "the class with the largest logit; the share of samples that say so is its probability",
}


def export_onnx(
    trained: TrainedModel, *, out: Path, credit: str, name: str | None = None
) -> tuple[dict[str, dict[str, Any]], float]:
    """Write the folder `out`; returns SHA-256 and size of its files, and the largest difference from torch's logits.

    The difference is a share of the largest logit, measured on noise as image. `name` is by default the model's own.
    """
    try:
        import onnxruntime

        from hpunet.deploy.graph import OPSET
        from hpunet.deploy.networks import decoder_graph, encoder_graph, latent_strides
    except ModuleNotFoundError as error:
        if error.name not in ("onnx", "onnxruntime"):
            raise
        words = "pip install onnx onnxruntime (pip install '.[onnx]' in a clone)"
        raise ConfigError(f"export --onnx: needs {error.name}: {words}") from None
    model, info = trained.model, trained.info
    named: dict[str, Any] = {"producer": ("hpunet", __version__), "about": credit}
    contents = {ENCODER: encoder_graph(model).serialise(**named), DECODER: decoder_graph(model).serialise(**named)}
    contents[EXAMPLE] = Path(__file__).with_name(EXAMPLE).read_bytes()
    sessions = [
        onnxruntime.InferenceSession(contents[file], providers=["CPUExecutionProvider"])
        for file in (ENCODER, DECODER)
    ]
    difference = _difference_from_torch(model, *sessions)
    if not difference <= MAX_DIFFERENCE:
        words = f"onnxruntime {onnxruntime.__version__} and torch {torch.__version__} differ by {difference:.1g}"
        raise CheckpointError(f"{trained.name}: logits of {words} of the largest one; nothing was written")
    scales = zip(model.latent_dims, latent_strides(model), strict=True)
    about: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "name": name or trained.name,
        "step": trained.step,
        "network": trained.settings.model.kind,
        "channels": model.in_channels,
        "window": list(default_window(info)),
        "size_multiple": model.size_multiples[0],
        "training": {"image_size": list(info.image_size or ()), "crop": list(trained.settings.data.crop)},
        "classes": list(info.fixed_classes) + [f"instance id {i}" for i in range(info.num_random_ids)],
        "foreground": list(info.foreground),
        "latents": [
            {"input": f"noise_{i}", "channels": dim, "stride": stride}
            for i, (dim, stride) in enumerate(scales)
            if dim
        ],
        "orientations": model.orientations,
        "rules": _RULES,
        "credit": credit,
        "made_with": {"hpunet": __version__, "torch": str(torch.__version__), "onnx_opset": OPSET},
    }
    with atomic_folder(out) as folder:
        files = {file: write_hashed(folder / file, content) for file, content in contents.items()}
        write_synced(folder / METADATA, dump_hashed_json({**about, "files": files}, name=METADATA))
    return files, difference


def default_window(info: SetInfo) -> tuple[float, float]:
    """The stored values that become 0 and 1 in training; (0, 0) for the range of each image."""
    return info.intensity_window or {8: (0.0, 255.0), 16: (0.0, 65535.0), 32: (0.0, 0.0)}[info.image_bits]


@torch.no_grad()
def _difference_from_torch(model: Any, encode: Any, decode: Any) -> float:
    """The largest difference of logits, as a share of the largest one, for one sample per orientation."""
    generator, side = torch.Generator().manual_seed(0), model.size_multiples[0]
    image = torch.rand(1, model.in_channels, side, side, generator=generator)
    ids = torch.arange(num_orientations(model, size=(side, side)))
    shapes = model.latent_shapes(side, side)
    noise = [torch.randn(len(ids), *shape, generator=generator) for shape in shapes]
    expected = torch.cat([_logits(model, image, i, [n[i : i + 1] for n in noise]) for i in range(len(ids))])
    turned = {"orientation": ids.numpy()} if len(ids) > 1 else {}
    window = torch.tensor([0.0, 1.0]).numpy()
    features = encode.run(None, {"image": image.expand(len(ids), -1, -1, -1).numpy(), "window": window, **turned})
    inputs = {f"features_{i}": each for i, each in enumerate(features)} | {"entry": ids.numpy(), **turned}
    inputs |= {f"noise_{i}": each.numpy() for i, each in enumerate(noise) if each.shape[1]}
    found = torch.from_numpy(decode.run(["logits"], inputs)[0])
    return float((found - expected).abs().max() / expected.abs().max().clamp(min=1))


def _logits(model: SegmentationModel, image: Tensor, orientation: int, noise: list[Tensor]) -> Tensor:
    features = model.encode(image=orient(image, orientation))
    return undo_orientation(model.decode(features, noise=noise)[0], orientation)
