"""Conditional masked language modeling: its options, data, model, checkpoints and Trainer.
Must not know: studies or tools."""
