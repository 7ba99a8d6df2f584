"""Pretrained encoders: loading, pooling, dropout, packed attention, checkpoints, encoding.
Must not know: losses, trainers or tasks."""
