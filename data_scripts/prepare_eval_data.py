"""Build the evaluation folder for run_eval.py, from the Hub or from the authors' original files.

    python data_scripts/prepare_eval_data.py --tasks sts stsb_dev qnli tatoeba --output_dir data
    python data_scripts/prepare_eval_data.py --tasks word --word_similarity_dir eval-word-vectors/data/word-sim --output_dir data

Each file is written under a temporary name, checked as in run_eval.py (columns, number of rows, range of the scores),
compared with its checksum if one is known, and then renamed, so every file in the folder is complete. MANIFEST.tsv
records the source of each file. Existing files are checked and kept. A source folder that is given takes precedence
over the Hub.
"""

from __future__ import annotations

import argparse
import csv
import logging
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path


sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from data_scripts.eval_data_hub import ARCHIVES, Table, hub_source
from data_scripts.eval_data_sources import FOLDERS, local_source
from mirror.common.cli import Parser
from mirror.common.errors import InputError, library_errors, run_main
from mirror.common.files import atomic_path, file_digest
from mirror.evaluation.bli import ROWS as BLI_ROWS
from mirror.evaluation.run import all_tasks, resolve
from mirror.evaluation.sts import SICK_FULL
from mirror.evaluation.task import DataFile, Task


logger = logging.getLogger("prepare_eval_data")

