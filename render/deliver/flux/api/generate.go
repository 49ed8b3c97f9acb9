package api

//go:generate go tool controller-gen crd:crdVersions=v1 paths=. output:crd:dir=../../../../templates/crds/sources
