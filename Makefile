# hsops: everything a newcomer types. `make demo` and `make test` do all of their own set-up.
PY   ?= python3
VENV := .venv
BIN  := $(VENV)/bin
export PYTHONDONTWRITEBYTECODE :=
CLIENT := cli render playbook deploy doctor launch diagnose extract fetch verify export remote core# what runs on a Mac too
BESIDE := -n 2 --dist loadfile# tests that wait more than they work; a file's tests share what it has started

.PHONY: setup demo test unit integration lock-race cut cycles busy tp8 e2e matrix stalls hangs crash deaths deploy-releases flags trainers lint bench fidelity corpus report-picture pictures docs site newcomer models-table gpu-bundle gpu gpu-page constraints clean fetch-faults drain ten-thousand slurm

setup: $(VENV)/.ready ## the virtual environment and the system packages that the tests need

$(VENV)/.ready: pyproject.toml constraints.txt scripts/system-packages
	scripts/system-packages
	test -x $(BIN)/python || $(PY) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: setup ## the whole story on the lab: a real SGLang on this CPU
	$(BIN)/hsops demo

test: setup lint site ## everything that needs no GPU: two tests at a time, then those with a real SGLang, which takes every core
	$(BIN)/python -m pytest --durations=15 $(BESIDE) tests/architecture tests/unit tests/integration tests/faults
	$(BIN)/python -m pytest --durations=15 tests/e2e

unit: setup ## seconds
	$(BIN)/python -m pytest tests/unit tests/architecture -q

integration: setup
	$(BIN)/python -m pytest $(BESIDE) tests/integration tests/faults -q

lock-race: setup ## two deploys at once over SSH, fifty times: never both inside a change
	HSOPS_LOCK_ROUNDS=$(or $(ROUNDS),50) $(BIN)/python -m pytest -s tests/integration/test_lock_race.py

cut: setup ## the network is away for a minute during launch and logs -f, a stand-in's and a real SGLang's: no byte lost or doubled
	HSOPS_CUT_S=$(or $(SECONDS_AWAY),60) HSOPS_SUPERVISION=cut $(BIN)/python -m pytest -s tests/integration/test_lost_network.py tests/supervision

cycles: setup ## a server started and stopped a hundred times, a stand-in and a real SGLang: nothing is left; an hour; RESUME=1 to go on
	HSOPS_CYCLES=$(or $(ROUNDS),100) HSOPS_SUPERVISION=cycles RESUME=$(RESUME) $(BIN)/python -m pytest -s tests/integration/test_cycles.py tests/supervision

busy: setup ## what status says of a real SGLang whose queue is full: two minutes
	HSOPS_SUPERVISION=busy $(BIN)/python -m pytest -s tests/supervision

tp8: setup ## eight ranks of a real SGLang on this CPU: five minutes
	HSOPS_SUPERVISION=tp8 $(BIN)/python -m pytest -s tests/supervision

e2e: setup ## real SGLang in the lab
	$(BIN)/python -m pytest tests/e2e

matrix: setup ## every release of SGLang against the reference: an hour; VERSIONS="0.5.4 0.5.9" for some, RESUME=1 to go on
	HSOPS_MATRIX="$(or $(VERSIONS),all)" RESUME=$(RESUME) $(BIN)/python -m pytest tests/matrix tests/e2e/test_capture_faults.py tests/e2e/test_extract_fetch.py tests/e2e/test_verify_live.py

stalls: setup ## thirty launches of a real SGLang, slowed or hung on purpose: half an hour; CASES="compile@http.1" for some, RESUME=1 to go on
	HSOPS_STALLS="$(or $(CASES),all)" RESUME=$(RESUME) $(BIN)/python -m pytest -s tests/stalls

hangs: setup ## some fifty hangs and deaths of real servers, each diagnosed: half an hour; SESSIONS="spin good" for some, TP=8, RESUME=1 to go on
	HSOPS_HANGS="$(or $(SESSIONS),all)" HSOPS_HANGS_TP=$(or $(TP),2) RESUME=$(RESUME) $(BIN)/python -m pytest -s tests/hangs

crash: setup ## deploy is killed at every system call of apply, revert and repair, and every call fails: half an hour
	HSOPS_CRASH=all $(BIN)/python -m pytest -s tests/faults/test_deploy_kills.py tests/faults/test_deploy_power.py tests/faults/test_script_kills.py tests/faults/test_deploy_over_ssh.py

deaths: setup ## a rank dies at each milestone of the start, in each way: half an hour; VERSION=0.5.23 for another release, RESUME=1 to go on
	HSOPS_DEATHS="$(or $(VERSION),0.5.9)" RESUME=$(RESUME) $(BIN)/python -m pytest -s tests/e2e/test_deaths.py

