"""Changes to JSON, CSV, tar, HDF5 and NIfTI files."""

import gzip
import io
import json
import struct
import tarfile
from collections.abc import Callable
from random import Random

import h5py
import numpy as np
from corpus import Files, hdf5
from mutate import Change, ContentMutation, Mutation, content, copy_over, of_bytes, swap_files


def odd_json(data: bytes, rng: Random) -> bytes:
    """A tree that is JSON, but no annotation."""
    tree = json.loads(data)
    thing = rng.choice(tree["objects"])
    name, value = rng.choice(
        (
            ("polygon", [[0, 0], [float("nan"), 1]]),
            ("polygon", [[0, 0], [float("inf"), 1]]),
            ("polygon", [[0, 0], [10**400, 1]]),
            ("polygon", [[0, 0], [1e9, 1]]),
            ("polygon", [[0, 0], [True, 1]]),
            ("polygon", [[0, 0], [1]]),
            ("polygon", [[1, 1]]),
            ("polygon", {}),
            ("polygon", None),
            ("label", "spaceship"),
            ("label", ["car"]),
            ("label", "group"),
        )
    )
    thing[name] = value
    return json.dumps(tree).encode()


def odd_size(data: bytes, rng: Random) -> bytes:
    name = rng.choice(("imgHeight", "imgWidth"))
    value = rng.choice((0, -1, 10**9, 15, 16.5, "16", None, True, [16]))
    return json.dumps(json.loads(data) | {name: value}).encode()


def odd_tree(data: bytes, rng: Random) -> bytes:
    deep = b"[" * 10**5
    return rng.choice(
        (b"[]", b"null", b"3", deep, b'{"objects":' + deep, b'{"objects":[]}', b"[[]]" + b" " * 2**22, b"9" * 10**4)
    )


def very_many_vertices(data: bytes, rng: Random) -> bytes:
    """Readable, or too large; it must only be quick."""
    tree = json.loads(data)
    count = rng.choice((10**3, 10**5))
    tree["objects"][1]["polygon"] = [[rng.randrange(32), rng.randrange(16)] for _ in range(count)]
    return json.dumps(tree).encode()


def very_many_objects(data: bytes, rng: Random) -> bytes:
    tree = json.loads(data)
    tree["objects"] += [{"label": "car", "polygon": [[-30000, -30000], [30000, -30000], [30000, 30000]]}] * 10**4
    return json.dumps(tree).encode()


def odd_table(data: bytes, rng: Random) -> bytes:
    """A table that cannot be right."""
    lines = data.decode().splitlines()
    choices: tuple[list[str], ...] = (
        lines[:-1],
        [*lines, lines[1]],
        [*lines, "case9.png,p,val"],
        [lines[0].replace("file", "image"), *lines[1:]],
        [lines[0] + ",split", *lines[1:]],
        [*lines[:2], lines[2].replace("val", "train"), *lines[3:]],
        [*lines[:2], lines[2].replace("val", "valid"), *lines[3:]],
        [*lines[:2], lines[2] + ",x", *lines[3:]],
        [*lines[:2], lines[2].replace("p0", " "), *lines[3:]],
        [*lines[:2], '"' + lines[2], *lines[3:]],
        [*lines, "x" * 200000 + ",p,val"],
        [*lines, *(f"c{i}.png,p,val" for i in range(10**5))],
        lines[1:],
    )
    return "\n".join(rng.choice(choices)).encode()


def other_text(data: bytes, rng: Random) -> bytes:
    text = data.decode()
    return rng.choice(
        (
            b"\xef\xbb\xbf" + data,
            data.replace(b"\n", b"\r\n"),
            data.replace(b"\n", b"\r"),
            data.replace(b"\n", b"\n\n"),
            text.encode("utf-16"),
            data.replace(b"p0", b"\xff"),
            data + b"\0",
        )
    )


def _repacked(name: str, data: bytes, change: Callable[[bytes], bytes]) -> bytes:
    return gzip.compress(change(gzip.decompress(data)), mtime=0) if name.endswith(".gz") else change(data)


