"""Evaluation tasks with their protocols, results and plots.
Must not know: training."""
