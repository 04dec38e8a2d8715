"""Makes the pictures of the README: `python docs/pictures/make.py` (needs the extra `report`; a minute on two cores).

Images, gradings and weights are those of the package, and seeds are fixed.
"""

import base64
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from architecture import architecture
from contourpy import contour_generator  # comes with matplotlib
from PIL import Image, ImageDraw, ImageFont

import hpunet
from hpunet.data.examples.load import Example
from hpunet.sampling.sample import Samples

HERE = Path(__file__).parent
WEIGHTS = "lidc-hpu-2026"
INK, GREY, LINE, SAMPLE = "#1b1f24", "#5f6b76", "#d9dee3", "#ffb000"
GRADERS = ("#56b4e9", "#ff5c4d", "#2bbf8a", "#e58fc0")
"""One colour per grader, none like that of samples; after Okabe and Ito, for any kind of colour vision."""
FONT = "Inter, 'Helvetica Neue', Helvetica, Arial, sans-serif"
CREDIT = "CT: LIDC-IDRI, CC BY 3.0 (Armato et al. 2011, 2015; Clark et al. 2013); middle 72 by 72 pixels, brightened"
SHOWN = slice(28, 100)
"""The part of each crop that is shown: the middle, 72×72 pixels."""
GAMMA = 0.7
"""Brightens what is shown; the model sees the image as it is."""
WIDTH, MARGIN = 1200, 28


def draw(example: Example, num_samples: int, **options: object) -> Samples:
    """Samples of an example; the same on every run."""
    image = torch.from_numpy(example.image / np.float32(255))[None, None]
    generator = torch.Generator().manual_seed(0)
    return hpunet.sample(MODEL, image=image, num_samples=num_samples, generator=generator, **options)


def outlines(field: np.ndarray, level: float) -> list[np.ndarray]:
    """Lines (n, 2) where a map crosses a level, in units of the shown part: 0 to 1 from its left and its top."""
    lines = contour_generator(z=field).lines(level)
    return [(line + 0.5 - SHOWN.start) / (SHOWN.stop - SHOWN.start) for line in lines]


def outlines_of_sample(samples: Samples, number: int) -> list[np.ndarray]:
    """The border of a sample, finer than a pixel: where lesion and background are equally likely."""
    background, lesion = samples.logits[0, number].double().numpy()
    return outlines(lesion - background, 0.0)


def path(lines: Iterable[np.ndarray], tile: float, style: str) -> str:
    """Lines as one SVG path, on a tile of this size."""
    points = ("M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in line * tile) for line in lines)
    data = "".join(points)
    return f'<path d="{data}" {style}/>' if data else ""


def text(x: float, y: float, words: str, *, size: int = 21, colour: str = INK, more: str = "") -> str:
    """Words at a position."""
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{colour}" {more}>{words}</text>'


def shown(image: np.ndarray, tile: int) -> Image.Image:
    """The shown part of a CT crop, brightened and enlarged smoothly."""
    small = np.rint(255 * (image[SHOWN, SHOWN] / 255) ** GAMMA).astype(np.uint8)
    return Image.fromarray(small).resize((tile, tile), Image.Resampling.LANCZOS)


def crop_uri(image: np.ndarray, tile: int) -> str:
    """The shown part of a CT crop as a data URI."""
    buffer = io.BytesIO()
    shown(image, tile).save(buffer, format="JPEG", quality=85)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()


def tile_symbol(name: str, image: np.ndarray, tile: int) -> str:
    """Defines a tile, to be placed with `place`."""
    return (
        f'<symbol id="{name}" viewBox="0 0 {tile} {tile}"><image href="{crop_uri(image, 2 * tile)}" '
        f'width="{tile}" height="{tile}"/></symbol>'
    )


def place(name: str, x: float, y: float, tile: int, *over: str) -> str:
    """A tile at a position, with outlines over it."""
    return (
        f'<g transform="translate({x:.1f} {y:.1f})" clip-path="url(#round{tile})">'
        f'<use href="#{name}" width="{tile}" height="{tile}"/>{"".join(over)}</g>'
    )


def page(height: int, tile: int, *parts: str, title: str) -> str:
    """A white card, so that the picture reads the same on light and dark pages."""
    credit = text(WIDTH - MARGIN, height - 16, CREDIT, size=15, colour=GREY, more='text-anchor="end"')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'font-family="{FONT}"><title>{title}</title><defs><clipPath id="round{tile}">'
        f'<rect width="{tile}" height="{tile}" rx="8"/></clipPath></defs>'
        f'<rect x="1" y="1" width="{WIDTH - 2}" height="{height - 2}" rx="16" fill="#fff" stroke="{LINE}" '
        f'stroke-width="2"/>{"".join(parts)}{credit}</svg>\n'
    )


