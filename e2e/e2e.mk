# The real Kubernetes that tests run against. Each program is built once into
# .cache/bin, from a module of its own.

.PHONY: controlplane
controlplane: ## Build etcd and kube-apiserver for the tests that need a Kubernetes API
	@e2e/build.sh controlplane kube ./controlplane etcd kube-apiserver
