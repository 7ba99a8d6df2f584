"""The embedded default: a small masked LM that this project pretrained itself, as a checkpoint folder.
Must not know: any other room."""

from pathlib import Path


EMBEDDED_MODEL = Path(__file__).resolve().parent / "mini-mlm"
