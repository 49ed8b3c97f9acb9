package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/render/sign"
	"github.com/armature-dev/armature/render/version"
	"github.com/armature-dev/armature/templates"
)

// releasedImage is the controller's, as this release publishes it; empty where this
// build is not a release.
func releasedImage() string {
	if !version.IsRelease() {
		return ""
	}
	return compose.ControllerRepository + ":" + version.String()
}

// installation is the flags of `armature install`.
type installation struct {
	mode      string
	namespace string
	watch     []string
	image     string
	mirror    string
	plainHTTP []string
	networks  []string // of Git servers to ask although they are refused by default
	group     string
	// Limits of the queue of builds, and the LocalQueue of Kueue.
	maxRunning, maxRunningPerNamespace int
	queueName                          string
	attest                             string // controller or chains
	// attestKey of attested builds: a Secret or a key of a KMS; empty is the default.
	attestKey string
	keyless   keyless
	// catalog adds the catalog; secret names the Secret with the address of its
	// PostgreSQL, empty is SQLite.
	catalog bool
	secret  string
	// sources adds the controller of RenderedSources.
	sources bool
	// crds are the API groups whose CRDs the catalog brings along.
	crds []string
}

// installCommand is `armature install`: prints the controller's manifests.
func installCommand() *cobra.Command {
	var i installation
	cmd := &cobra.Command{
		Use:   "install",
		Short: "Print the manifests of the build controller, the catalog and RenderedSources",
		Long: `Print the manifests of the build controller: CRDs, least-privilege RBAC,
Deployment, metrics Service, PodDisruptionBudget, templates and steps; with
--catalog those of the catalog as well, and with --sources those of the controller
that renders Flux's sources. Apply them with kubectl apply --server-side -f -.`,
		Example: `  armature install --catalog
  armature install --catalog --catalog-crds kagenti.io,agent.kagenti.dev   # kagent is there
  armature install --mode namespaced --watch team1,team2`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			text, err := i.manifests()
			if err != nil {
				return err
			}
			if i.image == "" && !version.IsRelease() {
				fmt.Fprintf(cmd.ErrOrStderr(), "warning: the manifests name the latest image that was released, and this build, %s, is not a release\n  hint: name the image of this build with --image\n", version.String())
			}
			_, err = cmd.OutOrStdout().Write(text)
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&i.mode, "mode", "cluster", "cluster: all namespaces, by ClusterRole; namespaced: some, by Role")
	completeFlag(cmd, "mode", "cluster", "namespaced")
	f.StringVar(&i.namespace, "namespace", "armature-system", "namespace of the controller")
	f.StringSliceVar(&i.watch, "watch", nil, "namespaces to watch in mode namespaced; the controller's own is always included")
	f.StringVar(&i.image, "image", "", "image of the controller; empty is the release's")
	f.StringVar(&i.mirror, "image-mirror", "", "registry, or path in one, that holds the images of all steps; empty takes them from where they are published")
	f.StringSliceVar(&i.plainHTTP, "plain-http-hosts", nil, "hosts, with or without a port, that a Git login is sent to over http as well as https")
	f.StringSliceVar(&i.networks, "git-allow-network", nil, "networks of Git servers to allow although they are loopback, link-local or cloud metadata addresses, such as 169.254.20.0/24")
	f.IntVar(&i.maxRunning, "max-running", 0, "maximum number of runs of AgentBuilds under way at once; further ones wait in a queue; 0 is unlimited")
	f.IntVar(&i.maxRunningPerNamespace, "max-running-per-namespace", 0, "the same for each namespace, whose annotation "+keys.AnnotationMaxRunning+" may lower it; 0 is unlimited")
	f.StringVar(&i.queueName, "queue-name", "", "LocalQueue of Kueue to label runs with; empty labels none")
	f.StringVar(&i.attest, "attest", "controller", "who signs what builds of modes with attest: true have made: controller, or chains for Tekton Chains")
	completeFlag(cmd, "attest", "controller", "chains")
	f.StringVar(&i.attestKey, "attest-key", "", "key that signs attested builds: a Secret in the controller's namespace, or a KMS URI, whose program the image of --image has on its PATH; empty is the Secret armature-attest-key")
	i.keyless.flags(f)
	f.StringVar(&i.group, "api-group", api.DefaultGroup, "API group of AgentBuild")
	f.BoolVar(&i.catalog, "catalog", false, "install the catalog of agents and tools as well")
	f.StringVar(&i.secret, "catalog-store-secret", "", "Secret whose key address is the connection string of a PostgreSQL; empty is SQLite in one replica")
	f.BoolVar(&i.sources, "sources", false, "install the controller that renders Flux's sources as well")
	f.StringSliceVar(&i.crds, "catalog-crds", catalogGroups, "API groups whose CRDs to include; leave out those that another controller installs")
	return cmd
}

