import numpy as np
from PIL import Image

from hpunet.utils.pictures import grey_or_colour, sheet, spread, stacked, stretched


def test_spread_takes_first_and_last_and_never_one_twice() -> None:
    assert spread(3, of=9) == [0, 4, 8]
    assert spread(6, of=11) == [0, 2, 4, 6, 8, 10]
    assert spread(9, of=3) == [0, 1, 2]
    assert spread(1, of=5) == [0]
    assert all(len(set(spread(count, of=of))) == min(count, of) for count in range(1, 9) for of in range(1, 99))


def test_stretched_brightens_dim_images_and_leaves_others_alone() -> None:
    rng = np.random.default_rng(0)
    normal = rng.uniform(0.2, 0.7, (1, 64, 64)).astype(np.float32)
    assert stretched(normal) is normal
    dim = np.full((3, 64, 64), 0.02, dtype=np.float32)
    dim[:, 20:30, 20:30] = np.array([0.1, 0.2, 0.3])[:, None, None]
    dim[:, 0, 0] = 1  # a hot pixel
    shown = stretched(dim)
    assert shown.dtype == dim.dtype
    np.testing.assert_allclose(shown[:, 25, 25], (np.array([0.1, 0.2, 0.3]) - 0.02) / 0.28, atol=1e-5)
    assert shown[:, 50, 50].tolist() == [0, 0, 0]
    assert shown.max() == 1
    second_channel = np.stack([normal[0], np.zeros((64, 64), np.float32)])  # is not shown
    assert stretched(second_channel) is second_channel


def test_stretched_leaves_even_images_their_tone_and_noise_small() -> None:
    for tone in (0.0, 0.5, 1.0):
        np.testing.assert_allclose(stretched(np.full((1, 9, 9), tone)), tone)
    noise = np.random.default_rng(0).normal(0.5, 0.002, (1, 64, 64))
    assert 0.01 < stretched(noise).std() < 0.025


def test_grey_or_colour_clips_and_repeats() -> None:
    assert grey_or_colour(np.array([[[-1.0, 0.5, 2.0]]]))[0].tolist() == [[0] * 3, [128] * 3, [255] * 3]
    assert grey_or_colour(np.stack([np.full((1, 1), v) for v in (0.0, 0.5, 1.0)]))[0, 0].tolist() == [0, 128, 255]


def test_sheet_places_every_tile_and_fits_captions() -> None:
    red = np.zeros((10, 20, 3), dtype=np.uint8)
    red[..., 0] = 255
    page = np.asarray(sheet([[red, red], [red]], columns=["a", "b"], row_titles=["one", "two"], title="t", tile=40))
    is_red = (page == [255, 0, 0]).all(axis=2)
    assert is_red.sum() == 3 * 40 * 80
    assert sheet([[red]], title="a title much longer than the picture is wide").width > 200


def test_sheet_columns_are_as_wide_as_their_captions() -> None:
    tile = np.zeros((10, 10, 3), dtype=np.uint8)
    narrow, wide = (sheet([[tile, tile]], columns=[caption, "b"], tile=20) for caption in ("a", "a long caption" * 3))
    assert wide.width > narrow.width + 150


def test_stacked_pages_are_all_there() -> None:
    pages = [Image.new("RGB", size, "black") for size in ((30, 10), (20, 15))]
    whole = np.asarray(stacked(pages))
    assert whole.shape == (25, 30, 3)
    assert (whole == 0).all(axis=2).sum() == 30 * 10 + 20 * 15
