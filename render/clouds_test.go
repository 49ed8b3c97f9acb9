package render_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/e2e/programs"
	"github.com/armature-dev/armature/render"
)

// TestClouds runs an application that says nothing about credentials, with the
// real SDKs of AWS and Google, in what a render makes of its container: they find
// the rendered files and present the SPIFFE token in them.
func TestClouds(t *testing.T) {
	program := programs.Peer(t, "clouds")
	for provider, test := range map[string]struct{ spec, token, want string }{
		"aws": {
			`aws: {roleArn: "arn:aws:iam::123456789012:role/agent", region: eu-central-1, stsEndpoint: "%s"}`,
			"aws.token", "AKIAFORTHEAGENT in eu-central-1 by WebIdentityCredentials"},
		"gcp": {
			`gcp: {workloadIdentityProvider: projects/1/locations/global/workloadIdentityPools/pool/providers/spire, serviceAccountEmail: agent@project.iam.gserviceaccount.com}`,
			"gcp.token", "the service account's"},
	} {
		for _, profile := range []string{"kagenti", "kagenti-published"} {
			t.Run(provider+"/"+profile, func(t *testing.T) {
				server := httptest.NewServer(cloud(t))
				defer server.Close()
				config, findings := render.ReadConfig(
					[]byte(
						"apiVersion: armature.dev/v1alpha1\nkind: RenderConfig\nspec:\n  profile: "+
							profile+
							"\n  identity:\n    clientRegistration:\n      "+
							strings.ReplaceAll(test.spec, "%s", server.URL)+"\n"), "armature.yaml")
				if len(findings) > 0 {
					t.Fatal(findings)
				}
				c, files := application(t, render.Options{Config: config})
				cmd := exec.CommandContext(t.Context(), program, provider)
				cmd.Env = []string{"HOME=" + t.TempDir(),
					"CLOUDS_SERVER=" + strings.TrimPrefix(server.URL, "http://")}
				root := t.TempDir()
				for _, m := range c.VolumeMounts {
					dir := filepath.Join(root, m.MountPath)
					if err := os.MkdirAll(dir, 0o755); err != nil {
						t.Fatal(err)
					}
					content := files[m.Name]
					if content == nil { // what spiffe-helper writes
						content = map[string]string{test.token: "the agent's SVID"}
					}
					for name, text := range content {
						text = strings.ReplaceAll(text, "/etc/armature/", root+"/etc/armature/")
						if err := os.WriteFile(filepath.Join(dir, name), []byte(text),
							0o600); err != nil {
							t.Fatal(err)
						}
					}
				}
				for _, e := range c.Env {
					cmd.Env = append(cmd.Env, e.Name+"="+root+e.Value)
				}
				out, err := cmd.CombinedOutput()
				if got := strings.TrimSpace(string(out)); err != nil || got != test.want {
					t.Errorf("%v: %s, and not %q", err, got, test.want)
				}
			})
		}
	}
}

// application returns the container of a rendered workload, and the files of its volumes that are
// ConfigMaps.
func application(t *testing.T,
	opt render.Options) (corev1.Container, map[string]map[string]string) {
	t.Helper()
	result, err := render.Run(
		render.Source{Files: []render.File{{Path: "web.yaml", Data: []byte(`apiVersion: apps/v1
kind: Deployment
metadata:
  name: web
  labels: {kagenti.io/inject: enabled}
spec:
  template:
    spec:
      containers:
      - name: web
        image: web:v1
`)}}}, opt)
	if err != nil || len(result.Files) == 0 {
		t.Fatal(err, result.Findings)
	}
	var d appsv1.Deployment
	maps := make(map[string]map[string]string)
	for _, f := range result.Files {
		for text := range strings.SplitSeq(string(f.Data), "\n---\n") {
			var cm corev1.ConfigMap
			if err := yaml.Unmarshal([]byte(text), &cm); err != nil {
				t.Fatal(err)
			}
			if cm.Kind == "ConfigMap" {
				maps[cm.Name] = cm.Data
			} else if err := yaml.Unmarshal([]byte(text), &d); err != nil {
				t.Fatal(err)
			}
		}
	}
	files := make(map[string]map[string]string)
	for _, v := range d.Spec.Template.Spec.Volumes {
		if v.ConfigMap != nil {
			files[v.Name] = maps[v.ConfigMap.Name]
		}
	}
	return d.Spec.Template.Spec.Containers[0], files
}

// cloud answers as AWS STS and Google's token servers do, those who present the
// agent's token only.
func cloud(t *testing.T) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := r.ParseForm(); err != nil && r.Host != "iamcredentials.googleapis.com" {
			t.Error(err)
		}
		expiry := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
		var answer any
		switch {
		case r.PostForm.Get("Action") == "AssumeRoleWithWebIdentity" &&
			r.PostForm.Get("RoleArn") == "arn:aws:iam::123456789012:role/agent" &&
			r.PostForm.Get("RoleSessionName") == "web" &&
			r.PostForm.Get("WebIdentityToken") == "the agent's SVID":
			w.Header().Set("Content-Type", "text/xml")
			fmt.Fprintf(w,
				`<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleWithWebIdentityResult><Credentials>
<AccessKeyId>AKIAFORTHEAGENT</AccessKeyId><SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken><Expiration>%s</Expiration>
</Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>`, expiry)
			return
		case r.Host == "sts.googleapis.com" && r.URL.Path == "/v1/token" &&
			r.PostForm.Get("subject_token") == "the agent's SVID" &&
			r.PostForm.Get("audience") ==
				"//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/pool/providers/spire":
			answer = map[string]any{"access_token": "federated",
				"issued_token_type": "urn:ietf:params:oauth:token-type:access_token",
				"token_type":        "Bearer", "expires_in": 3600}
		case r.Host == "iamcredentials.googleapis.com" &&
			strings.HasSuffix(r.URL.Path,
				"/serviceAccounts/agent@project.iam.gserviceaccount.com:generateAccessToken") &&
			r.Header.Get("Authorization") == "Bearer federated":
			answer = map[string]any{"accessToken": "the service account's", "expireTime": expiry}
		default:
			t.Errorf("the server was asked for %s%s with %v", r.Host, r.URL.Path, r.PostForm)
			w.WriteHeader(http.StatusForbidden)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(answer); err != nil {
			t.Error(err)
		}
	}
}
