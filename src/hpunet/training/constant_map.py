"""What a constant map costs: the reconstruction that κ must ask to beat."""

from math import prod

import torch

from hpunet.config.settings import ObjectiveSettings
from hpunet.data.packs import Pack
from hpunet.objectives.cross_entropy import gumbel_noise, top_k_pixels
from hpunet.training.examples import ExampleBuilder

MAX_IMAGES, MAX_PIXELS = 64, 2**23  # enough to tell; large crops are fewer


def constant_map_loss(pack: Pack, example_builder: ExampleBuilder, objective: ObjectiveSettings) -> float:
    """Reconstruction per kept pixel of a map that gives every pixel the class frequencies of (some) training labels.

    The images are augmented and pixels are kept as in training; comparable with κ and the logged `rec`.
    """
    affordable = max(1, MAX_PIXELS // prod(example_builder.crop))
    indices = torch.linspace(0, len(pack) - 1, min(MAX_IMAGES, affordable, len(pack))).long()
    positions = torch.arange(len(indices), device=pack.device)
    examples = [
        example_builder(pack.batch(indices[i : i + 1].to(pack.device)), step=0, positions=positions[i : i + 1])
        for i in range(len(indices))
    ]
    labels = torch.cat([example.labels for example in examples]).long().cpu()
    valid = torch.cat([example.valid for example in examples]).cpu()
    counts = torch.bincount(labels[valid], minlength=pack.info.num_classes).double()
    cost = -(counts / counts.sum()).log()  # infinite for classes that no pixel has
    ce = torch.where(valid, cost[labels], 0.0)
    if objective.top_k == "all":
        kept = valid
    else:
        noise = gumbel_noise(ce, torch.Generator().manual_seed(0)) if objective.stochastic else None
        kept = top_k_pixels(ce, fraction=objective.top_k, valid=valid, noise=noise)
    return float(ce[kept].mean())


def kappa_warning(kappa: float, constant: float) -> str | None:
    """What to say if a constant map satisfies κ."""
    if constant > kappa:
        return None
    return (
        f"warning: objective.kappa {kappa:g} is met by a constant map, whose reconstruction is {constant:.2g}: "
        f"λ falls to 0 and samples need not resemble the labels; set objective.kappa well below {constant:.2g}"
    )
