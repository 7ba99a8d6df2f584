"""Tools for a finished checkpoint: card, push, ONNX, search, demo, whitening, and the vectors of a corpus.
Must not know: studies."""
