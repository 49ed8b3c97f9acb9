package controlplane_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/armature-dev/armature/e2e/controlplane"
	"github.com/armature-dev/armature/functions/multi"
)

var _ = controlplane.Only

func TestRBACDecidesWhatAServiceAccountMayDo(t *testing.T) {
	t.Parallel()
	api := controlplane.Start(t)
	admin := clientset(t, api.Admin)
	createNamespace(t, admin, "team")

	access, err := api.ServiceAccount(t.Context(), "team", "builder")
	if err != nil {
		t.Fatal(err)
	}
	builder := clientset(t, access)
	list := func() error {
		_, err := builder.CoreV1().ConfigMaps("team").List(t.Context(), metav1.ListOptions{})
		return err
	}
	if err := list(); !apierrors.IsForbidden(err) ||
		!strings.Contains(err.Error(), "system:serviceaccount:team:builder") {
		t.Fatalf("list without a role: got %v, want it forbidden to the ServiceAccount", err)
	}

	_, err = admin.RbacV1().Roles("team").Create(t.Context(), &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Name: "reader"},
		Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"configmaps"},
			Verbs: []string{"list"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = admin.RbacV1().RoleBindings("team").Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "builder"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "reader"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Name: "builder", Namespace: "team"}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "list with a role", list)
}

func TestAdmissionPolicyDenies(t *testing.T) {
	t.Parallel()
	api := controlplane.Start(t)
	admin := clientset(t, api.Admin)

	policies := admin.AdmissionregistrationV1()
	_, err := policies.ValidatingAdmissionPolicies().Create(t.Context(),
		&admissionv1.ValidatingAdmissionPolicy{
			ObjectMeta: metav1.ObjectMeta{Name: "no-drafts"},
			Spec: admissionv1.ValidatingAdmissionPolicySpec{
				MatchConstraints: &admissionv1.MatchResources{
					ResourceRules: []admissionv1.NamedRuleWithOperations{{
						RuleWithOperations: admissionv1.RuleWithOperations{
							Operations: []admissionv1.OperationType{admissionv1.Create},
							Rule: admissionv1.Rule{APIGroups: []string{""},
								APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
						},
					}}},
				Validations: []admissionv1.Validation{{
					Expression: "!object.metadata.name.startsWith('draft-')",
					Message:    "drafts stay at home",
				}},
			},
		}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = policies.ValidatingAdmissionPolicyBindings().Create(t.Context(),
		&admissionv1.ValidatingAdmissionPolicyBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "no-drafts"},
			Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
				PolicyName:        "no-drafts",
				ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
			},
		}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "a draft is denied", func() error {
		draft := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "draft-"}}
		_, err := admin.CoreV1().ConfigMaps("default").Create(t.Context(), draft, metav1.CreateOptions{})
		if err == nil {
			return errors.New("it was let in")
		}
		if !strings.Contains(err.Error(), "drafts stay at home") {
			t.Fatal(err)
		}
		return nil
	})
}

func TestKilledAPIServerComesBackWithItsData(t *testing.T) {
	t.Parallel()
	api := controlplane.Start(t)
	admin := clientset(t, api.Admin)
	createNamespace(t, admin, "kept")
	token, err := api.ServiceAccount(t.Context(), "kept", "somebody")
	if err != nil {
		t.Fatal(err)
	}

	if err := api.KillAPIServer(); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.CoreV1().Namespaces().Get(t.Context(), "kept",
		metav1.GetOptions{}); err == nil ||
		apierrors.ReasonForError(err) != metav1.StatusReasonUnknown {
		t.Fatalf("get while the API server is dead: got %v, want a connection error", err)
	}
	if err := api.StartAPIServer(); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.CoreV1().Namespaces().Get(t.Context(), "kept",
		metav1.GetOptions{}); err != nil {
		t.Errorf("get by the same client: %v", err)
	}
	_, err = clientset(t, token).CoreV1().Namespaces().Get(t.Context(), "kept", metav1.GetOptions{})
	if !apierrors.IsForbidden(err) {
		t.Errorf("get by an older token: got %v, want it known, hence forbidden", err)
	}
}

