"""What reading a file may cost: the one place that decides; every reader of files from outside asks it.

A few bytes can claim to be gigabytes, or to need minutes. Two kinds of limits hold at once: those below, by the kind
of file, and `allowed`, by the size of the file at hand.
"""

from typing import NamedTuple

MAX_FILE_BYTES = 2**30
"""Of a file that is read as a whole, if its kind has no limit of its own."""
MAX_TABLE_BYTES = 2**23  # data.csv
MAX_SETTINGS_BYTES = 2**20  # a TOML file
MAX_XML_BYTES = 2**23  # the annotations of a LIDC study
MAX_POLYGON_BYTES = 2**22  # of Cityscapes; the official files have less than 1 MiB
MAX_DICOM_BYTES = 2**26  # a slice of a LIDC study
MAX_ARCHIVE_BYTES = 2**32  # unpacked: it is held in memory
MAX_VOLUME_BYTES = 2**32  # unpacked
MAX_INDEX_BYTES, MAX_VARIABLE_BYTES = 2**26, 2**32  # of TensorFlow checkpoints

MAX_PIXELS = 2**26  # of an image
MAX_SIDE = 4096  # of a slice of a LIDC study
MAX_SLICES = 2**15  # of a volume or series
MAX_PARTS = 2**16  # chunks, directories, strips or frames: what a file is made of
MAX_DEPTH = 16  # of parts within parts

MAX_EXPANSION = 100  # unpacked size / size on disk; images and scans hardly reach a tenth of it
_ALWAYS_UNPACKED = 2**25  # bytes that any file may unpack to


class Cost(NamedTuple):
    """What reading one file may take."""

    unpacked: int
    """Bytes of content after unpacking."""
    memory: int
    """Bytes at the peak, beyond what the process had before, for all copies of the content together."""
    seconds: float
    """Of processor time, which does not grow when other processes use the cores."""


def allowed(packed: int) -> Cost:
    """What a file of `packed` bytes may cost; up to 1 MB that is at most 2 s and 512 MB."""
    return Cost(
        unpacked=max(_ALWAYS_UNPACKED, MAX_EXPANSION * packed),
        memory=2**28 + 2 * MAX_EXPANSION * packed,
        seconds=1 + packed / 1e6,
    )