// manifests runs kustomize over the embedded base.
func (i installation) manifests() ([]byte, error) {
	if i.mode != "cluster" && i.mode != "namespaced" {
		return nil, usageError{fmt.Errorf("--mode %q: use cluster or namespaced", i.mode)}
	}
	if i.mode == "cluster" && len(i.watch) > 0 {
		return nil, usageError{errors.New("--watch requires --mode namespaced: mode cluster watches all namespaces")}
	}
	if err := i.check(); err != nil {
		return nil, usageError{err}
	}
	if err := i.checkCatalog(); err != nil {
		return nil, err
	}
	disk := filesys.MakeFsInMemory()
	err := fs.WalkDir(templates.Files, ".", func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := templates.Files.ReadFile(file)
		if err != nil {
			return err
		}
		if i.group != api.DefaultGroup && (strings.HasPrefix(file, "crds/"+api.DefaultGroup) || path.Base(file) == "role.yaml" && !strings.HasPrefix(file, "install/catalog/")) {
			data = bytes.ReplaceAll(data, []byte(api.DefaultGroup), []byte(i.group))
		}
		return disk.WriteFile("/armature/"+file, data)
	})
	if err != nil {
		return nil, fmt.Errorf("reading the shipped manifests: %w", err)
	}
	if err := disk.WriteFile("/armature/crds/catalog/kustomization.yaml", i.catalogCRDs()); err != nil {
		return nil, fmt.Errorf("writing the overlay: %w", err)
	}
	top := i.overlay()
	if i.keyless.fulcio != "" {
		patch, err := i.keyless.patch()
		if err != nil {
			return nil, fmt.Errorf("writing the overlay: %w", err)
		}
		top["patches"] = append(top["patches"].([]any), patch)
	}
	overlay, err := yaml.Marshal(top)
	if err != nil {
		return nil, fmt.Errorf("writing the overlay: %w", err)
	}
	if err := disk.WriteFile("/armature/overlay/kustomization.yaml", overlay); err != nil {
		return nil, fmt.Errorf("writing the overlay: %w", err)
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
	if i.mode == "cluster" {
		return text, nil
	}
	roles, err := i.roles()
	return append(text, roles...), err
}

// check the values that would make manifests which cannot work.
func (i installation) check() error {
	for _, n := range append([]string{i.namespace}, i.watch...) {
		if len(validation.IsDNS1123Label(n)) > 0 {
			return fmt.Errorf("%q is not a valid namespace: use lower-case letters, digits and '-'", n)
		}
	}
	if len(validation.IsDNS1123Subdomain(i.group)) > 0 {
		return fmt.Errorf("--api-group %q: write it like %s", i.group, api.DefaultGroup)
	}
	if i.image != "" {
		if _, err := name.ParseReference(i.image); err != nil {
			return fmt.Errorf("--image: %w", err)
		}
	}
	for _, n := range i.networks {
		if _, err := netip.ParsePrefix(n); err != nil {
			return fmt.Errorf("--git-allow-network %q: write it as 10.0.0.0/8", n)
		}
	}
	if i.maxRunning < 0 || i.maxRunningPerNamespace < 0 {
		return errors.New("--max-running and --max-running-per-namespace: use a positive number, or 0")
	}
	if i.queueName != "" && len(validation.IsDNS1123Label(i.queueName)) > 0 {
		return fmt.Errorf("--queue-name %q is not the name of a LocalQueue: use lower-case letters, digits and '-'", i.queueName)
	}
	if i.attest != "controller" && i.attest != "chains" {
		return fmt.Errorf("--attest %q: use controller or chains", i.attest)
	}
	if err := i.keyless.check(i.attestKey, i.attest); err != nil {
		return err
	}
	if i.attestKey != "" && i.attest == "chains" {
		return errors.New("--attest-key requires --attest controller: Tekton Chains signs with a key of its own")
	}
	if i.attestKey != "" && sign.KMSProgram(i.attestKey) == "" && len(validation.IsDNS1123Subdomain(i.attestKey)) > 0 {
		return fmt.Errorf("--attest-key %q is not the name of a Secret, nor a KMS URI such as awskms:///alias/attest", i.attestKey)
	}
	if i.mirror != "" {
		if err := compose.CheckMirror(i.mirror); err != nil {
			return fmt.Errorf("--image-mirror: %w", err)
		}
	}
	return nil
}

