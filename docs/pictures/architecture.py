"""The diagram of the model: the prior's U-Net, the posterior's beside it, latents along both decoders."""

INK, GREY, LINE = "#1b1f24", "#5f6b76", "#d9dee3"
BLUE, ORANGE, GREEN = "#0072b2", "#c85400", "#007a5a"
PALE_BLUE, PALE_ORANGE, PALE_GREEN = "#e6f1f8", "#fcefe4", "#e3f4ee"
FONT = "Inter, 'Helvetica Neue', Helvetica, Arial, sans-serif"
WIDTH, HEIGHT = 1200, 770

TOP, STEP, BAR = 196, 82, 40
"""Height of the first row, distance of rows, and height of a block."""
SCALES = (("128×128",), ("64²", "32²", "16²"), ("8×8",), ("4×4",), ("2×2",), ("1×1",))
WIDTHS = (150, 126, 102, 82, 64, 48)
ENCODER, DECODER, PRIOR_Z = 130, 330, 486
POSTERIOR_Z, POSTERIOR_DECODER, POSTERIOR_ENCODER = 720, 876, 1076
PRIOR = (ENCODER, DECODER, PRIOR_Z)
POSTERIOR = (POSTERIOR_ENCODER, POSTERIOR_DECODER, POSTERIOR_Z)
FIRST_LATENT = 2
"""The row of the finest latents."""


def _y(row: int) -> int:
    return TOP + row * STEP


def _text(x: float, y: float, words: str, *, size: int = 19, colour: str = INK, anchor: str = "middle") -> str:
    return f'<text x="{x}" y="{y}" font-size="{size}" fill="{colour}" text-anchor="{anchor}">{words}</text>'


def _bold(x: float, y: float, words: str, colour: str) -> str:
    return f'<text x="{x}" y="{y}" font-size="25" font-weight="600" fill="{colour}">{words}</text>'


_THICK = 'stroke-width="2.4"'


def _head(colour: str) -> str:
    return f'marker-end="url(#head-{colour[1:]})"'


def _indexed(x: float, y: float, words: str, index: int, colour: str, *, size: int) -> str:
    small = f'<tspan font-size="{size * 2 // 3}" dy="5">{index}</tspan>'
    style = f'font-size="{size}" font-style="italic" fill="{colour}" text-anchor="middle"'
    return f'<text x="{x}" y="{y}" {style}>{words}{small}</text>'


def _arrow(x0: float, y0: float, x1: float, y1: float, colour: str = GREY, more: str = "") -> str:
    return f'<path d="M{x0} {y0}L{x1} {y1}" fill="none" stroke="{colour}" {_THICK} {_head(colour)} {more}/>'


def _block(x: float, row: int, fill: str, edge: str) -> str:
    """The block of a row, with one compartment per scale."""
    width, y, count = WIDTHS[row], _y(row), len(SCALES[row])
    bars = "".join(f"M{x + width * (n / count - 0.5):.0f} {y - BAR / 2}v{BAR}" for n in range(1, count))
    return (
        f'<rect x="{x - width / 2}" y="{y - BAR / 2}" width="{width}" height="{BAR}" rx="8" fill="{fill}" '
        f'stroke="{edge}" stroke-width="2"/>'
        + (f'<path d="{bars}" stroke="{edge}" stroke-width="2"/>' if bars else "")
    )


def _circle(x: float, y: float, words: str, index: int, fill: str, edge: str) -> str:
    disc = f'<circle cx="{x}" cy="{y}" r="25" fill="{fill}" stroke="{edge}" stroke-width="2"/>'
    return disc + _indexed(x, y + 6, words, index, edge, size=22)


def _io(x: float, words: str, under: str = "") -> str:
    """An input or an output, above the first row."""
    box = f'<rect x="{x - 75}" y="106" width="150" height="42" rx="21" fill="#fff" stroke="{GREY}" stroke-width="2"/>'
    return box + _text(x, 133, words) + (_text(x, 96, under, size=16, colour=GREY) if under else "")


def _network(encoder: int, decoder: int, z: int, *, first_decoder: int, fill: str, edge: str, name: str) -> list[str]:
    """One U-Net: encoder down, decoder up, skip connections, a Gaussian at each latent scale."""
    parts, towards = [], 1 if decoder > encoder else -1
    bottom = len(SCALES) - 1
    for row, width in enumerate(WIDTHS):
        y, half = _y(row), towards * width / 2
        parts.append(_block(encoder, row, fill, edge))
        if row < bottom:
            parts.append(_arrow(encoder, y + BAR / 2, encoder, _y(row + 1) - BAR / 2 - 5))
        if row < first_decoder:
            continue
        if row == bottom:  # no block here: the features from the bottom of the encoder go up
            half = 0.0
            parts.append(f'<path d="M{encoder + towards * width / 2} {y}H{decoder}" stroke="{GREY}" {_THICK}/>')
            parts.append(f'<circle cx="{decoder}" cy="{y}" r="5" fill="{GREY}"/>')
        else:
            dotted = 'stroke-dasharray="2 6" stroke-linecap="round"'
            parts.append(_arrow(encoder + half, y, decoder - half - towards * 5, y, more=dotted))
            parts.append(_block(decoder, row, fill, edge))
        if row > first_decoder:
            parts.append(_arrow(decoder, y - (BAR / 2 if half else 0), decoder, _y(row - 1) + BAR / 2 + 5))
        if row >= FIRST_LATENT:
            index = bottom + 1 - row
            parts.append(_arrow(decoder + half, y, z - towards * 30, y, edge))
            parts.append(_circle(z, y, name, index, "#fff", edge))
            if row > first_decoder:  # the latent joins the features on their way up
                up = y - STEP / 2
                curve = f"M{z - towards * 12} {y - 22}Q{z - towards * 20} {up} {decoder + towards * 8} {up}"
                parts.append(f'<path d="{curve}" fill="none" stroke="{edge}" {_THICK} {_head(edge)}/>')
                parts.append(_indexed((z + decoder) / 2 + towards * 14, up - 8, "z", index, edge, size=20))
    return parts


