// Package gitops runs Argo CD for tests: its own servers, of the version in e2e/argocd, as
// processes on this machine that work with any Kubernetes API.
package gitops

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/e2e/controlplane"
	"github.com/armature-dev/armature/e2e/kubeconfig"
	"github.com/armature-dev/armature/e2e/programs"
)

const (
	// Namespace is the namespace of Argo CD and its Applications.
	Namespace = "argocd"
	// User is the name by which the API server knows the application-controller, which
	// makes all changes.
	User = "system:serviceaccount:" + Namespace + ":" + serviceAccount

	serviceAccount = "argocd-application-controller"
	module         = "github.com/argoproj/argo-cd/v3"
	// patience is the time limit for an event. Seconds are usual; a busy machine takes many times
	// that.
	patience = 3 * time.Minute
)

// ArgoCD is a repo-server with a plugin server, and an application-controller with the
// ServiceAccount and RBAC of the released manifests. miniredis is its Redis. It has no server for
// its web interface and CLI: tests write Applications.
type ArgoCD struct {
	testing.TB
	client client.Client
	dir    string // short, since sockets have no longer path than about 100 characters
}

// Start installs and runs Argo CD until the test ends. plugin is a folder with a plugin.yaml, whose
// programs are on the PATH; settings are manifests that are applied in addition to the released
// settings, such as a ConfigMap argocd-cm. The installed objects stay.
func Start(t testing.TB, admin *rest.Config, plugin string, settings ...string) *ArgoCD {
	t.Helper()
	program := programs.Peer(t, "argocd")
	dir, err := os.MkdirTemp("", "argocd-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// The repo-server removes its own right to read the files that it has fetched.
		filepath.WalkDir(dir, func(path string, d fs.DirEntry, _ error) error {
			if d != nil && d.IsDir() {
				os.Chmod(path, 0o700)
			}
			return nil
		})
		os.RemoveAll(dir)
	})
	a := &ArgoCD{TB: t, dir: dir}
	a.client, err = client.New(admin, client.Options{})
	a.must(err)
	a.install(admin, settings)
	a.run(program, a.access(admin), plugin)
	return a
}

func (a *ArgoCD) must(err error) {
	a.Helper()
	if err != nil {
		a.Fatal(err)
	}
}

