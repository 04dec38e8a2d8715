# Every target makes its own environment in .venv (pinned by constraints.txt) and is quick the second time.
PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
# The sources that users install are on the path of the editable install, so only these files matter here.
PINS := pyproject.toml constraints.txt requirements.lock requirements-dev.lock
# What the lock files hold is installed by its hashes. torch and triton are not among it: each kind of machine has its own builds.
LOCKED := $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps --requirement
comma := ,
EXTRAS := data,export,onnx,report,tf,view

.PHONY: help demo test test-dicom test-kernels test-gpu fuzz lint docs bench chaos stress web lock audit sbom dist dist-check clean
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
	@echo "make lock    write the lock files, after a change of pyproject.toml or constraints.txt"
	@echo "make audit   ask for known vulnerabilities of what is pinned, Python and npm (needs the internet)"
	@echo "make sbom    list what is installed, with licences: dist/hpunet.cdx.json (CycloneDX), dist/licences.md"
	@echo "make dist    build wheel and sdist of the last commit into dist/, the same bytes on every machine"
	@echo "make dist-check  prove that, and try the wheel in empty environments: without extras, then with each"
	@echo "make clean   remove .venv, runs/, site/ and dist/"

.venv/.base: $(PINS)
	@echo "hpunet: making .venv and installing the pinned packages (first time only; torch is large)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "hpunet needs Python 3.11 or newer; set PYTHON=/path/to/python3.11")'
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check "pip>=25.1"
	@$(LOCKED) requirements.lock
	@$(INSTALL) --no-build-isolation --editable ".[$(EXTRAS)]"
	@touch $@

.venv/.dev: .venv/.base
	@echo "hpunet: installing the test and lint tools"
	@$(LOCKED) requirements-dev.lock
	@$(INSTALL) --group dev
	@touch $@

# What looks at the environment from outside has one of its own, so that it does not find itself.
.venv/.tools: .venv/.base
	@$(PYTHON) -m venv .venv/tools
	@.venv/tools/bin/python -m pip install --quiet --disable-pip-version-check "pip>=25.1"
	@.venv/tools/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --group audit
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

# After a change of pyproject.toml or constraints.txt, before anything is installed by them. The hashes are those of the index.
LOCK := uv pip compile pyproject.toml --universal --python-version 3.11.5 --constraint constraints.txt --upgrade \
	--generate-hashes --no-annotate --no-header --quiet --no-emit-package torch --no-emit-package triton \
	--group torch-needs $(foreach extra,$(subst $(comma), ,$(EXTRAS)),--extra $(extra))
lock:
	@$(PYTHON) -m venv .venv/lock
	@.venv/lock/bin/python -m pip install --quiet --disable-pip-version-check "pip>=25.1"
	@.venv/lock/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --group lock
	@.venv/lock/bin/$(LOCK) --group build --output-file requirements.lock
	@.venv/lock/bin/$(LOCK) --group dev --output-file requirements-dev.lock

audit: .venv/.tools $(WEB)
	@.venv/tools/bin/python tests/helpers/audit.py

sbom: .venv/.tools
	@.venv/tools/bin/python tests/helpers/sbom.py

dist: .venv/.base
	@$(BIN)/python tests/helpers/dist.py

# ONLY="none view" tries those environments alone.
dist-check: dist
	@$(BIN)/python tests/helpers/dist_check.py $(ONLY)

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
	rm -rf .venv runs site dist
