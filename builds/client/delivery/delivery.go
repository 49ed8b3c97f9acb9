// Package delivery follows an agent from the built commit to the pods that run it, and finds the
// first step that is not done. It is pure: a command or a page reads the cluster.
package delivery

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/armature-dev/armature/builds/api"
	updates "github.com/armature-dev/armature/builds/writeback/imageupdate/api"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/workload"
	"github.com/armature-dev/armature/render/deliver/status"
)

// State is the state of a link.
type State string

// The states. The links after one that is not Done are Waiting.
const (
	Done    State = "Done"
	Waiting State = "Waiting"
	Failed  State = "Failed"
)

// Link is one step of the delivery.
type Link struct {
	// Name is commit, run, image, attestation, lock, workload or pods.
	Name  string `json:"name"`
	State State  `json:"state"`
	// What is the object: a commit, a run, an image or a pull request.
	What string `json:"what,omitempty"`
	// Why is the reason why it is not done, with the remedy after "hint: ".
	Why string `json:"why,omitempty"`
}

// Chain is the delivery of one workload.
type Chain struct {
	Namespace string `json:"namespace"`
	Workload  string `json:"workload"`
	Build     string `json:"build"`
	Links     []Link `json:"links"`
}

// Workload is a workload that runs an image.
type Workload struct {
	Namespace, Kind, Name string
	// Package is the NAME of the package that was applied; empty if it is not known.
	Package string
	// Images are the images of its containers.
	Images []string
	// Ready and Desired are numbers of pods.
	Ready, Desired int
}

// WorkloadOf returns the Workload of an object, with the numbers of pods from the report. Without
// injection, the numbers are from the status of the workload.
func WorkloadOf(o *unstructured.Unstructured, report status.Report) Workload {
	w := Workload{Namespace: o.GetNamespace(), Kind: o.GetKind(), Name: o.GetName(),
		Package: o.GetLabels()[keys.LabelName]}
	var pod corev1.PodSpec
	spec, _, _ := unstructured.NestedMap(o.Object, workload.SpecOf(o.GetKind())...)
	// The API server has checked the spec.
	_ = runtime.DefaultUnstructuredConverter.FromUnstructured(spec, &pod)
	for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
		w.Images = append(w.Images, c.Image)
	}
	if k := workload.Find(o.GetKind()); k != nil && k.Desired != "" {
		count := func(field string) int {
			n, _, _ := unstructured.NestedInt64(o.Object, strings.Split(field, ".")...)
			return int(n)
		}
		w.Ready, w.Desired = count(k.Ready), count(k.Desired)
	}
	for _, a := range report.Agents {
		if a.Namespace == w.Namespace && a.Name.Name == w.Name {
			w.Ready, w.Desired = a.Ready, a.Desired
		}
	}
	for _, x := range report.Workloads {
		if x.Namespace == w.Namespace && x.Name.Name == w.Name && x.Kind == w.Kind {
			w.Ready, w.Desired = x.Ready, max(x.Pods, w.Desired) // There may be no pod yet.
		}
	}
	return w
}

// BuildOf returns the AgentBuild of a workload: the build of its image with any digest, or else the
// build of the same name, or nil.
func BuildOf(w Workload, builds []api.AgentBuild) *api.AgentBuild {
	var named *api.AgentBuild
	for i, b := range builds {
		if b.Namespace != w.Namespace {
			continue
		}
		if b.Status.BuiltImage != "" && slices.ContainsFunc(w.Images, func(image string) bool {
			return repository(image) == repository(b.Status.BuiltImage)
		}) {
			return &builds[i]
		}
		if b.Name == w.Name {
			named = &builds[i]
		}
	}
	return named
}

// repository returns an image without tag and digest.
func repository(image string) string {
	image, _, _ = strings.Cut(image, "@")
	if at := strings.LastIndex(image, ":"); at > strings.LastIndex(image, "/") {
		image = image[:at]
	}
	return image
}

// UpdateOf returns the ImageUpdate that writes the image of a build into Git, or nil.
func UpdateOf(b *api.AgentBuild, all []updates.ImageUpdate) *updates.ImageUpdate {
	for i, u := range all {
		if u.Namespace == b.Namespace &&
			(len(u.Spec.Builds) == 0 || slices.Contains(u.Spec.Builds, b.Name)) {
			return &all[i]
		}
	}
	return nil
}

