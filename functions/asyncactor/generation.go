package asyncactor

import (
	_ "embed" // the scripts
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/contract"
	"github.com/armature-dev/armature/functions/krm"
)

// The runtime scripts, by the protocol that the sidecar uses over a Unix socket: frames of
// JSON preceded by their length, or HTTP.
var (
	//go:embed runtime_common.py
	commonScript string
	//go:embed runtime_framed.py
	framedText string
	//go:embed runtime_http.py
	httpText string

	framedScript, httpScript = whole(framedText), whole(httpText)
)

// whole inserts the code that both scripts share.
func whole(script string) string {
	return strings.Replace(script, "# What both scripts share.\n", commonScript, 1)
}

// generation is a series of Asya's releases. Sidecar image, environment, script,
// queue, ends, exchange and binding belong together: a pod with parts of two
// generations loses messages, or does not start.
type generation struct {
	name string
	// first and last are the releases of its sidecar. A zero last means no upper limit.
	first, last release
	image       string // of the sidecar
	script      *string
	// namespaced says that the namespace is in the names of queues, and in the
	// sidecar's environment.
	namespaced bool
	ends
	timeouts   []string // variables with the time for one message
	resiliency []string // variables of spec.resiliency that begin like this
	// declares says that the sidecar declares and binds its RabbitMQ queue.
	declares bool
	// arguments says that a RabbitMQ queue names its dead-letter queue by arguments,
	// as the operator declared it, and not by a Policy.
	arguments bool
	sqsDLQ    string // with %s for the namespace
	// short says that it knows AsyncActors without spec.workload, template that it
	// knows those with it, and platform that no actor names its transport.
	short, template, platform bool
}

// ends are where messages end: the sidecar's variables, and the actors that they name.
type ends struct {
	success, failure variableOf
	all              []string // the actors that do not send messages on
}

type variableOf struct{ variable, actor string }

type release [3]int

var (
	operatorEnds = ends{variableOf{"ASYA_ACTOR_HAPPY_END", happyEnd}, variableOf{"ASYA_ACTOR_ERROR_END", errorEnd}, []string{happyEnd, errorEnd}}
	laterEnds    = ends{variableOf{"ASYA_ACTOR_SINK", sink}, variableOf{"ASYA_ACTOR_SUMP", sump}, []string{sink, sump, happyEnd, errorEnd}}

	generations = series()
)

// series are the generations in the order of their releases, each as what changed
// since the one before.
func series() []generation {
	oldest := generation{
		name: "0.1", last: release{0, 1, 99}, image: "asya-sidecar:latest", script: &framedScript, ends: operatorEnds,
		timeouts: []string{"ASYA_RUNTIME_TIMEOUT"}, arguments: true, sqsDLQ: "asya-dlq", template: true,
	}
	second := oldest
	second.name, second.first, second.last, second.namespaced = "0.2", release{0, 2, 0}, release{0, 5, 0}, true

	third := second
	third.name, third.first, third.last, third.image = "0.5", release{0, 5, 1}, release{0, 5, 5}, publishedSidecar+":0.5.5"
	third.script, third.ends, third.arguments, third.sqsDLQ, third.short = &httpScript, laterEnds, false, "asya-%s-dlq", true
	third.timeouts = []string{"ASYA_RUNTIME_TIMEOUT", "ASYA_RESILIENCY_ACTOR_TIMEOUT"} // 0.5.1, and since 0.5.2
	third.resiliency = []string{"ASYA_RESILIENCY_RETRY_", "ASYA_RESILIENCY_NON_RETRYABLE_ERRORS"}

	next := third
	next.name, next.first, next.last, next.image = "next", release{0, 5, 6}, release{}, publishedSidecar+":latest"
	next.declares, next.template, next.platform = true, false, true
	next.timeouts = []string{"ASYA_RESILIENCY_ACTOR_TIMEOUT"}
	next.resiliency = []string{"ASYA_RESILIENCY_POLICIES", "ASYA_RESILIENCY_RULES"}
	return []generation{oldest, second, third, next}
}

// publishedSidecar is where Asya publishes the sidecar's images.
const publishedSidecar = "ghcr.io/deliveryhero/asya-sidecar"

// variables are those of a sidecar that not all generations know.
func (g *generation) variables() []string {
	known := append(slices.Clone(g.resiliency), g.timeouts...)
	known = append(known, g.success.variable, g.failure.variable)
	if g.namespaced {
		known = append(known, "ASYA_NAMESPACE")
	}
	return known
}

// knows reports whether its sidecar reads a variable.
func (g *generation) knows(variable string) bool {
	return slices.ContainsFunc(g.variables(), func(known string) bool {
		return known == variable || strings.HasSuffix(known, "_") && strings.HasPrefix(variable, known)
	})
}

var sidecarRelease = krm.Pattern(`/asya-sidecar:v?(\d{1,6})\.(\d{1,6})\.(\d{1,6})(?:[-+@].*)?$`)

// suits reports whether a sidecar image is of the generation, as far as its tag
// says. No release of Asya has a version from 1.0.0 on: such a tag is somebody's own,
// and says nothing where the configuration has named the generation.
func (g *generation) suits(image string, named bool) bool {
	found := sidecarRelease().FindStringSubmatch("/" + image)
	if found == nil {
		return true
	}
	var r release
	for i := range r {
		r[i], _ = strconv.Atoi(found[i+1]) // at most six digits
	}
	if named && r[0] >= 1 {
		return true
	}
	return slices.Compare(r[:], g.first[:]) >= 0 && (g.last == release{} || slices.Compare(r[:], g.last[:]) <= 0)
}

