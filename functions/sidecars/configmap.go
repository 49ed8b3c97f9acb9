package sidecars

import (
	"maps"
	"reflect"
	"strconv"
	"strings"

	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/internal/block"
	"github.com/armature-dev/armature/functions/krm"
)

// Keys of the ConfigMap. Uppercase keys are environment variables of the programs; the others are
// files in the volume of the whole ConfigMap.
const (
	HelperConf     = "helper.conf"
	EnvoyYAML      = "envoy.yaml"
	RoutesYAML     = "routes.yaml"
	AWSConfig      = "aws-config"
	GCPCredentials = "gcp-credentials.json"
)

// NeedsRestart reports whether the program that reads a key as a file applies a change of it only
// when it starts. Envoy, the token processor and spiffe-helper read their files once. AuthBridge
// reloads only the pipeline of its configuration: if the listener differs, it refuses the whole
// file. (Observed on rossoctl/cortex da955ea.)
func NeedsRestart(key string, was, is any) bool {
	switch key {
	case HelperConf, EnvoyYAML, RoutesYAML:
		return true
	case AuthBridgeYAML:
		before, after := fixedPart(was), fixedPart(is)
		return before == nil || after == nil || !reflect.DeepEqual(before, after)
	}
	return false
}

// fixedPart returns the part of its configuration that AuthBridge reads only when it starts, or nil
// for a text that is not a configuration.
func fixedPart(text any) map[string]any {
	yaml, _ := text.(string)
	var o krm.Object
	if _, err := o.Read([]byte(yaml), krm.Document{End: len(yaml)}, false, krm.Origin{}); err != nil {
		return nil
	}
	value, err := o.Value()
	config, ok := value.(map[string]any)
	if err != nil || !ok {
		return nil
	}
	config = maps.Clone(config)
	delete(config, "pipeline")
	return config
}

// MountPath is the directory of the ConfigMap's files for sidecars without a fixed path. The others
// have /etc/envoy, /etc/spiffe-helper and /etc/authproxy.
const MountPath = "/etc/armature/identity"

// TokenPath is the directory of the tokens for the application and client-registration to which
// AWSConfig and GCPCredentials refer. It is separate, because a mount hides the files in a
// directory of the application's image.
const TokenPath = "/etc/armature/tokens"

// AppendConfigMap appends the ConfigMap of the workload's sidecars as a YAML document without
// separators.
func AppendConfigMap(dst []byte, s *identity.Settings) []byte {
	return s.AppendConfigMap(dst, identity.TokenExchangeConfigMap, appendData)
}

// appendData appends the files of all sidecars, and then the values that the programs read as
// variables.
func appendData(dst []byte, s *identity.Settings) []byte {
	var data []block.Node
	for i := range s.Profile.Sidecars {
		if x := &s.Profile.Sidecars[i]; s.Components[i].Enabled && x.Files != nil {
			data = append(data, x.Files(s)...)
		}
	}
	for i := range s.Profile.Sidecars {
		if x := &s.Profile.Sidecars[i]; s.Components[i].Enabled && x.Values != nil {
			data = append(data, x.Values(s)...)
		}
	}
	if len(data) == 0 {
		return append(dst, "data: {}\n"...)
	}
	return block.Append(dst, 0, block.Map("data", data...))
}

// filled returns a template of a sidecar's file with the selected parts between {{each NAME}} and
// {{end NAME}}, and with values, which alternate with their names, in place of {{NAME}}.
func filled(text string, parts map[string]bool, values ...string) string {
	for name, has := range parts {
		text = repeated(text, name, map[bool]int{true: 1}[has])
	}
	for i := 0; i < len(values); i += 2 {
		values[i] = "{{" + values[i] + "}}"
	}
	return strings.NewReplacer(values...).Replace(text)
}

// repeated writes a part of a text n times, each time with a number after its name in {{NAME}}.
func repeated(text, part string, n int) string {
	before, rest, found := strings.Cut(text, "{{each "+part+"}}")
	if !found {
		return text
	}
	inner, after, _ := strings.Cut(rest, "{{end "+part+"}}")
	for i := range n {
		before += strings.ReplaceAll(inner, "{{"+part+"}}", "{{"+numbered(part, i)+"}}")
	}
	return before + repeated(after, part, n)
}

func numbered(name string, i int) string { return name + " " + strconv.Itoa(i) }
