"""`hpunet bench`: how fast this machine trains, samples, evaluates and augments."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from hpunet.cli.terminal import console, line, notes

if TYPE_CHECKING:
    from hpunet.bench.run import Row

_COLUMNS = ("", "", "median", "speed", "spread", "peak memory")
_BATCH = "Images per step. Default: a piece of the preset's batch, 4 on a CPU."
_ONLY = "augment, sample, train, end-to-end or evaluate; repeatable."


def bench_command(
    preset: Annotated[str, typer.Option(help="Preset name or TOML file.")] = "lidc-hpu",
    batch: Annotated[int | None, typer.Option(help=_BATCH, min=1)] = None,
    only: Annotated[list[str] | None, typer.Option(help=_ONLY)] = None,
    repeats: Annotated[int, typer.Option(help="Number of repeats; medians are reported.", min=1)] = 7,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all numbers to this file.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown rows instead of a table.")] = False,
) -> None:
    """Measure training, sampling, evaluation and augmentation on this machine.

    GPU: float32, bf16, torch.compile and fused kernels, in CUDA graphs, with peak memory. CPU: the default against
    plain NCHW; sampling also in bf16, and without what hypotheses share.
    """
    with notes.status("loading torch") as status:
        from hpunet.bench.run import about, run_bench
        from hpunet.training.loop import pick_device
        from hpunet.utils.files import atomic_write, dump_json

        device = pick_device()
        found: list[Row] = []
        header = {"preset": preset, "repeats": repeats, **about(device)}
        how: dict[str, Any] = {"batch": batch, "only": only or [], "repeats": repeats}
        if markdown:
            print(*markdown_header(), sep="\n", flush=True)
        else:
            console.print(f"{preset}: {_where(header)}")
            console.print(
                "speed: relative to the first of each question; spread: (slowest − fastest repeat) / median"
            )
        for rows in run_bench(preset, device=device, say=lambda words: status.update(line(words)), **how):
            found += rows
            if markdown:
                print(*map(markdown_row, rows), sep="\n", flush=True)
            else:
                console.print(_table(rows))
            if json_file:
                content = dump_json({**header, "rows": [asdict(row) for row in found]}, name=str(json_file))
                atomic_write(json_file, content)
    if markdown:
        print("", f"`hpunet bench --preset {preset}`; {_where(header)}; medians of {repeats}", sep="\n")
    for row in (row for row in found if row.failure):
        notes.print(f"{row.candidate}: {row.failure}")


def markdown_header() -> list[str]:
    """Header lines of a Markdown table."""
    return [f"| {' | '.join(cells)} |" for cells in (_COLUMNS, ["---"] * len(_COLUMNS))]


def markdown_row(row: "Row") -> str:
    """A row of the Markdown table."""
    return f"| {' | '.join(_cells(row))} |"


def _table(rows: Sequence["Row"]) -> Table:
    """Of one question; of the same widths as the others, which come later."""
    with_memory = any(row.peak_mib is not None for row in rows)
    table = Table()
    table.add_column(rows[0].question, min_width=30)
    for column, width in zip(_COLUMNS[2 : None if with_memory else -1], (13, 7, 6, 11), strict=False):
        table.add_column(column, justify="right", no_wrap=True, min_width=width)
    for row in rows:
        table.add_row(*_cells(row)[1 : None if with_memory else -1])
    return table


def _where(header: Mapping[str, Any]) -> str:
    cuda = f", CUDA {header['cuda']}" if header["cuda"] else ""
    return f"{header['device']}, torch {header['torch']}{cuda}, {header['date']}"


def _cells(row: "Row") -> list[str]:
    if row.value is None or row.spread is None:
        return [row.question, row.candidate, "not measured", "", "", ""]
    return [
        row.question,
        row.candidate,
        f"{row.value:.{0 if row.value >= 100 else 1 if row.value >= 10 else 2}f} {row.unit}",  # 3 significant digits
        "" if row.speed is None else f"{row.speed:.2f}×",
        f"{row.spread:.0%}",
        "" if row.peak_mib is None else f"{row.peak_mib / 1024:.1f} GiB",
    ]
