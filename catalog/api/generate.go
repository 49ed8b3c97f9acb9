package api

//go:generate go tool controller-gen crd:crdVersions=v1 paths=. paths=../kinds output:crd:dir=../../templates/crds/catalog
