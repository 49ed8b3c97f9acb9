// Package compare reports the effects of the difference between two rendered packages: which
// workloads roll, which only reload, and which identities, permissions and images change. It is
// pure; the caller renders the packages.
package compare

import (
	"bytes"
	"cmp"
	"maps"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/armature-dev/armature/functions/contract"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/text"
	"github.com/armature-dev/armature/functions/tools"
	"github.com/armature-dev/armature/functions/workload"
	"github.com/armature-dev/armature/render"
)

// Package is one side of a comparison: a rendered package.
type Package struct {
	Files []render.File
	// Settings are the settings of the injected workloads.
	Settings map[Place]identity.Settings
	// Tools are the definitions of tools in the lock. Render leaves them to the caller.
	Tools tools.Side
}

// Place identifies an object of a package that may contain two of one name, for example for two
// clusters.
type Place struct {
	File   string
	Object finding.Ref
}

// Render renders one side of a comparison. If a finding is an error, the package is empty.
func Render(src render.Source, opt render.Options) (Package, []finding.Finding, error) {
	p := Package{Settings: make(map[Place]identity.Settings)}
	opt.ObjectsOnly = true
	opt.Observe = func(u *contract.Unit) {
		if u.Injected() {
			p.Settings[Place{u.Object.Origin.File, u.Object.Ref}] = *u.Settings()
		}
	}
	r, err := render.Run(src, opt)
	p.Files = r.Files
	return p, r.Findings, err
}

// Effect is the effect of a change on the pods of a workload.
type Effect string

// Effects, the strongest first.
const (
	Added    Effect = "added"
	Removed  Effect = "removed"
	Replaced Effect = "replaced" // the API server refuses the change: delete and create
	Rolls    Effect = "rolls"    // the pod template changes, so that pods are replaced
	Restart  Effect = "restart"  // running pods keep old values until they are restarted
	Reloads  Effect = "reloads"  // mounted files change under the running pods
	Changed  Effect = "changed"  // not the pods: replicas, labels, permissions
)

// Report lists the differences of two packages.
type Report struct {
	Workloads []Workload `json:"workloads"`
	// Objects are the other objects, including generated ones.
	Objects []Object `json:"objects"`
	// Tools are the tools whose definitions in the lock differ.
	Tools []tools.Change `json:"tools,omitempty"`
}

// Workload is a workload whose pods, files, identity, permissions or images differ.
type Workload struct {
	Object finding.Ref `json:"object"`
	Effect Effect      `json:"effect"`
	// Note says when the effect occurs, if that is not immediately.
	Note string `json:"note,omitempty"`
	// Fields of the pod template or of the object that differ.
	Fields []string `json:"fields,omitempty"`
	// Reloads are files of ConfigMaps and Secrets that change in running pods. Restart are keys
	// that pods read when they start: "ConfigMap web: ISSUER".
	Reloads []string `json:"reloads,omitempty"`
	Restart []string `json:"restart,omitempty"`
	// Identity, Permissions, Pod and Images differ from Before to After. Pod is what its containers
	// may do on the node, and what they request.
	Identity    []Difference `json:"identity,omitempty"`
	Permissions []Difference `json:"permissions,omitempty"`
	Pod         []Difference `json:"pod,omitempty"`
	Images      []Difference `json:"images,omitempty"`
	// Sides are the two compared texts.
	Sides Sides `json:"-"`
}

// Difference is a value before and after; "" if there is none.
type Difference struct {
	Name   string `json:"name"`
	Before string `json:"before,omitempty"`
	After  string `json:"after,omitempty"`
}

// Object is any object other than a workload.
type Object struct {
	Object finding.Ref `json:"object"`
	Effect Effect      `json:"effect"`
	Sides  Sides       `json:"-"`
}

// Sides are an object before and after; nil if it does not exist.
type Sides struct{ was, is *item }

// Empty reports whether nothing differs.
func (r *Report) Empty() bool { return len(r.Workloads)+len(r.Objects)+len(r.Tools) == 0 }

// key identifies an object on both sides, because its API version and its file may change. If
// several objects have one name, only the first has an empty file.
type key struct{ group, kind, namespace, name, file string }

// item is an object of one side.
type item struct {
	ref  finding.Ref
	file string
	text []byte
	item bool
	// object is decoded on demand.
	object *krm.Object
	value  any
}

// side is a package with its objects by name.
type side struct {
	items   map[key]*item
	pkg     Package
	allowed map[account][]string // the permissions of ServiceAccounts
}

func newSide(p Package) *side {
	s := &side{items: make(map[key]*item), pkg: p}
	for _, f := range p.Files {
		render.EachObject(f.Data, func(d krm.Document, listed bool, _ int, ref finding.Ref) {
			k := key{(&krm.Object{Ref: ref}).Group(), ref.Kind, ref.Namespace, ref.Name, ""}
			if s.items[k] != nil {
				k.file = f.Path
			}
			s.items[k] = &item{ref: ref, file: f.Path, text: f.Data[d.Start:d.End], item: listed}
		})
	}
	s.allowed = s.permissions()
	return s
}

// read decodes the object. A render wrote it, so it can be parsed.
func (i *item) read() *krm.Object {
	if i.object == nil {
		i.object = new(krm.Object)
		_, _ = i.object.Read(i.text, krm.Document{End: len(i.text)}, i.item, krm.Origin{})
	}
	return i.object
}

func (i *item) decoded() any {
	if i.value == nil {
		i.value, _ = i.read().Value()
	}
	return i.value
}

