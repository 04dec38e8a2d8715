import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from scipy import stats
from scipy.interpolate import CubicSpline

from hpunet.config.settings import AugmentationSettings
from hpunet.data.augment import apply_warp, augment
from hpunet.data.batch import Batch
from hpunet.data.warps import NO_AUGMENTATION, Warp, draw_warp
from hpunet.errors import DataError

MANY = 4000
COLOURS = {"saturation": (0.7, 1.4), "contrast": (0.6, 1.5), "gain": (0.8, 1.25)}
EVERYTHING = AugmentationSettings(translate=0.1, gamma=(0.7, 1.5), **COLOURS)
HALF_AND_FULL = (
    {"elastic": 0.04, "shear": 0.1, "gamma": (0.81, 1.44), "gain": (0.81, 1.44), "fade": (100, 300)},
    {"elastic": 0.02, "shear": 0.05, "gamma": (0.9, 1.2), "gain": (0.9, 1.2)},
)
"""The same halfway through the fading of the first: exponents are halved as logarithms."""


def make_batch(b=3, c=1, r=2, h=20, w=16, *, dtype=torch.float32, high=2**31 - 1, valid_share=0.9) -> Batch:
    g = torch.Generator().manual_seed(b + 10 * c + 100 * h + w)
    valid = torch.rand(b, h, w, generator=g) < valid_share
    labels = torch.randint(1, high, (b, r, h, w), generator=g, dtype=torch.int32) * valid.unsqueeze(1)
    image = torch.rand(b, c, h, w, generator=g).to(dtype)
    return Batch(image=image, labels=labels, valid=valid, graders=torch.ones(b, r, dtype=torch.bool))


def draw(
    settings: AugmentationSettings, *, source=(180, 180), crop=(128, 128), b=MANY, seed=5, step=17, channels=3
) -> Warp:
    sizes = {"source_size": source, "crop_size": crop, "channels": channels}
    return draw_warp(settings, seed=seed, step=step, index=torch.arange(b), **sizes)


def only(**changes) -> AugmentationSettings:
    return NO_AUGMENTATION.model_copy(update=changes)


def assert_same(a: Batch, b: Batch) -> None:
    for name in ("image", "labels", "valid", "graders"):
        x, y = getattr(a, name), getattr(b, name)
        assert x.dtype == y.dtype
        assert torch.equal(x, y), name


def assert_uniform(values: torch.Tensor, low: float, high: float) -> None:
    assert values.min() >= low - 1e-9
    assert values.max() <= high + 1e-9
    assert stats.kstest(values.numpy(), stats.uniform(low, high - low).cdf).pvalue > 1e-3


def brute_force(batch: Batch, warp: Warp, crop: tuple[int, int]):
    """Every crop pixel by itself, in float64; `tie` marks pixels whose nearest source pixel is a toss-up."""
    b, c, source_h, source_w = batch.image.shape
    h, w = crop
    image, labels = np.zeros((b, c, h, w)), np.zeros((b, batch.labels.shape[1], h, w), dtype=np.int64)
    valid, tie, inside = (np.zeros((b, h, w), dtype=bool) for _ in range(3))
    for i in range(b):
        elastic = warp.displacement[i].numpy()
        elastic = CubicSpline(np.linspace(0, w - 1, 5), elastic, axis=2, bc_type="natural")(np.arange(w))
        elastic = CubicSpline(np.linspace(0, h - 1, 5), elastic, axis=1, bc_type="natural")(np.arange(h))
        for y in range(h):
            for x in range(w):
                py, px = warp.affine[i].numpy() @ (y, x, 1) + elastic[:, y, x]
                ny, nx = math.floor(py + 0.5), math.floor(px + 0.5)
                tie[i, y, x] = max(abs(py - ny), abs(px - nx)) > 0.4999
                if not (0 <= ny < source_h and 0 <= nx < source_w):
                    continue
                inside[i, y, x] = True
                if batch.valid[i, ny, nx]:
                    valid[i, y, x] = True
                    labels[i, :, y, x] = batch.labels[i, :, ny, nx]
                py, px = min(max(py, 0), source_h - 1), min(max(px, 0), source_w - 1)
                y0, x0 = math.floor(py), math.floor(px)
                for ty, weight_y in ((y0, 1 - (py - y0)), (min(y0 + 1, source_h - 1), py - y0)):
                    for tx, weight_x in ((x0, 1 - (px - x0)), (min(x0 + 1, source_w - 1), px - x0)):
                        image[i, :, y, x] += weight_y * weight_x * batch.image[i, :, ty, tx].numpy()
        image[i] **= warp.gamma[i].item()
        for y in range(h):
            for x in range(w):
                pixel = image[i, :, y, x]
                grey = pixel.mean()
                pixel = 0.5 + warp.contrast[i].item() * (grey + warp.saturation[i].item() * (pixel - grey) - 0.5)
                exists = not tie[i, y, x] and inside[i, y, x]
                image[i, :, y, x] = np.clip(pixel * warp.gain[i].numpy(), 0, 1) * exists
    return image, labels, valid, tie


