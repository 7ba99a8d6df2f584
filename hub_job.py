"""Train on a machine of the Hugging Face Hub: `hf jobs uv run hub_job.py FLAGS`, with the flags of run_mirror.py (docs/hub.md)."""

# /// script
# requires-python = ">=3.10"
# dependencies = [
#     "mirror-encoders[logging] @ git+https://github.com/OWNER/REPOSITORY",
# ]
#
# [tool.hf-jobs]
# flavor = "l4x1"
# timeout = "2h"
# secrets = ["HF_TOKEN"]
# ///

from mirror.tools.entry_points import train


if __name__ == "__main__":
    train()
