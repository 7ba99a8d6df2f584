"""Build the evaluation folder that run_eval.py reads, from the Hub or from the authors' own files.

    python data_scripts/prepare_eval_data.py --tasks sts stsb_dev qnli tatoeba --output_dir data
    python data_scripts/prepare_eval_data.py --tasks word --word_similarity_dir eval-word-vectors/data/word-sim --output_dir data

A file is written aside, read back as run_eval.py will read it (columns, number of rows, range of the scores), compared
with its checksum where one is known, and only then given its name: a file that is there is whole. MANIFEST.tsv records
where each is from. Files that are there already are checked and kept. A folder that is named wins over the Hub.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import logging
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path


sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from data_scripts.eval_data_sources import FOLDERS, Table, hub_source, local_source
from mirror.errors import InputError, run_main
from mirror.evaluation.bli import ROWS as BLI_ROWS
from mirror.evaluation.catalogue import all_tasks, resolve
from mirror.evaluation.sts import SICK_FULL
from mirror.evaluation.task import DataFile, Task
from mirror.files import written_aside


logger = logging.getLogger("prepare_eval_data")

CHECKSUMS = Path(__file__).with_name("eval_data_checksums.tsv")
MANIFEST_COLUMNS = ("path", "rows", "source", "sha256")
# BioSyn's and COMETA's folders are read as they are (mirror/evaluation/linking.py), so they are copied whole.
WHOLE_FOLDERS = {
    "bel_ncbi": "ncbi-disease",
    "bel_bc5cdr_disease": "bc5cdr-disease",
    "bel_bc5cdr_chemical": "bc5cdr-chemical",
    "bel_askapatient": "askapatient",
    "bel_cometa": "cometa",
}


def main() -> None:
    args = parse_arguments()
    logging.basicConfig(format="%(message)s", level=logging.INFO)
    output_dir = Path(args.output_dir)
    for task in resolve(args.tasks, all_tasks(output_dir)):
        if task.name in WHOLE_FOLDERS:
            copy_folder(WHOLE_FOLDERS[task.name], args.biosyn_dir, output_dir)
        elif not task.files:
            logger.info("%s needs no data", task.name)
        else:
            for file in files_of(task, args):
                install(file, args, output_dir)


def files_of(task: Task, args: argparse.Namespace) -> Iterator[DataFile]:
    """The files that a task can use: of BLI both training dictionaries, of the whole of SICK the form that there is."""
    if task.name == "sickr_full" and not args.senteval_dir:
        yield SICK_FULL
    elif task.name.startswith("bli_"):
        pair = task.name.removeprefix("bli_").replace("_", "-")
        yield from (DataFile(f"bli/{pair}.{part}.tsv", ("source", "target"), rows) for part, rows in BLI_ROWS.items())
    else:
        yield from task.files


def install(file: DataFile, args: argparse.Namespace, output_dir: Path) -> None:
    """Put one file into the folder, unless it is there and sound.

    Raises:
        InputError: no source for it was named, the source is damaged, or what came of it is not what was expected.
    """
    manifest = read_manifest(output_dir)
    if (output_dir / file.path).is_file():
        file.read(output_dir)
        if file.path in manifest and manifest[file.path]["sha256"] != sha256(output_dir / file.path):
            raise InputError(f"{output_dir / file.path} has changed since it was built; delete it to build it again")
        logger.info("%s is there", file.path)
        return
    (header, rows), source = read_source(file.path, args)
    aside = output_dir / ".partial"
    write_table(aside / file.path, header, rows)
    file.read(aside)  # raises if it is not what run_eval.py expects
    check_known(file.path, aside / file.path)
    (output_dir / file.path).parent.mkdir(parents=True, exist_ok=True)
    (aside / file.path).replace(output_dir / file.path)
    shutil.rmtree(aside)
    record = {"path": file.path, "rows": len(rows), "source": source, "sha256": sha256(output_dir / file.path)}
    write_manifest(output_dir, manifest | {file.path: record})
    logger.info("%s: %s rows from %s", file.path, f"{len(rows):,}", source)


def read_source(path: str, args: argparse.Namespace) -> tuple[Table, str]:
    """Header and rows for a file of the folder, and where they are from."""
    local, hub = local_source(path), hub_source(path)
    folder = getattr(args, local.folder) if local else None
    if folder:
        return local.read(Path(folder)), f"--{local.folder}"
    if hub:
        mirror = Path(args.hub_mirror) if args.hub_mirror else None
        return hub.read(mirror), f"{hub.dataset}@{hub.revision}"
    if local:
        raise InputError(f"{path} is not on the Hub; give --{local.folder}: {FOLDERS[local.folder]}")
    raise InputError(f"{path} can be had from its owners only; docs/evaluation.md says from whom and in which form")


def copy_folder(name: str, biosyn_dir: str | None, output_dir: Path) -> None:
    """A data set of BioSyn's or COMETA's form, copied aside and renamed; `run_eval.py` checks its files."""
    target = output_dir / "biomed" / name
    if target.is_dir():
        logger.info("%s is there", target)
        return
    if not biosyn_dir:
        raise InputError(f"biomed/{name} is not on the Hub; give --biosyn_dir: {FOLDERS['biosyn_dir']}")
    source = Path(biosyn_dir) / name
    if not source.is_dir():
        raise InputError(f"{source} is missing; --biosyn_dir holds {', '.join(WHOLE_FOLDERS.values())}")
    aside = target.with_name(f".{name}.partial")
    shutil.rmtree(aside, ignore_errors=True)
    shutil.copytree(source, aside)
    aside.replace(target)
    logger.info("biomed/%s from %s", name, source)


def write_table(path: Path, header: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join("\t".join(row) + "\n" for row in (header, *rows)), encoding="utf-8")


def check_known(path: str, built: Path) -> None:
    """Compare with the checksum of a build that was looked at, where there is one."""
    with CHECKSUMS.open(encoding="utf-8", newline="") as lines:
        known = {row["path"]: row["sha256"] for row in csv.DictReader(lines, delimiter="\t")}
    if path in known and known[path] != sha256(built):
        raise InputError(f"{path} came out other than known (sha256 {sha256(built)[:12]}, expected {known[path][:12]}); "
                         "is the source complete and the version that --help names?")  # fmt: skip


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def read_manifest(output_dir: Path) -> dict[str, dict]:
    path = output_dir / "MANIFEST.tsv"
    if not path.is_file():
        return {}
    with path.open(encoding="utf-8", newline="") as lines:
        return {row["path"]: row for row in csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)}


def write_manifest(output_dir: Path, records: dict[str, dict]) -> None:
    header = list(dict.fromkeys([*MANIFEST_COLUMNS, *(key for record in records.values() for key in record)]))
    rows = [tuple(str(records[path].get(column, "")) for column in header) for path in sorted(records)]
    with written_aside(output_dir / "MANIFEST.tsv") as aside:
        write_table(aside, tuple(header), rows)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", required=True, help="as in run_eval.py, whose --list_tasks prints them")
    parser.add_argument("--output_dir", required=True, help="the evaluation folder, run_eval.py's --data_dir")
    parser.add_argument("--hub_mirror", help="a folder with copies of Hub datasets, as owner/name, instead of the Hub")
    for flag, meaning in FOLDERS.items():
        parser.add_argument(f"--{flag}", metavar="D", help=meaning)
    return parser.parse_args()


if __name__ == "__main__":
    run_main(main)
