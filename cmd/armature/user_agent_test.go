package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestUserAgent: requests to clusters, registries and catalogs name the program
// and its version.
func TestUserAgent(t *testing.T) {
	seen := make(chan string, 1000)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen <- r.UserAgent()
		http.Error(w, "no", http.StatusForbidden)
	}))
	defer server.Close()
	folder := t.TempDir()
	kubeconfig, token := filepath.Join(folder, "kubeconfig"), filepath.Join(folder, "token")
	for file, text := range map[string]string{
		token: "a-token\n",
		kubeconfig: "apiVersion: v1\nkind: Config\ncurrent-context: c\n" +
			"clusters: [{name: c, cluster: {server: \"" + server.URL + "\"}}]\n" +
			"contexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {}}]\n",
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	a := buildArmature(t)
	version, _ := a.run(t, 0, "version")
	want := "armature/" + strings.Fields(version)[1] + " ("
	for _, args := range [][]string{
		{"status", "--packages", "--kubeconfig", kubeconfig},
		{"build", "list", "--kubeconfig", kubeconfig},
		{"status", "--kubeconfig", kubeconfig},
		{"catalog", "list", "--server", server.URL, "--token-file", token},
		{"artifact", "list",
			"oci://" + strings.TrimPrefix(server.URL, "http://") + "/fleet/agents"},
	} {
		a.run(t, 1, args...)
		n := 0
		for len(seen) > 0 {
			if got := <-seen; !strings.HasPrefix(got, want) {
				t.Errorf("armature %s: User-Agent %q, want %q…", strings.Join(args, " "), got, want)
			}
			n++
		}
		if n == 0 {
			t.Errorf("armature %s: asked nobody", strings.Join(args, " "))
		}
	}
}
