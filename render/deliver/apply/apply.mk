# Applying to a cluster, beside its peers.
PEERS += kubectl-alone

.PHONY: test-apply
test-apply: controlplane kubectl-alone ## Test apply, diff and delete against a real API server
	go test ./render/deliver/apply ./cmd/armature

.PHONY: bench-apply kubectl-alone
bench-apply: controlplane kubectl-alone ## Print how long applying 1,000 objects takes, beside kubectl and Flux
	go test -run '^$$' -bench Apply -benchtime 1x -timeout 30m ./render/deliver/apply

kubectl-alone: ## Build kubectl for the tests that apply as users do
	@e2e/build.sh kubectl-alone kubectl tool

# make bench prints it as well.
bench: bench-apply
