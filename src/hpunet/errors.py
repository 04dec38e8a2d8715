"""The errors this package raises on purpose.

Each message names the file, setting or tensor that is wrong, what was expected, and what to do. The command
line prints them as one line without a traceback; everything else that escapes is a bug of ours.
"""


class HPUNetError(Exception):
    """Base of all errors that hpunet raises on purpose."""


class ConfigError(HPUNetError, ValueError):
    """A setting is unknown, has the wrong type, or does not go together with another one."""


class DataError(HPUNetError, ValueError):
    """A file or tensor does not hold what it should."""


class CheckpointError(HPUNetError):
    """A saved file (weights, training state, results) is missing, damaged or unwritable, or of another model."""


class DivergenceError(HPUNetError, ArithmeticError):
    """A network computes values that are not finite: in training too often to go on, or when it is used."""
