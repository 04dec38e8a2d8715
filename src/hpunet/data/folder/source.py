"""Your own images: a folder, or a tar archive of it, with `images/` and their label maps.

    images/<name>.png            PNG, JPEG, TIFF (grey or RGB; 8 or 16 bits or float) or NIfTI volumes
    graders/<grader>/<name>.png  one folder of class maps per grader, or
    masks/<name>.png             class maps of a single grader, or
    instances/<name>.png         instance maps: 0 is background, every other value one instance
    data.csv                     optional: columns file, patient, split (`table.py`)

Files are matched by name without ending, or by the patterns `graders` (`patterns.py`). Volumes of several raters may
also be CURVAS-like, BIDS or of four dimensions (`raters.py`). A grader without a
file for an image is missing for that image; any other file without a counterpart is an error. A NIfTI volume gives
one sample per slice along its last axis, and is one patient unless the table or `patient` says otherwise.

With `volumes`, each volume is one sample (`volumes.py`).

Pixels: 8 and 16 bit images are scaled by the maximum of their type. Float images, other integers and NIfTI volumes
are scaled by the minimum and maximum of their file. A `window` of stored values replaces both for all files: it
becomes [0, 1], and values outside are clipped.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hpunet.data.folder.layouts import find_items
from hpunet.data.folder.names import TABLE, Item, ending, stem_of
from hpunet.data.folder.patients import patients_by_pattern
from hpunet.data.folder.table import Entry, assign_splits, read_table
from hpunet.data.folder.volumes import (
    check_grid,
    check_samples,
    median_spacing,
    read_mask,
    read_mask_of_series,
    read_volume,
    refuse_images,
)
from hpunet.data.io.archives import FileTree
from hpunet.data.io.geometry import Geometry, check_spacing
from hpunet.data.io.images import decode_image
from hpunet.data.io.inputs import without_uids
from hpunet.data.io.intensity import loses_negatives, to_planes
from hpunet.data.io.label_maps import MAX_CLASSES, check_num_random_ids, class_map, number_instances
from hpunet.data.io.limits import ImageSize, check_memory
from hpunet.data.io.volumes import NIFTI_ENDINGS, NIFTI_HEAD_BYTES, decode_nifti, nifti_depth
from hpunet.data.types import Identity, NoSuchSplitError, Sample, SetInfo, check_split, make_sample
from hpunet.errors import ConfigError, DataError
from hpunet.utils.limits import MAX_TABLE_BYTES


def open_folder(
    path: Path,
    *,
    split: str,
    classes: Sequence[str] = ("background", "foreground"),
    num_random_ids: int = 5,
    window: tuple[float, float] | None = None,
    graders: Sequence[str] = (),
    patient: str | None = None,
    lists: Mapping[str, str] | None = None,
    val_every: int | None = None,
    seed: int = 0,
    volumes: bool = False,
    spacing: tuple[float, float, float] | None = None,
) -> "FolderSource":
    """Your own images with class maps of any number of graders, or with instance maps.

    `classes` names the values of class maps; `num_random_ids` is the number of stochastic classes of instance maps.
    `graders` are the names of their files, '{name}_1.png' beside the images or 'masks/{name}_1.png'. `patient` is a
    regular expression whose one group is the patient, found in the name of an image: 'Image_(\\d+)'.
    `lists` names text files with one patient or image per line, by split; other images are for training.
    If the table has no splits, every `val_every`-th patient in sorted order, from the first on, is for validation and
    the rest for training; without `val_every`, a shuffle by `seed` splits patients 0.8 / 0.1 / 0.1.
    With `volumes`, files are whole volumes. `spacing` is that of stacks, whose files do not say it: (d, h, w) in mm.
    """
    check_split(split)
    if window is not None and not window[0] < window[1]:
        raise ConfigError(f"window: expected (low, high) with low < high, got {window}")
    if not 2 <= len(classes) <= MAX_CLASSES:
        raise ConfigError(f"classes: expected 2 to {MAX_CLASSES} names, got {len(classes)}")
    check_num_random_ids(num_random_ids, num_fixed_classes=1)
    check_spacing(spacing, volumes=volumes)
    layout = find_items(path, graders=graders, volumes=volumes)
    tree, items = layout.tree, layout.items
    entries = _entries(tree, items, patient=patient)
    named = tree.where(TABLE) if TABLE in tree.names else str(path)
    splits = assign_splits(entries, lists=lists, val_every=val_every, seed=seed, name=named)
    if volumes:
        refuse_images(tree, items)
    first, affine = _load_images(tree, items[0], window, volumes=volumes)
    if volumes and affine is not None:
        check_grid(affine, like=affine, first=items[0].image, name=tree.where(items[0].image))
    of_pixels = None if affine is None else Geometry.from_affine(affine, axes="yx").spacing
    has_instances = layout.has_instances
    fixed = ("background",) if has_instances else tuple(classes)
    info = SetInfo(
        kind="folder",
        in_channels=first.shape[1],
        num_graders=len(items[0].masks),
        grader_names=layout.graders,
        fixed_classes=fixed,
        num_random_ids=num_random_ids if has_instances else 0,
        stochastic_classes=tuple(range(1, 1 + num_random_ids if has_instances else len(fixed))),
        image_bits=8 * first.itemsize,
        intensity_window=window,
        spacing=_spacing_of_volumes(tree, items, given=spacing) if volumes else of_pixels,
        ndim=3 if volumes else 2,
    )
    chosen = [item for item in items if splits.get(item.stem) == split]
    if not chosen:
        raise NoSuchSplitError(f"{path}: none of {len(items)} images is in the split {split!r}")
    like = affine if volumes else None
    return FolderSource(tree, chosen, split=split, info=info, first=items[0].image, entries=entries, like=like)


def _spacing_of_volumes(
    tree: FileTree, items: Sequence[Item], *, given: tuple[float, ...] | None
) -> tuple[float, ...] | None:
    """That which the files say, or else the `given` one."""
    found = median_spacing(tree, items)
    if found is not None and given is not None:
        raise ConfigError("spacing: the volumes say theirs; leave it out")
    return tuple(map(float, given)) if found is None and given is not None else found


class FolderSource:
    """Images or volumes of a folder; see `open_folder`. The last item stays in memory for its other slices."""

    def __init__(
        self,
        tree: FileTree,
        items: list[Item],
        *,
        split: str,
        info: SetInfo,
        first: str,
        entries: dict[str, Entry],
        like: np.ndarray | None,
    ) -> None:
        self.info, self.split, self._tree, self._first, self._like = info, split, tree, first, like
        self.identities: list[Identity] = []
        self._slices: list[tuple[Item, int | slice]] = []
        for item in items:
            depth = None if info.ndim == 3 else _depth(tree, item.image)
            for z in range(depth or 1):
                key = item.stem if depth is None else f"{item.stem}/z-{z:03d}"
                self.identities.append(Identity(patient=entries[item.stem].patient, key=key))
                self._slices.append((item, slice(None) if info.ndim == 3 else z))
        self._last: tuple[Item, np.ndarray, list[np.ndarray | None]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Without the item in memory."""
        return self.__dict__ | {"_last": None}

    def __len__(self) -> int:
        return len(self._slices)

    def __getitem__(self, index: int) -> Sample:
        """One image, one slice of a volume, or a volume."""
        item, z = self._slices[index]
        if self._last is None or self._last[0] != item:
            self._last = None  # frees a volume before the next one is read
            self._last = (item, *self._load(item))
        _, images, masks = self._last
        if self.info.ndim == 3:
            self._last = None
        image = np.moveaxis(images[z], -3, 0)
        dtype = np.int32 if self.info.has_instances else np.uint8
        labels = np.zeros((self.info.num_graders, *image.shape[1:]), dtype)
        for r, mask in enumerate(masks):
            if mask is not None and self.info.has_instances:
                where = self._tree.where(str(item.masks[r]))
                labels[r] = number_instances(mask[z], num_fixed_classes=self.info.num_fixed_classes, name=where)
            elif mask is not None:
                labels[r] = mask[z]
        return make_sample(
            image=image,
            labels=labels,
            graders=np.array([mask is not None for mask in masks]),
            identity=self.identities[index],
            info=self.info,
            where=self._tree.where(item.image),
        )

    def files(self, index: int) -> dict[str, Path | bytes]:
        """The image and its label maps; what the table says of them is in `identities`."""
        item, _ = self._slices[index]
        names = (*(item.series or (item.image,)), *item.masks)
        return {name: self._tree.file(name) for name in names if name is not None}

    def _load(self, item: Item) -> tuple[np.ndarray, list[np.ndarray | None]]:
        """The images (z, c, h, w) and label maps (z, h, w) of an item; an image is one slice."""
        where = self._tree.where(item.image)
        is_volume = self.info.ndim == 3
        images, affine = _load_images(self._tree, item, self.info.intensity_window, volumes=is_volume)
        if images.shape[1] != self.info.in_channels or 8 * images.itemsize != self.info.image_bits:
            raise DataError(
                f"{where}: {images.shape[1]} channels of {8 * images.itemsize} bits, the first image of the set, "
                f"{self._first}, has {self.info.in_channels} of {self.info.image_bits}; save all in one format"
            )
        size = ImageSize(images.shape[0], images.shape[2], images.shape[3], item.image)
        if is_volume:
            if (affine is None) != (self._like is None):
                raise DataError(f"{where}: is of another kind than {self._first}; save all volumes in one format")
            if affine is not None and self._like is not None:
                check_grid(affine, like=self._like, first=self._first, name=where)
            check_samples(self._tree, item, size)
        if item.are_stacked:
            return images, self._load_masks(item, size, affine)
        return images, [name if name is None else self._load_mask(item, name, size, affine) for name in item.masks]

    def _load_masks(self, item: Item, size: ImageSize, affine: np.ndarray | None) -> list[np.ndarray | None]:
        """The label maps of all raters from their one file."""
        name, number = item.masks[0], len(item.masks)
        if name is None:
            return [None] * number
        where = self._tree.where(name)
        if item.series and affine is not None:
            stack, mask_affine = read_mask_of_series(self._tree, name, size, affine, num_raters=number)
        else:
            packed = self._tree.size(name) + self._tree.size(item.image)
            check_memory(10 * number * math.prod(size[:3]), packed=packed, name=where)
            stack, mask_affine = decode_nifti(self._tree.read(name), name=where, size=size, num_raters=number)
        self._check_affine(name, item.image, mask_affine, affine)
        return [self._as_labels(name, stack[..., r]) for r in range(number)]

    def _load_mask(self, item: Item, name: str, size: ImageSize, affine: np.ndarray | None) -> np.ndarray:
        mask, mask_affine = self._read_mask(item, name, size, affine)
        if mask.shape != size[:3]:
            raise DataError(f"{self._tree.where(name)}: shape {mask.shape}, its image {size.name} has {size[:3]}")
        self._check_affine(name, item.image, mask_affine, affine)
        return self._as_labels(name, mask)

    def _read_mask(
        self, item: Item, name: str, size: ImageSize, affine: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray | None]:
        if self.info.ndim == 2:
            return _read(self._tree, name, size=size)
        if item.series and affine is not None:
            return read_mask_of_series(self._tree, name, size, affine)
        return read_mask(self._tree, name, size)

    def _check_affine(self, name: str, image: str, mask_affine: np.ndarray | None, affine: np.ndarray | None) -> None:
        where = self._tree.where(name)
        if self.info.ndim == 3 and (mask_affine is None) != (affine is None):
            words = "only one of them says where it lies; save both in one format"
            raise DataError(f"{where}: is of another kind than its image {image}, {words}")
        if affine is not None and mask_affine is not None and not np.allclose(mask_affine, affine, atol=1e-3):
            words = "has another position or orientation than its image"
            raise DataError(f"{where}: {words} {image} (their affines differ)")

    def _as_labels(self, name: str, mask: np.ndarray) -> np.ndarray:
        where = self._tree.where(name)
        if self.info.has_instances:
            return mask
        return class_map(mask, num_classes=self.info.num_classes, name=where).astype(np.uint8)


