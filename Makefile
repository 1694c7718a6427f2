# make demo   start the page, trace the bundled samples    make bench  the claims about speed
# make test   install what the tests need, run them all    make check  lint, types, layers, dead code
# make test-faults   the faults that take long: processes killed, disks filled, 10,000 requests (docs/reliability.md)
# make fuzz   drawn requests, filters, jobs and bytes, TIMES=20 as many as in make test    make soak   MINUTES=120 of load
# make bench-gpu   equality, steps, tracing, dreams and memory on a GPU; DRY_RUN=1 tries it without one

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
DATA ?= .data
# Where CPU builds of PyTorch come from when no GPU is there.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
TORCH := $(shell sed -n 's/^torch==//p' constraints.txt)
PIP := $(BIN)/python -m pip --disable-pip-version-check
TREE := build/tree
# Two at a time, each with whole files, ports and folders of its own: WORKERS=0 for one after the other.
TWO = -n $(or $(WORKERS),2) --dist loadfile --no-loadscope-reorder
SOURCES := engine backend frontend tests benchmarks tokenpaths packaging setup.py
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: wheels docs tour science container-test tree demo test test-faults fuzz soak bench bench-gpu check browser clean

demo: $(VENV)/.installed
	@$(BIN)/tokenpaths up --demo --data-dir $(DATA)

test: $(VENV)/.installed-test browser
	$(BIN)/python -m pytest $(TWO)

test-faults: $(VENV)/.installed-test browser
	$(BIN)/python -m pytest $(TWO) -m slow_fault tests/faults

# What the fuzzers find when they look for longer, at other places each time.
fuzz: $(VENV)/.installed-test
	FUZZ_TIMES=$(or $(TIMES),20) FUZZ_EXAMPLES=300 $(BIN)/python -m pytest -n $(or $(WORKERS),2) --timeout 7200 tests/fuzz \
		tests/engine/adapters/logs/test_log_fuzz.py

# The picture is drawn of a soak that found something too, and `$(BIN)/python -m tests.faults.soak_picture` draws what
# one that was ended left in build/soak.json.
soak: $(VENV)/.installed-test browser
	@code=0; $(BIN)/python -m tests.faults.soak --minutes $(or $(MINUTES),120) || code=$$?; \
	test ! -f build/soak.json || $(BIN)/python -m tests.faults.soak_picture || exit 1; exit $$code

check: $(VENV)/.installed-test tree
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	cd $(TREE) && PYTHONPATH=. $(abspath $(BIN))/lint-imports --config $(abspath pyproject.toml)
	cd $(TREE) && $(abspath $(BIN))/mypy --config-file $(abspath pyproject.toml) -p tokenpaths
	! $(BIN)/vulture | grep -vE '^(tests|benchmarks)/'
	$(BIN)/python -m pytest tests/test_doctests.py

# The folders as the package that they are imported as: static tools see no mapping of setuptools.
tree:
	@mkdir -p $(TREE)/tokenpaths
	@for name in engine backend frontend; do ln -sfn $(CURDIR)/$$name $(TREE)/tokenpaths/$$name; done
	@for path in tokenpaths/*; do ln -sfn $(CURDIR)/$$path $(TREE)/tokenpaths/$${path##*/}; done

# The documentation as a site in site/, which goes into the wheel; every warning is an error.
docs: $(VENV)/.installed-docs tree
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# tokenpaths (source and wheel) and tokenpaths-models into dist/.
wheels: docs
	@$(PIP) install -q build
	$(BIN)/python packaging/wheels.py

# data/tour, which Home shows before anything was traced: from shipped models and bundled samples, in two minutes.
tour: $(VENV)/.installed
	$(BIN)/python packaging/tour.py

# docs/science and the other generated pages, from the kept results of the benchmarks.
science: $(VENV)/.installed-test
	$(BIN)/python -m benchmarks.science

# As root, with buildah and debootstrap: the Dockerfile built, the services of docker-compose.yml run and looked at.
container-test: $(VENV)/.installed-test browser
	$(BIN)/python packaging/container.py

bench: $(VENV)/.installed
	$(BIN)/python -m benchmarks.bench

bench-gpu: $(VENV)/.installed-test
	$(BIN)/python -m benchmarks.gpu $(if $(DRY_RUN),--dry-run)

browser:
	@$(PYTHON) tests/browser/chromium.py

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# The CPU build first: with none at hand and no GPU, from PyTorch's own index; at last whatever there is.
$(VENV)/.torch: constraints.txt | $(VENV)/bin/python
	@if command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L >/dev/null 2>&1; then \
		$(PIP) install -q "torch==$(TORCH)"; \
	else \
		$(PIP) install -q "torch==$(TORCH)+cpu" 2>/dev/null \
		|| $(PIP) install -q --extra-index-url $(TORCH_INDEX) "torch==$(TORCH)+cpu" 2>/dev/null \
		|| $(PIP) install -q "torch==$(TORCH)"; \
	fi
	@touch $@

$(VENV)/.installed: pyproject.toml constraints.txt $(VENV)/.torch
	@echo "Installing Tokenpaths into $(VENV) …"
	@$(PIP) install -q -c constraints.txt -e .
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	@$(PIP) install -q -c constraints.txt -e ".[test]"
	@touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	@$(PIP) install -q -c constraints.txt -e ".[docs]"
	@touch $@

clean:
	rm -rf $(VENV) build site *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