def architecture() -> str:
    """The SVG; sizes are those of the LIDC model."""
    heads = "".join(
        f'<marker id="head-{colour[1:]}" viewBox="0 0 10 10" refX="8" refY="5" markerWidth="10" markerHeight="10" '
        f'markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0L10 5L0 10z" fill="{colour}"/></marker>'
        for colour in (GREY, BLUE, ORANGE, GREEN)
    )
    parts = [
        f'<rect x="662" y="22" width="516" height="630" rx="14" fill="{PALE_ORANGE}" fill-opacity="0.55" '
        f'stroke="{ORANGE}" stroke-width="1.6" stroke-dasharray="7 6"/>',
        _bold(40, 62, "Prior", BLUE),
        _text(112, 62, "sees the image; used to sample", size=17, colour=GREY, anchor="start"),
        _bold(684, 62, "Posterior", ORANGE),
        _text(812, 62, "also sees one grader’s labels; training only", size=17, colour=GREY, anchor="start"),
        *_network(*PRIOR, first_decoder=0, fill=PALE_BLUE, edge=BLUE, name="p"),
        *_network(
            POSTERIOR_ENCODER,
            POSTERIOR_DECODER,
            POSTERIOR_Z,
            first_decoder=2,
            fill=PALE_ORANGE,
            edge=ORANGE,
            name="q",
        ),
        _io(ENCODER, "image"),
        _arrow(ENCODER, 148, ENCODER, TOP - BAR / 2 - 5),
        _io(DECODER, "sample"),
        _arrow(DECODER, TOP - BAR / 2, DECODER, 153),
        _io(POSTERIOR_ENCODER, "image + labels"),
        _arrow(POSTERIOR_ENCODER, 148, POSTERIOR_ENCODER, TOP - BAR / 2 - 5),
    ]
    columns = ((ENCODER, BLUE, 0), (DECODER, BLUE, 0), (POSTERIOR_ENCODER, ORANGE, 0), (POSTERIOR_DECODER, ORANGE, 2))
    for (x, colour, row), words in zip(columns, 2 * ("encoder", "decoder"), strict=True):
        parts.append(_text(x, (96 if row == 0 else _y(row) - 32), words, size=17, colour=colour))
    for row, scales in enumerate(SCALES):
        for n, scale in enumerate(scales):
            x = ENCODER + WIDTHS[row] * ((n + 0.5) / len(scales) - 0.5)
            parts.append(_text(x, _y(row) + 6, scale, size=16, colour=BLUE))
        if row >= FIRST_LATENT:
            y, index = _y(row), len(SCALES) - row
            parts += [
                f'<path d="M{PRIOR_Z + 26} {y}H{POSTERIOR_Z - 25}" stroke="{GREEN}" {_THICK}/>',
                f'<rect x="556" y="{y - 18}" width="68" height="36" rx="18" fill="{PALE_GREEN}" stroke="{GREEN}" '
                f'stroke-width="2"/>',
                f'<text x="590" y="{y + 6}" font-size="19" fill="{GREEN}" text-anchor="middle">KL'
                f'<tspan font-size="13" dy="4">{index}</tspan></text>',
            ]
    legend = (
        "p, q: Gaussians. Sampling draws each z from p. Training draws each z from q, for both decoders.",
        "The posterior’s decoder ends at 8×8: z₄ goes only to the prior’s decoder. Dotted: skip connections.",
        "Loss: λ · (reconstruction error − κ) + KL₁ + KL₂ + KL₃ + KL₄. GECO adjusts λ.",
    )
    parts += [_text(40, 688 + 28 * line, words, anchor="start") for line, words in enumerate(legend)]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'font-family="{FONT}"><title>The Hierarchical Probabilistic U-Net</title><defs>{heads}</defs>'
        f'<rect x="1" y="1" width="{WIDTH - 2}" height="{HEIGHT - 2}" rx="16" fill="#fff" stroke="{LINE}" '
        f'stroke-width="2"/>{"".join(parts)}</svg>\n'
    )
