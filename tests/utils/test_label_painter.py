import numpy as np
import pytest

from hpunet.errors import ConfigError
from hpunet.utils.label_painter import (
    PALETTE,
    _cielab,
    colour_instances,
    contrast_palette,
    cover_hidden,
    legend_swatch,
    overlay,
    paint_classes,
    paint_instances,
)
from hpunet.utils.pictures import grey_or_colour, stretched


def test_overlay_tells_labels_apart_and_leaves_background_alone() -> None:
    image = np.zeros((1, 32, 32), dtype=np.float32)
    flat = [overlay(image=image, labels=np.full((32, 32), label), opacity=1.0) for label in range(29)]
    assert not flat[0].any()
    assert (flat[1] == PALETTE[1]).all()
    assert len({picture.tobytes() for picture in flat}) == 29


def test_overlay_leaves_background_alone_and_draws_borders_in_full() -> None:
    image = np.full((1, 5, 5), 0.5, dtype=np.float32)
    labels = np.zeros((5, 5), dtype=np.int64)
    labels[1:4, 1:4] = 1
    painted = overlay(image=image, labels=labels)
    assert (painted[0] == 128).all()
    assert (painted[1, 1] == PALETTE[1]).all()  # border
    assert painted[2, 2].tolist() not in ([128] * 3, PALETTE[1].tolist())  # inside: a mixture


def test_overlay_shows_the_image_as_it_is_shown_elsewhere() -> None:
    dim = np.random.default_rng(0).uniform(0, 0.1, (1, 16, 16)).astype(np.float32)
    painted = overlay(image=dim, labels=np.zeros((16, 16), dtype=np.int64))
    assert (painted == grey_or_colour(stretched(dim))).all()
    assert painted.max() > 200


def test_colour_instances_gives_neighbours_across_a_gap_other_colours_and_keeps_zero() -> None:
    instances = np.zeros((9, 30), dtype=np.int32)
    for i in range(10):
        instances[1:8, 3 * i : 3 * i + 2] = 100 + i
    colours = colour_instances(instances)
    assert (colours[instances == 0] == 0).all()
    row = colours[4, ::3]
    assert (row > 0).all()
    assert (row[1:] != row[:-1]).all()
    assert row.max() <= 7
    assert not colour_instances(np.zeros((3, 3), dtype=np.int32)).any()


def test_colour_instances_avoids_colours_that_look_alike() -> None:
    rng = np.random.default_rng(0)
    seeds = rng.integers(64, size=(30, 2))
    y, x = np.indices((64, 64))
    instances = np.square(np.stack([y, x]) - seeds[:, :, None, None]).sum(axis=1).argmin(axis=0) + 1
    colours = colour_instances(instances)
    pairs = {
        frozenset(pair)
        for a, b in ((colours[1:], colours[:-1]), (colours[:, 1:], colours[:, :-1]))
        for pair in zip(a[a != b].tolist(), b[a != b].tolist(), strict=True)
    }
    alike = sum(len(pair & {1, 4}) == 2 or len(pair & {1, 6}) == 2 or len(pair & {2, 5}) == 2 for pair in pairs)
    assert alike <= 1 < len(pairs)


def test_colour_instances_makes_a_good_clustering_look_like_the_truth() -> None:
    truth = np.repeat(np.arange(1, 6), 4)[None].repeat(8, axis=0)
    wanted = colour_instances(truth)
    renumbered = (7 - truth) * 10
    assert (colour_instances(renumbered, prefer=wanted) == wanted).all()
    merged = np.where(truth == 2, 1, truth)
    assert (colour_instances(merged, prefer=wanted)[truth > 2] == wanted[truth > 2]).all()


def test_colour_instances_copes_with_noise_and_swatches_are_all_different() -> None:
    rng = np.random.default_rng(0)
    instances = rng.permutation(1600).reshape(40, 40) + 1
    colours = colour_instances(instances)
    for a, b in ((colours[1:], colours[:-1]), (colours[:, 1:], colours[:, :-1])):
        assert (a != b).all()
    assert len({legend_swatch(n).tobytes() for n in range(29)}) == 29


