"""What the token ids of a text depend on besides the text."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

from transformers import PreTrainedTokenizerBase


def tokenizer_state(tokenizer: PreTrainedTokenizerBase) -> str:
    """Class, vocabulary, rules and settings of a tokenizer, as a string to hash.

    Truncation and padding, which earlier calls leave in a tokenizer, are not part of it. A tokenizer in Python, without a
    backend to ask, is described by the files that it saves.
    """
    if tokenizer.is_fast:
        state = json.loads(tokenizer.backend_tokenizer.to_str())
        return repr((type(tokenizer).__name__, {**state, "truncation": None, "padding": None}))
    with TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        return repr([(path.name, path.read_bytes()) for path in sorted(Path(folder).iterdir())])
