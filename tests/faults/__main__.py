"""Runs `python -m tests.faults`."""

from tests.faults import main


if __name__ == "__main__":
    main()
