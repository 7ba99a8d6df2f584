"""Push a finished checkpoint to the Hub: after a push that failed, or one that was never asked for.

    python -m mirror.push out/mirror
    python -m mirror.push out/mirror --hub_model_id me/my-encoder --hub_private_repo

The token is HF_TOKEN's, or what `hf auth login` stored. Without --hub_model_id the repository is the run's, or is named
like the folder. The address of the commit is printed on stdout.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from mirror.errors import InputError, run_main
from mirror.flags import Parser


NEEDED = ("config.json", "modules.json", "README.md")


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("folder", metavar="OUT", help="the --output_dir of a finished run")
    parser.add_argument("--hub_model_id", metavar="ID", help="user/name, or a name alone for your own")
    parser.add_argument("--hub_private_repo", action="store_true", help="nobody else may see it (default: as the run)")
    args = parser.parse_args()
    folder = Path(args.folder)
    if absent := [name for name in NEEDED if not (folder / name).exists()]:
        raise InputError(f"{folder}: no {absent[0]}; give the --output_dir of a finished run")
    settings = settings_of_run(folder)
    repo_id = args.hub_model_id or settings.get("hub_model_id") or folder.absolute().name
    private = args.hub_private_repo or settings.get("hub_private_repo")

    from mirror.hub import PushError, check_repo_id, push_folder  # late, so that --help answers at once

    check_repo_id(repo_id)
    try:
        sys.stdout.write(push_folder(folder, repo_id, private, revision=settings.get("hub_revision")) + "\n")
    except PushError as error:
        raise InputError(f"pushing {folder} to {repo_id} failed: {error}; the folder is as it was") from error


def settings_of_run(folder: Path) -> dict:
    """The settings that a run left in its folder, none if it left none."""
    path = folder / "train_results.json"
    return json.loads(path.read_text(encoding="utf-8"))["settings"] if path.exists() else {}


if __name__ == "__main__":
    run_main(main)
