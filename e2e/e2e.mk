# The real Kubernetes that tests run against. Each program is built once into
# .cache/bin, from a module of its own.

.PHONY: controlplane
controlplane: ## Build etcd and kube-apiserver for the tests that need a Kubernetes API
	@e2e/build.sh controlplane kube ./controlplane etcd kube-apiserver

# The oldest Kubernetes that is supported, without the clouds that it had inside, of which
# some modules cannot be had.
.PHONY: oldest-kube
oldest-kube:
	@GOFLAGS="$$GOFLAGS -tags=providerless" e2e/build.sh oldest-kube/ oldest-kube . oldest-kube/etcd oldest-kube/kube-apiserver

PEERS += signing

.PHONY: signing cosigns
signing: cosigns ## Build cosign 2 and 3 and Fulcio for the tests that sign and verify
	@e2e/build.sh fulcio/ signing github.com/sigstore/fulcio

cosigns:
	@e2e/build.sh cosign/ signing github.com/sigstore/cosign/v2/cmd/cosign
	@e2e/build.sh cosign3/ signing github.com/sigstore/cosign/v3/cmd/cosign

PEERS += oidc

.PHONY: oidc
oidc: ## Build an OpenID provider for the tests of people's logins
	@e2e/build.sh oidc oidc .

PEERS += clouds

.PHONY: clouds
clouds: ## Build the application with the SDKs of AWS and Google for the test of their credentials
	@e2e/build.sh clouds clouds .

# kustomize, Argo CD and Helm 3 and 4, which call Armature.
PEERS += hosts

.PHONY: hosts argocd
hosts: argocd ## Build the programs that e2e/integrations renders through
	@e2e/build.sh kustomize kustomize sigs.k8s.io/kustomize/kustomize/v5
	@e2e/build.sh helm3 helm helm.sh/helm/v3/cmd/helm
	@e2e/build.sh helm4 helm helm.sh/helm/v4/cmd/helm

argocd:
	@e2e/build.sh argocd argocd .

PEERS += functions

.PHONY: functions
functions: ## Build two functions of other projects, which armature test-function checks
	@e2e/build.sh functions functions tool

PEERS += flux

.PHONY: flux
flux: ## Build Flux's source-controller and kustomize-controller, between which RenderedSources are
	@e2e/build.sh flux flux tool

.PHONY: chains
chains: ## Build Tekton Chains, beside which make bench-scale attests; takes minutes
	@e2e/build.sh chains chains tool

PEERS += kueue

.PHONY: kueue
kueue: ## Build Kueue, which admits the runs of builds
	@e2e/build.sh kueue kueue .

PEERS += forge

.PHONY: forge
forge: ## Build Gitea, the forge that pull requests are tested on
	@e2e/build.sh forge forge .

PEERS += prometheus

.PHONY: prometheus
prometheus: ## Build Prometheus and promtool, which evaluate the shipped alerts
	@GOFLAGS="$$GOFLAGS -tags=remove_all_sd" e2e/build.sh prometheus prometheus tool

PEERS += buildkit

.PHONY: buildkit
buildkit: ## Build BuildKit, which local builds run on
	@e2e/build.sh buildkit buildkit tool

.PHONY: cluster-up cluster-down cluster-programs cluster-packages
cluster-up: cluster-packages cluster-programs ## Start a whole Kubernetes with Tekton on this machine (Linux, root)
	@.cache/bin/cluster build .cache
	@.cache/bin/cluster up .cache

cluster-down: ## End that cluster and check that nothing of it is left
	@go build -o .cache/bin/ ./e2e/cmd/cluster
	@.cache/bin/cluster down .cache
	@.cache/bin/cluster check .cache