@pytest.mark.parametrize(
    ("c", "source", "crop"),
    [(1, (20, 20), (14, 14)), (3, (24, 16), (12, 10)), (1, (9, 15), (13, 11)), (1, (16, 1), (12, 3))],
)
def test_apply_warp_matches_brute_force(c, source, crop):
    batch = make_batch(4, c, 2, *source)
    warp = draw(EVERYTHING, source=source, crop=crop, b=4, channels=c)
    out = apply_warp(batch, warp, crop_size=crop)
    image, labels, valid, tie = brute_force(batch, warp, crop)
    assert tie.mean() < 0.01
    assert np.array_equal(out.valid.numpy()[~tie], valid[~tie])
    assert np.array_equal(out.labels.numpy().transpose(0, 2, 3, 1)[~tie], labels.transpose(0, 2, 3, 1)[~tie])
    shown = out.image.numpy().transpose(0, 2, 3, 1)
    np.testing.assert_allclose(shown[~tie], image.transpose(0, 2, 3, 1)[~tie], atol=5e-5)
    # The case is worth something only when the crop shows valid, invalid and outside pixels.
    assert 0 < valid.mean() < 1
    assert torch.equal(out.graders, batch.graders)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_augment_without_operations_gives_the_input_back(dtype):
    batch = make_batch(3, 2, 2, 180, 33, dtype=dtype)
    index = torch.arange(3)
    out = augment(batch, settings=NO_AUGMENTATION, crop_size=(180, 33), seed=0, step=0, index=index)
    assert_same(out, batch)


def test_apply_warp_with_identity_parameters_gives_the_input_back():
    batch = make_batch(2, 1, 2, 180, 97)
    affine = torch.tensor([[1.0, 0, 0], [0, 1, 0]], dtype=torch.float64).repeat(2, 1, 1)
    warp = Warp(affine=affine, displacement=torch.zeros(2, 2, 5, 5, dtype=torch.float64), gamma=torch.ones(2))
    warp = replace(warp, saturation=torch.ones(2), contrast=torch.ones(2), gain=torch.ones(2, 1))
    assert_same(apply_warp(batch, warp, crop_size=(180, 97)), batch)


def test_augment_without_operations_crops_the_centre():
    batch = make_batch(2, h=180, w=181)
    out = augment(batch, settings=NO_AUGMENTATION, crop_size=(128, 128), seed=0, step=0, index=torch.arange(2))
    cut = (..., slice(26, -26), slice(26, 154))
    assert_same(out, replace(batch, image=batch.image[cut], labels=batch.labels[cut], valid=batch.valid[cut]))


def test_augment_random_crop_copies_pixels_at_every_position():
    batch = make_batch(1, h=8, w=7)
    seen = set()
    for step in range(100):
        out = augment(
            batch, settings=only(random_crop=True), crop_size=(6, 6), seed=1, step=step, index=torch.arange(1)
        )
        cuts = {(y, x): np.s_[:, :, y : y + 6, x : x + 6] for y in range(3) for x in range(2)}
        places = [place for place, cut in cuts.items() if torch.equal(out.image, batch.image[cut])]
        assert len(places) == 1
        assert torch.equal(out.labels, batch.labels[cuts[places[0]]])
        seen.update(places)
    assert len(seen) == 6


def test_augment_small_source_lands_whole_inside_the_crop():
    batch = make_batch(6, h=5, w=7, valid_share=2)
    out = augment(batch, settings=only(random_crop=True), crop_size=(8, 9), seed=1, step=0, index=torch.arange(6))
    assert out.valid.sum((1, 2)).tolist() == [35] * 6
    assert torch.equal(out.labels[:, 0][out.valid], batch.labels[:, 0].flatten())
    assert (out.image[~out.valid.unsqueeze(1)] == 0).all()


