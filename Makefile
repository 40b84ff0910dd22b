# A bare machine needs make and Python 3.11 or newer; each target sets up what it needs in .venv. No GPU is needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.set-up

M ?= 16
KV ?= 8192
OPS ?=
TRIALS ?= 100

.DEFAULT_GOAL := help
.PHONY: help setup tune test lint gpu-test

help:
	@echo "make setup      install mktune and its tools into $(VENV)"
	@echo "make tune       tune glm52_attention_prefix, on the GPU or else on the simulator"
	@echo "                (M=$(M) KV=$(KV) TRIALS=$(TRIALS); OPS=A0,B0 for a part of it)"
	@echo "make test       lint and every test that needs no GPU"
	@echo "make lint       ruff, ruff format --check, mypy"
	@echo "make gpu-test   the tests that need an NVIDIA GPU"

setup: $(STAMP)

# Where the host's Python brings torch with CUDA, the environment sees it and the GPU host's versions hold.
$(STAMP): pyproject.toml constraints.txt constraints-gpu.txt
	@command -v $(PYTHON) >/dev/null || { echo "make: $(PYTHON) not found: install Python 3.11 or newer, or: make PYTHON=/path/to/python" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make: $$($(PYTHON) --version) is too old, mktune needs 3.11: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "make: $(PYTHON) has no venv module: apt-get install python3-venv" >&2; exit 1; }
	@set -e; \
	if $(PYTHON) -c 'import sys, torch; sys.exit(torch.version.cuda is None)' 2>/dev/null; \
	then site=--system-site-packages; constraints=constraints-gpu.txt; else site=; constraints=constraints.txt; fi; \
	$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $$site $(VENV); \
	echo "installing mktune into $(VENV) with the versions of $$constraints"; \
	$(BIN)/python -m pip install --quiet -c $$constraints -e '.[test]'
	@touch $@

tune: setup
	$(BIN)/mktune tune glm52_attention_prefix $(if $(OPS),--ops $(OPS)) --m $(M) --kv $(KV) --trials $(TRIALS)

test: lint
	$(BIN)/python -m pytest -n 2

lint: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

# What measures times runs after the rest and by itself; all visible GPUs take part in both. A part of it, by hand:
#   python -m pytest -m 'gpu and not gpu_alone' -n auto tests/gpu
#   python -m pytest -m 'gpu and gpu_alone' tests/gpu/test_trace.py
gpu-test:
	@set -e; \
	gpu='import sys, torch, xdist; sys.exit(not torch.cuda.is_available())'; \
	python=$(PYTHON); \
	$$python -c "$$gpu" 2>/dev/null || { $(MAKE) --no-print-directory setup; python=$(BIN)/python; }; \
	$$python -c "$$gpu" || { echo "make: gpu-test needs an NVIDIA GPU, and this machine has none that torch can use" >&2; exit 1; }; \
	export PYTHONPATH="$(CURDIR)$${PYTHONPATH:+:$$PYTHONPATH}"; \
	status=0; said=$$(mktemp -d); \
	for part in "together:gpu and not gpu_alone" "alone:gpu and gpu_alone"; do \
	  MKTUNE_TEST_SUMMARY="$$said/$${part%%:*}" $$python -m pytest -q -m "$${part#*:}" -n auto tests/gpu || status=1; \
	done; \
	for part in together alone; do echo "gpu-test $$part: $$(cat "$$said/$$part" 2>/dev/null || echo did not end)"; done; \
	rm -r "$$said"; exit $$status