def _entries(tree: FileTree, items: list[Item], *, patient: str | None) -> dict[str, Entry]:
    """Patient and split of each item, by stem; without a table or pattern every file is a patient."""
    entries = {item.stem: Entry(patient=item.patient, split=None) for item in items}
    if TABLE in tree.names:
        entries = _table(tree, entries)
    if patient is None:
        return entries
    if any(stem_of(entry.patient) != stem_of(stem) for stem, entry in entries.items()):
        raise ConfigError(f"--patient: {tree.path} names patients already, in {TABLE}; leave one of them out")
    names = patients_by_pattern(entries, pattern=patient, where=str(tree.path))
    return {stem: entry._replace(patient=names[stem]) for stem, entry in entries.items()}


def _table(tree: FileTree, items: Mapping[str, Entry]) -> dict[str, Entry]:
    table = read_table(tree.read(TABLE, max_bytes=MAX_TABLE_BYTES), name=tree.where(TABLE))
    named = {file.removesuffix(ending(file)): entry for file, entry in table.items()}
    if named.keys() != items.keys():  # of volumes, UIDs are replaced
        named = {without_uids(file): entry for file, entry in named.items()}
    if named.keys() != items.keys() or len(named) != len(table):
        odd = sorted(named.keys() ^ items.keys()) or "some twice"
        raise DataError(f"{tree.where(TABLE)}: must name every image exactly once; see {odd}")
    return named


