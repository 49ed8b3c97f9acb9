// Package install generates the manifests of the controllers: of builds, of the catalog and of
// RenderedSources.
package install

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/render/deliver/sign"
	"github.com/armature-dev/armature/render/version"
	"github.com/armature-dev/armature/templates"
)

// digest is the digest of the controller's image; the linker sets it in a release.
var digest string

// ReleasedImage returns the controller's image of this release, or "" if this program is not a
// release.
func ReleasedImage() string {
	switch {
	case !version.IsRelease():
		return ""
	case digest != "":
		return compose.ControllerRepository + "@" + digest
	}
	return compose.ControllerRepository + ":" + version.String()
}

// Options of an installation. The JSON names are those of the chart's values.
type Options struct {
	// Scope is cluster or namespaced.
	Scope string `json:"mode,omitempty"`
	// Namespace of the controllers.
	Namespace string `json:"-"`
	// Watch lists further namespaces for the controllers in scope namespaced.
	Watch []string `json:"watch,omitempty"`
	// Image of the controllers; empty means the image of the release.
	Image string `json:"image,omitempty"`
	// Mirror serves the images of all steps; empty means the registries that publish them.
	Mirror string `json:"imageMirror,omitempty"`
	// PlainHTTP lists hosts that receive a Git login over http.
	PlainHTTP []string `json:"plainHTTPHosts,omitempty"`
	// Networks lists networks of Git servers that are refused by default.
	Networks []string `json:"gitAllowNetwork,omitempty"`
	// Group is the API group of AgentBuild.
	Group string `json:"apiGroup,omitempty"`
	Queue
	Isolation
	// Shards lists the values of the label sharding.fluxcd.io/key with their own controllers.
	Shards []string `json:"shards,omitempty"`
	// AttestKey signs attested builds: a Secret or a key of a KMS; empty means the default Secret.
	AttestKey string  `json:"attestKey,omitempty"`
	Keyless   Keyless `json:"keyless,omitempty"`
	Parts
	// Global has the values that Helm passes to all charts.
	Global map[string]any `json:"global,omitempty"`
}

// Queue limits the runs of builds by numbers, or by a LocalQueue of Kueue.
type Queue struct {
	MaxRunning             int    `json:"maxRunning,omitempty"`
	MaxRunningPerNamespace int    `json:"maxRunningPerNamespace,omitempty"`
	Name                   string `json:"queueName,omitempty"`
}

// Parts are the optional parts of an installation.
type Parts struct {
	Catalog    Catalog    `json:"catalog,omitempty"`
	Sources    Sources    `json:"sources,omitempty"`
	Monitoring Monitoring `json:"monitoring,omitempty"`
}

// Sources is the controller of RenderedSources.
type Sources struct {
	Install bool `json:"enabled,omitempty"`
}

// Monitoring is a ServiceMonitor, a PrometheusRule and a dashboard of Grafana.
type Monitoring struct {
	Install bool `json:"enabled,omitempty"`
	// Labels by which a Prometheus selects the ServiceMonitor and the PrometheusRule.
	Labels map[string]string `json:"labels,omitempty"`
}

// ReadValues reads a file with values of the chart into options. It keeps options that the file
// does not set.
func ReadValues(file string, into *Options) error {
	data, err := os.ReadFile(file)
	if err == nil {
		data, err = yaml.YAMLToJSONStrict(data)
	}
	if err == nil {
		err = krm.UnmarshalStrict(data, into)
	}
	if err != nil {
		return fmt.Errorf("reading the values %s: %w", file, err)
	}
	return nil
}

// StepSettings sets the settings of steps from a file with values; "" means the release's defaults.
func StepSettings(file string, into *compose.Settings) (err error) {
	var o Options
	if file != "" {
		err = ReadValues(file, &o)
	}
	into.ControllerImage, into.ImageMirror, into.PlainHTTPHosts =
		cmp.Or(o.Image, ReleasedImage()), o.Mirror, o.PlainHTTP
	return err
}

