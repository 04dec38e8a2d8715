"""What warps are drawn: each operation's distribution, and that they depend on their key alone."""

import math

import pytest
import torch
from pydantic import ValidationError
from scipy import stats
from warping import COLOURS, EVERYTHING, EVERYTHING_3D, only

from hpunet.config.settings import AugmentationSettings
from hpunet.data.warps import Warp, draw_warp, needed, source_positions

MANY = 4000
HALF_AND_FULL = (
    {"elastic": 0.04, "shear": 0.1, "gamma": (0.81, 1.44), "gain": (0.81, 1.44), "fade": (100, 300)},
    {"elastic": 0.02, "shear": 0.05, "gamma": (0.9, 1.2), "gain": (0.9, 1.2)},
)
"""The same halfway through the fading of the first: exponents are halved as logarithms."""


def draw(
    settings: AugmentationSettings,
    *,
    source=(180, 180),
    crop=(128, 128),
    b=MANY,
    seed=5,
    step=17,
    channels=3,
    spacing=None,
) -> Warp:
    sizes = {"source_size": source, "crop_size": crop, "channels": channels, "spacing": spacing}
    return draw_warp(settings, seed=seed, step=step, index=torch.arange(b), **sizes)


def assert_uniform(values: torch.Tensor, low: float, high: float) -> None:
    assert values.min() >= low - 1e-9
    assert values.max() <= high + 1e-9
    assert stats.kstest(values.numpy(), stats.uniform(low, high - low).cdf).pvalue > 1e-3


@pytest.mark.parametrize("change", [{"seed": 6}, {"step": 18}])
def test_draw_warp_changes_with_its_key(change):
    first, second = draw(EVERYTHING, b=8), draw(EVERYTHING, b=8, **change)
    for name in ("affine", "displacement", "gamma", *COLOURS):
        assert not torch.isclose(getattr(first, name), getattr(second, name)).any()


def test_draw_warp_rotation_is_uniform():
    for degrees in (180.0, 10.0):
        affine = draw(only(rotation=degrees)).affine
        angle = torch.atan2(affine[:, 0, 1], affine[:, 0, 0]).rad2deg()
        assert_uniform(angle, -degrees, degrees)
        square = affine[:, :, :2] @ affine[:, :, :2].mT
        torch.testing.assert_close(square, torch.eye(2, dtype=torch.float64).expand_as(square))
        torch.testing.assert_close(torch.linalg.det(affine[:, :, :2]), torch.ones(MANY, dtype=torch.float64))


def test_draw_warp_scale_is_log_uniform_and_magnifies():
    affine = draw(only(scale=(0.8, 1.25))).affine
    assert_uniform(-affine[:, 0, 0].log(), math.log(0.8), math.log(1.25))
    assert torch.equal(affine[:, 0, 0], affine[:, 1, 1])
    assert (affine[:, [0, 1], [1, 0]] == 0).all()


def test_draw_warp_shear_is_uniform_and_keeps_areas():
    affine = draw(only(shear=0.1)).affine
    assert_uniform(affine[:, 1, 0], -0.1, 0.1)
    torch.testing.assert_close(torch.linalg.det(affine[:, :, :2]), torch.ones(MANY, dtype=torch.float64))


def test_draw_warp_mirrors_half_of_the_images_independently():
    affine = draw(only(mirror_up_down=True, mirror_left_right=True)).affine
    up_down, left_right = affine[:, 0, 0] < 0, affine[:, 1, 1] < 0
    for share, expected in ((up_down, 0.5), (left_right, 0.5), (up_down & left_right, 0.25)):
        assert abs(share.double().mean() - expected) < 5 * 0.5 / math.sqrt(MANY)
    assert (draw(only(mirror_left_right=True)).affine[:, 0, 0] == 1).all()


def test_draw_warp_crop_corner_is_uniform_over_all_that_fit():
    corner = draw(only(random_crop=True), source=(180, 130)).affine[:, :, 2]
    for axis, places in ((0, 53), (1, 3)):
        counts = torch.bincount(corner[:, axis].long(), minlength=places)
        assert len(counts) == places
        assert stats.chisquare(counts.numpy()).pvalue > 1e-3
    assert (corner == corner.round()).all()


def test_draw_warp_translation_is_uniform_in_fractions_of_the_side():
    shift = draw(only(translate=0.1), source=(64, 128), crop=(64, 128)).affine[:, :, 2]
    assert_uniform(shift[:, 0], -6.4, 6.4)
    assert_uniform(shift[:, 1], -12.8, 12.8)
    assert abs(torch.corrcoef(shift.T)[0, 1]) < 5 / math.sqrt(MANY)


