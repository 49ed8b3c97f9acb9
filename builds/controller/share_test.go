package controller_test

import (
	"fmt"
	"strings"
	"testing"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose/templates"
	"github.com/armature-dev/armature/functions/api/keys"
)

// ConfigMaps of another namespace count once they name the build's namespace in a
// label. What a build reports about others is the same whether they exist or not.
func TestConfigMapsOfOtherNamespaces(t *testing.T) {
	for _, watched := range []bool{false, true} {
		t.Run(fmt.Sprintf("watched=%v", watched), func(t *testing.T) {
			w := newWorld(t)
			other := w.namespace + "-other"
			w.must(w.Client.Create(t.Context(),
				&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: other}}))
			if watched {
				w.options.Namespaces = append(w.options.Namespaces, other)
			}
			theirs := map[string]*corev1.ConfigMap{}
			for name, data := range map[string]map[string]string{
				"database":                  {"password-of-the-payroll": "hunter2"},
				"theirs-step":               {templates.StepKey: followsStep},
				"broken-step":               {templates.StepKey: "steps: {secret: hunter2}"},
				"pipeline-template-payroll": {"secret-key": "hunter2"},
				"pipeline-template-theirs": {
					templates.TemplateKeyYAML: "steps: [{name: only, configMap: theirs-step}]"},
			} {
				theirs[name] = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: other,
					Name:   name,
					Labels: map[string]string{keys.SharePrefix + "somebody-else": "true"}}, Data: data}
				w.must(w.Client.Create(t.Context(), theirs[name]))
			}
			w.start()
			message := func(build, reason string) string {
				t.Helper()
				var c metav1.Condition
				w.eventually(build+" is refused", func() string {
					if c = condition(w.build(build), api.ConditionReady); c.Reason != reason {
						return c.Reason + ": " + c.Message
					}
					return ""
				})
				return c.Message
			}
			steps := map[string]string{}
			for _, name := range []string{"database", "theirs-step", "broken-step", "no-such-step"} {
				w.own("pipeline-template-of-"+name, templates.TemplateKeyYAML,
					fmt.Sprintf("steps: [{name: only, configMap: %s}]", name))
				w.create(name, func(b *api.AgentBuild) {
					b.Spec.Mode, b.Spec.Pipeline = "of-"+name, &api.PipelineSpec{Namespace: other}
				})
				steps[strings.ReplaceAll(message(name, api.ReasonStepNotFound), name, "NAME")] = name
			}
			if len(steps) != 1 {
				t.Errorf("the messages about steps differ: %q", steps)
			}
			modes := map[string]string{}
			for _, name := range []string{"payroll", "theirs", "no-such"} {
				w.create(name, func(b *api.AgentBuild) {
					b.Spec.Mode, b.Spec.Pipeline =
						name, &api.PipelineSpec{Namespace: other}
				})
				// the hint lists modes of this namespace
				own := strings.NewReplacer("/"+name+":", "/NAME:", `"pipeline-template-`+name+`"`,
					"TEMPLATE")
				modes[own.Replace(message(name, api.ReasonTemplateNotFound))] = name
			}
			if len(modes) != 1 {
				t.Errorf("the messages about templates differ: %q", modes)
			}
			if n := len(w.runs()); n != 0 {
				t.Fatalf("%d runs of steps that nobody shared", n)
			}
			for _, name := range []string{"pipeline-template-theirs", "theirs-step"} {
				theirs[name].Labels[keys.SharePrefix+w.namespace] = "true"
				w.must(w.Update(t.Context(), theirs[name]))
			}
			w.change(w.build("theirs"),
				func(b *api.AgentBuild) { b.Annotations = map[string]string{"look": "again"} })
			var run *tektonv1.PipelineRun
			w.eventually("a shared template and step run", func() string {
				for _, r := range w.runs() {
					if r.Labels[keys.LabelBuild] == "theirs" {
						run = &r
						return ""
					}
				}
				return "no run"
			})
			delete(theirs["theirs-step"].Labels, keys.SharePrefix+w.namespace)
			w.must(w.Update(t.Context(), theirs["theirs-step"]))
			w.fail(run)
			w.change(w.build("theirs"), retag("v2"))
			message("theirs", api.ReasonStepNotFound)
		})
	}
}

// The controller's namespace is for all, but of its ConfigMaps that are not steps
// nothing is reported, either.
func TestOtherConfigMapsOfThePlatform(t *testing.T) {
	w := newWorld(t)
	w.must(w.Client.Create(t.Context(),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: systemNamespace,
			Name: "not-a-step-" + w.namespace}, Data: map[string]string{"secret-key": "hunter2"}}))
	w.start()
	messages := map[string]bool{}
	for _, name := range []string{"not-a-step-" + w.namespace, "no-such-step"} {
		w.own("pipeline-template-"+name, templates.TemplateKeyYAML,
			fmt.Sprintf("steps: [{name: only, configMap: %s}]", name))
		w.create(name, func(b *api.AgentBuild) { b.Spec.Mode = name })
		w.eventually(name+" is refused", func() string {
			c := condition(w.build(name), api.ConditionReady)
			if c.Reason == "" {
				return "not yet"
			}
			messages[c.Reason+strings.ReplaceAll(c.Message, name, "NAME")] = true
			return ""
		})
	}
	if len(messages) != 1 {
		t.Errorf("the messages differ: %v", messages)
	}
}

// A tenant that names a template as a step, or a step as a template, keeps nobody from
// using it as what it is.
func TestTemplateNamedAsAStep(t *testing.T) {
	w := newWorld(t)
	other := w.namespace + "-other"
	w.must(w.Client.Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: other}}))
	w.options.Namespaces = append(w.options.Namespaces, other)
	w.own("pipeline-template-own", templates.TemplateKeyYAML,
		"steps: [{name: only, configMap: pipeline-template-dev}]")
	w.start()
	for i := range 3 {
		hostile := fmt.Sprint("hostile", i)
		w.create(hostile, func(b *api.AgentBuild) { b.Spec.Mode = "own" })
		w.eventually("the hostile build is refused", func() string {
			if c := condition(w.build(hostile),
				api.ConditionReady); c.Reason != api.ReasonStepNotFound {
				return c.Reason + ": " + c.Message
			}
			return ""
		})
		b := w.newBuild(fmt.Sprint("good", i))
		b.Namespace = other
		w.must(w.Client.Create(t.Context(), b))
		w.eventually("another tenant's build runs", func() string {
			w.must(w.Get(t.Context(), client.ObjectKeyFromObject(b), b))
			if b.Status.Phase != api.PhaseBuilding {
				return condition(b, api.ConditionReady).Message
			}
			return ""
		})
	}
}
