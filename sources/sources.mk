# Rendered sources: what Flux takes as ExternalArtifacts.

.PHONY: generate-sources
generate-sources: ## Write the deep copies and the CRD of RenderedSource
	$(GO) generate ./sources/...