def test_augment_mirroring_is_a_flip():
    batch = make_batch(32, h=6, w=9)
    for axis, settings in ((2, only(mirror_up_down=True)), (3, only(mirror_left_right=True))):
        out = augment(batch, settings=settings, crop_size=(6, 9), seed=1, step=0, index=torch.arange(32))
        flipped = [torch.equal(out.labels[i], batch.labels[i].flip(axis - 1)) for i in range(32)]
        assert 0 < sum(flipped) < 32
        for i in range(32):
            expected = batch.image[i].flip(axis - 1) if flipped[i] else batch.image[i]
            assert torch.equal(out.image[i], expected)


def test_apply_warp_quarter_turn_is_rot90():
    batch = make_batch(2, h=10, w=10)
    affine = torch.tensor([[0.0, 1, 0], [-1, 0, 9]], dtype=torch.float64).repeat(2, 1, 1)
    out = apply_warp(batch, Warp(affine=affine), crop_size=(10, 10))
    assert torch.equal(out.image, batch.image.rot90(1, (2, 3)))
    assert torch.equal(out.labels, batch.labels.rot90(1, (2, 3)))
    assert torch.equal(out.valid, batch.valid.rot90(1, (1, 2)))


def test_apply_warp_clamps_the_image_within_half_a_pixel_and_ends_there():
    batch = make_batch(1, h=4, w=4, valid_share=2)
    shift = torch.tensor([[[1.0, 0, -0.25], [0, 1, -0.75]]], dtype=torch.float64)
    out = apply_warp(batch, Warp(affine=shift), crop_size=(4, 4))
    assert not out.valid[0, :, 0].any()
    assert (out.image[0, 0, :, 0] == 0).all()
    assert out.valid[0, :, 1:].all()
    # Row 0 is clamped to the source's first row; column 1 shows column 0.25 of the source.
    source = batch.image[0, 0]
    torch.testing.assert_close(out.image[0, 0, 0, 1:], 0.75 * source[0, :3] + 0.25 * source[0, 1:])
    torch.testing.assert_close(out.labels[0, :, :, 1:], batch.labels[0, :, :, :3])


@pytest.mark.parametrize("dtype", [torch.int16, torch.int32, torch.int64])
def test_augment_never_mixes_label_ids(dtype):
    batch = make_batch(4, h=30, w=30)
    ids = torch.randint(0, torch.iinfo(dtype).max, batch.labels.shape, generator=torch.Generator().manual_seed(1))
    batch = replace(batch, labels=ids.to(dtype) * batch.valid.unsqueeze(1))
    out = augment(batch, settings=EVERYTHING, crop_size=(24, 24), seed=2, step=0, index=torch.arange(4))
    assert out.labels.dtype == dtype
    for i in range(4):
        for grader in range(2):
            found = set(out.labels[i, grader].unique().tolist())
            assert len(found) > 50
            assert found <= set(batch.labels[i, grader].unique().tolist()) | {0}
    assert (out.labels.movedim(1, 3)[~out.valid] == 0).all()


def test_augment_depends_on_seed_step_and_index_alone():
    batch = make_batch(3, 2, 2, 24, 20)
    index = torch.tensor([7, 1000, 3])
    settings = {"settings": EVERYTHING, "crop_size": (18, 16), "seed": 4}
    together = augment(batch, **settings, step=9, index=index)
    for i in range(3):
        parts = {name: getattr(batch, name)[i : i + 1] for name in ("image", "labels", "valid", "graders")}
        alone = augment(Batch(**parts), **settings, step=torch.tensor(9), index=index[i : i + 1])
        torch.testing.assert_close(alone.image[0], together.image[i], rtol=0, atol=1e-6)
        assert torch.equal(alone.labels[0], together.labels[i])
        assert torch.equal(alone.valid[0], together.valid[i])


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


