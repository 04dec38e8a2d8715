"""Both networks as two ONNX graphs each: `encode` runs once per image and orientation, `decode` once per sample.

What is outside of the networks is inside of the graphs too: stored pixel values become [0, 1], images are brought
into an orientation and logits back out of it (`sampling/orientations.py`), and labels are chosen.
"""

from collections.abc import Sequence

import numpy as np

from hpunet.deploy.graph import FLOAT, INT32, INT64, UINT8, Graph
from hpunet.errors import ConfigError
from hpunet.models.gaussian import LOG_SIGMA_RANGE, GaussianHead
from hpunet.models.hpunet import HPUNet
from hpunet.models.punet import ConvEncoder, ProbUNet

ENTRIES, HYPOTHESES = "entries", "hypotheses"
"""Names of the batch dimensions: images in one orientation each, and samples of them."""


def encoder_graph(model: HPUNet | ProbUNet) -> Graph:
    """From stored pixel values to what the samples of an image share.

    Inputs: image (entries, channels, height, width); window (2), the stored values that become 0 and 1, where equal
    ones stand for the range of each image; orientation (entries), if the model has several. Outputs: features_0, ….
    """
    if model.ndim != 2:
        raise ConfigError(
            "export: ONNX files compute images, this model computes volumes (model.ndim=3); not possible"
        )
    if model.cond_channels:
        raise ConfigError("export: this model needs partial labels beside the image (data.extrapolate); not possible")
    graph = Graph("encode", model)
    image = graph.input("image", FLOAT, [ENTRIES, model.in_channels, "height", "width"])
    window = graph.input("window", FLOAT, [2])
    ids = graph.input("orientation", INT64, [ENTRIES]) if model.orientations > 1 else None
    x = _scaled(graph, image, window)
    if ids is not None:
        x = _oriented(graph, x, ids, undo=False)
    features = _hpunet_features(graph, model, x) if isinstance(model, HPUNet) else _punet_features(graph, model, x)
    for i, (value, shape) in enumerate(zip(features, _feature_shapes(model), strict=True)):
        graph.output(value, f"features_{i}", FLOAT, shape)
    return graph


def decoder_graph(model: HPUNet | ProbUNet) -> Graph:
    """From features and noise to samples.

    Inputs: features_0, …, of `encode`; entry (hypotheses), the row of the features of each sample; orientation
    (entries), as given to `encode`; noise_0, … (hypotheses, z, h_i, w_i), standard normal numbers of each scale that
    has latents. Outputs: logits (hypotheses, classes, height, width) and labels (hypotheses, height, width).
    """
    graph = Graph("decode", model)
    features = [graph.input(f"features_{i}", FLOAT, shape) for i, shape in enumerate(_feature_shapes(model))]
    entry = graph.input("entry", INT64, [HYPOTHESES])
    ids = graph.input("orientation", INT64, [ENTRIES]) if model.orientations > 1 else None
    noise = [
        graph.input(f"noise_{i}", FLOAT, [HYPOTHESES, dim, *_sides(stride)]) if dim else None
        for i, (dim, stride) in enumerate(zip(model.latent_dims, latent_strides(model), strict=True))
    ]
    mine = [graph.op("Gather", each, entry, axis=0) for each in features]
    decode = _hpunet_logits if isinstance(model, HPUNet) else _punet_logits
    logits = decode(graph, model, mine, noise)  # type: ignore[arg-type]
    if ids is not None:
        logits = _oriented(graph, logits, graph.op("Gather", ids, entry, axis=0), undo=True)
    k = model.num_classes
    kind = UINT8 if k <= 256 else INT32
    labels = graph.op("Cast", graph.op("ArgMax", logits, axis=1, keepdims=0), to=kind)
    graph.output(logits, "logits", FLOAT, [HYPOTHESES, k, "height", "width"])
    graph.output(labels, "labels", kind, [HYPOTHESES, "height", "width"])
    return graph


def latent_strides(model: HPUNet | ProbUNet) -> list[int]:
    """Pixels of the image per position of each latent scale; 0 for a scale with a single position."""
    if isinstance(model, ProbUNet):
        return [0]
    return [model.size_multiples[0] >> i for i in range(len(model.latent_dims))]


def _feature_shapes(model: HPUNet | ProbUNet) -> list[list[int | str]]:
    if isinstance(model, ProbUNet):
        channels, strides = [model.channels[0], *model.latent_dims * 2], [1, 0, 0]
    else:
        channels, strides = (
            list(model.channels[::-1]),
            [model.size_multiples[0] >> i for i in range(len(model.channels))],
        )
    return [[ENTRIES, number, *_sides(stride)] for number, stride in zip(channels, strides, strict=True)]


def _sides(stride: int) -> list[int | str]:
    """Height and width of a map with this stride; 0 for a single position."""
    if stride == 0:
        return [1, 1]
    return [side if stride == 1 else f"{side}/{stride}" for side in ("height", "width")]


def _hpunet_features(graph: Graph, model: HPUNet, x: str) -> list[str]:
    """As `LatentUNet.encode` of the prior."""
    features: list[str] = []
    for depth, stage in enumerate(model.prior.encoder):
        x = graph.residual_stage(graph.downsample(x) if depth else x, stage)
        features.append(x)
    return features[::-1]


def _hpunet_logits(graph: Graph, model: HPUNet, features: Sequence[str], noise: Sequence[str | None]) -> str:
    """As `HPUNet.decode`."""
    x, prior = features[0], model.prior
    for i in range(len(prior.decoder) + 1):
        if i < len(noise) and (drawn := noise[i]) is not None:
            head = prior.heads[i]
            assert isinstance(head, GaussianHead)
            x = graph.concat(_latent(graph, *_gaussian(graph, x, head), noise=drawn), x)
        if i < len(prior.decoder):
            x = graph.concat(graph.upsample(x, bilinear=False), features[i + 1])
            x = graph.residual_stage(x, prior.decoder[i])
    return graph.conv(x, model.logits)


