# Included by the Makefile. BENCH passes flags on: make bench BENCH='-sizes 10,100'
.PHONY: bench
bench: ## Measure rendering against its peers; takes about ten minutes
	go run ./e2e/bench $(BENCH)
