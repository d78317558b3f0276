PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
unexport PYTHONDONTWRITEBYTECODE  # tests start many processes, which read what the first one compiled

.PHONY: demo test test-slow docs mutations peers papers papers-check setup clean
demo: setup  ## the whole road in three minutes
	@$(BIN)/taciturn demo

test: setup  ## linter, types, tests and doctests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@echo "$(BIN)/basedpyright, and beside it $(BIN)/python -m pytest -n 3 --dist worksteal"  # on two cores: some tests wait
	@$(BIN)/basedpyright & types=$$!; $(BIN)/python -m pytest -n 3 --dist worksteal; tests=$$?; wait $$types && exit $$tests

test-slow: setup  ## everything killed again and again, and the real wire on this machine with processes; half an hour
	$(BIN)/python -m pytest -n 2 --dist worksteal -m slow tests
	TACITURN_OPTIMISED=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m '' tests/contracts tests/privacy
	$(BIN)/python -m pytest -m "" tests/link

docs: setup  ## the guide, as pages that need no network: site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

mutations: setup  ## tests of the tests: break the mechanism on purpose, and see which test notices
	$(BIN)/python tests/mutations/run.py

peers:  ## environments of other frameworks, for `python benchmarks/in_turns.py torch,pfl,fedjax`
	$(PYTHON) -m venv local/peers/torch
	local/peers/torch/bin/pip install -qq --disable-pip-version-check torch==2.13.0 numpy==2.4.6
	local/peers/torch/bin/pip install -qq --disable-pip-version-check pfl==0.6.0
	$(PYTHON) -m venv local/peers/fedjax
	local/peers/fedjax/bin/pip install -qq --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2 dm-haiku==0.0.17 fedjax==0.0.17

papers: setup  ## every table and figure of the papers beside ours, out of the committed results: experiments/README.md
	$(BIN)/python experiments/page.py

papers-check: setup  ## shrunken runs of the lists, end to end, in a few minutes
	$(BIN)/python experiments/check.py

setup: $(BIN)/.installed

$(BIN)/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "taciturn needs Python 3.11 or newer; set PYTHON=…"; exit 1; }
	@echo "Installing into $(VENV); this takes a minute or two the first time."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install -qq --disable-pip-version-check -e '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis site
