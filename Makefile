# Every target makes its own environment in .venv (pinned by constraints.txt) and is quick the second time.
PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
# The sources that users install are on the path of the editable install, so only these files matter here.
PINS := pyproject.toml constraints.txt

.PHONY: help demo test test-dicom test-kernels test-gpu fuzz lint docs bench chaos stress web clean
help:
	@echo "make demo    train two small models on lesions of known truth, compare them, write a page"
	@echo "make test    run the test suite on CPU"
	@echo "make test-dicom  DICOM outputs read by dcmqi, rt-utils and plastimatch, and checked by dciodvfy"
	@echo "make test-kernels  the kernels in Triton's interpreter, and compiled for six kinds of GPU, in every size"
	@echo "make test-gpu run the tests that need a CUDA GPU"
	@echo "make fuzz    every file reader on 3,150 damaged files and all bombs (make test runs a tenth of them);"
	@echo "             SEEDS=1-20 CASES=50000 for other ones"
	@echo "make lint    ruff, mypy and bandit; the viewer's page: TypeScript, eslint, and whether its build is new"
	@echo "make docs    build the documentation into site/"
	@echo "make bench   the benchmarks that run on this machine"
	@echo "make chaos   kill training runs and workers 65 times, two writers at once, reads of a live run; compare their ends"
	@echo "make stress  attack and load the viewer: hostile names and uploads, 32 clients, 500 images; 25 minutes"
	@echo "make web     build the viewer's page from web/ (needs Node 20 and npm)"
	@echo "make clean   remove .venv and runs/"

.venv/.base: $(PINS)
	@echo "hpunet: making .venv and installing the pinned packages (first time only; torch is large)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "hpunet needs Python 3.11 or newer; set PYTHON=/path/to/python3.11")'
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check "pip>=25.1"
	@$(INSTALL) --editable ".[data,export,onnx,report,tf,view]"
	@touch $@

.venv/.dev: .venv/.base
	@echo "hpunet: installing the test and lint tools"
	@$(INSTALL) --group dev
	@touch $@

web/node_modules/.installed: web/package-lock.json
	@echo "hpunet: installing what builds and tests the viewer's page"
	@cd web && npm ci --loglevel=error
	@touch $@

# Without Node the committed page is used as it is, unchecked.
ifneq ($(shell command -v npm),)
WEB := web/node_modules/.installed
in_web = @cd web && npm run --silent $(1)
else
in_web = @echo "hpunet: Node and npm are missing, so the viewer's page is not checked (npm run $(1))"
endif

web: web/node_modules/.installed
	@cd web && npm run --silent build

demo: .venv/.base
	@$(BIN)/hpunet demo

test: .venv/.dev $(WEB)
	$(call in_web,test)
	@echo "hpunet: running the test suite on CPU; failures and the slowest tests are listed below"
	@$(BIN)/python -m pytest --numprocesses auto --maxprocesses 8 --dist worksteal

# Also needs plastimatch and dciodvfy: apt-get install plastimatch dicom3tools.
# rt-utils has a folder of its own, since it brings a package called tests.
test-dicom: .venv/.dev
	@$(INSTALL) --group dicom
	@$(INSTALL) --no-deps --upgrade --target .venv/dicom rt-utils opencv-python
	@PYTHONPATH=tests/helpers:.venv/dicom $(BIN)/python tests/helpers/dicom_readers.py

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

lint: .venv/.dev $(WEB)
	@echo "hpunet: ruff (style, imports, bugs), then mypy --strict and bandit (security) on src/"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/bandit --quiet --configfile pyproject.toml --recursive src
	$(call in_web,lint)

docs: .venv/.dev
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "hpunet: site/index.html"

bench: .venv/.base
	@$(BIN)/hpunet bench
	@$(BIN)/python benchmarks/metrics.py

chaos: .venv/.dev
	@$(BIN)/python tests/helpers/two_processes.py
	@$(BIN)/python tests/helpers/chaos.py
	@$(BIN)/python tests/helpers/two_at_once.py

stress: .venv/.dev
	@$(INSTALL) --group stress
	@$(BIN)/python tests/helpers/stress_view.py
	@HPUNET_KILLS=20 $(BIN)/python -m pytest -q tests/viewer/test_browser.py

clean:
	rm -rf .venv runs site