def test_draw_warp_elastic_displacement_has_the_configured_sigma():
    displacement = draw(only(elastic=0.04), source=(64, 128), crop=(64, 128)).displacement
    assert displacement.shape == (MANY, 2, 5, 5)
    for axis, side in ((0, 64), (1, 128)):
        values = displacement[:, axis].flatten() / (0.04 * side)
        assert abs(values.mean()) < 5 / math.sqrt(len(values))
        assert abs(values.std() - 1) < 5 / math.sqrt(2 * len(values))
        assert stats.kstest(values[:20_000].numpy(), "norm").pvalue > 1e-3
    assert draw(only(elastic=0.0), b=2).displacement is None


def test_draw_warp_gamma_is_log_uniform_and_off_by_default():
    assert_uniform(draw(only(gamma=(0.7, 1.5))).gamma.double().log(), math.log(0.7) - 1e-6, math.log(1.5) + 1e-6)
    assert draw(AugmentationSettings(), b=2).gamma is None


@pytest.mark.parametrize("name", COLOURS)
def test_draw_warp_colours_are_log_uniform_and_off_by_default(name):
    low, high = COLOURS[name]
    factors = getattr(draw(only(**{name: (low, high)})), name)
    assert factors.shape == ((MANY, 3) if name == "gain" else (MANY,))
    for factor in factors.double().view(MANY, -1).T:
        assert_uniform(factor.log(), math.log(low) - 1e-6, math.log(high) + 1e-6)
    assert getattr(draw(AugmentationSettings(), b=2), name) is None


def test_draw_warp_parameters_are_uncorrelated():
    # The draws of an operation are the same whether or not others are switched on, so each can be read off alone.
    corner, shift = draw(only(random_crop=True)).affine[:, :, 2], draw(only(translate=0.1)).affine[:, :, 2]
    mirror = draw(only(mirror_up_down=True, mirror_left_right=True)).affine
    values = [
        draw(only(rotation=90.0)).affine[:, 0, 1].asin(),
        draw(only(scale=(0.8, 1.25))).affine[:, 0, 0].log(),
        draw(only(shear=0.1)).affine[:, 1, 0],
        draw(only(gamma=(0.7, 1.5))).gamma.double().log(),
        draw(only(saturation=(0.7, 1.4))).saturation.double().log(),
        draw(only(contrast=(0.7, 1.4))).contrast.double().log(),
        *draw(only(gain=(0.7, 1.4))).gain.double().log().T,
        *draw(only(elastic=0.1)).displacement[:, :, 2, 1:3].flatten(1).T,
        *(mirror[:, 0, 0], mirror[:, 1, 1], *corner.T, *shift.T),
    ]
    correlation = torch.corrcoef(torch.stack(values)) - torch.eye(len(values))
    assert correlation.abs().max() < 5 / math.sqrt(MANY)


def test_draw_warp_operation_switched_off_leaves_the_others_alone():
    plain = draw(EVERYTHING.model_copy(update={"elastic": 0.0, "gamma": (1.0, 1.0)}), b=5)
    assert torch.equal(draw(EVERYTHING, b=5).affine, plain.affine)


@pytest.mark.parametrize("make_step", [int, torch.tensor])
def test_draw_warp_deformation_fades_while_turning_and_mirroring_stay(make_step):
    fading = EVERYTHING.model_copy(update={"fade": (100, 300)})
    off = {"elastic": 0.0, "shear": 0.0, "scale": (1.0, 1.0), "translate": 0.0, "gamma": (1.0, 1.0)}
    off |= dict.fromkeys(COLOURS, (1.0, 1.0))
    rigid = EVERYTHING.model_copy(update=off)
    for step in (0, 99, 100):
        before, full = draw(fading, b=5, step=make_step(step)), draw(EVERYTHING, b=5, step=step)
        for name in ("affine", "displacement", "gamma", *COLOURS):
            assert torch.equal(getattr(before, name), getattr(full, name)), (name, step)
    for step in (300, 10**6):
        after = draw(fading, b=5, step=make_step(step))
        torch.testing.assert_close(after.affine, draw(rigid, b=5, step=step).affine, rtol=0, atol=1e-12)
        assert not after.displacement.any()
        assert all((getattr(after, name) == 1).all() for name in ("gamma", *COLOURS))
    half, full = (draw(only(**changes), b=5, step=200) for changes in HALF_AND_FULL)
    torch.testing.assert_close(half.affine[:, :, :2], full.affine[:, :, :2])
    torch.testing.assert_close(half.displacement, full.displacement)
    torch.testing.assert_close(half.gamma, full.gamma)
    torch.testing.assert_close(half.gain, full.gain)


