# make bench      measure this machine: installs OpAtlas into .venv, then runs `pytest bench/`
# make test       check this checkout: installs what the tests need too, then runs linters and tests
#                 `make test T=tests/row` runs a part of the tests, in seconds
# make test-slow  runs the tests that `make test` leaves out: further random kills, the commands of the pages
# make fuzz       fuzzes everything that OpAtlas reads, a minute for each parser: SECONDS=600 ARGS="trace catalog"
# make gpu-database DB=FOLDER   makes the rows of a GPU's database, and measures those that have no duration yet
# make coverage   runs the tests and tells which branches of database, plugins and shapes no test takes
#
# ARGS="..." is added to the pytest command line; PYTHON=... names the Python to make .venv with.

VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install -c constraints.txt
REQUIREMENTS := pyproject.toml constraints.txt
# The part of the tests that runs, and of which marks; a part of them runs without linters.
T := tests
MARKS := not slow
# A file at a time for each of four workers, twice the cores of a small machine: sessions wait for half of their time.
PYTEST = $(BIN)/python -m pytest $(T) -q -rs -n 4 --dist=loadfile --no-loadscope-reorder

.PHONY: help bench test test-slow fuzz coverage gpu-database
.DELETE_ON_ERROR:

help:
	@sed -n 's/^# \{0,1\}//p;/^$$/q' Makefile

bench: $(VENV)/.installed
	$(BIN)/python -m pytest bench/ $(ARGS)

test: $(VENV)/.installed-for-tests
ifeq ($(T),tests)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
endif
	$(PYTEST) -m "$(MARKS)" $(ARGS)

# The files of no such test are not collected, which takes longer than most of these.
test-slow: T := $(shell grep -rl "mark.slow" tests --include='test_*.py')
test-slow: $(VENV)/.installed-for-tests
	$(PYTEST) -m slow $(ARGS)

SECONDS := 60
fuzz: $(VENV)/.installed-for-tests
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS) $(ARGS)

# The rows that matter most come first, so that a session that is cut off has them; a further one continues it. Rows that
# fail do not end it.
GPU_FILES := $(patsubst %,bench/test_%.py,matmul moe attention norm indexing elementwise movement)
LIBRARY_FILES := $(patsubst %,bench/test_%.py,attention norm rope moe matmul)
GPU_SESSION = $(BIN)/python -m pytest --update-mode missing-only $(ARGS)
gpu-database: $(VENV)/.installed
	@test -n "$(DB)" || { echo "Name the folder: make $@ DB=FOLDER" >&2; exit 1; }
	$(BIN)/python -m opatlas.shapes.starter $(DB)
	-$(GPU_SESSION) $(GPU_FILES) --database-path $(DB)/torch
	-$(GPU_SESSION) $(LIBRARY_FILES) --database-path $(DB)/libraries --implementation flashinfer,liger
	-$(GPU_SESSION) bench/ --database-path $(DB)/compiled --implementation flag_gems \
	    --ops DynamicQuant,DynamicBlockQuant,AddRmsNormBias,QuantBatchMatmulV3,GroupedMatmul
	-$(GPU_SESSION) bench/ --database-path $(DB)/compiled --implementation torch_compile \
	    --ops AddRmsNormDynamicQuant,AscendQuantV2,MaskedFill,PadV3

# Of each branch, in whichever process: what a session that is killed has run is not counted.
coverage: $(VENV)/.installed-for-tests
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest tests -q -n 4 --dist=loadfile --no-loadscope-reorder -m "not slow" $(ARGS)
	$(BIN)/coverage combine
	$(BIN)/coverage report

# The stamps: set-up is done again only when what is required has changed.
$(VENV)/.installed: $(REQUIREMENTS) | $(VENV)/.made
	$(PIP_INSTALL) -e '.[bench]'
	@touch $@

$(VENV)/.installed-for-tests: $(REQUIREMENTS) | $(VENV)/.made
	$(PIP_INSTALL) -e '.[test]'
	@touch $@ $(VENV)/.installed

# python3 if it will do, else the newest that does. One without ensurepip cannot make an environment
# (Debian keeps it in a package of its own).
$(VENV)/.made:
	@for python in $(or $(PYTHON),python3 python3.13 python3.12 python3.11 python3.10); do \
	    "$$python" -c 'import sys, venv, ensurepip; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' \
	        2>/dev/null || continue; \
	    echo "$$python -m venv $(VENV)"; \
	    "$$python" -m venv --clear $(VENV) && touch $@ && exit 0; \
	    exit 1; \
	done; \
	echo "No Python for OpAtlas: it needs 3.10 to 3.13 with the venv module ($(or $(PYTHON),python3 and python3.10 to python3.13) tried)." >&2; \
	echo "Install one (with Debian's packages: python3 and python3-venv), or name it: make $(MAKECMDGOALS) PYTHON=/path/to/python3.11" >&2; \
	exit 1
