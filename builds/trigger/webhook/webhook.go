// Package webhook verifies the deliveries of Git servers, over the bytes of the body as they
// came. It decodes none: a delivery only says that it is time to ask the Git server, so that
// what it contains has no power.
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
	// minSecret is the least length of a secret that counts, in bytes.
	minSecret = 8
	// maxSkew is how old or new a signed time may be.
	maxSkew = 5 * time.Minute
	// maxSignatures of a header are tried.
	maxSignatures = 8
)

// Verify reports whether a delivery is signed with one of the secrets; several are for their
// rotation. It knows GitHub, GitLab (token and signing token), Gitea, Forgejo, Bitbucket
// Cloud and Data Center, and Standard Webhooks. Where a header has a signature that also
// covers the time, only that counts, and Forgejo's before Gitea's before GitHub's, because
// each of them sends those of the others as well.
func Verify(h http.Header, body []byte, now time.Time, secrets ...[]byte) bool {
	header := signatureOf(h)
	text, ok := h.Get(header), false
	for _, secret := range secrets { // all of them, so that the time is that of none
		right := false
		switch header {
		case "Webhook-Signature":
			right = standard(h, text, body, now, secret)
		case "X-Forgejo-Signature", "X-Gitea-Signature":
			right = digest("", text, body, secret)
		case "X-Hub-Signature-256", "X-Hub-Signature":
			// Bitbucket's; GitHub's with SHA-1 has another prefix
			right = digest("sha256=", text, body, secret)
		case "X-Gitlab-Token":
			right = same([]byte(text), secret)
		}
		ok = right && len(secret) >= minSecret || ok
	}
	return ok && IsSigned(h)
}

// signatures are the headers that have one, the first that a delivery has counts.
var signatures = []string{"Webhook-Signature", "X-Forgejo-Signature", "X-Gitea-Signature",
	"X-Hub-Signature-256", "X-Hub-Signature", "X-Gitlab-Token"}

// signatureOf a delivery is the header that has it; "" for none.
func signatureOf(h http.Header) string {
	for _, name := range signatures {
		if len(h.Values(name)) > 0 {
			return name
		}
	}
	return ""
}

// IsSigned reports whether a delivery has one signature, right or wrong.
func IsSigned(h http.Header) bool { return len(h.Values(signatureOf(h))) == 1 }

// digest compares an HMAC of the body in hexadecimal digits after a prefix.
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

// same compares texts of any length in the same time.
func same(a, b []byte) bool {
	x, y := sha256.Sum256(a), sha256.Sum256(b)
	return subtle.ConstantTimeCompare(x[:], y[:]) == 1
}

// standard is a signature of Standard Webhooks, as GitLab's signing tokens are.
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
	want := sum(secret, []byte(id[0]+"."+at[0]+"."), body)
	ok := false
	for _, one := range strings.SplitN(text, " ", maxSignatures+1)[:min(maxSignatures,
		1+strings.Count(text, " "))] {
		rest, versioned := strings.CutPrefix(one, "v1,")
		given, err := base64.StdEncoding.DecodeString(rest)
		ok = versioned && err == nil && hmac.Equal(want, given) || ok
	}
	return ok
}

// Concerns reports whether a delivery is about a change of branches, tags or pull requests, or
// about a comment, rather than a test or something that starts no build.
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
	return true // of a sender that names none
}
