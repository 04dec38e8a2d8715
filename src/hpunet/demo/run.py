"""`hpunet demo`: two small models on synthetic lesions with a known distribution.

An HPU-Net and a Probabilistic U-Net train equally long, each with settings chosen on validation images (presets
`demo`, `demo-punet`), and are compared with the truth on test images.
"""

import math
import shutil
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from hpunet.config.settings import Settings, load_settings
from hpunet.data.packs import write_pack
from hpunet.data.synthetic.source import open_synthetic
from hpunet.demo.scores import NUM_SAMPLES, border_shares, perfect_ged2, scores_against_truth
from hpunet.errors import ConfigError
from hpunet.metrics import Bootstrap, bootstrap
from hpunet.reports.page import Table, write_report
from hpunet.training.loop import Callback, train
from hpunet.utils.files import atomic_write, dump_json
from hpunet.utils.locks import lock_folder
from hpunet.weights.load import load_trained

MODELS = {"HPU-Net": "demo", "Probabilistic U-Net": "demo-punet"}
METRICS = {"ged2": "GED² (lower is better)", "hm_iou": "matched IoU", "iou_rec": "IoU_rec"}
SPLIT_SIZES = {"train": 2000, "val": 100, "test": 200}
_MARKER = "demo.json"  # marks a folder as a demonstration; later holds its numbers
_MADE_BY = {"made by": "hpunet demo"}
TrainingDisplay = Callable[[str, Settings], AbstractContextManager[Callback]]
"""Opens a progress display for a model; it yields the callback of `train`."""


@dataclass(frozen=True)
class DemoResult:
    """The comparison."""

    report: Path
    scores: dict[str, dict[str, Bootstrap]]
    """Metrics by model, with bootstrap errors over test images."""
    perfect_ged2: float
    border_shares: dict[str, float]

    def tables(self) -> list[Table]:
        """One table for the comparison, one for the scales."""
        rows = [
            [title, *(f"{found[name].mean:.3f} ± {found[name].std:.3f}" for found in self.scores.values())]
            for name, title in METRICS.items()
        ]
        comparison = Table(
            title="Against the known truth",
            caption=f"Test images, {NUM_SAMPLES} samples per image, mean ± standard deviation over image bootstraps. "
            "GED² compares the samples with the exact distribution of the graders; a perfect sampler has "
            f"{self.perfect_ged2:.3f}. Matched IoU compares them with {NUM_SAMPLES} draws from that distribution. "
            "IoU_rec scores reconstructions of the graders' maps.",
            columns=["", *self.scores],
            rows=rows,
        )
        scales = Table(
            title="What each scale decides",
            caption="Share of the HPU-Net's sample variance within 2 pixels of a possible outline (core or halo), if "
            "only one latent scale is sampled. If the coarse scale decides about whole lesions and the fine scale "
            "about borders, the second share is larger.",
            columns=["sampled", "variance at borders"],
            rows=[[name, f"{share:.1%}"] for name, share in self.border_shares.items()],
        )
        return [comparison, scales]


def run_demo(
    out: Path,
    *,
    seed: int = 0,
    changes: Sequence[str] = (),
    display: TrainingDisplay | None = None,
    say: Callable[[str], None] = print,
) -> DemoResult:
    """Make data, train both models, compare them, write the report page.

    `out` is new, empty, or an earlier demonstration, which is replaced. `changes` are settings of both models.
    """
    show = display or (lambda _name, _settings: nullcontext(lambda _step, _numbers: None))
    with lock_folder(out):
        return _run_demo(out, seed=seed, changes=changes, show=show, say=say)


def _run_demo(
    out: Path, *, seed: int, changes: Sequence[str], show: TrainingDisplay, say: Callable[[str], None]
) -> DemoResult:
    settings = {name: load_settings(preset, [*changes, f"seed={seed}"]) for name, preset in MODELS.items()}
    _clear(out)
    size = settings["HPU-Net"].data.crop
    splits = {name: open_synthetic("lesions", split=name, num_images=n, size=size) for name, n in SPLIT_SIZES.items()}
    say("making synthetic lesions")
    data = write_pack(splits, out / "data")
    for name, chosen in settings.items():
        with show(name, chosen) as watch:
            train(chosen, data=str(data), run=run_folder(out, name), say=say, watch=watch)
    models = {name: load_trained(run_folder(out, name), device="cpu").model for name in settings}
    say("comparing the models with the truth")
    scores, test = {}, splits["test"]
    for name, model in models.items():
        found = scores_against_truth(model, test, seed=seed)
        scores[name] = {metric: bootstrap(values, seed=0) for metric, values in found.items()}
    shares = border_shares(models["HPU-Net"], test, seed=seed)
    result = DemoResult(out / "report.html", scores, perfect_ged2(test), shares)
    numbers = {name: {metric: value._asdict() for metric, value in each.items()} for name, each in scores.items()}
    finite = {name: share if math.isfinite(share) else None for name, share in shares.items()}
    about = {"scores": numbers, "perfect_ged2": result.perfect_ged2, "border_shares": finite}
    atomic_write(out / _MARKER, dump_json({**_MADE_BY, "seed": seed, **about}, name=_MARKER))
    runs = [run_folder(out, name) for name in MODELS]
    write_report(runs, result.report, title="hpunet demonstration", tables=result.tables())
    return result


def run_folder(out: Path, name: str) -> Path:
    """Folder of a model's run, for example `out` / "hpu-net"."""
    return out / name.lower().replace(" ", "-")


def _clear(out: Path) -> None:
    """Remove an earlier demonstration from `out`; refuse to touch anything else."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        earlier = (out / _MARKER).is_file()
        ours = [*(run_folder(out, name) for name in MODELS), out / "data", out / "report.html"]
        in_the_way = [path for path in ours if path.exists()]
        if in_the_way and not earlier:
            raise ConfigError(f"{in_the_way[0]}: is not part of an earlier demonstration; choose another --out")
        atomic_write(out / _MARKER, dump_json(_MADE_BY, name=_MARKER))
        for path in in_the_way:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
    except OSError as error:
        raise ConfigError(f"{out}: cannot hold the demonstration ({error.strerror or error})") from None
