package install

import (
	"errors"
	"fmt"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/armature-dev/armature/builds/controller/runs"
	"github.com/armature-dev/armature/render/deliver/isolation"
)

// Isolation configures the runs of templates with attest: true or isolate: true.
type Isolation struct {
	// BuildNamespace is created for these runs. Empty means armature-builds in scope cluster, and
	// no namespace in scope namespaced, where these builds are refused.
	BuildNamespace string `json:"buildNamespace,omitempty"`
	// BuildEgress lists the connections that pods there may open; empty allows all but those to the
	// metadata services of clouds.
	BuildEgress []networkingv1.NetworkPolicyEgressRule `json:"buildEgress,omitempty"`
	// BuildRuntimeClass of the pods there; empty leaves it to the cluster.
	BuildRuntimeClass string `json:"buildRuntimeClass,omitempty"`
	// MaxIsolatedPerNamespace limits the runs there of each namespace of builds; empty means the
	// controller's default.
	MaxIsolatedPerNamespace string `json:"maxIsolatedPerNamespace,omitempty"`
}

// check validates the settings of a build namespace, which may be "".
func (i Isolation) check(builds string) error {
	if builds == "" && len(i.BuildEgress)+len(i.BuildRuntimeClass) > 0 {
		return errors.New("buildEgress and buildRuntimeClass require buildNamespace")
	}
	if i.BuildNamespace != "" && len(validation.IsDNS1123Label(i.BuildNamespace)) > 0 {
		return fmt.Errorf(
			"buildNamespace %q is not a valid namespace: use lower-case letters, digits and '-'",
			i.BuildNamespace)
	}
	if i.BuildRuntimeClass != "" && len(validation.IsDNS1123Subdomain(i.BuildRuntimeClass)) > 0 {
		return fmt.Errorf("buildRuntimeClass %q is not the name of a RuntimeClass", i.BuildRuntimeClass)
	}
	if _, err := runs.ParseLimits(i.MaxIsolatedPerNamespace); err != nil {
		return fmt.Errorf("maxIsolatedPerNamespace %w", err)
	}
	return isolation.CheckEgress(i.BuildEgress)
}
