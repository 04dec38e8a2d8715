"""`hpunet measure`: sizes of sampled hypotheses, and the probability that something has grown."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from hpunet.cli.terminal import console
from hpunet.utils.text import printable

_BEFORE = "Folder of one image's (or slice's) results of `hpunet sample`, or its measurements.json."
_AFTER = "The same of a later image of the patient: probabilities of growth, from all pairs of samples."
_MORE = "Growth by more than this share of the earlier size."
_LARGER = "Show the probability of a larger --quantity: NUMBER in mm², ml, mm or pixels, as the table says."
_QUANTITY = (
    "Of --larger-than: area (the default; of volumes volume), longest_diameter, perpendicular_diameter or num_parts."
)


def measure_command(
    before: Annotated[Path, typer.Argument(help=_BEFORE)],
    after: Annotated[Path | None, typer.Argument(help=_AFTER)] = None,
    more_than: Annotated[float, typer.Option(help=_MORE, min=-1, max=1e6)] = 0.25,
    larger_than: Annotated[float | None, typer.Option(help=_LARGER, metavar="NUMBER")] = None,
    quantity: Annotated[str | None, typer.Option(help=_QUANTITY)] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the table to this file.")] = None,
) -> None:
    """Show sizes over all samples: median and 5 to 95 %, and the probability of growth between two images."""
    from hpunet.predict.measurements import read_measurements
    from hpunet.utils.files import atomic_write, dump_json

    found = [read_measurements(path) for path in (before, after) if path is not None]
    rows: list[dict[str, Any]] = []
    for name, sizes in found[0].classes.items():
        if larger_than is not None:
            found[0].of(quantity, class_name=name)  # its error names the quantities
        chosen = quantity or next(iter(sizes))
        for what in sizes:
            both = [each.of(what, class_name=name) for each in found]
            row: dict[str, Any] = {"class": name, "quantity": what, "unit": both[0].unit}
            for when, each in zip(("before", "after"), both, strict=False):
                low, high = each.interval()
                row[when] = {"median": each.median, "low": low, "high": high}
                if larger_than is not None and what == chosen:
                    row[when]["larger_than"] = each.larger_than(larger_than)
            if len(both) > 1:
                row["growth"] = both[0].growth(both[1], more_than=more_than)
            rows.append(row)
    if json_file:
        limits = {"more_than": more_than if after else None, "larger_than": larger_than}
        atomic_write(json_file, dump_json({**limits, "sizes": rows}, name=str(json_file)))
    _print(rows, more_than=more_than, larger_than=larger_than)


def _print(rows: list[dict[str, Any]], *, more_than: float, larger_than: float | None) -> None:
    has_after = "growth" in rows[0]
    table = Table("class", "quantity", title="median (5 to 95 %) over samples", title_justify="left")
    shown = ("before", "after") if has_after else ("before",)
    for when in shown:
        table.add_column(when if has_after else "size")
        if larger_than is not None:
            table.add_column(f"P(> {larger_than:g})")
    if has_after:
        table.add_column(f"P(growth > {more_than:.0%})")
    for row in rows:
        cells = []
        for when in shown:
            sizes, unit = row[when], f" {row['unit']}" if row["unit"] else ""
            cells.append(f"{sizes['median']:.4g} ({sizes['low']:.4g} to {sizes['high']:.4g}){unit}")
            if larger_than is not None:
                cells.append(f"{sizes['larger_than']:.0%}" if "larger_than" in sizes else "")
        cells += [f"{row['growth']:.0%}"] if has_after else []
        table.add_row(printable(row["class"]), row["quantity"].replace("_", " "), *cells)
    console.print(table)
