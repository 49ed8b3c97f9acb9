// Package lintrules finds mistakes in a rendered package that a cluster would show only later:
// clashing ports, dangling references, pods that their namespace refuses. It reads the whole
// package once and checks one object after the other; it never changes anything.
package lintrules

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/foreign"
	"github.com/armature-dev/armature/functions/images"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/sidecars"
)

// Rule is one check.
type Rule struct {
	// Name is the key in spec.lint of the RenderConfig and, after "lint/", the rule of findings.
	Name string
	// Severity is the default severity; Off disables the rule.
	Severity finding.Severity
	// Summary describes in a line what the rule finds. docs/reference/lint.md has a section for
	// each.
	Summary string

	// check is rendered or authored, depending on the checked form, or else the method that reports
	// it.
	check any
}

// Off is the severity of a disabled rule.
const Off finding.Severity = "off"

// ContestedField is the rule about fields that two functions set, which needs the package between
// the functions. KustomizeBuild needs kustomize.
const (
	ContestedField = "contested-field"
	KustomizeBuild = "kustomize-build"
)

// Rules returns all checks, in the order of docs/reference/lint.md.
func Rules() []Rule {
	return []Rule{
		{"invalid-field", finding.Error,
			"a field that the API server does not know, or whose value it refuses", invalidField},
		{"selector-mismatch", finding.Error,
			"a workload whose selector does not match the labels of its own pods",
			selectorMismatch},
		{"missing-port", finding.Error,
			"a probe or a Service that names a port that no container has", missingPort},
		{"port-clash", finding.Error,
			"two containers of a pod listen on one port, or two ports of a Service are the same",
			portClash},
		{"reserved-name", finding.Warning,
			"a container or volume has a name that injected ones need", reservedName},
		{"double-injection", finding.Error,
			"an injected workload that another injector would inject too", doubleInjection},
		{"proxy-user", finding.Error,
			"an application that runs as the proxy's user, whose traffic is not intercepted",
			proxyUser},
		{"shared-identity", finding.Warning,
			"two agents with the ServiceAccount default, and so with one SPIFFE ID",
			sharedIdentity},
		{"pod-security", finding.Error,
			"a pod that the Pod Security level of its namespace refuses", podSecurity},
		{"job-sidecar", finding.Warning,
			"a sidecar as an ordinary container, which keeps a Job from finishing", jobSidecar},
		{"missing-key", finding.Error,
			"a key that a ConfigMap or Secret of the package does not have", missingKey},
		{"missing-configmap", finding.Warning, "a ConfigMap that the package does not have",
			missing("ConfigMap", "add it to the package; if a controller in the cluster creates it, "+
				"switch the rule off with spec.lint.missing-configmap or the annotation "+
				keys.LintIgnore)},
		{"missing-secret", Off, "a Secret that the package does not have", missing("Secret",
			"create it in the cluster, or add the object that creates it: pods wait until it exists")},
		{"bypass-auth-proxy", finding.Warning,
			"a port of the application that requests reach without the proxy that checks tokens",
			bypassAuthProxy},
		{"http-only", finding.Error,
			"a Service that announces another protocol than HTTP/1.1 for the port of " +
				"AuthBridge's reverse proxy", httpOnly},
		{"dangling-reference", finding.Warning,
			"a reference to an object that the package does not have", danglingReference},
		{"latest-image", finding.Warning, "an image without a tag, or with the tag latest",
			latestImage},
		{keycloakAdminRule, finding.Error,
			"an agent's namespace that holds the credentials of Keycloak's administrator",
			keycloakAdmin},
		{KustomizeBuild, finding.Warning,
			"a kustomization that does not build, so that its objects are not checked",
			(*Package).Unbuilt},
		{"unpinned-image", finding.Info, "an image without a digest", unpinnedImage},
		{"unknown-image", finding.Warning,
			"a field of an unknown kind that looks like an image, which no digest is written into",
			authored(unknownImage)},
		{"unpinned-source", finding.Warning,
			"a skill or plugin from Git without a full commit, from a bucket " +
				"without a version, or without a digest", authored(unpinnedSource)},
		{"missing-tool", finding.Error,
			"a tool that an agent binds, and that is not among its server's tools in the lock",
			authored(missingTool)},
		{"unlocked-tools", finding.Warning,
			"a tool server that an agent binds, and that the lock does not have",
			authored(unlockedTools)},
		{"duplicate-target", finding.Error, "two objects that scale or guard one workload",
			duplicateTarget},
		{ContestedField, finding.Info, "a field that two functions set to different values",
			(*Package).Contested},
	}
}

// Lookup returns the rule of a name.
func Lookup(name string) (Rule, bool) {
	rules := Rules()
	i := slices.IndexFunc(rules, func(r Rule) bool { return r.Name == name })
	if i < 0 {
		return Rule{}, false
	}
	return rules[i], true
}

