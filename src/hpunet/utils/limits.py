"""What reading a file may cost: the one place that decides; every reader of files from outside asks it.

A few bytes can claim to be gigabytes, or to need minutes. Two kinds of limits hold at once: those below, by the kind
of file, and `allowed`, by the size of the file at hand.
"""

import time
from typing import NamedTuple

from hpunet.errors import DataError

MAX_FILE_BYTES = 2**30
"""Of a file that is read as a whole, if its kind has no limit of its own."""
MAX_TABLE_BYTES = 2**23  # data.csv
MAX_PICKLE_BYTES = 2**32  # of LIDC crops; the usual file has a third of it
MAX_SETTINGS_BYTES = 2**16  # as TOML; those of a run have a tenth of it
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
MAX_DRAWN = 2**26  # pixels of the boxes of all outlines or polygons of one file; those of a LIDC scan reach a tenth
MAX_KEY_BYTES = 2**12  # of a name in a file, as of a member of an archive or a variable
MAX_SCANS = 64  # of a JPEG; encoders make up to about 20
MAX_UNLIKE = 2**10  # images of a TIFF that are not all of one kind
MAX_TILES, MAX_LAYERS = 2**12, 2**6  # of a JPEG 2000

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


class Deadline:
    """The processor time that this thread may take for a file of `packed` bytes, from now on."""

    def __init__(self, packed: int, *, name: str) -> None:
        self._seconds, self._name = allowed(packed).seconds, name
        self._end = time.thread_time() + self._seconds

    def check(self) -> None:
        """Raise a `DataError` once the time is over; for loops whose number of turns is up to the file."""
        if time.thread_time() > self._end:
            raise DataError(f"{self._name}: takes more than {self._seconds:.0f} s to read; damaged or malicious")
