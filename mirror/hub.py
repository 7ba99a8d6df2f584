"""Checkpoints on the Hub. A push that fails costs the push: never the training, never what is on disk."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from huggingface_hub import HfApi, get_token, set_client_factory
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled
from huggingface_hub.utils import validate_repo_id
from huggingface_hub.utils._http import default_client_factory
from transformers.trainer_utils import HubStrategy
from transformers.utils import PushInProgress

from mirror.errors import InputError
from mirror.interruption import SEAL, seal


logger = logging.getLogger(__name__)

TIMEOUT_SECONDS = 60.0  # without a byte; the library's own client waits for ever
# What a reader has no use for: other checkpoints, logs (they name folders of this machine), pickles, half-written files.
NOT_PUSHED = ("_*", "checkpoint-*", "runs/*", "training_args.bin", "*.tmp")
ONLY_TO_RESUME = (
    "optimizer.*",
    "scheduler.pt",
    "scaler.pt",
    "rng_state*",
    "trainer_state.json",
    "temperature.json",
    SEAL,
)


class PushError(InputError):
    """A push that failed, in one line, without a token in it."""


def check_repo_id(repo_id: str) -> None:
    """Refuse a name that no repository can have, before anything is computed.

    Raises:
        InputError
    """
    try:
        validate_repo_id(repo_id)
    except HFValidationError as error:
        raise InputError(f"--hub_model_id '{repo_id}' is no name of a repository; give user/name") from error


def create_repo(repo_id: str, private: bool | None, token: str | None) -> str:
    """Make the repository unless it exists; its full id.

    Raises:
        PushError
    """
    _bound_the_client()
    if token is None and get_token() is None:
        raise PushError("no token for the Hub: set HF_TOKEN or run `hf auth login`")
    try:
        return HfApi().create_repo(repo_id, token=token, private=private, exist_ok=True).repo_id
    except Exception as error:  # network, server, library: the caller has a checkpoint to tell about, whatever it was
        raise PushError(reason(error, token)) from None


def push_folder(
    folder: str | Path,
    repo_id: str,
    private: bool | None = None,
    token: str | None = None,
    revision: str | None = None,
    message: str = "Encoder",
    path_in_repo: str | None = None,
    left_out: Sequence[str] = NOT_PUSHED,
) -> str:
    """Upload the files of a folder in one commit.

    Args:
        repo_id: user/name, or a name alone for one's own.
        private: of a repository that is made now; one that exists stays as it is.
        token: by default HF_TOKEN, or what `hf auth login` stored.
        left_out: patterns of files that stay here.

    Returns:
        The address of the commit.

    Raises:
        PushError: whatever went wrong.
    """
    full_id = create_repo(repo_id, private, token)
    try:
        commit = HfApi().upload_folder(
            repo_id=full_id, folder_path=folder, path_in_repo=path_in_repo, commit_message=message, token=token,
            revision=revision, ignore_patterns=list(left_out),
        )  # fmt: skip
    except Exception as error:
        raise PushError(reason(error, token)) from None
    return commit.commit_url


def reason(error: Exception, token: str | None = None) -> str:
    """Why a push failed, in one line: the status and the server's words, never an address with a signature or a token."""
    while error.__cause__ is not None and not isinstance(error, HfHubHTTPError):
        error = error.__cause__  # the client wraps what happened to a large file
    if isinstance(error, OfflineModeIsEnabled):
        return "HF_HUB_OFFLINE is set, which forbids it"
    if isinstance(error, HfHubHTTPError):
        said = f"the server answered {error.response.status_code} {error.server_message or ''}"
    else:
        said = f"{type(error).__name__}: {error}"
    for secret in filter(None, (token, get_token())):
        said = said.replace(secret, "***")
    said = re.sub(r"\bhf_\w+", "hf_***", re.sub(r"(https?://[^\s?]+)\?\S+", r"\1", said))
    return " ".join(said.split())[:300]


def how_to_push_later(folder: str, repo_id: str, why: str) -> str:
    """The line for a run whose push failed."""
    return (
        f"the encoder is whole in {folder}, but pushing it to {repo_id} failed: {why}; "
        f"later: python -m mirror.push {folder} --hub_model_id {repo_id}"
    )


@cache
def _bound_the_client() -> None:
    """Once, for setting the factory closes the connections of other threads."""
    set_client_factory(_client_with_timeout)
    logging.getLogger("huggingface_hub.utils._http").setLevel(logging.ERROR)  # its warnings show signed addresses


def _client_with_timeout():
    client = default_client_factory()
    client.timeout = TIMEOUT_SECONDS
    return client


class PushesCheckpoints:
    """`Trainer`'s --push_to_hub, for a trainer whose checkpoint folders are encoders; goes before `Trainer` among the bases.

    Trainer's own would stop the run at a push that fails, pickle its arguments, the token among them, into the output
    folder, and draft a card over ours.
    """

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        """Make the repository; if that fails, say so and train on.

        Raises:
            InputError: --hub_model_id cannot be one.
        """
        if not self.is_world_process_zero():
            return
        self.push_in_progress, self._background = None, HfApi()  # one of these runs its jobs one after the other
        self.hub_model_id = self.args.hub_model_id or Path(self.args.output_dir).absolute().name
        check_repo_id(self.hub_model_id)
        try:
            self.hub_model_id = create_repo(self.hub_model_id, self._private(private), token or self.args.hub_token)
        except PushError as error:
            logger.warning("--push_to_hub: %s; training goes on, and the push is tried again at its end", error)

    def push_to_hub(
        self, commit_message: str | None = "Encoder", blocking: bool = True, token: str | None = None,
        revision: str | None = None, private: bool | None = None, **kwargs,
    ) -> str | None:  # fmt: skip
        """Upload the output folder as it is on disk; the address of the commit on the first process.

        Raises:
            PushError: it failed; the line says where the encoder is and how to push it later.
        """
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        if not self.is_world_process_zero():
            return None
        if self.hub_model_id is None:
            self.init_hf_repo(token, private)
        self._finish_current_push()
        token, revision = token or self.args.hub_token, revision or self.args.hub_revision
        try:
            return push_folder(
                self.args.output_dir, self.hub_model_id, self._private(private), token, revision, commit_message
            )
        except PushError as error:
            raise PushError(how_to_push_later(self.args.output_dir, self.hub_model_id, str(error))) from error

    def create_model_card(self, *args, **kwargs) -> None:
        """The card is written by `mirror.card`; Trainer's draft must not replace it."""

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """In the background: the encoder to the top of the repository and, where asked, the whole checkpoint beside it."""
        strategy = self.args.hub_strategy
        if not self.is_world_process_zero() or strategy == HubStrategy.END:
            return
        busy = self.push_in_progress is not None and not self.push_in_progress.is_done()
        if busy and not self.args.hub_always_push:
            return
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        seal(Path(checkpoint_folder))  # now, so that what is pulled from the Hub can be resumed from
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
            for path_in_repo, left_out in places:
                push_folder(folder, *settings, path_in_repo, left_out)
        except PushError as error:
            logger.warning("%s was not pushed: %s; training goes on", Path(folder).name, error)

    def _private(self, private: bool | None = None) -> bool | None:
        return self.args.hub_private_repo if private is None else private
