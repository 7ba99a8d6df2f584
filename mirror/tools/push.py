"""Push a finished checkpoint to the Hub, after a failed push or a run without --push_to_hub.

    python -m mirror.tools.push out/mirror
    python -m mirror.tools.push out/mirror --hub_model_id me/my-encoder --hub_private_repo

The token is read from HF_TOKEN or from `hf auth login`. Without --hub_model_id, the repository is the one of the run,
or has the name of the folder. The address of the repository is printed on stdout.
"""

from __future__ import annotations

import sys
from pathlib import Path

from mirror.common.cli import Parser, configure_logging
from mirror.common.errors import InputError, run_main


def main() -> None:
    parser = Parser(__doc__)
    add = parser.add_argument
    add("folder", metavar="OUT", help="Path to the --output_dir of a finished run.")
    repository = "Repository as user/name, or only a name for your own account (default: that of the run)."
    add("--hub_model_id", metavar="ID", help=repository)
    private = "Whether to create a private repository (default: as set for the run)."
    add("--hub_private_repo", action="store_true", help=private)
    args = parser.parse_args()
    configure_logging()
    folder = Path(args.folder)
    for name in ("config.json", "modules.json", "README.md"):
        if not (folder / name).exists():
            raise InputError(f"{folder}: no {name}; give the --output_dir of a finished run")

    # Imported late so that --help and wrong folders answer without torch.
    from mirror.training.card import name_on_unedited_card, write_card
    from mirror.training.hub import PushError, create_repo, push_folder
    from mirror.training.record import FILE, RunRecord

    is_run = (folder / FILE).exists()
    settings = RunRecord.load(folder).settings if is_run else {}
    repo_id = args.hub_model_id or settings.get("hub_model_id") or folder.absolute().name
    private = args.hub_private_repo or settings.get("hub_private_repo")
    try:
        repo_id = create_repo(repo_id, private, token=None)  # with the account, for the code on the card
        if is_run and name_on_unedited_card(folder):
            write_card(folder, repo_id)
        elif is_run:
            sys.stderr.write(f"{folder}/README.md was edited, so it is pushed unchanged; check the names in it\n")
        commit = push_folder(folder, repo_id, private, commit_message="Encoder", revision=settings.get("hub_revision"))
    except PushError as error:
        raise InputError(f"pushing {folder} to {repo_id} failed: {error}; the folder is unchanged") from error
    sys.stdout.write(f"{commit.repo_url}\n")


if __name__ == "__main__":
    run_main(main)
