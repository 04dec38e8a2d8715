"""`make dist-check`: two builds give the same bytes, and the wheel works in empty environments.

Needs `make dist` first, some minutes and 3 GB of disk: without extras, then with each extra alone, with all of them.

    python tests/helpers/dist_check.py [EXTRA …]
"""

import os
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path

from dist import build, build_commit, sha256
from places import ROOT

README = """
import hpunet
predictor = hpunet.load("lidc-hpu-2026")
prediction = predictor(hpunet.example("lidc-1").path, num_samples=64)
for hypothesis in prediction.hypotheses:
    print(f"{hypothesis.share:.0%}: {hypothesis.description}")
"""
NIFTI = """
import nibabel, numpy, hpunet
pixels = numpy.random.default_rng(0).integers(0, 255, (128, 128, 1), dtype=numpy.uint8)
nibabel.save(nibabel.Nifti1Image(pixels, numpy.eye(4)), "a.nii.gz")
assert hpunet.load("lidc-hpu-2026")("a.nii.gz", num_samples=1).samples.shape[-2:] == (128, 128)
import defusedxml, h5py, imagecodecs, pydicom, tifffile
"""
VIEW = """
import subprocess, sys, time, urllib.request
command = [sys.executable, "-m", "hpunet", "view", "--no-browser", "--port", "18765", "--token", "t" * 20]
server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
for _ in range(300):
    time.sleep(0.2)
    try:
        page = urllib.request.urlopen("http://127.0.0.1:18765/", timeout=5).read()
        break
    except OSError:
        assert server.poll() is None
server.kill()
assert b"<title>" in page
"""
TF = "import google_crc32c, hpunet.weights.tensorflow.bundle"
SAMPLE = "hpunet sample lidc-hpu-2026 examples/lidc-1.png --samples 4 --out out"
TRIALS: dict[str, tuple[str, ...]] = {
    "": ("hpunet --version", README, "hpunet examples lidc-1 --out examples", SAMPLE, "hpunet --help"),
    "data": (NIFTI,),
    "export": ("hpunet examples lidc-1 --out examples", f"{SAMPLE} --format imagej,geojson", "import highdicom"),
    "view": (VIEW,),
    "report": ("hpunet report lidc-hpu-2026 --out page --figures figures", "import tensorboard"),
    "onnx": ("hpunet export lidc-hpu-2026 --onnx onnx",),
    "tf": (TF,),
}
MISSING = {"view": "hpunet view --no-browser", "onnx": "hpunet export lidc-hpu-2026 --onnx onnx"}
"""What says how to install its extra where it is missing."""


def same_bytes(built: list[Path], folder: Path) -> None:
    """Build again, elsewhere, later, with other rights and another time zone; and a wheel from the sdist."""
    time.sleep(2)
    os.umask(0o077)
    os.environ.update(TZ="Pacific/Auckland", LC_ALL="C", PYTHONHASHSEED="7")
    again = build_commit(folder / "again", work=folder / "quite" / "another" / "place")
    with tarfile.open(next(path for path in built if path.name.endswith(".tar.gz"))) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    from_sdist = build(next((folder / "unpacked").iterdir()), folder / "from-sdist", kinds=("wheel",))
    for first, second in [*zip(built, again, strict=True), (built[0], from_sdist[0])]:
        where = "from the sdist" if second in from_sdist else "built again"
        if first.name != second.name or sha256(first) != sha256(second):
            sys.exit(f"dist-check: {first.name}, {where}, differs{differing(first, second)}")
        print(f"dist-check: {first.name}, {where}: the same bytes, {sha256(first)}")


def differing(first: Path, second: Path) -> str:
    """The files of two wheels that differ."""
    if not zipfile.is_zipfile(first):
        return ""
    one, two = (
        {
            entry.filename: (entry.CRC, entry.date_time, entry.external_attr)
            for entry in zipfile.ZipFile(path).infolist()
        }
        for path in (first, second)
    )
    names = [name for name in sorted(one.keys() | two.keys()) if one.get(name) != two.get(name)]
    return f": {', '.join(names[:10]) or 'their order'}"


def run(command: list[str], *, folder: Path, expected: int = 0) -> str:
    """What a command prints; stops if it ends with another code."""
    done = subprocess.run(command, cwd=folder, env=clean(folder), capture_output=True, text=True, check=False)
    if done.returncode != expected:
        sys.exit(f"dist-check: {' '.join(command)[:200]}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout + done.stderr


def clean(folder: Path) -> dict[str, str]:
    """Without our source on the path, and with folders of its own."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "SOURCE_DATE_EPOCH")}
    return {**kept, "HPUNET_HOME": str(folder / "home")}


def try_wheel(wheel: Path, extras: str, trials: tuple[str, ...], *, folder: Path, missing: bool = False) -> None:
    """An empty environment, the wheel with these extras, and what one does with them."""
    started = time.monotonic()
    folder.mkdir()
    run([sys.executable, "-m", "venv", "venv"], folder=folder)
    python, install = str(folder / "venv/bin/python"), ["-m", "pip", "install", "--quiet"]
    wanted = f"{wheel}[{extras}]" if extras else str(wheel)
    run([python, *install, "--constraint", str(ROOT / "constraints.txt"), wanted], folder=folder)
    for trial in trials:
        hpunet = trial.startswith("hpunet ")
        out = run([python, "-m", *trial.split()] if hpunet else [python, "-W", "error", "-c", trial], folder=folder)
        if trial in ("hpunet --version", README):
            print(out.rstrip())
    for extra, command in MISSING.items() if missing else ():
        if "pip install" not in (said := run([python, "-m", *command.split()], folder=folder, expected=2)):
            sys.exit(f"dist-check: {command}: does not say how to install the extra {extra}: {said}")
    print(f"dist-check: extras {extras or 'none'}: {len(trials)} trials, {time.monotonic() - started:.0f} s")


def main(wanted: list[str]) -> None:
    """All of it, or only the environments of these extras ("none" for the one without)."""
    built = sorted([*(ROOT / "dist").glob("*.whl"), *(ROOT / "dist").glob("*.tar.gz")])
    if len(built) != 2:
        sys.exit("dist-check: expected one wheel and one sdist in dist/; run make dist")
    chosen = {extra: trials for extra, trials in TRIALS.items() if not wanted or (extra or "none") in wanted}
    with tempfile.TemporaryDirectory() as name:
        if not wanted:
            same_bytes(built, Path(name))
    os.umask(0o022)
    for extra, trials in chosen.items():
        with tempfile.TemporaryDirectory() as name:
            try_wheel(built[0], extra, trials, folder=Path(name) / "empty", missing=not extra)
    if not wanted:
        with tempfile.TemporaryDirectory() as name:
            everything = ",".join(filter(None, TRIALS))
            try_wheel(built[0], everything, TRIALS[""] + TRIALS["view"], folder=Path(name) / "empty")


if __name__ == "__main__":
    main(sys.argv[1:])
