"""Checkpoints on the Hub. A failed push never stops a training or changes what is on disk."""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from huggingface_hub import CommitInfo, HfApi, get_token, set_client_factory
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled
from huggingface_hub.utils import validate_repo_id
from huggingface_hub.utils._http import default_client_factory
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import HubStrategy
from transformers.utils import PushInProgress

from mirror.common.errors import InputError, one_line
from mirror.common.logging import log_each_retry_once, without_signatures
from mirror.training.manifest import MANIFEST, write_manifest
from mirror.training.resumable import TOTALS
from mirror.training.run_identity import FILE as IDENTITY
from mirror.training.run_record import keep_folders_private


logger = logging.getLogger(__name__)

TIMEOUT_SECONDS = 60.0  # without a byte; the library's default client waits indefinitely
# Not for readers: other checkpoints, logs and results of run_eval.py (with folder names of this machine), pickles,
# temporary files.
NOT_PUSHED = (
    *("_*", "checkpoint-*", "runs/*", "training_args.bin", "*.tmp"),
    *("run.json", "results.*", "embeddings/*"),
)
ONLY_TO_RESUME = (
    "optimizer.*",
    "scheduler.pt",
    "scaler.pt",
    "rng_state*",
    TRAINER_STATE_NAME,
    "temperature.json",
    IDENTITY,
    TOTALS,
    MANIFEST,
)


class PushError(InputError):
    """A failed push, in one line, without a token."""


def check_repo_id(repo_id: str) -> None:
    """Refuse an invalid repository id before anything is computed.

    Raises:
        InputError
    """
    try:
        validate_repo_id(repo_id)
    except HFValidationError as error:
        raise InputError(f"--hub_model_id '{repo_id}' is not a repository id; give user/name") from error


def create_repo(repo_id: str, private: bool | None, token: str | None) -> str:
    """Create the repository if it does not exist, and return its full id.

    Raises:
        PushError
    """
    _bound_the_client()
    if token is None and get_token() is None:
        raise PushError("no token for the Hub: set HF_TOKEN or run `hf auth login`")
    try:
        return HfApi().create_repo(repo_id, token=token, private=private, exist_ok=True).repo_id
    except Exception as error:  # network, server or library: the caller reports where the checkpoint is
        raise PushError(reason(error, token)) from None


def push_folder(
    folder: str | Path,
    repo_id: str,
    private: bool | None = None,
    token: str | None = None,
    revision: str | None = None,
    message: str = "Encoder",
    path_in_repo: str | None = None,
    left_out: Sequence[str] = (*NOT_PUSHED, MANIFEST),
) -> CommitInfo:
    """Upload the files of a folder in one commit.

    Args:
        repo_id: user/name, or a name alone for one's own.
        private: visibility of a new repository; an existing one is not changed.
        token: default: HF_TOKEN, or the one stored by `hf auth login`.
        left_out: patterns of files that are not uploaded.

    Raises:
        PushError: for any failure.
    """
    full_id = create_repo(repo_id, private, token)
    try:
        return HfApi().upload_folder(
            repo_id=full_id, folder_path=folder, path_in_repo=path_in_repo, commit_message=message, token=token,
            revision=revision, ignore_patterns=list(left_out),
        )  # fmt: skip
    except Exception as error:
        raise PushError(reason(error, token)) from None


def reason(error: Exception, token: str | None = None) -> str:
    """Why a push failed, in one line: status and message of the server, never a signed URL or a token."""
    while error.__cause__ is not None and not isinstance(error, HfHubHTTPError):
        error = error.__cause__  # the client wraps errors of large files
    if isinstance(error, OfflineModeIsEnabled):
        return "HF_HUB_OFFLINE is set"
    if isinstance(error, HfHubHTTPError):
        said = f"the server answered {error.response.status_code} {error.server_message or ''}"
    else:
        said = f"{type(error).__name__}: {error}"
    for secret in filter(None, (token, get_token())):
        said = said.replace(secret, "***")
    said = re.sub(r"\bhf_\w+", "hf_***", without_signatures(said))
    return " ".join(said.split())[:300]


def how_to_push_later(folder: str, repo_id: str, why: str) -> str:
    """The error message of a run whose push failed."""
    return (
        f"the encoder is saved in {folder}, but pushing it to {repo_id} failed: {why}; "
        f"later: python -m mirror.tools.push {folder} --hub_model_id {repo_id}"
    )


