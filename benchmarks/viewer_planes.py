"""How long the viewer's server takes to give a plane of a volume, with nothing else to do and while the model draws.

    python benchmarks/viewer_planes.py [--shape 64 256 256] [--hypotheses 8]

Noise as NIfTI, the published model on it, slice by slice, and made-up hypotheses: nested ellipsoids. One client asks
for planes of the image and of all hypotheses, as the page does when the crosshair moves.
"""

import argparse
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

import hpunet
from hpunet.viewer.volumes import PLANES, DrawnVolume, VolumeWish

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))
from viewing import Client, open_client, write_volume

NUM_REQUESTS = 48
NAME = "made-up"


def main() -> None:
    """Read the arguments, print the times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", type=int, nargs=3, default=(64, 256, 256))
    parser.add_argument("--hypotheses", type=int, default=8)
    arguments = parser.parse_args()
    d, h, w = arguments.shape
    z, y, x = (np.linspace(-1, 1, side) for side in (d, h, w))
    distance = np.hypot(np.hypot(z[:, None, None], y[:, None]), x)
    samples = np.stack([distance < 0.4 + 0.02 * i for i in range(arguments.hypotheses)]).astype(np.uint8)
    drawn = DrawnVolume(
        NAME,
        VolumeWish("none"),
        (d, h, w),
        (0, 0, 0),
        samples,
        tuple(range(len(samples))),
        None,
        samples[0],
        samples[0],
        {},
    )
    with tempfile.TemporaryDirectory() as name:
        path = write_volume(Path(name) / "scan.nii.gz", shape=(d, h, w))
        with open_client(Path(name), [path], load=lambda: hpunet.load("lidc-hpu-2026")) as (client, viewer):
            client.get("/api/session")
            client.get("/api/cases/0/image")
            viewer.drawing._volumes.put(NAME, drawn, drawn.nbytes)
            time_planes(client, arguments.shape, words="idle")

            def draw() -> None:
                Client(client.port, timeout=3600).post("/api/cases/0/volumes", {"num_samples": 16})

            threading.Thread(target=draw, daemon=True).start()
            while viewer.drawing.num_done == 0:
                time.sleep(0.1)
            time_planes(client, arguments.shape, words="drawing")
            current = viewer.drawing._current
            assert current is not None, "the model was faster; take a larger --shape"
            current.cancel()


def time_planes(client: Client, shape: tuple[int, int, int], *, words: str) -> None:
    """Print the milliseconds per request."""
    for axis, plane in enumerate(PLANES):
        for what in ("cases/0/image", f"volumes/{NAME}/hypotheses"):
            times = []
            for number in np.linspace(0, shape[axis] - 1, NUM_REQUESTS).astype(int):
                start = time.perf_counter()
                answer = client.get(f"/api/{what}?plane={plane}&slice={number}")
                times.append(1000 * (time.perf_counter() - start))
                assert answer.status == 200, answer.content
            median, most = np.percentile(times, (50, 95))
            size = f"{len(answer.content) / 1024:.0f} KiB"
            print(f"{words:8} {plane:9} {what:27} median {median:5.1f} ms, 95 % below {most:5.1f} ms, {size}")


if __name__ == "__main__":
    main()
