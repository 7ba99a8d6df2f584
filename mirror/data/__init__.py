"""From files to batches: corpora, augmentation, token ids of two views, collators.
Must not know: models, training or tasks."""
