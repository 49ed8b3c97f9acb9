package controller_test

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/e2e/controlplane"
)

// The controller does all its work under the ServiceAccount that `armature
// install` makes, and is never forbidden anything. The API server's audit log says that it
// reads the Secrets that builds name and lists none, and that nobody else reads the key
// that it attests with, nor it itself where a KMS has the key.
func TestShippedRBAC(t *testing.T) {
	for _, mode := range []string{"cluster", "namespaced"} {
		t.Run(mode, func(t *testing.T) {
			plane := controlplane.StartAudited(t)
			w := newWorldOn(t, plane)
			tekton, err := controlplane.ModuleDir("github.com/tektoncd/pipeline")
			w.must(err)
			w.must(plane.InstallCRDs(tekton + "/config/300-crds"))
			isolated := w.namespace + "-isolated"
			values := filepath.Join(t.TempDir(), "values.yaml")
			w.must(os.WriteFile(values, []byte("buildNamespace: "+isolated), 0o600))
			args := []string{"run", "../../cmd/armature", "install", "--scope", mode, "--values", values}
			if mode == "namespaced" {
				args = append(args, "--watch-namespaces", w.namespace)
			}
			w.applyAll(args)
			w.eventually("the API server serves AgentBuilds", func() string {
				if err := w.List(t.Context(), &api.AgentBuildList{}); err != nil {
					return err.Error()
				}
				return ""
			})

			access, err := plane.ServiceAccount(t.Context(), systemNamespace, "armature-controller")
			w.must(err)
			forbidden := &controlplane.Forbidden{}
			w.config = access.Config
			w.config.Wrap(forbidden.Wrap)
			w.options.Namespaces = nil
			if mode == "namespaced" {
				w.options.Namespaces = []string{systemNamespace, w.namespace}
			}
			w.options.LeaderElection = true
			w.options.MaxRunning = 8
			w.options.Settings.PipelineObjects = true
			w.options.Settings.BuildNamespace = isolated
			w.options.Pod = "armature-controller-0"
			w.pod(w.options.Pod,
				corev1.Container{Name: "controller", Image: "registry.local/controller:v1"})
			w.must(w.Client.Create(t.Context(), attestKey.secret()))
			if mode == "namespaced" {
				w.options.Attest.Key, _ = w.kms()
			}
			stop := w.start()

			w.login("bystander", compose.PurposeRegistry, map[string]string{"config.json": "{}"})
			w.login("login", compose.PurposeRegistry, map[string]string{"config.json": "{}"})
			w.must(w.Client.Create(t.Context(),
				&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace,
					Name: "builder"}}))
			w.create("weather", func(b *api.AgentBuild) {
				b.Spec.BuildOutput.ImageRepoCredentials = &corev1.LocalObjectReference{Name: "login"}
				b.Spec.ServiceAccountName = "builder"
				b.Spec.Workspace = &api.Workspace{Keep: true}
				b.Spec.Retries = &api.Retries{Limit: 1,
					Backoff: &metav1.Duration{Duration: time.Millisecond},
					After:   []api.RetryOn{api.RetryAny}}
			})
			w.failAt(w.run(1), "kaniko-build", "build-and-push", 1, "Error")
			w.run(2)
			for _, run := range w.runs() {
				if run.Status.CompletionTime == nil {
					w.succeed(&run)
				}
			}
			w.phase("weather", api.PhaseSucceeded)
			b := w.create("cancelled")
			w.phase("cancelled", api.PhaseBuilding)
			w.change(b, func(b *api.AgentBuild) { b.Spec.Cancel = true })
			w.eventually("a run is cancelled", func() string {
				for _, run := range w.runs() {
					if run.Spec.Status != "" {
						return ""
					}
				}
				return "none is"
			})
			w.must(w.Client.Delete(t.Context(), b))
			w.eventually("the deleted build's runs are gone", func() string {
				for _, run := range w.runs() {
					if run.Annotations["armature.dev/build-name"] == "cancelled" {
						return run.Name
					}
				}
				return ""
			})
			s := newShop(t, true)
			w.create("signed", s.sold, func(b *api.AgentBuild) {
				b.Spec.BuildOutput.ImageRepoCredentials = &corev1.LocalObjectReference{Name: "login"}
			})
			run := w.released("signed")
			w.play(run, s.push(t, "signed:v1"))
			w.phase("signed", api.PhaseSucceeded)
			tenant := w.tenant(plane)
			time.Sleep(300 * time.Millisecond) // the last events leave
			stop()
			if got := forbidden.All(); len(got) > 0 {
				t.Errorf("forbidden: %s", strings.Join(got, "\n"))
			}
			w.auditSecrets(plane, tenant, mode == "cluster")
		})
	}
}

