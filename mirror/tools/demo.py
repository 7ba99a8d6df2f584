"""A local web page that compares the model before and after training: cosines, search and a map of your texts.

    python -m mirror.tools.demo out/mirror --texts texts.txt
    python -m mirror.tools.demo out/mirror                                # docstrings of the installed packages
    python -m mirror.tools.demo out/mirror --texts texts.csv --text_column title --before bert-base-uncased
    python -m mirror.tools.demo out/mirror --texts texts.txt --export page.html

Open the printed address in a browser; Ctrl-C stops the server. It only accepts connections from the same machine;
docs/demo.md shows an SSH tunnel to a remote one. Texts are read like --train_file of run_mirror.py.
Needs the extra "demo", except with --export, which writes the page as one file without a server.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from mirror.common.cli import Parser, add_trust, positive
from mirror.common.errors import InputError, run_main
from mirror.common.logging import configure_logging, hide_dataset_progress


if TYPE_CHECKING:
    import uvicorn
    from fastapi import FastAPI

    from mirror.tools.demo_models import ComparedModel

LOOPBACK = "127.0.0.1"

logger = logging.getLogger("mirror.tools.demo")


def main() -> None:
    args = parse_arguments()
    configure_logging(logging.WARNING)
    logger.setLevel(logging.INFO)
    from mirror.common import loading_policy

    hide_dataset_progress()
    loading_policy.grant(args.allow_pickle, args.trust_remote_code)
    if args.export:
        export(args)
    else:
        serve(args)


def export(args: argparse.Namespace) -> None:
    """Write the page as one file.

    Raises:
        InputError: the folder of the file does not exist; a model or the texts cannot be read.
    """
    from mirror.common.atomic_files import atomic_write_text
    from mirror.tools.demo_export import export_page

    path = Path(args.export)
    if not path.parent.is_dir() or path.is_dir():
        raise InputError(f"--export {path}: give the name of a file in an existing folder, such as page.html")
    atomic_write_text(path, export_page(*load_models(args), args.top_k))
    logger.info("%s: %.1f MB, with texts and vectors and without the models", path, path.stat().st_size / 1e6)


def serve(args: argparse.Namespace) -> None:
    """Serve the page until Ctrl-C.

    Raises:
        InputError: a package is missing, the port is in use, or a model or the texts cannot be read.
    """
    try:
        import uvicorn

        from mirror.tools.demo_server import create_app
    except ImportError as error:
        raise InputError(f'mirror.tools.demo needs {error.name}: pip install "mirror-encoders[demo]"') from error
    with open_socket(args.port) as listening:  # bind the port before minutes of encoding
        app = create_app(*load_models(args), args.top_k)
        sys.stdout.write(f"http://{LOOPBACK}:{args.port}\n")
        sys.stdout.flush()
        with contextlib.suppress(KeyboardInterrupt):
            uvicorn.Server(server_config(app)).run(sockets=[listening])


def server_config(app: FastAPI) -> uvicorn.Config:
    """Settings of the server: quiet, without websockets, and without patience for requests that do not arrive."""
    import uvicorn

    from mirror.tools.demo_server import PatientProtocol

    quiet = {"log_level": "warning", "access_log": False, "server_header": False}
    # With no descriptors left, asyncio logs an error for each place in the queue.
    return uvicorn.Config(app, http=PatientProtocol, ws="none", backlog=16, **quiet)


def open_socket(port: int) -> socket.socket:
    """A listening socket that only this machine can connect to.

    Raises:
        InputError: the port is in use, or is not a valid port.
    """
    try:
        return socket.create_server((LOOPBACK, port))
    except (OSError, OverflowError) as error:
        reason = os.strerror(error.errno) if isinstance(error, OSError) else error
        raise InputError(f"--port {port}: {reason}; choose another port") from error


def load_models(args: argparse.Namespace) -> tuple[ComparedModel, ComparedModel]:
    """The models before and after training, each with the embeddings of the texts.

    Raises:
        InputError: a model or the texts cannot be read, or the base model of the run is unknown.
    """
    from mirror.data.corpus import CorpusSource, load_training_corpus
    from mirror.evaluation.table import short_names
    from mirror.modeling.encoder import Encoder
    from mirror.tools.demo_models import ComparedModel

    base = args.before or base_model(Path(args.model))
    source = CorpusSource(
        train_file=(args.texts,) if args.texts else (), text_column=args.text_column, max_train_samples=args.max_texts
    )
    texts = list(load_training_corpus(source).rows["text"])
    after = Encoder.from_pretrained(args.model, args.pooling)
    before = Encoder.from_pretrained(base, after.pooling, after.max_seq_length)
    origin = args.texts or "the docstrings of the installed packages"
    logger.info("%s texts from %s; before: %s, after: %s", f"{len(texts):,}", origin, base, args.model)
    names = short_names([base, args.model])
    models = ComparedModel(names[0], before, texts), ComparedModel(names[1], after, texts)
    models[0].turn_to(models[1])
    return models


def base_model(folder: Path) -> str:
    """The Hub id or folder of the base model of a run, from its `train_results.json` and the note of a local folder.

    Raises:
        InputError: there is no record, or the base model was a local folder that is not there any more.
    """
    from mirror.assets import EMBEDDED_MODEL
    from mirror.training.run_record import RunRecord, local_base

    try:
        base = RunRecord.load(folder).run["base_model"]
    except (InputError, KeyError) as error:
        raise InputError(
            f"{folder}: no train_results.json that names the base model; give the base model with --before"
        ) from error
    if base["hub_id"]:
        return base["hub_id"]
    if base["name"] == EMBEDDED_MODEL.name:
        return str(EMBEDDED_MODEL)
    if local := local_base(folder):
        return local
    raise InputError(f"{folder} was trained from a local folder '{base['name']}'; give its path with --before")


def parse_arguments() -> argparse.Namespace:
    parser = Parser(__doc__)
    add = parser.add_argument
    add("model", metavar="OUT", help="the --output_dir of a finished run, or any checkpoint with --before")
    add(
        "--texts",
        metavar="F",
        help="file with the texts, or a glob in quotes; default: docstrings of the installed packages",
    )
    add("--text_column", metavar="T", help="column with the text; default: 'text', or the only column")
    add("--before", metavar="M", help="model to compare with; default: the base model of the run")
    add("--pooling", help="override the pooling of both models; required for a plain masked LM")
    add("--max_texts", type=positive, default=10_000, metavar="N", help="use the first N texts (default: 10000)")
    add("--top_k", type=positive, default=5, metavar="K", help="matches per query (default: 5)")
    add("--export", metavar="FILE", help="write the page to FILE, an HTML file that needs no server, and exit")
    add("--port", type=positive, default=7860, metavar="P", help="local port (default: 7860)")
    add_trust(parser)
    return parser.parse_args()


if __name__ == "__main__":
    run_main(main)
