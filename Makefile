# The two commands of the README are `make demo` and `make test`; each works on a fresh machine. `make help` lists all.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help demo demo-clean cluster images test lint types unit contract e2e format docs bench-startup oldest-torch

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

cluster: ## A cluster with the training-operator and this operator, as the tests need it
	@$(HACK) operator install

images: ## Build the operator's and the trainer's images and load them into the cluster
	@$(HACK) images build

test: lint types cluster oldest-torch ## All checks and tests; brings up what they need
	$(RUN) pytest --cov --cov-report=term:skip-covered

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

contract: ## Tests against a real API server with the real CRDs
	$(RUN) pytest tests/contract

e2e: ## Tests on the real cluster
	$(RUN) pytest tests/e2e

format: ## Format the code and sort the imports
	$(RUN) ruff check --fix .
	$(RUN) ruff format .

docs: ## Regenerate docs/api.md from the CRD
	$(RUN) python -m hack.gen_api_docs

bench-startup: cluster ## Time to the first training step, beside a bare PyTorchJob
	$(RUN) python -m tests.bench.startup
