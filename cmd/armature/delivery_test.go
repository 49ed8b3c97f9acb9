package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/rogpeppe/go-internal/testscript"
	"github.com/sigstore/cosign/v2/pkg/cosign"

	"github.com/armature-dev/armature/render/deliver/sign"
)

// TestDelivery runs testdata/delivery with a registry, whose host is $REGISTRY. Beside
// the commands armature and exits of TestStories and testscript's own they have
//
//	keypair NAME      makes NAME.key and NAME.pub, as cosign generate-key-pair does
//	image NAME        stores an image, another one each time, in the registry
//	fill FILE         replaces REGISTRY in a file by the registry's host
//	built NAME KEY [TEAM]  signs an image, and attests that it was built from the
//	                  team's repository
//	tagged NAME FILE  writes a Deployment of an image by its tag
//	digested NAME FILE  the same by its digest
//	summary NAME      prints the verification summary of an image, nothing for none
//	cut               makes the registry refuse everything from now on, in words
//	                  that would steer a terminal
func TestDelivery(t *testing.T) {
	bin, homes := filepath.Dir(buildArmature(t).file), t.TempDir()
	testscript.Run(t, testscript.Params{
		Dir: filepath.Join(pages, "cmd/armature/testdata/delivery"),
		Setup: func(env *testscript.Env) error {
			handler := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
			server := httptest.NewServer(
				http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if _, err := os.Stat(filepath.Join(env.WorkDir, "cut")); err == nil {
						w.WriteHeader(http.StatusForbidden)
						_, _ = io.WriteString(w,
							`{"errors": [{"code": "DENIED", "message": "\u001b[31mclosed\u009b0m"}]}`)
						return
					}
					handler.ServeHTTP(w, r)
				}))
			env.Defer(server.Close)
			env.Setenv("PATH", bin+string(filepath.ListSeparator)+searched)
			// testscript's is /no-home, which root can make
			env.Setenv("HOME", filepath.Join(homes, filepath.Base(env.WorkDir)))
			env.Setenv("REGISTRY", strings.TrimPrefix(server.URL, "http://"))
			env.Setenv("COSIGN_PASSWORD", "a password")
			env.Setenv("DOCKER_CONFIG", env.WorkDir)
			for _, who := range []string{"AUTHOR", "COMMITTER"} {
				env.Setenv("GIT_"+who+"_NAME", "a")
				env.Setenv("GIT_"+who+"_EMAIL", "a@example.com")
				env.Setenv("GIT_"+who+"_DATE", "2026-01-02T03:04:05Z")
			}
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"armature": storyCommand,
			"exits":    storyExits,
			"keypair":  keypair,
			"image":    image,
			"fill":     fill,
			"built":    built,
			"tagged": func(ts *testscript.TestScript, _ bool, args []string) {
				deployment(ts, ts.Getenv("REGISTRY")+"/"+args[0], args[1])
			},
			"digested": func(ts *testscript.TestScript, _ bool, args []string) {
				deployment(ts, digestOf(ts, args[0]).String(), args[1])
			},
			"summary": printSummary,
			"cut": func(ts *testscript.TestScript, _ bool, _ []string) {
				ts.Check(os.WriteFile(ts.MkAbs("cut"), nil, 0o600))
			},
		},
	})
}

func keypair(ts *testscript.TestScript, _ bool, args []string) {
	pair, err := cosign.GenerateKeyPair(func(bool) ([]byte, error) {
		return []byte(ts.Getenv("COSIGN_PASSWORD")), nil
	})
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(args[0]+".key"), pair.PrivateBytes, 0o600))
	ts.Check(os.WriteFile(ts.MkAbs(args[0]+".pub"), pair.PublicBytes, 0o600))
}

func image(ts *testscript.TestScript, _ bool, args []string) {
	made, err := random.Image(16, 1)
	ts.Check(err)
	ref, err := name.ParseReference(ts.Getenv("REGISTRY") + "/" + args[0])
	ts.Check(err)
	ts.Check(remote.Write(ref, made))
}

func fill(ts *testscript.TestScript, _ bool, args []string) {
	text := ts.ReadFile(args[0])
	ts.Check(os.WriteFile(ts.MkAbs(args[0]),
		[]byte(strings.ReplaceAll(text, "REGISTRY", ts.Getenv("REGISTRY"))), 0o644))
}

func digestOf(ts *testscript.TestScript, image string) name.Digest {
	ref, err := name.ParseReference(ts.Getenv("REGISTRY") + "/" + image)
	ts.Check(err)
	found, err := remote.Head(ref)
	ts.Check(err)
	return ref.Context().Digest(found.Digest.String())
}

func built(ts *testscript.TestScript, _ bool, args []string) {
	team := ""
	if len(args) > 2 {
		team = args[2]
	}
	ts.Check(attestBuild(digestOf(ts, args[0]), ts.MkAbs(args[1]), ts.Getenv("COSIGN_PASSWORD"), team))
}

// attestBuild signs an image with a key, and attests that it was built from a team's
// repository, "" for no attestation.
func attestBuild(image name.Digest, key, password, team string) error {
	signer := sign.Signer{Key: key,
		Password: func() ([]byte, error) { return []byte(password), nil }}
	session, err := signer.Open(context.Background())
	if err == nil {
		_, err = session.Sign(context.Background(), image)
	}
	if err != nil || team == "" {
		return err
	}
	source := map[string]any{
		"digest": map[string]string{"gitCommit": strings.Repeat("0123456789", 4)},
		"annotations": map[string]string{"armature_repository": "https://git.example/" + team +
			"/weather", "armature_ref": "refs/heads/main"}}
	_, err = session.Attest(context.Background(), image, sign.PredicateType, map[string]any{
		"buildDefinition": map[string]any{"buildType": "https://armature.dev/agent-build/v1",
			"externalParameters": map[string]any{"source": source}},
		"runDetails": map[string]any{
			"builder": map[string]string{"id": "https://builder.example/prod"}},
	})
	return err
}

func deployment(ts *testscript.TestScript, image, file string) {
	file = ts.MkAbs(file)
	ts.Check(os.MkdirAll(filepath.Dir(file), 0o755))
	ts.Check(os.WriteFile(file, []byte(`apiVersion: apps/v1
kind: Deployment
metadata: {name: weather, namespace: team1}
spec:
  selector: {matchLabels: {app: weather}}
  template:
    metadata: {labels: {app: weather}}
    spec:
      containers:
      - {name: agent, image: "`+image+`"}
`), 0o644))
}

// printSummary prints what the bundles of an image state, without regard to who signed.
func printSummary(ts *testscript.TestScript, _ bool, args []string) {
	image := digestOf(ts, args[0])
	index, err := remote.Referrers(image)
	ts.Check(err)
	manifest, err := index.IndexManifest()
	ts.Check(err)
	shown := 0
	for _, d := range manifest.Manifests {
		attached, err := remote.Image(image.Context().Digest(d.Digest.String()))
		ts.Check(err)
		layers, err := attached.Layers()
		ts.Check(err)
		content, err := layers[0].Uncompressed()
		ts.Check(err)
		var bundle struct{ DSSEEnvelope struct{ Payload []byte } }
		ts.Check(json.NewDecoder(content).Decode(&bundle))
		if payload := string(bundle.DSSEEnvelope.Payload); strings.Contains(payload, sign.SummaryType) {
			_, err = fmt.Fprintf(ts.Stdout(), "%s\n", payload)
			ts.Check(err)
			shown++
		}
	}
	if shown > 1 {
		ts.Fatalf("%d summaries", shown)
	}
}
