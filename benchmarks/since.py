"""Whether loading and sampling became slower since a commit: the published LIDC model, one 128×128 image, on CPU.

    python benchmarks/since.py COMMIT [--rounds 7] [--repeats 10] [--samples 16]

Two processes, one with the sources of that commit and one with these, take turns with a thread each. Times are of the
processor and the shortest of a round, so that other work on the machine matters little. Equal sources differ by some
percent from process to process, so each round starts new ones; ratios are medians over rounds, with their range.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[1]
WORK = """
import sys, time
import torch, hpunet
torch.set_num_threads(1)
pixels = hpunet.example("lidc-2").image
image = torch.tensor(pixels)[None, None] / 255
predictor = hpunet.load("lidc-hpu-2026", device="cpu")
work = {
    "load": lambda: hpunet.load("lidc-hpu-2026", device="cpu"),
    "sample": lambda: hpunet.sample(predictor.model, image=image, num_samples=SAMPLES),
    "Predictor": lambda: predictor(pixels, num_samples=SAMPLES),
}
for line in sys.stdin:
    start = time.process_time()
    work[line.strip()]()
    print(time.process_time() - start, flush=True)
"""
NAMES = ("load", "sample", "Predictor")


def start(source: Path, *, samples: int) -> subprocess.Popen[str]:
    """A process that does one of `NAMES` for each line that it is sent, and answers with its seconds."""
    environment = {**os.environ, "PYTHONPATH": str(source / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", WORK.replace("SAMPLES", str(samples))]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment, cwd=source)


def seconds(process: "subprocess.Popen[str]", name: str) -> float:
    """What one piece of work takes."""
    assert process.stdin is not None
    assert process.stdout is not None
    print(name, file=process.stdin, flush=True)
    return float(process.stdout.readline())


def main() -> None:
    """Print seconds of both, and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--samples", type=int, default=16)
    options = parser.parse_args()
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in NAMES}
    with tempfile.TemporaryDirectory() as folder:
        before = Path(folder) / "before"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(before), options.commit], check=True)
        try:
            for _ in range(options.rounds):
                for name, pair in fastest(before, repeats=options.repeats, samples=options.samples).items():
                    times[name].append(pair)
        finally:
            subprocess.run([*git, "remove", "--force", str(before)], check=True)
    for name, pairs in times.items():
        old, new = (1000 * median(each) for each in zip(*pairs, strict=True))
        ratios = sorted(b / a for a, b in pairs)
        words = f"{median(ratios):.3f} times ({ratios[0]:.3f} to {ratios[-1]:.3f})"
        print(f"{name:10} {old:6.1f} ms, now {new:6.1f} ms: {words}")


def fastest(before: Path, *, repeats: int, samples: int) -> dict[str, tuple[float, float]]:
    """The shortest time of each work in two new processes, of before and now."""
    both = [start(source, samples=samples) for source in (before, ROOT)]
    try:
        found = {}
        for name in NAMES:
            turns = [[seconds(process, name) for process in both] for _ in range(repeats)]
            old, new = zip(*turns, strict=True)
            found[name] = min(old), min(new)
        return found
    finally:
        for process in both:
            process.kill()
            process.wait()


if __name__ == "__main__":
    main()
