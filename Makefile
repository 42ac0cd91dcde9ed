# Each target makes the environment first, if there is none or if what it is made of changed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/made

.PHONY: lab test env notebooks progress mistakes bench robust

lab: $(STAMP)
	$(BIN)/jupyter lab notebooks/00_start_here.ipynb

test: $(STAMP)
	$(BIN)/python -m pytest

notebooks: $(STAMP)
	$(BIN)/python tools/notebooks.py

progress: $(STAMP)
	$(BIN)/python -m mha_lib.progress

mistakes: $(STAMP)
	$(BIN)/python -m tests.answers

robust: $(STAMP)
	$(BIN)/python tools/robust.py

bench: $(STAMP)
	$(BIN)/python benchmarks/layer.py

env: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "The course needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1)."; \
	  echo "Install a newer one, then say which: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[teach,test]"
	@touch $@
