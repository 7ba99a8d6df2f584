"""Tools for a finished checkpoint (model card, push, export, search, demo, embedding shards), and the end of a run.
Must not know: studies."""
