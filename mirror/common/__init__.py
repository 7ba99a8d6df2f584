"""Errors, files, logging, command lines, several processes, nearest neighbours: what every room uses.
Must not know: texts, models, training or tasks."""
