package skills

import (
	"cmp"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/internal/node"
)

// Names of the init container and of the volume with its configuration.
const (
	Container    = "skills-init"
	ConfigVolume = "skills-init-config"
	// ConfigFile is the name of the container's file in that volume.
	ConfigFile = "config.json"
)

// Fetches reports whether pods fetch their skills themselves.
func Fetches(config *api.RenderConfigSpec) bool {
	return config.Skills != nil && config.Skills.Mount != nil && *config.Skills.Mount == "init"
}

// KagentImage returns one of kagent's images, from the registry and with the tag of a
// configuration, which may be nil. registry overrides the configuration's.
func KagentImage(config *api.KagentSpec, registry, name string) string {
	tag := ""
	if config != nil {
		registry = cmp.Or(registry, node.Or(config.ImageRegistry, ""))
		tag = node.Or(config.ImageTag, "")
	}
	return cmp.Or(registry, "ghcr.io") + "/kagent-dev/kagent/" + name + ":" + cmp.Or(tag, "0.10.0-rc3")
}

// Source is an image that the init container copies to a folder.
type Source struct {
	Image string `json:"image"`
	Dest  string `json:"dest"`
}

// Init is kagent's init container that fetches skills, and the volumes that it needs.
type Init struct {
	Volumes, mounts []any
}

// Mount mounts a volume read-only in the init container only. source describes the volume.
func (i *Init) Mount(name, folder string, source map[string]any) {
	source["name"] = name
	i.Volumes = append(i.Volumes, source)
	i.mounts = append(i.mounts, map[string]any{"name": name, "mountPath": folder, "readOnly": true})
}

// Begin returns the init container with the volume for the skills and its folder. config is the
// volume with the configuration.
func Begin(volume, folder string, config map[string]any) *Init {
	i := &Init{
		Volumes: []any{map[string]any{"name": volume, "emptyDir": map[string]any{}}},
		mounts:  []any{map[string]any{"name": volume, "mountPath": folder}},
	}
	i.Mount(ConfigVolume, "/etc/kagent/skills-init", config)
	return i
}

// PullSecret mounts the Secret with the login of a registry.
func (i *Init) PullSecret(name string, source map[string]any) {
	source["secretName"] = name
	i.Mount("pull-secret-"+name, "/docker-secrets/"+name, map[string]any{"secret": source})
}

// Container returns the init container.
func (i *Init) Container(image string, resources any) map[string]any {
	return map[string]any{"name": Container, "image": image, "volumeMounts": i.mounts,
		"resources": resources}
}
