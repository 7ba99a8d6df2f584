"""The exception that scripts turn into one line on stderr and exit status 2, and what made a library fail, in one line.

Imports nothing heavy, so that --help and mistyped flags answer immediately.
"""

from __future__ import annotations

import atexit
import difflib
import errno
import gc
import io
import logging
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import NoReturn


logger = logging.getLogger(__name__)

CACHES = (
    ("datasets", "HF_DATASETS_CACHE", "datasets.config"),
    ("Hugging Face", "HF_HOME", "huggingface_hub.constants"),
)  # name, variable that moves it, module with its path
NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS)
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)  # full, over quota, too large, read-only
# The fix for an unreachable Hub.
INSTEAD = "give a folder, or to train leave the flag out for the embedded model and texts of this machine"


class InputError(ValueError):
    """An error that the user can fix. The message names the file, row or flag, and the fix, in one line."""


def one_line(error: object, limit: int = 300) -> str:
    """Return an error's message without line breaks, cut at `limit` characters, or its type if it has no message."""
    return " ".join(str(error).split())[:limit] or type(error).__name__


def reason(error: BaseException) -> str:
    """Return an error's message in one line, after its type if the message alone says little."""
    message, name = one_line(error), type(error).__name__
    # The messages of these are sentences. The message of a KeyError is only a name.
    is_sentence = isinstance(error, (OSError, ValueError, RuntimeError, ImportError))
    return message if is_sentence or message == name else f"{name}: {message}"