def test_paint_classes_paints_stochastic_ones_greys_others_and_whitens_what_does_not_count() -> None:
    labels = np.array([[0, 1, 2, 3, 3]])
    valid = np.array([[True, True, True, True, False]])
    image = np.full((1, 1, 5), 0.5, dtype=np.float32)
    picture = paint_classes(image=image, labels=labels, stochastic_classes=[2, 3], valid=valid)
    side = picture.shape[0]
    middle = picture[side // 2, side // 2 :: side]
    assert middle[[0, 2, 3, 4]].tolist() == [[0] * 3, PALETTE[1].tolist(), PALETTE[2].tolist(), [255] * 3]
    assert len(set(middle[1].tolist())) == 1
    assert 100 < middle[1, 0] < 250
    over = paint_classes(image=image, labels=np.minimum(labels, 1), stochastic_classes=[1])
    assert over[side // 2, side // 2].tolist() == [128] * 3  # the image itself
    assert over[side // 2, side * 3 // 2].tolist() not in ([128] * 3, PALETTE[1].tolist())


def test_paint_instances_outlines_neighbours_of_one_colour() -> None:
    base = np.full((2, 4, 3), 200, dtype=np.uint8)
    instances = np.array([[1, 1, 2, 2]] * 2)
    picture = paint_instances(base=base, instances=instances, colours=np.ones((2, 4), dtype=np.int64))
    black = (picture == 0).all(axis=2)
    assert black.all(axis=0).any()
    assert (picture[~black] == PALETTE[1]).all()


@pytest.mark.parametrize(("ground", "light"), [(0, True), (40, True), (130, False), (255, False)])
def test_outlines_are_seen_on_dark_and_on_light_ground(ground: int, light: bool) -> None:
    labels = np.zeros((12, 12), dtype=np.int64)
    labels[4:8, 4:8] = 1
    base = np.full((12, 12, 3), ground, dtype=np.uint8)
    image = np.full((1, 12, 12), ground / 255, dtype=np.float32)
    for picture in (
        paint_instances(base=base, instances=labels, colours=labels),
        paint_classes(image=image, labels=labels, stochastic_classes=[1]),
    ):
        side = len(picture) // 12
        corner = picture[4 * side, 4 * side].tolist()
        assert corner == ([235] * 3 if light else [0] * 3)
        assert picture[5 * side, 5 * side].tolist() != corner


def test_cover_hides_the_picture_and_nothing_else() -> None:
    picture = np.zeros((8, 8, 3), dtype=np.uint8)
    visible = np.array([[True, False], [True, True]])
    covered = cover_hidden(picture, visible=visible)
    assert (covered[:4, 4:] > 0).all()
    covered[:4, 4:] = 0
    assert not covered.any()


def test_cielab_is_that_of_the_standard() -> None:
    colours = np.array([[255, 0, 0], [0, 0, 255], [255, 255, 255], [0, 0, 0], [128, 128, 128]])
    expected = [[53.24, 80.09, 67.20], [32.30, 79.19, -107.86], [100, 0, 0], [0, 0, 0], [53.59, 0, 0]]
    np.testing.assert_allclose(_cielab(colours), expected, atol=0.05)


def photograph(*tones: float) -> tuple[np.ndarray, np.ndarray]:
    """An image of one colour with some noise, and two samples of discs."""
    noise = np.random.default_rng(0).normal(0, 0.02, (3, 64, 64))
    rows, columns = np.mgrid[:64, :64]
    labels = np.stack([((rows - 32) ** 2 + (columns - 32) ** 2 < r**2).astype(np.int64) for r in (10, 20)])
    return np.clip(np.array(tones)[:, None, None] + noise, 0, 1).astype(np.float32), labels


@pytest.mark.parametrize("tones", [(0.85, 0.5, 0.1), (0.2, 0.5, 0.85), (0.1, 0.6, 0.4)])
def test_first_colour_is_far_from_the_image(tones: tuple[float, ...]) -> None:
    image, labels = photograph(*tones)
    palette = contrast_palette([image], [labels])
    assert sorted(palette.tolist()) == sorted(PALETTE.tolist())
    ground = _cielab(255 * np.array([tones]))
    distances = np.linalg.norm(_cielab(palette[1:]) - ground, axis=1)
    assert distances[0] >= 0.95 * distances.max()
    assert distances[0] > 60


def test_only_the_colours_near_outlines_count() -> None:
    image, labels = photograph(0.85, 0.5, 0.1)
    expected = contrast_palette([image], [labels])
    image[:, :, :8] = np.array([0.34, 0.71, 0.91])[:, None, None]  # sky blue, far from any disc
    np.testing.assert_array_equal(contrast_palette([image], [labels]), expected)


def test_outlines_of_a_chosen_palette_have_its_colour() -> None:
    image, labels = photograph(0.85, 0.5, 0.1)
    palette = contrast_palette([image], [labels])
    picture = paint_classes(image=image, labels=labels[0], stochastic_classes=[1], palette=palette)
    assert (picture == palette[1]).all(axis=2).sum() > 60
    assert not (picture == 0).all(axis=2).any()
    assert (legend_swatch(1, palette=palette) == palette[1]).all()


def test_grey_images_keep_the_order_and_a_given_colour_comes_first() -> None:
    image, labels = photograph(0.5, 0.5, 0.5)
    for grey in (image[:1], image[:1].repeat(3, axis=0)):
        np.testing.assert_array_equal(contrast_palette([grey], [labels]), PALETTE)
    assert contrast_palette([image], [labels], colour="cyan")[1].tolist() == [0, 255, 255]
    assert contrast_palette([image], [labels], colour="#010203").shape == PALETTE.shape
    with pytest.raises(ConfigError, match="'vessel'"):
        contrast_palette([image], [labels], colour="vessel")
