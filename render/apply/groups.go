package apply

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/armature-dev/armature/functions/krm"
)

// kapp's annotations of order ("Apply Ordering", kapp). Both may be on an object more
// than once, with a suffix such as .one.
const (
	changeGroup = "kapp.k14s.io/change-group"
	changeRule  = "kapp.k14s.io/change-rule"
)

// ordering is the groups and the rules of some objects.
type ordering struct {
	members map[string][]ID // by group
	rules   map[ID][]orderRule
}

// orderRule is one rule of an object: it is applied, or deleted, before or after the
// members of a group are applied, or deleted.
type orderRule struct {
	key                       string // of the annotation
	deleted, before, deleting bool
	group                     string
}

// hasOrdering reports whether an object has annotations of kapp's order.
func hasOrdering(u *unstructured.Unstructured) bool {
	for key := range u.GetAnnotations() {
		if isKey(key, changeGroup) || isKey(key, changeRule) {
			return true
		}
	}
	return false
}

func isKey(key, base string) bool { return key == base || strings.HasPrefix(key, base+".") }

// readOrdering reads the annotations of objects. What cannot be read is left out, and
// given to wrong.
func readOrdering(bodies map[ID]*unstructured.Unstructured, wrong func(ID, error)) ordering {
	o := ordering{members: make(map[string][]ID), rules: make(map[ID][]orderRule)}
	for _, id := range slices.SortedFunc(maps.Keys(bodies), compareIDs) {
		annotations := bodies[id].GetAnnotations()
		for _, key := range slices.Sorted(maps.Keys(annotations)) {
			value := annotations[key]
			var err error
			switch {
			case isKey(key, changeGroup):
				all := o.members[value]
				if err = checkGroup(value); err == nil && (len(all) == 0 || all[len(all)-1] != id) {
					o.members[value] = append(all, id)
				}
			case isKey(key, changeRule):
				var r orderRule
				if r, err = parseRule(value); err == nil {
					r.key = key
					o.rules[id] = append(o.rules[id], r)
				}
			}
			if err != nil {
				wrong(id, fmt.Errorf("annotation %s: %w", key, err))
			}
		}
	}
	return o
}

// groupName is a qualified name, as labels have it, of any length.
var groupName = krm.Pattern(`^([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`)

func checkGroup(name string) error {
	switch {
	case strings.ContainsAny(name, "{}"):
		return fmt.Errorf("%q has a placeholder, which is not supported\n  hint: write the name of the group out", name)
	case !groupName().MatchString(name):
		return fmt.Errorf("%q is not the name of a group\n  hint: write a name such as example.com/migrations", name)
	}
	return nil
}

func parseRule(text string) (r orderRule, err error) {
	words := strings.Fields(text)
	if len(words) != 4 || words[0] != "upsert" && words[0] != "delete" || words[1] != "before" && words[1] != "after" ||
		words[2] != "upserting" && words[2] != "deleting" {
		return r, fmt.Errorf("%q is not a rule\n  hint: write upsert or delete, before or after, upserting or deleting, and the name of a group", text)
	}
	r = orderRule{deleted: words[0] == "delete", before: words[1] == "before", deleting: words[2] == "deleting", group: words[3]}
	if r.deleted != r.deleting && r.before == r.deleted {
		return r, fmt.Errorf("%q is not supported: what is pruned is deleted after all others are applied\n  hint: remove the rule, or take the objects out of the package in an apply of its own before", text)
	}
	return r, checkGroup(r.group)
}

// check refuses rules that cannot hold where all objects are applied or deleted.
func (o ordering) check(wrong func(ID, error)) {
	for _, id := range slices.SortedFunc(maps.Keys(o.rules), compareIDs) {
		for _, r := range o.rules[id] {
			bad := func(format string, args ...any) {
				wrong(id, fmt.Errorf("annotation %s: "+format, append([]any{r.key}, args...)...))
			}
			if r.deleted != r.deleting {
				continue // the objects are of two versions of the package
			}
			if len(o.members[r.group]) == 0 {
				bad("no object of the package is in the group %q\n  hint: correct the name, annotate its objects with %s, or remove the rule", r.group, changeGroup)
			}
			for _, other := range o.members[r.group] {
				late, early := id, other
				if r.before != r.deleted {
					late, early = other, id
				}
				if stageOf(late.GroupKind) != 0 || stageOf(early.GroupKind) == 0 {
					continue
				}
				if r.deleted {
					bad("%s are pruned after everything else, %s too\n  hint: remove the rule, or take %s out of the group", stages[0].name, title(late), title(other))
				} else {
					bad("%s come before everything else, %s too\n  hint: remove the rule, or take %s out of the group", stages[0].name, title(late), title(other))
				}
			}
		}
	}
}

// add adds to dependencies what the rules say about objects that are applied, or about
// objects that are deleted: these go before what they depend on.
func (o ordering) add(depends map[ID][]ID, deleted bool) {
	for id, rules := range o.rules {
		for _, r := range rules {
			if r.deleted != deleted || r.deleting != deleted {
				continue
			}
			for _, other := range o.members[r.group] {
				late, early := id, other
				if r.before != r.deleted {
					late, early = other, id
				}
				depends[late] = append(depends[late], early)
			}
		}
	}
	for id, all := range depends {
		slices.SortFunc(all, compareIDs)
		depends[id] = slices.Compact(all)
	}
}

// awaited gives the applied objects that have to be ready before objects are pruned,
// by the rules of both.
func awaited(applied, pruned ordering) map[ID][]ID {
	out := make(map[ID][]ID)
	for id, rules := range pruned.rules {
		for _, r := range rules {
			if r.deleted && !r.deleting {
				out[id] = append(out[id], applied.members[r.group]...)
			}
		}
	}
	for id, rules := range applied.rules {
		for _, r := range rules {
			if r.deleted || !r.deleting {
				continue
			}
			for _, other := range pruned.members[r.group] {
				out[other] = append(out[other], id)
			}
		}
	}
	return out
}
