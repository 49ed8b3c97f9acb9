# Rendered sources: what Flux takes as ExternalArtifacts.

.PHONY: generate-sources
generate-sources: ## Write the CRD of RenderedSource
	$(GO) generate ./render/deliver/flux/...

.PHONY: bench-sources
bench-sources: controlplane ## Print how long 200 RenderedSources take for a new revision, beside kustomize
	$(GO) test -run '^$$' -bench RenderedSources -benchtime 1x -timeout 30m ./render/deliver/flux/controller

# make bench prints it as well.
bench: bench-sources