// Of returns the chain of a workload and its build. u is nil if no ImageUpdate writes the image.
func Of(w Workload, b *api.AgentBuild, u *updates.ImageUpdate) Chain {
	c := Chain{Namespace: w.Namespace, Workload: w.Kind + "/" + w.Name, Build: b.Name}
	attested := meta.FindStatusCondition(b.Status.Conditions, api.ConditionAttested)
	c.Links = append(c.Links, commit(b), run(b, attested), image(b))
	if attested != nil || b.Status.BuiltImage != "" {
		c.Links = append(c.Links, attestation(b, attested))
	}
	if u != nil {
		c.Links = append(c.Links, lock(b, u))
	}
	c.Links = append(c.Links, workloadLink(w, b, u), pods(w))
	behind := false
	for i, l := range c.Links {
		if behind && l.State == Done && l.Name != "pods" {
			c.Links[i].State = Waiting
		}
		behind = behind || l.State != Done
	}
	return c
}

// Stop returns the first link that is not done, or nil.
func (c Chain) Stop() *Link {
	for i, l := range c.Links {
		if l.State != Done {
			return &c.Links[i]
		}
	}
	return nil
}

func commit(b *api.AgentBuild) Link {
	if s := b.Status.Source; s != nil {
		return Link{"commit", Done, strings.TrimSpace(s.Git.CommitSHA + " " + s.Git.Ref), ""}
	}
	return Link{"commit", Waiting, "",
		cmp.Or(b.Status.Message, "the revision has not been resolved yet")}
}

func run(b *api.AgentBuild, attested *metav1.Condition) Link {
	l := Link{"run", Waiting, b.Status.PipelineRunName, b.Status.Message}
	failed := b.Status.Phase == api.PhaseFailed || b.Status.Phase == api.PhaseCancelled
	switch {
	// After a failed attestation, the run itself has succeeded.
	case failed && attested != nil && attested.Status == metav1.ConditionFalse,
		b.Status.Phase == api.PhaseSucceeded:
		l.State, l.Why = Done, ""
	case failed:
		l.State = Failed
	}
	return l
}

func image(b *api.AgentBuild) Link {
	if b.Status.BuiltImage == "" {
		return Link{"image", Waiting, "", "no run has succeeded yet"}
	}
	return Link{"image", Done, b.Status.BuiltImage, ""}
}

// attestation returns the attestation as status claims it. c is nil if the mode is not attested.
func attestation(b *api.AgentBuild, c *metav1.Condition) Link {
	l := Link{Name: "attestation", State: Done}
	if c == nil || b.Status.Attestation != nil {
		l.What = b.Claim()
	}
	if c != nil && c.Status != metav1.ConditionTrue {
		l.State, l.Why = Waiting, c.Message
		if c.Status == metav1.ConditionFalse {
			l.State = Failed
		}
	}
	return l
}

func lock(b *api.AgentBuild, u *updates.ImageUpdate) Link {
	link := func(state State, why string) Link {
		return Link{"lock", state, strings.TrimSpace(
			cmp.Or(u.Status.PullRequest, u.Status.Commit) + " " + u.Spec.Branch), why}
	}
	for _, h := range u.Status.Held {
		if h.Build == b.Name && h.Image == b.Status.BuiltImage {
			why := "held back: " + h.Why
			if !strings.Contains(h.Why, "\n  hint: ") {
				why += "\n  hint: build a newer commit, or list its digest in spec.accept of " +
					"ImageUpdate " + u.Name
			}
			return link(Failed, why)
		}
	}
	ready := meta.FindStatusCondition(u.Status.Conditions, updates.ConditionReady)
	switch {
	case ready == nil:
		return link(Waiting, "ImageUpdate "+u.Name+" has not been reconciled yet")
	case ready.Reason == updates.ReasonProposed:
		return link(Waiting, "the pull request is open\n  hint: merge it: "+u.Status.PullRequest)
	case ready.Status != metav1.ConditionTrue && ready.Reason != updates.ReasonHeldBack &&
		ready.Reason != updates.ReasonNotAttested:
		return link(Failed, "ImageUpdate "+u.Name+": "+ready.Message)
	}
	return link(Done, "")
}

func workloadLink(w Workload, b *api.AgentBuild, u *updates.ImageUpdate) Link {
	l := Link{Name: "workload", State: Done, What: w.Kind + "/" + w.Name}
	if w.Package != "" {
		l.What += " of package " + w.Package
	}
	built := b.Status.BuiltImage
	if built == "" || slices.Contains(w.Images, built) {
		return l
	}
	l.State, l.Why = Waiting, "its image differs from the build's"
	for _, image := range w.Images {
		if repository(image) == repository(built) {
			l.Why = "it has " + image
		}
	}
	l.Why += "\n  hint: render and apply the branch"
	if u == nil {
		l.Why += "; put the image into the lock first: armature pin-builds PATH -n " + w.Namespace
	}
	return l
}

func pods(w Workload) Link {
	what := fmt.Sprintf("%d of %d ready", w.Ready, w.Desired)
	if w.Ready < w.Desired {
		return Link{"pods", Waiting, what,
			"not all pods are ready\n  hint: kubectl describe pods shows the reason"}
	}
	return Link{"pods", Done, what, ""}
}
