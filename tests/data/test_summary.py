"""Statistics and contact sheets of volumes; those of images are tested with their sources (`test_open.py`)."""

from dataclasses import replace

import numpy as np
import pytest
from random_sources import ListSource, random_source

from hpunet.data.summary import contact_sheet, summarise
from hpunet.utils import pictures


def test_summary_of_volumes_counts_voxels() -> None:
    source = random_source(num_classes=3, sizes=[(3, 5, 7), (3, 5, 7), (2, 4, 9)])
    source.samples[0].labels[1] = 0
    found = summarise(source, source.samples)
    assert found.sizes == {(3, 5, 7): 2, (2, 4, 9): 1}
    assert found.num_images == 3
    first, second, third = source.samples
    # Graders 2 and 3 exist in the second and third; grader 2 left the first one empty, where only grader 1 exists.
    assert found.grader_present == pytest.approx([1, 2 / 3, 2 / 3])
    assert found.grader_marked == pytest.approx([1, 1, 1])
    assert found.num_marked_by_all == 3
    values = [sample.labels[sample.graders][:, sample.valid].ravel() for sample in (first, second, third)]
    assert found.class_shares["c2"] == pytest.approx((np.concatenate(values) == 2).mean())
    voxels = [2 * 3 * 5 * 7, 2 * 4 * 9]
    assert found.invalid_share == pytest.approx(sum((~s.valid).sum() for s in source.samples) / sum(voxels))
    a, b = (second.labels[r] for r in (0, 1))
    dice = 2 * ((a == b) & (a > 0)).sum() / ((a > 0).sum() + (b > 0).sum())
    other_a, other_b = (third.labels[r] for r in (0, 1))
    other = 2 * ((other_a == other_b) & (other_a > 0)).sum() / ((other_a > 0).sum() + (other_b > 0).sum())
    assert found.agreement[0, 1].dice == pytest.approx((dice + other) / 2)


def test_summary_counts_an_instance_through_all_slices_once() -> None:
    source = random_source(num_classes=1, instances=40, sizes=[(4, 9, 6)] * 3, graders=1)
    found = summarise(source, source.samples)
    counts = [len(np.unique(sample.labels[sample.labels > 0])) for sample in source.samples]
    assert found.instances_per_image == (pytest.approx(np.mean(counts)), max(counts))


def test_contact_sheet_shows_the_slice_of_a_volume_marked_most_and_planes_across_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = random_source(num_classes=2, sizes=[(5, 8, 6)] * 2, graders=2)
    empty = [replace(sample, labels=np.zeros_like(sample.labels)) for sample in source.samples]
    empty[0].labels[1, 3, 2:4, 2:4] = 1
    empty[0].labels[0, 1, 2, 2] = 1
    shown = []
    monkeypatch.setattr(
        "hpunet.data.summary.stretched", lambda image: shown.append(image) or pictures.stretched(image)
    )
    sheet = np.asarray(contact_sheet(ListSource(empty, info=replace(source.info, spacing=(2.5, 1.0, 1.0)))))
    assert (sheet[-12:-8, -12:-8] == 255).all()  # nothing beside the planes
    # The slice, below it the row and beside it the column with most marks; slices are 2.5 times as thick as pixels.
    first, d, h, w = empty[0].image, 12, 8, 6
    np.testing.assert_array_equal(shown[0][:, :h, :w], first[:, 3])
    places = np.arange(d) * 2 // 5
    np.testing.assert_array_equal(shown[0][:, -d:, :w], first[:, places, 2])
    np.testing.assert_array_equal(shown[0][:, :h, -d:], first[:, places][..., 2].swapaxes(1, 2))
    np.testing.assert_array_equal(shown[1][:, :h, :w], empty[1].image[:, 2])  # nothing marked: the middle
