"""Reproduction of the papers' tables and figures as grids of training and scoring runs.
Must not know: mirror.tools."""
