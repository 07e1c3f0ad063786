# Everything a newcomer or CI needs. `make demo` and `make test` create .venv when it is missing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Tests and demos start thousands of processes: none is to compile our modules anew.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo docs check-package test test-all test-frameworks test-versions test-switch-config chaos histories check format clean

demo: $(STAMP)
	$(BIN)/shoal demo

test: $(STAMP)
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m "not long"

# With what takes long and seldom fails, and every example of a property: a release runs it.
test-all: $(STAMP)
	SHOAL_TEST_ALL=1 $(BIN)/python -m pytest -q -n 2 --dist worksteal

# Every kind of fault in small jobs of real processes: some hours. COUNT=40 for as many of them.
COUNT ?= 1000
chaos: $(STAMP)
	$(BIN)/shoal chaos --faults $(COUNT) --json chaos.json

# Whole jobs in one process, each under one seed, so many of each kind: 100 take some minutes.
HISTORIES ?= 100
FIRST ?= 0
histories: $(STAMP)
	PYTHONPATH=src:tests/core/one_seed $(BIN)/python -m simulated --first $(FIRST) --count $(HISTORIES)

# What `make test` skips, in environments that do not fit into one: MXNet needs an older NumPy.
FRAMEWORK_TESTS := 'pytest>=8.3' 'pytest-timeout>=2.3' 'hypothesis>=6.130'
test-frameworks:
	$(PYTHON) -m venv $(VENV)-tensorflow-jax
	$(VENV)-tensorflow-jax/bin/python -m pip install --quiet -c constraints.txt -e '.[tensorflow,jax]' $(FRAMEWORK_TESTS)
	$(VENV)-tensorflow-jax/bin/python -m pytest -q --timeout 3600 tests/frameworks
	$(PYTHON) -m venv $(VENV)-mxnet
	$(VENV)-mxnet/bin/python -m pip install --quiet -e '.[mxnet]' $(FRAMEWORK_TESTS)
	$(VENV)-mxnet/bin/python -m pytest -q --timeout 3600 tests/frameworks
	$(PYTHON) -m venv $(VENV)-torch-libraries
	$(VENV)-torch-libraries/bin/python -m pip install --quiet -c constraints.txt -e '.[torch,torchft,data]' lightning accelerate 'ray[train]' $(FRAMEWORK_TESTS)
	$(VENV)-torch-libraries/bin/python -m pytest -q --timeout 3600 tests/frameworks

# With several releases of Python and torch, one after another, in environments that are removed again.
# ONLY=3.12/2.8 tries that pair, TESTS=... those tests, KEEP=1 keeps the environments.
test-versions:
	$(PYTHON) tools/test_versions.py $(if $(ONLY),--only $(ONLY)) $(if $(KEEP),--keep) $(TESTS)

# The same of switches' configurations: what their makers' generators and published schemas say of
# them. With SONIC_YANG_MODELS (docs/switch-config.md) SONiC's, too.
test-switch-config:
	$(PYTHON) -m venv $(VENV)-switch-config
	$(VENV)-switch-config/bin/python -m pip install --quiet -e . pyavd yangson pyang pyyaml $(FRAMEWORK_TESTS)
	$(VENV)-switch-config/bin/python -m pytest -q tests/core/lab/switch_config

# The site, into build/docs/html. Whatever is wrong in it, a dead link or anchor too, is an error.
# No link off the site is fetched: build/docs/external-links.txt lists them.
docs: $(VENV)/.docs
	$(BIN)/python -m sphinx -W --keep-going -q -b html -d build/docs/doctrees docs build/docs/html
	@echo "build/docs/html/index.html"

$(VENV)/.docs: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	touch $@

# Builds the package and tries it as a user gets it. RELEASE=v1.2.3 asks for a release's version,
# changelog and addresses, too.
check-package: $(STAMP)
	$(BIN)/python tools/check_package.py $(if $(RELEASE),--release $(RELEASE))

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	PYTHONPATH=src:benchmarks $(BIN)/lint-imports --no-cache
	$(BIN)/python -m pytest -q -p no:cacheprovider tests/architecture/test_faces.py -k entered
	$(BIN)/codespell

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Dependencies are pinned in constraints.txt; the stamp follows it, so a changed pin reinstalls.
$(STAMP): pyproject.toml benchmarks/pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[torch,data,dev]' -e benchmarks
	touch $@

clean:
	rm -rf $(VENV) $(VENV)-* build dist src/*.egg-info
