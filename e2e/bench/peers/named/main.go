// Command named links the libraries that armature uses and does nothing with them. It measures what
// armature would cost to start without any code of its own.
package main

import (
	_ "github.com/fluxcd/cli-utils/pkg/kstatus/status"
	_ "github.com/fluxcd/cli-utils/pkg/object"
	_ "github.com/fluxcd/pkg/ssa"
	_ "github.com/fluxcd/pkg/ssa/utils"
	_ "github.com/google/go-containerregistry/pkg/authn"
	_ "github.com/google/go-containerregistry/pkg/name"
	_ "github.com/google/go-containerregistry/pkg/v1/empty"
	_ "github.com/google/go-containerregistry/pkg/v1/layout"
	_ "github.com/google/go-containerregistry/pkg/v1/mutate"
	_ "github.com/google/go-containerregistry/pkg/v1/remote"
	_ "github.com/google/go-containerregistry/pkg/v1/static"
	_ "github.com/google/go-containerregistry/pkg/v1/tarball"
	_ "github.com/hashicorp/go-multierror"
	_ "github.com/sigstore/cosign/v2/pkg/cosign"
	_ "github.com/sigstore/cosign/v2/pkg/oci/mutate"
	_ "github.com/sigstore/cosign/v2/pkg/oci/remote"
	_ "github.com/sigstore/cosign/v2/pkg/oci/static"
	_ "github.com/tektoncd/pipeline/pkg/apis/pipeline/pod"
	_ "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	_ "github.com/tektoncd/pipeline/pkg/substitution"
	_ "sigs.k8s.io/kustomize/kyaml/filesys"
	_ "sigs.k8s.io/kustomize/kyaml/kio"
	_ "sigs.k8s.io/kustomize/kyaml/yaml"
)

func main() {}