CHECKSUMS = Path(__file__).with_name("eval_data_checksums.tsv")
MANIFEST_COLUMNS = ("path", "rows", "source", "sha256")
# The folders of BioSyn and COMETA are read in their original format (mirror/evaluation/linking.py), so they
# are copied without changes.
WHOLE_FOLDERS = {
    "bel_ncbi": "ncbi-disease",
    "bel_bc5cdr_disease": "bc5cdr-disease",
    "bel_bc5cdr_chemical": "bc5cdr-chemical",
    "bel_askapatient": "askapatient",
    "bel_cometa": "cometa",
    "bel_cometa_zero_shot": "cometa",
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
    """Yield the files that a task can use: for BLI both training dictionaries, for full SICK-R the available format."""
    if task.name == "sickr_full" and not args.senteval_dir:
        yield SICK_FULL
    elif task.name.startswith("bli_"):
        pair = task.name.removeprefix("bli_joint_").removeprefix("bli_").replace("_", "-")
        yield from (DataFile(f"bli/{pair}.{part}.tsv", ("source", "target"), rows) for part, rows in BLI_ROWS.items())
    else:
        yield from task.files


def install(file: DataFile, args: argparse.Namespace, output_dir: Path) -> None:
    """Build one file, or check the existing one.

    Raises:
        InputError: No source was given, the source is damaged, or the result is not the expected file.
    """
    manifest = read_manifest(output_dir)
    if (output_dir / file.path).is_file():
        file.read(output_dir)
        if file.path in manifest and manifest[file.path]["sha256"] != file_digest(output_dir / file.path):
            raise InputError(f"{output_dir / file.path} has changed since it was built; delete it to build it again")
        logger.info("Kept %s, which exists", file.path)
        return
    (header, rows), source = read_source(file.path, args)
    temporary = output_dir / ".partial"
    try:
        write_table(temporary / file.path, header, rows)
        file.read(temporary)  # raises if run_eval.py would refuse it
        check_checksum(file.path, temporary / file.path)
        (output_dir / file.path).parent.mkdir(parents=True, exist_ok=True)
        (temporary / file.path).replace(output_dir / file.path)
    except InputError as error:
        raise InputError(f"from {source}: {str(error).replace(f'{temporary}/', '')}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    record = {"path": file.path, "rows": len(rows), "source": source, "sha256": file_digest(output_dir / file.path)}
    write_manifest(output_dir, manifest | {file.path: record})
    logger.info("Saved %s rows from %s to %s", f"{len(rows):,}", source, file.path)


def read_source(path: str, args: argparse.Namespace) -> tuple[Table, str]:
    """Return the header and rows of a file of the evaluation folder, and the name of its source.

    Raises:
        InputError: There is no source, or the flag of its folder is missing.
    """
    local, hub = local_source(path), hub_source(path)
    folder = getattr(args, local.folder) if local else None
    if folder:
        with library_errors(f"--{local.folder} {folder}: the files for {path} are not as expected"):
            return local.read(Path(folder)), f"--{local.folder}"
    mirror = Path(args.hub_mirror) if args.hub_mirror else None
    if hub:
        return hub.read(mirror), f"{hub.dataset}@{hub.revision}"
    if local and (archive := ARCHIVES.get(local.folder)):
        with archive.unpacked(mirror) as root:
            return local.read(root), f"{archive.dataset}@{archive.revision}"
    if local:
        raise InputError(f"{path} is not on the Hub; give --{local.folder}: {FOLDERS[local.folder]}")
    raise InputError(
        f"{path} is only available from its owners; docs/evaluation.md describes the source and the format"
    )


def copy_folder(name: str, biosyn_dir: str | None, output_dir: Path) -> None:
    """Copy a data set in the format of BioSyn or COMETA. `run_eval.py` checks its files.

    Raises:
        InputError: The folder is missing.
    """
    target = output_dir / "biomed" / name
    if target.is_dir():
        logger.info("Kept %s, which exists", target)
        return
    if not biosyn_dir:
        raise InputError(f"biomed/{name} is not on the Hub; give --biosyn_dir: {FOLDERS['biosyn_dir']}")
    source = Path(biosyn_dir) / name
    if not source.is_dir():
        raise InputError(
            f"{source} is missing; --biosyn_dir must contain {', '.join(dict.fromkeys(WHOLE_FOLDERS.values()))}"
        )
    temporary = target.with_name(f".{name}.partial")
    shutil.rmtree(temporary, ignore_errors=True)
    shutil.copytree(source, temporary)
    temporary.replace(target)
    logger.info("Copied %s to biomed/%s", source, name)


def write_table(path: Path, header: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join("\t".join(row) + "\n" for row in (header, *rows)), encoding="utf-8")


def check_checksum(path: str, built: Path) -> None:
    """Compare a built file with its known checksum, if there is one.

    Raises:
        InputError: The checksums differ.
    """
    with CHECKSUMS.open(encoding="utf-8", newline="") as lines:
        known = {row["path"]: row["sha256"] for row in csv.DictReader(lines, delimiter="\t")}
    found = file_digest(built)
    if known.get(path, found) != found:
        raise InputError(
            f"{path} has a wrong checksum (sha256 {found[:12]}, expected {known[path][:12]}); "
            "check that the source is complete and the version described in --help"
        )


def read_manifest(output_dir: Path) -> dict[str, dict]:
    path = output_dir / "MANIFEST.tsv"
    if not path.is_file():
        return {}
    with path.open(encoding="utf-8", newline="") as lines:
        return {row["path"]: row for row in csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)}


def write_manifest(output_dir: Path, records: dict[str, dict]) -> None:
    header = list(dict.fromkeys([*MANIFEST_COLUMNS, *(key for record in records.values() for key in record)]))
    rows = [tuple(str(records[path].get(column, "")) for column in header) for path in sorted(records)]
    with atomic_path(output_dir / "MANIFEST.tsv") as temporary:
        write_table(temporary, tuple(header), rows)


def parse_arguments() -> argparse.Namespace:
    parser = Parser(__doc__)
    parser.add_argument(
        "--tasks",
        nargs="+",
        required=True,
        help="Names of tasks of run_eval.py (run_eval.py --list_tasks prints them)",
    )
    parser.add_argument(
        "--output_dir", required=True, help="Path to the evaluation folder: the --data_dir of run_eval.py"
    )
    parser.add_argument("--hub_mirror", help="Path to copies of Hub datasets as owner/name, to use instead of the Hub")
    for flag, meaning in FOLDERS.items():
        parser.add_argument(f"--{flag}", metavar="D", help=meaning)
    return parser.parse_args()


if __name__ == "__main__":
    run_main(main)
