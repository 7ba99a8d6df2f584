"""Find out once per process whether the Hub can be reached."""

from __future__ import annotations

import logging
import os
import sys
from functools import cache

from huggingface_hub import constants, get_session

from mirror.common.errors import one_line


logger = logging.getLogger(__name__)
INSTEAD = "give a folder, or to train leave the flag out for the embedded model and texts of this machine"


@cache
def hub_failure() -> str | None:
    """Return why the Hub cannot be reached, or None if it can. From then on the libraries use only what is cached.

    They would otherwise try each file six times.
    """
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
