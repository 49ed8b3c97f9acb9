// Package webhook verifies the signatures of deliveries from Git servers. It does not decode the
// body: a delivery only causes a question to the Git server, so that its content has no effect.
package webhook

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const (
	// minSecret is the shortest length of a valid secret, in bytes.
	minSecret = 8
	// maxSkew bounds the difference between a signed time and now.
	maxSkew = 5 * time.Minute
	// maxSignatures is the number of signatures in a header that are compared.
	maxSignatures = 8
)

// Verify reports whether a delivery is signed with one of the secrets, of which there are several
// during a rotation. It supports GitHub, GitLab (token and signing token), Gitea, Forgejo,
// Bitbucket Cloud and Data Center, and Standard Webhooks. If a delivery has several signatures,
// only the first of signatures counts: the one that also covers the time, and then Forgejo's before
// Gitea's before GitHub's, because each of these servers also sends the headers of the next.
func Verify(h http.Header, body []byte, now time.Time, secrets ...[]byte) bool {
	header := signatureOf(h)
	text, ok := h.Get(header), false
	for _, secret := range secrets { // the time must not depend on which one matches
		right := false
		switch header {
		case "Webhook-Signature":
			right = standard(h, text, body, now, secret)
		case "X-Forgejo-Signature", "X-Gitea-Signature":
			right = digest("", text, body, secret)
		case "X-Hub-Signature-256", "X-Hub-Signature":
			// X-Hub-Signature is Bitbucket's. GitHub's, with SHA-1, has another prefix.
			right = digest("sha256=", text, body, secret)
		case "X-Gitlab-Token":
			right = same([]byte(text), secret)
		}
		ok = right && len(secret) >= minSecret || ok
	}
	return ok && IsSigned(h)
}

// signatures are the headers with a signature. Only the first one in a delivery counts.
var signatures = []string{"Webhook-Signature", "X-Forgejo-Signature", "X-Gitea-Signature",
	"X-Hub-Signature-256", "X-Hub-Signature", "X-Gitlab-Token"}

// signatureOf returns the header that has the signature of a delivery, or "" without one.
func signatureOf(h http.Header) string {
	for _, name := range signatures {
		if len(h.Values(name)) > 0 {
			return name
		}
	}
	return ""
}

// IsSigned reports whether a delivery has exactly one signature, valid or not.
func IsSigned(h http.Header) bool { return len(h.Values(signatureOf(h))) == 1 }

// digest reports whether text is a prefix and the HMAC of the body in hexadecimal digits.
func digest(prefix, text string, body, secret []byte) bool {
	rest, ok := strings.CutPrefix(text, prefix)
	given, err := hex.DecodeString(rest)
	return hmac.Equal(sum(secret, body), given) && ok && err == nil
}

func sum(secret []byte, parts ...[]byte) []byte {
	mac := hmac.New(sha256.New, secret)
	for _, part := range parts {
		mac.Write(part)
	}
	return mac.Sum(nil)
}

// same compares texts of any length in constant time.
func same(a, b []byte) bool {
	x, y := sha256.Sum256(a), sha256.Sum256(b)
	return subtle.ConstantTimeCompare(x[:], y[:]) == 1
}

// standard verifies a signature of Standard Webhooks, which GitLab's signing tokens use.
func standard(h http.Header, text string, body []byte, now time.Time, secret []byte) bool {
	id, at := h.Values("Webhook-Id"), h.Values("Webhook-Timestamp")
	if len(id) != 1 || len(at) != 1 || id[0] == "" {
		return false
	}
	seconds, err := strconv.ParseInt(at[0], 10, 64)
	if skew := now.Sub(time.Unix(seconds, 0)); err != nil || skew > maxSkew || skew < -maxSkew {
		return false
	}
	if encoded, ok := strings.CutPrefix(string(secret), "whsec_"); ok {
		if secret, err = base64.StdEncoding.DecodeString(encoded); err != nil {
			return false
		}
	}
	want, all, ok := sum(secret, []byte(id[0]+"."+at[0]+"."), body), strings.Fields(text), false
	for _, one := range all[:min(len(all), maxSignatures)] {
		rest, versioned := strings.CutPrefix(one, "v1,")
		given, err := base64.StdEncoding.DecodeString(rest)
		ok = versioned && err == nil && hmac.Equal(want, given) || ok
	}
	return ok
}

// Concerns reports whether a delivery is about branches, tags, pull requests or comments. Other
// deliveries, such as tests, start no build.
func Concerns(h http.Header) bool {
	for _, name := range []string{"X-Forgejo-Event", "X-Gitea-Event", "X-Github-Event",
		"X-Gitlab-Event", "X-Event-Key"} {
		switch event := h.Get(name); event {
		case "":
			continue
		case "push", "create", "delete", "pull_request", "issue_comment", "Push Hook",
			"Tag Push Hook", "Merge Request Hook", "Note Hook", "System Hook", "repo:push",
			"repo:refs_changed":
			return true
		default:
			return strings.HasPrefix(event, "pullrequest:") || strings.HasPrefix(event, "pr:")
		}
	}
	return true // the sender names no event
}
