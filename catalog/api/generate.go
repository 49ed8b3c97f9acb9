package api

//go:generate go tool controller-gen crd:crdVersions=v1 paths=. paths=./published output:crd:dir=../../templates/crds/catalog
