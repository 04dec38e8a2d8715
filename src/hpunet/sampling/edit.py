"""For edits of hypotheses: the latents that lie under a region, and the prior that a hypothesis was drawn from.

A hypothesis may have been drawn from a turned image. Its latents are turned as well; regions and places are not.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Int
from torch import Tensor

from hpunet.models.gaussian import Gaussian
from hpunet.sampling.orientations import Features, orient, undo_orientation

Latents = Sequence[Tensor]
"""Of some hypotheses, (s, z, *s_i) for each scale, coarsest first, each in the orientation of its hypothesis."""


def cells_under(
    region: Bool[Tensor, "*s"], orientation_ids: Int[Tensor, " n"], *, latents: Latents
) -> list[Bool[Tensor, "n 1 ..."]]:
    """For each scale, the positions whose cell has a pixel in the region of the image, as the hypotheses lie."""
    turned = torch.stack([orient(region, each) for each in orientation_ids.tolist()])[:, None].float()
    pool = F.adaptive_max_pool2d if region.ndim == 2 else F.adaptive_max_pool3d
    return [pool(turned, scale.shape[2:]) > 0 for scale in latents]


def turned(latents: Latents, before: Int[Tensor, " s"], after: Int[Tensor, " s"]) -> list[Tensor]:
    """Latents as they lie in other orientations."""
    pairs = list(zip(before.tolist(), after.tolist(), strict=True))

    def one(z: Tensor, number: int) -> Tensor:
        return orient(undo_orientation(z[number], pairs[number][0]), pairs[number][1])

    return [torch.stack([one(scale, number) for number in range(len(pairs))]) for scale in latents]


@torch.no_grad()
def prior_of(features: Features, latents: Latents, orientation_ids: Int[Tensor, " s"]) -> list[Gaussian]:
    """The prior at each scale, given a hypothesis' latents at coarser ones, as the hypotheses lie; of one image."""
    found: list[list[Gaussian]] = []
    for number, orientation in enumerate(orientation_ids.tolist()):
        given = [scale[number : number + 1].to(features.image.device) for scale in latents]
        found.append(features.model.decode(features.of(orientation), given=given)[2])
    return [
        Gaussian(torch.cat([each.mean.cpu() for each in scale]), torch.cat([each.log_sigma.cpu() for each in scale]))
        for scale in zip(*found, strict=True)
    ]