func TestInstallCRDs(t *testing.T) {
	t.Parallel()
	api := controlplane.Start(t)

	module, err := controlplane.ModuleDir("sigs.k8s.io/controller-runtime")
	if err != nil {
		t.Fatal(err)
	}
	if err := api.InstallCRDs(filepath.Join(module, "pkg", "envtest", "testdata",
		"examplecrd_v1.yaml")); err != nil {
		t.Fatal(err)
	}
	if _, err := clientset(t, api.Admin).Discovery().ServerResourcesForGroupVersion(
		"bar.example.com/v1"); err != nil {
		t.Errorf("what was installed is not served: %v", err)
	}
	if err := api.InstallCRDs(t.TempDir()); err == nil ||
		!strings.Contains(err.Error(), "none in") {
		t.Errorf("a folder without CRDs: got %v, want an error", err)
	}
	if _, err := controlplane.ModuleDir("example.com/nowhere"); err == nil ||
		!strings.Contains(err.Error(), "example.com/nowhere") {
		t.Errorf("a module that go.mod lacks: got %v, want an error that names it", err)
	}
}

func TestStopLeavesNothing(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/proc"); err != nil {
		t.Skip("looking at other processes needs /proc")
	}
	var dir string
	t.Run("run", func(t *testing.T) {
		dir = filepath.Dir(controlplane.Start(t).Admin.Kubeconfig)
		if n := processesWith(t, dir); n != 2 {
			t.Errorf("%d processes run for it, want 2", n)
		}
	})
	if dir == "" {
		t.SkipNow()
	}
	if n := processesWith(t, dir); n != 0 {
		t.Errorf("%d processes are left", n)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is left: %v", dir, err)
	}
}

// A test that is killed, or that panics at its time limit, cannot call Stop.
func TestServersEndWithAKilledTest(t *testing.T) {
	if os.Getenv("CONTROLPLANE_VICTIM") != "" {
		fmt.Println(filepath.Dir(controlplane.Start(t).Admin.Kubeconfig))
		select {}
	}
	t.Parallel()
	if os.Getenv("KUBEBUILDER_ASSETS") != "" {
		t.Skip("only the programs of `make controlplane` end with their parent")
	}
	victim := exec.Command(os.Args[0], "-test.run=^TestServersEndWithAKilledTest$")
	victim.Env = append(os.Environ(), "CONTROLPLANE_VICTIM=1")
	victim.Stderr = os.Stderr
	out, err := victim.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	dir := strings.TrimSpace(line)
	if err := multi.Errors(err, victim.Process.Kill()); err != nil {
		t.Fatal(err)
	}
	_ = victim.Wait() // the error says that it was killed
	switch {
	case dir == "PASS":
		t.Skip("the victim was skipped")
	case !filepath.IsAbs(dir):
		t.Fatal("the victim did not start: ", dir)
	}
	defer os.RemoveAll(dir)
	eventually(t, "the servers end", func() error {
		if n := processesWith(t, dir); n > 0 {
			return fmt.Errorf("%d still run", n)
		}
		return nil
	})
}

func TestMissingProgramsAreNamed(t *testing.T) {
	t.Setenv(controlplane.Variable, "")
	t.Setenv("KUBEBUILDER_ASSETS", t.TempDir())
	_, err := controlplane.Run()
	if !errors.Is(err, controlplane.ErrNoPrograms) ||
		!strings.Contains(err.Error(), "make controlplane") {
		t.Errorf("got %v, want ErrNoPrograms with its remedy", err)
	}
}

func clientset(t *testing.T, access controlplane.Access) *kubernetes.Clientset {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", access.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	cs, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return cs
}

func createNamespace(t *testing.T, admin *kubernetes.Clientset, name string) {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := admin.CoreV1().Namespaces().Create(t.Context(), ns,
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// eventually is for what the API server learns by its own watches.
func eventually(t *testing.T, what string, do func() error) {
	t.Helper()
	var last error
	err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, time.Minute, true,
		func(context.Context) (bool, error) {
			last = do()
			return last == nil, nil
		})
	if err != nil {
		t.Fatalf("%s: %v: %v", what, err, last)
	}
}

func processesWith(t *testing.T, arg string) (n int) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if args, err := os.ReadFile(file); err == nil && bytes.Contains(args, []byte(arg)) {
			n++
		}
	}
	return n
}
