package preflight

import (
	"context"
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/functions/text"
	"github.com/armature-dev/armature/render/deliver/isolation"
	"github.com/armature-dev/armature/render/needs"
)

// isolation compares the namespace of attested runs with the shipped one, and lists who may write
// there.
func (c *cluster) isolation(ctx context.Context, n *needs.Need) (string, error) {
	d, err := c.controller(ctx)
	if err != nil {
		return "", err
	}
	name, _ := flag(d, "build-namespace")
	if name == "" {
		return lacks(n, "set buildNamespace in the values of armature install",
			"the controller has no --build-namespace")
	}
	n.Name = name
	switch n.Kind {
	case needs.Writers:
		return c.writers(ctx, n, d)
	case needs.Enforced:
		n.Status = needs.Unknown
		return "namespace " + name + ", and the Kubernetes API does not report it", nil
	}
	o := isolation.Objects{Namespace: &corev1.Namespace{}, Account: &corev1.ServiceAccount{}}
	if err := c.get(ctx, "", name, o.Namespace); err != nil {
		return "", err
	}
	if err := c.get(ctx, name, isolation.Account, o.Account); apierrors.IsNotFound(err) {
		o.Account = nil
	} else if err != nil {
		return "", err
	}
	policies := &networkingv1.NetworkPolicyList{}
	if err := c.List(ctx, policies, client.InNamespace(name)); err != nil {
		return "", err
	}
	o.Policies = policies.Items
	if faults := isolation.Faults(o); len(faults) > 0 {
		return lacks(n, "", "namespace "+name+": "+strings.Join(faults, "; "))
	}
	return "namespace " + name, nil
}

// writers reports the subjects other than the platform that may write in the namespace of attested
// runs.
func (c *cluster) writers(ctx context.Context, n *needs.Need,
	d *appsv1.Deployment) (string, error) {
	var r isolation.Rights
	for _, list := range []client.ObjectList{&r.Roles, &r.ClusterRoles, &r.Bindings,
		&r.ClusterBindings} {
		if err := c.List(ctx, list, client.InNamespace(n.Name)); err != nil {
			return "", err
		}
	}
	account := "ServiceAccount " + d.Namespace + "/" + d.Spec.Template.Spec.ServiceAccountName
	var here, everywhere []string
	for _, w := range isolation.Writers(r, n.Name, account, "kube-system", tektonNamespace) {
		if w.Here {
			here = append(here, w.String())
		} else {
			everywhere = append(everywhere, w.String())
		}
	}
	switch {
	case len(here) > 0:
		return lacks(n, "delete these bindings: whoever writes in namespace "+n.Name+
			" decides what is attested", strings.Join(append(here, everywhere...), "; "))
	case len(everywhere) > 0:
		n.Status = needs.Unknown
		return fmt.Sprintf("%s in all namespaces: %s", text.Count(len(everywhere), "writer"),
			strings.Join(everywhere, "; ")), nil
	}
	return "", nil
}