// Manifests returns the manifests that kustomize builds from the embedded base.
func (i Options) Manifests() ([]byte, error) {
	disk := filesys.MakeFsInMemory()
	err := fs.WalkDir(templates.Files, ".", func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := templates.Files.ReadFile(file)
		if err != nil {
			return err
		}
		if i.Group != api.DefaultGroup &&
			(strings.HasPrefix(file, "crds/"+api.DefaultGroup) ||
				path.Base(file) == "role.yaml" && !strings.HasPrefix(file, "install/catalog/")) {
			data = bytes.ReplaceAll(data, []byte(api.DefaultGroup), []byte(i.Group))
		}
		return disk.WriteFile("/armature/"+file, data)
	})
	if err != nil {
		return nil, fmt.Errorf("reading the shipped manifests: %w", err)
	}
	for folder, kustomization := range map[string]map[string]any{
		"crds/catalog": {"resources": i.Catalog.files()}, "overlay": i.overlay()} {
		kustomization["apiVersion"], kustomization["kind"] =
			"kustomize.config.k8s.io/v1beta1", "Kustomization"
		text, err := yaml.Marshal(kustomization)
		if err == nil {
			err = disk.WriteFile("/armature/"+folder+"/kustomization.yaml", text)
		}
		if err != nil {
			return nil, fmt.Errorf("writing the overlay: %w", err)
		}
	}
	options := krusty.MakeDefaultOptions()
	options.Reorder = krusty.ReorderOptionLegacy
	resources, err := krusty.MakeKustomizer(options).Run(disk, "/armature/overlay")
	if err != nil {
		return nil, fmt.Errorf("running kustomize: %w", err)
	}
	text, err := resources.AsYaml()
	if err != nil {
		return nil, fmt.Errorf("printing the manifests: %w", err)
	}
	all, err := i.sharded(string(text))
	if err != nil {
		return nil, err
	}
	text = []byte(all)
	if builds := i.buildNamespace(); builds != "" {
		isolated, err := i.placed("install/isolated/role.yaml", builds)
		if err != nil {
			return nil, err
		}
		text = append(text, isolated...)
	}
	if i.Scope == "cluster" {
		return text, nil
	}
	roles, err := i.roles()
	return append(text, roles...), err
}

func (i Options) buildNamespace() string {
	if i.BuildNamespace == "" && i.Scope == "cluster" {
		return "armature-builds"
	}
	return i.BuildNamespace
}

// Check returns an error for options whose manifests could not work.
func (i Options) Check() error {
	own, queue := append([]string{i.Namespace}, i.Watch...), i.Queue
	limited := queue.MaxRunning != 0 || queue.MaxRunningPerNamespace != 0
	switch {
	case i.Scope != "cluster" && i.Scope != "namespaced":
		return fmt.Errorf("mode %q: use cluster or namespaced", i.Scope)
	case i.Scope == "cluster" && len(i.Watch) > 0:
		return errors.New(
			"--watch-namespaces requires --scope namespaced: scope cluster watches all namespaces")
	case slices.Contains(own, i.buildNamespace()):
		return fmt.Errorf(
			"buildNamespace %s: name a namespace of its own, where no tenant has rights",
			i.buildNamespace())
	case len(validation.IsDNS1123Subdomain(i.Group)) > 0:
		return fmt.Errorf("--api-group %q: write it like %s", i.Group, api.DefaultGroup)
	case min(queue.MaxRunning, queue.MaxRunningPerNamespace) < 0:
		return errors.New("maxRunning and maxRunningPerNamespace: use a positive number, or 0")
	case queue.Name != "" && limited:
		return errors.New(
			"queueName and maxRunning: the quota of Kueue limits the runs; use one of the two")
	case queue.Name != "" && len(validation.IsDNS1123Label(queue.Name)) > 0:
		return fmt.Errorf(
			"queueName %q is not the name of a LocalQueue: use lower-case letters, digits and '-'",
			queue.Name)
	case i.AttestKey != "" && sign.KMSProgram(i.AttestKey) == "" &&
		len(validation.IsDNS1123Subdomain(i.AttestKey)) > 0:
		return fmt.Errorf("attestKey %q is not the name of a Secret, nor a KMS URI such as "+
			"awskms:///alias/attest", i.AttestKey)
	}
	for _, n := range own {
		if len(validation.IsDNS1123Label(n)) > 0 {
			return fmt.Errorf("%q is not a valid namespace: use lower-case letters, digits and '-'", n)
		}
	}
	for _, n := range i.Networks {
		if _, err := netip.ParsePrefix(n); err != nil {
			return fmt.Errorf("gitAllowNetwork %q: write it as 10.0.0.0/8", n)
		}
	}
	if _, err := name.ParseReference(i.Image); err != nil && i.Image != "" {
		return fmt.Errorf("--image: %w", err)
	}
	if err := compose.CheckMirror(i.Mirror); err != nil && i.Mirror != "" {
		return fmt.Errorf("--image-mirror: %w", err)
	}
	for _, err := range []error{i.Isolation.check(i.buildNamespace()), i.checkShards(),
		i.Keyless.check(i.AttestKey), i.Catalog.check()} {
		if err != nil {
			return err
		}
	}
	return nil
}

