SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

GO ?= go
CACHE := $(CURDIR)/.cache
FUZZTIME ?= 60s

# No C: programs link in seconds, and share what e2e/build.sh has compiled. Where there is a
# C compiler, go build, go test and an editor share it after `go env -w CGO_ENABLED=0`.
CGO := $(shell $(GO) env CGO_ENABLED)
export CGO_ENABLED ?= 0

# The compiler and the linker collect garbage less often: a quarter less CPU, and
# more memory. What they make is the same, so that go build and go test find it in Go's
# cache.
ifeq ($(findstring -toolexec,$(GOFLAGS)),)
export GOFLAGS := $(shell $(GO) env GOFLAGS 2>/dev/null) '-toolexec=env GOGC=400'
endif

# The version that programs report where git describe finds a tag. Otherwise it is
# what the go command records.
LDFLAGS = -ldflags "-X github.com/armature-dev/armature/render/version.described=$$(git describe --tags --dirty 2>/dev/null)"

# The targets that build programs of other projects for make test-peers.
PEERS :=

# What each area brings along: the programs that tests run beside Armature, builds,
# benchmarks.
include $(wildcard catalog/catalog.mk render/deliver/flux/flux.mk e2e/e2e.mk e2e/bench/bench.mk builds/builds.mk render/deliver/apply/apply.mk)

.PHONY: help
help: ## Show the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sort -u | sed -E 's/^([a-z0-9-]+):[^#]*## /\1\t/' | expand -t 20

.PHONY: build
build: ## Build the commands into bin
	@echo "compiling the commands (minutes the first time, seconds later)"
	@mkdir -p bin
	$(GO) build $(LDFLAGS) -o bin/ ./cmd/...

.PHONY: demo
demo: ## Render the examples and show what was added; the first output takes about a minute
	@mkdir -p bin
	@GO="$(GO)" examples/demo.sh $(LDFLAGS)

# A module of its own: it reads what functions write with the libraries of the programs
# that will.
READERS := functions/internal/readers

# The packages whose tests take longest begin first.
LONGEST := ./catalog/console ./builds/controller ./e2e/operate ./render/deliver/apply ./cmd/armature ./render ./catalog/controller

# The packages whose tests link what starts $(1).
linking = $$($(GO) list -test -f '{{if eq .Name "main"}}{{$$p := .ImportPath}}{{range .Deps}}{{if eq . "github.com/armature-dev/armature/e2e/$(1)"}}{{$$p}}{{end}}{{end}}{{end}}' ./... | sed -n 's/\.test$$//p')

# What .ci/run sets to required: each of its targets then runs all that it can.
test: export ARMATURE_TEST_SERVERS ?= none
test: export ARMATURE_TEST_PEERS ?= none

.PHONY: test test-servers
test: ## Run the tests that need no server; no root, no Debian packages
	@echo "testing; the first time, compiling takes minutes"
	@[ "$(CGO)" = "$(CGO_ENABLED)" ] || echo "hint: go env -w CGO_ENABLED=0 lets go test and an editor share what is compiled here"
	@e2e/test.sh $(LONGEST) ./...
	cd $(READERS) && $(GO) test -vet=off ./...

# The packages with tests that take long, of which make test runs less.
long = $$(git grep -l 'testing\.Short()' -- '*_test.go' | xargs dirname | sed 's,^,./,')

test-servers: controlplane ## Run the tests that need a Kubernetes API, on a real etcd and kube-apiserver
	@ARMATURE_TEST_SERVERS=required e2e/test.sh $(call linking,controlplane) $(long)

.PHONY: peers test-peers
peers: $(PEERS) ## Build the programs of other projects that make test-peers needs

# The packages whose tests link e2e/programs, which they ask for one.
test-peers: controlplane peers ## Run the tests beside kustomize, Argo CD, cosign, Fulcio, kubectl, Chromium and PostgreSQL
	@e2e/packages.sh peers
	@ARMATURE_TEST_SERVERS=required ARMATURE_TEST_PEERS=required e2e/test.sh $(call linking,programs)

# The tests that measure memory under hostile input, beside the limits of the containers.
MEMORY := TestMemoryOf|TestHostileTenantMemory|TestHostileGitServersTakeNoMemory|TestStoreMemory|TestRepositoriesAtOnce|TestDifferenceBomb|TestLargeInventories|TestLargeRecords

.PHONY: bounds
bounds: controlplane ## Print how much memory hostile input takes, beside the limits of the containers
	@set -o pipefail; ARMATURE_TEST_SERVERS=required $(GO) test -count=1 -v -run '^($(MEMORY))' ./builds/controller ./builds/source/gitremote ./catalog/... ./render/deliver/... \
		| grep -E '^(FAIL|--- FAIL|panic)|MiB'

.PHONY: deps
deps: ## Install the Debian packages that make test-peers and make e2e need
	@e2e/packages.sh -i peers cluster

.PHONY: check
check: format lint govulncheck generated test test-servers test-peers test-e2e fuzz ## What a change has to pass: all tests and analyses, and a minute of each fuzz target

.PHONY: format lint vet staticcheck govulncheck generated tidy fuzz
format: ## Fail where gofmt would change a file
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { gofmt -l $$(git ls-files '*.go'); echo "run gofmt"; exit 1; }

vet: ## Run go vet
	$(GO) vet ./...
	cd $(READERS) && $(GO) vet ./...

lint: vet staticcheck ## Run go vet and staticcheck

staticcheck: ## Run staticcheck
	$(GO) run honnef.co/go/tools/cmd/staticcheck@v0.8.2 -checks inherit,-ST1005 ./... # errors may begin with a name, such as Tekton

govulncheck: ## Look for known vulnerabilities that are called; fails in CI where the database cannot be reached
	@GO="$(GO)" e2e/govulncheck.sh

generated: ## Fail where a generated file is not up to date
	@sums() { git ls-files templates/crds | xargs sha256sum; }; \
		before=$$(sums) && $(GO) generate ./builds/api ./builds/writeback/imageupdate/api ./catalog/api ./render/deliver/flux/api && after=$$(sums) && \
		{ [ "$$before" = "$$after" ] || { echo "generated files were out of date: commit them"; git diff --stat; exit 1; }; }

tidy: ## Run go mod tidy on the main module and on the one that follows it
	$(GO) mod tidy
	cd $(READERS) && $(GO) mod tidy

fuzz: ## Run each fuzz target for FUZZTIME
	@git grep -l '^func Fuzz' -- '*_test.go' | xargs -n1 dirname | sort -u | while read -r dir; do \
		for target in $$(cd $$dir && $(GO) test -list '^Fuzz' | grep '^Fuzz'); do \
			echo "fuzzing $$target for $(FUZZTIME)"; \
			(cd $$dir && $(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 10x) || exit 1; \
		done; \
	done

.PHONY: clean
clean: ## Remove what was built here
	rm -rf bin $(CACHE)