def inside(change: ContentMutation, ending: str, *, refused: bool = False) -> Mutation:
    """A change below the compression, whose checksum is right again."""

    def mutation(files: Files, rng: Random) -> Change:
        name = rng.choice([name for name in sorted(files) if name.endswith(ending)])
        return Change(files | {name: _repacked(name, files[name], lambda data: change(data, rng))}, (name,), refused)

    mutation.__name__ = f"{change.__name__} inside"
    return mutation


def with_member(data: bytes, rng: Random) -> bytes:
    """An archive with one more member, of a kind or name that is not taken, or there already."""
    members = _members(data)
    kinds = [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE]
    kinds += [tarfile.FIFOTYPE, tarfile.GNUTYPE_SPARSE]
    known = members[0][0].name
    bad = tarfile.TarInfo(known.rsplit("/", 1)[0] + "/zzz.png")
    if rng.random() < 0.5:
        bad.type, bad.linkname = rng.choice(kinds), rng.choice(("/etc/hostname", "../../x", known))
    else:
        bad.name = rng.choice(("../x.png", "/x.png", "val/../../x.png", "..\\x.png", known))
    members.insert(rng.randrange(len(members)), (bad, b""))
    return _archive(members)


def _members(data: bytes) -> list[tuple[tarfile.TarInfo, bytes]]:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return [(member, archive.extractfile(member).read()) for member in archive]  # type: ignore[union-attr]


def _archive(members: list[tuple[tarfile.TarInfo, bytes]], kind: int = tarfile.GNU_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=kind) as archive:
        for member, data in members:
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def bad_header(data: bytes, rng: Random) -> bytes:
    """A later header is damaged, zeroed or gone: tarfile by itself would take it for the end."""
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        start = rng.choice(archive.getmembers()[1:]).offset
    place = start + rng.randrange(100)
    return rng.choice(
        (
            data[:start],
            data[: start + 100],
            data[:start] + bytes(512) + data[start + 512 :],
            data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :],
        )
    )


def huge_member(data: bytes, rng: Random) -> bytes:
    """A member, or an extended header, that claims gigabytes."""
    member = tarfile.TarInfo("val/images/P9/z-0_c0.png")
    member.size = rng.choice((2**33, 2**31, 2**62))
    member.type = rng.choice((tarfile.REGTYPE, tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME))
    return member.tobuf(tarfile.GNU_FORMAT) + data


def gzip_bomb(data: bytes, rng: Random) -> bytes:
    """A member of 2 GiB of zeros that are all there, packed."""
    member = tarfile.TarInfo("val/images/P9/z-0_c0.png")
    member.size = 2**31
    return gzip.compress(member.tobuf()) + gzip.compress(bytes(2**24)) * 128 + gzip.compress(bytes(1024))


def odd_dataset(data: bytes, rng: Random) -> bytes:
    """HDF5 files that hold no whole stack, or one of another shape or type."""
    with h5py.File(io.BytesIO(data)) as file:
        values = file["volumes/data"][:]
    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        choice = rng.randrange(9)
        if choice == 0:
            file.create_dataset("a", values.shape, values.dtype, chunks=(1, 8, 8))[:3] = values[:3]
        elif choice == 1:
            file.create_dataset("a", (2**20, 2**20, 2**20), values.dtype, chunks=(64, 64, 64))
        elif choice == 2:
            file.create_dataset("a", (100, 8192, 8192), values.dtype, chunks=(1, 4096, 4096), compression="gzip")
        elif choice == 3:
            file["a"], file["b"] = values, values
        elif choice == 4:
            file["a"] = h5py.SoftLink("/a")
        elif choice == 5:
            file["a"] = h5py.ExternalLink("train-labels.h5", "volumes/data")
        elif choice == 6:
            file["a"] = values.astype(rng.choice((np.float64, np.complex64)))
        elif choice == 7:
            file["a"] = values[..., :-1]
        else:
            file.create_dataset("a", data=values, maxshape=(None,) * 3, chunks=(64, 1024, 1024), compression="gzip")
    return buffer.getvalue()


