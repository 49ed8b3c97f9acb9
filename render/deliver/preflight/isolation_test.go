package preflight

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/e2e/controlplane"
	"github.com/armature-dev/armature/render/deliver/isolation"
	"github.com/armature-dev/armature/render/needs"
	"github.com/armature-dev/armature/templates"
)

// builds is the namespace of attested runs.
const builds = "armature-builds"

// ship installs what the release has in the namespace of attested runs, and the controller.
func ship(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	ctx, create := t.Context(), metav1.CreateOptions{}
	text, err := templates.Files.ReadFile("install/isolated/role.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for doc := range bytes.SplitSeq(text, []byte("\n---\n")) {
		var kind metav1.TypeMeta
		if err := yaml.Unmarshal(doc, &kind); err != nil {
			t.Fatal(err)
		}
		var namespace corev1.Namespace
		var account corev1.ServiceAccount
		var policy networkingv1.NetworkPolicy
		var role rbacv1.Role
		var binding rbacv1.RoleBinding
		for _, into := range []any{&namespace, &account, &policy, &role, &binding} {
			_ = yaml.Unmarshal(doc, into)
		}
		switch kind.Kind {
		case "Namespace":
			_, err = client.CoreV1().Namespaces().Create(ctx, &namespace, create)
		case "ServiceAccount":
			_, err = client.CoreV1().ServiceAccounts(builds).Create(ctx, &account, create)
		case "NetworkPolicy":
			_, err = client.NetworkingV1().NetworkPolicies(builds).Create(ctx, &policy, create)
		case "Role":
			_, err = client.RbacV1().Roles(builds).Create(ctx, &role, create)
		case "RoleBinding":
			_, err = client.RbacV1().RoleBindings(builds).Create(ctx, &binding, create)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	labels := map[string]string{"app.kubernetes.io/name": "armature-controller"}
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "armature-controller",
		Labels: labels}, Spec: appsv1.DeploymentSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels},
			Spec: corev1.PodSpec{ServiceAccountName: "armature-controller",
				Containers: []corev1.Container{{Name: "controller",
					Image: "registry.local/controller:v1",
					Args:  []string{"--build-namespace=" + builds}}}}},
	}}
	if _, err := client.CoreV1().Namespaces().Create(ctx,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "armature-system"}}, create); err != nil {
		t.Fatal(err)
	}
	if _, err := client.AppsV1().Deployments("armature-system").Create(ctx, d, create); err != nil {
		t.Fatal(err)
	}
}

// What is shipped is as shipped; a right of somebody else there, a missing policy and a token are
// not.
func TestIsolation(t *testing.T) {
	plane := controlplane.Start(t)
	client, err := kubernetes.NewForConfig(plane.Admin.Config)
	if err != nil {
		t.Fatal(err)
	}
	ship(t, client)
	ctx, create, remove := t.Context(), metav1.CreateOptions{}, metav1.DeleteOptions{}
	check := func(config *rest.Config, kind needs.Kind, status needs.Status, found string) {
		t.Helper()
		all := needs.Builds()
		if err := Compare(ctx, config, "", all); err != nil {
			t.Fatal(err)
		}
		n := all[slices.IndexFunc(all, func(n needs.Need) bool { return n.Kind == kind })]
		if n.Status != status || !strings.Contains(n.Found, found) || n.Remedy == "" {
			t.Errorf("want %s with %q: %+v", status, found, n)
		}
	}
	admin := plane.Admin.Config
	check(admin, needs.BuildNamespace, needs.OK, "namespace "+builds)
	check(admin, needs.Writers, needs.OK, "")
	check(admin, needs.Enforced, needs.Unknown, "does not report it")

	jane := []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: "jane"}}
	all := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"}
	_, err1 := client.RbacV1().ClusterRoleBindings().Create(ctx,
		&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "ops"}, RoleRef: all,
			Subjects: jane}, create)
	check(admin, needs.Writers, needs.Unknown,
		"User jane may create pods, by ClusterRoleBinding ops")
	_, err2 := client.RbacV1().RoleBindings(builds).Create(ctx,
		&rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "team"}, RoleRef: all,
			Subjects: jane}, create)
	check(admin, needs.Writers, needs.Missing, "User jane may create pods, by RoleBinding team")
	err3 := client.NetworkingV1().NetworkPolicies(builds).Delete(ctx, builds, remove)
	check(admin, needs.BuildNamespace, needs.Missing, "no NetworkPolicy refuses connections")
	err4 := client.CoreV1().ServiceAccounts(builds).Delete(ctx, isolation.Account, remove)
	check(admin, needs.BuildNamespace, needs.Missing, "it has no ServiceAccount armature-build")
	nobody, err5 := plane.User("nobody")
	if err := errors.Join(err1, err2, err3, err4, err5); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []needs.Kind{needs.BuildNamespace, needs.Writers, needs.Enforced} {
		check(nobody.Config, kind, needs.Unknown, "forbidden")
	}
}