def test_draw_warp_keeps_the_crop_centre_under_rotation_scale_shear_and_mirroring():
    settings = AugmentationSettings(random_crop=False)
    affine = draw(settings, source=(180, 100), crop=(128, 60), b=50).affine
    centre = affine @ torch.tensor([63.5, 29.5, 1.0], dtype=torch.float64)
    torch.testing.assert_close(centre, torch.tensor([89.5, 49.5], dtype=torch.float64).expand(50, 2))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("elastic", -0.1), ("elastic", math.nan), ("rotation", 181.0), ("shear", -1.0), ("translate", math.inf)),
        *(("scale", (1.2, 0.8)), ("scale", (0.0, 1.0)), ("fade", (300, 300)), ("fade", (-1, 300))),
        *(("tilt", -1.0), ("tilt", 181.0), ("scale_depth", (1.2, 0.8)), ("scale_depth", (0.0, 1.0))),
        *(("gamma", (-1.0, 1.0)), ("gamma", (1.0, math.nan))),
    ],
)
def test_augment_settings_reject_impossible_values(name, value):
    with pytest.raises(ValidationError, match=name):
        AugmentationSettings(**{name: value})


VOLUME = {"source": (40, 180, 180), "crop": (32, 128, 128)}
SPACING = (5.0, 0.5, 0.5)


def test_draw_warp_of_volumes_is_that_of_images_in_the_plane():
    volumes, images = draw(EVERYTHING, **VOLUME, b=20), draw(EVERYTHING, b=20)
    assert torch.equal(volumes.affine[:, 1:, 1:3], images.affine[:, :, :2])
    torch.testing.assert_close(volumes.affine[:, 1:, 3], images.affine[:, :, 2], rtol=0, atol=1e-12)
    assert not volumes.affine[:, 1:, 0].any()
    assert not volumes.affine[:, 0, 1:3].any()
    for name in ("gamma", *COLOURS):
        assert torch.equal(getattr(volumes, name), getattr(images, name))


def test_draw_warp_moves_depth_uniformly_and_mirrors_it():
    corner = draw(only(random_crop=True), **VOLUME).affine[:, 0, 3]
    counts = torch.bincount(corner.long(), minlength=9)
    assert len(counts) == 9
    assert stats.chisquare(counts.numpy()).pvalue > 1e-3
    shift = draw(only(translate=0.1), source=(32, 128, 128), crop=(32, 128, 128)).affine[:, 0, 3]
    assert_uniform(shift, -3.2, 3.2)
    assert_uniform(
        -draw(only(scale_depth=(0.8, 1.25)), **VOLUME).affine[:, 0, 0].log(), math.log(0.8), math.log(1.25)
    )
    flipped = draw(only(mirror_front_back=True), **VOLUME).affine[:, 0, 0] < 0
    assert abs(flipped.double().mean() - 0.5) < 5 * 0.5 / math.sqrt(MANY)


def test_draw_warp_has_sources_of_different_sizes_each_in_its_own():
    sizes = torch.tensor([[40, 180, 150], [20, 128, 300], [32, 128, 128]])
    how = {"seed": 5, "step": 17, "crop_size": (32, 128, 128), "spacing": SPACING}
    together = draw_warp(EVERYTHING_3D, index=torch.arange(3), source_size=sizes.unbind(1), **how).affine
    for i in range(3):
        source = tuple(sizes[i].tolist())
        alone = draw_warp(EVERYTHING_3D, index=torch.tensor([i]), source_size=source, **how).affine[0]
        assert torch.equal(together[i], alone)