def hdf5_bomb(data: bytes, rng: Random) -> bytes:
    return hdf5(np.zeros((64, 1024, 1024), np.uint8), compression="gzip", chunks=(1, 1024, 1024))


def odd_nifti(data: bytes, rng: Random) -> bytes:
    """Fields of the header: sizes, type, offset, scaling."""
    place, packed = rng.choice(
        (
            (40, struct.pack("<h", rng.choice((0, 1, 2, 8, -3, 32767)))),
            (40 + 2 * rng.randrange(1, 4), struct.pack("<h", rng.choice((0, -1, 1, 32767, 30000)))),
            (48, struct.pack("<h", rng.choice((0, -1, 2, 32767)))),
            (70, struct.pack("<h", rng.choice((0, 1, 32, 128, 1024, 1536, 1792, 2304, -1)))),
            (108, struct.pack("<f", rng.choice((0.0, -1.0, 1e30, float("nan"), float("inf"), 100.0, 4e9)))),
            (112, struct.pack("<f", rng.choice((float("nan"), float("inf"), 1e38, -1e38, 0.0)))),
            (116, struct.pack("<f", rng.choice((float("nan"), float("inf"), 1e38, -0.5)))),
            (252, struct.pack("<hh", rng.choice((-1, 99)), rng.choice((-1, 99)))),
            (280, struct.pack("<f", rng.choice((float("nan"), float("inf"), 1e30)))),
            (344, rng.choice((b"ni1\0", b"abcd", bytes(4)))),
            (0, struct.pack("<i", rng.choice((540, 0, -1, 2**30)))),
        )
    )
    return data[:place] + packed + data[place + len(packed) :]


def nifti_bomb(data: bytes, rng: Random) -> bytes:
    """A volume of a gigabyte of zeros that are all there, packed."""
    head = data[:40] + struct.pack("<hhhh", 3, 1024, 1024, 512) + data[48:352]
    return gzip.compress(head) + gzip.compress(bytes(2**24)) * 64


def fractions(data: bytes, rng: Random) -> bytes:
    """Labels scaled by the header to what is no label."""
    return data[:112] + struct.pack("<ff", rng.choice((0.5, 7.0, -1.0)), 0.0) + data[120:]


def json_mutations() -> list[Mutation]:
    changes = [content(change, ending=".json", refused=True) for change in (odd_json, odd_size, odd_tree)]
    changes += [content(change, ending=".json") for change in (very_many_vertices, very_many_objects)]
    return [*of_bytes(".json"), *changes, swap_files, copy_over]


def csv_mutations() -> list[Mutation]:
    return [*of_bytes(".csv"), content(odd_table, ending=".csv", refused=True), content(other_text, ending=".csv")]


def tar_mutations(ending: str) -> list[Mutation]:
    if ending == ".xz":
        return of_bytes(ending)
    sure = (with_member, with_member, bad_header, huge_member)
    return [
        *of_bytes(ending),
        *(inside(change, ending, refused=True) for change in sure),
        *([content(gzip_bomb, ending=ending, refused=True)] if ending == ".gz" else []),
    ]


def hdf5_mutations() -> list[Mutation]:
    changes = [content(change, ending=".h5", refused=True) for change in (odd_dataset, hdf5_bomb)]
    return [*of_bytes(".h5"), *of_bytes(".h5"), *changes, swap_files]


def nifti_mutations() -> list[Mutation]:
    return [
        *of_bytes(".nii"),
        *of_bytes(".nii.gz"),
        inside(odd_nifti, ".nii"),
        inside(odd_nifti, ".nii.gz"),
        inside(fractions, ".nii.gz", refused=True),
        content(nifti_bomb, ending=".nii", refused=True),
        content(nifti_bomb_packed, ending=".nii.gz", refused=True),
        swap_files,
        copy_over,
    ]


def nifti_bomb_packed(data: bytes, rng: Random) -> bytes:
    return nifti_bomb(gzip.decompress(data), rng)
