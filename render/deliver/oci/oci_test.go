package oci_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	fluxoci "github.com/fluxcd/pkg/oci"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/crane"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/deliver/oci"
)

// serve runs a registry, and returns its host. through may wrap its handler.
func serve(t *testing.T, through func(http.Handler) http.Handler,
	options ...registry.Option) string {
	t.Helper()
	handler := registry.New(append(options, registry.Logger(log.New(io.Discard, "", 0)))...)
	if through != nil {
		handler = through(handler)
	}
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

var files = []render.File{
	{Path: "web/deployment.yaml", Data: []byte("kind: Deployment\n")},
	{Path: "all.yaml", Data: []byte("kind: List\n")},
}

var meta = oci.Metadata{Source: "https://git.example/fleet", Revision: "main@sha1:0123",
	Created: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}

// tree returns the files below a folder.
func tree(t *testing.T, root string) map[string]string {
	t.Helper()
	all := make(map[string]string)
	err := filepath.WalkDir(root, func(file string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(file)
		relative, _ := filepath.Rel(root, file)
		all[filepath.ToSlash(relative)] = string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

var content = map[string]string{"web/deployment.yaml": "kind: Deployment\n", "all.yaml": "kind: List\n"}

// What is pushed comes back as it was, on a machine that knows only the reference.
func TestPushPull(t *testing.T) {
	ref := oci.Scheme + serve(t, nil) + "/fleet/agents:v1"
	pushed, err := oci.Push(t.Context(), ref, files, meta, oci.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := oci.Pull(t.Context(), ref, t.TempDir(), oci.Options{}); err != nil {
		t.Errorf("into an empty folder: %v", err)
	}
	to := filepath.Join(t.TempDir(), "new", "folder")
	pulled, err := oci.Pull(t.Context(), ref, to, oci.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(pushed, pulled); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(content, tree(t, to)); diff != "" {
		t.Error(diff)
	}
	if pulled.Created != "2026-01-02T03:04:05Z" || pulled.Source != meta.Source ||
		pulled.Revision != meta.Revision {
		t.Errorf("%+v", pulled)
	}
	if _, err := oci.Pull(t.Context(), ref, to, oci.Options{}); err == nil ||
		!strings.Contains(err.Error(), "not empty") {
		t.Errorf("a second pull into the folder: %v", err)
	}
}

// Flux's own client takes our artifacts, and we take those it makes.
func TestFlux(t *testing.T) {
	host := serve(t, nil)
	flux := fluxoci.NewClient([]crane.Option{crane.Insecure})
	pushed, err := oci.Push(t.Context(), oci.Scheme+host+"/ours:v1", files, meta, oci.Options{})
	if err != nil {
		t.Fatal(err)
	}
	to := t.TempDir()
	got, err := flux.Pull(t.Context(), host+"/ours:v1", to)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(content, tree(t, to)); diff != "" {
		t.Error(diff)
	}
	if got.Digest != pushed.Ref || got.Source != meta.Source || got.Revision != meta.Revision ||
		got.Created != "2026-01-02T03:04:05Z" {
		t.Errorf("%+v", got)
	}

	manifest := func(repository string) (m struct{ Config, Layer string }) {
		image, err := crane.Pull(host + repository)
		if err != nil {
			t.Fatal(err)
		}
		all, err := image.Manifest()
		if err != nil {
			t.Fatal(err)
		}
		m.Config, m.Layer = string(all.Config.MediaType), string(all.Layers[0].MediaType)
		return m
	}
	if _, err := flux.Push(t.Context(), host+"/theirs:v1", to,
		fluxoci.WithPushMetadata(fluxoci.Metadata{Source: "s", Revision: "r"})); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(manifest("/theirs:v1"), manifest("/ours:v1")); diff != "" {
		t.Errorf("media types differ from Flux's: %s", diff)
	}
	again := filepath.Join(t.TempDir(), "again")
	if _, err := oci.Pull(t.Context(), oci.Scheme+host+"/theirs:v1", again, oci.Options{}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(content, tree(t, again)); diff != "" {
		t.Error(diff)
	}
}

// The digest depends on content and metadata, and on nothing else.
func TestSameDigest(t *testing.T) {
	digest := func(files []render.File, meta oci.Metadata) string {
		_, result, err := oci.Artifact(files, meta)
		if err != nil {
			t.Fatal(err)
		}
		return result.Digest
	}
	first := digest(files, meta)
	if other := digest([]render.File{files[1], files[0]}, meta); other != first {
		t.Error("the order of the files shows")
	}
	if other := digest(files, oci.Metadata{}); other == first {
		t.Error("the metadata does not show")
	}
	if other := digest(files[:1], meta); other == first {
		t.Error("the content does not show")
	}
}

func TestTagAndList(t *testing.T) {
	host := serve(t, nil)
	pushed, err := oci.Push(t.Context(), oci.Scheme+host+"/fleet:v1", files, meta, oci.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := oci.Tag(t.Context(), oci.Scheme+host+"/fleet:v1", "production",
		oci.Options{}); err != nil {
		t.Fatal(err)
	}
	image, err := random.Image(10, 1)
	if err != nil {
		t.Fatal(err)
	}
	other, _ := name.ParseReference(host + "/fleet:an-image")
	if err := remote.Write(other, image); err != nil {
		t.Fatal(err)
	}
	list, err := oci.List(t.Context(), oci.Scheme+host+"/fleet", oci.Options{})
	if err != nil {
		t.Fatal(err)
	}
	want := []oci.Tagged{}
	for _, tag := range []string{"production", "v1"} {
		want = append(want, oci.Tagged{Tag: tag, Digest: pushed.Digest,
			Origin: oci.Origin{Source: meta.Source, Revision: meta.Revision,
				Created: "2026-01-02T03:04:05Z"}})
	}
	if diff := cmp.Diff(want, list); diff != "" {
		t.Error(diff)
	}
	if _, err := oci.Tag(t.Context(), oci.Scheme+host+"/fleet:v1", "no tag", oci.Options{}); err == nil {
		t.Error("a tag with a space")
	}
}

// Each registry gets the login that the docker configuration has for it.
func TestCredentials(t *testing.T) {
	demand := func(user string) func(http.Handler) http.Handler {
		return func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if name, password, ok := r.BasicAuth(); !ok || name != user ||
					password != "secret of "+user {
					w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
					w.WriteHeader(http.StatusUnauthorized)
					return
				}
				next.ServeHTTP(w, r)
			})
		}
	}
	hosts := map[string]string{"one": serve(t, demand("one")), "two": serve(t, demand("two"))}
	var logins []string
	for user, host := range hosts {
		logins = append(logins, fmt.Sprintf(`%q: {"auth": %q}`, host,
			base64.StdEncoding.EncodeToString([]byte(user+":secret of "+user))))
	}
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	push := func(host string) error {
		_, err := oci.Push(t.Context(), oci.Scheme+host+"/fleet:v1", files, meta, oci.Options{})
		return err
	}
	if err := push(hosts["one"]); err == nil ||
		!strings.Contains(err.Error(), "docker login "+hosts["one"]) {
		t.Errorf("without a login: %v", err)
	}
	config := `{"auths": {` + strings.Join(logins, ", ") + `}}`
	if err := os.WriteFile(filepath.Join(os.Getenv("DOCKER_CONFIG"), "config.json"), []byte(config),
		0o600); err != nil {
		t.Fatal(err)
	}
	for _, host := range hosts {
		if err := push(host); err != nil {
			t.Error(err)
		}
	}
}

// A registry that is busy is asked again.
func TestRetry(t *testing.T) {
	var refused atomic.Int32
	host := serve(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.Contains(r.URL.Path, "/manifests/") && refused.Add(1) <= 1 {
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			next.ServeHTTP(w, r)
		})
	})
	if _, err := oci.Push(t.Context(), oci.Scheme+host+"/fleet:v1", files, meta,
		oci.Options{}); err != nil || refused.Load() < 2 {
		t.Errorf("after %d requests: %v", refused.Load(), err)
	}
}

// A signature that cannot be attached leaves the tag as it was.
func TestAttach(t *testing.T) {
	ref := oci.Scheme + serve(t, nil) + "/fleet:v1"
	before, err := oci.Push(t.Context(), ref, files, meta, oci.Options{})
	if err != nil {
		t.Fatal(err)
	}
	no := errors.New("no")
	var attached string
	attach := func(_ context.Context, artifact name.Digest) error {
		attached = artifact.String()
		return no
	}
	if _, err := oci.Push(t.Context(), ref, files[:1], meta,
		oci.Options{Attach: attach}); !errors.Is(err, no) {
		t.Errorf("%v", err)
	}
	after, err := oci.Pull(t.Context(), ref, filepath.Join(t.TempDir(), "to"), oci.Options{})
	if err != nil || after.Digest != before.Digest || strings.HasSuffix(attached, before.Digest) {
		t.Errorf("%+v %v, attached to %s", after, err, attached)
	}
}

// Verify judges the digest that is then pulled, before the content is asked for.
func TestVerifyFirst(t *testing.T) {
	var blobs atomic.Int32
	host := serve(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") {
				blobs.Add(1)
			}
			next.ServeHTTP(w, r)
		})
	})
	ref := oci.Scheme + host + "/fleet:v1"
	if _, err := oci.Push(t.Context(), ref, files, meta, oci.Options{}); err != nil {
		t.Fatal(err)
	}
	no := errors.New("not trusted")
	parent := t.TempDir()
	_, err := oci.Pull(t.Context(), ref, filepath.Join(parent, "to"),
		oci.Options{Verify: func(context.Context, name.Digest) error { return no }})
	if !errors.Is(err, no) || blobs.Load() > 0 || len(tree(t, parent)) > 0 {
		t.Errorf("%v after %d blobs", err, blobs.Load())
	}
}

