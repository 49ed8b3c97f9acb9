package identity

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/internal/scalar"
)

// MaxName is how many characters a rendered object's name has at most, so that it fits a label.
const MaxName = 63

const (
	tokenExchangeSuffix = "-token-exchange"
	traceSuffix         = "-trace"

	// longestAffix is more than any name adds to that of its workload.
	longestAffix = 20
)

// TokenExchangeName is the ConfigMap that holds the sidecars' files.
func (s *Settings) TokenExchangeName() string { return s.Profile.ConfigMapName(s.Subject.Name) }

// TraceName is the ConfigMap that holds the application's tracing settings.
func (s *Settings) TraceName() string { return ShortName(s.Subject.Name, traceSuffix) }

// ShortName returns name+suffix if that has at most 63 characters. Otherwise it cuts the name and
// inserts a hash of it before the suffix, so that two long names with a common beginning stay
// apart. Equal arguments yield equal names.
func ShortName(name, suffix string) string {
	return string(AppendShortName(nil, name, suffix))
}

// AppendShortName appends ShortName(name, suffix).
func AppendShortName(dst []byte, name, suffix string) []byte {
	if !Shortened(name, suffix) {
		return append(append(dst, name...), suffix...)
	}
	sum := sha256.Sum256([]byte(name))
	keep := max(0, MaxName-len(suffix)-1-10)
	dst = append(dst, strings.TrimRight(name[:keep], "-.")...)
	dst = append(dst, '-')
	dst = hex.AppendEncode(dst, sum[:5])
	return append(dst, suffix...)
}

// shortened are the names of the workload's ConfigMaps that had to be cut, with what they
// would be.
func (s *Settings) shortened() (names [][2]string) {
	if len(s.Subject.Name) < MaxName-longestAffix {
		return nil
	}
	whole := s.Subject.Name + tokenExchangeSuffix
	if s.Profile.ConfigMap != nil {
		whole = strings.TrimSuffix(s.Profile.ConfigMap("x"), "x") + s.Subject.Name
	}
	if len(whole) > MaxName && !s.TraceOnly {
		names = append(names, [2]string{s.TokenExchangeName(), whole})
	}
	if s.Trace.Enabled && Shortened(s.Subject.Name, traceSuffix) {
		names = append(names, [2]string{s.TraceName(), s.Subject.Name + traceSuffix})
	}
	return names
}

// Shortened reports whether ShortName has to cut.
func Shortened(name, suffix string) bool { return len(name)+len(suffix) > MaxName }

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
func (s *Settings) AppendConfigMap(dst []byte, of Object,
	data func([]byte, *Settings) []byte) []byte {
	dst = s.AppendMetadata(append(dst, "apiVersion: v1\nkind: ConfigMap\n"...), of)
	start := len(dst)
	if dst = data(dst, s); bytes.Contains(dst[start:], []byte("${")) {
		dst = slices.Insert(dst, start, []byte(unsubstituted)...)
	}
	return dst
}
