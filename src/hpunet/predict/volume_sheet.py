"""The contact sheet of a volume: three planes through the middle of what is marked, laid out as that of an image."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Integer
from PIL import Image

from hpunet.predict.contact_sheet import sample_sheet
from hpunet.sampling.hypotheses import Hypothesis
from hpunet.utils.planes import Planes


def volume_sheet(
    *,
    image: Float[np.ndarray, "c d h w"],
    labels: Integer[np.ndarray, "s d h w"],
    mean: Float[np.ndarray, "d h w"],
    std: Float[np.ndarray, "d h w"],
    hypotheses: Sequence[Hypothesis],
    title: str,
    spacing: Sequence[float] | None,
    first_slice: int = 0,
    colour: str | None = None,
) -> Image.Image:
    """One page, as `sample_sheet`; small marks are shown enlarged. `first_slice` is the number of the first."""
    planes = Planes.through(labels != 0, spacing=spacing)
    z, y, x = planes.centre
    where = f"slice {first_slice + z}, below it row {y}, beside it column {x}"
    where += "" if mean[planes.part].shape == mean.shape else ", the marked part only"
    return sample_sheet(
        image=planes.of(image, gap=float(image.max())),
        labels=planes.of(labels),
        mean=planes.of(mean, gap=1.0),
        std=planes.of(std, gap=float(std.max())),
        hypotheses=hypotheses,
        title=f"{title}; {where}",
        colour=colour,
    )