// Ctrl-C leaves nothing behind.
func TestInterrupted(t *testing.T) {
	ref := oci.Scheme + serve(t, nil) + "/fleet:v1"
	if _, err := oci.Push(t.Context(), ref, files, meta, oci.Options{}); err != nil {
		t.Fatal(err)
	}
	parent := t.TempDir()
	for _, interrupt := range []func(*oci.Options, func()){
		func(o *oci.Options, cancel func()) {
			o.Verify = func(context.Context, name.Digest) error { cancel(); return nil }
		},
		func(o *oci.Options, cancel func()) { o.Progress = func(_, _ int64) { cancel() } },
	} {
		ctx, cancel := context.WithCancel(t.Context())
		var opt oci.Options
		interrupt(&opt, cancel)
		if _, err := oci.Pull(ctx, ref, filepath.Join(parent, "to"), opt); !errors.Is(err,
			context.Canceled) {
			t.Errorf("%v", err)
		}
		if left, err := os.ReadDir(parent); err != nil || len(left) > 0 {
			t.Errorf("%v %v", left, err)
		}
	}
}

func TestWrongReferences(t *testing.T) {
	for _, ref := range []string{"registry/agents:v1", "oci://", "oci://registry/UPPER:v1",
		"oci://registry.example/agents@sha256:" + strings.Repeat("0", 64)} {
		if _, err := oci.Push(t.Context(), ref, files, meta, oci.Options{}); err == nil {
			t.Errorf("pushed to %s", ref)
		}
	}
	for _, file := range []string{"../up", "/abs", "a/../../b", "", "a\\b"} {
		if _, _, err := oci.Artifact([]render.File{{Path: file, Data: []byte("x")}}, meta); err == nil {
			t.Errorf("packed %q", file)
		}
	}
	if _, _, err := oci.Artifact(nil, meta); err == nil {
		t.Error("packed nothing")
	}
}