// overlay sets what the flags say on top of the base of the mode.
func (i installation) overlay() map[string]any {
	var patches []any
	patch := func(name, op, path, value string) {
		patches = append(patches, map[string]any{
			"target": map[string]any{"kind": "Deployment", "name": name},
			"patch":  fmt.Sprintf("- {op: %s, path: %q, value: %q}", op, path, value),
		})
	}
	if i.mirror != "" {
		patch("armature-controller", "add", "/spec/template/spec/containers/0/args/-", "--image-mirror="+i.mirror)
	}
	if len(i.plainHTTP) > 0 {
		patch("armature-controller", "add", "/spec/template/spec/containers/0/args/-", "--plain-http-hosts="+strings.Join(i.plainHTTP, ","))
	}
	if len(i.networks) > 0 {
		patch("armature-controller", "add", "/spec/template/spec/containers/0/args/-", "--git-allow-network="+strings.Join(i.networks, ","))
	}
	if i.maxRunning > 0 {
		patch("armature-controller", "add", "/spec/template/spec/containers/0/args/-", fmt.Sprintf("--max-running=%d", i.maxRunning))
	}
	if i.maxRunningPerNamespace > 0 {
		patch("armature-controller", "add", "/spec/template/spec/containers/0/args/-", fmt.Sprintf("--max-running-per-namespace=%d", i.maxRunningPerNamespace))
	}
	if i.queueName != "" {
		patch("armature-controller", "add", "/spec/template/spec/containers/0/args/-", "--queue-name="+i.queueName)
	}
	if i.attest == "chains" {
		patch("armature-controller", "add", "/spec/template/spec/containers/0/args/-", "--attest=chains")
	}
	if i.attestKey != "" {
		patch("armature-controller", "add", "/spec/template/spec/containers/0/args/-", "--attest-key="+i.attestKey)
	}
	resources, names := []string{"../install/" + i.mode}, []string{"armature-controller"}
	if i.catalog {
		resources, names = append(resources, "../install/catalog/"+i.mode), append(names, "armature-catalog")
	}
	if i.sources {
		resources, names = append(resources, "../install/sources/"+i.mode), append(names, "armature-sources")
	}
	for _, name := range names {
		if i.image != "" {
			patch(name, "replace", "/spec/template/spec/containers/0/image", i.image)
		}
		if i.mode == "namespaced" {
			patch(name, "replace", fmt.Sprintf("/spec/template/spec/containers/0/env/%d/value", watchNamespaces[name]), strings.Join(i.namespaces(), ","))
		}
	}
	if i.group != api.DefaultGroup {
		patch("armature-controller", "add", "/spec/template/spec/containers/0/args/-", "--api-group="+i.group)
	}
	if i.secret != "" {
		patches = append(patches, i.postgres())
	}
	overlay := map[string]any{
		"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
		"namespace": i.namespace, "resources": resources, "patches": patches,
	}
	if i.image == "" && version.IsRelease() {
		overlay["images"] = []any{map[string]any{"name": compose.ControllerRepository, "newTag": version.String()}}
	}
	return overlay
}

// watchNamespaces is the place of the variable WATCH_NAMESPACES in a Deployment of mode
// namespaced, which is its last.
var watchNamespaces = map[string]int{"armature-controller": 3, "armature-catalog": 2, "armature-sources": 2}

// namespaces that a namespaced controller looks after, its own first.
func (i installation) namespaces() []string {
	out := []string{i.namespace}
	for _, n := range i.watch {
		if !slices.Contains(out, n) {
			out = append(out, n)
		}
	}
	return out
}

// roles gives the controller its rights in each further namespace.
func (i installation) roles() ([]byte, error) {
	text, err := templates.Files.ReadFile("install/namespaced/role.yaml")
	if err != nil {
		return nil, fmt.Errorf("reading the shipped role: %w", err)
	}
	text = bytes.ReplaceAll(text, []byte(api.DefaultGroup), []byte(i.group))
	for _, part := range []struct {
		name      string
		installed bool
	}{{"catalog", i.catalog}, {"sources", i.sources}} {
		if !part.installed {
			continue
		}
		more, err := templates.Files.ReadFile("install/" + part.name + "/namespaced/role.yaml")
		if err != nil {
			return nil, fmt.Errorf("reading the shipped role: %w", err)
		}
		text = bytes.Join([][]byte{bytes.TrimSpace(text), more}, []byte("\n---\n"))
	}
	var out []byte
	for _, namespace := range i.namespaces()[1:] {
		for _, doc := range bytes.Split(text, []byte("\n---\n")) {
			object := map[string]any{}
			if err := yaml.Unmarshal(doc, &object); err != nil {
				return nil, fmt.Errorf("decoding the shipped role: %w", err)
			}
			if err := unstructured.SetNestedField(object, namespace, "metadata", "namespace"); err != nil {
				return nil, fmt.Errorf("placing the role: %w", err)
			}
			if subjects, ok := object["subjects"].([]any); ok {
				for _, s := range subjects {
					if subject, ok := s.(map[string]any); ok {
						subject["namespace"] = i.namespace
					}
				}
			}
			data, err := yaml.Marshal(object)
			if err != nil {
				return nil, fmt.Errorf("printing the role: %w", err)
			}
			out = append(append(out, "---\n"...), data...)
		}
	}
	return out, nil
}