@contextmanager
def library_errors(what: str, let_through: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Turn any error of a library, except `let_through`, into an `InputError`: what failed, and the library's reason.

    A full disk, a cache that cannot be used, and a collective that fails because another process did, are not blamed on
    `what`: `run_main` explains them.
    """
    try:
        yield
    except (InputError, *let_through):
        raise
    except Exception as error:
        if line := cache_failure(error):
            raise InputError(line) from error
        if getattr(error, "errno", None) in DISK_ERRORS or (isinstance(error, RuntimeError) and _peer_failure(error)):
            raise
        raise InputError(f"{what}: {reason(error)}") from error
    except BaseException as error:  # Rust's, of a tokenizer with a rule that fails
        if type(error).__name__ != "PanicException":
            raise
        raise InputError(f"{what}: {reason(error)}") from error


def cache_failure(error: BaseException) -> str | None:
    """Return one line if an error concerns a cache folder of the Hugging Face libraries or a parent of it, else None."""
    if not isinstance(error, OSError) or not isinstance(error.filename, str) or not error.strerror:
        return None
    failed = Path(error.filename)
    for name, variable, module in CACHES:
        if module not in sys.modules:  # then nothing has used this cache
            continue
        cache = Path(getattr(sys.modules[module], variable))
        # A missing folder is created from its first missing parent on, which the error names. `/` would be anybody's.
        is_parent = failed in (cache, *cache.parents) and failed != Path("/")
        if is_parent or (cache in failed.parents and error.errno in (*NOT_WRITABLE, errno.ENOTDIR, errno.EEXIST)):
            return f"the {name} cache {cache} cannot be written ({error.strerror}); set {variable} to another folder"
    return None


@cache
def hub_failure() -> str | None:
    """Return why the Hub cannot be reached, or None if it can. From then on the libraries use only what is cached.

    They would otherwise try each file six times.
    """
    from huggingface_hub import constants, get_session  # a tenth of a second, which mistakes do not need

    if constants.is_offline_mode():
        return "HF_HUB_OFFLINE is set"
    try:
        get_session().head(constants.ENDPOINT, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    except Exception as error:  # of whatever HTTP library huggingface_hub has
        logger.warning("%s cannot be reached (%s): using what is cached", constants.ENDPOINT, one_line(error, 120))
        os.environ["HF_HUB_OFFLINE"] = "1"  # for what is imported later, and for other processes
        constants.HF_HUB_OFFLINE = True
        if "datasets" in sys.modules:
            sys.modules["datasets"].config.HF_HUB_OFFLINE = True
        return f"{constants.ENDPOINT} cannot be reached"
    return None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `"; did you mean 'x'?"` for the most similar known name, or an empty string."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean '{close[0]}'?" if close else ""


def run_main(main: Callable[[], None]) -> None:
    """Run a script's `main` and turn errors that the user can fix into one line on stderr.

    Exit with 2 after an `InputError`, a path that cannot be used, or a disk that is full or fails, with 1 if another process of a
    distributed run failed or memory is too small, with 130 after Ctrl-C, and silently with 141 if the reader of stdout, such as
    `head`, has closed it.
    """
    # What is imported stays. To look for garbage among it, also at the end, takes a fifth of a short run (Python's: 700, 10, 10).
    gc.set_threshold(50_000, 20, 50)
    atexit.register(gc.freeze)
    _prepare_streams()
    try:
        try:
            _check_folders()
            main()
        finally:
            sys.stdout.flush()
    except InputError as error:
        # An error in a worker of torch's DataLoader arrives as a traceback that ends with the message.
        _exit_with(" ".join(str(error).rpartition(f"{__name__}.InputError: ")[2].splitlines()), 2)
    except KeyboardInterrupt:
        _exit_with("stopped by Ctrl-C", 128 + signal.SIGINT)
    except BrokenPipeError:
        output = select.poll()
        output.register(sys.stdout.fileno(), 0)  # errors are always reported
        if not output.poll(0):
            raise
        # Without this, the flush at the interpreter's exit fails again and prints a warning.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)  # the exit status that shells expect when nobody reads the output
    except OSError as error:
        if (line := cache_failure(error) or _path_failure(error)) is None:
            raise
        _exit_with(line, 2)
    except (RuntimeError, MemoryError) as error:
        if (line := _memory_failure(error) or _peer_failure(error)) is None:
            raise
        _exit_with(line, 1)


def _prepare_streams() -> None:
    """Make stdin, stdout and stderr usable: closed ones lead nowhere, and any text can be printed."""
    # Opened in this order, each gets its own descriptor. Otherwise the next file would get it and be used as a stream.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Output for other programs is UTF-8 whatever the locale says, as their input is.
        encoding = sys.stdout.encoding if sys.stdout.isatty() else "utf-8"
        sys.stdout.reconfigure(encoding=encoding, errors="backslashreplace")


def _check_folders() -> None:
    try:
        os.getcwd()
    except OSError as error:
        raise InputError("the current folder does not exist any more; cd to another one") from error
    if os.path.expanduser("~") == "~" and not os.environ.get("HF_HOME"):  # a user id without an entry in /etc/passwd
        raise InputError("this user has no home folder for caches; set HOME or HF_HOME to one that can be written")


def _path_failure(error: OSError) -> str | None:
    """Return one line for a path or a disk that cannot be used, and None for any other error."""
    fixes = {errno.EIO: "check the disk", errno.EROFS: "choose a folder that can be written"}
    if error.errno in (*DISK_ERRORS, errno.EIO):
        return f"{one_line(error)}; {fixes.get(error.errno, 'free some space')}, then run the same command again"
    if error.filename is None or not error.strerror:
        return None
    return f"{os.fsdecode(error.filename)}: {error.strerror}; check this path and your rights"


def _memory_failure(error: RuntimeError | MemoryError) -> str | None:
    said = "out of memory" in str(error) or "can't allocate memory" in str(error)  # of a GPU, of a CPU
    if not (said or isinstance(error, MemoryError)):
        return None
    return f"out of memory ({one_line(error, 80)}); train with a lower --mini_batch_size, encode with a lower --batch_size"


def _peer_failure(error: RuntimeError) -> str | None:
    from mirror.common.distributed import describe_peer_failure  # imports torch

    return describe_peer_failure(error)


def _exit_with(line: str, status: int) -> NoReturn:
    if os.environ.get("MIRROR_TRACEBACK"):
        traceback.print_exc()
    print(f"error: {line}", file=sys.stderr)
    if "torch" not in sys.modules:  # an invalid flag is reported without waiting for the import of torch
        sys.exit(status)
    from mirror.common.distributed import exit_process

    exit_process(status)
