package apply

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/armature-dev/armature/functions/multi"
)

// dependsOn is the annotation of kpt and cli-utils with the objects that have to be ready before an
// object is applied ("depends-on", cli-utils).
const dependsOn = "config.kubernetes.io/depends-on"

// parseDependencies parses the value of the annotation: comma-separated references of the form
// GROUP/namespaces/NAMESPACE/KIND/NAME or, to an object without namespace, GROUP/KIND/NAME. GROUP
// is empty for Kubernetes's core kinds.
func parseDependencies(value string) ([]ID, error) {
	var out []ID
	for _, text := range strings.Split(value, ",") {
		text = strings.TrimSpace(text)
		parts := strings.Split(text, "/")
		var id ID
		switch {
		case len(parts) == 3:
			id = ID{GroupKind: schema.GroupKind{Group: parts[0], Kind: parts[1]}, Name: parts[2]}
		case len(parts) == 5 && parts[1] == "namespaces" && parts[2] != "":
			id = ID{GroupKind: schema.GroupKind{Group: parts[0], Kind: parts[3]},
				Namespace: parts[2], Name: parts[4]}
		}
		if id.GroupKind.Kind == "" || id.Name == "" {
			return nil, fmt.Errorf("%q is not a reference\n"+
				"  hint: write GROUP/namespaces/NAMESPACE/KIND/NAME, or GROUP/KIND/NAME of an "+
				"object without namespace; GROUP is empty for core kinds, and commas "+
				"separate references", text)
		}
		if slices.Contains(out, id) {
			return nil, fmt.Errorf("%q is in it twice\n  hint: remove one", text)
		}
		out = append(out, id)
	}
	return out, nil
}

// reference returns the reference to an object in the form of the annotation.
func reference(id ID) string {
	if id.Namespace == "" {
		return id.GroupKind.Group + "/" + id.GroupKind.Kind + "/" + id.Name
	}
	return id.GroupKind.Group + "/namespaces/" + id.Namespace + "/" + id.GroupKind.Kind + "/" + id.Name
}

// arrange parses the dependencies of the desired objects and computes their order. A dependency on
// an object outside of the package, or of an object on itself, is an error.
func arrange(wanted map[ID]*Step) error {
	var failed []error
	for _, s := range inOrder(wanted) {
		value, ok := s.want.body.GetAnnotations()[dependsOn]
		if !ok {
			continue
		}
		var err error
		s.want.depends, err = parseDependencies(value)
		for _, id := range s.want.depends {
			switch other := wanted[id]; {
			case other == nil || other.want.hook != nil:
				err = outside(id, wanted)
			case stageOf(s.GroupKind) == 0 && stageOf(id.GroupKind) > 0:
				err = fmt.Errorf(
					"%s come before everything else, %s too\n  hint: remove the reference",
					stages[0].name, title(id))
			}
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("%s: %s: annotation %s: %w", s.Place(), s.Title(),
				dependsOn, err))
		}
	}
	if err := multi.Errors(failed...); err != nil {
		return err
	}
	if cycle := rankAll(wanted); cycle != nil {
		var links []string
		for _, next := range append(cycle[1:], cycle[0]) {
			links = append(links, "depends on "+next.Title()+" ("+next.Place()+")")
		}
		return fmt.Errorf(
			"%s: %s depends on itself: it %s\n  hint: remove one of the annotations %s that say so",
			cycle[0].Place(), cycle[0].Title(), strings.Join(links, ", which "), dependsOn)
	}
	return nil
}

// outside returns the error for a reference to an object that is not applied.
func outside(id ID, wanted map[ID]*Step) error {
	if s := wanted[id]; s != nil {
		return fmt.Errorf("%s is a hook, which runs before or after all others (%s)\n"+
			"  hint: remove the reference", title(id), s.Place())
	}
	hint := "add the object to the package, or remove the reference and create the object before"
	for other := range wanted {
		if other.GroupKind.Kind == id.GroupKind.Kind && other.Name == id.Name {
			hint = fmt.Sprintf("write %q", reference(other))
		}
	}
	return fmt.Errorf("the package applies no %q\n  hint: %s", reference(id), hint)
}

// rankAll computes the rank of each step: the stage of its kind or hook, but never before its
// dependencies. If there are cycles, it returns one of them and ignores one dependency of each.
func rankAll(steps map[ID]*Step) (cycle []*Step) {
	ranked := make(map[*Step]bool, len(steps))
	var path []*Step
	var visit func(*Step)
	visit = func(s *Step) {
		if ranked[s] {
			return
		}
		path = append(path, s)
		s.rank = s.ownRank()
		for _, id := range s.want.depends {
			other := steps[id]
			if at := slices.Index(path, other); at >= 0 {
				if cycle == nil {
					cycle = slices.Clone(path[at:])
				}
				continue
			}
			if visit(other); other.rank.compare(s.rank) >= 0 {
				s.rank = rank{other.rank.stage, other.rank.wave + 1}
			}
		}
		path = path[:len(path)-1]
		ranked[s] = true
	}
	for _, s := range inOrder(steps) {
		visit(s)
	}
	return cycle
}

// ownRank returns the rank of a step without dependencies.
func (s *Step) ownRank() rank {
	stage := stageOf(s.GroupKind)
	switch {
	case s.want.early:
		return rank{needed, stage}
	case s.want.hook == nil:
		return rank{stage: stage}
	case s.want.hook.phase == preSync:
		return rank{stage: preHooks}
	}
	return rank{stage: postHooks}
}
