// The CRDs of Flux's sources, which tests read from the module's folder. None of
// its Go code is built.
module github.com/armature-dev/armature/e2e/flux/sources

go 1.26.0

require github.com/fluxcd/source-controller v1.9.6
