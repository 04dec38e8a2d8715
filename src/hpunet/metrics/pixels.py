"""Metrics of the marginal distribution of each pixel: calibration, and whether uncertainty lies where errors are."""

from collections.abc import Sequence

import torch
from torch import Tensor

from hpunet.errors import ConfigError
from hpunet.metrics.arrays import GraderMaps, Graders, PerImage, SampleMaps, Valid, checked_sets, in_kind, looked_at


def calibration_error(
    *,
    samples: SampleMaps,
    labels: GraderMaps,
    num_classes: int,
    classes: Sequence[int] | None = None,
    valid: Valid | None = None,
    graders: Graders | None = None,
    num_bins: int = 10,
) -> PerImage:
    """Expected calibration error of the samples' mean, pixel by pixel: Σ_bins (n_bin/n) · |mean p − mean y|.

    p is the share of samples that show any of `classes` at a pixel, y the share of the graders that do. Bins have
    equal width: bin i holds p in [i, i + 1) / `num_bins`, the last one p = 1 as well (Naeini et al., AAAI 2015, for
    the probability of the foreground). Pixels that all samples and graders leave empty are right and count, so the
    value falls with the share of background in the image. NaN (undefined) for an image without a valid pixel.
    """
    if num_bins < 1:
        raise ConfigError(f"num_bins must be at least 1, got {num_bins}")
    hypotheses, truths, where, exist = checked_sets(
        samples=samples, labels=labels, num_classes=num_classes, valid=valid, graders=graders
    )
    chosen = looked_at(classes, num_classes=num_classes)
    b, s = hypotheses.shape[:2]
    showing = _shows(hypotheses, chosen).sum(dim=1)
    y = (_shows(truths, chosen) & exist[:, :, None, None]).sum(dim=1) / exist.sum(dim=1).double()[:, None, None]
    gap = torch.where(where, showing.double() / s - y, 0.0)
    in_bin = (showing * num_bins // s).clamp(max=num_bins - 1)
    sums = torch.zeros(b, num_bins, dtype=torch.float64, device=gap.device)
    sums.scatter_add_(1, in_bin.flatten(1), gap.flatten(1))
    return in_kind(sums.abs().sum(dim=1) / where.sum(dim=(1, 2)), like=samples)


def _shows(maps: Tensor, classes: list[int]) -> Tensor:
    """Where maps show any of the classes."""
    shown = maps == classes[0]
    for c in classes[1:]:
        shown |= maps == c
    return shown


def uncertainty_error_ncc(
    *,
    samples: SampleMaps,
    labels: GraderMaps,
    num_classes: int,
    valid: Valid | None = None,
    graders: Graders | None = None,
) -> PerImage:
    """Normalised cross-correlation of uncertainty and error maps, the mean over graders (Baumgartner et al., PHiSeg).

    PHiSeg correlates E_s[CE(mean of s, s)] with E_s[CE(y, s)] over the pixels. For hard maps both cross-entropies
    are, up to one constant factor that the correlation does not see, how often labels differ:

        uncertainty u = 1 − Σ_k (share of samples of class k)²      error e = share of samples that differ from y

    so ncc = mean[(u − ū)·(e − ē)] / (σ_u·σ_e), over valid pixels and all classes, in [−1, 1]. It is undefined for a
    grader where u or e is the same at every pixel, as when all samples agree; such graders are left out of the mean,
    and an image where none is left is NaN.
    """
    hypotheses, truths, where, exist = checked_sets(
        samples=samples, labels=labels, num_classes=num_classes, valid=valid, graders=graders
    )
    s = hypotheses.shape[1]
    agreeing_pairs = torch.zeros_like(where, dtype=torch.int64)
    agreeing = torch.zeros_like(truths, dtype=torch.int64)
    for c in range(num_classes):
        votes = (hypotheses == c).sum(dim=1)
        agreeing_pairs += votes**2
        agreeing += torch.where(truths == c, votes[:, None], 0)
    # Integers, so that a map which is the same everywhere is known to be.
    uncertainty, error = (s**2 - agreeing_pairs)[:, None], s - agreeing
    ncc = _correlation(uncertainty.expand_as(error), error, where=where[:, None].expand_as(error))
    defined = exist & ~ncc.isnan()
    result = torch.where(defined, ncc, 0.0).sum(dim=1) / defined.sum(dim=1)
    return in_kind(result, like=samples)


def _correlation(a: Tensor, b: Tensor, *, where: Tensor) -> Tensor:
    """Correlation coefficient of integer maps (..., h, w) over the pixels `where`; NaN where one is constant."""
    num = where.sum(dim=(-2, -1), keepdim=True).clamp(min=1)
    centred, constant = [], []
    for values in (a, b):
        first = torch.where(where, values, values.amax(dim=(-2, -1), keepdim=True)).amin(dim=(-2, -1), keepdim=True)
        above = torch.where(where, values - first, 0)
        constant.append((above == 0).flatten(-2).all(dim=-1))
        centred.append(torch.where(where, above - above.sum(dim=(-2, -1), keepdim=True) / num.double(), 0.0))
    product, *squares = ((x * y).sum(dim=(-2, -1)) for x, y in (centred, centred[:1] * 2, centred[1:] * 2))
    ncc = product / (squares[0] * squares[1]).sqrt()
    return torch.where(constant[0] | constant[1], torch.nan, ncc)
