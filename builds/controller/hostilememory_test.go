package controller_test

import (
	"fmt"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose/templates"
)

// A tenant, with every right in its namespace, with large steps, large runs and a thousand changes
// of one build leaves the controller below half of the memory that its Deployment allows (1 GiB),
// and the one that replaces it too. Builds of another namespace start meanwhile.
func TestHostileTenantMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a minute; run it without -short")
	}
	if runtime.GOOS != "linux" {
		t.Skip("the peak of a process's memory is read from Linux's /proc")
	}
	const limitMiB, large, changes = 512, 40, 200
	w := newWorld(t)
	evil, file := newEvilGit(t), buildProgram(t)
	other := w.namespace + "-other"
	w.must(w.Client.Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: other}}))
	start := func() *exec.Cmd {
		return w.spawn(file, "--watch-namespaces", other, "--git-allow-network", "127.0.0.0/8")
	}
	admin := w.Client
	w.Client = w.admin()
	cmd := start()
	defer func() { kill(cmd) }()
	good := 0
	another := func() {
		t.Helper()
		b := w.newBuild(fmt.Sprint("good", good))
		b.Namespace = other
		good++
		began := time.Now()
		w.must(admin.Create(t.Context(), b))
		w.eventually("a build of another namespace runs", func() string {
			w.must(admin.Get(t.Context(), client.ObjectKeyFromObject(b), b))
			if b.Status.Phase != api.PhaseBuilding {
				return fmt.Sprintf("it is %q", b.Status.Phase)
			}
			return ""
		})
		peak := statusMiB(t, cmd.Process.Pid, "VmHWM:")
		t.Logf(
			"peak of the controller's memory %.0f MiB; a build of another namespace began after %s",
			peak, time.Since(began).Round(time.Millisecond))
		if peak > limitMiB {
			t.Errorf("the controller took %.0f MiB, and at most %d are allowed", peak, limitMiB)
		}
	}
	mode := func(name, template string) func(*api.AgentBuild) {
		w.own("pipeline-template-"+name, templates.TemplateKeyYAML, template)
		return func(b *api.AgentBuild) { b.Spec.Mode = name }
	}
	refused := func(prefix string, n int, reason string) {
		t.Helper()
		w.eventually(prefix+" builds are judged", func() string {
			for i := range n {
				if c := condition(w.build(fmt.Sprint(prefix, i)),
					api.ConditionReady); c.Reason != reason {
					return fmt.Sprintf("%s%d: %s: %.200s", prefix, i, c.Reason, c.Message)
				}
			}
			return ""
		})
	}

	// Trees of YAML: a MiB each, and as many values as are read.
	trees := map[string]string{
		"tree": "steps: [" + strings.Repeat("{},", 330000) + "]",
		"value": "steps: [{image: a, args: [" + strings.Repeat("a,", 3900) + "]}]\ndescription: " +
			strings.Repeat("x", 400<<10),
	}
	for name, n := range map[string]int{"tree": 8, "value": large} {
		w.inParallel(8, n, func(i int) error {
			step := fmt.Sprintf("%s-%d", name, i)
			w.own(step, templates.StepKey, trees[name])
			return w.Client.Create(w.Context(), w.newBuild(fmt.Sprint(name, i),
				mode(step, fmt.Sprintf("steps: [{name: only, configMap: %s}]", step))))
		})
	}
	refused("tree", 8, api.ReasonInvalidStep)
	another()

	// A run of a hundred large steps.
	rows := "steps:\n"
	for i := range 100 {
		rows += fmt.Sprintf("- {name: s%d, configMap: value-0}\n", i)
	}
	large100 := mode("large", rows)
	for i := range 4 {
		w.create(fmt.Sprint("large", i), large100)
	}
	refused("large", 4, api.ReasonInvalidPipeline)
	another()

	// Questions to Git servers that do not answer.
	asks := func(i int) func(*api.AgentBuild) {
		return func(b *api.AgentBuild) {
			b.Spec.Source.SourceRepository, b.Spec.Source.SourceRevision =
				fmt.Sprintf("%s/tarpit/%d", evil.URL, i), "main"
		}
	}
	for i := range 3 {
		w.create(fmt.Sprint("held", i), asks(i))
	}
	heavy := w.create("patched", asks(3), func(b *api.AgentBuild) {
		b.Spec.Pipeline = &api.PipelineSpec{}
		text := strings.Repeat("x", 32000)
		for i := range 30 {
			b.Spec.Pipeline.Parameters = append(b.Spec.Pipeline.Parameters,
				api.Parameter{Name: fmt.Sprint("p", i), Value: &text})
		}
	})
	for i := range changes {
		w.change(heavy, asks(4+i))
		time.Sleep(10 * time.Millisecond)
	}
	another()
	kill(cmd)
	cmd = start()
	refused("tree", 8, api.ReasonInvalidStep)
	another()
}

// admin is a client with every right in the world's namespace.
func (w *world) admin() client.Client {
	w.Helper()
	w.must(w.Client.Create(w.Context(),
		&rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "tenant"},
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole",
				Name: "cluster-admin"},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: w.namespace,
				Name: "tenant"}}}))
	access, err := shared.Get(w.TB).ServiceAccount(w.Context(), w.namespace, "tenant")
	w.must(err)
	c, err := client.New(access.Config, client.Options{Scheme: w.Scheme()})
	w.must(err)
	w.eventually("the tenant's rights count", func() string {
		if err := c.List(w.Context(), &api.AgentBuildList{},
			client.InNamespace(w.namespace)); err != nil {
			return err.Error()
		}
		return ""
	})
	return c
}
