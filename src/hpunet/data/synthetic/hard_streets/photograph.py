"""From a painted scene to a photograph: texture, light, optics, noise, compression."""

import io

import numpy as np
from jaxtyping import UInt8
from PIL import Image
from scipy import ndimage

from hpunet.data.cityscapes.classes import LABEL_IDS
from hpunet.data.synthetic.hard_streets.difficulty import Difficulty
from hpunet.data.synthetic.texture import smooth_noise, to_bytes

_ROUGH = {
    "vegetation": 0.3,
    "terrain": 0.16,
    "building": 0.09,
    "wall": 0.1,
    "fence": 0.12,
    "road": 0.05,
    "sidewalk": 0.09,
}
_REST = 0.05


def photograph(
    rng: np.random.Generator, *, colour: UInt8[np.ndarray, "h w 3"], ids: np.ndarray, horizon: float, hard: Difficulty
) -> UInt8[np.ndarray, "3 h w"]:
    """What a camera makes of painted colours."""
    size = ids.shape
    unit = size[0] / 256  # pixels, of lengths given at a height of 256
    planes = colour.transpose(2, 0, 1).astype(np.float32) / 255
    if rng.random() < 0.18 * hard.weather:
        planes = _wet(rng, planes, ids=ids, horizon=horizon)
    rough = np.full(1 + max(LABEL_IDS.values()), _REST, np.float32)
    for name, amount in _ROUGH.items():
        rough[LABEL_IDS[name]] = amount
    strength = rough[np.where(ids >= 1000, ids // 1000, ids)] * hard.texture
    grain = 0.6 * smooth_noise(rng, size=size, scale=max(1.1 * unit, 1.01))
    grain += 0.55 * smooth_noise(rng, size=size, scale=max(3.2 * unit, 1.05)) + 0.35 * smooth_noise(
        rng, size=size, scale=9 * unit
    )
    planes = planes * (1 + strength * grain)
    for plane in planes:  # dirt and reflections are coloured
        plane *= 1 + 0.04 * hard.texture * smooth_noise(rng, size=size, scale=rng.uniform(3, 16) * unit)
    planes = planes * (1 + 0.08 * hard.weather * smooth_noise(rng, size=size, scale=size[0] / 2.5))
    planes = _light(rng, planes, hard=hard)
    planes = _optics(rng, planes, unit=unit, hard=hard)
    return _compressed(rng, to_bytes(planes), hard=hard)


def _wet(rng: np.random.Generator, planes: np.ndarray, *, ids: np.ndarray, horizon: float) -> np.ndarray:
    """Mirror what stands above the horizon in the wet road."""
    h = ids.shape[0]
    rows = np.clip(np.rint(2 * horizon - np.arange(h)), 0, h - 1).astype(int)
    mirrored = ndimage.gaussian_filter1d(planes[:, rows], h / 60, axis=1)
    shine = (ids == LABEL_IDS["road"]) | (ids == LABEL_IDS["sidewalk"])
    share = rng.uniform(0.15, 0.45) * np.clip(1 + smooth_noise(rng, size=ids.shape, scale=h / 16), 0, 1.6) * shine
    return np.asarray(planes * (1 - share) * 0.9 + mirrored * share, dtype=np.float32)


def _light(rng: np.random.Generator, planes: np.ndarray, *, hard: Difficulty) -> np.ndarray:
    """Exposure, contrast, colour, vignetting, and the sun in the lens."""
    h, w = planes.shape[1:]
    spread = hard.weather
    y, x = np.mgrid[0:h, 0:w].astype(np.float32)
    far = ((x / w - 0.5) ** 2 + (y / h - 0.5) ** 2) * 2
    planes = planes * (1 - rng.uniform(0, 0.35) * spread * far)
    if rng.random() < 0.15 * spread:
        cx, cy = rng.uniform(0, w), rng.uniform(0, 0.4) * h
        glow = np.exp(-np.hypot(x - cx, y - cy) / (w * rng.uniform(0.08, 0.3)))
        planes = planes + rng.uniform(0.2, 0.7) * glow
    tint = np.exp(rng.normal(0, 0.06 * spread, (3, 1, 1))) * np.asarray((0.97, 1.02, 0.96)).reshape(3, 1, 1)
    gain, gamma = np.exp(rng.normal(0.12, 0.19 * spread)), np.exp(rng.normal(-0.12, 0.16 * spread))
    planes = np.clip(planes * gain * tint, 0, 1) ** gamma
    grey = planes.mean(axis=0, keepdims=True)
    planes = grey + (planes - grey) * np.exp(rng.normal(-0.25, 0.3 * spread))
    middle = planes.mean()
    return np.asarray(middle + (planes - middle) * np.exp(rng.normal(-0.05, 0.18 * spread)), dtype=np.float32)


def _optics(rng: np.random.Generator, planes: np.ndarray, *, unit: float, hard: Difficulty) -> np.ndarray:
    """Blur, of the lens and sometimes of motion, and noise that grows in the dark."""
    blur = unit * (0.25 + hard.optics * rng.exponential(0.18))
    planes = np.stack([ndimage.gaussian_filter(plane, min(blur, 1.2 * unit), truncate=3) for plane in planes])
    if rng.random() < 0.1 * hard.optics:
        planes = ndimage.uniform_filter1d(planes, max(2, round(rng.uniform(2, 4) * unit)), axis=2)
    sigma = hard.optics * rng.gamma(2.0, 0.007)
    noise = rng.standard_normal(planes.shape, dtype=np.float32)
    return np.asarray(planes + sigma * noise * np.sqrt(0.3 + np.clip(planes, 0, 1)), dtype=np.float32)


def _compressed(rng: np.random.Generator, image: np.ndarray, *, hard: Difficulty) -> np.ndarray:
    """Artefacts of JPEG, in some scenes."""
    quality = int(rng.integers(30, 95))
    if rng.random() < 0.4 * hard.optics:
        file = io.BytesIO()
        Image.fromarray(np.ascontiguousarray(image.transpose(1, 2, 0))).save(file, format="JPEG", quality=quality)
        image = np.asarray(Image.open(file)).transpose(2, 0, 1)
    return np.ascontiguousarray(image)
