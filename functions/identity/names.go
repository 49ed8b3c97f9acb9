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

// MaxName is the maximum length of a rendered object's name, so that it fits into a label.
const MaxName = 63

// longestAffix exceeds the length of every affix that a name adds to its workload's.
const longestAffix = 20

// Object is a kind of object that is generated for a workload.
type Object int

// The objects of a workload.
const (
	TokenExchangeConfigMap Object = iota
	TraceConfigMap
	OwnServiceAccount
)

// affixes returns the affixes that the name of an object adds to the workload's.
func (p *Profile) affixes(of Object) (prefix, suffix string) {
	switch {
	case of == TraceConfigMap:
		return "", "-trace"
	case of == OwnServiceAccount:
		return "", ""
	case p.ConfigMapPrefix != "":
		return p.ConfigMapPrefix, ""
	}
	return "", "-token-exchange"
}

func (p *Profile) name(of Object, workload string) string {
	prefix, suffix := p.affixes(of)
	return shorten(prefix, workload, suffix)
}

// ConfigMapName returns the name of the ConfigMap with the files of a workload's sidecars.
func (p *Profile) ConfigMapName(workload string) string {
	return p.name(TokenExchangeConfigMap, workload)
}

// TokenExchangeName returns the name of the ConfigMap with the files of the sidecars.
func (s *Settings) TokenExchangeName() string { return s.Profile.ConfigMapName(s.Subject.Name) }

// TraceName returns the name of the ConfigMap with the application's tracing settings.
func (s *Settings) TraceName() string { return s.Profile.name(TraceConfigMap, s.Subject.Name) }

// Scalar returns the name of an object as a YAML scalar.
func (s *Settings) Scalar(of Object) string {
	prefix, suffix := s.Profile.affixes(of)
	name := shorten(prefix, s.Subject.Name, suffix)
	if scalar.Plain(prefix + s.Subject.Name) {
		return name
	}
	return string(scalar.AppendYAML(nil, name))
}

// ShortName returns name+suffix if that has at most 63 characters. Otherwise it cuts the name and
// inserts a hash of it before the suffix, so that two long names with a common beginning stay
// distinct. Equal arguments yield equal names.
func ShortName(name, suffix string) string { return shorten("", name, suffix) }

func shorten(prefix, name, suffix string) string {
	if !Shortened(name, prefix+suffix) {
		return prefix + name + suffix
	}
	sum := sha256.Sum256([]byte(name))
	kept := strings.TrimRight(name[:max(0, MaxName-len(prefix+suffix)-11)], "-.")
	return prefix + kept + "-" + hex.EncodeToString(sum[:5]) + suffix
}

// Shortened reports whether ShortName has to cut.
func Shortened(name, suffix string) bool { return len(name)+len(suffix) > MaxName }

// shortened returns the names of the workload's ConfigMaps that had to be cut, each with the full
// name.
func (s *Settings) shortened() (names [][2]string) {
	if len(s.Subject.Name) < MaxName-longestAffix {
		return nil
	}
	for of, written := range [...]bool{!s.TraceOnly, s.Trace.Enabled} {
		prefix, suffix := s.Profile.affixes(Object(of))
		if written && Shortened(s.Subject.Name, prefix+suffix) {
			names = append(names, [2]string{shorten(prefix, s.Subject.Name, suffix),
				prefix + s.Subject.Name + suffix})
		}
	}
	return names
}

// ManagedBy is the label of generated objects, with the value "armature".
const ManagedBy = "app.kubernetes.io/managed-by"

// AppendMetadata appends the metadata of an object generated for another one. name and of are YAML
// scalars; of is the kind and the name of the other object, separated by a slash.
func AppendMetadata(dst []byte, name, namespace, of string) []byte {
	dst = append(append(dst, "metadata:\n  name: "...), name...)
	if namespace != "" {
		dst = scalar.AppendPlain(append(dst, "\n  namespace: "...), namespace)
	}
	dst = append(dst,
		"\n  labels:\n    "+ManagedBy+": armature\n  annotations:\n    "+keys.RenderedFor+": "...)
	return append(append(dst, of...), '\n')
}

// AppendMetadata appends the metadata of an object generated for the workload.
func (s *Settings) AppendMetadata(dst []byte, of Object) []byte {
	workload := s.Subject.Kind + "/" + s.Subject.Name
	if !scalar.Plain(s.Subject.Kind) || !scalar.Plain(s.Subject.Name) {
		workload = string(scalar.AppendYAML(nil, workload))
	}
	return AppendMetadata(dst, s.Scalar(of), s.Subject.Namespace, workload)
}

// unsubstituted keeps Flux's postBuild from replacing ${NAME} in an object.
const unsubstituted = "    kustomize.toolkit.fluxcd.io/substitute: disabled\n"

// AppendConfigMap appends a ConfigMap of the workload as a YAML document without separators. data
// appends the part after its metadata.
func (s *Settings) AppendConfigMap(dst []byte, of Object,
	data func([]byte, *Settings) []byte) []byte {
	dst = s.AppendMetadata(append(dst, "apiVersion: v1\nkind: ConfigMap\n"...), of)
	start := len(dst)
	dst, _ = s.AppendPart(dst, configMapData+Part(of),
		func(dst []byte, s *Settings) ([]byte, []string) { return data(dst, s), nil })
	if bytes.Contains(dst[start:], []byte("${")) {
		dst = slices.Insert(dst, start, []byte(unsubstituted)...)
	}
	return dst
}
