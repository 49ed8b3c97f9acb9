# The real Kubernetes that tests run against. Each program is built once into
# .cache/bin, from a module of its own.

.PHONY: controlplane
controlplane: ## Build etcd and kube-apiserver for the tests that need a Kubernetes API
	@e2e/build.sh controlplane kube ./controlplane etcd kube-apiserver

.PHONY: cluster-up cluster-down cluster-programs cluster-packages
cluster-up: cluster-programs cluster-packages ## Start a whole Kubernetes with Tekton on this machine (Linux, root)
	@.cache/bin/cluster build .cache
	@.cache/bin/cluster up .cache

cluster-down: ## End that cluster and check that nothing of it is left
	@go build -o .cache/bin/ ./e2e/cmd/cluster
	@.cache/bin/cluster down .cache
	@.cache/bin/cluster check .cache

cluster-programs: controlplane
	@e2e/build.sh node kube ./node kube-controller-manager kube-scheduler kube-proxy kubelet kubectl
	@e2e/build.sh pause pause .
	@e2e/build.sh coredns dns .
	@e2e/build.sh csi csi .
	@e2e/build.sh sidecars sidecars .
	@for module in tekton kaniko lifecycle cosign anchore oras; do e2e/build.sh $$module $$module tool || exit; done
	@e2e/build.sh grype-database anchore ./database
	@go build -o .cache/bin/ ./e2e/cmd/cluster
	@CGO_ENABLED=0 go build -o .cache/bin/ ./cmd/armature-controller # for an image without a C library

cluster-packages:
	@e2e/packages.sh

.PHONY: e2e-commands
e2e-commands:
	@go build -o .cache/bin/ ./cmd/armature ./cmd/armature-remote

.PHONY: e2e
e2e: export PATH := $(CURDIR)/.cache/bin:$(CURDIR)/.cache/bin/cosign:$(PATH)
ifndef E2E_KUBECONFIG
e2e: export E2E_KUBECONFIG := $(CURDIR)/.cache/cluster/kubeconfig
e2e: export E2E_INFO := $(CURDIR)/.cache/cluster/info.json
e2e: cluster-up
endif
e2e: e2e-commands
e2e: ## Run the stories: on that cluster, or on the one that E2E_KUBECONFIG and E2E_INFO name
	go test -count=1 -parallel=8 -timeout=30m ./e2e/stories