deploy-releases: setup ## deploy and revert on the wheel of every release: minutes
	HSOPS_MATRIX="$(or $(VERSIONS),all)" $(BIN)/python -m pytest -s tests/matrix/test_deploy_releases.py

flags: setup ## what hsops reads of SGLang's command line and log against its own code, every release: ten minutes
	HSOPS_MATRIX="$(or $(VERSIONS),all)" $(BIN)/python -m pytest -s tests/matrix/test_flags.py tests/matrix/test_signatures.py

fetch-faults: setup ## fetch is killed a thousand times, cut off, filled up and lied to: an hour; KILLS=100 for less, RESUME=1 to go on
	$(BIN)/python -m tests.storm --kills $(or $(KILLS),1000) $(if $(RESUME),--resume)

drain: setup ## 20,000 dumps through a RAM disk of 512 MiB by fetch --follow --evict: minutes
	$(BIN)/python -m tests.storm.drain

ten-thousand: setup ## 10,000 samples of a real SGLang through a RAM disk of 256 MiB, while server and client are killed: half an hour
	$(BIN)/python -m tests.storm.ten_thousand --samples $(or $(SAMPLES),10000)

trainers: setup ## SpecForge's and speculators' own readers on an export, one training step on each: minutes, 500 MB
	HSOPS_TRAINERS=1 $(BIN)/python -m pytest tests/trainers

slurm: setup ## a real SGLang as jobs of a real Slurm: two replicas, limits, failures, preemption: ten minutes
	HSOPS_SLURM=all $(BIN)/python -m pytest -s tests/slurm

lint: setup
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy --platform darwin --cache-dir .mypy_cache/darwin --follow-imports silent $(patsubst %,--package hsops.%,$(CLIENT)) --module hsops.api & \
	$(BIN)/mypy; here=$$?; wait $$! && exit $$here # at the same time: each takes one core
	$(BIN)/lint-imports

bench: setup ## ratios against scp, rsync and others, in one run
	$(BIN)/python -m benchmarks fetch deploy export extract

fidelity: setup ## a thousand prompts on real servers, row by row: half an hour
	$(BIN)/python -m benchmarks fidelity

gpu-bundle: setup ## .gpu/site.tar.xz: SGLang with CUDA kernels, for a GPU machine without a package index
	$(BIN)/python tests/gpu/bundle.py

gpu: ## on a GPU machine with the bundle: the whole story, 10,000 samples, what capture costs and from which rate on, hangs diagnosed, and (two GPUs) that ranks agree
	tests/gpu/run.sh story
	tests/gpu/run.sh headline
	tests/gpu/run.sh cost
	tests/gpu/run.sh knee
	tests/gpu/run.sh ranks
	tests/gpu/run.sh hangs

gpu-page: setup ## docs/reference/gpu.md from RESULTS="story.json hangs.json headline.json"
	$(BIN)/python -m tests.gpu.page $(RESULTS)

models-table: setup ## renew docs/reference/models.md from the wheels of every supported SGLang
	$(BIN)/python scripts/models_table.py

report-picture: setup ## docs/images/report-*.png: the page of diagnose --html in a real browser (apt-get install chromium)
	PYTHON=$(BIN)/python scripts/report-picture

corpus: setup ## docs/reference/diagnosis.md: a hundred public reports against the rules of diagnose, by family
	$(BIN)/python -m tests.corpus
	$(BIN)/python -m tests.corpus --page

docs: setup $(VENV)/.docs ## the pages that are the code's own tables, and build/site: a dead link, or a page in no menu, fails
	$(BIN)/python -m scripts.reference
	$(BIN)/python scripts/site.py

site: setup $(VENV)/.docs # the same without writing anything in docs/
	$(BIN)/python scripts/site.py

$(VENV)/.docs: $(VENV)/.ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[docs]'
	@touch $@

newcomer: ## a clone, an empty HOME, README and the tutorial word for word, make demo included: ten minutes
	$(PY) scripts/newcomer.py --full

pictures: setup ## docs/images/launch.svg and verdict.svg: a terminal's screen after a real launch and a real hang (tmux)
	$(BIN)/python -m scripts.terminal_pictures

constraints: ## renew the pins
	$(PY) -m venv $(VENV)-new
	$(VENV)-new/bin/pip install --quiet --editable '.[dev,docs]'
	(echo '# What `make setup` installs, exactly. Renew: make constraints'; $(VENV)-new/bin/pip freeze --exclude-editable) > constraints.txt
	rm -rf $(VENV)-new

clean: ## the environment and caches; labs stay (hsops lab down --purge)
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
