// Package status reports the state of rendered objects in a cluster: actors in the terms of source
// 004, agents by the conditions of 000, and the status sections of the pillars in 001. It reads
// live objects in place of the former controllers, and writes nothing.
package status

import (
	"cmp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"

	kstatus "github.com/fluxcd/cli-utils/pkg/kstatus/status"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/render/deliver/health"
)

// Live contains the objects of any number of namespaces in a cluster.
type Live struct {
	// Workloads are Deployments, StatefulSets, DaemonSets, Jobs and CronJobs.
	Workloads []*unstructured.Unstructured
	// Pods, ConfigMaps and Events may contain unrelated objects.
	Pods       []*corev1.Pod
	ConfigMaps []*corev1.ConfigMap
	Events     []*corev1.Event
	// Scalers are HorizontalPodAutoscalers and ScaledObjects. Queues are those of RabbitMQ's
	// topology operator and of ACK.
	Scalers, Queues []*unstructured.Unstructured
	Now             time.Time
}

// Report is the state of all agents, actors and injected workloads.
type Report struct {
	Actors         []Actor         `json:"actors"`
	Agents         []Agent         `json:"agents"`
	Workloads      []Workload      `json:"workloads"`
	TokenExchanges []TokenExchange `json:"tokenExchanges"`
	AgentTraces    []AgentTrace    `json:"agentTraces"`
	AgentCards     []AgentCard     `json:"agentCards"`
}

// Name identifies the object of a status.
type Name struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// Agent is an Agent's workload with the conditions of 000, "Status Conditions".
type Agent struct {
	Name `json:",inline"`
	// Kind is Agent. Workload is the kind of its rendered workload.
	Kind     string `json:"kind"`
	Workload string `json:"workload"`
	// Ready counts ready pods, and Desired the desired pods.
	Ready      int             `json:"ready"`
	Desired    int             `json:"desired"`
	Conditions []api.Condition `json:"conditions"`
}

// Workload is the state of any other workload that a render injected.
type Workload struct {
	Name `json:",inline"`
	Kind string `json:"kind"`
	// Status is kstatus': Current, InProgress, Failed, Terminating, NotFound or Unknown.
	Status  string `json:"status"`
	Message string `json:"message,omitempty"`
	Ready   int    `json:"ready"`
	Pods    int    `json:"pods"`
}

// Phases of a pillar.
const (
	Active  = "Active"
	Pending = "Pending"
	Failed  = "Failed"
)

// TokenExchange is the identity of one workload, from a custom resource or from the defaults.
type TokenExchange struct {
	Name                    `json:",inline"`
	Target                  string `json:"target"`
	api.TokenExchangeStatus `json:",inline"`
}

// AgentTrace is the tracing of one workload.
type AgentTrace struct {
	Name                 `json:",inline"`
	Target               string `json:"target"`
	api.AgentTraceStatus `json:",inline"`
	ConfiguredPods       int `json:"configuredPods"`
}

// AgentCard is the discovery of agent cards that a ConfigMap configures.
type AgentCard struct {
	Name          `json:",inline"`
	Phase         string `json:"phase"`
	Message       string `json:"message,omitempty"`
	ConfigMapName string `json:"configMapName"`
	// Pods counts the pods whose labels select them for discovery.
	Pods int `json:"pods"`
}

