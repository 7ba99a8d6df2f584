"""Push a finished checkpoint to the Hub, after a failed push or a run without --push_to_hub.

    python -m mirror.tools.push out/mirror
    python -m mirror.tools.push out/mirror --hub_model_id me/my-encoder --hub_private_repo

The token is read from HF_TOKEN or from `hf auth login`. Without --hub_model_id, the repository is the one of the run,
or has the name of the folder. The address of the repository is printed on stdout.
"""

from __future__ import annotations

import sys
from pathlib import Path

from mirror.common.cli import Parser
from mirror.common.errors import InputError, run_main
from mirror.common.logging import configure_logging


REQUIRED_FILES = ("config.json", "modules.json", "README.md")


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("folder", metavar="OUT", help="the --output_dir of a finished run")
    parser.add_argument("--hub_model_id", metavar="ID", help="user/name, or only a name for your own account")
    parser.add_argument(
        "--hub_private_repo", action="store_true", help="create a private repository (default: as set for the run)"
    )
    args = parser.parse_args()
    configure_logging()

    folder = Path(args.folder)
    if absent := [name for name in REQUIRED_FILES if not (folder / name).exists()]:
        raise InputError(f"{folder}: no {absent[0]}; give the --output_dir of a finished run")

    from mirror.training.hub import (
        PushError,
        check_repo_id,
        create_repo,
        push_folder,
    )  # imported late to keep --help fast
    from mirror.training.run_record import FILE, RunRecord

    settings = RunRecord.load(folder).settings if (folder / FILE).exists() else {}
    repo_id = args.hub_model_id or settings.get("hub_model_id") or folder.absolute().name
    private = args.hub_private_repo or settings.get("hub_private_repo")

    check_repo_id(repo_id)
    try:
        repo_id = create_repo(repo_id, private, token=None)  # with the account, for the code on the card
        name_card(folder, repo_id)
        commit = push_folder(folder, repo_id, private, revision=settings.get("hub_revision"))
    except PushError as error:
        raise InputError(f"pushing {folder} to {repo_id} failed: {error}; the folder is unchanged") from error
    sys.stdout.write(f"{commit.repo_url}\n")


def name_card(folder: Path, repo_id: str) -> None:
    """Write the model card for the id that it is pushed to, unless somebody edited it."""
    from mirror.tools.model_card import name_on_unedited_card, write_card
    from mirror.training.run_record import FILE

    if not (folder / FILE).exists():
        return
    if name_on_unedited_card(folder):
        write_card(folder, repo_id)
    else:
        sys.stderr.write(f"{folder}/README.md was edited, so it is pushed as it is; check the names in it\n")


if __name__ == "__main__":
    run_main(main)
