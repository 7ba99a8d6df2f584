"""Conditional masked language modelling: its data, model, losses and Trainer, on the training room.
Must not know: studies or tools."""
