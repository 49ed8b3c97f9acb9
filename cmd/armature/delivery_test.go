package main

import (
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
)

// TestDelivery runs testdata/delivery with the real programs and a registry,
// whose host is $REGISTRY. Beside testscript's own commands they have
//
//	keypair NAME      makes NAME.key and NAME.pub, as cosign generate-key-pair does
//	image NAME        stores an image, another one each time, in the registry
//	fill FILE         replaces REGISTRY in a file by the registry's host
//	cut               makes the registry refuse everything from now on, in words
//	                  that would steer a terminal
func TestDelivery(t *testing.T) {
	bin := filepath.Dir(buildArmature(t).file)
	testscript.Run(t, testscript.Params{
		Dir: "testdata/delivery",
		Setup: func(env *testscript.Env) error {
			handler := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if _, err := os.Stat(filepath.Join(env.WorkDir, "cut")); err == nil {
					w.WriteHeader(http.StatusForbidden)
					_, _ = io.WriteString(w, `{"errors": [{"code": "DENIED", "message": "\u001b[31mclosed\u009b0m"}]}`)
					return
				}
				handler.ServeHTTP(w, r)
			}))
			env.Defer(server.Close)
			env.Setenv("PATH", bin+string(filepath.ListSeparator)+env.Getenv("PATH"))
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
			"keypair": keypair,
			"image":   image,
			"fill":    fill,
			"cut": func(ts *testscript.TestScript, _ bool, _ []string) {
				ts.Check(os.WriteFile(ts.MkAbs("cut"), nil, 0o600))
			},
		},
	})
}

func keypair(ts *testscript.TestScript, _ bool, args []string) {
	pair, err := cosign.GenerateKeyPair(func(bool) ([]byte, error) { return []byte(ts.Getenv("COSIGN_PASSWORD")), nil })
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
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(strings.ReplaceAll(text, "REGISTRY", ts.Getenv("REGISTRY"))), 0o644))
}