def _depth(tree: FileTree, name: str) -> int | None:
    """Number of slices of a volume; None for an image."""
    if ending(name) not in NIFTI_ENDINGS:
        return None
    return nifti_depth(tree.head(name, NIFTI_HEAD_BYTES), packed=tree.size(name), name=tree.where(name))


def _read(tree: FileTree, name: str, *, size: ImageSize | None = None) -> tuple[np.ndarray, np.ndarray | None]:
    """A file as slices (z, h, w) or (z, h, w, c), and a volume's affine; label maps have a required `size`."""
    where = tree.where(name)
    if ending(name) in NIFTI_ENDINGS:
        return decode_nifti(tree.read(name), name=where, size=size)
    return decode_image(tree.read(name), name=where, labels=size is not None, size=size)[None], None


def _load_images(
    tree: FileTree, item: Item, window: tuple[float, float] | None, *, volumes: bool
) -> tuple[np.ndarray, Any]:
    """The images of a file as (z, c, h, w), uint8, uint16 or float32 in [0, 1], and a volume's affine or None."""
    name = item.image
    if volumes:
        values, affine, by_range = read_volume(tree, item)
    else:
        values, affine = _read(tree, name)
        by_range = affine is not None
    if window is not None and loses_negatives(values, window):
        words = f"window: values from {window[0]:g} to {window[1]:g} become 0 to 1, but stored ones go from -1 to 1"
        raise DataError(f"{tree.where(name)}: {words}; use window=[-1,1]")
    return to_planes(values, by_range=by_range, window=window, name=tree.where(name)), affine
