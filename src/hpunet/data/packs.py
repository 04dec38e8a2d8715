"""Packs: a data set as a few flat files that training maps into memory or copies to the GPU.

    <pack>/pack.json              format, set description, splits, options, size and SHA-256 of files
    <pack>/<split>/images.bin     8 or 16 bit or float32 pixels, (c, h, w) per image
    <pack>/<split>/labels.bin     one map per grader: bits for two classes, 8 bit for more, 16 for instances
    <pack>/<split>/valid.bin      one bit per pixel; absent when all pixels are valid
    <pack>/<split>/graders.bin    one byte per grader
    <pack>/<split>/index.json     patient, key, height and width of each image

Bits are in the order of `numpy.packbits`; each map starts a new byte.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from operator import getitem
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from hpunet.data.batch import Batch
from hpunet.data.types import Identity, NoSuchSplitError, Sample, SetInfo, Source, make_sample, refuse_shared_patients
from hpunet.data.workers import workers
from hpunet.errors import ConfigError, DataError
from hpunet.utils.files import atomic_folder, read_file

FORMAT, VERSION = "hpunet-pack", 1
MANIFEST = "pack.json"
_PIXELS: dict[int, np.dtype[Any]] = {8: np.dtype("u1"), 16: np.dtype("<u2"), 32: np.dtype("<f4")}

Progress = Callable[[Iterable[Sample], int, str], Iterable[Sample]]
"""Wraps an iterable of samples, given their number and a title, to show progress."""


def is_pack(path: Path) -> bool:
    """Whether there is a pack at `path`."""
    return (path / MANIFEST).is_file()


def write_pack(
    sources: Mapping[str, Source],
    out: Path,
    *,
    processes: int = 1,
    progress: Progress | None = None,
    options: Mapping[str, Any] | None = None,
) -> Path:
    """Write the splits `sources` as one pack, read by `processes`; `out` must not exist yet.

    `options` are all options that the sources were opened with; the pack records them.
    """
    if not sources:
        raise ConfigError("a pack needs at least one split")
    infos = {split: source.info for split, source in sources.items()}
    info = next(iter(infos.values()))
    if any(other != info for other in infos.values()):
        raise DataError(f"the splits {', '.join(sources)} do not describe the same kind of data: {infos}")
    refuse_shared_patients(list(sources.values()))
    with atomic_folder(out, error=DataError) as partial:
        for split, source in sources.items():
            with workers(max(processes, 1), source) as run:
                samples = run(getitem, range(len(source)))
                _write_split(
                    progress(samples, len(source), f"packing {split}") if progress else samples, partial / split, info
                )
        files = {p.relative_to(partial).as_posix(): p for p in sorted(partial.rglob("*")) if p.is_file()}
        manifest = {
            "format": FORMAT,
            "version": VERSION,
            "info": info.as_json(),
            "splits": {split: len(source) for split, source in sources.items()},
            **({} if options is None else {"options": dict(options)}),
            "files": {name: {"bytes": p.stat().st_size, "sha256": _sha256(p)} for name, p in files.items()},
        }
        (partial / MANIFEST).write_text(json.dumps(manifest, indent=1, ensure_ascii=False))
    return out


def open_pack(path: Path, *, split: str, verify: bool = True) -> "Pack":
    """A split of a pack; `verify` first checks the SHA-256 of its files (about a second per gigabyte)."""
    manifest = _read_manifest(path)
    if split not in manifest["splits"]:
        raise NoSuchSplitError(f"{path}: has no split {split!r}, only {', '.join(manifest['splits'])}")
    for name, expected in manifest["files"].items():
        if name.split("/")[0] != split:
            continue
        file = path / name
        if not file.is_file() or file.stat().st_size != expected["bytes"]:
            raise DataError(f"{file}: is missing or not {expected['bytes']} bytes long; make the pack again")
        if verify and _sha256(file) != expected["sha256"]:
            raise DataError(f"{file}: its content has changed (SHA-256 differs); make the pack again")
    return Pack(
        path,
        split=split,
        info=SetInfo.from_json(manifest["info"], where=str(path)),
        fingerprint=_fingerprint(manifest),
    )


def pack_origin(path: Path) -> tuple[str, dict[str, Any] | None]:
    """The kind of the packed data, and their options; None if not recorded."""
    manifest = _read_manifest(path)
    options = dict(manifest["options"]) if "options" in manifest else None
    return str(SetInfo.from_json(manifest["info"], where=str(path)).kind), options


class Pack:
    """A split of a pack: a `Source` that also yields whole batches on any device.

    Files stay as stored, mapped from disk until `to(device)` copies them; each batch is converted once.
    """

    def __init__(self, path: Path, *, split: str, info: SetInfo, fingerprint: str) -> None:
        self.path, self.split, self.info, self.fingerprint = path, split, info, fingerprint
        folder = path / split
        index = json.loads(read_file(folder / "index.json", error=DataError))
        self.identities = [Identity(patient=p, key=k) for p, k in zip(index["patients"], index["keys"], strict=True)]
        self.sizes = [(int(h), int(w)) for h, w in index["sizes"]]
        self._all_sizes = set(self.sizes)
        n, r = len(self.identities), info.num_graders
        pixels = np.array([h * w for h, w in self.sizes])
        per_map = _map_bytes(info, pixels)
        self._images = _map_file(folder / "images.bin", _PIXELS[info.image_bits], info.in_channels * pixels)
        self._labels = _map_file(folder / "labels.bin", np.dtype("u1"), r * per_map)
        has_invalid = (folder / "valid.bin").is_file()
        self._valid = _map_file(folder / "valid.bin", np.dtype("u1"), -(-pixels // 8)) if has_invalid else None
        self._graders = _map_file(folder / "graders.bin", np.dtype("u1"), np.full(n, r))

    def __len__(self) -> int:
        return len(self.identities)

    def __getstate__(self) -> dict[str, Any]:
        """Pickled by its path: another process maps the files itself."""
        return {"path": self.path, "split": self.split, "info": self.info, "fingerprint": self.fingerprint}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    @property
    def nbytes(self) -> int:
        """Memory used on a device."""
        parts = (self._images, self._labels, self._valid, self._graders)
        return sum(part.data.nbytes for part in parts if part is not None)

    @property
    def device(self) -> torch.device:
        """The device on which batches are assembled."""
        return self._images.data.device

    def to(self, device: torch.device) -> "Pack":
        """Copy all files to a device and assemble batches there."""
        for part in (self._images, self._labels, self._valid, self._graders):
            if part is not None:
                part.data = part.data.to(device, copy=True)
        return self

    def __getitem__(self, index: int) -> Sample:
        index = range(len(self))[index]
        batch = self.batch(torch.tensor([index]))
        return make_sample(
            image=batch.image[0].cpu().numpy(),
            labels=batch.labels[0].cpu().numpy(),
            valid=batch.valid[0].cpu().numpy(),
            graders=batch.graders[0].cpu().numpy(),
            identity=self.identities[index],
            info=self.info,
            where=f"{self.path}/{self.split}, {self.identities[index].key}",
        )

    def batch(self, indices: Int[Tensor, " b"]) -> Batch:
        """The images `indices` with all graders, on the pack's device.

        Images of different sizes are centred in the largest height and width of the batch; padding is invalid.
        """
        sizes = self._all_sizes if len(self._all_sizes) == 1 else {self.sizes[i] for i in indices.tolist()}
        if len(sizes) == 1:
            return self._uniform(indices.to(self.device), *next(iter(sizes)))
        singles = [self._uniform(indices[i : i + 1].to(self.device), *self.sizes[j]) for i, j in enumerate(indices)]
        height, width = (max(size[axis] for size in sizes) for axis in (0, 1))
        return Batch(
            image=torch.cat([_pad(single.image, height, width) for single in singles]),
            labels=torch.cat([_pad(single.labels, height, width) for single in singles]),
            valid=torch.cat([_pad(single.valid, height, width) for single in singles]),
            graders=torch.cat([single.graders for single in singles]),
        )

    def _uniform(self, indices: Int[Tensor, " b"], h: int, w: int) -> Batch:
        b, c, r = len(indices), self.info.in_channels, self.info.num_graders
        image = self._images.rows(indices).view(b, c, h, w)
        if self.info.image_bits != 32:
            image = image.to(torch.float32) / (2**self.info.image_bits - 1)
        stored = self._labels.rows(indices).view(b, r, -1)
        if _as_bits(self.info):
            labels = _unpack_bits(stored, h * w).to(torch.int32)
        elif self.info.has_instances:
            low, high = stored.view(b, r, -1, 2).to(torch.int32).unbind(dim=3)
            labels = low + 256 * high
        else:
            labels = stored.to(torch.int32)
        if self._valid is None:
            valid = torch.ones(b, h, w, dtype=torch.bool, device=image.device)
        else:
            valid = _unpack_bits(self._valid.rows(indices), h * w).view(b, h, w)
        graders = self._graders.rows(indices).bool()
        return Batch(image=image, labels=labels.view(b, r, h, w), valid=valid, graders=graders)


class _Rows:
    """Rows of different lengths in one flat tensor."""

    def __init__(self, data: Tensor, lengths: np.ndarray) -> None:
        self.data = data
        self.uniform = int(lengths[0]) if len(set(lengths.tolist())) == 1 else None
        self.starts = [0, *np.cumsum(lengths).tolist()]

    def rows(self, indices: Int[Tensor, " b"]) -> Tensor:
        """These rows, which must have the same length."""
        if self.uniform is not None:
            return self.data.view(-1, self.uniform)[indices]
        return torch.stack([self.data[self.starts[i] : self.starts[i + 1]] for i in indices.tolist()])


def _map_file(path: Path, dtype: np.dtype[Any], lengths: np.ndarray) -> _Rows:
    """A file mapped into memory; copy on write, since torch needs writable arrays."""
    expected = int(lengths.sum()) * dtype.itemsize
    if not path.is_file() or path.stat().st_size != expected:
        raise DataError(f"{path}: is missing or not {expected} bytes long; make the pack again")
    return _Rows(torch.from_numpy(np.memmap(path, dtype=dtype, mode="c")), lengths)


def _as_bits(info: SetInfo) -> bool:
    return info.num_classes == 2 and not info.has_instances


def _map_bytes(info: SetInfo, pixels: np.ndarray) -> np.ndarray:
    """Bytes of one label map."""
    return -(-pixels // 8) if _as_bits(info) else pixels * (2 if info.has_instances else 1)


def _unpack_bits(packed: Tensor, count: int) -> Tensor:
    shifts = torch.arange(7, -1, -1, dtype=torch.uint8, device=packed.device)
    bits = (packed.unsqueeze(-1) >> shifts).bitwise_and_(1)
    return bits.flatten(-2)[..., :count].bool()


def _pad(planes: Tensor, height: int, width: int) -> Tensor:
    above, left = (height - planes.shape[-2]) // 2, (width - planes.shape[-1]) // 2
    below, right = height - planes.shape[-2] - above, width - planes.shape[-1] - left
    return torch.nn.functional.pad(planes, (left, right, above, below))


def _write_split(samples: Iterable[Sample], folder: Path, info: SetInfo) -> None:
    folder.mkdir(parents=True)
    index: dict[str, list[Any]] = {"patients": [], "keys": [], "sizes": []}
    all_valid = True
    with (
        (folder / "images.bin").open("wb") as images,
        (folder / "labels.bin").open("wb") as labels,
        (folder / "valid.bin").open("wb") as valid,
        (folder / "graders.bin").open("wb") as graders,
    ):
        for sample in samples:
            images.write(_stored_image(sample, info).tobytes())
            labels.write(_stored_labels(sample, info).tobytes())
            valid.write(np.packbits(sample.valid).tobytes())
            graders.write(sample.graders.astype(np.uint8).tobytes())
            all_valid &= bool(sample.valid.all())
            index["patients"].append(sample.identity.patient)
            index["keys"].append(sample.identity.key)
            index["sizes"].append(sample.valid.shape)
    if all_valid:
        (folder / "valid.bin").unlink()
    (folder / "index.json").write_text(json.dumps(index, ensure_ascii=False))


def _stored_image(sample: Sample, info: SetInfo) -> np.ndarray:
    dtype = _PIXELS[info.image_bits]
    if sample.pixels.dtype == dtype:
        return sample.pixels
    return np.asarray(sample.image if info.image_bits == 32 else np.rint(sample.image * np.iinfo(dtype).max), dtype)


def _stored_labels(sample: Sample, info: SetInfo) -> np.ndarray:
    if _as_bits(info):
        return np.packbits(sample.labels.reshape(len(sample.labels), -1).astype(np.bool_), axis=1)
    limit = 2**16 if info.has_instances else 2**8
    if sample.labels.max() >= limit:
        raise DataError(f"{sample.identity.key}: label {sample.labels.max()} is more than a pack holds ({limit - 1})")
    return sample.labels.astype("<u2" if info.has_instances else "u1")


def _read_manifest(path: Path) -> dict[str, Any]:
    file = path / MANIFEST
    try:
        manifest = json.loads(read_file(file, error=DataError))
        if manifest["format"] != FORMAT or manifest["version"] != VERSION:
            raise DataError(f"{file}: not a pack of format {FORMAT} {VERSION}; make the pack again")
        for name, entry in manifest["files"].items():
            if ".." in Path(name).parts or Path(name).is_absolute():
                raise DataError(f"{file}: names a file outside the pack, {name!r}")
            int(entry["bytes"]), str(entry["sha256"])
        dict(manifest["splits"]), dict(manifest["info"]), dict(manifest.get("options", {}))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{file}: not a pack's description ({error})") from None
    return dict(manifest)


def _fingerprint(manifest: Mapping[str, Any]) -> str:
    """A hash of the pack's content, without its options."""
    content = {name: value for name, value in manifest.items() if name != "options"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
