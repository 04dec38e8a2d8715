# Every target makes its own environment in .venv (pinned by constraints.txt) and is quick the second time.
PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
# The sources that users install are on the path of the editable install, so only these files matter here.
PINS := pyproject.toml constraints.txt

.PHONY: help demo test test-kernels test-gpu fuzz lint docs bench chaos clean
help:
	@echo "make demo    train two small models on lesions of known truth, compare them, write a page"
	@echo "make test    run the test suite on CPU"
	@echo "make test-kernels  the kernels in Triton's interpreter and its compiler, in every size"
	@echo "make test-gpu run the tests that need a CUDA GPU"
	@echo "make fuzz    every file reader on 2,500 damaged files and all bombs (make test runs a tenth of them);"
	@echo "             SEEDS=1-20 CASES=50000 for other ones"
	@echo "make lint    ruff and mypy"
	@echo "make docs    build the documentation into site/"
	@echo "make bench   the benchmarks that run on this machine"
	@echo "make chaos   kill training runs and workers 65 times, two writers at once, reads of a live run; compare their ends"
	@echo "make clean   remove .venv and runs/"

.venv/.base: $(PINS)
	@echo "hpunet: making .venv and installing the pinned packages (first time only; torch is large)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "hpunet needs Python 3.11 or newer; set PYTHON=/path/to/python3.11")'
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check "pip>=25.1"
	@$(INSTALL) --editable ".[data,report,tf,view]"
	@touch $@

.venv/.dev: .venv/.base
	@echo "hpunet: installing the test and lint tools"
	@$(INSTALL) --group dev
	@touch $@

demo: .venv/.base
	@$(BIN)/hpunet demo

test: .venv/.dev
	@echo "hpunet: running the test suite on CPU; failures and the slowest tests are listed below"
	@$(BIN)/python -m pytest --numprocesses auto --maxprocesses 8 --dist worksteal

test-kernels: .venv/.dev
	@echo "hpunet: running the tests of the kernels in every size"
	@HPUNET_ALL_KERNELS=1 $(BIN)/python -m pytest --numprocesses auto --maxprocesses 8 tests/kernels

test-gpu: .venv/.dev
	@$(BIN)/python -c 'import sys, torch; sys.exit(None if torch.cuda.is_available() else "hpunet: no CUDA GPU here, so nothing was tested")'
	@echo "hpunet: running the tests that need a GPU"
	@$(BIN)/python -m pytest -m gpu

fuzz: .venv/.dev
	@echo "hpunet: damaged files and bombs, each within 2 s and 512 MiB; replay one by tests/fuzz/harness.py --case N"
	@$(BIN)/python tests/fuzz/harness.py $(if $(SEEDS),--seeds $(SEEDS)) $(if $(CASES),--cases $(CASES))

lint: .venv/.dev
	@echo "hpunet: ruff (style, imports, bugs), then mypy --strict on src/"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

docs: .venv/.dev
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "hpunet: site/index.html"

bench: .venv/.base
	@$(BIN)/hpunet bench
	@$(BIN)/python benchmarks/metrics.py

chaos: .venv/.dev
	@$(BIN)/python tests/helpers/two_processes.py
	@$(BIN)/python tests/helpers/chaos.py
	@$(BIN)/python tests/helpers/two_at_once.py

clean:
	rm -rf .venv runs site
