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

// The runtime scripts, by how the sidecar speaks to them: JSON behind its length,
// or HTTP. Both over a Unix socket.
var (
	//go:embed runtime_framed.py
	framedScript string
	//go:embed runtime_http.py
	httpScript string
)

// generation is a series of Asya's releases. Sidecar image, environment, script,
// queue, ends, exchange and binding belong together: a pod with parts of two
// generations loses messages, or does not start.
type generation struct {
	name string
	// first and last are the releases of its sidecar; a zero last is none.
	first, last release
	image       string // of the sidecar
	script      *string
	// namespaced says that the namespace is in the names of queues, and in the
	// sidecar's environment.
	namespaced bool
	// success and failure are where messages end: the sidecar's variable and the
	// actor. ends are all actors that do not send messages on.
	success, failure variableOf
	ends             []string
	timeouts         []string // variables with the time for one message
	resiliency       []string // variables of spec.resiliency that begin like this
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

type variableOf struct{ variable, actor string }

type release [3]int

var (
	operatorEnds = []string{happyEnd, errorEnd}
	laterEnds    = []string{sink, sump, happyEnd, errorEnd}

	// generations are in the order of their releases.
	generations = []generation{{
		name: "0.1", last: release{0, 1, 99}, image: defaultSidecarImage, script: &framedScript,
		success: variableOf{"ASYA_ACTOR_HAPPY_END", happyEnd}, failure: variableOf{"ASYA_ACTOR_ERROR_END", errorEnd}, ends: operatorEnds,
		timeouts: []string{"ASYA_RUNTIME_TIMEOUT"}, arguments: true, sqsDLQ: "asya-dlq", template: true,
	}, {
		name: "0.2", first: release{0, 2, 0}, last: release{0, 5, 0}, image: defaultSidecarImage, script: &framedScript, namespaced: true,
		success: variableOf{"ASYA_ACTOR_HAPPY_END", happyEnd}, failure: variableOf{"ASYA_ACTOR_ERROR_END", errorEnd}, ends: operatorEnds,
		timeouts: []string{"ASYA_RUNTIME_TIMEOUT"}, arguments: true, sqsDLQ: "asya-dlq", template: true,
	}, {
		name: "0.5", first: release{0, 5, 1}, last: release{0, 5, 5}, image: publishedSidecar + ":0.5.5", script: &httpScript, namespaced: true,
		success: variableOf{"ASYA_ACTOR_SINK", sink}, failure: variableOf{"ASYA_ACTOR_SUMP", sump}, ends: laterEnds,
		timeouts:   []string{"ASYA_RUNTIME_TIMEOUT", "ASYA_RESILIENCY_ACTOR_TIMEOUT"}, // 0.5.1, and since 0.5.2
		resiliency: []string{"ASYA_RESILIENCY_RETRY_", "ASYA_RESILIENCY_NON_RETRYABLE_ERRORS"}, sqsDLQ: "asya-%s-dlq", short: true, template: true,
	}, {
		name: "next", first: release{0, 5, 6}, image: publishedSidecar + ":latest", script: &httpScript, namespaced: true,
		success: variableOf{"ASYA_ACTOR_SINK", sink}, failure: variableOf{"ASYA_ACTOR_SUMP", sump}, ends: laterEnds,
		timeouts:   []string{"ASYA_RESILIENCY_ACTOR_TIMEOUT"},
		resiliency: []string{"ASYA_RESILIENCY_POLICIES", "ASYA_RESILIENCY_RULES"}, declares: true, sqsDLQ: "asya-%s-dlq", short: true, platform: true,
	}}
)

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

// foreign gives the generations that know a variable which this one does not;
// none where it knows it, or where nothing is known of it.
func (g *generation) foreign(variable string) (others []string) {
	if g.knows(variable) {
		return nil
	}
	for i := range generations {
		if generations[i].knows(variable) {
			others = append(others, generations[i].name)
		}
	}
	return others
}

var sidecarRelease = krm.Pattern(`/asya-sidecar:v?(\d{1,6})\.(\d{1,6})\.(\d{1,6})(?:[-+@].*)?$`)

// suits reports whether a sidecar image is of the generation, as far as its tag
// says.
func (g *generation) suits(image string) bool {
	found := sidecarRelease().FindStringSubmatch("/" + image)
	if found == nil {
		return true
	}
	var r release
	for i := range r {
		r[i], _ = strconv.Atoi(found[i+1]) // at most six digits
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
		field = "spec.asya." + field
		f := krm.Finding{Rule: "config/asya", Severity: krm.Error, Message: message, Hint: hint, Place: krm.Place{Field: field}}
		if p.Place != nil {
			f.File, f.Line = p.Place.File, p.Place.LineOf(field)
		}
		p.Report.Add(f)
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
	if image := text(c.SidecarImage); !g.suits(image) {
		fail("sidecarImage", fmt.Sprintf("%s is not a sidecar of generation %s", krm.Shown(image), g.name),
			fmt.Sprintf("the releases of generation %s are %s: choose one of them, or another spec.asya.generation", g.name, g.releases()))
	}
}

// checkGeneration reports what the actor has and its generation does not know.
func (e *expander) checkGeneration() {
	g, spec := e.generation, &e.actor.Spec
	unknown := func(field, what string, others []string) {
		hint := "remove it"
		if len(others) > 0 {
			hint += ", or set spec.asya.generation: \"" + strings.Join(others, `" or "`) + "\" in armature.yaml"
		}
		e.error("generation", field, fmt.Sprintf("%s is not rendered for generation %s of Asya", what, g.name), hint)
	}
	if spec.Workload.Template != nil && !g.template {
		unknown("spec.workload", "workload", []string{"0.1", "0.2", "0.5"})
	}
	for _, field := range shortFields {
		if e.has("spec."+field) && !g.short {
			unknown("spec."+field, field, []string{"0.5", "next"})
		}
	}
	for _, field := range newestFields {
		if e.has("spec."+field) && !g.platform {
			unknown("spec."+field, field, []string{"next"})
		}
	}
	if g.short && g.template && spec.Workload.Template != nil {
		e.checkForms()
	}
	if spec.Transport != "" && g.platform {
		unknown("spec.transport", "transport", []string{"0.1", "0.2", "0.5"})
	}
	for i, v := range spec.Sidecar.Env {
		name, _ := v["name"].(string)
		if others := g.foreign(name); len(others) > 0 {
			unknown(fmt.Sprintf("spec.sidecar.env[%d]", i), krm.Shown(name), others)
		}
	}
	parts, mapping, err := spec.Sidecar.Image.Parts()
	switch {
	case err != nil:
		e.error("field", "spec.sidecar.image", "not an image", "write repository, tag and pullPolicy, each as text")
	case mapping && !g.platform:
		unknown("spec.sidecar.image", "an image in parts", []string{"next"})
	case parts.PullPolicy != "":
		e.checkPullPolicy("spec.sidecar.image.pullPolicy", parts.PullPolicy)
	}
	if image, _ := e.sidecarImage(); spec.Sidecar.Image != "" && !g.suits(image) {
		e.error("generation", "spec.sidecar.image", fmt.Sprintf("%s is not a sidecar of generation %s of Asya", krm.Shown(image), g.name),
			"the releases of generation "+g.name+" are "+g.releases())
	}
	if r := spec.Resiliency; r != nil {
		retries := r.Retry != nil || len(r.NonRetryableErrors) > 0
		policies := len(r.Policies) > 0 || len(r.Rules) > 0
		if retries && g.platform {
			unknown("spec.resiliency", "resiliency with retry and nonRetryableErrors", []string{"0.5"})
		}
		if policies && !g.platform {
			unknown("spec.resiliency", "resiliency with policies and rules", []string{"next"})
		}
	}
}
