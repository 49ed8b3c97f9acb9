package render

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/contract"
	"github.com/armature-dev/armature/functions/krm"
)

// ConfigFile is the name of the configuration at the root of a package.
const ConfigFile = "armature.yaml"

// ReadConfig reads a RenderConfig. Unknown fields, and every other kind of
// object, are errors.
func ReadConfig(data []byte, file string) (*api.RenderConfig, []krm.Finding) {
	found, findings := only(data, file, "config/invalid", "configuration", "RenderConfig")
	if found == nil {
		return nil, findings
	}
	return decodeConfig(found)
}

// only reads the one object of a file. thing is what it is called, kind what it
// should be.
func only(data []byte, file, rule, thing, kind string) (*krm.Object, []krm.Finding) {
	finding := func(line int, message, hint string) []krm.Finding {
		return []krm.Finding{{Rule: rule, Severity: krm.Error, Message: message, Hint: hint, Place: krm.Place{File: file, Line: line}}}
	}
	start := "start with apiVersion: " + api.RenderV1alpha1 + " and kind: " + kind
	var found *krm.Object
	line := 1
	for d := range krm.Documents(data) {
		o := new(krm.Object)
		isObject, err := o.Read(data, d, false, krm.Origin{File: file, Line: line + bytes.Count(data[d.Lead:d.Start], []byte{'\n'})})
		line += bytes.Count(data[d.Lead:d.End], []byte{'\n'})
		if syntax := (*krm.SyntaxError)(nil); errors.As(err, &syntax) {
			return nil, finding(syntax.Line, syntax.Message, syntaxHint(data[d.Start:d.End]))
		}
		switch {
		case !isObject && !o.Root().Exists():
		case !isObject:
			if len(bytes.TrimSpace(data[d.Start:d.End])) > 0 && !o.Root().IsNull() {
				return nil, finding(o.Origin.Line, "no Kubernetes object: apiVersion or kind is missing", start)
			}
		case found != nil:
			return nil, finding(o.Origin.Line, "a second "+thing, "keep one "+kind+" in the file")
		default:
			found = o
		}
	}
	if found == nil {
		return nil, finding(1, "the "+thing+" is empty", "remove the file, or "+start)
	}
	return found, nil
}

func decodeConfig(o *krm.Object) (*api.RenderConfig, []krm.Finding) {
	if o.APIVersion != api.RenderV1alpha1 || o.Kind != "RenderConfig" {
		return nil, []krm.Finding{o.Finding(krm.Error, "config/invalid", o.Get("kind"),
			fmt.Sprintf("%s %s is not a configuration", o.APIVersion, o.Kind), "write apiVersion: "+api.RenderV1alpha1+" and kind: RenderConfig")}
	}
	config := &api.RenderConfig{Origin: contract.OriginOf(o)}
	return config, o.Decode("config/field", config)
}
