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

// Shortened reports whether ShortName has to cut.
func Shortened(name, suffix string) bool { return len(name)+len(suffix) > MaxName }
