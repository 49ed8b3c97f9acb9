package install

import (
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"
)

// Each shard has Deployments of its own, whose pods no other one selects; webhooks are the default
// shard's, and archives are served under the shard's name.
func TestShards(t *testing.T) {
	o := Options{Scope: "cluster", Namespace: "platform", Group: "agent.kagenti.dev"}
	if err := yaml.UnmarshalStrict(
		[]byte("{shards: [a, b], sources: {enabled: true}, catalog: {enabled: true, "+
			"storeSecret: postgres}}"), &o); err != nil {
		t.Fatal(err)
	}
	if err := o.Check(); err != nil {
		t.Fatal(err)
	}
	text, err := o.Manifests()
	if err != nil {
		t.Fatal(err)
	}
	var all []appsv1.Deployment
	for doc := range strings.SplitSeq(string(text), "\n---\n") {
		var d appsv1.Deployment
		if err := yaml.Unmarshal([]byte(doc), &d); err == nil && d.Kind == "Deployment" {
			all = append(all, d)
		}
	}
	if len(all) != 9 {
		t.Fatalf("%d Deployments, want three of each program", len(all))
	}
	for _, d := range all {
		args := d.Spec.Template.Spec.Containers[0].Args
		program, want := strings.Join(strings.Split(d.Name, "-")[:2], "-"),
			"--shard=!sharding.fluxcd.io/key"
		if d.Name != program {
			want = "--shard=sharding.fluxcd.io/key=" + d.Name[len(program)+1:]
		}
		if !slices.Contains(args, want) ||
			slices.Contains(args, "--webhook-address=:9292") != (d.Name == "armature-controller") ||
			program == "armature-sources" &&
				!slices.Contains(args,
					"--artifact-advertised-address="+d.Name+".$(POD_NAMESPACE).svc") {
			t.Errorf("%s: args %q", d.Name, args)
		}
		if d.Spec.Template.Spec.ServiceAccountName != program {
			t.Errorf("%s has ServiceAccount %s", d.Name, d.Spec.Template.Spec.ServiceAccountName)
		}
		for _, other := range all {
			if labels.SelectorFromSet(d.Spec.Selector.MatchLabels).Matches(
				labels.Set(other.Spec.Template.Labels)) != (d.Name == other.Name) {
				t.Errorf("%s selects %v, and the pods of %s have %v", d.Name, d.Spec.Selector,
					other.Name, other.Spec.Template.Labels)
			}
		}
	}
	for values, want := range map[string]string{
		"shards: [a_b]":                                     "use lower-case letters",
		`shards: [""]`:                                      "use lower-case letters",
		"shards: [a, b, a]":                                 "a twice",
		"shards: [metrics]":                                 "use another name",
		"{shards: [a], maxRunning: 1}":                      "a quota of Kueue",
		"{shards: [a], catalog: {enabled: true}}":           "set catalog.storeSecret",
		"shards: [" + strings.Repeat("a", maxShard+1) + "]": "at most 35",
	} {
		wrong := Options{Scope: "cluster", Namespace: "platform", Group: "agent.kagenti.dev"}
		if err := yaml.UnmarshalStrict([]byte(values), &wrong); err != nil {
			t.Fatal(err)
		}
		if err := wrong.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", values, err, want)
		}
	}
}
