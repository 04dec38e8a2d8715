"""Trees, hedges and masses of leaves."""

import numpy as np

from hpunet.data.cityscapes.classes import LABEL_IDS
from hpunet.data.synthetic.hard_streets.canvas import Canvas

_LEAVES = np.asarray(((66, 92, 50), (46, 70, 40), (88, 104, 58), (120, 112, 60), (52, 60, 44), (134, 96, 52)), float)


def paint_leaves(
    rng: np.random.Generator, canvas: Canvas, *, middle: np.ndarray, radii: np.ndarray, density: float = 1.0
) -> None:
    """Blobs of leaves in the ellipsoid with these half axes (3,), light above and dark below; gaps stay open."""
    size = canvas.pixels_per_metre(float(middle[2])) * float(radii.max())
    number = int(np.clip(density * (6 + 1.2 * size), 6, 110))
    kind = _LEAVES[rng.choice(len(_LEAVES), p=(0.32, 0.26, 0.2, 0.08, 0.1, 0.04))] * rng.uniform(0.6, 1.15)
    at = rng.normal(size=(number, 3))
    at *= (rng.random((number, 1)) ** 0.4) / np.linalg.norm(at, axis=1, keepdims=True)
    at = at[np.argsort(-at[:, 2])]
    blob = rng.uniform(0.16, 0.5, number) * (1.0 if number < 20 else 0.7)
    angles = np.linspace(0, 2 * np.pi, 11, endpoint=False) + rng.uniform(0, 1, (number, 1))
    reach = blob[:, None] * rng.uniform(0.55, 1.3, (number, 11))
    points = np.repeat((middle + at * radii)[:, None], 11, axis=1)
    points[..., 0] += np.cos(angles) * reach * radii[0]
    points[..., 1] = np.maximum(points[..., 1] + np.sin(angles) * reach * radii[1], 0.05)
    tone = (0.72 + 0.35 * at[:, 1]) * rng.uniform(0.6, 1.3, number)
    colours = kind * tone[:, None] + rng.normal(0, 6, (number, 3))
    canvas.fill(points, colours, LABEL_IDS["vegetation"])


def paint_tree(rng: np.random.Generator, canvas: Canvas, *, x: float, z: float) -> None:
    """A trunk with a few branches, and its crown, which may be thin."""
    trunk, radius, thick = rng.uniform(1.8, 4.0), rng.uniform(1.0, 2.8), rng.uniform(0.08, 0.28)
    value = LABEL_IDS["vegetation"]
    bark = np.asarray((78, 68, 58)) * rng.uniform(0.5, 1.3)
    lean = rng.normal(0, 0.15)
    limbs = [((x, 0.0), (x + lean, trunk + 0.5), thick)]
    for _ in range(rng.integers(1, 4)):
        limbs.append(((x + lean, trunk), (x + lean + rng.normal(0, radius / 2), trunk + radius), thick * 0.5))
    for (x0, y0), (x1, y1), half in limbs:
        points = [(x0 - half, y0, z), (x0 + half, y0, z), (x1 + half * 0.7, y1, z), (x1 - half * 0.7, y1, z)]
        canvas.fill(np.asarray(points), bark, value)
    middle = np.asarray((x + lean, trunk + radius * 0.9, z))
    radii = radius * rng.uniform((0.8, 0.8, 0.6), (1.2, 1.3, 1.0))
    paint_leaves(rng, canvas, middle=middle, radii=radii, density=rng.choice((0.25, 0.6, 1.0, 1.3)))


def paint_hedge(rng: np.random.Generator, canvas: Canvas, *, x: float, near: float, far: float) -> None:
    """A hedge or a row of bushes along the street, about as high as cars."""
    height = rng.uniform(0.5, 2.2)
    for z in np.arange(far, near, -rng.uniform(1.0, 2.5)):
        middle = np.asarray((x, height * rng.uniform(0.4, 0.55), z))
        radii = np.asarray((rng.uniform(0.5, 1.1), height * rng.uniform(0.5, 0.75), 1.0))
        paint_leaves(rng, canvas, middle=middle, radii=radii)


def paint_wood(rng: np.random.Generator, canvas: Canvas, *, x: float, near: float, far: float) -> None:
    """A mass of leaves in place of houses, on the side on which x lies."""
    height = rng.uniform(4, 12)
    for z in np.arange(far, near, -rng.uniform(2.5, 4.5)):
        for level in (0.2, 0.45, 0.75):
            away = np.sign(x) * rng.uniform(0.3, 3.5)
            middle = np.asarray((x + away, height * level * rng.uniform(0.8, 1.2), z))
            paint_leaves(rng, canvas, middle=middle, radii=np.asarray((2.4, height * 0.25, 2.0)), density=0.7)
