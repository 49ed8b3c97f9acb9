// Package labels is the example of CONTRIBUTING.md: a function that gives all
// objects of a namespace the labels of a CommonLabels.
package labels

import (
	"fmt"
	"maps"
	"slices"

	"github.com/armature-dev/armature/functions/contract"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/krm"
)

const function = "labels"

// CommonLabels is the API type. One of a function that ships is in functions/api.
type CommonLabels struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace,omitempty"`
	} `json:"metadata"`
	Spec struct {
		// Labels are given to every object of the namespace that lacks them.
		Labels map[string]string `json:"labels"`
	} `json:"spec"`
}

// Function sets labels. Its row in the table is the only other place that names it.
func Function() contract.Function {
	return contract.Function{
		Name:    function,
		Summary: "give all objects of a namespace the labels of a CommonLabels",
		Page:    "# labels\n",
		Kinds: []contract.Kind{{
			Name: "CommonLabels", Groups: []contract.Group{{Name: "labels.example.com"}}, Versions: []string{"v1"}, Own: true, Shared: true,
		}},
		New: begin,
	}
}

// state is what is known of a package.
type state struct {
	pkg    *contract.Package
	byName map[string]CommonLabels // by namespace
}

func begin(p *contract.Package) contract.Steps {
	s := &state{pkg: p, byName: make(map[string]CommonLabels)}
	return contract.Steps{Collect: s.collect, Run: s.run}
}

func (s *state) collect(o *krm.Object) {
	var value CommonLabels
	s.pkg.Report.Decode(o, function+"/field", &value)
	if _, taken := s.byName[o.Namespace]; taken {
		s.pkg.Report.Add(o.Finding(finding.Error, function+"/two-of-a-namespace", o.Get("metadata"),
			fmt.Sprintf("the namespace %q has two CommonLabels", o.Namespace), "merge them into one"))
		return
	}
	s.byName[o.Namespace] = value
}

func (s *state) run(u *contract.Unit) {
	labels := s.byName[u.Object.Namespace].Spec.Labels
	if u.Consumed || !u.Settle() {
		return
	}
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		if !u.Object.Get("metadata", "labels", key).Exists() {
			u.Changes.Set(function, u.Object.Root(), []string{"metadata", "labels"}, key, labels[key])
		}
	}
}
