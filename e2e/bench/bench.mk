# Included by the Makefile. BENCH passes flags on: make bench BENCH='-sizes 10,100'
.PHONY: bench bench-newcomer bench-compile bench-istioctl
bench: ## Measure rendering against its peers; takes about ten minutes
	go run ./e2e/bench $(BENCH)

REVISION ?= HEAD
bench-compile: ## Print packages, size and CPU seconds of armature compiled from nothing, of REVISION='v0.1.0 HEAD'
	@e2e/bench/compile.sh $(REVISION)

bench-newcomer: ## Measure make demo and make test in an empty clone, of REVISION='v0.1.0 HEAD'
	@e2e/bench/newcomer.sh $(REVISION)

# What each row measures is said by its benchmark, BenchmarkScale….
SCALE ?= sources kustomize argocd attest fleet
.PHONY: bench-scale
bench-scale: controlplane hosts flux chains ## Print what many objects cost beside peers, of SCALE='sources:100,500 kustomize'; takes half an hour
	@e2e/bench/scale.sh $(SCALE)

bench-istioctl: ## Build istioctl as one more peer of bench; takes half an hour
	cd e2e/bench/istioctl && nice -n 10 go build -o ../../../.cache/bin/istioctl istio.io/istio/istioctl/cmd/istioctl
