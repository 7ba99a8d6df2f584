"""Pushes of checkpoints to the Hub. A failed push never stops a run or changes what is on disk."""

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

from mirror.common.cli import log_each_retry_once, without_signatures
from mirror.common.errors import InputError, one_line
from mirror.common.files import MANIFEST, write_manifest
from mirror.training.checkpoints import IDENTITY
from mirror.training.record import keep_folders_private
from mirror.training.resumable import ADAPTERS, LOSS_STATE, TOTALS


logger = logging.getLogger(__name__)

TIMEOUT_SECONDS = 60.0  # without a byte; the default client waits forever
# Never pushed: other checkpoints, temporary files, pickles, and files with folder names of this machine (logs, run_eval.py's).
NOT_PUSHED = ("_*", "checkpoint-*", "runs/*", "training_args.bin", "*.tmp", "run.json", "results.*", "embeddings/*")
# Not part of an encoder, only of a checkpoint to resume from.
ONLY_TO_RESUME = (
    *("optimizer.*", "scheduler.pt", "scaler.pt", "rng_state*", LOSS_STATE, ADAPTERS),
    *(TRAINER_STATE_NAME, IDENTITY, TOTALS, MANIFEST),
)


class PushError(InputError):
    """A failed push, in one line, without a token."""


def create_repo(repo_id: str, private: bool | None, token: str | None, **kind: str) -> str:
    """Create the repository if it does not exist, and return its full id. A failure is a `PushError`.

    `kind`: `repo_type` and `space_sdk` of a Space.
    """
    try:
        validate_repo_id(repo_id)
    except HFValidationError as error:
        raise InputError(f"--hub_model_id '{repo_id}' is not a repository id; give user/name") from error
    _set_timeout()
    if token is None and get_token() is None:
        raise PushError("no token for the Hub: set HF_TOKEN or run `hf auth login`")
    with _push_errors(token):
        return HfApi().create_repo(repo_id, token=token, private=private, exist_ok=True, **kind).repo_id


def push_folder(
    folder: str | Path, repo_id: str, private: bool | None = None, token: str | None = None, **upload
) -> CommitInfo:
    """Upload the files of a folder in one commit, to a repository that is created if it does not exist.

    `upload` are arguments of `HfApi.upload_folder`. Any failure is a `PushError`.
    """
    kind = {"repo_type": "space", "space_sdk": "gradio"} if upload.get("repo_type") == "space" else {}
    full_id = create_repo(repo_id, private, token, **kind)
    upload = {"ignore_patterns": [*NOT_PUSHED, MANIFEST]} | upload
    with _push_errors(token):
        return HfApi().upload_folder(repo_id=full_id, folder_path=folder, token=token, **upload)


@contextmanager
def _push_errors(token: str | None) -> Iterator[None]:
    """Turn any error into one line: status and message of the server, never a signed URL or a token."""
    try:
        yield
    except Exception as error:  # of the network, the server or the library
        while error.__cause__ is not None and not isinstance(error, HfHubHTTPError):
            error = error.__cause__  # the client wraps errors of large files
        text = f"{type(error).__name__}: {error}"
        if isinstance(error, OfflineModeIsEnabled):
            text = "HF_HUB_OFFLINE is set"
        elif isinstance(error, HfHubHTTPError):
            text = f"the server answered {error.response.status_code} {error.server_message or ''}"
        for secret in filter(None, (token, get_token())):
            text = text.replace(secret, "***")
        raise PushError(one_line(re.sub(r"\bhf_\w+", "hf_***", without_signatures(text)))) from None


@cache  # once a process, because setting the factory closes the connections of other threads
def _set_timeout() -> None:
    def client_with_timeout():
        client = default_client_factory()
        client.timeout = TIMEOUT_SECONDS
        return client

    set_client_factory(client_with_timeout)
    log_each_retry_once()


class HubPushMixin:
    """Pushes for a `Trainer` whose checkpoints are encoders. List it before `Trainer` among the base classes.

    Trainer's own pushes stop the run when they fail, pickle the arguments with the token into the output folder, and
    replace the card of `mirror.training.card`.
    """

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        """Create the repository. If that fails, warn and continue, but raise an `InputError` for an invalid id."""
        if not self.is_world_process_zero():
            return
        args = self.args
        self.push_in_progress, self._background = None, HfApi()  # which runs its jobs one after the other
        self.hub_model_id = args.hub_model_id or Path(args.output_dir).absolute().name
        private = args.hub_private_repo if private is None else private
        try:
            self.hub_model_id = create_repo(self.hub_model_id, private, token or args.hub_token)
        except PushError as error:
            logger.warning("--push_to_hub: %s; training continues, and the push is tried again at the end", error)

    def push_to_hub(
        self, commit_message: str = "Encoder", token: str | None = None, revision: str | None = None, **kwargs
    ) -> CommitInfo | None:
        """Upload the output folder, and return the commit on the first process. Of `kwargs` only `private` matters."""
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        if not self.is_world_process_zero():
            return None
        args, private = self.args, kwargs.get("private")
        if self.hub_model_id is None:
            self.init_hf_repo(token, private)
        self._finish_current_push()
        folder, repo_id = args.output_dir, self.hub_model_id
        private = args.hub_private_repo if private is None else private
        upload = {"commit_message": commit_message, "revision": revision or args.hub_revision}
        try:
            commit = push_folder(folder, repo_id, private, token or args.hub_token, **upload)
        except PushError as error:
            raise PushError(
                f"the encoder is saved in {folder}, but pushing it to {repo_id} failed: {error}; "
                f"later: python -m mirror.tools.push {folder} --hub_model_id {repo_id}"
            ) from error
        logger.info("Pushed to %s", commit.repo_url)
        return commit

    def push_checkpoint(self, folder: str) -> None:
        """Push a checkpoint in the background: its encoder to the root of the repository and, if requested, all of it beside."""
        strategy = self.args.hub_strategy
        if not self.is_world_process_zero() or strategy == HubStrategy.END:
            return
        busy = self.push_in_progress is not None and not self.push_in_progress.is_done()
        if busy and not self.args.hub_always_push:
            return  # the next checkpoint has its turn
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        places = [(None, (*NOT_PUSHED, *ONLY_TO_RESUME))]
        beside = {HubStrategy.CHECKPOINT: "last-checkpoint", HubStrategy.ALL_CHECKPOINTS: Path(folder).name}
        if strategy in beside:
            places.append((beside[strategy], NOT_PUSHED))
        job = self._background.run_as_future(self._try_to_push, folder, self.state.global_step, places)
        self.push_in_progress = PushInProgress([*self.push_in_progress.jobs, job] if busy else [job])

    def _try_to_push(self, folder: str, step: int, places: list[tuple[str | None, Sequence[str]]]) -> None:
        args = self.args
        try:
            with TemporaryDirectory() as copy:  # of links; the state is rewritten, and so the manifest
                shutil.copytree(Path(folder).absolute(), copy, copy_function=os.symlink, dirs_exist_ok=True)
                keep_folders_private(Path(copy) / TRAINER_STATE_NAME)
                write_manifest(Path(copy))
                upload = {"commit_message": f"Training in progress, step {step}", "revision": args.hub_revision}
                for place, left_out in places:
                    upload |= {"path_in_repo": place, "ignore_patterns": list(left_out)}
                    push_folder(copy, self.hub_model_id, args.hub_private_repo, args.hub_token, **upload)
        except (PushError, OSError) as error:  # a newer checkpoint may have replaced this one before its turn
            logger.warning("%s was not pushed: %s; training continues", Path(folder).name, one_line(error))
