// Package needs returns the needs of a rendered package. It is pure. Package preflight compares
// them with a cluster.
package needs

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	psapi "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/sidecars"
	"github.com/armature-dev/armature/functions/text"
	"github.com/armature-dev/armature/render"
)

// Kind is the kind of a need.
type Kind string

// Kinds of needs, in the order in which they are printed.
const (
	Version        Kind = "KubernetesVersion"
	CSIDriver      Kind = "CSIDriver"
	Issuer         Kind = "Issuer"
	Keycloak       Kind = "Keycloak"
	API            Kind = "API"
	PodSecurity    Kind = "PodSecurity"
	ServiceAccount Kind = "ServiceAccount"
	Secret         Kind = "Secret"
	Tekton         Kind = "Tekton"
	Controller     Kind = "Controller"
	AttestKey      Kind = "AttestKey"
	BuildNamespace Kind = "BuildNamespace"
	Writers        Kind = "Writers"
	Enforced       Kind = "Enforced"
	Requests       Kind = "Requests"
	Readable       Kind = "Readable"
)

var order = []Kind{Version, CSIDriver, Issuer, Keycloak, API, PodSecurity, ServiceAccount, Secret,
	Tekton, Controller, AttestKey, BuildNamespace, Writers, Enforced, Requests, Readable}

// Status is the status of a need in a cluster.
type Status string

// Statuses of needs.
const (
	OK      Status = "ok"
	Missing Status = "missing"
	Unknown Status = "unknown"
)

// Need is one requirement of a package.
type Need struct {
	Kind      Kind   `json:"kind"`
	Namespace string `json:"namespace,omitempty"` // "" if the manifests have none
	// The name of an object, or a version, an address, a level.
	Name   string   `json:"name"`
	Need   string   `json:"need"` // a sentence
	For    []string `json:"for,omitempty"`
	Remedy string   `json:"remedy"`
	Status Status   `json:"status,omitempty"`
	Found  string   `json:"found,omitempty"` // in the cluster

	// Unread means that the need, or the cluster's state, could not be read. Unknown without Unread
	// means that the API of a cluster does not provide the information, for example the issuer of
	// tokens.
	Unread bool `json:"unread,omitempty"`
	// Requests are the sum of resources for a need of this kind.
	Requests corev1.ResourceList `json:"-"`
	// Packaged is the Namespace in the package; nil if there is none.
	Packaged *Namespace `json:"-"`
}

// Namespace is a Namespace of a package with its enforced level.
type Namespace struct{ Enforce string }

// Levels of Pod Security, the strictest first.
var Levels = []string{string(psapi.LevelRestricted), string(psapi.LevelBaseline),
	string(psapi.LevelPrivileged)}

// builtIn are the groups that every API server has.
var builtIn = strings.Fields(
	`apps batch autoscaling policy networking.k8s.io rbac.authorization.k8s.io storage.k8s.io
admissionregistration.k8s.io apiextensions.k8s.io apiregistration.k8s.io scheduling.k8s.io coordination.k8s.io discovery.k8s.io
certificates.k8s.io node.k8s.io flowcontrol.apiserver.k8s.io events.k8s.io resource.k8s.io authentication.k8s.io
authorization.k8s.io kustomize.config.k8s.io`)

type collector struct {
	needs      map[string]*Need
	has        map[string]bool // objects of the package: "Secret namespace/name", "API group/kind"
	namespaces map[string]*Namespace
	evaluator  policy.Evaluator
}

