package controller_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/catalog/controller"
)

// The scheme, which knows all of client-go's kinds, is built once and not for
// each question to a server.
func TestSchemeIsShared(t *testing.T) {
	first, err := controller.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	if again, err := controller.Scheme(); err != nil || again != first {
		t.Errorf("another scheme: %v", err)
	}
}

// The shipped roles let the catalog follow each of its kinds.
func TestKinds(t *testing.T) {
	for _, mode := range []string{"cluster", "namespaced"} {
		text, err := os.ReadFile("../../templates/install/catalog/" + mode + "/role.yaml")
		if err != nil {
			t.Fatal(err)
		}
		var role rbacv1.ClusterRole // a Role has the same rules
		if err := yaml.Unmarshal(text, &role); err != nil {
			t.Fatal(err)
		}
		for _, k := range controller.Kinds() {
			resource, group, _ := strings.Cut(k.Resource, ".")
			if !slices.ContainsFunc(role.Rules, func(r rbacv1.PolicyRule) bool {
				return slices.Contains(r.APIGroups, group) && slices.Contains(r.Resources, resource) && slices.Contains(r.Verbs, "watch")
			}) {
				t.Errorf("%s: no rule to watch %s", mode, k.Resource)
			}
		}
	}
}
