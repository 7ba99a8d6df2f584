"""A local web page that shows what a run changed: cosines, matches and a map of your texts, before and after.

    python -m mirror.demo out/mirror --texts texts.txt
    python -m mirror.demo out/mirror                                # the docstrings of this machine's packages
    python -m mirror.demo out/mirror --texts texts.csv --text_column title --before bert-base-uncased

Open the address that it prints; Ctrl-C ends it. Only this machine can open it: docs/demo.md shows the tunnel to a remote
one. Texts are read like --train_file of run_mirror.py. Needs requirements-demo.txt.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from mirror.errors import InputError, run_main
from mirror.flags import Parser, add_trust, positive


if TYPE_CHECKING:
    from mirror.comparison import Side

LOOPBACK = "127.0.0.1"

logger = logging.getLogger("mirror.demo")


def main() -> None:
    args = parse_arguments()
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    logger.setLevel(logging.INFO)
    try:
        import uvicorn

        from mirror.web import create_app
    except ImportError as error:
        raise InputError(f"mirror.demo needs {error.name}: pip install -r requirements-demo.txt") from error
    from datasets import disable_progress_bars

    from mirror import trust

    disable_progress_bars()
    logging.getLogger("sentence_transformers").setLevel(logging.ERROR)
    trust.grant(args.allow_pickle, args.trust_remote_code)
    with open_socket(args.port) as listening:  # before minutes of encoding
        app = create_app(*load_sides(args), args.top_k)
        config = uvicorn.Config(app, log_level="warning", access_log=False, server_header=False, ws="none")
        sys.stdout.write(f"http://{LOOPBACK}:{args.port}\n")
        sys.stdout.flush()
        with contextlib.suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listening])


def open_socket(port: int) -> socket.socket:
    """A listening socket of this machine alone.

    Raises:
        InputError: another program has the port, or there is no such port.
    """
    try:
        return socket.create_server((LOOPBACK, port))
    except (OSError, OverflowError) as error:
        reason = os.strerror(error.errno) if isinstance(error, OSError) else error
        raise InputError(f"--port {port}: {reason}; choose another port") from error


def load_sides(args: argparse.Namespace) -> tuple[Side, Side]:
    """The model that the run started from and the one that it made, with the texts.

    Raises:
        InputError: a model or the texts cannot be read, or it is not known what the run started from.
    """
    from mirror.comparison import Side
    from mirror.data import DataSettings
    from mirror.encoder import Encoder
    from mirror.evaluation.results import short_names
    from mirror.runs import load_training_corpus

    base = args.before or base_model(Path(args.model))
    settings = DataSettings(
        train_file=(args.texts,) if args.texts else (), text_column=args.text_column, max_train_samples=args.max_texts
    )
    texts = list(load_training_corpus(settings).rows["text"])
    after = Encoder.from_pretrained(args.model, args.pooling)
    before = Encoder.from_pretrained(base, after.pooling, after.max_seq_length)
    source = args.texts or "the docstrings of this machine's packages"
    logger.info("%s texts of %s; before: %s, after: %s", f"{len(texts):,}", source, base, args.model)
    names = short_names([base, args.model])
    return Side(names[0], before, texts), Side(names[1], after, texts)


def base_model(folder: Path) -> str:
    """The Hub id or the folder of the model that the run in `folder` started from, by the run's own record.

    Raises:
        InputError: there is no record, or it names a folder, whose place it does not keep.
    """
    from mirror.encoder import EMBEDDED_MODEL

    try:
        base = json.loads((folder / "train_results.json").read_text(encoding="utf-8"))["run"]["base_model"]
    except (OSError, ValueError, KeyError) as error:
        raise InputError(
            f"{folder}: no train_results.json that says which model the run started from; give it with --before"
        ) from error
    if base["hub_id"]:
        return base["hub_id"]
    if base["name"] == EMBEDDED_MODEL.name:
        return str(EMBEDDED_MODEL)
    raise InputError(f"{folder} was made from a folder '{base['name']}'; say where it is with --before")


def parse_arguments() -> argparse.Namespace:
    parser = Parser(__doc__)
    add = parser.add_argument
    add("model", metavar="OUT", help="the --output_dir of a finished run, or any checkpoint with --before")
    add("--texts", metavar="F", help="a file, or a glob in quotes; default: docstrings found on this machine")
    add("--text_column", metavar="T", help="column with the text; default: 'text' or the only one")
    add("--before", metavar="M", help="the model to compare with; default: the one that the run started from")
    add("--pooling", help="overrides the checkpoint's, of both models; a plain masked LM needs it")
    add("--max_texts", type=positive, default=10_000, metavar="N", help="the first N texts (default: 10000)")
    add("--top_k", type=positive, default=5, metavar="K", help="matches of a query (default: 5)")
    add("--port", type=positive, default=7860, metavar="P", help="of this machine (default: 7860)")
    add_trust(parser)
    return parser.parse_args()


if __name__ == "__main__":
    run_main(main)
