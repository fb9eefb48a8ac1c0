# Everything a fresh machine needs: git, make and python3. `make demo` and `make test` do the rest.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
# The versions to install; /dev/null leaves them to pip, for a Python that the pinned ones do not support.
CONSTRAINTS ?= constraints.txt

.PHONY: demo test test-slow test-everywhere test-default test-avx2 test-native fuzz check format tables notebooks pictures bench docs release-check clean
.DELETE_ON_ERROR:

# torch goes first and pinned, so that no other package can pull a different build of it.
$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint $(CONSTRAINTS) torch
	$(BIN)/pip install --quiet --constraint $(CONSTRAINTS) --editable '.[dev,docs]'
	touch $@

demo: $(READY)
	$(BIN)/orthogonium demo

test: $(READY)
	$(BIN)/python -m pytest -n auto -m "not slow"

test-slow: $(READY)
	$(BIN)/python -m pytest -n auto -m slow

# The suite as other machines see it: their instructions, their number of threads, other samples of the random tests. Each value
# occurs in one of three runs (one thread in two of them); `make test-avx2` is one run, TESTS="tests/linalg tests/methods" a part of it.
# To find which value is to blame, run the test that failed with each of the run's values alone:
# `ORTHOGONIUM_SEED=1 .venv/bin/python -m pytest "tests/linalg/test_norms.py::test_name[case]"`.
TESTS ?=
test-everywhere: test-default test-avx2 test-native

test-default: VALUES := ATEN_CPU_CAPABILITY=default OMP_NUM_THREADS=1 ORTHOGONIUM_SEED=0
test-avx2: VALUES := ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 OMP_NUM_THREADS=2 ORTHOGONIUM_SEED=1
test-native: VALUES := OMP_NUM_THREADS=1 ORTHOGONIUM_SEED=2

# Workers have one thread each, so that two threads are tried without workers.
test-default test-native: WORKERS := -n auto
test-avx2: WORKERS := -p no:xdist

test-default test-avx2 test-native: $(READY)
	env $(VALUES) $(BIN)/python -m pytest $(WORKERS) -m "not slow" $(TESTS)

# Random modules against a search for their largest quotient: FUZZ="--seed 7 --minutes 5" for another run.
FUZZ ?= --modules 10000 --seed 0 --minutes 30
fuzz: $(READY)
	$(BIN)/python -m tests.certification.fuzz $(FUZZ)

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The tables of methods on the site, from that of the library.
tables: $(READY)
	$(BIN)/python docs/tools/method_pages.py

# All tables of benchmarks/README.md, measured anew: BENCH=--quick for a look, BENCH="peers network" for some of them.
BENCH ?=
bench: $(READY)
	$(BIN)/python -m benchmarks $(BENCH)

# The notebooks of examples/, from their files.
notebooks: $(READY)
	$(BIN)/python examples/notebooks/generate.py

# The pictures of the page about examples: every example at full size; then with 64 colours, which makes them small.
pictures: $(READY)
	for example in examples/*.py; do (cd docs/pictures && MPLBACKEND=agg ../../$(BIN)/python ../../$$example) || exit 1; done
	$(BIN)/python -c "import glob, PIL.Image as i; [i.open(p).convert('RGB').quantize(64).save(p, optimize=True) for p in glob.glob('docs/pictures/*.png')]"

docs: $(READY)
	$(BIN)/mkdocs build --strict --quiet

# What is committed as sdist and wheel, each installed into an empty environment and tried outside of the clone: minutes.
RELEASE := build/release
release-check:
	rm -rf $(RELEASE) && mkdir -p $(RELEASE)
	git clone --quiet . $(RELEASE)/clone
	$(PYTHON) -m venv $(RELEASE)/builder
	$(RELEASE)/builder/bin/pip install --quiet build
	$(RELEASE)/builder/bin/python -m build --outdir $(RELEASE)/dist $(RELEASE)/clone > $(RELEASE)/build.log
	$(RELEASE)/builder/bin/python tests/release/contents.py $(RELEASE)/clone $(RELEASE)/dist
	for file in $(RELEASE)/dist/*; do \
	  env=$(CURDIR)/$(RELEASE)/$$(basename $$file).env && $(PYTHON) -m venv $$env && mkdir $$env/outside && \
	  $$env/bin/pip install --quiet --constraint $(CONSTRAINTS) torch && \
	  $$env/bin/pip install --quiet --constraint $(CONSTRAINTS) "$$file[train]" && \
	  (cd $$env/outside && ../bin/python $(CURDIR)/tests/release/smoke.py $(CURDIR)/$(RELEASE)/clone && ../bin/orthogonium demo) || exit 1; \
	done

clean:
	rm -rf .venv build site *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
