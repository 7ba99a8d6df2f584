"""Hub datasets of the evaluation data, each pinned to a revision."""

from __future__ import annotations

import re
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from datasets import ClassLabel, load_dataset
from datasets.exceptions import DatasetsError
from huggingface_hub import hf_hub_download


sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mirror.common.errors import InputError, one_line


Table = tuple[tuple[str, ...], list[tuple[str, ...]]]  # header and rows
SENTENCES = ("sentence1", "sentence2", "score")


@dataclass(frozen=True)
class HubFile:
    """A split of a Hub dataset, with a mapping to the columns of the evaluation folder."""

    dataset: str
    revision: str
    columns: dict[str, str]  # column in the evaluation folder -> column of the dataset
    config: str | None = None
    split: str = "test"
    label_names: bool = True  # class labels by their names, not by their numbers

    def read(self, mirror: Path | None = None) -> Table:
        """Return the header and rows.

        Args:
            mirror: A folder with copies of Hub datasets as `mirror/owner/name`, for machines without network access.

        Raises:
            InputError: The dataset cannot be loaded, or a column is missing.
        """
        if mirror is None:
            return self._load_columns(self.dataset, load_kwargs={"revision": self.revision})
        with tempfile.TemporaryDirectory() as fresh:  # the default cache confuses two folders of the same name
            return self._load_columns(str(mirror / self.dataset), load_kwargs={"cache_dir": fresh})

    def _load_columns(self, name_or_path: str, load_kwargs: dict) -> Table:
        try:
            data = load_dataset(name_or_path, self.config, split=self.split, **load_kwargs)
        except (OSError, ValueError, RuntimeError, DatasetsError) as error:  # also the network's
            raise InputError(f"cannot load {name_or_path} ({one_line(error, 200)})") from error
        if missing := set(self.columns.values()) - set(data.column_names):
            raise InputError(f"{name_or_path} has no column {missing.pop()!r}; it has {data.column_names}")
        named = [
            name for name, feature in data.features.items() if isinstance(feature, ClassLabel) and self.label_names
        ]
        to_text = {
            column: data.features[column].int2str if column in named else as_field for column in self.columns.values()
        }
        read = [[to_text[column](value) for value in data[column]] for column in self.columns.values()]
        return tuple(self.columns), list(zip(*read, strict=True))


@dataclass(frozen=True)
class HubArchive:
    """The authors' folder of files, as a tar file in a Hub dataset."""

    dataset: str
    revision: str
    name: str
    landmark: str  # a folder directly in the authors' folder, which may be at any depth of the archive

    @contextmanager
    def unpacked(self, mirror: Path | None = None) -> Iterator[Path]:
        """Provide the authors' folder until the end of the block. `mirror` is as in `HubFile.read`.

        Raises:
            InputError: The archive cannot be loaded, or does not contain the folder.
        """
        with tempfile.TemporaryDirectory() as folder:
            try:
                hub = {"repo_type": "dataset", "revision": self.revision}
                path = mirror / self.dataset / self.name if mirror else hf_hub_download(self.dataset, self.name, **hub)
                with tarfile.open(path) as archive:
                    archive.extractall(folder, filter="data")
            except (OSError, ValueError, tarfile.TarError) as error:
                raise InputError(f"cannot load {self.name} of {self.dataset} ({one_line(error, 200)})") from error
            found = next(Path(folder).rglob(self.landmark), None)
            if found is None:
                raise InputError(f"{self.name} of {self.dataset} has no folder {self.landmark}")
            yield found.parent


def hub_source(path: str) -> HubFile | None:
    """Return the Hub dataset for the file `path` of the evaluation folder, if there is one."""
    if path in HUB:
        return HUB[path]
    if match := re.fullmatch(r"tatoeba/([a-z]{3})-eng\.tsv", path):
        return HubFile(
            *("mteb/tatoeba-bitext-mining", "69e8f12da6e31d59addadda9a9c8a2e601a0e282"),
            {"source": "sentence1", "english": "sentence2"},
            f"{match[1]}-eng",
        )
    if match := re.fullmatch(r"pawsx/(dev|test)_([a-z]{2})\.tsv", path):
        split = {"dev": "validation", "test": "test"}[match[1]]
        columns = {name: name for name in ("sentence1", "sentence2", "label")}
        return HubFile(
            "google-research-datasets/paws-x", "8a04d940a42cd40658986fdd8e3da561533a3646", columns, match[2], split
        )
    return None


def _mteb_sts(name: str, revision: str, config: str | None = None, split: str = "test") -> HubFile:
    return HubFile(f"mteb/{name}", revision, {column: column for column in SENTENCES}, config, split)


_STSB, _STS17 = "b0fddb56ed78048fa8b90373c8a3cfc37b684831", "faeb762787bd10488a50c8b5be4a3b82e411949c"
_GLUE = "bcdcba79d07bc864c1c254ccfcedcce55bcc9a8c"
HUB = {
    "sts/sts12.tsv": _mteb_sts("sts12-sts", "a0d554a64d88156834ff5ae9920b964011b16384"),
    "sts/sts13.tsv": _mteb_sts("sts13-sts", "7e90230a92c190f1bf69ae9002b8cea547a64cca"),
    "sts/sts14.tsv": _mteb_sts("sts14-sts", "6031580fec1f6af667f0bd2da0a551cf4f0b2375"),
    "sts/sts15.tsv": _mteb_sts("sts15-sts", "ae752c7c21bf194d8b67fd573edf7ae58183cbe3"),
    "sts/sts16.tsv": _mteb_sts("sts16-sts", "4d8694f8f0e0100860b497b999b3dbed754a0513"),
    "sts/stsb_test.tsv": _mteb_sts("stsbenchmark-sts", _STSB),
    "sts/stsb_dev.tsv": _mteb_sts("stsbenchmark-sts", _STSB, split="validation"),
    "sts/sickr_full.tsv": _mteb_sts("sickr-sts", "20a6d6f312dd54037fe07a32d58e5e168867909d"),
    "sts/sts17_es.tsv": _mteb_sts("sts17-crosslingual-sts", _STS17, "es-es"),
    "sts/sts17_ar.tsv": _mteb_sts("sts17-crosslingual-sts", _STS17, "ar-ar"),
    "sts/sts_ru.tsv": HubFile(
        *("ai-forever/ru-stsbenchmark-sts", "7cf24f325c6da6195df55bef3d86b5e0616f3018"),
        {column: column for column in SENTENCES},
    ),
    "qnli/dev.tsv": HubFile(
        *("nyu-mll/glue", _GLUE, {name: name for name in ("question", "sentence", "label")}, "qnli", "validation")
    ),
    "qqp/qqp.tsv": HubFile(
        *("nyu-mll/glue", _GLUE, {"question1": "question1", "question2": "question2", "label": "label"}),
        *("qqp", "validation"),
        label_names=False,
    ),
}
# Flag of a source folder to the same folder on the Hub: SentEval's files, as the authors of SimCSE keep them.
ARCHIVES = {
    "senteval_dir": HubArchive(
        *("princeton-nlp/datasets-for-simcse", "e145e8bb659b2aa2669f32ef79cb4cdef6c58fef", "senteval.tar"), "SICK"
    )
}


def as_field(value: object) -> str:
    """Return the value as one line without tabs, which separate fields in the evaluation folder."""
    return " ".join(str(value).split())
