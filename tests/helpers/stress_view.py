"""Attack and load `hpunet view`, run as a process of its own: what the test suite does in small, in full size.

    python tests/helpers/stress_view.py                     everything; 25 minutes on 2 cores
    python tests/helpers/stress_view.py names clients       some parts

The parts: names (10,000 hostile requests), uploads (400 that are too large or no images), described (2,000 cases made
by schemathesis from the OpenAPI description), clients (32 at once for 60 s), images (memory over 500 images), first
(seconds from the command to hypotheses in a browser), redraw (16 samples through the server and from the bare model).
`make stress` runs all of them.
"""

import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from statistics import median

import numpy as np
import torch
from hostile import attack, check_inside, hostile
from live_viewer import CHROMIUM, FLAGS, LiveViewer
from PIL import Image
from untrained import make_trained
from viewing import HOST, TOKEN, Client, write_images

import hpunet
from hpunet.viewer.security import MAX_UPLOAD_BYTES
from hpunet.weights.load import publish

NAMES, UPLOADS, CASES, CLIENTS, SECONDS, IMAGES, STARTS, REDRAWS = 10_000, 1200, 2_000, 32, 60, 500, 5, 15
MIB = 2**20


def open_client(viewer: LiveViewer) -> Client:
    return Client(viewer.port, timeout=300)


def tiny_model(folder: Path) -> Path:
    publish(make_trained(channels=(4, 6), latent_dims=(1,)), out=folder, name="tiny")
    return folder


def try_names(folder: Path) -> str:
    inside, secret = folder / "inside", b"a secret of another folder"
    images = write_images(inside / "images")
    for place in (folder, images):
        (place / "secret.txt").write_bytes(secret)
    viewer = LiveViewer(inside / "view", [tiny_model(inside / "model"), images])
    try:
        found = attack(viewer.port, hostile(NAMES), picture=(images / "image-000.png").read_bytes(), secret=secret)
    finally:
        viewer.kill()
    check_inside(folder, allowed={inside, folder / "secret.txt"})
    check_inside(inside, allowed={inside / "view", inside / "images", inside / "model"})
    assert sum(found.values()) == NAMES
    return f"{NAMES} hostile requests, answered {dict(sorted(found.items()))}: no escape"