@contextmanager
def copy_to_share(checkpoint: str) -> Iterator[str]:
    """A folder of links to the files of a checkpoint, its state without folders of this machine, a manifest to resume from."""
    with TemporaryDirectory() as copy:
        shutil.copytree(Path(checkpoint).absolute(), copy, copy_function=os.symlink, dirs_exist_ok=True)
        keep_folders_private(Path(copy) / TRAINER_STATE_NAME)
        write_manifest(Path(copy))
        yield copy


@cache
def _bound_the_client() -> None:
    """Once, because setting the factory closes the connections of other threads."""
    set_client_factory(_client_with_timeout)
    log_each_retry_once()


def _client_with_timeout():
    client = default_client_factory()
    client.timeout = TIMEOUT_SECONDS
    return client


class HubPushMixin:
    """`Trainer`'s --push_to_hub for checkpoints that are encoders; to be listed before `Trainer` among the base classes.

    Trainer's own would stop the run at a failed push, pickle its arguments, the token included, into the output folder, and
    overwrite our model card.
    """

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        """Create the repository; if that fails, warn and go on training.

        Raises:
            InputError: --hub_model_id is not a valid id.
        """
        if not self.is_world_process_zero():
            return
        self.push_in_progress, self._background = None, HfApi()  # its jobs run one after the other
        self.hub_model_id = self.args.hub_model_id or Path(self.args.output_dir).absolute().name
        check_repo_id(self.hub_model_id)
        try:
            self.hub_model_id = create_repo(self.hub_model_id, self._private(private), token or self.args.hub_token)
        except PushError as error:
            logger.warning("--push_to_hub: %s; training continues, and the push is tried again at the end", error)

    def push_to_hub(
        self, commit_message: str | None = "Encoder", blocking: bool = True, token: str | None = None,
        revision: str | None = None, private: bool | None = None, **kwargs,
    ) -> CommitInfo | None:  # fmt: skip
        """Upload the output folder and log the address of the repository; the commit, on the first process.

        Raises:
            PushError: it failed; the message says where the encoder is and how to push it later.
        """
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        if not self.is_world_process_zero():
            return None
        if self.hub_model_id is None:
            self.init_hf_repo(token, private)
        self._finish_current_push()
        token, revision = token or self.args.hub_token, revision or self.args.hub_revision
        try:
            commit = push_folder(
                self.args.output_dir, self.hub_model_id, self._private(private), token, revision, commit_message
            )
        except PushError as error:
            raise PushError(how_to_push_later(self.args.output_dir, self.hub_model_id, str(error))) from error
        logger.info("pushed to %s", commit.repo_url)
        return commit

    def create_model_card(self, *args, **kwargs) -> None:
        """Nothing: the card is written by `mirror.tools.model_card`, and Trainer's must not replace it."""

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """In the background: the encoder to the root of the repository and, if requested, the checkpoint beside it."""
        strategy = self.args.hub_strategy
        if not self.is_world_process_zero() or strategy == HubStrategy.END:
            return
        busy = self.push_in_progress is not None and not self.push_in_progress.is_done()
        if busy and not self.args.hub_always_push:
            return
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        places = [(None, (*NOT_PUSHED, *ONLY_TO_RESUME))]
        if strategy == HubStrategy.CHECKPOINT:
            places.append(("last-checkpoint", NOT_PUSHED))
        if strategy == HubStrategy.ALL_CHECKPOINTS:
            places.append((Path(checkpoint_folder).name, NOT_PUSHED))
        job = self._background.run_as_future(
            self._try_to_push, checkpoint_folder, f"Training in progress, step {self.state.global_step}", places
        )
        if busy:
            self.push_in_progress.jobs.append(job)
        else:
            self.push_in_progress = PushInProgress([job])

    def _try_to_push(self, folder: str, message: str, places: list[tuple[str | None, Sequence[str]]]) -> None:
        settings = (self.hub_model_id, self._private(), self.args.hub_token, self.args.hub_revision, message)
        try:
            with copy_to_share(folder) as copy:
                for path_in_repo, left_out in places:
                    push_folder(copy, *settings, path_in_repo, left_out)
        except (PushError, OSError) as error:  # the checkpoint may be gone, for a newer one, before its turn comes
            logger.warning("%s was not pushed: %s; training continues", Path(folder).name, one_line(error))

    def _private(self, private: bool | None = None) -> bool | None:
        return self.args.hub_private_repo if private is None else private
