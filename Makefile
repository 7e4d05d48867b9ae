# The two commands of the README are `make demo` and `make test`; each works on a fresh machine. `make help` lists all.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help demo demo-clean fetch-model compiler cluster images test lint types unit properties contract e2e format docs chaos bench-startup oldest-torch

UV := $(shell hack/bootstrap.sh)
ifeq ($(UV),)
$(error uv could not be installed; hack/bootstrap.sh says why)
endif
HACK := $(UV) run --quiet --frozen --only-group hack python -m hack
RUN := $(UV) run --quiet --frozen --group dev

help: ## List the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

demo: ## Train real handwritten digits on a real cluster, from nothing
	@$(HACK) demo

demo-clean: ## Remove the cluster and all that runs in it
	@$(HACK) cluster down

fetch-model: ## Copy what a training wrote: TRAINING=digits NAMESPACE=default TO=model
	@$(HACK) fetch-model $(or $(TRAINING),digits) --namespace $(or $(NAMESPACE),default) --to $(or $(TO),model)

cluster: ## A cluster with the training-operator and this operator, as the tests need it
	@$(HACK) operators install

images: ## Build the operator's and the trainer's images and load them into the cluster
	@$(HACK) images build

test: lint types compiler cluster oldest-torch ## All checks and tests; brings up what they need
	$(RUN) pytest --cov --cov-report=term:skip-covered

compiler: # for the stand-in of NVIDIA's library that the tests build
	@command -v cc >/dev/null || { echo "… installing a C compiler"; \
	  apt-get update -qq && apt-get install -y -qq --no-install-recommends gcc libc6-dev >/dev/null \
	  || { echo "no C compiler: install gcc and libc6-dev" >&2; exit 1; }; }

lint: ## ruff and the layers
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) lint-imports --no-cache

types: ## mypy --strict
	$(RUN) mypy

unit: ## Tests that need no cluster
	$(RUN) pytest tests/unit

oldest-torch: ## The trainer's tests on the oldest PyTorch that it supports
	UV_PROJECT_ENVIRONMENT=.venv-oldest-torch OMP_NUM_THREADS=1 \
	  $(UV) run --quiet --frozen --no-default-groups --group oldest-torch pytest tests/unit/trainer -p no:cacheprovider

properties: ## 10,000 random courses of events through the operator's decisions
	RECONCILE_EXAMPLES=10000 $(RUN) pytest tests/unit/operator/test_reconcile_properties.py

contract: ## Tests against a real API server with the real CRDs
	$(RUN) pytest tests/contract

e2e: ## Tests on the real cluster
	$(RUN) pytest tests/e2e

format: ## Format the code and sort the imports
	$(RUN) ruff check --fix .
	$(RUN) ruff format .

docs: ## Regenerate docs/api.md from the CRD
	$(RUN) python -m hack.gen_api_docs

chaos: cluster ## The fault matrix on the real cluster: SCENARIO=kill-rank-0 for one of them
	@$(RUN) python -m tests.chaos $(SCENARIO)

bench-startup: cluster ## Time to the first training step, beside a bare PyTorchJob
	$(RUN) python -m tests.bench.startup