@pytest.mark.parametrize(
    ("name", "factor", "expected"),
    [  # of a pixel of 0.2, 0.4, 0.9, whose mean is 0.5
        ("saturation", 0.0, (0.5, 0.5, 0.5)),
        ("saturation", 2.0, (0.0, 0.3, 1.0)),
        ("contrast", 0.5, (0.35, 0.45, 0.7)),
        ("gain", (2.0, 0.5, 1.0), (0.4, 0.2, 0.9)),
        ("gain", (1.0, 1.0, 1.0), (0.2, 0.4, 0.9)),
    ],
)
def test_apply_warp_changes_colours(name, factor, expected):
    batch = make_batch(1, 3, 1, 2, 2)
    pixel = torch.tensor([0.2, 0.4, 0.9]).view(1, 3, 1, 1)
    batch = replace(batch, image=pixel.expand(1, 3, 2, 2).clone())
    affine = torch.tensor([[[1.0, 0, 1], [0, 1, 0]]], dtype=torch.float64)  # the second row lies outside
    out = apply_warp(batch, Warp(affine=affine, **{name: torch.tensor([factor])}), crop_size=(2, 2))
    torch.testing.assert_close(out.image[0, :, 0], torch.tensor(expected).unsqueeze(1).expand(3, 2))
    assert not out.image[0, :, 1].any()


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


def test_augment_has_no_gradient():
    batch = make_batch(2)
    batch.image.requires_grad_()
    out = augment(batch, settings=EVERYTHING, crop_size=(8, 8), seed=0, step=0, index=torch.arange(2))
    assert not out.image.requires_grad


def test_augment_ignores_autocast():
    batch = make_batch(2, h=180, w=180)
    key = {"settings": EVERYTHING, "crop_size": (128, 128), "seed": 0, "step": 0, "index": torch.arange(2)}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = augment(batch, **key)
    assert_same(inside, augment(batch, **key))


def test_apply_warp_leaves_its_input_alone():
    batch = make_batch(2)
    before = Batch(batch.image.clone(), batch.labels.clone(), batch.valid.clone(), batch.graders.clone())
    augment(batch, settings=EVERYTHING, crop_size=(8, 8), seed=0, step=0, index=torch.arange(2))
    assert_same(batch, before)


def test_apply_warp_rejects_what_does_not_go_together():
    batch, warp = make_batch(3), draw(EVERYTHING, b=2)
    with pytest.raises(DataError, match="made for 2 images, the batch has 3"):
        apply_warp(batch, warp, crop_size=(8, 8))
    object.__setattr__(batch, "valid", batch.valid[:, 1:])  # past the checks that only tests switch on
    with pytest.raises(DataError, match="valid"):
        apply_warp(batch, draw(EVERYTHING, b=3), crop_size=(8, 8))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("elastic", -0.1), ("elastic", math.nan), ("rotation", 181.0), ("shear", -1.0), ("translate", math.inf)),
        *(("scale", (1.2, 0.8)), ("scale", (0.0, 1.0)), ("fade", (300, 300)), ("fade", (-1, 300))),
        *(("gamma", (-1.0, 1.0)), ("gamma", (1.0, math.nan))),
    ],
)
def test_augment_settings_reject_impossible_values(name, value):
    with pytest.raises(ValidationError, match=name):
        AugmentationSettings(**{name: value})


@pytest.mark.gpu
def test_augment_gives_the_same_on_the_gpu():
    batch = make_batch(4, h=180, w=180)
    on_gpu = Batch(batch.image.cuda(), batch.labels.cuda(), batch.valid.cuda(), batch.graders.cuda())
    key = {"settings": EVERYTHING, "crop_size": (128, 128), "seed": 0, "step": 0}
    got = augment(on_gpu, **key, index=torch.arange(4).cuda())
    expected = augment(batch, **key, index=torch.arange(4))
    assert (got.labels.cpu() != expected.labels).float().mean() < 1e-4
    torch.testing.assert_close(got.image.cpu(), expected.image, rtol=0, atol=1e-4)


@pytest.mark.gpu
def test_augment_can_be_captured_in_a_cuda_graph():
    batch = make_batch(4, h=40, w=40)
    batch = Batch(batch.image.cuda(), batch.labels.cuda(), batch.valid.cuda(), batch.graders.cuda())
    key = {"settings": EVERYTHING, "crop_size": (32, 32), "seed": 0, "index": torch.arange(4).cuda()}
    step = torch.tensor(0, device="cuda")
    augment(batch, **key, step=step)  # what is made once must exist before the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = augment(batch, **key, step=step)
    step.fill_(5)
    graph.replay()
    assert_same(out, augment(batch, **key, step=5))
