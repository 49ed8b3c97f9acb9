# The catalog: which agents and tools run.

.PHONY: test-catalog
test-catalog: controlplane ## Test the catalog against real servers
	$(GO) test ./catalog/... ./e2e/catalog/...

.PHONY: demo-catalog
demo-catalog: build controlplane ## Run the catalog with three agents and two tool servers, and show what it finds
	@$(GO) run ./e2e/catalog/demo -bin bin $(if $(STAY),-stay)

.PHONY: bench-catalog
bench-catalog: controlplane ## Print what 1,000 agents and 200 tool servers cost
	$(GO) test -run '^$$' -bench Catalog -benchtime 1x -timeout 30m ./e2e/catalog

.PHONY: generate-catalog
generate-catalog: ## Write the deep copies and CRDs of the catalog's kinds
	$(GO) generate ./catalog/...

# make bench prints what the catalog costs as well.
bench: bench-catalog
