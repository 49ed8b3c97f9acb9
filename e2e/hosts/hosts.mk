# The real hosts, in modules of their own so that Armature's stays lean.
PEERS += hosts

.PHONY: hosts
hosts: $(CACHE)/bin/kustomize $(CACHE)/bin/argocd-cmp-server $(CACHE)/bin/helm-template ## Build the hosts that the door tests run

$(CACHE)/bin/kustomize: e2e/hosts/kustomize/go.mod
	@echo "building kustomize, which the tests run (half a minute the first time)"
	@mkdir -p $(@D)
	$(GO) build -C e2e/hosts/kustomize -o $@ sigs.k8s.io/kustomize/kustomize/v5

$(CACHE)/bin/argocd-cmp-server: e2e/hosts/argocd/go.mod e2e/hosts/argocd/main.go
	@echo "building Argo CD's plugin server, which the tests run (some minutes the first time)"
	@mkdir -p $(@D)
	$(GO) build -C e2e/hosts/argocd -o $@ .

$(CACHE)/bin/helm-template: e2e/helm/go.mod e2e/helm/main.go
	@echo "building Helm's engine, which the tests run (a minute or two the first time)"
	@mkdir -p $(@D)
	$(GO) build -C e2e/helm -o $@ .
