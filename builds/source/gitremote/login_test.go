package gitremote

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A login goes to the hosts that its Secret names, whoever names the repository.
func TestLoginIsForItsHosts(t *testing.T) {
	for _, c := range []struct {
		host, address string
		want          bool
	}{
		{"https://git.example", "https://git.example/team/app", true},
		{"https://git.example/", "https://GIT.example/team/app.git", true},
		{"git.example", "https://git.example/team/app", true},
		{"git.example", "git@git.example:team/app", true},
		{"https://git.example", "ssh://git@git.example/team/app", true},
		{"https://git.example:8443", "https://git.example:8443/team/app", true},
		{"https://git.example", "https://git.example:8443/team/app", true},
		{"https://git.example:8443", "https://git.example/team/app", false},
		{"https://git.example:8443", "https://git.example:9443/team/app", false},
		{"", "https://git.example/team/app", false},
		{"https://", "https://git.example/team/app", false},
		{"https://git.example", "https://git.example.attacker.example/team/app", false},
		{"https://git.example", "https://attacker.example/git.example", false},
		{"https://git.example", "https://notgit.example/team/app", false},
		{"*.example", "https://git.example/team/app", false},
		{"https://git.example", "file:///git.example/team/app", false},
		{"https://git.example", "http://git.example/team/app", false},
		{"http://plain.example", "http://plain.example/team/app", true},
		{"http://plain.example", "http://plain.example:81/team/app", true},
		{"http://port.example", "http://port.example:81/team/app", true},
		{"http://port.example", "http://port.example/team/app", false},
		{"http://[::1]:80", "https://[::1]/team/app", false},
		{"https://[::1]", "https://[::1]/team/app", true},
	} {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "team1", Name: "login",
			Annotations: map[string]string{"tekton.dev/git-7": c.host,
				"tekton.dev/docker-0": "https://attacker.example"}},
			Data: map[string][]byte{"token": []byte("x")}}
		data, err := Take(secret, c.address, []string{"plain.example", "port.example:81"})
		if got := err == nil && data != nil; got != c.want {
			t.Errorf("%q for %q: %v, %v", c.host, c.address, got, err)
		}
	}
	secret := &corev1.Secret{Type: corev1.SecretTypeBasicAuth,
		Data: map[string][]byte{"token": []byte("x")}}
	if data, err := Take(secret, "https://git.example/x", nil); err == nil || data != nil {
		t.Error("a Secret that names no host is used")
	}
	if _, err := MayHave(secret, "https://git.example/x"); err == nil {
		t.Error("a Secret that names no host is used for an API")
	}
}
