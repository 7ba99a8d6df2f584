"""Every fault of a run, one after the other: what is left must be as good as before.

python -m tests.faults saves        # every call that changes a file during a save fails, or kills the process
python -m tests.faults runs         # training ended in every situation, then resumed
python -m tests.faults collectives  # every collective of one of two processes kills it, or loses the connection
python -m tests.faults commands     # every such call of run_encode.py and of a study, then the same command again

Each prints a table of counts, and exits with 1 if anything is wrong. `--every 7` makes each seventh fault only. Needs Linux and
a C compiler; a folder in memory (`TMPDIR=/dev/shm`) saves time.
"""
