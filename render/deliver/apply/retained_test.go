package apply

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/armature-dev/armature/functions/api/keys"
)

// TestUnreadableInventory: what is in the inventory of another package that cannot be read may be
// in the namespace that a package prunes.
func TestUnreadableInventory(t *testing.T) {
	other := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "elsewhere",
		Name: "armature-other", Labels: map[string]string{keys.LabelInventory: "other"}},
		Data: map[string]string{"format": "2"}}
	c := &Cluster{client: fake.NewClientBuilder().WithObjects(other).Build()}
	p := &Plan{Package: Package{"home", "own"},
		Steps: []*Step{{ID: ID{Name: "shared", GroupKind: namespaceKind}}}}
	if err := findRetained(t.Context(), c, p); err == nil ||
		!strings.Contains(err.Error(), "is not an inventory that this version can read") {
		t.Errorf("error %v", err)
	}
	p.opt.PruneShared = true
	if err := findRetained(t.Context(), c, p); err != nil {
		t.Error(err)
	}
}
