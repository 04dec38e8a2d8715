"""Rows of evaluations as earlier versions wrote them."""

import csv
from pathlib import Path

from hpunet.evaluation.rows import COLUMNS


def make_older(path: Path) -> None:
    """Without the metrics of hidden parts and the IoU of the background."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