// install applies the released CRDs, settings and RBAC, and the objects that the API server of Argo
// CD creates when it first starts: the key of its sessions and the project default.
func (a *ArgoCD) install(admin *rest.Config, settings []string) {
	a.Helper()
	released := filepath.Join(a.released(), "manifests")
	crds := envtest.CRDInstallOptions{ErrorIfPathMissing: true, MaxTime: patience, Paths: []string{
		filepath.Join(released, "crds", "application-crd.yaml"),
		filepath.Join(released, "crds", "appproject-crd.yaml"),
	}}
	if _, err := envtest.InstallCRDs(admin, crds); err != nil {
		a.Fatalf("installing Argo CD's CRDs: %v", err)
	}
	a.apply("released", "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: "+Namespace+"\n")
	for _, pattern := range []string{"base/config/*-cm.yaml", "base/config/argocd-secret.yaml",
		"base/application-controller-roles/argocd-*.yaml",
		"cluster-rbac/application-controller/argocd-*.yaml"} {
		files, err := filepath.Glob(filepath.Join(released, filepath.FromSlash(pattern)))
		if err != nil || len(files) == 0 {
			a.Fatalf("Argo CD has no %s: %v", pattern, err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			a.must(err)
			a.apply("released", string(text))
		}
	}
	secret := "apiVersion: v1\nkind: Secret\nmetadata:\n  name: argocd-secret\nstringData:\n" +
		"  server.secretkey: " + rand.Text() + "\n"
	project := "apiVersion: argoproj.io/v1alpha1\nkind: AppProject\nmetadata:\n  name: default\n" +
		"spec:\n  sourceRepos: ['*']\n" +
		"  destinations: [{server: '*', namespace: '*'}]\n  clusterResourceWhitelist: [{group: " +
		"'*', kind: '*'}]\n"
	a.apply("first-start", secret)
	a.apply("first-start", project)
	for i, text := range settings {
		a.apply(fmt.Sprint("settings-", i), text)
	}
}

// apply applies a stream of manifests for Argo CD's namespace. Fields of other owners stay.
func (a *ArgoCD) apply(owner, stream string) {
	a.Helper()
	for document := range strings.SplitSeq(stream, "\n---\n") {
		o := &unstructured.Unstructured{}
		a.must(yaml.Unmarshal([]byte(document), &o.Object))
		if len(o.Object) == 0 {
			continue // comments
		}
		if namespaced, err := a.client.IsObjectNamespaced(o); err != nil {
			a.Fatal(err)
		} else if namespaced {
			o.SetNamespace(Namespace)
		}
		if err := a.client.Apply(a.Context(), client.ApplyConfigurationFromUnstructured(o),
			client.FieldOwner(owner), client.ForceOwnership); err != nil {
			a.Fatalf("applying %s %s: %v", o.GetKind(), o.GetName(), err)
		}
	}
}

// released returns the folder of Argo CD's module, for its manifests.
func (a *ArgoCD) released() string {
	a.Helper()
	root, err := programs.Repository()
	a.must(err)
	download := exec.CommandContext(a.Context(), "go", "mod", "download", "-json", module)
	download.Dir = filepath.Join(root, "e2e", "argocd")
	out, err := download.Output()
	var found struct{ Dir, Error string }
	if decoded := json.Unmarshal(out, &found); err == nil {
		err = decoded
	}
	if err != nil || found.Dir == "" {
		a.Fatalf("downloading %s for its manifests: %v %s", module, err, found.Error)
	}
	return found.Dir
}

// access writes a kubeconfig of the application-controller that is valid for an hour.
func (a *ArgoCD) access(admin *rest.Config) (file string) {
	a.Helper()
	clients, err := kubernetes.NewForConfig(admin)
	a.must(err)
	token, err := clients.CoreV1().ServiceAccounts(Namespace).CreateToken(a.Context(),
		serviceAccount, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	a.must(err)
	config := rest.AnonymousClientConfig(admin)
	config.BearerToken = token.Status.Token
	file = filepath.Join(a.dir, "kubeconfig")
	a.must(kubeconfig.Write(file, config))
	return file
}

// run starts the servers, each after the ones that it calls listen.
func (a *ArgoCD) run(program, kubeconfig, plugin string) {
	a.Helper()
	sockets := filepath.Join(a.dir, "plugins")
	a.must(os.Mkdir(sockets, 0o700))
	redis := a.server(program, regexp.MustCompile(`^(\S+)\n`), nil, "redis")
	a.server(program, regexp.MustCompile(`serving on (\S+\.sock)`), map[string]string{
		"ARGOCD_PLUGINSOCKFILEPATH": sockets, "ARGOCD_CMP_WORKDIR": a.folder("plugin-work"),
	}, "cmp-server", "--logformat=text", "--config-dir-path="+plugin)
	repository := a.server(program,
		regexp.MustCompile(`argocd-repo-server is listening on ([0-9.:]+)`), map[string]string{
			"ARGOCD_PLUGINSOCKFILEPATH": sockets,
			"ARGOCD_ASK_PASS_SOCK":      filepath.Join(a.dir, "ask"), "ARGOCD_GPG_ENABLED": "false",
			"ARGOCD_SSH_DATA_PATH": a.folder("ssh"), "ARGOCD_TLS_DATA_PATH": a.folder("tls"),
		}, "repo-server", "--logformat=text", "--address=127.0.0.1", "--port=0",
		"--metrics-address=127.0.0.1", "--metrics-port=0", "--disable-tls", "--redis="+redis)
	a.server(program, regexp.MustCompile(`(Configmap/secret informer synced)`), map[string]string{
		"KUBECONFIG": kubeconfig, "ARGOCD_FAKE_IN_CLUSTER": "true",
		"ARGOCD_APPLICATION_CONTROLLER_PERSIST_RESOURCE_HEALTH": "true",
		"ARGOCD_GPG_ENABLED": "false",
	}, "application-controller", "--logformat=text", "--namespace="+Namespace, "--metrics-port=0",
		"--redis="+redis, "--repo-server="+repository, "--repo-server-plaintext")
}

func (a *ArgoCD) folder(name string) string {
	a.Helper()
	folder := filepath.Join(a.dir, name)
	a.must(os.MkdirAll(folder, 0o700))
	return folder
}

// server starts a server, waits until its output matches, and returns the match.
func (a *ArgoCD) server(program string, ready *regexp.Regexp, variables map[string]string,
	args ...string) (match string) {
	a.Helper()
	var output controlplane.Output
	cmd := exec.Command(program, args...)
	home := a.folder(args[0])
	cmd.Env = append(os.Environ(), "HOME="+home, "TMPDIR="+home)
	for _, name := range slices.Sorted(maps.Keys(variables)) {
		cmd.Env = append(cmd.Env, name+"="+variables[name])
	}
	cmd.Stdout, cmd.Stderr = &output, &output
	a.must(cmd.Start())
	a.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if text := output.String(); a.Failed() {
			a.Logf("argocd %s:\n%s", args[0], text[max(0, len(text)-8000):])
		}
	})
	a.Eventually("argocd "+args[0]+" is ready", func() string {
		found := ready.FindStringSubmatch(output.String())
		if found == nil {
			return "its output does not say so"
		}
		match = found[1]
		return ""
	})
	return match
}

