"""Makes `tests/golden/v1`: a tiny file of every kind that version 1 writes. Made once; later versions must read them.

PYTHONPATH=src:tests/helpers python tests/helpers/golden_v1.py
"""

import os
import shutil
import sys
from pathlib import Path

import torch
from places import TESTS
from tiny_run import tiny_settings
from viewing import SOURCE, write_images

from hpunet.cli.main import app
from hpunet.config.settings import load_settings
from hpunet.data.open import open_splits
from hpunet.data.packs import write_pack
from hpunet.training.loop import train
from hpunet.utils.files import dump_json
from hpunet.viewer.cases import find_cases
from hpunet.viewer.events import EVENTS
from hpunet.viewer.worklist import open_work_list

V1 = TESTS / "golden" / "v1"
DATA = "synthetic:lesions"
EVENTS_1 = (
    {"kind": "choose", "slice": 0, "value_map": [[0, 5, 1]], "source": SOURCE},
    {"kind": "paint", "slice": 0, "value": 1, "runs": [[3, 2], [20, 1]]},
    {"kind": "note", "text": "unsure"},
    {"kind": "accept"},
)


def command(*words: str) -> None:
    """Run a command of `hpunet`."""
    app(list(words), standalone_mode=False)


def main() -> None:
    """Make them in a new folder."""
    if V1.exists():
        sys.exit(f"{V1}: exists; what version 1 wrote stays as it is")
    V1.mkdir()
    os.chdir(V1)
    image = next(write_images(Path("images"), count=1).iterdir())
    settings = tiny_settings("optimiser.iterations=2", "data.options.num_images=48", "logging.checkpoint_every=2")
    train(settings, data=DATA, run=Path("run"), device=torch.device("cpu"), say=lambda _: None)
    command("calibrate", "run", "--data", DATA, "--guarantee", "0.5", "--samples", "4")
    command("evaluate", "run", "--data", DATA, "--samples", "2", "--limit", "3")
    command("sample", "run", str(image), "--samples", "3", "--out", "sampled")
    about = ("--name", "tiny-1", "--credit", "made of synthetic lesions")
    command("export", "run", "published", *about)
    command("export", "run", "--hub", "hub", *about)
    write_pack(open_splits(DATA, options={"num_images": 10, "size": 16}), Path("pack"))
    Path("settings.json").write_bytes(dump_json(load_settings("demo").model_dump(mode="json"), name="settings"))
    cases = find_cases([image])
    with open_work_list(Path("worklist"), cases, model="run") as work:
        stored = cases[0].read()
        events = EVENTS.validate_python(list(EVENTS_1))
        work.append(cases[0], events, version=0, shape=stored.values.shape[:3], read=lambda: stored)
    left = ["run/run.json", "run/verdict.txt", *Path("run").glob("data-*"), *Path("run").glob("evaluation/*/*.npz")]
    pictures = [*Path("sampled").rglob("*.png"), *Path("sampled").rglob("*.csv")]
    for name in ("run/tensorboard", "run/pictures", "run/checkpoints/best", *left, *pictures):
        shutil.rmtree(name) if Path(name).is_dir() else Path(name).unlink()


if __name__ == "__main__":
    main()
