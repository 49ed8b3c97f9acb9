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
	"github.com/armature-dev/armature/functions/expand"
	"github.com/armature-dev/armature/functions/internal/node"
	"github.com/armature-dev/armature/functions/text"
)

// The runtime scripts, by the protocol of the sidecar on a Unix socket: frames of JSON preceded by
// their length, or HTTP.
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

// generation is a series of Asya's releases. Sidecar image, environment, script, queue, ends,
// exchange and binding belong together: a pod with parts of two generations loses messages, or does
// not start.
type generation struct {
	name string
	// first and last are the releases of its sidecar. A zero last means no upper limit.
	first, last release
	image       string // of the sidecar
	script      *string
	ends        []string // variables of the sidecar, each with the actor where messages end
	endActors   []string // actors that do not send messages on
	form
	timeout    string   // variable with the time for one message
	resiliency []string // variables of spec.resiliency
	sqsDLQ     string   // with %s for the namespace
	// short says that actors have no spec.workload and name no transport. The sidecar declares and
	// binds its RabbitMQ queue, for which a Policy names the dead-letter queue; the operator's
	// queue has it as an argument.
	short bool
}

type release [3]int

// generations are the generation of the Asya operator, with names of queues that do not collide
// across namespaces, and the newest.
var generations = [...]generation{{
	name: "0.2", first: release{0, 2, 0}, last: release{0, 5, 0}, image: "asya-sidecar:latest",
	script: &framedScript, form: longForm,
	ends:      []string{"ASYA_ACTOR_HAPPY_END", happyEnd, "ASYA_ACTOR_ERROR_END", errorEnd},
	endActors: []string{happyEnd, errorEnd}, timeout: "ASYA_RUNTIME_TIMEOUT", sqsDLQ: "asya-dlq",
}, {
	name: "next", first: release{0, 5, 6}, image: publishedSidecar + ":latest", script: &httpScript,
	form:       shortForm,
	ends:       []string{"ASYA_ACTOR_SINK", sink, "ASYA_ACTOR_SUMP", sump},
	endActors:  []string{sink, sump, happyEnd, errorEnd},
	timeout:    "ASYA_RESILIENCY_ACTOR_TIMEOUT",
	resiliency: []string{"ASYA_RESILIENCY_POLICIES", "ASYA_RESILIENCY_RULES"},
	sqsDLQ:     "asya-%s-dlq", short: true,
}}

// publishedSidecar is the repository of the sidecar's published images.
const publishedSidecar = "ghcr.io/deliveryhero/asya-sidecar"

// knows reports whether the sidecar reads a variable that not all generations read.
func (g *generation) knows(variable string) bool {
	return slices.Contains(append([]string{g.timeout, g.ends[0], g.ends[2]}, g.resiliency...),
		variable)
}

var sidecarRelease = text.Pattern(`/asya-sidecar:v?(\d{1,6})\.(\d{1,6})\.(\d{1,6})(?:[-+@].*)?$`)

// suits reports whether a sidecar image belongs to the generation according to its tag. No release
// of Asya has a version from 1.0.0 on: such a tag is a custom one, and is accepted if the
// configuration names the generation.
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
	return slices.Compare(r[:], g.first[:]) >= 0 &&
		(g.last == release{} || slices.Compare(r[:], g.last[:]) <= 0)
}

// releases returns the releases of the sidecar that belong to the generation.
func (g *generation) releases() string {
	text := func(r release) string { return fmt.Sprintf("%d.%d.%d", r[0], r[1], r[2]) }
	if g.last == (release{}) {
		return text(g.first) + " or later"
	}
	return text(g.first) + " to " + text(g.last)
}

// generationOf returns the generation of the configuration, and reports settings that do not fit
// it.
func generationOf(p *contract.Package, c *api.AsyaSpec) *generation {
	fail := func(field, message, hint string) {
		p.Misconfigured("config/asya", "spec.asya."+field, message, hint)
	}
	g := &generations[0]
	if c.Generation != nil {
		i := slices.IndexFunc(generations[:],
			func(g generation) bool { return g.name == *c.Generation })
		if i < 0 {
			fail("generation",
				expand.Sprintf("%q is not a generation of Asya that is rendered", *c.Generation),
				fmt.Sprintf(`write "0.2" for releases %s, or "next" for %s`,
					generations[0].releases(), generations[1].releases()))
			return g
		}
		g = &generations[i]
	}
	if image := node.Or(c.SidecarImage, ""); !g.suits(image, c.Generation != nil) {
		fail("sidecarImage",
			expand.Sprintf("%s is not a sidecar of generation %s", image, g.name), g.remedy(c))
	}
	for _, name := range slices.Sorted(maps.Keys(c.Transports)) {
		if q := c.Transports[name].Config.Queues; g.short && c.Transports[name].Type == rabbitMQ &&
			(node.Or(q.AutoCreate, false) || q.DeletionPolicy != "") {
			fail("transports."+name+".config.queues",
				"the sidecar of generation "+g.name+" declares its queue itself",
				"remove autoCreate and deletionPolicy")
		}
	}
	return g
}

// remedy returns the hint about a sidecar of another generation.
func (g *generation) remedy(c *api.AsyaSpec) string {
	other := "another spec.asya.generation"
	if c.Generation == nil {
		other = "set spec.asya.generation to that of an own tag"
	}
	return fmt.Sprintf("the releases of generation %s are %s: choose one of them, or %s", g.name,
		g.releases(), other)
}

// checkGeneration reports fields of the actor that its generation does not support.
func checkGeneration(e *expander) {
	g, spec := e.generation, &e.actor.Spec
	operator, newest := &generations[0], &generations[1]
	other := map[*generation]*generation{operator: newest, newest: operator}[g]
	check := func(has bool, of *generation, field, what string) {
		e.FailIf(has && of != g, "generation", field,
			fmt.Sprintf("remove it, or set spec.asya.generation: %q in armature.yaml", of.name),
			"%s is not rendered for generation %s of Asya", what, g.name)
	}
	check(e.has("spec.workload"), operator, "spec.workload", "workload")
	check(spec.Transport != "", operator, "spec.transport", "transport")
	for _, field := range shortFields {
		check(e.has("spec."+field), newest, "spec."+field, field)
	}
	for i, v := range spec.Sidecar.Env {
		name, _ := v["name"].(string)
		at := fmt.Sprintf("spec.sidecar.env[%d]", i)
		check(other.knows(name) && !g.knows(name), other, at, name)
		e.FailIf(
			strings.HasPrefix(name, "ASYA_RESILIENCY_") && !g.knows(name) && !other.knows(name),
			"generation", at,
			"remove it, or write spec.resiliency.policies and rules for generation next",
			"no sidecar of generation %s or %s of Asya reads %s", operator.name, newest.name, name)
	}
	parts, mapping, err := spec.Sidecar.Image.Parts()
	check(mapping && err == nil, newest, "spec.sidecar.image", "an image in parts")
	if !e.FailIf(err != nil, "field", "spec.sidecar.image",
		"write repository, tag and pullPolicy, each as text", "not an image") && g.short {
		checkPullPolicy(e, "spec.sidecar.image.pullPolicy", parts.PullPolicy)
	}
	image, _ := sidecarImage(e)
	e.FailIf(spec.Sidecar.Image != "" && !g.suits(image, e.config.Generation != nil), "generation",
		"spec.sidecar.image", g.remedy(e.config),
		"%s is not a sidecar of generation %s of Asya", image, g.name)
}