# A cluster's packages are looked for before half an hour of compiling.
cluster-programs: cluster-packages controlplane cosigns
	@e2e/build.sh node kube ./node kube-controller-manager kube-scheduler kube-proxy kubectl
	@e2e/build.sh kubelet kubelet .
	@e2e/build.sh pause pause .
	@e2e/build.sh coredns dns .
	@e2e/build.sh csi csi .
	@e2e/build.sh fakesidecars fakesidecars .
	@e2e/build.sh tekton $(TEKTON) tool
	@for module in kaniko buildkit lifecycle anchore oras flux; do e2e/build.sh $$module $$module tool || exit; done
	@e2e/spire/source.sh
	@e2e/build.sh spire spire tool
	@e2e/build.sh grype-database anchore ./database
	@go build -o .cache/bin/ ./e2e/cmd/cluster
	@CGO_ENABLED=0 go build $(LDFLAGS) -o .cache/bin/ ./cmd/armature-controller # for an image without a C library

cluster-packages:
	@e2e/packages.sh cluster

# The folder of e2e with the Tekton that the cluster has.
export TEKTON ?= tekton

# What stories run beside the cluster's own programs.
.PHONY: story-programs
story-programs: argocd cosigns forge

.PHONY: e2e-commands
e2e-commands:
	@go build -o .cache/bin/ ./cmd/armature ./cmd/armature-fn

.PHONY: e2e test-e2e demo-build
e2e: ## Run the stories: on that cluster, or on the one that E2E_KUBECONFIG and E2E_INFO name
	@e2e/run.sh $(E2E_FLAGS)

# What make check and CI do of it: a machine that cannot run a cluster says so and
# goes on, and so does CI where too much of its time has gone (STARTED). No recipe
# has $(MAKE): make -n would run the whole of it.
test-e2e:
	@if why=$$(e2e/can.sh); then \
		e2e/run.sh && make --no-print-directory cluster-down; \
	else \
		printf '\n*** THE STORIES ON A REAL CLUSTER WERE NOT RUN: %s ***\n\n' "$$why"; \
	fi

# Kubernetes 1.29 has no admission policies (1.30), with which three tests refuse runs.
LATER := TestDenied$$|TestMetricsProbesAndLogs$$|TestQueueDenied$$

.PHONY: e2e-matrix
e2e-matrix: controlplane oldest-kube ## Run what needs an API server with the oldest supported Kubernetes, and the stories with the oldest Tekton
	@GOFLAGS="$$GOFLAGS '-skip=$(LATER)'" KUBEBUILDER_ASSETS=$(CACHE)/bin/oldest-kube ARMATURE_TEST_SERVERS=required e2e/test.sh ./builds/controller ./render/deliver/apply ./render/deliver/flux/... ./catalog/controller
	@TEKTON=oldest-tekton e2e/run.sh

demo-build: cluster-up e2e-commands ## Build an image from Git on that cluster and run it, step by step
	@e2e/demo-build.sh

# What a tag publishes. The workflow makes it by the same program, with its identity.
VERSION ?= v0.0.0-dry-run

.PHONY: release release-dry-run
release: ## Build what the tag VERSION publishes, push it to REGISTRY and sign it
	$(GO) run ./e2e/release -version '$(VERSION)' -registry '$(or $(REGISTRY),$(error release needs a REGISTRY, such as ghcr.io/armature-dev))'

release-dry-run: cosigns ## Make all of it in dist, signed with a key made for it, and publish nothing
	$(GO) run ./e2e/release -version '$(VERSION)' -cosign $(CACHE)/bin/cosign3/cosign $(if $(PLATFORMS),-platforms '$(PLATFORMS)')
	@sha256sum dist/files/checksums.txt

.PHONY: pictures
pictures: controlplane ## Take the pictures in docs/images again; tests in Chromium leave them in .cache/pictures
	ARMATURE_TEST_PEERS=required $(GO) test -count=1 -run 'InABrowser|InEveryView' ./render/page ./catalog/console
	cp $(CACHE)/pictures/diff-docs.png docs/images/diff.png
	for p in home agent tool package build phone; do cp $(CACHE)/pictures/docs-console-$$p.png docs/images/console-$$p.png; done
	if command -v pngquant > /dev/null; then pngquant --force --ext .png docs/images/*.png; fi
