"""Text from outside (names of files, graders, classes) on terminals, in tables and in files that must be UTF-8."""

import codecs
import re
import unicodedata

_PLAIN = {"κ": "kappa", "λ": "lambda", "σ": "sigma", "β": "beta", "×": "x", "±": "+-", "≤": "<=", "≥": ">="}
_PLAIN |= {"→": "->", "↑": "^", "↓": "v", "°": " deg", "–": "-", "—": "-", "−": "-", "·": "-"}
_FORMULA = re.compile(r"'*[=+\-@\t\r]")


def printable(text: str) -> str:
    r"""One line that shows `text` and cannot do anything else: control characters, line ends, marks that turn the
    direction of text and bytes that are no UTF-8 become escapes such as \x1b.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or unicodedata.category(c) == "Zs" else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else ascii(character)[1:-1]


def _replaced(error: UnicodeError) -> tuple[str, int]:
    """Handler of encoding errors: the nearest ASCII."""
    assert isinstance(error, UnicodeEncodeError)
    return "".join(map(_nearest, error.object[error.start : error.end])), error.end


def _nearest(character: str) -> str:
    if character in _PLAIN:
        return _PLAIN[character]
    if unicodedata.category(character) == "Cs":
        return _escaped(character)
    return unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode() or "?"


NEAREST = "hpunet.nearest"
"""An `errors` handler: characters that an encoding lacks become the nearest ASCII, bytes escapes."""
codecs.register_error(NEAREST, _replaced)


UNDECODED = "surrogateescape"
"""How Python holds bytes of file names that are no UTF-8."""


def as_utf8(text: str) -> bytes:
    """UTF-8 in which names of files keep the bytes that they have on the disk, UTF-8 or not."""
    return text.encode("utf-8", UNDECODED)


def from_utf8(content: bytes) -> str:
    """The inverse of `as_utf8`."""
    return content.decode("utf-8", UNDECODED)


def csv_text(text: str) -> str:
    """A text for a CSV file that no spreadsheet takes for a formula: =1 becomes '=1, and '=1 becomes ''=1."""
    return f"'{text}" if _FORMULA.match(text) else text


def from_csv_text(cell: str) -> str:
    """The inverse of `csv_text`."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell
