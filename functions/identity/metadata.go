package identity

import (
	"bytes"
	"slices"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/internal/scalar"
)

// ManagedBy is the label of generated objects, with the value "armature".
const ManagedBy = "app.kubernetes.io/managed-by"

// Object is one that is generated for a workload.
type Object int

// The objects of a workload.
const (
	TokenExchangeConfigMap Object = iota
	TraceConfigMap
	OwnServiceAccount
)

// suffixes are what the objects' names add to the workload's.
var suffixes = [...]string{tokenExchangeSuffix, traceSuffix, ""}

// AppendName appends the name of an object as a YAML scalar.
func (s *Settings) AppendName(dst []byte, of Object) []byte {
	if of == TokenExchangeConfigMap && s.Profile.ConfigMap != nil {
		return scalar.AppendPlain(dst, s.Profile.ConfigMap(s.Subject.Name))
	}
	suffix := suffixes[of]
	if scalar.Plain(s.Subject.Name) {
		return AppendShortName(dst, s.Subject.Name, suffix)
	}
	return scalar.AppendYAML(dst, ShortName(s.Subject.Name, suffix))
}

// AppendMetadata appends the metadata of an object generated for the workload.
func (s *Settings) AppendMetadata(dst []byte, of Object) []byte {
	dst = append(dst, "metadata:\n  name: "...)
	dst = s.AppendName(dst, of)
	if s.Subject.Namespace != "" {
		dst = append(dst, "\n  namespace: "...)
		dst = scalar.AppendPlain(dst, s.Subject.Namespace)
	}
	dst = append(dst,
		"\n  labels:\n    "+ManagedBy+": armature\n  annotations:\n    "+keys.RenderedFor+": "...)
	if scalar.Plain(s.Subject.Kind) && scalar.Plain(s.Subject.Name) {
		dst = append(append(append(dst, s.Subject.Kind...), '/'), s.Subject.Name...)
		return append(dst, '\n')
	}
	return append(scalar.AppendYAML(dst, s.Subject.Kind+"/"+s.Subject.Name), '\n')
}

// unsubstituted keeps Flux's postBuild from replacing ${NAME} in an object.
const unsubstituted = "    kustomize.toolkit.fluxcd.io/substitute: disabled\n"

// AppendConfigMap appends a ConfigMap of the workload as a YAML document without
// separators. data appends what comes after its metadata.
func (s *Settings) AppendConfigMap(dst []byte, of Object, data func([]byte, *Settings) []byte) []byte {
	dst = s.AppendMetadata(append(dst, "apiVersion: v1\nkind: ConfigMap\n"...), of)
	start := len(dst)
	if dst = data(dst, s); bytes.Contains(dst[start:], []byte("${")) {
		dst = slices.Insert(dst, start, []byte(unsubstituted)...)
	}
	return dst
}
