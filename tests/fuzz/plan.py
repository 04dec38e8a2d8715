"""Which case is which: a number gives a format, a set, a mutation and its seed, always the same ones.

The first `NUM_CASES` numbers have the seed `SEED`, the next ones `SEED` + 1, and so on.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

import corpus
import corpus_samples as samples
import corpus_volumes as volumes
from corpus import Corpus
from mutate import Change, Mutation
from mutate_lidc import dicom_mutations, scan_mutations, xml_mutations
from mutate_others import csv_mutations, hdf5_mutations, json_mutations, nifti_mutations, tar_mutations
from mutate_pictures import gif_mutations, jpeg_mutations, odd_name, png_mutations, same_name_twice, tiff_mutations
from mutate_samples import pickle_mutations, samples_mutations
from mutate_volumes import series_mutations, volume_mutations

SEED = 2019
Sets = list[tuple[Callable[[], Corpus], list[Mutation]]]


class Format(NamedTuple):
    name: str
    num_cases: int
    sets: Sets


FORMATS = (
    Format(
        "PNG",
        500,
        [
            (corpus.lidc, [*png_mutations("gt/"), odd_name]),
            (corpus.cityscapes, png_mutations("gtFine")),
            (corpus.folder_png, [*png_mutations("graders"), same_name_twice, odd_name]),
            (corpus.folder_png16, [m for m in png_mutations("instances") if "unknown_label" not in m.__name__]),
        ],
    ),
    Format(
        "TIFF",
        500,
        [
            (corpus.folder_tiff, tiff_mutations("graders")),
            (corpus.folder_tiff_tiles, tiff_mutations("graders")),
            (corpus.stack_packed, tiff_mutations("train-labels")),
            (corpus.stack_plain, tiff_mutations("train-labels")),
        ],
    ),
    Format("XML", 450, [(corpus.study, xml_mutations())]),
    Format(
        "DICOM",
        500,
        [
            (corpus.study, dicom_mutations()),
            (corpus.scan_files, scan_mutations(ending=".dcm")),
            (corpus.scan_series, scan_mutations(ending=".dcm")),
        ],
    ),
    Format("JSON", 100, [(corpus.polygons, json_mutations())]),
    Format(
        "tar",
        100,
        [
            (corpus.lidc_tar, tar_mutations(".gz")),
            (corpus.folder_tar, tar_mutations(".tar")),
            (corpus.folder_tar_xz, tar_mutations(".xz")),
        ],
    ),
    Format("HDF5", 100, [(corpus.stack_hdf5, hdf5_mutations())]),
    Format("NIfTI", 100, [(corpus.folder_nifti, nifti_mutations()), (corpus.folder_raters, nifti_mutations())]),
    Format("JPEG", 50, [(corpus.folder_jpeg, jpeg_mutations())]),
    Format("GIF", 50, [(corpus.folder_gif, gif_mutations("graders"))]),
    Format("CSV", 50, [(corpus.folder_table, csv_mutations())]),
    Format(
        "pickle",
        150,
        [(make, pickle_mutations()) for make in (samples.pickled, samples.pickled_2, samples.pickled_5)],
    ),
    Format(
        "samples",
        150,
        [
            (samples.samples_npz, samples_mutations(".npz")),
            (samples.samples_npy, samples_mutations(".npy")),
            (samples.samples_nifti, samples_mutations(".nii.gz")),
            (samples.samples_png, samples_mutations(".png")),
            (samples.volumes_npz, samples_mutations(".npz")),
            (samples.volumes_nifti, samples_mutations(".nii.gz")),
        ],
    ),
    Format(
        "NIfTI3D",
        150,
        [
            (volumes.volumes_nifti, volume_mutations()),
            (volumes.volumes_cases, volume_mutations()),
            (volumes.volumes_raters, volume_mutations()),
        ],
    ),
    Format(
        "DICOM3D",
        150,
        [(volumes.volumes_series, series_mutations()), (volumes.volumes_study, dicom_mutations())],
    ),
    Format(
        "stack3D",
        50,
        [
            (volumes.volumes_tiff, tiff_mutations("masks")),
            (volumes.volumes_stack, tiff_mutations("train-labels")),
            (volumes.volumes_hdf5, hdf5_mutations()),
        ],
    ),
)
NUM_CASES = sum(entry.num_cases for entry in FORMATS)


class Case(NamedTuple):
    number: int
    format: str
    corpus: Callable[[], Corpus]
    mutation: Mutation

    def change(self) -> Change:
        turn, place = divmod(self.number, NUM_CASES)
        return self.mutation(dict(self.corpus().files), Random(f"{SEED + turn}/{place}"))

    def __str__(self) -> str:
        return f"{self.format} {self.corpus.__name__}: {self.mutation.__name__}"


def case(number: int) -> Case:
    """Every tenth case together go through as many sets and mutations as they can."""
    place = number % NUM_CASES
    for entry in FORMATS:
        if place < entry.num_cases:
            turn = place // 10 + place % 10 * (entry.num_cases // 10)
            make, mutations = entry.sets[turn % len(entry.sets)]
            shift = 7 * (turn % len(entry.sets))
            return Case(number, entry.name, make, mutations[(turn // len(entry.sets) + shift) % len(mutations)])
        place -= entry.num_cases
    raise AssertionError


def numbers(seeds: Sequence[int], *, num_cases: int | None = None, formats: Sequence[str] | None = None) -> list[int]:
    """The cases of these seeds and formats; of fewer than all, as many of each seed and kind as can be."""
    every = [(seed - SEED) * NUM_CASES + place for seed in seeds for place in range(NUM_CASES)]
    every = [number for number in every if formats is None or case(number).format in formats]
    wanted = len(every) if num_cases is None else min(num_cases, len(every))
    return [every[turn * len(every) // wanted] for turn in range(wanted)]
