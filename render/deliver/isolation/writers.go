package isolation

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/armature-dev/armature/functions/workload"
)

// Rights are the Roles and RoleBindings of a namespace and of the cluster.
type Rights struct {
	Roles           rbacv1.RoleList
	ClusterRoles    rbacv1.ClusterRoleList
	Bindings        rbacv1.RoleBindingList
	ClusterBindings rbacv1.ClusterRoleBindingList
}

// Writer is a subject that may change isolated runs.
type Writer struct {
	Subject string // such as "User jane" or "ServiceAccount team1/default"
	By      string // the binding
	May     string // one of the changes that it may make
	// Here means that a binding of the namespace grants it, or a binding of the cluster to a group
	// of all users. Otherwise the subject may write in all namespaces, and no object says whether
	// it is an administrator.
	Here bool
}

func (w Writer) String() string { return fmt.Sprintf("%s may %s, by %s", w.Subject, w.May, w.By) }

// Writers returns the subjects other than the platform that may write in a namespace. The
// platform's own subjects are the ServiceAccount of the controller, "ServiceAccount
// namespace/name", those of trusted namespaces, and those that Kubernetes creates.
func Writers(r Rights, namespace, controller string, trusted ...string) (writers []Writer) {
	rules := map[string][]rbacv1.PolicyRule{}
	for _, role := range r.Roles.Items {
		rules["Role "+role.Name] = role.Rules
	}
	for _, role := range r.ClusterRoles.Items {
		rules["ClusterRole "+role.Name] = role.Rules
	}
	add := func(ref rbacv1.RoleRef, subjects []rbacv1.Subject, binding string, here bool) {
		may := writes(rules[ref.Kind+" "+ref.Name])
		if may == "" {
			return
		}
		for _, s := range subjects {
			name, own := s.Kind+" "+s.Name, false
			switch s.Kind {
			case rbacv1.ServiceAccountKind:
				s.Namespace = cmp.Or(s.Namespace, namespace)
				name = s.Kind + " " + s.Namespace + "/" + s.Name
				own = name == controller || slices.Contains(trusted, s.Namespace)
			case rbacv1.UserKind:
				own = strings.HasPrefix(s.Name, "system:") && s.Name != "system:anonymous" &&
					!strings.HasPrefix(s.Name, "system:serviceaccount:")
			case rbacv1.GroupKind:
				members, ok := strings.CutPrefix(s.Name, "system:serviceaccounts:")
				own = s.Name == "system:masters" || s.Name == "system:nodes" ||
					ok && slices.Contains(trusted, members)
			}
			everybody := s.Kind == rbacv1.GroupKind && strings.HasPrefix(s.Name, "system:") ||
				s.Name == "system:anonymous"
			if w := (Writer{name, binding, may, here || everybody}); !own {
				writers = append(writers, w)
			}
		}
	}
	for _, b := range r.Bindings.Items {
		add(b.RoleRef, b.Subjects, "RoleBinding "+b.Name, true)
	}
	for _, b := range r.ClusterBindings.Items {
		add(b.RoleRef, b.Subjects, "ClusterRoleBinding "+b.Name, false)
	}
	slices.SortFunc(writers, func(a, b Writer) int {
		return strings.Compare(a.String(), b.String())
	})
	return writers
}

var (
	changes = []string{"create", "update", "patch", "delete", "deletecollection"}
	// deciding are the resources that define a run or run in its namespace, by API group, with the
	// verbs that change them. Some clients start a process in a pod by get.
	deciding = withWorkloads(map[string]map[string][]string{
		"": {"secrets": changes, "configmaps": changes,
			"serviceaccounts":        append([]string{"impersonate"}, changes...),
			"persistentvolumeclaims": changes,
			"pods/exec":              {"create", "get"}, "pods/attach": {"create", "get"},
			"pods/portforward": {"create", "get"}, "pods/ephemeralcontainers": changes,
			"serviceaccounts/token": {"create"}, "users": {"impersonate"},
			"groups": {"impersonate"}},
		"tekton.dev": {"pipelineruns": changes, "taskruns": changes,
			"pipelineruns/status": changes, "taskruns/status": changes, "customruns": changes,
			"pipelines": changes},
		"networking.k8s.io": {"networkpolicies": changes},
		"rbac.authorization.k8s.io": {"roles": {"escalate", "bind"},
			"clusterroles": {"escalate", "bind"}, "rolebindings": changes},
	})
)

// withWorkloads adds the resources of all kinds that run pods.
func withWorkloads(resources map[string]map[string][]string) map[string]map[string][]string {
	for _, k := range workload.Kinds() {
		group, _ := k.GroupVersion()
		if resources[group] == nil {
			resources[group] = map[string][]string{}
		}
		resources[group][k.Resource] = changes
	}
	return resources
}

// writes returns one of the changes that rules allow, preferably creating pods; "" for none.
func writes(rules []rbacv1.PolicyRule) string {
	var found []string
	for _, rule := range rules {
		for group, resources := range deciding {
			if !names(rule.APIGroups, group) {
				continue
			}
			for resource, verbs := range resources {
				if at := slices.IndexFunc(verbs, func(verb string) bool {
					return names(rule.Verbs, verb)
				}); at >= 0 && covers(rule.Resources, resource) {
					found = append(found, verbs[at]+" "+resource)
				}
			}
		}
	}
	if len(found) == 0 {
		return ""
	}
	if slices.Contains(found, "create pods") {
		return "create pods"
	}
	return slices.Min(found)
}

// names reports whether a list of a rule contains a word.
func names(list []string, word string) bool {
	return slices.Contains(list, word) || slices.Contains(list, "*")
}

// covers reports whether the resources of a rule include one. */exec includes that of any resource.
func covers(list []string, resource string) bool {
	_, sub, ok := strings.Cut(resource, "/")
	return names(list, resource) || ok && slices.Contains(list, "*/"+sub)
}
