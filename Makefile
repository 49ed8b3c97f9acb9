SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

GO ?= go
CACHE := $(CURDIR)/.cache
FUZZTIME ?= 60s

# No C: programs link in seconds, and share what e2e/build.sh has compiled.
export CGO_ENABLED ?= 0

# The tests run real peers. Their targets say what they build, and do nothing
# the second time.
TEST_TOOLS := controlplane

# When make started, in seconds since 1970.
STARTED ?= $(shell date +%s)
STARTED := $(STARTED)

# What each area brings along: hosts (kustomize, Argo CD's plugin server), a
# control plane for tests, builds, benchmarks.
include $(wildcard catalog/catalog.mk e2e/hosts/hosts.mk e2e/e2e.mk e2e/bench/bench.mk builds/builds.mk render/apply/apply.mk)

.PHONY: help
help: ## Show the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sort -u | sed -E 's/^([a-z0-9-]+):[^#]*## /\1\t/' | expand -t 20

.PHONY: build
build: ## Build the commands into bin
	@echo "building the commands (minutes the first time)"
	@mkdir -p bin
	$(GO) build -o bin/ ./cmd/...

.PHONY: demo
demo: build ## Render the examples and show what was added
	@examples/demo.sh

.PHONY: test
test: build test-tools ## Build what the tests need and run them all
	@echo "testing"
	$(GO) vet ./...
	$(GO) test -timeout 30m ./...
	@STARTED=$(STARTED) $(MAKE) --no-print-directory test-e2e

.PHONY: test-tools
test-tools: $(TEST_TOOLS)

.PHONY: check
check: test ## What a change has to pass: format, tests, and a minute of each fuzz target
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { gofmt -l $$(git ls-files '*.go'); echo "run gofmt"; exit 1; }
	@$(GO) list -f '{{.ImportPath}}' ./functions/... ./render/... ./builds/... 2>/dev/null | while read -r pkg; do \
		for target in $$($(GO) test -list '^Fuzz' "$$pkg" | grep '^Fuzz'); do \
			echo "fuzzing $$target for $(FUZZTIME)"; \
			$(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 10x "$$pkg" || exit 1; \
		done; \
	done

.PHONY: clean
clean: ## Remove what was built here
	rm -rf bin $(CACHE)
