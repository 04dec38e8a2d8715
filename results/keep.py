"""Keep what a published row of docs/results.md was computed from.

    python results/keep.py RUN FOLDER [--preset lidc-hpu] [--data LIDC] [--evaluation val-16x3]
    python results/keep.py RUN FOLDER --published NAME --exported "--orientations 8"
    python results/keep.py RUN FOLDER --preset snemi3d-hpu --data EM --options patch=256 --evaluation val-16

FOLDER, for instance results/lidc/NAME, gets the evaluation with its rows rounded to five decimals (`hpunet
compare` reads it like a run), means of the last ten lines that training logged, and command.txt: how to do the run
again, as settings on top of the preset.
"""

import argparse
import csv
import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hpunet.config.settings import load_settings
from hpunet.evaluation.rows import IDENTITY_FILE, METRICS, ROWS_FILE, SUMMARY_FILE


def main() -> None:
    """Read the arguments, write the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--preset", default="lidc-hpu")
    parser.add_argument("--data", default="LIDC", help="what commands call the data")
    parser.add_argument("--options", default="", help="of the data, that evaluate was given")
    parser.add_argument("--evaluation", default="val-16x3")
    parser.add_argument("--published", default="RUN", metavar="NAME", help="the weights that were evaluated")
    parser.add_argument("--exported", default="", metavar="OPTIONS", help="of the export that made them")
    args = parser.parse_args()
    evaluation = args.run / "evaluation" / args.evaluation
    args.folder.mkdir(parents=True)
    identity = json.loads((evaluation / IDENTITY_FILE).read_text())
    (args.folder / IDENTITY_FILE).write_text(json.dumps(identity) + "\n")
    summary = json.loads((evaluation / SUMMARY_FILE).read_text())
    kept_summary = {**summary, "runs": [args.folder.name], "data": args.data}
    (args.folder / SUMMARY_FILE).write_text(json.dumps(kept_summary, indent=1) + "\n")
    with (evaluation / ROWS_FILE).open(newline="") as found, (args.folder / ROWS_FILE).open("w", newline="") as kept:
        rows = csv.DictReader(found)
        writer = csv.DictWriter(kept, rows.fieldnames or [], lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: _rounded(name, cell) for name, cell in row.items()} for row in rows)
    commands = _commands(args, identity, summary)
    (args.folder / "command.txt").write_text("".join(shlex.join(words) + "\n" for words in commands))
    logged = [json.loads(line) for line in (args.run / "log.jsonl").read_text().splitlines()]
    last = [line for line in logged if "loss" in line][-10:]
    means = {
        name: float(f"{sum(line[name] for line in last) / len(last):.4g}") for name in last[-1] if name != "step"
    }
    (args.folder / "training.json").write_text(json.dumps({"steps": [line["step"] for line in last], **means}) + "\n")


def _rounded(column: str, cell: str) -> str:
    return f"{float(cell):.5f}".rstrip("0").rstrip(".") if column in METRICS and cell else cell


def _commands(args: argparse.Namespace, identity: dict[str, Any], summary: dict[str, Any]) -> Iterator[list[str]]:
    used = _flat(json.loads((args.run / "settings.json").read_text()))
    given = _flat(_preset(args.preset, iterations=used["optimiser.iterations"]))
    changed = {key: value for key, value in used.items() if given.get(key) != value}
    options = [word for option in shlex.split(args.options) for word in ("--set", option)]
    train = ["hpunet", "train", args.preset, "--data", args.data, "--out", "RUN"]
    for key, value in changed.items():
        if not key.startswith("logging."):  # what a trained model does not depend on
            train += ["--set", f"{key}={json.dumps(value)}"]
    yield train
    if args.published != "RUN":
        yield ["hpunet", "export", "RUN", args.published, "--name", args.published, *shlex.split(args.exported)]
    evaluate = ["hpunet", "evaluate", args.published, "--data", args.data, *options, "--split", identity["split"]]
    evaluate += ["--samples", str(identity["samples"]), "--seeds", str(identity.get("seeds", 1))]
    evaluate += ["--limit", str(summary["limit"])] if summary.get("limit") else []
    evaluate += ["--connected"] if identity.get("connected") else []
    evaluate += ["--kernels", "fused"] if identity.get("kernels") == "fused" else []
    yield evaluate


def _preset(name: str, *, iterations: int) -> dict[str, Any]:
    """Its settings, with shares of the iterations resolved as for a run of that many."""
    own = load_settings(name).optimiser.iterations
    found = load_settings(name, [f"optimiser.iterations={iterations}"]).model_dump(mode="json")
    found["optimiser"]["iterations"] = own
    return found


def _flat(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in settings.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) and value else {f"{prefix}{key}": value}
    return found


if __name__ == "__main__":
    main()