// Of returns what the rendered objects of files need.
func Of(files []render.File) []Need {
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		panic(err) // the library's own checks are valid
	}
	c := &collector{map[string]*Need{}, map[string]bool{}, map[string]*Namespace{}, evaluator}
	for _, visit := range []func(*krm.Object){c.list, c.object} {
		for _, f := range files {
			render.Objects(f, visit)
		}
	}
	var all []Need
	for _, n := range c.needs {
		if n.Kind == ServiceAccount && c.has["pull secrets "+n.Namespace+"/"+n.Name] {
			continue
		}
		if n.Kind == PodSecurity {
			if slices.ContainsFunc(Levels[slices.Index(Levels, n.Name)+1:],
				func(weaker string) bool {
					return c.needs[string(PodSecurity)+" "+n.Namespace+"/"+weaker] != nil
				}) {
				continue // the namespace has one level, which also admits these pods
			}
			n.Packaged = c.namespaces[n.Namespace]
		}
		if n.Kind == Requests {
			n.Name = fmt.Sprintf("cpu %s, memory %s", n.Requests.Cpu(), n.Requests.Memory())
			n.Need = "requests of the sidecars in " + InNamespace(n.Namespace) + ": " + n.Name
		}
		slices.Sort(n.For)
		n.For = slices.Compact(n.For)
		all = append(all, *n)
	}
	slices.SortFunc(all, func(a, b Need) int {
		return cmp.Or(cmp.Compare(slices.Index(order, a.Kind), slices.Index(order, b.Kind)),
			cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return all
}

// InNamespace returns the name of a namespace in a sentence; "" is the namespace of the apply.
func InNamespace(name string) string {
	if name == "" {
		return "the namespace of the apply"
	}
	return "namespace " + name
}

// list records the objects that the package contains.
func (c *collector) list(o *krm.Object) {
	c.has[o.Kind+" "+o.Namespace+"/"+o.Name] = true
	switch {
	case o.Kind == "CustomResourceDefinition":
		c.has["API "+o.Get("spec", "group").Text()+"/"+o.Get("spec", "names", "kind").Text()] = true
	case o.Kind == "Namespace" && o.APIVersion == "v1":
		c.namespaces[o.Name] = &Namespace{
			o.Get("metadata", "labels", psapi.EnforceLevelLabel).Text()}
	}
}

// add adds a need, or another object to an existing need, which it returns.
func (c *collector) add(n Need, of *krm.Object) *Need {
	key := string(n.Kind) + " " + n.Namespace + "/" + n.Name
	if c.needs[key] == nil {
		c.needs[key] = &n
	}
	c.needs[key].For = append(c.needs[key].For, of.Ref.String())
	return c.needs[key]
}

func (c *collector) secret(name, use, remedy string, of *krm.Object) {
	if name != "" && !c.has["Secret "+of.Namespace+"/"+name] {
		c.add(Need{Kind: Secret, Namespace: of.Namespace, Name: name,
			Need: "Secret " + name + " in " + InNamespace(of.Namespace) + use, Remedy: remedy}, of)
	}
}

// podSecret adds the need for a Secret that a pod names.
func (c *collector) podSecret(name string, of *krm.Object) {
	c.secret(name, "", "create it, or let its operator create it: pods that name it do not start "+
		"without it", of)
}

var (
	address   = regexp.MustCompile(`(?m)^ *(issuer|jwks_url|token_url): *["']?([^"'\s]+)`)
	federated = regexp.MustCompile(`(?m)^ *identity:\n +type: spiffe$`)
)

func (c *collector) object(o *krm.Object) {
	group := o.Group()
	switch {
	case group == keys.Group && (o.Kind == "RenderConfig" || o.Kind == "ImageLock"):
		// files that are never applied
	case group != "" && !slices.Contains(builtIn, group) && !c.has["API "+group+"/"+o.Kind]:
		c.add(Need{Kind: API, Name: o.APIVersion + " " + o.Kind,
			Need: "the kind " + o.Kind + " of " + o.APIVersion,
			Remedy: "install the CustomResourceDefinition with the software that reads it, or " +
				"leave the object out"}, o)
	}
	if _, generated := o.Annotation(keys.RenderedFor); generated {
		switch o.Kind {
		case "ConfigMap":
			text, clients := o.Get("data", "config.yaml").Text(), ""
			if federated.MatchString(text) {
				clients = ", which authenticates by federated-jwt (the default of the platform's " +
					"chart is client-secret)"
			}
			for _, m := range address.FindAllStringSubmatch(text, -1) {
				c.address(m[1] == "issuer", m[2], clients, o)
			}
			if url := o.Get("data", "KEYCLOAK_URL").Text(); url != "" {
				c.address(false, url+"/realms/"+o.Get("data", "KEYCLOAK_REALM").Text(), "", o)
			}
		case "ServiceAccount":
			if o.Get("imagePullSecrets").Len() == 0 {
				c.add(Need{Kind: ServiceAccount, Namespace: o.Namespace, Name: o.Name,
					Need: "the new ServiceAccount " + o.Name + " in " + InNamespace(o.Namespace) +
						" pulls all images: it has no pull secrets, and no RoleBindings of default",
					Remedy: "write imagePullSecrets into the pod template, or name a " +
						"ServiceAccount that has them, and bind the Roles that the agent needs"}, o)
			}
		}
	}
	if o.Kind == "AgentBuild" && group != "" {
		c.build(o)
	}
	if o.Kind == "ServiceAccount" {
		for s := range o.Get("imagePullSecrets").Items() {
			c.podSecret(s.Get("name").Text(), o)
		}
	}
	if template, ok := o.PodTemplate(); ok {
		c.workload(o, template)
	}
}

// build adds the needs of an AgentBuild.
func (c *collector) build(o *krm.Object) {
	for _, n := range Builds() {
		if !slices.Contains(attested, n.Kind) || o.Get("spec", "mode").Is("prod") {
			c.add(n, o)
		}
	}
	c.secret(o.Get("spec", "source", "sourceCredentials", "name").Text(), ", the login for Git",
		"create it with type kubernetes.io/basic-auth or kubernetes.io/ssh-auth", o)
	c.secret(o.Get("spec", "buildOutput", "imageRepoCredentials", "name").Text(),
		", the login for the registry, where builds push",
		"kubectl create secret docker-registry, with an account that may push", o)
}

// attested are the needs of builds of mode prod only.
var attested = []Kind{AttestKey, BuildNamespace, Writers, Enforced}

// Builds returns the needs that all attested builds have.
func Builds() []Need {
	return []Need{
		{Kind: Tekton, Name: "tekton.dev/v1", Need: "Tekton Pipelines, which runs builds",
			Remedy: "install Tekton Pipelines: no build starts without it"},
		{Kind: Controller, Name: "armature-controller",
			Need:   "Armature's controller, which turns AgentBuilds into runs",
			Remedy: "armature install | kubectl apply -f -"},
		{Kind: AttestKey, Name: "armature-attest-key",
			Need:   "a key with which the controller attests builds of mode prod",
			Remedy: "cosign generate-key-pair k8s://armature-system/armature-attest-key"},
		{Kind: BuildNamespace, Name: "armature-builds",
			Need: "a namespace for the runs of builds of mode prod, as armature install makes it",
			Remedy: "apply what armature install prints, with buildNamespace in its values, and " +
				"remove what others added"},
		{Kind: Writers, Name: "armature-builds",
			Need:   "nobody but the platform writes in that namespace",
			Remedy: "see that each of them is an administrator of the platform"},
		{Kind: Enforced, Name: "armature-builds",
			Need: "a network that enforces the NetworkPolicies of that namespace",
			Remedy: "armature check --cluster=probe starts two pods there, of which one connects " +
				"to the other"},
	}
}

// address adds the need for an issuer, or for the endpoint of a realm. clients describes how its
// clients authenticate.
func (c *collector) address(issuer bool, url, clients string, o *krm.Object) {
	if issuer {
		c.add(Need{Kind: Issuer, Name: url, Need: "tokens of callers are issued by " + url,
			Remedy: "compare it with the iss of a token; set another one in " +
				"spec.identity.inbound.validation.issuer of armature.yaml"}, o)
		return
	}
	if base, rest, ok := strings.Cut(url, "/realms/"); ok {
		realm, _, _ := strings.Cut(rest, "/")
		url = base + "/realms/" + realm
	}
	c.add(Need{Kind: Keycloak, Name: url, Need: "Keycloak answers at " + url,
		Remedy: "start it before the agents, because a proxy that cannot reach it at the first " +
			"token refuses valid tokens for up to 30 minutes, with this realm and a client for each" +
			clients +
			"; set another one in spec.identity.clientRegistration.keycloak of armature.yaml"}, o)
}

func (c *collector) workload(o *krm.Object, template krm.PodTemplate) {
	value, err := o.Value()
	for field := range strings.SplitSeq(template.Path, ".") {
		if fields, ok := value.(map[string]any); ok && field != "" {
			value = fields[field]
		}
	}
	var pod corev1.PodTemplateSpec
	var text []byte
	if err == nil {
		text, err = json.Marshal(value)
	}
	if err == nil {
		err = json.Unmarshal(text, &pod)
	}
	if err != nil { // not a pod by the API's schema, or not yet: it has variables
		c.add(Need{Kind: Readable, Namespace: o.Namespace, Name: o.Name, Status: Unknown,
			Unread: true,
			Need:   "the pod template of " + o.Ref.String() + " cannot be read: " + err.Error(),
			Remedy: "correct the field, or replace its variable first: the needs of this " +
				"workload are not known"}, o)
		return
	}
	for _, r := range template.References() {
		if r.Kind == "Secret" && !r.Optional {
			c.podSecret(r.Name.Text(), o)
		}
	}
	if len(pod.Spec.ImagePullSecrets) > 0 {
		c.has["pull secrets "+o.Namespace+"/"+pod.Spec.ServiceAccountName] = true
	}
	c.version(o, pod.Spec)
	c.podSecurity(o, pod)
	c.sidecars(o, pod.Spec)
}

func (c *collector) version(o *krm.Object, pod corev1.PodSpec) {
	need := func(version, what, remedy string) {
		c.add(Need{Kind: Version, Name: version,
			Need: "Kubernetes " + version + " or later, for " + what, Remedy: remedy}, o)
	}
	if slices.ContainsFunc(pod.InitContainers, keepsRunning) {
		need("1.29", "sidecars", "upgrade the cluster")
	}
	for _, v := range pod.Volumes {
		if v.Image != nil {
			need("1.35", "image volumes",
				"upgrade the cluster, or set spec.skills.mount: init in armature.yaml")
		}
		if v.CSI != nil {
			n := Need{Kind: CSIDriver, Name: v.CSI.Driver,
				Need:   "the CSI driver " + v.CSI.Driver + " on the nodes",
				Remedy: "install it: pods that mount it stay pending"}
			if n.Name == "csi.spiffe.io" {
				n.Remedy = "install SPIRE with its CSI driver (helm charts spire-crds and spire " +
					"of spiffe/helm-charts-hardened), with an entry for each ServiceAccount: " +
					"pods stay pending without it"
			}
			c.add(n, o)
		}
	}
}

func keepsRunning(c corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

// podSecurity adds the need for the strictest level that admits the pod.
func (c *collector) podSecurity(o *krm.Object, pod corev1.PodTemplateSpec) {
	level, why := string(psapi.LevelRestricted), ""
	for i, stricter := range Levels[:2] {
		refused := policy.AggregateCheckResults(
			c.evaluator.EvaluatePod(psapi.LevelVersion{Level: psapi.Level(stricter),
				Version: psapi.LatestVersion()}, &pod.ObjectMeta, &pod.Spec))
		if refused.Allowed {
			break
		}
		level, why = Levels[i+1], ": "+refused.ForbiddenDetail()
	}
	for _, container := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if s := container.SecurityContext; s != nil && s.RunAsUser != nil && *s.RunAsUser == 0 {
			why += "; " + container.Name + " runs as root"
		}
	}
	remedy := fmt.Sprintf("kubectl label namespace %s %s=%s --overwrite",
		cmp.Or(o.Namespace, "NAMESPACE"), psapi.EnforceLevelLabel, level)
	if slices.ContainsFunc(pod.Spec.InitContainers,
		func(c corev1.Container) bool { return c.Name == sidecars.ProxyInit }) {
		remedy += ", or spec.identity.outbound.trafficInterception.enabled: false in " +
			"armature.yaml, which leaves proxy-init out"
	}
	if level == Levels[0] {
		remedy = "kubectl create namespace " + cmp.Or(o.Namespace, "NAMESPACE") +
			": every level admits these pods"
	}
	c.add(Need{Kind: PodSecurity, Namespace: o.Namespace, Name: level,
		Need:   InNamespace(o.Namespace) + " admits pods of Pod Security " + level + why,
		Remedy: remedy}, o)
}

// sidecars adds the requests of the containers that Armature injected.
func (c *collector) sidecars(o *krm.Object, pod corev1.PodSpec) {
	note, _ := o.Annotation(keys.Injected)
	var injected struct{ InitContainers []string }
	if json.Unmarshal([]byte(note), &injected) != nil {
		return
	}
	replicas, ok := o.Get("spec", "replicas").Int()
	if !ok {
		replicas = 1
	}
	for _, container := range pod.InitContainers {
		if !keepsRunning(container) || !slices.Contains(injected.InitContainers, container.Name) {
			continue
		}
		for _, e := range container.Env {
			if e.Name == "ISSUER" && e.Value != "" {
				c.address(true, e.Value, "", o)
			}
		}
		for name, q := range container.Resources.Requests {
			sum := c.add(Need{Kind: Requests, Namespace: o.Namespace,
				Requests: corev1.ResourceList{}, Remedy: "compare with kubectl describe nodes, " +
					"and with the ResourceQuotas of the namespace"}, o).Requests
			q.Mul(int64(replicas))
			total := sum[name]
			total.Add(q)
			sum[name] = total
		}
	}
}

// maxBrief is the maximum size of the text that Brief reads, which bounds its cost in a render of
// thousands of workloads.
const maxBrief = 1 << 20

// Brief summarizes the needs of rendered files in one line.
type Brief struct {
	mu    sync.Mutex
	files []render.File
	size  int
}

// Sink returns a sink that records the manifests and passes everything to next.
func (b *Brief) Sink(next render.Sink) render.Sink {
	return func(file string, data []byte) error {
		b.mu.Lock()
		if render.IsManifest(file) {
			if b.size += len(data); b.size <= maxBrief {
				b.files = append(b.files, render.File{Path: file, Data: bytes.Clone(data)})
			}
		}
		b.mu.Unlock()
		return next(file, data)
	}
}

// String returns the needs, or "" if there are none or the text is too large.
func (b *Brief) String() string {
	if b.size > maxBrief {
		return ""
	}
	var words []string
	secrets := 0
	for _, n := range Of(b.files) {
		switch n.Kind {
		case Version:
			words = append(words, "Kubernetes "+n.Name)
		case CSIDriver:
			words = append(words, strings.Replace("the CSI driver "+n.Name,
				"the CSI driver csi.spiffe.io", "SPIRE with its CSI driver", 1))
		case Keycloak:
			words = append(words, "Keycloak at "+n.Name)
		case PodSecurity:
			if n.Name == Levels[len(Levels)-1] {
				words = append(words, "Pod Security privileged in "+InNamespace(n.Namespace))
			}
		case Secret:
			secrets++
		case Requests:
			words = append(words, n.Name+" for sidecars")
		}
	}
	if secrets > 0 {
		words = append(words, text.Count(secrets, "Secret"))
	}
	return strings.Join(words, ", ")
}

// Line returns the sentence for a person who rendered a path.
func (b *Brief) Line(path string) string {
	if needs := b.String(); needs != "" {
		return fmt.Sprintf("needs: %s: see armature check %s\n", needs, path)
	}
	return fmt.Sprintf("armature check %s prints what a cluster needs for it\n", path)
}