// overlay returns the kustomization that applies the options to the base of the scope.
func (i Options) overlay() map[string]any {
	var patches []any
	patch := func(name, op, path, value string) {
		patches = append(patches, map[string]any{
			"target": map[string]any{"kind": "Deployment", "name": name},
			"patch":  fmt.Sprintf("- {op: %s, path: %q, value: %q}", op, path, value),
		})
	}
	const container = "/spec/template/spec/containers/0/"
	// A flag whose value is the controller's default is omitted.
	for _, flag := range [...]struct{ name, value, unset string }{
		{"image-mirror", i.Mirror, ""},
		{"plain-http-hosts", strings.Join(i.PlainHTTP, ","), ""},
		{"git-allow-network", strings.Join(i.Networks, ","), ""},
		{"max-running", strconv.Itoa(i.Queue.MaxRunning), "0"},
		{"max-running-per-namespace", strconv.Itoa(i.Queue.MaxRunningPerNamespace), "0"},
		{"queue-name", i.Queue.Name, ""},
		{"build-namespace", i.buildNamespace(), ""},
		{"build-runtime-class", i.BuildRuntimeClass, ""},
		{"max-isolated-per-namespace", i.MaxIsolatedPerNamespace, ""},
		{"attest-key", i.AttestKey, ""},
		{"api-group", i.Group, api.DefaultGroup},
	} {
		if flag.value != flag.unset {
			patch("armature-controller", "add", container+"args/-", "--"+flag.name+"="+flag.value)
		}
	}
	var resources []string
	for _, p := range i.programs() {
		resources = append(resources, "../"+path.Join(p.folder, i.Scope))
		if image := cmp.Or(i.Image, ReleasedImage()); image != "" {
			patch(p.name, "replace", container+"image", image)
		}
		if i.Scope == "namespaced" {
			patch(p.name, "replace", fmt.Sprintf("%senv/%d/value", container, p.namespaces),
				strings.Join(i.allNamespaces(), ","))
		}
	}
	if builds := i.buildNamespace(); builds != "" && i.Catalog.Install {
		patch("armature-catalog", "add", container+"args/-", "--build-namespace="+builds)
	}
	if i.Monitoring.Install {
		resources = append(resources, "../install/monitoring")
	}
	if labels := i.Monitoring.Labels; i.Monitoring.Install && len(labels) > 0 {
		text, err := json.Marshal([]any{map[string]any{"op": "add", "path": "/metadata/labels",
			"value": labels}})
		if err != nil {
			panic(err) // strings always marshal
		}
		patches = append(patches, map[string]any{
			"target": map[string]any{"group": "monitoring.coreos.com"}, "patch": string(text)})
	}
	if i.Catalog.Secret != "" {
		patches = append(patches, i.Catalog.postgres())
	}
	if i.Keyless.Fulcio != "" {
		patches = append(patches, i.Keyless.patch())
	}
	return map[string]any{"namespace": i.Namespace, "resources": resources, "patches": patches}
}

// program is a controller that is installed.
type program struct {
	name, folder string
	// namespaces is the index of the last variable, WATCH_NAMESPACES, in a Deployment of scope
	// namespaced.
	namespaces int
}

// programs returns the controllers of the installation.
func (i Options) programs() []program {
	all := []program{{"armature-controller", "install", 3}}
	if i.Catalog.Install {
		all = append(all, program{"armature-catalog", "install/catalog", 2})
	}
	if i.Sources.Install {
		all = append(all, program{"armature-sources", "install/sources", 2})
	}
	return all
}

// allNamespaces returns the namespaces of a namespaced controller, beginning with its own.
func (i Options) allNamespaces() []string {
	out := []string{i.Namespace}
	for _, n := range i.Watch {
		if !slices.Contains(out, n) {
			out = append(out, n)
		}
	}
	return out
}

// roles returns the Roles with the controller's rights in each further namespace.
func (i Options) roles() (out []byte, _ error) {
	for _, namespace := range i.allNamespaces()[1:] {
		for _, p := range i.programs() {
			text, err := i.placed(p.folder+"/namespaced/role.yaml", namespace)
			if err != nil {
				return nil, err
			}
			out = append(out, text...)
		}
	}
	return out, nil
}

// placed returns the shipped objects of a file in another namespace than the controllers'.
func (i Options) placed(file, namespace string) (out []byte, _ error) {
	text, err := templates.Files.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("reading the shipped role: %w", err)
	}
	if !strings.HasPrefix(file, "install/catalog/") {
		text = bytes.ReplaceAll(text, []byte(api.DefaultGroup), []byte(i.Group))
	}
	for _, doc := range bytes.Split(text, []byte("\n---\n")) {
		object := map[string]any{}
		if err := yaml.Unmarshal(doc, &object); err != nil {
			return nil, fmt.Errorf("decoding the shipped role: %w", err)
		}
		if spec, ok := object["spec"].(map[string]any); ok && object["kind"] == "NetworkPolicy" &&
			len(i.BuildEgress) > 0 {
			spec["egress"] = i.BuildEgress
		}
		field := "namespace"
		if object["kind"] == "Namespace" {
			field = "name"
		}
		if err := unstructured.SetNestedField(object, namespace, "metadata", field); err != nil {
			return nil, fmt.Errorf("placing the role: %w", err)
		}
		if subjects, ok := object["subjects"].([]any); ok {
			for _, s := range subjects {
				if subject, ok := s.(map[string]any); ok {
					subject["namespace"] = i.Namespace
				}
			}
		}
		data, err := yaml.Marshal(object)
		if err != nil {
			return nil, fmt.Errorf("printing the role: %w", err)
		}
		out = append(append(out, "---\n"...), data...)
	}
	return out, nil
}