def try_uploads(folder: Path) -> str:
    images = write_images(folder / "images", count=1)
    picture = (images / "image-000.png").read_bytes()
    header = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + (2**30).to_bytes(4, "big") * 2 + b"\x08\0\0\0\0"
    bad = [b"", b"x", picture[:60], header + b"\0" * 4096, b"\x1f\x8b" + b"\0" * 99, os.urandom(8 * MIB)]
    names = ["a.png", "a.nii.gz", "a.npy", "a.tif", "a.gif", "a.jpg", "a.dcm", "a", "a.nii", "a.exe"]
    viewer = LiveViewer(folder / "view", [tiny_model(folder / "model"), images])
    try:
        with closing(open_client(viewer)) as client:
            client.get("/api/session")
            client.post("/api/upload?name=first.png", content=picture)
            answers, peaks = {400: 0, 413: 0}, [viewer.memory()[1]]
            for number in range(UPLOADS):
                if number % 8 == 0:
                    answers[_send_too_much(viewer.port)] += 1
                else:
                    content, name = bad[number % len(bad)], names[number // 2 % len(names)]
                    answers[client.post(f"/api/upload?name={name}", content=content).status] += 1
                peaks.append(viewer.memory()[1])
            grown, later = peaks[-1] - peaks[0], peaks[-1] - peaks[UPLOADS // 2]
            assert grown < 128 * MIB, grown
            assert later < 8 * MIB, later
            assert len(client.get("/api/cases").json()["cases"]) == 2
    finally:
        viewer.kill()
    return (
        f"{UPLOADS} malformed or oversize uploads, answered {answers}: the most memory grew by {grown / MIB:.0f} MiB"
    )


def _send_too_much(port: int) -> int:
    """The status of an upload without end: of unknown length, until it is refused."""
    head = f"POST /api/upload?name=a.png HTTP/1.1\r\nHost: {HOST}:{port}\r\nX-Hpunet-Token: {TOKEN}\r\n"
    head += "Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    chunk = b"%x\r\n%s\r\n" % (MIB, bytes(MIB))
    with socket.create_connection((HOST, port), timeout=120) as connection:
        connection.sendall(head.encode())
        with suppress(ConnectionError):
            for _ in range(MAX_UPLOAD_BYTES // MIB + 2):
                connection.sendall(chunk)
        return int(connection.recv(4096).split()[1])


def try_described(folder: Path) -> str:
    graded = hpunet.example().path.parents[1]
    viewer = LiveViewer(folder / "view", [tiny_model(folder / "model"), graded])
    tool = Path(sys.executable).with_name("schemathesis")
    try:
        with closing(open_client(viewer)) as client:
            paths = client.get("/api/openapi.json").json()["paths"]
        operations = sum(len(methods) for methods in paths.values())
        command = [tool, "run", f"http://{HOST}:{viewer.port}/api/openapi.json", "-H", f"X-Hpunet-Token:{TOKEN}"]
        command += [
            "--phases=coverage,fuzzing",
            f"--max-examples={-(-CASES // operations)}",
            "--seed=1",
            "--no-color",
        ]
        command += ["--checks=not_a_server_error,content_type_conformance,response_schema_conformance"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    finally:
        viewer.kill()
    assert done.returncode == 0, done.stdout + done.stderr
    cases = int(re.findall(r"([\d,]+) generated", done.stdout)[0].replace(",", ""))
    assert cases >= CASES, cases
    return f"{cases} cases of schemathesis on {operations} operations: no answer of 500 or more"


def try_clients(folder: Path) -> str:
    images, seeds = write_images(folder / "images", count=16), range(4)
    model = tiny_model(folder / "model")
    predictor = hpunet.load(model, device="cpu")
    paths = sorted(images.glob("*.png"))
    right = [[predictor(path, num_samples=5, seed=seed).samples for seed in seeds] for path in paths]
    assert len({each.tobytes() for row in right for each in row}) == 64  # so that a mixed-up answer shows
    viewer = LiveViewer(folder / "view", [model, images])
    end, faults, counts = time.monotonic() + SECONDS, [], [0] * CLIENTS

    def work(person: int) -> None:
        rng = random.Random(person)
        try:
            with closing(open_client(viewer)) as client:
                while time.monotonic() < end:
                    case, seed = rng.randrange(16), rng.choice(seeds)
                    answer = client.post(f"/api/cases/{case}/samples", {"num_samples": 5, "seed": seed})
                    samples = client.get(f"/api/predictions/{answer.json()['prediction']}/samples").array()
                    np.testing.assert_array_equal(samples, right[case][seed])
                    image = client.get(f"/api/cases/{case}/image").array()
                    np.testing.assert_array_equal(image[..., 0], np.asarray(Image.open(paths[case])))
                    counts[person] += 3
        except Exception as error:
            faults.append(f"client {person}: {error!r}")

    try:
        people = [threading.Thread(target=work, args=[person]) for person in range(CLIENTS)]
        for person in people:
            person.start()
        for person in people:
            person.join()
    finally:
        viewer.kill()
    assert not faults, faults
    assert min(counts) > 0
    return f"{CLIENTS} clients for {SECONDS} s: {sum(counts)} answers, none lost, each that of its question"


def try_images(folder: Path) -> str:
    (folder / "images").mkdir()
    rng, crop = np.random.default_rng(0), hpunet.example("lidc-2").image.astype(float)
    for number in range(IMAGES):
        noisy = np.clip(crop + rng.normal(0, 8, crop.shape), 0, 255).astype(np.uint8)
        Image.fromarray(noisy).save(folder / f"images/{number:03d}.png")
    viewer, sizes = LiveViewer(folder / "view", ["lidc-hpu-2026", folder / "images"]), []
    try:
        with closing(open_client(viewer)) as client:
            for number in range(IMAGES):
                answer = client.post(f"/api/cases/{number}/samples", {"num_samples": 16}).json()
                for what in ("samples", "mean", "std"):
                    assert client.get(f"/api/predictions/{answer['prediction']}/{what}").status == 200
                assert client.get(f"/api/cases/{number}/image").status == 200
                sizes.append(viewer.memory()[0])
                if (number + 1) % 50 == 0:
                    print(f"  {number + 1} images: {sizes[-1] / MIB:.0f} MiB", flush=True)
    finally:
        viewer.kill()
    full = 3 * IMAGES // 5  # all that is remembered: 64 MiB of predictions are 218 of these images
    grown = max(sizes[full:]) - max(sizes[:full])  # 16 MiB are opened images, of which 1 GiB is remembered
    assert max(sizes) < 1280 * MIB, max(sizes)
    assert grown < 40 * MIB, [size // MIB for size in sizes[::25]]
    places = (IMAGES // 10, full, IMAGES)
    return "memory " + ", ".join(f"{sizes[place - 1] / MIB:.0f} MiB after {place} images" for place in places)


def try_first(folder: Path) -> str:
    from playwright.sync_api import sync_playwright

    seconds = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        for number in range(STARTS):
            page = browser.new_context().new_page()
            start = time.monotonic()
            viewer = LiveViewer(folder / str(number))
            try:
                page.goto(viewer.address)
                page.wait_for_selector("#strip button", timeout=60_000)
                seconds.append(time.monotonic() - start)
            finally:
                viewer.kill()
        browser.close()
    least, most = min(seconds), max(seconds)
    return f"first hypotheses in a browser after {median(seconds):.1f} s (of {STARTS}: {least:.1f} to {most:.1f})"


def try_redraw(folder: Path) -> str:
    viewer = LiveViewer(folder / "view")
    model = hpunet.load("lidc-hpu-2026", device="cpu").model
    image = torch.tensor(hpunet.example("lidc-1").image)[None, None] / 255

    def bare(seed: int) -> None:
        hpunet.sample(model, image=image, num_samples=16, generator=torch.Generator().manual_seed(seed))

    try:
        with closing(open_client(viewer)) as client:

            def served(seed: int) -> None:
                answer = client.post("/api/cases/0/samples", {"num_samples": 16, "seed": seed}).json()
                client.get(f"/api/predictions/{answer['prediction']}/samples")

            seconds: dict[str, list[float]] = {"bare": [], "served": []}
            for seed in range(REDRAWS + 2):
                for name, call in (("bare", bare), ("served", served)):
                    start = time.perf_counter()
                    call(seed)
                    seconds[name].append(time.perf_counter() - start)
    finally:
        viewer.kill()
    without, through = (median(each[2:]) for each in (seconds["bare"], seconds["served"]))
    assert through < 1.5 * without, (through, without)
    return f"16 samples: {through:.2f} s through the server, {without:.2f} s bare, {through / without:.2f} times"


PARTS: dict[str, Callable[[Path], str]] = {
    "names": try_names, "uploads": try_uploads, "described": try_described, "clients": try_clients,
    "images": try_images, "first": try_first, "redraw": try_redraw,
}  # fmt: skip


def main(chosen: list[str]) -> None:
    for name in chosen or PARTS:
        with tempfile.TemporaryDirectory(prefix="hpunet-stress-") as folder:
            start = time.monotonic()
            print(f"{name}: {PARTS[name](Path(folder))} ({time.monotonic() - start:.0f} s)", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
