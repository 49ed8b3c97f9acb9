package inject

import (
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"

	"sigs.k8s.io/kustomize/kyaml/yaml"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/contract"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/internal/node"
	"github.com/armature-dev/armature/functions/internal/scalar"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/skills"
	"github.com/armature-dev/armature/functions/text"
)

// skillMounts configures how the workloads of a package get their skills.
type skillMounts struct {
	path string
	// init is the image of the init container. It is "" if skills are image volumes.
	init string
}

// skillsVolume holds all skills of a pod, if an init container fetches them.
const skillsVolume = "armature-skills"

// skillMountsOf reads the configuration. Errors in it fail the render.
func skillMountsOf(p *contract.Package) *skillMounts {
	m := &skillMounts{path: "/skills"}
	c := p.Config.Skills
	if c == nil {
		return m
	}
	if c.Path != nil {
		if m.path = *c.Path; !path.IsAbs(m.path) || path.Clean(m.path) != m.path || m.path == "/" ||
			strings.ContainsAny(m.path, ":$\n") {
			p.Misconfigured("config/skills", "spec.skills.path",
				fmt.Sprintf("%q is not the path of a folder in a container", text.Shown(m.path)),
				"write it as /skills, without a slash at the end")
		}
	}
	switch {
	case c.Mount == nil || *c.Mount == "image":
	case skills.Fetches(p.Config):
		m.init = skills.KagentImage(p.Config.Kagent, "", skills.Container)
	default:
		p.Misconfigured("config/skills", "spec.skills.mount",
			fmt.Sprintf("%q is not a way to mount skills", text.Shown(*c.Mount)),
			`write "image", or "init" for clusters without image volumes`)
	}
	return m
}

// mounted are the skills of a workload as text.
type mounted struct {
	names, paths          []string // of the volumes and of the mounts
	volumes, mounts, init []byte
	config                string // of the init container, in quotes
}

// of returns the skills of a workload, or nil, and the findings about them. pinned adds digests to
// images.
func (m *skillMounts) of(o *krm.Object, pinned func(string) string) (*mounted, []finding.Finding) {
	pod, ok := o.PodTemplate()
	if !ok {
		return nil, nil
	}
	all, findings := skills.Of(o, pod)
	if len(all) == 0 || finding.Failed(findings) {
		return nil, findings
	}
	k := &mounted{}
	add := func(volume, folder string) {
		k.names, k.paths = append(k.names, volume), append(k.paths, folder)
		k.mounts = append(scalar.AppendPath(append(k.mounts,
			"- name: "+volume+"\n  mountPath: "...), folder),
			"\n  readOnly: true\n"...)
	}
	var sources []skills.Source
	for _, s := range all {
		image, folder := s.Ref, m.path+"/"+s.Name
		if pinned != nil {
			image = pinned(image)
		}
		if m.init != "" {
			sources = append(sources, skills.Source{Image: image, Dest: folder})
			continue
		}
		volume := identity.ShortName("skill-"+s.Name, "")
		add(volume, folder)
		k.volumes = append(
			scalar.AppendYAML(append(k.volumes, "- name: "+volume+"\n  image:\n    reference: "...),
				image),
			"\n    pullPolicy: IfNotPresent\n"...)
	}
	if m.init != "" {
		add(skillsVolume, m.path)
		k.fetch(pod, m, sources)
	}
	return k, append(findings, k.check(o, pod, m.path)...)
}

// fetcher is the user of the init container: kagent's image names a user that is not root, and Pod
// Security requires a number.
const fetcher = 65532

// fetch adds the init container. It conforms to the level restricted of Pod Security, and reads its
// configuration from an annotation of the pod.
func (k *mounted) fetch(pod krm.PodTemplate, m *skillMounts, sources []skills.Source) {
	file := map[string]any{"path": skills.ConfigFile,
		"fieldRef": map[string]any{"fieldPath": "metadata.annotations['" + keys.SkillsInit + "']"}}
	init := skills.Begin(skillsVolume, m.path,
		map[string]any{"downwardAPI": map[string]any{"items": []any{file}}})
	var logins []string
	for s := range pod.Spec().Get("imagePullSecrets").Items() {
		if name := s.Get("name").Text(); name != "" && !slices.Contains(logins, name) {
			logins = append(logins, name)
			init.PullSecret(name, map[string]any{"optional": true}) // as the kubelet takes it
		}
	}
	container := init.Container(m.init, map[string]any{
		"requests": map[string]any{"cpu": "10m", "memory": "64Mi"},
		"limits":   map[string]any{"cpu": "1", "memory": "256Mi"},
	})
	container["imagePullPolicy"] = "IfNotPresent"
	container["securityContext"] = map[string]any{
		"allowPrivilegeEscalation": false, "runAsNonRoot": true, "runAsUser": fetcher,
		"runAsGroup": fetcher, "capabilities": map[string]any{"drop": []string{"ALL"}},
		"seccompProfile": map[string]any{"type": "RuntimeDefault"},
	}
	k.init, k.volumes, k.names = items(container), items(init.Volumes...), nil
	for _, v := range init.Volumes {
		k.names = append(k.names, v.(map[string]any)["name"].(string))
	}
	config, err := json.Marshal(struct {
		Images []skills.Source `json:"ociRefs"`
		Logins []string        `json:"imagePullSecrets,omitempty"`
	}{sources, logins})
	if err != nil {
		panic(err) // strings always marshal
	}
	k.config = "'" + strings.ReplaceAll(string(config), "'", "''") + "'"
}

// items writes the items of a list, each with its name first.
func items(values ...any) (text []byte) {
	for _, v := range values {
		n := yaml.NewRNode(node.Encode(v))
		node.First(n, "name")
		item, err := krm.BlockStyle(n)
		if err != nil {
			panic(err) // maps of strings always encode
		}
		lines := strings.ReplaceAll(strings.TrimSuffix(string(item), "\n"), "\n", "\n  ")
		text = append(text, "- "+lines+"\n"...)
	}
	return text
}

// check reports the author's names and mounts that clash with those of the skills.
func (k *mounted) check(o *krm.Object, pod krm.PodTemplate,
	root string) (findings []finding.Finding) {
	report := func(at krm.Node, message, hint string) {
		findings = append(findings, o.Finding(finding.Error, "inject/skill-clash", at, message, hint))
	}
	for v := range pod.Spec().Get("volumes").Items() {
		if name := v.Get("name"); slices.Contains(k.names, name.Text()) {
			report(name, fmt.Sprintf("%q is the name of a volume with skills", name.Text()), "rename it")
		}
	}
	for list, c := range pod.Containers() {
		name := c.Get("name")
		if k.init != nil && name.Is(skills.Container) {
			report(name, fmt.Sprintf("%q is the name of the container that fetches skills",
				skills.Container), "rename it")
		}
		for at := range c.Get("volumeMounts").Items() {
			where := path.Clean(at.Get("mountPath").Text())
			if list == "containers" && (where == root || strings.HasPrefix(where, root+"/")) {
				report(at.Get("mountPath"), fmt.Sprintf("skills are mounted in %s", root),
					"mount yours elsewhere, or set spec.skills.path of the RenderConfig")
			}
		}
	}
	return findings
}
