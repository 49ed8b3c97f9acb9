package identity

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// maxName is what a rendered object's name may have, so that it fits a label.
const maxName = 63

// authBridgePrefix begins the name that Kagenti's operator gives the ConfigMap.
const authBridgePrefix = "authbridge-config-"

const (
	tokenExchangeSuffix = "-token-exchange"
	traceSuffix         = "-trace"
)

// TokenExchangeName is the ConfigMap that holds the sidecars' files.
func (s *Settings) TokenExchangeName() string {
	if s.Profile == ProfileAuthBridge {
		return AuthBridgeName(s.Name)
	}
	return ShortName(s.Name, tokenExchangeSuffix)
}

// AuthBridgeName is TokenExchangeName of a workload in ProfileAuthBridge.
func AuthBridgeName(workload string) string {
	if len(authBridgePrefix)+len(workload) <= maxName {
		return authBridgePrefix + workload
	}
	sum := sha256.Sum256([]byte(workload))
	kept := strings.TrimRight(workload[:maxName-len(authBridgePrefix)-11], "-.")
	return authBridgePrefix + kept + "-" + hex.EncodeToString(sum[:5])
}

// TraceName is the ConfigMap that holds the application's tracing settings.
func (s *Settings) TraceName() string { return ShortName(s.Name, traceSuffix) }

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
	keep := max(0, maxName-len(suffix)-1-10)
	dst = append(dst, strings.TrimRight(name[:keep], "-.")...)
	dst = append(dst, '-')
	dst = hex.AppendEncode(dst, sum[:5])
	return append(dst, suffix...)
}

// Shortened reports whether ShortName has to cut.
func Shortened(name, suffix string) bool { return len(name)+len(suffix) > maxName }
