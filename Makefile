# The words of the README are targets here. Each sets up what it needs in .venv and says what it is doing.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt

INSTALL_INPUTS := pyproject.toml setup.py constraints.txt src/klamm/coordinator/groups/kernels.py \
	$(wildcard src/klamm/records/kernels/*.py src/klamm/records/kernels/*.pxd)

# More workers than the two cores of the smallest machine: tests often wait for processes, timers and disks.
TEST_WORKERS ?= 4

.PHONY: help java setup demo test long check fuzz compat ecosystem ecosystem-quick bench sim sim-bugs campaign chaos docs audit clean

help:
	@echo "make demo    a bank that runs while you watch: a node, two services, a pipeline on Spark (Java 17+)"
	@echo "make test    run the tests (Python 3.11+, the package index and, for Spark, Java 17+ are all they need)"
	@echo "make long    the tests that take half a minute and more each, most of them on Spark"
	@echo "make check   format, lint, types, imports"
	@echo "make compat  Apache Kafka's tools and the Java, Go and JS clients against Klamm (mvn, go, node)"
	@echo "make ecosystem  Streams, Connect, MirrorMaker, Flink, Spring, Pekko and more on three nodes (BROKER=kafka: the control)"
	@echo "make ecosystem-quick  the part of it that judges every change"
	@echo "make bench   side by side with Apache Kafka: ratios, a JSON file, a plot"
	@echo "make sim     the seeded simulations, longer than in make test (SEEDS=2000; SEED=7 tells the story of one)"
	@echo "make sim-bugs  plant bugs into the cluster and see the simulation catch them"
	@echo "make campaign  kill tasks, drivers and brokers at every named point of the exactly-once sink; random pipelines"
	@echo "make chaos   faults on real processes, judged by what clients saw (MINUTES=60)"
	@echo "make fuzz    mutated requests of every API and version, logins, TLS records, settings (MINUTES=30 SEED=7)"
	@echo "make audit   compare the pinned dependencies with the public record of vulnerabilities (needs a network)"
	@echo "make docs    write the generated reference pages and build the site: build/site/index.html"
	@echo "make clean   remove what the other targets made"

java:
	@found=$$("$${JAVA_HOME:+$$JAVA_HOME/bin/}java" -version 2>&1 | sed -n 's/.*version "\(1\.\)\{0,1\}\([0-9]*\).*/\2/p'); \
		test "$${found:-0}" -ge 17 || { echo "Spark needs Java 17 or newer and there is $${found:-none}: install one" \
		"(apt install openjdk-17-jre-headless, brew install openjdk@17, ...) or set JAVA_HOME"; exit 1; }

setup: $(VENV)/.installed

$(VENV)/.installed: $(INSTALL_INPUTS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Klamm needs Python 3.11 or newer; name one with: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@echo "== setting up $(VENV): dependencies, compiled kernels (the first time PySpark, 460 MB: a minute or two)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --upgrade pip
	@$(BIN)/python tools/install.py --editable '.[all,test,check,bench,docs]'
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -m compileall -q src/klamm
	@$(BIN)/python -c 'import klamm.records as r; print("== kernels:", "compiled" if r.kernels_compiled() else "interpreted")'
	@touch $@

demo: java setup
	@$(BIN)/python examples/demo.py $(ARGS)

test: java setup
	@$(BIN)/python tools/browser.py
	@echo "== tests"
	@$(BIN)/python -m pytest -n $(TEST_WORKERS) --dist loadgroup -m "not long"

long: java setup
	@$(BIN)/python tools/browser.py
	@echo "== long tests"
	@$(BIN)/python -m pytest -n 3 --dist loadgroup -m long

check: setup
	@echo "== format"
	@$(BIN)/ruff format --check --quiet .
	@echo "== lint"
	@$(BIN)/ruff check --quiet .
	@echo "== types"
	@$(BIN)/mypy --no-error-summary
	@echo "== imports"
	@$(BIN)/lint-imports --no-logo

# Not part of .ci/run: without a network there is no answer, and a change must not wait for one.
audit:
	@echo "== audit: known vulnerabilities of the dependencies"
	@$(PYTHON) tools/audit.py constraints.txt

compat: java setup
	@echo "== compatibility: Kafka's own tools, Java, Go and JS clients"
	@$(BIN)/python -m compat

ecosystem: java setup
	@echo "== ecosystem: programs written elsewhere on three nodes"
	@$(BIN)/python -m ecosystem --record --broker $(or $(BROKER),klamm) $(ARGS)

ecosystem-quick: java setup
	@echo "== ecosystem: the part that judges every change"
	@$(BIN)/python -m ecosystem --quick $(ARGS)

bench: setup
	@echo "== side by side with Apache Kafka"
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -m compileall -q src/klamm
	@$(BIN)/python -m benchmarks $(ARGS)

sim: setup
	@echo "== a cluster under simulation"
	@$(BIN)/python -m simulation $(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),1000) --first $(or $(FIRST),0))
	@echo "== the quorum under simulation"
	@KLAMM_SIM_SEEDS=$(or $(SEEDS),1000) $(BIN)/python -m pytest -q tests/raft/test_simulation.py
	@echo "== crashes"
	@KLAMM_SIM_SEED=$(or $(SEED),0) KLAMM_SIM_CUTS=$(or $(CUTS),6000) \
		$(BIN)/python -m pytest -q -n 2 tests/storage/test_campaign.py
	@echo "== flipped bits"
	@KLAMM_SIM_SEED=$(or $(SEED),0) KLAMM_SIM_FLIPS=$(or $(FLIPS),100) \
		$(BIN)/python -m pytest -q -n 2 tests/storage/test_flipped_bits.py
	@echo "== soak"
	@KLAMM_SIM_SEED=$(or $(SEED),0) KLAMM_SOAK_KEYS=$(or $(KEYS),1000000) KLAMM_SOAK_ROUNDS=$(or $(ROUNDS),20) \
		$(BIN)/python -m pytest -q tests/storage/test_soak.py