// tenant with every right in the world's namespace tries to read the key of the
// controller.
func (w *world) tenant(plane *controlplane.ControlPlane) (user string) {
	w.Helper()
	access, err := plane.ServiceAccount(w.Context(), w.namespace, "tenant")
	w.must(err)
	meta := metav1.ObjectMeta{Namespace: w.namespace, Name: "tenant"}
	w.must(w.Client.Create(w.Context(),
		&rbacv1.Role{ObjectMeta: meta,
			Rules: []rbacv1.PolicyRule{{APIGroups: []string{"*"}, Resources: []string{"*"},
				Verbs: []string{"*"}}}}))
	w.must(w.Client.Create(w.Context(), &rbacv1.RoleBinding{ObjectMeta: meta,
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "tenant"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: w.namespace,
			Name: "tenant"}}}))
	c, err := client.New(access.Config, client.Options{Scheme: w.Scheme()})
	w.must(err)
	w.eventually("the tenant's rights count", func() string {
		if err := c.Get(w.Context(), client.ObjectKey{Namespace: w.namespace, Name: "bystander"},
			&corev1.Secret{}); err != nil {
			return err.Error()
		}
		return ""
	})
	if err := c.Get(w.Context(), client.ObjectKey{Namespace: systemNamespace,
		Name: "armature-attest-key"}, &corev1.Secret{}); !apierrors.IsForbidden(err) {
		w.Errorf("a tenant reads the key: %v", err)
	}
	return "system:serviceaccount:" + w.namespace + ":tenant"
}

// auditSecrets compares the API server's audit log with what docs/threat-model.md says of
// Secrets. With a KMS the controller reads no key that attests.
func (w *world) auditSecrets(plane *controlplane.ControlPlane, tenant string, readsKey bool) {
	w.Helper()
	const itself = "system:serviceaccount:" + systemNamespace + ":armature-controller"
	requests, err := plane.SecretRequests()
	w.must(err)
	reads := map[string]int{} // of the controller, by namespace and name
	denied := 0
	for _, r := range requests {
		key := r.Namespace + "/" + r.Name
		ours := key == systemNamespace+"/armature-attest-key"
		switch {
		case r.User == itself && r.Namespace == w.options.Settings.BuildNamespace &&
			(r.Verb == "create" || r.Verb == "get" && r.Name != ""):
			// copies
		case r.User == itself && r.Verb == "get" && r.Name != "":
			reads[key]++
		case r.User == itself:
			w.Errorf("the controller did %+v", r)
		case r.User == tenant && ours && r.Code == http.StatusForbidden:
			denied++
		case ours && r.Verb != "create" ||
			r.Namespace == systemNamespace && r.Name == "" && r.User != "system:apiserver":
			w.Errorf("somebody else did %+v", r)
		}
	}
	if denied != 1 {
		w.Errorf("%d of the tenant's attempts are in the log, want 1", denied)
	}
	if (reads[systemNamespace+"/armature-attest-key"] > 0) != readsKey ||
		reads[w.namespace+"/login"] == 0 {
		w.Errorf("the log lacks what the controller has to read, or has more: %v", reads)
	}
	for key := range reads {
		if !slices.Contains([]string{systemNamespace + "/armature-attest-key",
			w.namespace + "/login"}, key) {
			w.Errorf("the controller read %s, which no build names", key)
		}
	}
}

// applyAll makes every object that a command prints.
func (w *world) applyAll(command []string) {
	w.Helper()
	cmd := exec.CommandContext(w.Context(), "go", command...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	w.must(err)
	decoder := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(out), 4096)
	for {
		u := &unstructured.Unstructured{}
		if err := decoder.Decode(u); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			w.Fatal(err)
		}
		w.eventually("applying "+u.GetKind()+" "+u.GetName(), func() string {
			if err := w.Client.Create(w.Context(), u.DeepCopy()); err != nil &&
				!strings.Contains(err.Error(), "already exists") {
				return err.Error()
			}
			return ""
		})
	}
}
