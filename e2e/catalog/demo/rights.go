package main

import (
	"context"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/e2e/controlplane"
)

// allowReader lets the account list the kinds of the catalog, nothing else.
func allowReader(ctx context.Context, plane *controlplane.ControlPlane) error {
	c, err := client.New(plane.Admin.Config, client.Options{})
	if err != nil {
		return err
	}
	meta := metav1.ObjectMeta{Name: "catalog-reader"}
	role := &rbacv1.ClusterRole{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{"kagenti.io", "kagent.dev"}, Resources: []string{"agentcards", "remotemcpservers"}, Verbs: []string{"list"}},
	}}
	if err := c.Create(ctx, role); err != nil {
		return err
	}
	return c.Create(ctx, &rbacv1.ClusterRoleBinding{ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: meta.Name},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "default", Name: "reader"}}})
}
