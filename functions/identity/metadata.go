package identity

import (
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/internal/scalar"
)

// ManagedBy is the label of generated objects, with the value "armature".
const ManagedBy = "app.kubernetes.io/managed-by"

// ConfigMap is one of the two that a workload gets.
type ConfigMap int

// The ConfigMaps of a workload.
const (
	TokenExchangeConfigMap ConfigMap = iota
	TraceConfigMap
)

// AppendName appends the name of a ConfigMap as a YAML scalar.
func (s *Settings) AppendName(dst []byte, cm ConfigMap) []byte {
	if cm == TokenExchangeConfigMap && s.Profile == ProfileAuthBridge {
		return scalar.AppendPlain(dst, AuthBridgeName(s.Name))
	}
	suffix := tokenExchangeSuffix
	if cm == TraceConfigMap {
		suffix = traceSuffix
	}
	if scalar.Plain(s.Name) {
		return AppendShortName(dst, s.Name, suffix)
	}
	return scalar.AppendYAML(dst, ShortName(s.Name, suffix))
}

// AppendMetadata appends the metadata of a ConfigMap generated for the
// workload.
func (s *Settings) AppendMetadata(dst []byte, cm ConfigMap) []byte {
	dst = append(dst, "metadata:\n  name: "...)
	dst = s.AppendName(dst, cm)
	if s.Namespace != "" {
		dst = append(dst, "\n  namespace: "...)
		dst = scalar.AppendPlain(dst, s.Namespace)
	}
	dst = append(dst, "\n  labels:\n    "+ManagedBy+": armature\n  annotations:\n    "+keys.RenderedFor+": "...)
	if scalar.Plain(s.Kind) && scalar.Plain(s.Name) {
		dst = append(append(append(dst, s.Kind...), '/'), s.Name...)
		return append(dst, '\n')
	}
	return append(scalar.AppendYAML(dst, s.Kind+"/"+s.Name), '\n')
}