// CheckConfig reports rules and severities in spec.lint that do not exist.
func CheckConfig(config *api.RenderConfig) (findings []finding.Finding) {
	if config == nil {
		return nil
	}
	report := func(name, message, hint string) {
		f := finding.Finding{
			Rule: "config/lint", Severity: finding.Error, Message: message, Hint: hint,
			Place: finding.Place{File: config.Origin.File,
				Line: config.Origin.LineOf("spec.lint." + name), Field: "spec.lint." + name,
				Object: finding.Ref{APIVersion: api.RenderV1alpha1, Kind: "RenderConfig",
					Name: config.Name}},
		}
		findings = append(findings, f)
	}
	for _, name := range slices.Sorted(maps.Keys(config.Spec.Lint)) {
		severity := config.Spec.Lint[name]
		if _, ok := Lookup(name); !ok {
			report(name, fmt.Sprintf("lint rule %q does not exist", name),
				"see armature lint --rules")
		} else if !slices.Contains([]finding.Severity{Off, finding.Info, finding.Warning,
			finding.Error}, finding.Severity(severity)) {
			report(name, fmt.Sprintf("%q is not a severity", severity),
				"write off, info, warning or error")
		}
	}
	return findings
}

// Package holds the facts about all objects for the rules. Every object has to be collected before
// the first is checked.
type Package struct {
	rules  []Rule // the enabled ones
	prefix string
	images []images.Row // that the configuration names
	// configured are the rules whose severity the configuration sets.
	configured map[string]bool

	collected collected

	reported map[string]bool // findings that all packages of a source report once

	// Unread are texts of files that cannot be read as manifests: they may contain referenced
	// objects, and their own findings come first.
	Unread []string
	// Beside are packages that are applied to the same cluster, whose objects count as present.
	Beside []*Package
	// Open says that the package has objects that are unknown here, so that no reference can be
	// reported as dangling.
	Open bool

	// Evaluate reports the violations of a level of Pod Security in a pod template. The container
	// is "" for the pod itself. Without Evaluate the rule pod-security finds nothing.
	Evaluate func(level string, o *krm.Object, template krm.PodTemplate,
		report func(container string, at krm.Node, message string))
	// Schema reports the values of an object of a built-in kind that the API server refuses.
	// Without it the rule invalid-field finds nothing.
	Schema func(o *krm.Object, report func(at krm.Node, message, hint string))
}

// collected holds the facts about the objects of a package.
type collected struct {
	objects    map[id]*object
	namespaces map[string]namespace
	pods       []*pod
	byLabel    map[label][]*pod
	scalers    map[id][]finding.Ref
	guards     map[*pod]finding.Ref // the first PodDisruptionBudget
	nodePorts  map[string][]finding.Ref
	images     map[string]int
	added      map[string]bool // images without a digest of injected containers
	unresolved map[id]int      // references to objects that the package does not have
}

// id names an object; the group does not count.
type id struct{ kind, namespace, name string }

// object holds the facts about an object that references need.
type object struct {
	keys map[string]bool
	open bool // other keys may come from elsewhere
	// anywhere says that the author left the namespace to kubectl -n.
	anywhere bool
	// guarded is the port at which AuthBridge checks tokens, or 0.
	guarded int
}

type label struct{ namespace, key, value string }

// namespace holds the settings of a Namespace for its pods.
type namespace struct {
	enforce string // Pod Security level
	// mesh is the label that makes a mesh inject every pod, and by is the key with which a pod opts
	// out.
	mesh, by string
}

// New returns a package without objects. config may be nil; CheckConfig reports its errors. prefix
// is the prefix of labels and annotations.
func New(config *api.RenderConfig, prefix string) *Package {
	images, _ := images.Rows(config)
	p := (&Package{prefix: prefix, images: images, configured: make(map[string]bool),
		reported: make(map[string]bool)}).Next()
	for _, r := range Rules() {
		if r.Name == keycloakAdminRule &&
			sidecars.All().Configured(config).HasSidecar(sidecars.ClientRegistration) {
			r.Severity = finding.Warning // it cannot work without those credentials
		}
		if config != nil {
			if severity, ok := config.Spec.Lint[r.Name]; ok {
				r.Severity, p.configured[r.Name] = finding.Severity(severity), severity != ""
			}
		}
		if r.Severity != Off {
			p.rules = append(p.rules, r)
		}
	}
	return p
}

// Next returns another package of the same source, such as the output of one of its kustomizations.
// Findings that are reported once are reported once for all of them.
func (p *Package) Next() *Package {
	return &Package{
		rules: p.rules, prefix: p.prefix, images: p.images, configured: p.configured,
		Unread: p.Unread, reported: p.reported,
		Evaluate: p.Evaluate, Schema: p.Schema,
		collected: collected{
			objects: make(map[id]*object), namespaces: make(map[string]namespace),
			byLabel: make(map[label][]*pod), scalers: make(map[id][]finding.Ref),
			guards: make(map[*pod]finding.Ref), nodePorts: make(map[string][]finding.Ref),
			images: make(map[string]int), added: make(map[string]bool),
			unresolved: make(map[id]int),
		},
	}
}

