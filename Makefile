# Everything a newcomer or CI needs. `make demo` and `make test` create .venv when it is missing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test check format clean

demo: $(STAMP)
	$(BIN)/shoal demo

test: $(STAMP)
	$(BIN)/python -m pytest -q -n 2 --dist worksteal

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	PYTHONPATH=src $(BIN)/lint-imports --no-cache
	$(BIN)/codespell

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Dependencies are pinned in constraints.txt; the stamp follows it, so a changed pin reinstalls.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[torch,report,data,dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist src/*.egg-info
