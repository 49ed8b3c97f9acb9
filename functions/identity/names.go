package identity

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
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

// ShortName is name+suffix where that has at most 63 characters. Otherwise the
// name is cut and a hash of it is put before the suffix, so that two long names
// with a common beginning stay apart and the same one always gives the same.
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