// Severity returns the configured severity of a rule, and Off for a disabled one.
func (p *Package) Severity(name string) finding.Severity {
	for _, r := range p.rules {
		if r.Name == name {
			return r.Severity
		}
	}
	return Off
}

// checker checks one object.
type checker struct {
	*Package
	*krm.Object
	pod     krm.PodTemplate
	isPod   bool
	facts   *pod // of the pod template, empty without one
	author  Author
	ignored []string

	lock      *api.ImageLock // for an object as its author wrote it; may be nil
	artifacts []images.Image

	rule     Rule
	findings []finding.Finding
}

// rendered is a check of an object as it was rendered.
type rendered = func(*checker)

// run runs the checks of a type.
func run[Check ~func(*checker)](c *checker) []finding.Finding {
	for _, c.rule = range c.rules {
		if check, ok := c.rule.check.(Check); ok && !slices.Contains(c.ignored, c.rule.Name) {
			check(c)
		}
	}
	return c.findings
}

// Author returns the author's source of a value of a checked object. It is called only for
// findings.
type Author func(at krm.Node) Authored

// Authored is the source of a value.
type Authored struct {
	// Object is the author's object, or a patch that sets the value; it may be nil.
	Object *krm.Object
	// Generated says that the checked object was generated for Object.
	Generated bool
	// Place is the place at which a patch of another form sets the value. It replaces Object.
	Place *finding.Place
}

// report adds a finding of the current rule, at its place in the author's file.
func (c *checker) report(at krm.Node, hint, message string, values ...any) {
	f := c.Finding(c.rule.Severity, "lint/"+c.rule.Name, at, fmt.Sprintf(message, values...), hint)
	var from Authored
	if c.author != nil {
		from = c.author(at)
	}
	switch o := from.Object; {
	case from.Place != nil:
		f.File, f.Line = from.Place.File, from.Place.Line
	case o == nil:
	case !from.Generated:
		n, exact := at.In(o)
		f.File, f.Line = o.Origin.File, o.Finding(f.Severity, f.Rule, n, "", "").Line
		if exact {
			f.Field = n.Path()
		}
	default:
		f.File, f.Line = o.Origin.File, o.Origin.Line
		f.Hint = c.ledBy(&f, o, at)
	}
	c.findings = append(c.findings, f)
}

// ledBy adds to the hint of a finding about a generated object the object that it was generated
// for, and the author's field with the same value, if there is one.
func (c *checker) ledBy(f *finding.Finding, author *krm.Object, at krm.Node) string {
	why := "the object is generated for " + author.Ref.String()
	if n, ok := sole(author.Get("spec"), at); ok {
		f.Line = author.Finding(f.Severity, f.Rule, n, "", "").Line
		why = n.Path() + " of " + author.Ref.String() + " leads to it"
	}
	if f.Hint == "" {
		return why
	}
	return f.Hint + "; " + why
}

// sole finds the value of a scalar in an author's text: the only one under the same key, or else
// the only one, unless that is a number.
func sole(root, scalar krm.Node) (krm.Node, bool) {
	if !scalar.IsScalar() {
		return krm.Node{}, false
	}
	key, text := scalar.Key(), scalar.Text()
	_, number := scalar.Int()
	var all, keyed []krm.Node
	foreign.Leaves(root, func(n krm.Node) {
		if n.IsScalar() && n.Is(text) {
			all = append(all, n)
			if key != "" && n.Key() == key {
				keyed = append(keyed, n)
			}
		}
	})
	switch {
	case len(keyed) == 1:
		return keyed[0], true
	case len(all) == 1 && !number:
		return all[0], true
	}
	return krm.Node{}, false
}

// once reports a finding once for the package, even if several objects have it.
func (c *checker) once(key string, at krm.Node, hint, message string, values ...any) {
	if key = c.rule.Name + " " + key; !c.reported[key] {
		c.reported[key] = true
		c.report(at, hint, message, values...)
	}
}

// Ignored returns the rules that an object is exempted from.
func Ignored(o *krm.Object) (names []string) {
	ignore, _ := o.Annotation(keys.LintIgnore)
	for name := range strings.SplitSeq(ignore, ",") {
		names = append(names, strings.TrimSpace(name))
	}
	return names
}

// Check checks an object as it was rendered.
func (p *Package) Check(o *krm.Object, author Author) []finding.Finding {
	c := checker{Package: p, Object: o, author: author, facts: &pod{}}
	if c.pod, c.isPod = o.PodTemplate(); c.isPod {
		c.facts = newPod(o, c.pod)
	}
	if ignore := o.Get("metadata", "annotations", keys.LintIgnore); ignore.Exists() {
		for _, name := range Ignored(o) {
			if _, ok := Lookup(name); !ok {
				c.findings = append(c.findings, o.Finding(finding.Error, "lint/unknown-rule",
					ignore, fmt.Sprintf("lint rule %q does not exist", name),
					"see armature lint --rules"))
			}
			c.ignored = append(c.ignored, name)
		}
	}
	return run[rendered](&c)
}