def test_draw_warp_tilt_is_a_rotation_out_of_the_plane_in_mm():
    affine = draw(only(tilt=20.0), **VOLUME, spacing=SPACING).affine
    spacing = torch.tensor(SPACING, dtype=torch.float64)
    turn = spacing.view(3, 1) * affine[:, :, :3] / spacing
    torch.testing.assert_close(turn @ turn.mT, torch.eye(3, dtype=torch.float64).expand_as(turn))
    torch.testing.assert_close(torch.linalg.det(turn), torch.ones(MANY, dtype=torch.float64))
    assert_uniform(turn[:, 0, 0].acos().rad2deg(), 0, 20)  # between the slices' normals, before and after
    torch.testing.assert_close(turn[:, 1, 2], turn[:, 2, 1])  # the axis lies in the plane: no turn within it
    direction = torch.atan2(turn[:, 0, 2], turn[:, 0, 1])
    assert_uniform(direction, -math.pi, math.pi)
    centre = affine @ torch.tensor([15.5, 63.5, 63.5, 1.0], dtype=torch.float64)
    torch.testing.assert_close(centre, torch.tensor([19.5, 89.5, 89.5], dtype=torch.float64).expand(MANY, 3))


def test_draw_warp_of_volumes_is_uncorrelated():
    tilted = draw(only(tilt=20.0), **VOLUME).affine
    values = [
        *draw(only(random_crop=True), **VOLUME).affine[:, :, 3].T,
        *draw(only(translate=0.1), **VOLUME).affine[:, :, 3].T,
        draw(only(mirror_front_back=True), **VOLUME).affine[:, 0, 0],
        draw(only(scale_depth=(0.8, 1.25)), **VOLUME).affine[:, 0, 0].log(),
        draw(only(rotation=90.0), **VOLUME).affine[:, 1, 2].asin(),
        draw(only(shear=0.1), **VOLUME).affine[:, 2, 1],
        *(tilted[:, 0, 0], *tilted[:, 0, 1:3].T),
        *draw(only(elastic=0.1), **VOLUME).displacement[:, :, 2, 2, 1:3].flatten(1).T,
    ]
    correlation = torch.corrcoef(torch.stack(values)) - torch.eye(len(values))
    assert correlation.abs().max() < 5 / math.sqrt(MANY)


def test_draw_warp_tilt_and_depth_fade():
    fading = EVERYTHING_3D.model_copy(update={"fade": (100, 300)})
    for step in (300, 10**6):
        affine = draw(fading, **VOLUME, b=5, step=step).affine
        torch.testing.assert_close(affine[:, 0, 0].abs(), torch.ones(5, dtype=torch.float64))
        assert affine[:, 0, 1:3].abs().max() < 1e-12
        assert affine[:, 1:, 0].abs().max() < 1e-12


@pytest.mark.parametrize(
    ("crop", "spacing", "share"),
    [((8, 128, 128), None, 1 / 16), ((8, 64, 128), SPACING, 40 / 64), ((32, 128, 128), SPACING, 1.0)],
)
def test_elastic_control_points_are_as_far_apart_along_depth_as_in_the_plane(crop, spacing, share):
    warp = draw(only(elastic=0.1), source=crop, crop=crop, spacing=spacing, b=1)
    assert warp.depth_share == pytest.approx(share)


@pytest.mark.parametrize(("depth", "spacing"), [(3, SPACING), (8, SPACING), (8, None), (32, None)])
def test_elastic_deformation_bends_as_much_per_mm_along_depth_as_in_the_plane(depth, spacing):
    """Thin volumes are not torn apart: neighbouring slices shift against each other like pixels as far apart."""
    size, (of_slice, of_pixel, _) = (depth, 64, 64), spacing or (1.0, 1.0, 1.0)
    warp = draw(only(elastic=0.04), source=size, crop=size, spacing=spacing, b=100)
    z, y, _ = source_positions(warp, crop_size=size, rows=slice(None))
    assert (z.diff(dim=1) > 0).double().mean() > 0.9995  # as rows and columns of images
    moved = (y - torch.arange(64).view(1, 64, 1)).double()
    across = moved[:, depth // 2].diff(dim=2)[..., 16:48].std() / of_pixel  # y moves, per mm of x
    along = moved.diff(dim=1).std() / of_slice
    assert 0.6 < along / across < 1.7


def test_needed_bounds_all_positions_and_little_more():
    for size, crop in (((40, 180, 180), (32, 128, 96)), ((180, 180), (128, 96))):
        warp = draw(EVERYTHING_3D if len(size) == 3 else EVERYTHING, source=size, crop=crop, spacing=None, b=8)
        first, last = needed(warp, crop_size=crop)
        for axis, position in enumerate(source_positions(warp, crop_size=crop, rows=slice(None))):
            low, high = position.flatten(1).amin(1), position.flatten(1).amax(1)
            assert (first[:, axis] + 1 <= low.floor()).all()
            assert (last[:, axis] - 2 >= high.floor()).all()
            assert ((last - first)[:, axis] < 1.3 * (high - low) + 8).all()
