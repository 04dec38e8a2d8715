"""One self-contained HTML page, with its figures, from run folders. Needs no torch, no data and no network."""

import base64
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import chain, count
from pathlib import Path
from typing import Any

from hpunet.config.settings import Settings
from hpunet.errors import ConfigError
from hpunet.reports.contents import Drawing, Section, report_sections, verdicts
from hpunet.reports.layout import PAGE_DPI, PRINT_DPI, as_png, as_svg
from hpunet.reports.saved_run import VOLUME_NOTE, SavedEvaluation, SavedRun, read_run
from hpunet.utils.files import atomic_write, real_path
from hpunet.utils.text import NEAREST

Progress = Callable[[Iterable[Drawing], int], Iterable[Drawing]]

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #111; background: #fff; max-width: 78rem; margin: 2rem auto;
       padding: 0 1rem; }
h1, h2, h3 { line-height: 1.2; break-after: avoid; }
h2 { margin-top: 2.5rem; border-bottom: 1px solid #999; padding-bottom: .2rem; }
figure { margin: 1rem 0; break-inside: avoid; }
img { max-width: 100%; height: auto; }
figcaption { max-width: 60rem; }
p { max-width: 60rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: 1rem 0; break-inside: avoid; }
th, td { border-bottom: 1px solid #ccc; padding: .3rem .8rem; text-align: left; vertical-align: top;
         white-space: pre-line; }
thead th { border-bottom: 2px solid #111; }
@page { size: A4; margin: 12mm; }
@media print { body { max-width: none; margin: 0; padding: 0; font-size: 10pt; }
               .wide { overflow: visible; } img { max-height: 240mm; } }
"""
_EVALUATIONS = (
    "Mean ± standard deviation over bootstraps of the images (in brackets: of patients); columns are run, split "
    "and number of samples. Lower is better for ged2, ged2_unbiased, crps, calibration_error and rand_error, higher "
    "for the others. sample_diversity and hidden_sample_disagreement are neither good nor bad by themselves; "
    "hidden_accuracy_background and border_agreement_truth are baselines for the samples."
)


@dataclass(frozen=True)
class Table:
    """A table for the top of the page."""

    title: str
    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def write_report(
    runs: Sequence[Path],
    out: Path,
    *,
    figures: Path | None = None,
    title: str = "Training report",
    tables: Sequence[Table] = (),
    progress: Progress = lambda drawings, _count: drawings,
) -> Path:
    """Write the page of these run folders to `out`, overwriting it; returns its path.

    `figures` is a folder for the same figures as PNG (300 dpi) and SVG, with `captions.txt`; existing files are
    overwritten. `progress` iterates over the drawings, given them and their number.
    """
    if not runs:
        raise ConfigError("a report needs at least one run")
    names = [real_path(run).name for run in runs]
    if len(set(names)) < len(names):
        names = [str(run) for run in runs]
    saved = [read_run(run, name=name) for run, name in zip(runs, names, strict=True)]
    tables = [*tables, _runs_table(saved), *([_evaluations(saved)] if any(run.evaluations for run in saved) else [])]
    how: dict[str, Any] = {
        "figures": figures,
        "title": title,
        "first": verdicts(saved),
        "tables": tables,
        "progress": progress,
    }
    return write_page(report_sections(saved), out, **how)


def write_page(
    sections: Sequence[Section],
    out: Path,
    *,
    figures: Path | None,
    title: str,
    tables: Sequence[Table],
    progress: Progress,
    first: Sequence[Section] = (),
) -> Path:
    """Write a page of notes (`first`), tables, then sections; see `write_report`."""
    drawings = [drawing for section in sections for drawing in section.drawings]
    files = _file_names(drawings)
    shown: dict[str, str] = {}
    for drawing in progress(drawings, len(drawings)):
        figure = drawing.draw()
        shown[drawing.name] = _figure(as_png(figure, dpi=PAGE_DPI), drawing)
        if figures is not None:
            atomic_write(figures / f"{files[drawing.name]}.png", as_png(figure, dpi=PRINT_DPI))
            atomic_write(figures / f"{files[drawing.name]}.svg", as_svg(figure))
    if figures is not None:
        captions = [f"{files[d.name]}: {d.title}\n{d.caption}\n" for d in drawings]
        atomic_write(figures / "captions.txt", "\n".join(captions).encode(errors=NEAREST))
    atomic_write(out, _page(sections, shown, title=title, first=first, tables=tables).encode(errors=NEAREST))
    return out


def _file_names(drawings: Sequence[Drawing]) -> dict[str, str]:
    """A unique file name, without extension, for each drawing."""
    files: dict[str, str] = {}
    for drawing in drawings:
        plain = re.sub(r"[^\w.-]+", "-", drawing.name).strip("-.")
        names = chain([plain], (f"{plain}-{number}" for number in count(2)))
        files[drawing.name] = next(name for name in names if name not in files.values())
    return files


def _page(
    sections: Sequence[Section],
    shown: Mapping[str, str],
    *,
    title: str,
    first: Sequence[Section],
    tables: Sequence[Table],
) -> str:
    parts = [f"<h2>{escape(each.heading)}</h2>\n<p>{escape(each.note)}</p>" for each in first]
    parts += [_table(table) for table in tables]
    for section in sections:
        parts.append(f"<h2>{escape(section.heading)}</h2>")
        parts += [f"<p>{escape(section.note)}</p>"] if section.note else []
        parts += [shown[drawing.name] for drawing in section.drawings]
    body = "\n".join(parts)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n"
        f"<body>\n<h1>{escape(title)}</h1>\n{body}\n</body>\n</html>\n"
    )


def _runs_table(runs: Sequence[SavedRun]) -> Table:
    columns = ["run", "model", "objective", "optimiser", "software"]
    rows = []
    for run in runs:
        made = run.description
        words = settings_words(run.settings)
        words["optimiser"] = f"iteration {run.log[-1]['step']} of {words['optimiser']}"
        software = f"hpunet {made.get('hpunet')}, torch {made.get('torch')}, {made.get('device')}"
        rows.append([f"{run.name} (seed {run.settings.seed})", *words.values(), software])
    return Table("Runs", "", columns, rows)


def settings_words(settings: Settings) -> dict[str, str]:
    """Model, objective and optimiser in a few words each."""
    model, objective, optimiser = settings.model, settings.objective, settings.optimiser
    weight = f"κ {objective.kappa:g}" if objective.kind == "geco" else f"β {objective.beta:g}"
    pixels = "voxels" if model.ndim == 3 else "pixels"
    counted = f"all {pixels}" if objective.top_k == "all" else f"top {objective.top_k:g} of the {pixels}"
    rates = ", ".join(f"{rate:g}" for rate in optimiser.learning_rates)
    volumes = ", in 3D" if model.ndim == 3 else ""
    return {
        "model": f"{model.kind}{volumes}, channels {model.channels}, latents {model.latent_dims} (coarsest first)",
        "objective": f"{objective.kind}, {weight}, {counted}",
        "optimiser": f"{optimiser.iterations}, batch {optimiser.batch_size}, learning rates {rates}",
    }


def _evaluations(runs: Sequence[SavedRun]) -> Table:
    return evaluations_table({f"{run.name}, {name}": each for run in runs for name, each in run.evaluations.items()})


def evaluations_table(found: Mapping[str, SavedEvaluation]) -> Table:
    """Scores of evaluations by name."""
    units = {each.volume_unit for each in found.values()}
    kinds = [kind for kind, is_there in (("images", "" in units), ("volumes", units - {""})) if is_there]
    rows = [[" or ".join(kinds), *(str(each.num_images) for each in found.values())]]
    for metric in dict.fromkeys(metric for each in found.values() for metric in each.scores):
        scores = [each.scores.get(metric) for each in found.values()]
        name = f"{metric} ({', '.join(sorted(units - {''}))})" if metric == "volume_crps" else metric
        rows.append([name, *("–" if score is None else _score(*score) for score in scores)])
    caption = f"{_EVALUATIONS} {VOLUME_NOTE}." if "volumes" in kinds else _EVALUATIONS
    return Table("Evaluations", caption, ["", *found], rows)


def _score(mean: float, std: float, patient_std: float | None) -> str:
    words = f"{mean:.4f} ± {std:.4f}"
    return words if patient_std is None else f"{words} ({patient_std:.4f})"


def _table(table: Table) -> str:
    caption = f"<p>{escape(table.caption)}</p>\n" if table.caption else ""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in table.columns)
    lines = "\n".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in table.rows)
    return (
        f'<h2>{escape(table.title)}</h2>\n{caption}<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{lines}\n</tbody>\n</table></div>"
    )


def _figure(png: bytes, drawing: Drawing) -> str:
    data = base64.b64encode(png).decode("ascii")
    return (
        f'<figure><img alt="{escape(drawing.title)}." src="data:image/png;base64,{data}">\n'
        f"<figcaption>{escape(drawing.caption)}</figcaption></figure>"
    )
