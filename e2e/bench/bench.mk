# Included by the Makefile: what the benchmarks need and print.
.PHONY: bench bench-istioctl
bench: ## Measure rendering against its peers; takes about ten minutes
	go run ./e2e/bench $(BENCH)