// Of returns the report on the objects of a cluster.
func Of(l Live) Report {
	r := Report{
		Actors: []Actor{}, Agents: []Agent{}, Workloads: []Workload{},
		TokenExchanges: []TokenExchange{}, AgentTraces: []AgentTrace{}, AgentCards: []AgentCard{},
	}
	for _, w := range l.Workloads {
		source, _, _ := strings.Cut(w.GetAnnotations()[keys.RenderedFor], "/")
		_, injected := w.GetAnnotations()[keys.Injected]
		pods := l.PodsOf(w)
		switch {
		case isActor(w):
			r.Actors = append(r.Actors, l.actor(w, pods))
		case source == "Agent":
			r.Agents = append(r.Agents, agent(w, pods))
		case injected:
			r.Workloads = append(r.Workloads, workloadState(w, pods))
		}
		// A RenderConfig may turn off the identity infrastructure.
		if p := profileOf(w); injected && p != nil {
			r.TokenExchanges = append(r.TokenExchanges, l.tokenExchange(w, p, pods))
		}
		if injected && templateMounts(w, traceName(w)) {
			r.AgentTraces = append(r.AgentTraces, l.agentTrace(w, pods))
		}
	}
	for _, cm := range l.ConfigMaps {
		if card, ok := strings.CutPrefix(cm.GetAnnotations()[keys.RenderedFor], "AgentCard/"); ok {
			r.AgentCards = append(r.AgentCards, l.agentCard(cm, card))
		}
	}
	sort(r.Actors)
	sort(r.Agents)
	sort(r.Workloads)
	sort(r.TokenExchanges)
	sort(r.AgentTraces)
	sort(r.AgentCards)
	return r
}

// row is one entry of a report.
type row interface {
	who() Name
	kind() string
	health() Health
}

func (n Name) who() Name           { return n }
func (Actor) kind() string         { return "AsyncActor" }
func (a Agent) kind() string       { return a.Kind }
func (w Workload) kind() string    { return w.Kind }
func (TokenExchange) kind() string { return "TokenExchange" }
func (AgentTrace) kind() string    { return "AgentTrace" }
func (AgentCard) kind() string     { return "AgentCard" }

func (r *Report) rows() []row {
	return slices.Concat(rows(r.Actors), rows(r.Agents), rows(r.Workloads), rows(r.TokenExchanges),
		rows(r.AgentTraces), rows(r.AgentCards))
}

func rows[T row](all []T) (out []row) {
	for _, x := range all {
		out = append(out, x)
	}
	return out
}

func sort[T row](all []T) {
	slices.SortStableFunc(all, func(a, b T) int {
		return cmp.Or(cmp.Compare(a.who().Namespace, b.who().Namespace),
			cmp.Compare(a.who().Name, b.who().Name))
	})
}

// Health summarizes a report.
type Health int

// Well means that everything is as desired, Busy that it is becoming so, Ill that it is not.
const (
	Well Health = iota
	Busy
	Ill
)

// Health returns the worst health in the report.
func (r *Report) Health() (worst Health) {
	for _, x := range r.rows() {
		worst = max(worst, x.health())
	}
	return worst
}

func (a Actor) health() Health {
	switch a.Status {
	case Running, Napping:
		return Well
	case Creating, ScalingUp, ScalingDown, Updating, Terminating:
		return Busy
	}
	return Ill
}

func (a Agent) health() Health {
	for _, c := range a.Conditions {
		if c.Type == "Ready" && c.Status != "True" {
			if c.Reason == podsFailing {
				return Ill
			}
			return Busy
		}
	}
	return Well
}

func (w Workload) health() Health {
	switch h := (health.Health{Status: w.Status}); {
	case h.Good():
		return Well
	case h.Bad():
		return Ill
	}
	return Busy
}

func (t TokenExchange) health() Health { return phaseHealth(t.Phase) }
func (t AgentTrace) health() Health    { return phaseHealth(t.Phase) }
func (c AgentCard) health() Health     { return phaseHealth(c.Phase) }

func phaseHealth(phase string) Health {
	switch phase {
	case Active:
		return Well
	case Pending:
		return Busy
	}
	return Ill
}

