"""One self-contained HTML page from what runs saved: how they trained, what they predict, what each scale decides.

Reads the run folders only (see `saved_run.py`): no torch, no data, no network; pictures are part of the page.
"""

import base64
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from html import escape
from pathlib import Path

from hpunet.errors import ConfigError, DataError
from hpunet.report_figures import deviation_maps, sample_sheet, training_dynamics, validation_curves
from hpunet.saved_run import SavedRun, read_run

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
th, td { border-bottom: 1px solid #ccc; padding: .3rem .8rem; text-align: left; vertical-align: top; }
thead th { border-bottom: 2px solid #111; }
@page { size: A4 landscape; margin: 12mm; }
@media print { body { max-width: none; margin: 0; font-size: 11pt; } .wide { overflow: visible; } }
"""

_DYNAMICS = (
    "Training dynamics, as in the paper's appendix. Thin lines are single batches, thick lines running means. GECO "
    "raises λ while the reconstruction's cross-entropy lies above κ (dotted) and lowers it once it lies below; "
    "then the KL terms, which say how many nats each latent scale carries, can shrink. Runs that count other pixels "
    "(objective.top_k) have cross-entropies that cannot be compared. Logarithmic axes; KL below 0.001 is drawn there."
)
_VALIDATION = (
    "Metrics on a fixed part of the validation images. GED² is the distance between samples and graders' maps; "
    "matched IoU is the agreement of the two sets after an optimal one-to-one match; IoU_rec says how well a "
    "grader's own map comes back through the posterior."
)
_SAMPLES = (
    "Validation images at iteration {step}, one a row: the image, what each grader drew, how the model reconstructs "
    "each of these maps through its posterior (rec.), and samples drawn from the prior, which sees the image alone. "
    "Good samples differ from each other as the graders do. A missing grader leaves its tile white."
)
_DEVIATIONS_BY_SCALE = (
    "What each scale decides, at iteration {step}: the prior-mean prediction and, pixel by pixel, the standard "
    "deviation over samples when all latent scales are sampled, when only the most global one is and the others stay "
    "at their mean, and when only the most local one is. Bright is uncertain. In the paper the global scale "
    "switches whole structures on and off, the local one alters mostly their borders."
)
_DEVIATIONS = (
    "Where the samples differ, at iteration {step}: the prior-mean prediction and, pixel by pixel, the standard "
    "deviation over samples. This model has a single, global latent scale, so there is nothing to take apart."
)


@dataclass(frozen=True)
class Table:
    """A table for the head of the page, with a sentence that says what it shows."""

    title: str
    says: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def write_report(
    runs: Sequence[Path], out: Path, *, title: str = "Training report", tables: Sequence[Table] = ()
) -> Path:
    """Write the page of these run folders to `out`, replacing what is there; returns its path."""
    if not runs:
        raise ConfigError("a report needs at least one run")
    page = _page([read_run(run, name=name) for run, name in zip(runs, _names(runs), strict=True)], title, tables)
    partial = out.with_name(f".{out.name}.partial")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(page, encoding="utf-8")
        os.replace(partial, out)
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        raise DataError(f"{out}: the page cannot be written ({error.strerror or error})") from None
    return out


def _names(runs: Sequence[Path]) -> list[str]:
    """The folders' own names, or their whole paths where these are not unique."""
    names = [run.resolve().name for run in runs]
    return names if len(set(names)) == len(names) else [str(run) for run in runs]


def _page(runs: Sequence[SavedRun], title: str, tables: Sequence[Table]) -> str:
    several = "all runs overlaid" if len(runs) > 1 else runs[0].name
    parts = [_table(table) for table in tables]
    parts += ["<h2>Runs</h2>", _runs_table(runs)]
    parts += ["<h2>Training</h2>", _figure(training_dynamics(runs), f"Training curves, {several}.", _DYNAMICS)]
    if any(run.pictures for run in runs):
        parts += [
            "<h2>Validation</h2>",
            _figure(validation_curves(runs), f"Validation metrics, {several}.", _VALIDATION),
        ]
    for run in runs:
        parts += [f"<h2>Hypotheses of {escape(run.name)}</h2>", *_pictures_of(run)]
    body = "\n".join(parts)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n"
        f"<body>\n<h1>{escape(title)}</h1>\n{body}\n</body>\n</html>\n"
    )


def _pictures_of(run: SavedRun) -> list[str]:
    if run.pictures is None:
        return ["<p>This run has not validated yet, so it has saved no pictures.</p>"]
    by_scale = len(run.settings.model.latent_dims) > 1
    says = (_DEVIATIONS_BY_SCALE if by_scale else _DEVIATIONS).format(step=run.pictures_step)
    return [
        _figure(
            sample_sheet(run),
            f"Graders, reconstructions and samples of {run.name}.",
            _SAMPLES.format(step=run.pictures_step),
        ),
        _figure(deviation_maps(run), f"Standard deviation of the samples of {run.name}.", says),
    ]


def _runs_table(runs: Sequence[SavedRun]) -> str:
    columns = ["run", "model", "objective", "optimiser", "made with"]
    rows = []
    for run in runs:
        model, objective, optimiser = run.settings.model, run.settings.objective, run.settings.optimiser
        weight = f"κ {objective.kappa:g}" if objective.kind == "geco" else f"β {objective.beta:g}"
        counted = "all pixels" if objective.top_k == "all" else f"top {objective.top_k:g} of the pixels"
        rates = ", ".join(f"{rate:g}" for rate in optimiser.learning_rates)
        made = run.description
        rows.append(
            [
                f"{run.name} (seed {run.settings.seed})",
                f"{model.kind}, channels {model.channels}, latents {model.latent_dims} (coarsest first)",
                f"{objective.kind}, {weight}, {counted}",
                f"iteration {run.log[-1]['step']} of {optimiser.iterations}, batch {optimiser.batch_size}, "
                f"learning rates {rates}",
                f"hpunet {made.get('hpunet')}, torch {made.get('torch')}, {made.get('device')}",
            ]
        )
    return _html_table(columns, rows)


def _table(table: Table) -> str:
    return f"<h2>{escape(table.title)}</h2>\n<p>{escape(table.says)}</p>\n{_html_table(table.columns, table.rows)}"


def _html_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in columns)
    lines = "\n".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{lines}\n</tbody>\n</table></div>'


def _figure(png: bytes, alt: str, says: str) -> str:
    data = base64.b64encode(png).decode("ascii")
    return (
        f'<figure><img alt="{escape(alt)}" src="data:image/png;base64,{data}">\n'
        f"<figcaption>{escape(says)}</figcaption></figure>"
    )
