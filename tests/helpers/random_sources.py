"""Sources in memory, of random images or volumes."""

from pathlib import Path

import numpy as np

from hpunet.data.types import Identity, Sample, SetInfo, make_sample


class ListSource:
    """Samples in a list, as a source."""

    def __init__(self, samples: list[Sample], *, info: SetInfo, split: str = "train") -> None:
        self.samples, self.info, self.split = samples, info, split
        self.identities = [sample.identity for sample in samples]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Sample:
        return self.samples[index]

    def files(self, index: int) -> dict[str, Path | bytes]:
        return {}


def random_source(
    *,
    num_classes: int,
    bits: int = 8,
    sizes: list[tuple[int, ...]],
    instances: int = 0,
    graders: int = 3,
    spacing: tuple[float, ...] | None = None,
) -> ListSource:
    rng = np.random.default_rng(0)
    classes, ids = tuple(f"c{i}" for i in range(num_classes)), 5 if instances else 0
    about = {"stochastic_classes": (1,), "image_bits": bits, "ndim": len(sizes[0]), "spacing": spacing}
    info = SetInfo("test", 2, graders, classes, ids, **about)
    samples = []
    for i, size in enumerate(sizes):
        levels = rng.integers(0, 2 ** min(bits, 16), (2, *size))
        image = levels.astype({8: np.uint8, 16: np.uint16, 32: np.uint16}[bits])
        samples.append(
            make_sample(
                image=image if bits != 32 else rng.random((2, *size), dtype=np.float32),
                labels=rng.integers(0, num_classes + instances, (graders, *size)),
                valid=rng.random(size) > 0.2 if i % 2 else None,
                graders=np.array([True] + [bool(i % 3)] * (graders - 1)),
                identity=Identity(patient=f"p{i // 2}", key=f"p{i // 2}/{i}"),
                info=info,
                where="test",
            )
        )
    return ListSource(samples, info=info)
