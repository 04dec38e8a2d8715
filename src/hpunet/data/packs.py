"""Packs: a data set as a few flat files that training maps into memory or copies to the GPU.

    <pack>/pack.json              format, set description, splits, options, fingerprints of what was packed,
                                  size and SHA-256 of files, its own SHA-256
    <pack>/<split>/images.bin     8 or 16 bit or float32 pixels, (c, h, w) per image, (c, d, h, w) per volume
    <pack>/<split>/labels.bin     one map per grader: bits for two classes, 8 bit for more, 16 for instances
    <pack>/<split>/valid.bin      one bit per pixel; absent when all pixels are valid
    <pack>/<split>/graders.bin    one byte per grader
    <pack>/<split>/index.json     patient, key, (depth,) height and width of each image

Bits are in the order of `numpy.packbits`; each map starts a new byte.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace as replaced
from math import prod
from operator import getitem
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn.functional import pad

from hpunet.data.batch import FIELDS, Batch, Window
from hpunet.data.fingerprint import FileHashes, fingerprints
from hpunet.data.types import Identity, NoSuchSplitError, Sample, SetInfo, Source, make_sample, refuse_shared_patients
from hpunet.data.workers import workers
from hpunet.errors import CheckpointError, ConfigError, DataError
from hpunet.utils.files import atomic_folder, dump_hashed_json, read_file, read_hashed_json, write_synced

FORMAT, VERSION = "hpunet-pack", 1
MANIFEST = "pack.json"
_MAX_MANIFEST_BYTES = 2**20
_PIXELS: dict[int, np.dtype[Any]] = {8: np.dtype("u1"), 16: np.dtype("<u2"), 32: np.dtype("<f4")}

Progress = Callable[[Iterable[Sample], int, str], Iterable[Sample]]
"""Wraps samples, given their number and a title, to show progress."""


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
    hashes: FileHashes | None = None,
    replace: bool = False,
) -> Path:
    """Write the splits `sources` as one pack, read by `processes`; with `replace`, in place of an earlier one.

    It records the `options` they were opened with, and their fingerprints.
    """
    if not sources:
        raise ConfigError("a pack needs at least one split")
    infos = {split: source.info for split, source in sources.items()}
    info, *others = infos.values()
    if any(other != info for other in others):
        raise DataError(f"the splits {', '.join(sources)} do not describe the same kind of data: {infos}")
    refuse_shared_patients(list(sources.values()))
    hashes = hashes or FileHashes()
    with atomic_folder(out, replace=replace, error=DataError) as partial:
        made_of = fingerprints(sources, options=options, hashes=hashes)
        for split, source in sources.items():
            with workers(max(processes, 1), source) as run:
                samples = run(getitem, range(len(source)))
                shown = progress(samples, len(source), f"packing {split}") if progress else samples
                _write_split(shown, partial / split, info)
        if fingerprints(sources, options=options, hashes=hashes) != made_of:
            raise DataError(f"{out}: the data changed while they were packed; pack them again")
        files = {p.relative_to(partial).as_posix(): p for p in sorted(partial.rglob("*")) if p.is_file()}
        manifest = {
            "format": FORMAT,
            "version": VERSION,
            "info": info.as_json(),
            "splits": {split: len(source) for split, source in sources.items()},
            **({} if options is None else {"options": json.loads(json.dumps(dict(options)))}),  # tuples become lists
            "made_of": made_of,
            "files": {name: {"bytes": p.stat().st_size, "sha256": _sha256(p)} for name, p in files.items()},
        }
        write_synced(partial / MANIFEST, dump_hashed_json(manifest, name=MANIFEST))
    return out


def open_pack(path: Path, *, split: str, verify: bool = True) -> "Pack":
    """A split of a pack; `verify` first checks the SHA-256 of its files (about a second per gigabyte)."""
    manifest = _read_manifest(path)
    if split not in manifest["splits"]:
        raise NoSuchSplitError(f"{path}: has no split {split!r}, only {', '.join(manifest['splits'])}")
    listed = {name: entry for name, entry in manifest["files"].items() if name.split("/")[0] == split}
    present = {file.relative_to(path).as_posix() for file in (path / split).glob("[!.]*")}
    if extra := sorted(present - listed.keys()):
        raise DataError(f"{path / extra[0]}: not part of the pack; move it elsewhere")
    for name, expected in listed.items():
        file = path / name
        if not file.is_file() or file.stat().st_size != expected["bytes"]:
            raise DataError(f"{file}: is missing or not {expected['bytes']} bytes long; make the pack again")
        if verify and _sha256(file) != expected["sha256"]:
            raise DataError(f"{file}: its content has changed (SHA-256 differs); make the pack again")
    content = {name: value for name, value in manifest.items() if name not in ("options", "made_of")}
    fingerprint = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return Pack(path, split=split, info=SetInfo.from_json(manifest["info"], where=str(path)), fingerprint=fingerprint)


def pack_origin(path: Path) -> tuple[str, dict[str, Any] | None]:
    """The kind of the packed data, and their options; None if not recorded."""
    manifest = _read_manifest(path)
    options = dict(manifest["options"]) if "options" in manifest else None
    return str(SetInfo.from_json(manifest["info"], where=str(path)).kind), options


def pack_ndim(path: Path) -> int:
    """2 for a pack of images, 3 for one of volumes."""
    return SetInfo.from_json(_read_manifest(path)["info"], where=str(path)).ndim


def pack_made_of(path: Path) -> dict[str, str]:
    """The fingerprints of the data that were packed, by split."""
    return dict(_read_manifest(path)["made_of"])


class Pack:
    """A split of a pack: a `Source` that also yields whole batches on any device.

    Files stay mapped from disk until `to(device)` copies them; each batch is converted once.
    """

    def __init__(self, path: Path, *, split: str, info: SetInfo, fingerprint: str) -> None:
        self.path, self.split, self.info, self.fingerprint = path, split, info, fingerprint
        folder = path / split
        content = read_file(folder / "index.json", error=DataError)
        try:
            index = json.loads(content)
            named = zip(index["patients"], index["keys"], strict=True)
            self.identities = [Identity(patient=p, key=k) for p, k in named]
            self.sizes = [_checked_size(size, ndim=info.ndim) for size in index["sizes"]]
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            raise DataError(f"{folder / 'index.json'}: not the index of a pack ({error}); make it again") from None
        self._all_sizes = set(self.sizes)
        r, pixels = info.num_graders, np.array([prod(size) for size in self.sizes])
        per_map = -(-pixels // 8) if _as_bits(info) else pixels * (2 if info.has_instances else 1)
        self._images = _map_file(folder / "images.bin", _PIXELS[info.image_bits], info.in_channels * pixels)
        self._labels = _map_file(folder / "labels.bin", np.dtype("u1"), r * per_map)
        has_invalid = (folder / "valid.bin").is_file()
        self._valid = _map_file(folder / "valid.bin", np.dtype("u1"), -(-pixels // 8)) if has_invalid else None
        self._graders = _map_file(folder / "graders.bin", np.dtype("u1"), np.full(len(index["sizes"]), r))
        parts = (self._images, self._labels, self._valid, self._graders)
        self._parts = [part for part in parts if part is not None]

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
        return sum(part.data.nbytes for part in self._parts)

    @property
    def device(self) -> torch.device:
        """The device on which batches are assembled."""
        return self._images.data.device

    def to(self, device: torch.device) -> "Pack":
        """Copy all files to a device and assemble batches there."""
        for part in self._parts:
            part.data = part.data.to(device, copy=True)
        return self

    def __getitem__(self, index: int) -> Sample:
        index = range(len(self))[index]
        batch = self.batch(torch.tensor([index]))
        tensors = {name: getattr(batch, name)[0].cpu().numpy() for name in FIELDS}
        identity = self.identities[index]
        where = f"{self.path}/{self.split}, {identity.key}"
        return make_sample(**tensors, identity=identity, info=self.info, where=where)

    def files(self, index: int) -> dict[str, Path | bytes]:
        """None: the files were verified when the pack was opened, and its fingerprint says what they hold."""
        return {}

    def batch(self, indices: Int[Tensor, " b"]) -> Batch:
        """The images `indices` with all graders, on the pack's device.

        Images of different sizes are centred in the largest size of the batch along each axis; padding is invalid.
        """
        sizes = self._all_sizes if len(self._all_sizes) == 1 else {self.sizes[i] for i in indices.tolist()}
        if len(sizes) == 1:
            return self._uniform(indices.to(self.device), next(iter(sizes)))
        singles = [self._uniform(indices[i : i + 1].to(self.device), self.sizes[j]) for i, j in enumerate(indices)]
        largest = tuple(max(sides) for sides in zip(*sizes, strict=True))
        return Batch.cat([_pad(single, largest) for single in singles])

    def windows(self, indices: Int[Tensor, " b"], *, first: Int[Tensor, "b n"], last: Int[Tensor, "b n"]) -> Batch:
        """The images `indices`, but only their pixels from `first` to `last`, which may lie outside.

        Along each axis all windows are as wide as the widest, if the image is; padding behind the image is invalid.
        Nothing else is read from the disk, but for whole slices of maps that are stored as bits.
        """
        size = torch.tensor([self.sizes[i] for i in indices.tolist()])
        extent = (torch.minimum(last + 1, size) - first.clamp(min=0)).clamp(min=1).amax(dim=0)
        corner = torch.minimum(first, size - extent).clamp(min=0)
        end = torch.minimum(corner + extent, size)
        cuts = [tuple(map(slice, *ends)) for ends in zip(corner.tolist(), end.tolist(), strict=True)]
        parts = [self._part(i, cut) for i, cut in zip(indices.tolist(), cuts, strict=True)]
        batch = Batch.cat([_pad(part, tuple(extent.tolist()), centred=False) for part in parts])
        return replaced(batch, window=Window(corner=corner.to(self.device), size=size.to(self.device)))

    def _uniform(self, indices: Int[Tensor, " b"], size: tuple[int, ...]) -> Batch:
        b, r, count = len(indices), self.info.num_graders, prod(size)
        image = self._scaled(self._images.rows(indices)).view(b, -1, *size)
        stored = self._labels.rows(indices).view(b, r, -1)
        labels = _unpack_bits(stored, count).to(torch.int32) if _as_bits(self.info) else self._numbers(stored)
        valid = torch.ones(b, *size, dtype=torch.bool, device=image.device)
        if self._valid is not None:
            valid = _unpack_bits(self._valid.rows(indices), count).view(b, *size)
        graders = self._graders.rows(indices).bool()
        return Batch(image=image, labels=labels.view(b, r, *size), valid=valid, graders=graders)

    def _part(self, index: int, cut: tuple[slice, ...]) -> Batch:
        """A batch of a part of one image."""
        size, r = self.sizes[index], self.info.num_graders
        image = self._scaled(self._images.row(index).view(-1, *size)[:, *cut])
        stored = self._labels.row(index).view(r, -1)
        if _as_bits(self.info):
            labels = _cut_bits(stored, size=size, cut=cut).to(torch.int32)
        else:
            labels = self._numbers(stored.view(r, *size, -1)[:, *cut])
        valid = torch.ones(image.shape[1:], dtype=torch.bool, device=image.device)
        if self._valid is not None:
            valid = _cut_bits(self._valid.row(index).view(1, -1), size=size, cut=cut)[0]
        labels, graders = labels.view(r, *valid.shape), self._graders.row(index).bool()
        return Batch(image=image[None], labels=labels[None], valid=valid[None], graders=graders[None])

    def _scaled(self, stored: Tensor) -> Tensor:
        """Pixels in [0, 1]."""
        bits = self.info.image_bits
        return stored if bits == 32 else stored.to(torch.float32) / (2**bits - 1)

    def _numbers(self, stored: Tensor) -> Tensor:
        """Labels of one or two bytes each."""
        numbers = stored.to(torch.int32)
        if not self.info.has_instances:
            return numbers
        low, high = numbers.unflatten(-1, (-1, 2)).unbind(-1)
        return torch.add(low, high, alpha=256)


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
        return torch.stack([self.row(i) for i in indices.tolist()])

    def row(self, index: int) -> Tensor:
        """One row, not copied."""
        return self.data[self.starts[index] : self.starts[index + 1]]


def _map_file(path: Path, dtype: np.dtype[Any], lengths: np.ndarray) -> _Rows:
    """A file mapped into memory; copy on write, since torch needs writable arrays."""
    expected = int(lengths.sum()) * dtype.itemsize
    if not path.is_file() or path.stat().st_size != expected:
        raise DataError(f"{path}: is missing or not {expected} bytes long; make the pack again")
    return _Rows(torch.from_numpy(np.memmap(path, dtype=dtype, mode="c")), lengths)


def _as_bits(info: SetInfo) -> bool:
    return info.num_classes == 2 and not info.has_instances


def _unpack_bits(packed: Tensor, count: int) -> Tensor:
    shifts = torch.arange(7, -1, -1, dtype=torch.uint8, device=packed.device)
    return (packed.unsqueeze(-1) >> shifts).bitwise_and_(1).flatten(-2)[..., :count].bool()


def _cut_bits(packed: Tensor, *, size: tuple[int, ...], cut: tuple[slice, ...]) -> Tensor:
    """A part of each map; reads the part's rows along the first axis."""
    length = prod(size[1:])
    first, end = (length * row for row in (cut[0].start, cut[0].stop))
    bits = _unpack_bits(packed[:, first // 8 : -(-end // 8)], end - first + first % 8)[:, first % 8 :]
    return bits.view(len(packed), -1, *size[1:])[:, :, *cut[1:]]


def _pad(batch: Batch, size: tuple[int, ...], *, centred: bool = True) -> Batch:
    sides: list[int] = []
    for side, wanted in zip(batch.valid.shape[:0:-1], size[::-1], strict=True):  # the last axis first
        before = (wanted - side) // 2 if centred else 0
        sides += [before, wanted - side - before]
    image, labels, valid = (pad(planes, sides) for planes in (batch.image, batch.labels, batch.valid))
    return Batch(image=image, labels=labels, valid=valid, graders=batch.graders)


def _checked_size(size: Any, *, ndim: int) -> tuple[int, ...]:
    if len(size) != ndim or any(type(side) is not int or side < 1 for side in size):
        raise ValueError(f"the size {size!r} is not {ndim} positive numbers")
    return tuple(size)


def _write_split(samples: Iterable[Sample], folder: Path, info: SetInfo) -> None:
    folder.mkdir(parents=True)
    index: dict[str, list[Any]] = {"patients": [], "keys": [], "sizes": []}
    all_valid = True
    with ExitStack() as stack:
        files = [folder / f"{name}.bin" for name in ("images", "labels", "valid", "graders")]
        images, labels, valid, graders = (stack.enter_context(file.open("wb")) for file in files)
        for sample in samples:
            images.write(_stored_image(sample, info).tobytes())
            labels.write(_stored_labels(sample, info).tobytes())
            valid.write(np.packbits(sample.valid).tobytes())
            graders.write(sample.graders.astype(np.uint8).tobytes())
            all_valid &= bool(sample.valid.all())
            for name, value in zip(index, (*sample.identity, sample.valid.shape), strict=True):
                index[name].append(value)
    if all_valid:
        (folder / "valid.bin").unlink()
    (folder / "index.json").write_text(json.dumps(index))


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
    file, what = path / MANIFEST, "the description of a pack"
    try:
        manifest = read_hashed_json(file, kind=FORMAT, version=VERSION, what=what, max_bytes=_MAX_MANIFEST_BYTES)
        for name, entry in manifest["files"].items():
            if ".." in Path(name).parts or Path(name).is_absolute():
                raise DataError(f"{file}: names a file outside the pack, {name!r}")
            int(entry["bytes"]), str(entry["sha256"])
        dict(manifest["splits"]), dict(manifest["info"]), dict(manifest.get("options", {}))
        dict(manifest["made_of"])
    except CheckpointError as error:
        raise DataError(f"{error}; make the pack again") from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataError(f"{file}: not a pack's description ({error}); make the pack again") from None
    return manifest


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
