"""Tiny models and tokenizers, built in memory: no test needs a network, a download or a data folder."""

from __future__ import annotations

import gc
import os
import signal
import socket
import zlib
from pathlib import Path


os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
# Two test processes on two cores: with torch's default of two threads each, they take three times as long.
os.environ["OMP_NUM_THREADS"] = "1"

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, BertTokenizerFast


WORDS = """
    the a an of to in and is was on with for that it he she they we you cat dog bird fish tree house river
    mountain city road car train plane red green blue small large old new fast slow runs walks flies swims reads
    writes sees likes eats drinks plays sleeps man woman child girl boy king queen doctor teacher student book
    letter song game water bread milk coffee morning evening night day sun moon star rain snow wind open close
    file list map key value number sum count first last read write get set make find
""".split()
SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789"


LOOPBACK = ("127.", "::1", "localhost")


def pytest_addoption(parser):
    parser.addoption("--slow-tenth", type=int, choices=range(10), help="Run only this tenth of the selected tests")


def pytest_collection_modifyitems(config, items):
    """Keep a tenth of the tests, chosen by a hash of their names: each test stays in its tenth when others come and go."""
    tenth = config.getoption("--slow-tenth")
    if tenth is not None:
        left_out = [item for item in items if zlib.crc32(item.nodeid.encode()) % 10 != tenth]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def pytest_configure():
    """Tests send Ctrl-C to themselves and to what they start; a shell's background job, such as `make test &`, ignores it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish():
    """Leave what is imported to no garbage collection: `Trainer` asks for one twice a run, and each took .3 seconds."""
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def no_network():
    """Any connection or look-up beyond this machine fails the test that asks for it."""

    def guarded(original):
        def connect(self, address, *rest):
            if self.family in (socket.AF_INET, socket.AF_INET6) and not str(address[0]).startswith(LOOPBACK):
                raise AssertionError(f"a test opened a connection to {address[0]}")
            return original(self, address, *rest)

        return connect

    def look_up(host, *rest, original=socket.getaddrinfo, **options):
        name = host.decode() if isinstance(host, bytes) else host
        if name and not name.startswith((*LOOPBACK, "0.0.0.0", "::")) and name != socket.gethostname():
            raise AssertionError(f"a test looked up {name}")
        return original(host, *rest, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", look_up)
        for name in ("connect", "connect_ex"):
            patch.setattr(socket.socket, name, guarded(getattr(socket.socket, name)))
        yield


@pytest.fixture(scope="session")
def tokenizer() -> BertTokenizerFast:
    return make_tokenizer()


def make_tokenizer() -> BertTokenizerFast:
    """WordPiece of about a hundred words and, for any other, single characters."""
    pieces = SPECIAL_TOKENS + list(dict.fromkeys(WORDS)) + list(CHARACTERS[1:]) + [f"##{c}" for c in CHARACTERS]
    return BertTokenizerFast(
        vocab={piece: index for index, piece in enumerate(dict.fromkeys(pieces))}, model_max_length=64
    )


@pytest.fixture(scope="session")
def sentences() -> list[str]:
    return make_sentences()


def make_sentences() -> list[str]:
    """240 distinct sentences of words that the tokenizer knows, 12 to 75 characters long."""
    generator = torch.Generator().manual_seed(0)
    rows: dict[str, None] = {}
    while len(rows) < 240:
        length = int(torch.randint(4, 12, (1,), generator=generator))
        picks = torch.randint(len(WORDS), (length,), generator=generator)
        rows.setdefault(" ".join(WORDS[index] for index in picks))
    return list(rows)


@pytest.fixture(scope="session")
def bert_folder(tokenizer, tmp_path_factory) -> str:
    return save_tiny_bert(tmp_path_factory.mktemp("tiny-bert"), tokenizer)


def save_tiny_bert(folder: Path, tokenizer: BertTokenizerFast) -> str:
    """A masked LM: 2 layers of width 32, 4 heads, dropout 0.1."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
        initializer_range=0.3,
    )
    BertForMaskedLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)
