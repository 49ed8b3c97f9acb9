package render

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/contract"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/krm"
)

// ConfigFile is the name of the configuration at the root of a package.
const ConfigFile = "armature.yaml"

// MisnamedConfig is a name that an author may give the configuration by mistake.
const MisnamedConfig = "armature.yml"

// Misnamed returns the finding about a misnamed configuration. both means that armature.yaml exists
// as well.
func Misnamed(file string, both bool) finding.Finding {
	f := finding.Finding{Rule: "config/name", Severity: finding.Error,
		Message: "nothing reads this file: the configuration is " + ConfigFile,
		Hint:    "rename it to " + ConfigFile, Place: finding.Place{File: file, Line: 1}}
	if both {
		f.Message += ", which is beside it"
		f.Hint = "move its settings to " + ConfigFile + ", and remove it"
	}
	return f
}

// ReadConfig parses a RenderConfig. Unknown fields and objects of other kinds are errors.
func ReadConfig(data []byte, file string) (*api.RenderConfig, []finding.Finding) {
	found, findings := only(data, file, "config/invalid", "configuration", "RenderConfig",
		"write apiVersion: "+api.RenderV1alpha1+" and kind: RenderConfig")
	if found == nil {
		return nil, findings
	}
	config := &api.RenderConfig{Origin: contract.OriginOf(found)}
	return config, found.Decode("config/field", config)
}

// only parses the only object of a file. thing names the file in messages, kind is the expected
// kind, and remedy the hint for an object of another kind.
func only(data []byte, file, rule, thing, kind, remedy string) (*krm.Object, []finding.Finding) {
	f := func(line int, message, hint string) []finding.Finding {
		return []finding.Finding{{Rule: rule, Severity: finding.Error, Message: message, Hint: hint,
			Place: finding.Place{File: file, Line: line}}}
	}
	start := "start with apiVersion: " + api.RenderV1alpha1 + " and kind: " + kind
	var found *krm.Object
	line := 1
	for d := range krm.Documents(data) {
		o := new(krm.Object)
		isObject, err := o.Read(data, d, false,
			krm.Origin{File: file, Line: line + bytes.Count(data[d.Lead:d.Start], []byte{'\n'})})
		line += bytes.Count(data[d.Lead:d.End], []byte{'\n'})
		if syntax := (*krm.SyntaxError)(nil); errors.As(err, &syntax) {
			return nil, f(syntax.Line, syntax.Message,
				cmp.Or(syntax.Hint, syntaxHint(data[d.Start:d.End])))
		}
		switch {
		case !isObject && !o.Root().Exists():
		case !isObject:
			if len(bytes.TrimSpace(data[d.Start:d.End])) > 0 && !o.Root().IsNull() {
				return nil, f(o.Origin.Line, "no Kubernetes object: apiVersion or kind is missing", start)
			}
		case found != nil:
			return nil, f(o.Origin.Line, "a second "+thing, "keep one "+kind+" in the file")
		default:
			found = o
		}
	}
	if found == nil {
		return nil, f(1, "the "+thing+" is empty", "remove the file, or "+start)
	}
	if found.APIVersion != api.RenderV1alpha1 || found.Kind != kind {
		return nil, []finding.Finding{found.Finding(finding.Error, rule, found.Get("kind"),
			fmt.Sprintf("%s %s is not a %s", found.APIVersion, found.Kind, thing), remedy)}
	}
	return found, nil
}

// LockFile is the name of the ImageLock at the root of a package.
const LockFile = "armature.lock"

// ReadLock parses an ImageLock. Unknown fields and objects of other kinds are errors. The render
// checks its entries.
func ReadLock(data []byte, file string) (*api.ImageLock, []finding.Finding) {
	found, findings := only(data, file, "pin-images/lock", "lock", "ImageLock",
		"run `armature pin` to write the lock")
	if found == nil {
		return nil, findings
	}
	lock := &api.ImageLock{Origin: contract.OriginOf(found)}
	return lock, found.Decode("pin-images/field", lock)
}
