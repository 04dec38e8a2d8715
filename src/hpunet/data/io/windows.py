"""Windows: which stored values become 0 and 1, as two numbers or by a word."""

import math

from hpunet.errors import ConfigError, DataError

Window = tuple[float, float] | str
"""(low, high) of stored values, "auto" for the range of each image or slice, "file", or a name of `NAMED`."""
NAMED = {
    "ct-lung": (-1000.0, 400.0),
    "ct-soft": (-160.0, 240.0),
    "ct-bone": (-500.0, 1300.0),
    "ct-brain": (0.0, 80.0),
}
"""Well-known windows of CT, in Hounsfield units."""
UNIT_WINDOW = (0.0, 1.0)
"""Of floats that training takes as they are; it says nothing about whole numbers."""
CHOICES = ", ".join(
    ["LOW HIGH", "auto (the range of each image or slice)", "file (the window of a DICOM file)", *NAMED]
)


def check_window(window: Window | None, *, option: str = "window") -> None:
    """Refuse an unknown word, and numbers that are not low < high."""
    if isinstance(window, str):
        if window not in ("auto", "file", *NAMED):
            raise ConfigError(f"{option}: expected {CHOICES}; got {window!r}")
    elif window is not None and not -math.inf < window[0] < window[1] < math.inf:
        raise ConfigError(f"{option}: expected LOW below HIGH, got {window[0]:g} {window[1]:g}")


def in_numbers(
    window: Window | None, *, of_file: tuple[float, float] | None, bits: int, name: str
) -> tuple[float, float] | str | None:
    """The window in stored values, or "auto", for pixels of so many bits; `of_file` is the window in the file."""
    check_window(window)
    if window == "file" and of_file is None:
        raise DataError(f"{name}: has no window of its own; give LOW HIGH, or auto")
    if window in NAMED and bits == 8:
        raise DataError(
            f"{name}: pixels of 8 bits are no Hounsfield units, as {window} needs; give LOW HIGH, or auto"
        )
    return of_file if window == "file" else NAMED.get(window, window) if isinstance(window, str) else window
