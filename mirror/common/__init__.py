"""Provide errors, files, logging, command lines, processes, vectors and trust. Every other package uses them.
Must not know: texts, models, training or tasks."""