// Eventually waits until ask returns "". Any other text says why not.
func (a *ArgoCD) Eventually(what string, ask func() string) {
	a.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		why := ask()
		if why == "" {
			return
		}
		if time.Now().After(deadline) {
			a.Fatalf("not within %s: %s: %s", patience, what, why)
		}
	}
}

// Application has the fields of an Application that tests read.
type Application struct {
	Metadata struct{ Annotations map[string]string }
	// Operation is null while nothing is under way.
	Operation json.RawMessage
	Status    struct {
		Sync   struct{ Status, Revision string }
		Health struct{ Status string }
		// OperationState is of the last sync.
		OperationState struct{ Phase, Message, StartedAt string }
		Conditions     []Condition
		Resources      []Resource
		SourceType     string // Plugin or Directory
	}
}

// Condition is an error or a warning.
type Condition struct{ Type, Message string }

// Resource is a resource of an Application.
type Resource struct {
	Kind, Name, Status string
	Health             struct{ Status, Message string }
}

// Set writes an Application. Its destination is a namespace of the cluster, which Argo CD creates;
// syncs are automatic, prune, and correct changes of others. allowEmpty lets Argo CD prune all
// objects of an Application, so that only Armature prevents it.
func (a *ArgoCD) Set(name, namespace string, source map[string]any, syncOptions ...any) {
	a.Helper()
	o := application(name)
	o.Object["spec"] = map[string]any{
		"project": "default", "source": source,
		"destination": map[string]any{"server": "https://kubernetes.default.svc",
			"namespace": namespace},
		"syncPolicy": map[string]any{
			"automated":   map[string]any{"prune": true, "selfHeal": true, "allowEmpty": true},
			"syncOptions": append([]any{"CreateNamespace=true"}, syncOptions...),
		},
	}
	a.must(a.client.Apply(a.Context(), client.ApplyConfigurationFromUnstructured(o),
		client.FieldOwner("test"), client.ForceOwnership))
}

func application(name string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	o.SetAPIVersion("argoproj.io/v1alpha1")
	o.SetKind("Application")
	o.SetNamespace(Namespace)
	o.SetName(name)
	return o
}

// Get reads an Application.
func (a *ArgoCD) Get(name string) (app Application) {
	a.Helper()
	o := application(name)
	a.must(a.client.Get(a.Context(), client.ObjectKeyFromObject(o), o))
	text, err := o.MarshalJSON()
	a.must(err)
	a.must(json.NewDecoder(bytes.NewReader(text)).Decode(&app))
	return app
}

// Resource returns a resource of an Application, for instance Deployment/web.
func (a Application) Resource(name string) (r Resource) {
	for _, r := range a.Status.Resources {
		if r.Kind+"/"+r.Name == name {
			return r
		}
	}
	return r
}

// Refresh makes Argo CD compare Applications with the current state of their sources, in parallel,
// and returns when that is done. A hard refresh also renders again.
func (a *ArgoCD) Refresh(hard bool, names ...string) {
	a.Helper()
	const annotation = "argocd.argoproj.io/refresh"
	kind := "normal"
	if hard {
		kind = "hard"
	}
	for _, name := range names {
		patch := fmt.Sprintf(`{"metadata": {"annotations": {%q: %q}}}`, annotation, kind)
		a.must(a.client.Patch(a.Context(), application(name),
			client.RawPatch("application/merge-patch+json", []byte(patch))))
	}
	for _, name := range names {
		a.Eventually("the refresh of "+name, func() string {
			return a.Get(name).Metadata.Annotations[annotation]
		})
	}
}

// Delete removes an Application, but not its resources. It also works at the end of a test.
func (a *ArgoCD) Delete(name string) {
	a.Helper()
	if err := client.IgnoreNotFound(a.client.Delete(context.Background(),
		application(name))); err != nil {
		a.Error(err)
	}
}