// releases says which releases of the sidecar belong to it.
func (g *generation) releases() string {
	text := func(r release) string { return fmt.Sprintf("%d.%d.%d", r[0], r[1], r[2]) }
	switch {
	case g.last == release{}:
		return "those after 0.5.5"
	case g.first == release{}:
		return "0.1"
	}
	return text(g.first) + " to " + text(g.last)
}

// generationOf gives the generation of the configuration, and reports what does not fit it.
func generationOf(p *contract.Package, c *api.AsyaSpec) *generation {
	fail := func(field, message, hint string) {
		p.Misconfigured("config/asya", "spec.asya."+field, message, hint)
	}
	g := &generations[1]
	if text(c.QueueNames) == "actor" {
		g = &generations[0] // the only one that has these names
	}
	if c.Generation == nil {
		checkImage(g, c, fail)
		return g
	}
	i := slices.IndexFunc(generations, func(g generation) bool { return g.name == *c.Generation })
	if i < 0 {
		fail("generation", fmt.Sprintf("%q is not a generation of Asya that is rendered", krm.Shown(*c.Generation)), `write "0.1", "0.2", "0.5" or "next"`)
		return g
	}
	g = &generations[i]
	if names := text(c.QueueNames); names == "actor" && g.namespaced || names == "namespaced" && !g.namespaced {
		fail("queueNames", fmt.Sprintf("the sidecar of generation %s does not read queues that are named %q", g.name, names), "remove it: the generation says how queues are named")
	}
	checkImage(g, c, fail)
	for _, name := range slices.Sorted(maps.Keys(c.Transports)) {
		if q := c.Transports[name].Config.Queues; g.declares && c.Transports[name].Type == rabbitMQ && (q.AutoCreate != nil && *q.AutoCreate || q.DeletionPolicy != "") {
			fail("transports."+name+".config.queues", "the sidecar of generation "+g.name+" declares its queue itself", "remove autoCreate and deletionPolicy")
		}
	}
	return g
}

func checkImage(g *generation, c *api.AsyaSpec, fail func(field, message, hint string)) {
	if image := text(c.SidecarImage); !g.suits(image, c.Generation != nil) {
		fail("sidecarImage", fmt.Sprintf("%s is not a sidecar of generation %s", krm.Shown(image), g.name), g.remedy(c))
	}
}

// remedy is for a sidecar of another generation.
func (g *generation) remedy(c *api.AsyaSpec) string {
	other := "another spec.asya.generation"
	if c.Generation == nil {
		other = "set spec.asya.generation to that of an own tag"
	}
	return fmt.Sprintf("the releases of generation %s are %s: choose one of them, or %s", g.name, g.releases(), other)
}

// checkGeneration reports what the actor has and its generation does not know.
func checkGeneration(e *expander) {
	g, spec := e.generation, &e.actor.Spec
	check := func(has bool, field, what string, knows func(*generation) bool) {
		if !has || knows(g) {
			return
		}
		var others []string
		for i := range generations {
			if knows(&generations[i]) {
				others = append(others, generations[i].name)
			}
		}
		e.error("generation", field, fmt.Sprintf("%s is not rendered for generation %s of Asya", what, g.name),
			"remove it, or set spec.asya.generation: \""+strings.Join(others, `" or "`)+"\" in armature.yaml")
	}
	platform := func(g *generation) bool { return g.platform }
	check(spec.Workload.Template != nil, "spec.workload", "workload", func(g *generation) bool { return g.template })
	for _, field := range shortFields {
		check(e.has("spec."+field), "spec."+field, field, func(g *generation) bool { return g.short })
	}
	for _, field := range newestFields {
		check(e.has("spec."+field), "spec."+field, field, platform)
	}
	if g.short && g.template && spec.Workload.Template != nil {
		checkForms(e)
	}
	check(spec.Transport != "", "spec.transport", "transport", func(g *generation) bool { return !g.platform })
	for i, v := range spec.Sidecar.Env {
		name, _ := v["name"].(string)
		known := slices.ContainsFunc(generations, func(g generation) bool { return g.knows(name) }) // to any
		check(known, fmt.Sprintf("spec.sidecar.env[%d]", i), krm.Shown(name), func(g *generation) bool { return g.knows(name) })
	}
	parts, mapping, err := spec.Sidecar.Image.Parts()
	check(mapping && err == nil, "spec.sidecar.image", "an image in parts", platform)
	if err != nil {
		e.error("field", "spec.sidecar.image", "not an image", "write repository, tag and pullPolicy, each as text")
	} else if g.platform {
		checkPullPolicy(e, "spec.sidecar.image.pullPolicy", parts.PullPolicy)
	}
	if image, _ := sidecarImage(e); spec.Sidecar.Image != "" && !g.suits(image, e.config.Generation != nil) {
		e.error("generation", "spec.sidecar.image", fmt.Sprintf("%s is not a sidecar of generation %s of Asya", krm.Shown(image), g.name), g.remedy(e.config))
	}
	if r := spec.Resiliency; r != nil {
		check(g.short && (r.Retry != nil || len(r.NonRetryableErrors) > 0), "spec.resiliency", "resiliency with retry and nonRetryableErrors",
			func(g *generation) bool { return g.short && !g.platform })
		check(len(r.Policies) > 0 || len(r.Rules) > 0, "spec.resiliency", "resiliency with policies and rules", platform)
	}
}