// Only keeps the entries with one of the names, and returns the names that exist.
func (r *Report) Only(names []string) (found []string) {
	seen := make(map[string]bool)
	keep := func(n Name) bool {
		seen[n.Name] = seen[n.Name] || slices.Contains(names, n.Name)
		return seen[n.Name]
	}
	r.Actors = filter(r.Actors, keep)
	r.Agents = filter(r.Agents, keep)
	r.Workloads = filter(r.Workloads, keep)
	r.TokenExchanges = filter(r.TokenExchanges, keep)
	r.AgentTraces = filter(r.AgentTraces, keep)
	r.AgentCards = filter(r.AgentCards, keep)
	for _, n := range names {
		if seen[n] {
			found = append(found, n)
		}
	}
	return found
}

// Names returns the kind and name of each entry of the report.
func (r *Report) Names() (names []string) {
	for _, x := range r.rows() {
		names = append(names, strings.ToLower(x.kind())+"/"+x.who().Name)
	}
	return names
}

func filter[T row](all []T, keep func(Name) bool) []T {
	return slices.DeleteFunc(all, func(x T) bool { return !keep(x.who()) })
}

// Empty reports whether a report has no row.
func (r *Report) Empty() bool {
	return len(r.Actors)+len(r.Agents)+len(r.Workloads)+len(r.AgentCards) == 0
}

// PodsOf returns the pods of a workload: those that its selector matches, or those of the Jobs of a
// CronJob.
func (l *Live) PodsOf(w *unstructured.Unstructured) (pods []*corev1.Pod) {
	if w.GetKind() == "CronJob" {
		for _, job := range l.Workloads {
			if job.GetNamespace() == w.GetNamespace() && metav1.IsControlledBy(job, w) {
				pods = append(pods, l.PodsOf(job)...)
			}
		}
		return pods
	}
	selector, selects := health.Selector(w)
	for _, p := range l.Pods {
		if selects && p.GetNamespace() == w.GetNamespace() &&
			selector.Matches(labels.Set(p.GetLabels())) {
			pods = append(pods, p)
		}
	}
	return pods
}

func (l *Live) actor(w *unstructured.Unstructured, pods []*corev1.Pod) Actor {
	live := actorLive{workload: w, pods: pods, now: l.Now}
	_, name, _ := strings.Cut(w.GetAnnotations()[keys.RenderedFor], "/")
	about := map[string]bool{w.GetName(): true}
	for _, s := range l.Scalers {
		target, _, _ := unstructured.NestedString(s.Object, "spec", "scaleTargetRef", "name")
		if s.GetNamespace() != w.GetNamespace() || target != w.GetName() {
			continue
		}
		about[s.GetName()] = true
		if s.GetKind() == "ScaledObject" {
			live.scaledObject = s
		} else {
			live.hpa = s
		}
	}
	for _, q := range l.Queues {
		if q.GetNamespace() == w.GetNamespace() &&
			q.GetAnnotations()[keys.RenderedFor] == "AsyncActor/"+name &&
			// The queue for dead letters has another component.
			q.GetLabels()["app.kubernetes.io/component"] == "queue" {
			live.queue = q
		}
	}
	for _, p := range pods {
		about[p.Name] = true
	}
	for _, e := range l.Events {
		if e.Namespace == w.GetNamespace() && about[e.InvolvedObject.Name] {
			live.events = append(live.events, e)
		}
	}
	a := live.actor()
	a.Name = Name{w.GetNamespace(), name}
	return a
}

func workloadState(w *unstructured.Unstructured, pods []*corev1.Pod) Workload {
	now := health.Checks(nil).Of(w)
	x := Workload{Name: Name{w.GetNamespace(), w.GetName()}, Kind: w.GetKind(), Status: now.Status}
	if !now.Good() {
		x.Message = now.Message
	}
	pods = running(pods)
	x.Pods, x.Ready = len(pods), with(pods, corev1.PodReady)
	// kstatus ignores the Jobs of a CronJob.
	if why := trouble(pods); why != "" && (!now.Good() || x.Kind == "CronJob") {
		x.Status, x.Message = string(kstatus.FailedStatus), why
	}
	return x
}
