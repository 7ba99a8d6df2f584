"""Tests that accelerate reads the files of accelerate_configs/, and that FSDP trains, saves and resumes on two CPU processes."""

from __future__ import annotations

import shutil
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from accelerate import PartialState
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils import DistributedType
from accelerate.utils.launch import prepare_multi_gpu_env
from safetensors.torch import load_file
from transformers import Trainer

import run_mirror
from mirror.common.errors import InputError, run_main
from mirror.modeling.encoder import Encoder
from mirror.modeling.save_checkpoint import verify_encoder
from tests.processes import ROOT, run_two_processes
from tests.tiny_trainer import make_trainer


CONFIGURATIONS = sorted((ROOT / "accelerate_configs").glob("*.yaml"))
TRAINING = (
    *("--per_device_train_batch_size", "10", "--gather_negatives", "--bf16", "false", "--validation_samples", "0"),
    *("--pooling", "mean", "--max_seq_length", "24", "--span_mask_min_chars", "10", "--num_train_epochs", "2"),
    *("--seed", "5", "--save_strategy", "steps", "--save_steps", "10", "--disable_tqdm", "true", "--use_cpu"),
    *("--learning_rate", "2e-5", "--keep_duplicates", "--dropout_rate", "0"),
)


def as_launched(configuration: Path | str, *flags: str) -> Namespace:
    """Return the arguments of `accelerate launch`, completed from a configuration file by its own code."""
    path = ROOT / "accelerate_configs" / configuration
    args = launch_command_parser().parse_args(["--config_file", str(path), *flags, "run_mirror.py"])
    return _validate_launch_command(args)[0]


@pytest.mark.parametrize("configuration", CONFIGURATIONS, ids=lambda path: path.stem)
def test_accelerate_reads_every_configuration(configuration):
    args = as_launched(configuration)
    assert args.num_processes >= 1 and args.mixed_precision in ("no", "fp16", "bf16")
    several = "NO" not in configuration.read_text().split("distributed_type:")[1].split("\n")[0]
    assert bool(args.multi_gpu or args.use_fsdp or args.use_deepspeed) == several


def test_the_launcher_has_what_the_files_of_fsdp_and_deepspeed_say():
    """What deepspeed tells its processes needs the package itself, which has no build for a machine without a GPU."""
    told = prepare_multi_gpu_env(as_launched("fsdp.yaml"))
    expected = {
        "ACCELERATE_USE_FSDP": "true",
        "ACCELERATE_MIXED_PRECISION": "bf16",
        "FSDP_VERSION": "2",
        "FSDP_TRANSFORMER_CLS_TO_WRAP": "XLMRobertaXLLayer",
        "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT",
        "FSDP_CPU_RAM_EFFICIENT_LOADING": "false",
    }
    assert {name: told[name] for name in expected} == expected
    args = as_launched("deepspeed_zero2.yaml")
    assert args.use_deepspeed and str(args.zero_stage) == "2" and args.mixed_precision == "bf16"
    assert args.offload_optimizer_device == args.offload_param_device == "none"
    assert args.gradient_accumulation_steps == "auto"


@pytest.fixture
def fsdp(monkeypatch, bert_folder, sentences, tmp_path):
    """Return a function that trains in two processes with accelerate_configs/fsdp.yaml, in float32."""
    args = as_launched("fsdp.yaml", "--fsdp_transformer_layer_cls_to_wrap", "BertLayer", "--mixed_precision", "no")
    for name, value in prepare_multi_gpu_env(args).items():
        if name.startswith(("ACCELERATE_", "FSDP_")):
            monkeypatch.setenv(name, value)
    (tmp_path / "texts.txt").write_text("\n".join(sentences) + "\n")

    def train(*flags: str) -> Path:
        inputs = ("--model_name_or_path", bert_folder, "--train_file", str(tmp_path / "texts.txt"))
        out = tmp_path / "fsdp"
        done = run_two_processes(
            "-m", "tests.training.test_fsdp", *inputs, "--output_dir", str(out), *TRAINING, *flags
        )
        assert "pytorch_model_fsdp" in done.stdout + done.stderr  # or it was not FSDP
        return out

    return train


@pytest.mark.slow
def test_fsdp_trains_as_one_process_and_resumes_and_every_reader_loads_it(fsdp, bert_folder, sentences, tmp_path):
    one = make_trainer(bert_folder, sentences, tmp_path / "one", learning_rate=2e-5, dropout_rate=0.0)
    one.train()
    out = fsdp()
    trained, alone = load_file(out / "model.safetensors"), one.model.state_dict()
    for name, value in alone.items():
        if name.endswith("key.bias"):
            continue  # its gradient is rounding alone, which AdamW makes steps of full length of
        torch.testing.assert_close(trained[name], value, atol=2e-5, rtol=1e-4, msg=name)
    readers = verify_encoder(out, Encoder.from_pretrained(str(out)), sentences[:20])
    assert len(readers) == 2 and min(readers.values()) > 0.9999

    assert (out / "checkpoint-20" / "optimizer.bin").exists()
    (out / "model.safetensors").unlink()
    shutil.rmtree(out / "checkpoint-20")
    fsdp("--resume_from_checkpoint", "auto")
    resumed = load_file(out / "model.safetensors")
    assert all(torch.equal(resumed[name], value) for name, value in trained.items())


@pytest.mark.parametrize("flag", [{"lora_rank": 2}, {"projection_head": True}, {"merge": "0.5"}], ids=str)
def test_what_fsdp_cannot_train_is_refused(bert_folder, sentences, tmp_path, monkeypatch, flag):
    if "lora_rank" in flag:
        pytest.importorskip("peft")
    create = Trainer.create_accelerator_and_postprocess

    def create_with_fsdp(self):
        create(self)
        self.is_fsdp_enabled = True

    monkeypatch.setattr(Trainer, "create_accelerator_and_postprocess", create_with_fsdp)
    with pytest.raises(InputError, match=f"--{next(iter(flag))} does not work with FSDP"):
        make_trainer(bert_folder, sentences, tmp_path, **flag)


if __name__ == "__main__":
    # Each of the two processes runs run_mirror.py with weights spread over the processes, on gloo. accelerate sets FSDP up
    # on accelerators only, and says nothing on a CPU. So processes on a CPU are reported to it as processes on GPUs.
    initialize = PartialState.__init__

    def as_on_gpus(self, *args, **kwargs):
        initialize(self, *args, **kwargs)
        if self.distributed_type == DistributedType.MULTI_CPU:
            self.distributed_type = DistributedType.MULTI_GPU

    PartialState.__init__ = as_on_gpus
    run_main(run_mirror.main)