func TestResolve(t *testing.T) {
	host := serve(t, nil)
	index, err := random.Index(10, 1, 2)
	if err != nil {
		t.Fatal(err)
	}
	ref, _ := name.ParseReference(host + "/app:v1")
	if err := remote.WriteIndex(ref, index); err != nil {
		t.Fatal(err)
	}
	want, _ := index.Digest()
	if got, err := oci.Resolve(t.Context(), host+"/app:v1", "", oci.Options{}); err != nil ||
		got != want.String() {
		t.Errorf("%s %v, want %s", got, err, want)
	}
	var verified string
	opt := oci.Options{Verify: func(_ context.Context, d name.Digest) error {
		verified = d.DigestStr()
		return nil
	}}
	arm, err := random.Image(10, 1)
	if err != nil {
		t.Fatal(err)
	}
	config, _ := arm.ConfigFile()
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", "arm64"
	if arm, err = mutate.ConfigFile(arm, config); err != nil {
		t.Fatal(err)
	}
	both := mutate.AppendManifests(empty.Index,
		mutate.IndexAddendum{Add: arm, Descriptor: v1.Descriptor{Platform: config.Platform()}})
	many, _ := name.ParseReference(host + "/app:many")
	if err := remote.WriteIndex(many, both); err != nil {
		t.Fatal(err)
	}
	wantIndex, _ := both.Digest()
	wantArm, _ := arm.Digest()
	if got, err := oci.Resolve(t.Context(), host+"/app:many", "linux/arm64", opt); err != nil ||
		got != wantArm.String() || verified != wantIndex.String() {
		t.Errorf("%s %v, want %s; verified %s", got, err, wantArm, verified)
	}
	if got, err := oci.Resolve(t.Context(), host+"/app:v1", "linux/s390x", oci.Options{}); err == nil {
		t.Errorf("%s for a platform that the image is not for", got)
	}
	if _, err := oci.Resolve(t.Context(), host+"/app:v2", "", oci.Options{}); err == nil ||
		!strings.Contains(err.Error(), host+"/app:v2") {
		t.Errorf("a tag that is not there: %v", err)
	}
}
