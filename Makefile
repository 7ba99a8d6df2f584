# `make demo` and `make test` do all the set-up themselves; they need Python >= 3.10 and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TEST := $(BIN)/python -m pytest

.DEFAULT_GOAL := help
GPU_ARGS ?=
SLOW_ARGS ?=
SITE ?= build
.PHONY: help install demo site study-list gpu-report test test-slow test-min check clean

# make table3 STUDY_MODEL=bert-base-uncased STUDY_ARGS="--num_processes 2 -- --bf16"
STUDY_MODEL ?= mirror/assets/mini-mlm
STUDY_ARGS ?=
STUDIES := $(addprefix table,1 2 3 4 5 6 6_joint 7 8 9 10 12 13 14 21 21_words 21_phrases) \
    $(addprefix figure,4 5 7 8) cls_vs_mean side_experiments selection own_text rivals rivals_sts beyond beyond_together \
    $(addprefix cmlm_table,1 2 3 4 5 6 7) cmlm_figure2 cmlm_figure3
.PHONY: $(STUDIES)

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

# requirements-dev.txt includes those of the demo, the site, the index and LoRA.
$(VENV)/.installed: requirements.txt requirements-dev.txt requirements-demo.txt requirements-docs.txt requirements-index.txt \
    requirements-lora.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -r requirements.txt -r requirements-dev.txt
	@touch $@

# The console commands (mirror-train, ...). Needs no network: setuptools is already in the environment. -qq: only errors,
# not setuptools' general warning about editable installations.
$(VENV)/.editable: $(VENV)/.installed pyproject.toml
	$(BIN)/python -m pip install -qq --no-deps --no-build-isolation -e .
	@touch $@

install: $(VENV)/.editable ## make .venv: the pinned requirements, and this project with its commands

# The encoder that the demo adapts as well: make demo MODEL=folder, or this one where the Hub can be reached.
FROM_HUB := sentence-transformers/all-MiniLM-L6-v2
ASK_HUB := "from huggingface_hub import model_info; print(model_info('$(FROM_HUB)', timeout=5).id)"

demo: install ## train search encoders for this machine's API docs, on texts and on pairs; adapt MODEL; score before and after
	$(eval ENCODER := $(or $(MODEL),$(shell $(BIN)/python -c $(ASK_HUB) 2>/dev/null)))
	$(BIN)/python run_mirror.py --pooling mean --augmentation delete --augmentation_rate 0.8 --max_train_samples 12000 \
	    --output_dir out/demo --force
	$(BIN)/python run_mirror.py --pooling mean --pairs auto --max_train_samples 8000 --output_dir out/demo-pairs --force
	$(if $(ENCODER),$(BIN)/python run_mirror.py --model_name_or_path $(ENCODER) --max_train_samples 5000 \
	    --output_dir out/demo-adapted --force)
	$(BIN)/python run_eval.py --models mirror/assets/mini-mlm out/demo out/demo-pairs $(if $(ENCODER),$(ENCODER) out/demo-adapted) \
	    --pooling mean --tasks docs_search --output_dir out/demo-eval

site: install ## build the documentation into out/site, or show it (SITE=serve)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs $(SITE)

study-list: install ## list the studies of the paper's tables and figures; `make table3` runs one (STUDY_MODEL, STUDY_ARGS)
	$(BIN)/python run_study.py --list

$(STUDIES): install
	$(BIN)/python run_study.py $@ --model_name_or_path $(STUDY_MODEL) $(STUDY_ARGS)

gpu-report: install ## prove on one GPU that results are right, then time them (GPU_ARGS="--processes 2" for several)
	$(BIN)/python benchmarks/gpu_report.py $(GPU_ARGS)

test: install ## the test suite, under four minutes on two cores
	$(TEST) -n 2 --dist loadfile

test-slow: install ## the slow tests, under 40 minutes on two cores (SLOW_ARGS="--slow-tenth 3": a tenth of them)
	$(TEST) -m slow -n 2 --dist worksteal $(SLOW_ARGS)

# The constraints are those of the lowest scipy and datasets. Without them uv takes the newest numpy and fsspec, and then
# newer versions of scipy and datasets.
$(VENV)-min/.installed: pyproject.toml requirements-dev.txt requirements-demo.txt
	$(PYTHON) -m venv $(VENV)-min
	$(VENV)-min/bin/python -m pip install --quiet --upgrade pip uv
	printf 'numpy<2.3\nfsspec<=2026.4.0\n' > $(VENV)-min/constraints.txt
	$(VENV)-min/bin/uv pip install --quiet --python $(VENV)-min/bin/python --resolution lowest-direct \
	    -r pyproject.toml -r requirements-dev.txt -c $(VENV)-min/constraints.txt
	@touch $@

test-min: $(VENV)-min/.installed ## the test suite with the lowest versions that pyproject.toml allows
	$(subst $(BIN),$(VENV)-min/bin,$(TEST)) -n 2 --dist loadfile

check: install ## lint and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

clean: ## remove everything that these targets make
	rm -rf $(VENV) $(VENV)-min out .pytest_cache .ruff_cache build dist *.egg-info