def graders_over(labels: np.ndarray, tile: int) -> list[str]:
    """The outlines of all graders who marked something."""
    style = 'fill="none" stroke-width="2.6" stroke-linejoin="round" stroke="{}"'
    return [
        path(outlines(grading.astype(float), 0.5), tile, style.format(colour))
        for grading, colour in zip(labels, GRADERS, strict=True)
    ]


def sample_over(lines: Iterable[np.ndarray], tile: int) -> str:
    """A sample: its outline, lightly filled."""
    style = f'fill="{SAMPLE}" fill-opacity="0.22" stroke="{SAMPLE}" stroke-width="2.6" stroke-linejoin="round"'
    return path(lines, tile, style)


def samples_picture() -> str:
    """Three CT crops, what four radiologists outlined, and five samples of each: quantiles of their area."""
    tile, gap, num_samples, quantiles = 150, 11, 64, (0.1, 0.3, 0.5, 0.7, 0.9)
    xs = [MARGIN + n * (tile + gap) + 14 * min(n, 2) for n in range(2 + len(quantiles))]
    top, row = 62, tile + 46
    parts = [
        text(xs[0], 44, "CT crop", size=22),
        text(xs[1], 44, "4 radiologists", size=22),
        text(xs[2], 44, f"{len(quantiles)} of {num_samples} samples from hpunet, from small to large", size=22),
    ]
    captions = ("2 of 4 marked a lesion", "4 of 4, outlines differ", "4 of 4, outlines similar")
    for number, caption in enumerate(captions, start=1):
        example = hpunet.example(f"lidc-{number}")
        samples = draw(example, num_samples)
        by_area = samples.labels[0].flatten(1).sum(dim=1).argsort(stable=True)
        y, name = top + (number - 1) * row, f"ct{number}"
        parts += [tile_symbol(name, example.image, tile), place(name, xs[0], y, tile)]
        parts.append(place(name, xs[1], y, tile, *graders_over(example.labels, tile)))
        for x, quantile in zip(xs[2:], quantiles, strict=True):
            lines = outlines_of_sample(samples, int(by_area[int(quantile * num_samples)]))
            parts.append(place(name, x, y, tile, sample_over(lines, tile)))
            if not lines:
                middle = 'text-anchor="middle"'
                parts.append(text(x + tile / 2, y + tile + 25, "nothing marked", size=19, colour=GREY, more=middle))
        parts.append(text(xs[0], y + tile + 25, caption, size=19, colour=GREY))
    return page(top + 3 * row + 24, tile, *parts, title="CT crops, four gradings each, and samples from hpunet")


