# Each target makes the environment first: if there is none, if what it is made of changed, or if it was moved.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/made
# Options of make lab: make lab LAB="--port 9000 --no-browser"
LAB ?=
ALL_CORES := $(BIN)/python -m pytest -n logical --maxprocesses=4

.PHONY: lab teacher test browser env notebooks progress mistakes update bench robust
ifneq "$(shell test -x $(BIN)/python && cat $(STAMP) 2>/dev/null)" "$(CURDIR)"
.PHONY: $(STAMP)
endif

lab: $(STAMP)
	@$(BIN)/python tools/lab.py $(LAB)

# Shows nbgrader in JupyterLab; a new environment hides it.
teacher: $(STAMP)
	@$(BIN)/python tools/teacher.py on

# In the order of the files: by default those with few tests, the longest among them, would begin last.
test: $(STAMP)
	$(ALL_CORES) --dist loadscope --no-loadscope-reorder

browser: $(STAMP)
	$(ALL_CORES) -m browser tests/browser

notebooks: $(STAMP)
	$(BIN)/python tools/notebooks.py

progress: $(STAMP)
	$(BIN)/python -m mha_lib.progress

mistakes: $(STAMP)
	$(BIN)/python -m tests.answers

update: $(STAMP)
	$(BIN)/python tools/update.py

bench: $(STAMP)
	$(BIN)/python -m benchmarks

robust: $(STAMP)
	$(BIN)/python tools/robust.py

env: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@command -v "$(PYTHON)" >/dev/null || { \
	  echo "There is no $(PYTHON) here. Install Python 3.11 or newer, or say which: make PYTHON=python3.12"; exit 1; }
	@"$(PYTHON)" tools/make_env.py $(VENV)
