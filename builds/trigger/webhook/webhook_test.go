package webhook

import (
	"encoding/hex"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

func headers(pairs ...string) http.Header {
	h := http.Header{}
	for i := 0; i < len(pairs); i += 2 {
		h.Add(pairs[i], pairs[i+1])
	}
	return h
}

// The known answers of GitHub's page "Validating webhook deliveries" and of the specification
// of Standard Webhooks, and what each server sends.
func TestKnownAnswers(t *testing.T) {
	const secret, body = "It's a Secret to Everybody", "Hello, World!"
	const sum = "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
	for name, h := range map[string]http.Header{
		"GitHub": headers("X-GitHub-Event", "push", "X-Hub-Signature",
			"sha1=01dc10d0c83e72ed246219cdd91669667fe2ca59", "X-Hub-Signature-256", "sha256="+sum),
		"Gitea": headers("X-Gitea-Event", "push", "X-GitHub-Event", "push",
			"X-Gitea-Signature", sum, "X-Hub-Signature-256", "sha256="+sum),
		"Forgejo":           headers("X-Forgejo-Signature", sum, "X-Gitea-Signature", sum),
		"Bitbucket":         headers("X-Event-Key", "repo:push", "X-Hub-Signature", "sha256="+sum),
		"GitLab":            headers("X-Gitlab-Event", "Push Hook", "X-Gitlab-Token", secret),
		"upper-case digits": headers("X-Gitea-Signature", strings.ToUpper(sum)),
	} {
		if !Verify(h, []byte(body), time.Now(), []byte(secret)) {
			t.Errorf("%s is refused", name)
		}
		if !Verify(h, []byte(body), time.Now(), []byte("another secret"), []byte(secret)) {
			t.Errorf("%s is refused during a rotation", name)
		}
		for what, refused := range map[string]bool{
			"another secret": Verify(h, []byte(body), time.Now(), []byte("another secret")),
			"no secret":      Verify(h, []byte(body), time.Now()),
			"an empty one":   Verify(h, []byte(body), time.Now(), nil, []byte("")),
		} {
			if refused {
				t.Errorf("%s is accepted with %s", name, what)
			}
		}
		if name != "GitLab" && Verify(h, []byte(body+" "), time.Now(), []byte(secret)) {
			t.Errorf("%s is accepted with another body", name)
		}
	}
	at := time.Unix(1614265330, 0)
	h := headers("webhook-id", "msg_p5jXN8AQM9LWM0D4loKWxJek", "webhook-timestamp", "1614265330",
		"webhook-signature", "v1,AAAA v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=")
	standard := []byte("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	if body := []byte(`{"test": 2432232314}`); !Verify(h, body, at, standard) ||
		Verify(h, body, at.Add(6*time.Minute), standard) ||
		Verify(h, body, at.Add(-6*time.Minute), standard) {
		t.Error("Standard Webhooks")
	}
}

// Whatever is empty, doubled, short or of another kind is refused.
func TestRefused(t *testing.T) {
	secret, body := []byte("a secret of some length"), []byte("{}")
	good := hex.EncodeToString(sum(secret, body))
	empty := hex.EncodeToString(sum(nil, body))
	for i, h := range []http.Header{
		{},
		headers("X-Gitea-Signature", ""),
		headers("X-Gitea-Signature", "", "X-Hub-Signature-256", "sha256="+good),
		headers("X-Forgejo-Signature", "00", "X-Gitea-Signature", good),
		headers("X-Gitea-Signature", good, "X-Gitea-Signature", good),
		headers("X-Gitea-Signature", "00", "X-Gitea-Signature", good),
		headers("X-Gitea-Signature", good[:62]),
		headers("X-Gitea-Signature", good+"00"),
		headers("X-Gitea-Signature", "sha256="+good),
		headers("X-Hub-Signature-256", "sha256="),
		headers("X-Hub-Signature-256", good),
		headers("X-Hub-Signature-256", "sha1="+good),
		headers("X-Hub-Signature", "sha1="+good),
		headers("X-Gitea-Signature", empty),
		headers("X-Gitlab-Token", ""),
		headers("X-Gitlab-Token", "a secret of some lengti"),
		headers("X-Gitlab-Token", "a secret of some length", "webhook-signature", "v1,AAAA"),
		headers("webhook-signature", "v1,"),
		headers("webhook-id", "x", "webhook-timestamp", "1e9", "webhook-signature", "v1,AAAA"),
		headers("webhook-id", "x", "webhook-timestamp", "99999999999999999999", "webhook-signature",
			strings.Repeat("v1,AAAA ", 100000)),
	} {
		if Verify(h, body, time.Now(), secret, nil) {
			t.Errorf("case %d is accepted: %v", i, fmt.Sprint(h)[:60])
		}
	}
	short := []byte("1234567")
	if Verify(headers("X-Gitea-Signature", hex.EncodeToString(sum(short, body))), body, time.Now(),
		short) {
		t.Error("a short secret is accepted")
	}
}

func TestConcerns(t *testing.T) {
	for event, want := range map[string]bool{"X-GitHub-Event: push": true,
		"X-GitHub-Event: ping": false, "X-GitHub-Event: star": false,
		"X-Gitlab-Event: Note Hook": true, "X-Gitea-Event: issue_comment": true,
		"X-GitHub-Event: issues": false, "X-Gitlab-Event: Push Hook": true,
		"X-Event-Key: diagnostics:ping": false, "X-Event-Key: pr:opened": true, "Other: x": true} {
		name, value, _ := strings.Cut(event, ": ")
		if got := Concerns(headers(name, value)); got != want {
			t.Errorf("%s: %v", event, got)
		}
	}
}