def hypotheses_picture() -> str:
    """The distinct hypotheses among 64 samples of the first example, with the number of samples of each."""
    example, num_samples, tile, gap = hpunet.example("lidc"), 64, 215, 17
    samples = draw(example, num_samples)
    found = hpunet.distinct_hypotheses(samples.labels[0].numpy(), num_classes=2)
    top, parts = 62, [tile_symbol("ct", example.image, tile)]
    legend = "Thick: the most typical sample. Thin: all samples of the group"
    parts.append(text(MARGIN, 44, f"{num_samples} samples in {len(found)} groups. {legend}", size=22))
    thin = f'fill="none" stroke="{SAMPLE}" stroke-width="1" stroke-opacity="0.45"'
    for n, hypothesis in enumerate(found):
        x = MARGIN + n * (tile + gap)
        members = [path(outlines_of_sample(samples, m), tile, thin) for m in hypothesis.members]
        medoid = sample_over(outlines_of_sample(samples, hypothesis.representative), tile)
        parts.append(place("ct", x, top, tile, *members, medoid))
        y, count = top + tile, len(hypothesis.members)
        bar = max(10, tile * count / num_samples)
        parts += [
            f'<rect x="{x}" y="{y + 16}" width="{tile}" height="10" rx="5" fill="#eceff2"/>',
            f'<rect x="{x}" y="{y + 16}" width="{bar:.1f}" height="10" rx="5" fill="{SAMPLE}"/>',
            text(x, y + 66, f"{count} of {num_samples}", size=34, more='font-weight="600"'),
            text(x, y + 94, "nothing marked" if not hypothesis.area else f"{hypothesis.area} pixels", size=20),
        ]
    return page(top + tile + 150, tile, *parts, title="Distinct hypotheses and how many samples each has")


def scales_animation(target: Path) -> None:
    """Samples of one crop, one after the other: all latents sampled, only the coarsest, only the finest."""
    example, frames, tile, gap = hpunet.example("lidc-2"), 16, 384, 24
    upright = torch.zeros(1, frames, dtype=torch.long)
    coarse = draw(example, frames, orientation_ids=upright, latents=["sample", "mean", "mean", "mean"])
    fine = draw(example, frames, orientation_ids=upright, latents=["mean", "mean", "mean", "sample"])
    panels = (
        ("All latents sampled", "lesion or none, size, outline", draw(example, frames, orientation_ids=upright)),
        ("Only the coarsest sampled", "mainly: lesion or none, and its size", coarse),
        ("Only the finest sampled", "details of the outline", fine),
    )
    crop, top = shown(example.image, tile), 92
    heading, small = ImageFont.load_default(size=27), ImageFont.load_default(size=20)
    size = (2 * MARGIN + 3 * tile + 2 * gap, top + tile + 52)
    pictures = []
    for frame in range(frames):
        picture = Image.new("RGB", size, "white")
        pen = ImageDraw.Draw(picture)
        for n, (title, says, samples) in enumerate(panels):
            x = MARGIN + n * (tile + gap)
            pen.text((x, 18), title, fill=INK, font=heading)
            pen.text((x, 56), says, fill=GREY, font=small)
            picture.paste(painted(crop, outlines_of_sample(samples, frame)), (x, top))
        pen.text((MARGIN, size[1] - 16), f"sample {frame + 1} of {frames}", fill=INK, font=small, anchor="ls")
        pen.text((size[0] - MARGIN, size[1] - 16), CREDIT, fill=GREY, font=small.font_variant(size=17), anchor="rs")
        pictures.append(picture)
    pictures[0].save(target, save_all=True, append_images=pictures[1:], duration=500, loop=0, quality=82, method=6)


def painted(crop: Image.Image, lines: Sequence[np.ndarray]) -> Image.Image:
    """A crop with a sample over it, drawn at four times the size for smooth lines."""
    fine = crop.convert("RGB").resize((4 * crop.width, 4 * crop.height))
    colour, shade = Image.new("RGB", fine.size, SAMPLE), Image.new("L", fine.size)
    pen = ImageDraw.Draw(shade)
    for line in lines:
        points = [(x, y) for x, y in line * fine.width]
        pen.polygon(points, fill=56)
        pen.line([*points, points[0]], fill=255, width=4 * 4, joint="curve")
    fine.paste(colour, mask=shade)
    return fine.resize(crop.size, Image.Resampling.LANCZOS)


if __name__ == "__main__":
    MODEL = hpunet.load(WEIGHTS, device="cpu").model
    (HERE / "samples.svg").write_text(samples_picture())
    (HERE / "hypotheses.svg").write_text(hypotheses_picture())
    (HERE / "architecture.svg").write_text(architecture())
    scales_animation(HERE / "scales.webp")
    for file in sorted(HERE.glob("*.*")):
        print(f"{file.name:20} {file.stat().st_size / 1000:6.0f} kB")
