"""Metrics (App. B): label maps in, one value per image out; see docs/reference/metrics.md. Start at overlap.py."""

from hpunet.metrics.average_precision import (
    AveragePrecision,
    InstanceMatches,
    average_precision,
    match_instances,
    resampled_average_precision,
)
from hpunet.metrics.bootstrap import Bootstrap, bootstrap, resampled_means
from hpunet.metrics.crps import area_crps, crps, volume_crps
from hpunet.metrics.distributions import (
    PairIoUs,
    best_match_dice,
    best_subset_iou,
    ged2,
    ged2_unbiased,
    hungarian_iou,
    pair_ious,
    sample_diversity,
)
from hpunet.metrics.hidden import border_agreement, hidden_accuracy, hidden_iou, hidden_sample_disagreement
from hpunet.metrics.measurements import Measurements, Sizes, measure
from hpunet.metrics.medoids import Medoids, k_medoids
from hpunet.metrics.overlap import iou, iou_rec, subset_b
from hpunet.metrics.pixels import calibration_error, uncertainty_error_ncc
from hpunet.metrics.rand import rand_error
from hpunet.metrics.shapes import Diameters, area, diameters, longest_diameter, num_parts, volume

__all__ = [
    "AveragePrecision",
    "Bootstrap",
    "Diameters",
    "InstanceMatches",
    "Measurements",
    "Medoids",
    "PairIoUs",
    "Sizes",
    "area",
    "area_crps",
    "average_precision",
    "best_match_dice",
    "best_subset_iou",
    "bootstrap",
    "border_agreement",
    "calibration_error",
    "crps",
    "diameters",
    "ged2",
    "ged2_unbiased",
    "hidden_accuracy",
    "hidden_iou",
    "hidden_sample_disagreement",
    "hungarian_iou",
    "iou",
    "iou_rec",
    "k_medoids",
    "longest_diameter",
    "match_instances",
    "measure",
    "num_parts",
    "pair_ious",
    "rand_error",
    "resampled_average_precision",
    "resampled_means",
    "sample_diversity",
    "subset_b",
    "uncertainty_error_ncc",
    "volume",
    "volume_crps",
]
