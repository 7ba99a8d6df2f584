"""Web page that compares a model before and after training: cosines, search and a map of your texts.

    python -m mirror.tools.demo out/mirror --texts texts.txt
    python -m mirror.tools.demo out/mirror                                # docstrings of the installed packages
    python -m mirror.tools.demo out/mirror --texts texts.csv --text_column title --before bert-base-uncased

Open the printed address in a browser and stop the server with Ctrl-C. It only accepts connections from the same machine.
docs/hub.md shows an SSH tunnel to a remote machine, and how to publish the page as a Space. Needs the extra "demo".
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from pathlib import Path

from mirror.common.cli import Parser, add_trust, configure_logging, hide_dataset_progress, positive
from mirror.common.errors import InputError, run_main


LOOPBACK = "127.0.0.1"
MAX_BODY_BYTES = 3 << 20  # of a request; an upload may have 2 MB
HEADERS = {
    # Gradio needs inline and evaluated scripts. Nothing is loaded from or sent to another server.
    "Content-Security-Policy": "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}

logger = logging.getLogger("mirror.tools.demo")


def main() -> None:
    parser = Parser(__doc__)
    add = parser.add_argument
    add("model", metavar="OUT", help="Path to the --output_dir of a finished run, or any checkpoint with --before")
    add("--texts", metavar="F", help="Path or glob of the texts; default: docstrings of the installed packages")
    add("--text_column", metavar="T", help="Name of the column with the text; default: 'text', or the only column")
    add("--before", metavar="M", help="Model to compare with; default: the base model of the run")
    add("--pooling", help="Pooling of both models; required for a plain masked LM, default: the checkpoint's")
    add("--max_texts", type=positive, default=10_000, metavar="N", help="Number of texts to use (default: 10000)")
    add("--top_k", type=positive, default=5, metavar="K", help="Number of matches per query (default: 5)")
    add("--port", type=positive, default=7860, metavar="P", help="Local port (default: 7860)")
    add_trust(parser)
    args = parser.parse_args()
    configure_logging(logging.WARNING)
    logger.setLevel(logging.INFO)
    from mirror.common import trust
    from mirror.data.corpus import load_texts
    from mirror.data.source import CorpusSource

    try:
        from mirror.tools.demo_app import LAUNCH, build_demo
    except ImportError as error:
        raise InputError(f'mirror-demo needs {error.name}: pip install "mirror-encoders[demo]"') from error
    hide_dataset_progress()
    trust.grant(args.allow_pickle, args.trust_remote_code)
    try:  # before minutes of encoding
        socket.create_server((LOOPBACK, args.port)).close()
    except (OSError, OverflowError) as error:
        reason = os.strerror(error.errno) if isinstance(error, OSError) else error
        raise InputError(f"--port {args.port}: {reason}; choose another port") from error
    before = args.before or base_model(Path(args.model))
    source = CorpusSource(train_file=args.texts, text_column=args.text_column, max_train_samples=args.max_texts)
    texts = load_texts(source)
    logger.info("Loaded %s texts from %s", f"{len(texts):,}", args.texts or "the docstrings of the installed packages")
    page = build_demo(before, args.model, texts, args.pooling, args.top_k)
    address = {"server_name": LOOPBACK, "server_port": args.port, "app_kwargs": {"middleware": local_middleware()}}
    page.launch(quiet=True, prevent_thread_lock=True, **address, **LAUNCH)
    sys.stdout.write(f"http://{LOOPBACK}:{args.port}\n")
    sys.stdout.flush()
    page.block_thread()


def local_middleware() -> list:
    """Return Starlette middleware against other pages of the browser on this machine, and against large requests."""
    from starlette.middleware import Middleware
    from starlette.middleware.base import BaseHTTPMiddleware
    from starlette.middleware.body_limit import RequestBodyLimitMiddleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.responses import PlainTextResponse

    async def answer_own_page(request, call_next):
        # Browsers say in this header which page sent a request, and other programs leave it out. A link may open the page.
        sender = request.headers.get("sec-fetch-site", "none")
        if sender not in ("same-origin", "none") and request.url.path != "/":
            return PlainTextResponse("requests of other pages are refused", 403)
        response = await call_next(request)
        response.headers.update(HEADERS)
        return response

    return [
        # Another name that resolves to 127.0.0.1 could otherwise read the texts (DNS rebinding).
        Middleware(TrustedHostMiddleware, allowed_hosts=[LOOPBACK, "localhost"]),
        Middleware(BaseHTTPMiddleware, dispatch=answer_own_page),
        Middleware(RequestBodyLimitMiddleware, max_body_size=MAX_BODY_BYTES),
    ]


def base_model(folder: Path) -> str:
    """Return the Hub id or folder of the base model of a run, or raise an InputError if it is not known any more.

    `train_results.json` names it. The path of a local folder is in a note beside it, which is never pushed.
    """
    from mirror.assets import EMBEDDED_MODEL
    from mirror.training.record import RunRecord, local_base

    try:
        base = RunRecord.load(folder).run["base_model"]
    except (InputError, KeyError) as error:
        message = "no train_results.json that names the base model; give the base model with --before"
        raise InputError(f"{folder}: {message}") from error
    if base["hub_id"]:
        return base["hub_id"]
    if base["name"] == EMBEDDED_MODEL.name:
        return str(EMBEDDED_MODEL)
    if local := local_base(folder):
        return local
    raise InputError(f"{folder} was trained from a local folder '{base['name']}'; give its path with --before")


if __name__ == "__main__":
    run_main(main)
