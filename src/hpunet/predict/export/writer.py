"""The one door of results to disk: `export` writes a folder in any formats, whole or not at all."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Shaped

from hpunet.data.io.volumes import encode_nifti
from hpunet.predict.export.collector import Collector, sample_name
from hpunet.predict.export.registry import FORMATS, NIFTI, PNG, check_formats, usual_formats
from hpunet.predict.output_folder import result_folder, slice_folder
from hpunet.predict.prediction import Prediction
from hpunet.predict.samples import save_guarantee, save_pictures, save_record, volume_maps
from hpunet.utils.files import write_synced


def export(
    results: Prediction | Iterable[Prediction],
    target: Path,
    *,
    formats: Sequence[str] | None = None,
    colour: str | None = None,
    representatives: int | None = None,
    guarantee: float | None = None,
    replace: bool = False,
) -> None:
    """Write a prediction, or its slices one at a time in memory, into the folder `target`.

    `formats` are names of `registry.FORMATS`; by default PNG, and NIfTI of volumes. With a number of
    `representatives`, also so many samples that stand for all; with `guarantee`, what holds with this probability.
    """
    parts = results.parts if isinstance(results, Prediction) else results
    with result_folder(target, replace=replace) as folder:
        writer = Writer(folder, formats)
        for part in parts:
            place = writer.begin(part, has_regions=not part.info.has_instances)
            if PNG in writer.formats:
                save_pictures(part, place, colour=colour)
            save_record(part, place, representatives=representatives)
            masks = {} if guarantee is None else save_guarantee(part, place, level=guarantee)
            samples = {sample_name(number): labels for number, labels in enumerate(part.samples)}
            writer.add(part, {**samples, **volume_maps(part), **masks, "mean": part.mean, "std": part.std})
        writer.finish()


class Writer:
    """Writes the formats of whole images and volumes into a folder, after their slices have been added."""

    def __init__(self, folder: Path, formats: Sequence[str] | None) -> None:
        self.folder = folder
        self.formats: Sequence[str] = formats or ()
        self._is_given = formats is not None
        self._collector: Collector | None = None

    def begin(self, part: Prediction, *, has_regions: bool) -> Path:
        """The folder of a slice, or of a volume that was sampled at once; checks the formats."""
        self.formats = self.formats if self._is_given else usual_formats(part.place)
        check_formats(self.formats, place=part.place, has_regions=has_regions, where=part.name or "image")
        place = slice_folder(self.folder, part.place) if part.axes == "yx" else self.folder
        place.mkdir(exist_ok=True)
        return place

    def add(self, part: Prediction, maps: Mapping[str, Shaped[np.ndarray, "*s"]]) -> None:
        """Keep the maps of a slice or volume, if a format needs them."""
        if set(self.formats) - {PNG}:
            self._collector = self._collector or Collector(self.folder, part)
            self._collector.add(part, maps)

    def finish(self) -> None:
        """Write the files of all slices."""
        if self._collector is None:
            return
        encoders = [encode for name in self.formats if (encode := FORMATS[name].encode) is not None]
        if encoders:
            found = self._collector.results()
            for encode in encoders:
                for file, content in encode(found).items():
                    write_synced(self.folder / file, content)
            del found
        if NIFTI in self.formats:
            for name, values in self._collector.whole():
                content = encode_nifti(values, header=self._collector.place.header)
                write_synced(self.folder / f"{name}.nii.gz", content)
        self._collector.close()