sim-bugs: setup
	@echo "== planted bugs"
	@$(BIN)/python -m simulation --bugs --seeds $(or $(SEEDS),2000)

campaign: java setup
	@echo "== exactly once from Spark: every kill point"
	@KLAMM_CAMPAIGN=all $(BIN)/python -m pytest -q -n 2 tests/pipeline/test_campaign.py tests/pipeline/test_kill_points.py \
		tests/pipeline/test_adoption_kills.py tests/pipeline/postgres/test_capture_kills.py
	@$(BIN)/python -m pytest -q tests/pipeline/driver_kills.py tests/pipeline/start_kills.py \
		tests/pipeline/lake_kills.py tests/pipeline/rebuild_kills.py
	@echo "== checkpoints restored, removed and adopted: a sink of every kind"
	@KLAMM_CAMPAIGN=all $(BIN)/python -m pytest -q tests/pipeline/sql/test_restored_checkpoints.py \
		tests/pipeline/sql/backups_of_steps.py
	@echo "== joined tables: deletions, batches that die, more partitions"
	@$(BIN)/python -m pytest -q tests/pipeline/sql/joins_on_a_cluster.py
	@echo "== exactly once from a cluster of Spark: executors killed"
	@KLAMM_CAMPAIGN=all $(BIN)/python -m pytest -q tests/pipeline/standalone
	@echo "== each feature of the SQL by plain Python"
	@KLAMM_PIPELINE_SEEDS=$(or $(SEEDS),200) $(BIN)/python -m pytest -q tests/pipeline/sql/test_semantics.py
	@echo "== pipelines that change between runs, by plain Python"
	@KLAMM_PIPELINE_SEEDS=$(or $(SEEDS),200) $(BIN)/python -m pytest -q tests/pipeline/sql/changing_pipelines.py

chaos: setup
	@echo "== chaos"
	@PYTHONPATH=tests $(BIN)/python -m chaos.run --minutes $(or $(MINUTES),10) $(if $(SEED),--seed $(SEED)) $(if $(SECURED),--secured) --report docs/chaos-report.md

fuzz: setup
	@echo "== hostile requests"
	@PYTHONPATH=tests $(BIN)/python -m fuzz --minutes $(or $(MINUTES),30) $(if $(SEED),--seed $(SEED))

docs: setup
	@echo "== reference pages"
	@$(BIN)/python docs/generate.py
	@echo "== site"
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "build/site/index.html"

clean:
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests compat ecosystem benchmarks -name '__pycache__' -prune -exec rm -rf {} +
	find src -name '*.so' -delete