// Packages compares two sides.
func Packages(before, after Package) Report {
	c := comparison{before: newSide(before), after: newSide(after)}
	c.config()
	r := Report{Tools: tools.Compare(before.Tools, after.Tools)}
	all := maps.Clone(c.before.items)
	maps.Copy(all, c.after.items)
	for k := range all {
		was, is := c.before.items[k], c.after.items[k]
		either := cmp.Or(is, was)
		if w, isWorkload := c.workload(either, was, is); isWorkload {
			w.Sides = Sides{was, is}
			if w.Effect != "" {
				r.Workloads = append(r.Workloads, w)
			}
		} else if effect := effectOf(was, is); effect != "" {
			r.Objects = append(r.Objects, Object{either.ref, effect, Sides{was, is}})
		}
	}
	slices.SortFunc(r.Workloads, func(a, b Workload) int { return byRef(a.Object, b.Object) })
	slices.SortFunc(r.Objects, func(a, b Object) int { return byRef(a.Object, b.Object) })
	return r
}

func byRef(a, b finding.Ref) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Kind, b.Kind),
		cmp.Compare(a.Name, b.Name), cmp.Compare(a.APIVersion, b.APIVersion))
}

func effectOf(was, is *item) Effect {
	switch {
	case was == nil:
		return Added
	case is == nil:
		return Removed
	case bytes.Equal(was.text, is.text) || reflect.DeepEqual(was.decoded(), is.decoded()):
		return ""
	}
	return Changed
}

// comparison compares two sides.
type comparison struct {
	before, after *side
	changedKeys   map[key]map[string]change // of ConfigMaps and Secrets
}

type account struct{ namespace, name string }

// workload compares a workload. The effect is empty if nothing differs.
func (c *comparison) workload(either, was, is *item) (w Workload, isWorkload bool) {
	if !bytes.Contains(either.text, []byte("containers")) {
		return w, false
	}
	pod, ok := either.read().PodTemplate()
	if !ok {
		return w, false
	}
	w.Object = either.ref
	w.Effect = effectOf(was, is)
	if w.Effect == Changed {
		c.inPlace(&w, was, is, cmp.Or(pod.Path, "spec"))
	}
	if w.Effect != Added && w.Effect != Removed {
		c.files(&w, either.read(), pod)
	}
	w.Identity = differences(c.before.identity(was), c.after.identity(is))
	imagesBefore, podBefore := was.containers()
	imagesAfter, podAfter := is.containers()
	w.Images, w.Pod = differences(imagesBefore, imagesAfter), differences(podBefore, podAfter)
	w.Permissions = c.allowed(was, is)
	if w.Effect == "" && len(w.Identity)+len(w.Permissions) > 0 {
		w.Effect = Changed
	}
	return w, true
}

// inPlace determines the effect of an update of an object on its pods.
func (c *comparison) inPlace(w *Workload, was, is *item, podPath string) {
	changed := changedFields(was.read(), is.read())
	ofPod := slices.DeleteFunc(slices.Clone(changed),
		func(f string) bool { return !text.Inside(f, podPath) })
	w.Fields = changed
	for _, f := range changed {
		if workload.Immutable(is.ref.Kind, f) {
			w.Effect, w.Note = Replaced, "the API server refuses a change of "+f+": delete it first"
			return
		}
	}
	if len(ofPod) == 0 {
		return
	}
	w.Effect, w.Fields = Rolls, ofPod
	switch {
	case is.ref.Kind == "CronJob":
		w.Note = "from its next run on"
	case is.ref.Kind == "Pod":
		w.Effect, w.Note = Replaced, "a Pod cannot be updated: delete it first"
	case is.read().Get("spec", "updateStrategy", "type").Is("OnDelete"):
		w.Note = "as its pods are deleted (OnDelete)"
	case is.read().Get("spec", "paused").Is("true"):
		w.Note = "once it is no longer paused"
	}
}

func differences(before, after map[string]string) (found []Difference) {
	all := maps.Clone(before)
	maps.Copy(all, after)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if before[name] != after[name] {
			found = append(found, Difference{name, before[name], after[name]})
		}
	}
	return found
}

// containers returns the images of the containers, and the privileges of the pod: which containers
// run as root or with added capabilities, and what the running containers request.
func (i *item) containers() (images, may map[string]string) {
	images, may = make(map[string]string), make(map[string]string)
	if i == nil {
		return images, may
	}
	pod, ok := i.read().PodTemplate()
	if !ok {
		return images, may
	}
	requests := make(map[string]*resource.Quantity)
	root := pod.Spec().Get("securityContext", "runAsUser")
	for list, c := range pod.Containers() {
		name, context, can := c.Get("name").Text(), c.Get("securityContext"), []string(nil)
		images[name] = c.Get("image").Text()
		if user := context.Get("runAsUser"); user.Is("0") || !user.Exists() && root.Is("0") {
			can = append(can, "runs as root")
		}
		if context.Get("privileged").Is("true") {
			can = append(can, "is privileged")
		}
		if added := texts(context.Get("capabilities", "add")); len(added) > 0 {
			can = append(can, "has "+strings.Join(added, ", "))
		}
		if len(can) > 0 {
			may[name] = strings.Join(can, ", ")
		}
		if list == "initContainers" && !c.Get("restartPolicy").Is("Always") {
			continue
		}
		for name, value := range c.Get("resources", "requests").Fields() {
			if q, err := resource.ParseQuantity(value.Text()); err == nil && requests[name] != nil {
				requests[name].Add(q)
			} else if err == nil {
				requests[name] = &q
			}
		}
	}
	var sum []string
	for _, name := range slices.Sorted(maps.Keys(requests)) {
		sum = append(sum, name+" "+requests[name].String())
	}
	if len(sum) > 0 {
		may["requests"] = strings.Join(sum, ", ")
	}
	return images, may
}
