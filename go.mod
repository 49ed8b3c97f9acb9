module github.com/armature-dev/armature

go 1.26.0

require (
	github.com/google/go-cmp v0.7.0
	sigs.k8s.io/kustomize/kyaml v0.21.2
)