// kubelet plays one for the pods of the probe: the server is ready, and the client ends with a
// status. It tells of each pod that it sees.
func kubelet(ctx context.Context, client kubernetes.Interface, exit int32, saw func(*corev1.Pod)) {
	for ; ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
		list, err := client.CoreV1().Pods(builds).List(ctx, metav1.ListOptions{})
		if err != nil {
			continue
		}
		for _, pod := range list.Items {
			saw(&pod)
			pod.Status.Phase, pod.Status.PodIP, pod.Status.PodIPs =
				corev1.PodRunning, "10.0.0.7", []corev1.PodIP{{IP: "10.0.0.7"}}
			container := corev1.ContainerStatus{Name: "probe", Ready: true,
				State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}
			if strings.HasSuffix(pod.Name, "-client") {
				pod.Status.Phase = corev1.PodFailed
				container.Ready, container.State =
					false,
					corev1.ContainerState{
						Terminated: &corev1.ContainerStateTerminated{ExitCode: exit}}
			}
			pod.Status.ContainerStatuses = []corev1.ContainerStatus{container}
			_, _ = client.CoreV1().Pods(builds).UpdateStatus(ctx, &pod, metav1.UpdateOptions{})
		}
	}
}

// The probe says whether a policy is enforced, and leaves no pod, whatever happens to it.
func TestProbe(t *testing.T) {
	plane := controlplane.Start(t)
	client, err := kubernetes.NewForConfig(plane.Admin.Config)
	if err != nil {
		t.Fatal(err)
	}
	ship(t, client)
	for name, c := range map[string]struct {
		exit      int32
		interrupt string // once a pod of this kind is there
		status    needs.Status
		found     string
	}{
		"not enforced":    {0, "", needs.Missing, "not enforced: "},
		"enforced":        {1, "", needs.OK, "enforced: "},
		"no answer":       {2, "", needs.Unknown, "ended without an answer"},
		"stopped early":   {0, "-server", needs.Unknown, ""},
		"stopped halfway": {0, "-client", needs.Unknown, ""},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			seen := map[string]*corev1.Pod{}
			watching, stop := context.WithCancel(t.Context())
			over := make(chan struct{})
			go func() {
				defer close(over)
				kubelet(watching, client, c.exit, func(pod *corev1.Pod) {
					seen[pod.Name] = pod
					if c.interrupt != "" && strings.HasSuffix(pod.Name, c.interrupt) {
						cancel()
					}
				})
			}()
			all := []needs.Need{{Kind: needs.Enforced, Name: builds, Status: needs.Unknown}}
			err := Probe(ctx, plane.Admin.Config, all)
			stop()
			<-over
			if (err != nil) != (c.interrupt != "") ||
				err != nil && !errors.Is(err, context.Canceled) {
				t.Errorf("error %v", err)
			}
			if n := all[0]; n.Status != c.status || !strings.Contains(n.Found, c.found) {
				t.Errorf("%+v", n)
			}
			left, err := client.CoreV1().Pods(builds).List(t.Context(), metav1.ListOptions{})
			if err != nil || len(left.Items) > 0 {
				t.Errorf("%d pods are left (%v)", len(left.Items), err)
			}
			names := slices.Sorted(maps.Keys(seen))
			if len(names) == 0 || c.interrupt != "-server" && len(names) != 2 {
				t.Fatalf("pods %v", names)
			}
			for _, pod := range seen {
				if spec := pod.Spec; spec.ServiceAccountName != isolation.Account ||
					*spec.AutomountServiceAccountToken ||
					spec.Containers[0].Image != "registry.local/controller:v1" ||
					spec.ActiveDeadlineSeconds == nil {
					t.Errorf("pod %+v", spec)
				}
			}
		})
	}

	// Where it may not remove them, it says how.
	config := rest.CopyConfig(plane.Admin.Config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if r.Method == http.MethodDelete {
				return nil, errors.New("no")
			}
			return next.RoundTrip(r)
		})
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go kubelet(ctx, client, 1, func(*corev1.Pod) {})
	all := []needs.Need{{Kind: needs.Enforced, Name: builds, Status: needs.Unknown}}
	if err := Probe(t.Context(), config, all); err != nil ||
		!strings.Contains(all[0].Found, "kubectl delete pod armature-probe-") || !all[0].Unread {
		t.Errorf("%v: %+v", err, all[0])
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
