"""Push a finished checkpoint to the Hub, after a failed push or a run without --push_to_hub.

    python -m mirror.tools.push out/mirror
    python -m mirror.tools.push out/mirror --hub_model_id me/my-encoder --hub_private_repo
    python -m mirror.tools.push out/mirror --hub_model_id me/my-encoder --space me/my-demo --texts public_texts.txt

The token is read from HF_TOKEN or from `hf auth login`. Without --hub_model_id, the repository is the one of the run,
or has the name of the folder. --space also pushes the page of mirror-demo, with texts that everyone who sees the Space
can read. The address of each repository is printed on stdout.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import mirror
from mirror.common.cli import Parser, configure_logging
from mirror.common.errors import InputError, run_main


SPACE_TEXTS = 2000
APP = """\
from mirror.tools.demo_app import LAUNCH, build_demo

texts = open("texts.txt", encoding="utf-8").read().splitlines()
build_demo({before!r}, {model!r}, texts).launch(**LAUNCH)
"""


def main() -> None:
    parser = Parser(__doc__)
    add = parser.add_argument
    add("folder", metavar="OUT", help="Path to the --output_dir of a finished run.")
    add("--hub_model_id", metavar="ID", help="Repository: user/name, or a name of your account (default: the run's).")
    add("--hub_private_repo", action="store_true", help="Whether the repository is private (default: as for the run).")
    add("--space", metavar="ID", help="Space for the demo, as user/name or only a name (default: no Space).")
    add("--texts", metavar="F", help=f"Path to the texts of the Space. The first {SPACE_TEXTS:,} are uploaded.")
    add("--before", metavar="M", help="Hub id of the model to compare with in the Space (default: the base model).")
    args = parser.parse_args()
    if bool(args.space) != bool(args.texts) or (args.before and not args.space):
        parser.error("--space and --texts go together, and --before with them")
    configure_logging()
    folder = Path(args.folder)
    for name in ("config.json", "modules.json", "README.md"):
        if not (folder / name).exists():
            raise InputError(f"{folder}: no {name}; give the --output_dir of a finished run")

    # Imported late so that --help and wrong folders answer without torch.
    from mirror.data.corpus import load_texts
    from mirror.data.source import CorpusSource
    from mirror.training.card import name_on_unedited_card, write_card
    from mirror.training.hub import PushError, create_repo, push_folder
    from mirror.training.record import FILE, RunRecord

    is_run = (folder / FILE).exists()
    settings = RunRecord.load(folder).settings if is_run else {}
    texts, before = [], args.before
    if args.space:
        before = before or (RunRecord.load(folder).run["base_model"]["hub_id"] if is_run else None)
        if not before:
            raise InputError(f"{folder} names no base model on the Hub; give the Hub id of one with --before")
        texts = load_texts(CorpusSource(train_file=[args.texts], max_train_samples=SPACE_TEXTS))
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
    if not args.space:
        return
    with TemporaryDirectory() as files:
        write_space(Path(files), args.space, before, repo_id, texts)
        try:
            commit = push_folder(files, args.space, private, commit_message="Demo", repo_type="space")
        except PushError as error:
            raise InputError(f"the encoder is pushed, but not the Space {args.space}: {error}") from error
    sys.stdout.write(f"{commit.repo_url}\n")


def write_space(folder: Path, name: str, before: str, model: str, texts: Sequence[str]) -> None:
    """Write the files of a Space that compares two models on texts."""
    card = {"title": name.rpartition("/")[2], "sdk": "gradio", "app_file": "app.py", "models": [model, before]}
    files = {
        "README.md": f"---\n{json.dumps(card)}\n---\n\n`{model}` beside `{before}`, on the same texts.\n",
        "app.py": APP.format(before=before, model=model),
        "requirements.txt": f"mirror-encoders[demo]=={mirror.__version__}\n",
        "texts.txt": "".join(f"{' '.join(text.split())}\n" for text in texts),  # which may have several lines
    }
    for file, content in files.items():
        (folder / file).write_text(content, encoding="utf-8")


if __name__ == "__main__":
    run_main(main)