def _punet_features(graph: Graph, model: ProbUNet, image: str) -> list[str]:
    """As `ProbUNet.encode`."""
    x, *skips = _conv_encoder(graph, model.encoder, image)
    for stage, skip in zip(model.decoder, skips, strict=True):
        x = graph.conv_stage(graph.concat(skip, graph.upsample(x, bilinear=True)), stage)
    pooled = graph.op("GlobalAveragePool", _conv_encoder(graph, model.prior.encoder, image)[0])
    return [x, *_gaussian(graph, pooled, model.prior.head)]


def _conv_encoder(graph: Graph, encoder: ConvEncoder, x: str) -> list[str]:
    features: list[str] = []
    for depth, stage in enumerate(encoder.stages):
        x = graph.conv_stage(graph.downsample(x) if depth else x, stage)
        features.append(x)
    return features[::-1]


def _punet_logits(graph: Graph, model: ProbUNet, features: Sequence[str], noise: Sequence[str | None]) -> str:
    """As `ProbUNet.decode`."""
    (x, mean, log_sigma), (drawn,) = features, noise
    assert drawn is not None
    latent = _latent(graph, mean, log_sigma, noise=drawn)
    sides = graph.op("Concat", graph.constant([1, 1]), graph.op("Shape", x, start=2), axis=0)
    planes = graph.op("Expand", latent, sides)
    return graph.conv(graph.conv_stage(graph.concat(x, planes), model.combine), model.logits)


def _gaussian(graph: Graph, x: str, head: GaussianHead) -> list[str]:
    """Mean and log σ, as `GaussianHead`."""
    assert head.conv is not None
    mean, log_sigma = graph.split("Split", graph.conv(x, head.conv), num_outputs=2, axis=1)
    bounds = [graph.constant(bound, np.float32) for bound in LOG_SIGMA_RANGE]
    return [mean, graph.op("Clip", log_sigma, *bounds)]


def _latent(graph: Graph, mean: str, log_sigma: str, *, noise: str) -> str:
    return graph.op("Add", mean, graph.op("Mul", graph.op("Exp", log_sigma), noise))


def _scaled(graph: Graph, image: str, window: str) -> str:
    """Stored values to [0, 1], by a window, or by the range of each image if the window's numbers are equal."""
    fixed = graph.split("Split", window, num_outputs=2, axis=0)
    own = [graph.op(kind, image, axes=[1, 2, 3], keepdims=1) for kind in ("ReduceMin", "ReduceMax")]
    is_fixed = graph.op("Less", *fixed)
    low, high = (graph.op("Where", is_fixed, *pair) for pair in zip(fixed, own, strict=True))
    span, zero, one = graph.op("Sub", high, low), graph.constant(0, np.float32), graph.constant(1, np.float32)
    span = graph.op("Where", graph.op("Equal", span, zero), one, span)  # a constant image becomes 0
    return graph.op("Clip", graph.op("Div", graph.op("Sub", image, low), span), zero, one)


def _oriented(graph: Graph, maps: str, ids: str, *, undo: bool) -> str:
    """As `orient`, or `undo_orientation`, each map with its own id.

    Each output pixel looks up its source, so that one batch holds all orientations. A transposed map has the same
    shape only if it is square; others get an index that does not exist, which runtimes refuse.
    """
    one, two, four = (graph.constant(number) for number in (1, 2, 4))
    n, c, h, w = (graph.size(maps, axis) for axis in range(4))
    num_pixels = graph.op("Mul", h, w)
    last = [graph.op("Sub", side, one) for side in (h, w)]
    column_of = graph.op("Reshape", ids, graph.constant([-1, 1, 1]))
    bits = [graph.op("Equal", graph.op("Mod", graph.op("Div", column_of, b), two), one) for b in (two, one, four)]
    transposed = bits[2]
    scalar = graph.constant([], np.int64)
    ranges = [graph.op("Range", graph.constant(0), graph.op("Reshape", s, scalar), graph.constant(1)) for s in (h, w)]
    row = graph.op("Reshape", ranges[0], graph.constant([1, -1, 1]))
    column = graph.op("Reshape", ranges[1], graph.constant([1, 1, -1]))

    def transpose(pair: Sequence[str]) -> list[str]:
        return [graph.op("Where", transposed, pair[1 - i], pair[i]) for i in range(2)]

    def flip(pair: Sequence[str]) -> list[str]:
        return [graph.op("Where", bits[i], graph.op("Sub", last[i], pair[i]), pair[i]) for i in range(2)]

    source = transpose(flip([row, column])) if undo else flip(transpose([row, column]))
    index = graph.op("Add", graph.op("Mul", source[0], w), source[1])
    difference = graph.op("Sub", h, w)
    beyond = graph.op("Mul", graph.op("Mul", difference, difference), num_pixels)
    index = graph.op("Add", index, graph.op("Where", transposed, beyond, graph.constant(0)))
    index = graph.op("Reshape", index, graph.op("Concat", n, graph.constant([1]), num_pixels, axis=0))
    index = graph.op("Expand", index, graph.op("Concat", n, c, num_pixels, axis=0))
    flat = graph.op("Reshape", maps, graph.op("Concat", n, c, num_pixels, axis=0))
    found = graph.op("GatherElements", flat, index, axis=2)
    return graph.op("Reshape", found, graph.op("Concat", n, c, h, w, axis=0))
