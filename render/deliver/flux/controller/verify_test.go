package controller_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/sigstore/cosign/v2/pkg/cosign"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/archive"
	"github.com/armature-dev/armature/render/deliver/flux/api"
	"github.com/armature-dev/armature/render/deliver/oci"
	"github.com/armature-dev/armature/render/deliver/sign"
)

// signed is a registry, and a key that signs what is in it.
type signed struct {
	*world
	host   string
	public []byte
	signer sign.Signer
}

// registry starts one. While held is not nil, it answers when held is closed.
func (w *world) registry(held <-chan struct{}, options ...registry.Option) *signed {
	w.Helper()
	handler := registry.New(append(options, registry.Logger(log.New(io.Discard, "", 0)))...)
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if held != nil {
			select {
			case <-held:
			case <-r.Context().Done():
				return
			}
		}
		handler.ServeHTTP(rw, r)
	}))
	w.Cleanup(server.Close)
	pair, err := cosign.GenerateKeyPair(func(bool) ([]byte, error) {
		return []byte("a password"), nil
	})
	w.must(err)
	return &signed{w, strings.TrimPrefix(server.URL, "http://"), pair.PublicBytes,
		sign.Signer{PrivateKey: pair.PrivateBytes,
			Password: func() ([]byte, error) { return []byte("a password"), nil }}}
}

// push something that has a digest, which is all that a signature is about.
func (s *signed) push(repository, content string) name.Digest {
	s.Helper()
	result, err := oci.Push(s.Context(), oci.Scheme+s.host+"/"+repository+":v1",
		[]render.File{{Path: "a.yaml", Data: []byte(content)}}, oci.Metadata{}, oci.Options{})
	s.must(err)
	digest, err := name.NewDigest(result.Ref)
	s.must(err)
	return digest
}

func (s *signed) sign(artifact name.Digest) {
	s.Helper()
	session, err := s.signer.Open(s.Context())
	s.must(err)
	_, err = session.Sign(s.Context(), artifact)
	s.must(err)
}

// policy makes a ConfigMap with a policy for the key.
func (s *signed) policy(name string) { s.configMap(name, s.policyFiles()) }

func (s *signed) policyFiles() map[string]string {
	return map[string]string{"cosign.pub": string(s.public),
		"policy.yaml": verifyPolicy("keys: [cosign.pub], insecureIgnoreTlog: true")}
}

func verifyPolicy(spec string) string {
	return "apiVersion: armature.dev/v1alpha1\nkind: VerifyPolicy\nmetadata: {name: team}\nspec: {" + spec + "}\n"
}

// configMap makes one, or replaces what it has.
func (w *world) configMap(name string, data map[string]string) {
	w.Helper()
	c := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}, Data: data}
	if err := w.Create(w.Context(), c); err != nil {
		w.must(w.Update(w.Context(), c))
	}
}

// images demands the policy of a ConfigMap of all images.
func images(policy string) func(*api.RenderedSource) {
	return func(s *api.RenderedSource) {
		s.Spec.Verify = &api.Verification{Images: &api.PolicyReference{Name: policy}}
	}
}

// deployment runs one image.
func deployment(image string) map[string]string {
	return map[string]string{
		"apps/web.yaml": "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: web\nspec:\n" +
			"  selector:\n    matchLabels: {app: web}\n" +
			"  template:\n    metadata:\n      labels: {app: web}\n    spec:\n      containers:\n" +
			"      - name: web\n        image: " + image + "\n"}
}

// request asks for a reconciliation.
func (w *world) request(name, value string) {
	w.Helper()
	w.eventually("requesting "+name, func() string {
		s := w.get(name)
		s.Annotations = map[string]string{"reconcile.fluxcd.io/requestedAt": value}
		if err := w.Update(w.Context(), s); err != nil {
			return err.Error()
		}
		return ""
	})
}

// says waits until a RenderedSource fails for a reason with all texts in its message.
func (w *world) says(name, reason string, texts ...string) {
	w.Helper()
	w.eventually(name+" says why", func() string {
		status, have, message := w.condition(name, "Ready")
		if status != "False" || have != reason {
			return fmt.Sprintf("Ready is %q %s: %s", status, have, message)
		}
		for _, text := range texts {
			if !strings.Contains(message, text) {
				return fmt.Sprintf("%q is missing in %s", text, message)
			}
		}
		return ""
	})
}

// Only what runs signed images is published. What is not keeps the last good artifact,
// names the image and the place, and is published as soon as it is signed.
func TestVerifyImages(t *testing.T) {
	w := newWorld(t, shared.Get(t))
	w.start()
	r := w.registry(nil)
	r.policy("policy")
	first, second := r.push("web", "first"), r.push("web", "second")
	r.sign(first)
	w.repository("fleet", "c1", deployment(first.String()))
	w.rendered("web", "fleet", at("apps"), images("policy"))
	w.ready("web", "c1")
	published := w.published("web")

	w.repository("fleet", "c2", deployment(second.String()))
	w.says("web", "VerificationFailed", "main@sha1:c2 is not verified",
		"apps/web.yaml:14: Deployment web: image \""+second.String()+"\"", "no signatures found",
		"main@sha1:c1 stays published")
	if diff := cmp.Diff(published, w.published("web")); diff != "" {
		t.Errorf("the last good artifact is gone: %s", diff)
	}
	w.fetch(published)
	r.sign(second)
	w.ready("web", "c2")
	published = w.published("web")

	// A tag can change: neither time nor a signature helps.
	w.repository("fleet", "c3", deployment(r.host+"/web:v1"))
	w.says("web", "VerificationFailed", "image \""+r.host+"/web:v1\": it has no digest")
	if status, _, _ := w.condition("web", "Stalled"); status != "True" {
		t.Errorf("Stalled is %q", status)
	}

	// So are those of other kinds, and what nobody can judge.
	w.repository("fleet", "c4",
		map[string]string{
			"apps/task.yaml": "apiVersion: tekton.dev/v1\nkind: Task\nmetadata: {name: t}\n" +
				"spec: {steps: [{name: a, image: evil:1}, {name: b, image: $(params.image)}]}\n"})
	w.says("web", "VerificationFailed", "image \"evil:1\": it has no digest",
		"image \"$(params.image)\": what it runs cannot be judged: it has a variable")

	// Another key counts at the next request, for what is published as well.
	w.repository("fleet", "c2", deployment(second.String()))
	w.ready("web", "c2")
	w.registry(nil).policy("policy")
	w.request("web", "now")
	w.says("web", "VerificationFailed", second.String())
	if diff := cmp.Diff(published, w.published("web")); diff != "" {
		t.Errorf("the last good artifact is gone: %s", diff)
	}
	r.policy("policy")
	w.request("web", "later")
	w.ready("web", "c2")
}

// An OCIRepository's artifact is published when it is signed in its registry.
func TestVerifyOrigin(t *testing.T) {
	w := newWorld(t, shared.Get(t))
	w.start()
	r := w.registry(nil)
	r.policy("policy")
	origin := r.push("fleet", "a package")
	data := pack(t, map[string]string{"settings.yaml": settings})
	path := w.path("OCIRepository", "fleet", "oci.tar.gz")
	w.serve(path, data)
	o := w.object("OCIRepository", "fleet")
	o.Object["spec"] = map[string]any{"url": "oci://" + r.host + "/fleet", "interval": "1m"}
	w.must(w.Create(t.Context(), o))
	o.Object["status"] = map[string]any{"artifact": map[string]any{
		"digest": archive.Digest(data), "path": path, "url": w.host.URL + path,
		"revision": "v1@" + origin.DigestStr(), "lastUpdateTime": "2026-11-22T20:00:00Z",
	}}
	w.must(w.Status().Update(t.Context(), o))
	w.rendered("app", "fleet", func(s *api.RenderedSource) {
		s.Spec.SourceRef.Kind = "OCIRepository"
		s.Spec.Verify = &api.Verification{Origin: &api.PolicyReference{Name: "policy"}}
	})
	w.says("app", "VerificationFailed", "v1@"+origin.DigestStr()+" is not verified",
		r.host+"/fleet@", "no signatures found")
	if got := w.published("app"); got != nil {
		t.Errorf("published %v", got)
	}
	r.sign(origin)
	w.eventually("the signed origin is published", func() string {
		if w.published("app") == nil {
			_, reason, message := w.condition("app", "Ready")
			return reason + ": " + message
		}
		return ""
	})
}

// A policy is its namespace's own, whole, and needs nobody but the registry. Whatever is
// wrong with it publishes nothing.
func TestVerifyPolicies(t *testing.T) {
	w := newWorld(t, shared.Get(t))
	w.start()
	r := w.registry(nil)
	image := r.push("web", "an image")
	r.sign(image)
	w.repository("fleet", "c1", deployment(image.String()))
	elsewhere := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.namespace + "-other"}}
	w.must(w.Create(t.Context(), elsewhere))
	w.must(w.Create(t.Context(),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: elsewhere.Name, Name: "policy"},
			Data: r.policyFiles()}))
	w.must(w.Create(t.Context(),
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: elsewhere.Name, Name: "cosign"},
			Data: map[string][]byte{"cosign.pub": r.public}}))
	with := func(spec string) map[string]string {
		files := r.policyFiles()
		files["policy.yaml"] = verifyPolicy(spec)
		return files
	}
	for name, c := range map[string]struct {
		files     map[string]string
		namespace string
		reason    string
		text      string
	}{
		"foreign": {nil, elsewhere.Name, "AccessDenied", "in another namespace"},
		"missing": {nil, "", "InvalidPolicy", "ConfigMap missing: it does not exist"},
		"empty":   {map[string]string{}, "", "InvalidPolicy", "no key policy.yaml"},
		"anybody": {with(""), "", "InvalidPolicy", "neither a key nor an identity"},
		"misspelt": {with("keys: [cosign.pub], insecureIgnoreTlogs: true"), "", "InvalidPolicy",
			"did you mean insecureIgnoreTlog?"},
		"secret": {
			with("keys: ['k8s://" + elsewhere.Name + "/cosign'], insecureIgnoreTlog: true"), "",
			"InvalidPolicy", "is not beside the policy"},
		"file": {with("keys: [/etc/passwd], insecureIgnoreTlog: true"), "", "InvalidPolicy",
			"is not beside the policy"},
		"variable": {with("keys: ['env://HOME'], insecureIgnoreTlog: true"), "", "InvalidPolicy",
			"is not beside the policy"},
		"address": {with("keys: ['" + w.host.URL + "'], insecureIgnoreTlog: true"), "",
			"InvalidPolicy", "is not beside the policy"},
		"public-good": {with("keys: [cosign.pub]"), "", "InvalidPolicy", "set trustedRoot"},
		"no-key": {with("keys: [policy.yaml], insecureIgnoreTlog: true"), "",
			"VerificationFailed", "not a public key in PEM"},
		"no-root": {with("keys: [cosign.pub], trustedRoot: policy.yaml"), "",
			"VerificationFailed", "reading the trusted root policy.yaml"},
	} {
		if c.files != nil {
			w.configMap(name, c.files)
		}
		w.rendered(name, "fleet", at("apps"), images(name), func(s *api.RenderedSource) {
			if s.Spec.Verify.Images.Namespace = c.namespace; c.namespace != "" {
				s.Spec.Verify.Images.Name = "policy"
			}
		})
		defer func() {
			w.says(name, c.reason, c.text)
			if got := w.published(name); got != nil {
				t.Errorf("%s published %v", name, got)
			}
		}()
	}
	r.policy("good")
	w.rendered("good", "fleet", at("apps"), images("good"))
	w.ready("good", "c1")
}

// A registry that does not answer keeps nobody else from publishing, and is named when
// the time is over. An address that is forbidden is not asked.
func TestRegistryHangs(t *testing.T) {
	w := newWorld(t, shared.Get(t))
	held := make(chan struct{})
	release := sync.OnceFunc(func() { close(held) })
	r := w.registry(held)
	t.Cleanup(release) // before the registry is closed
	r.policy("policy")
	image := r.host + "/web@sha256:" + strings.Repeat("0", 64)
	w.repository("fleet", "c1", deployment(image))
	o := w.options()
	o.VerifyTimeout = 10 * time.Minute
	stop := w.startWith(o)
	for i := range 4 {
		w.rendered(fmt.Sprint("hangs", i), "fleet", at("apps"), images("policy"))
	}
	w.rendered("beside", "fleet", at("apps"))
	w.ready("beside", "c1")
	w.repository("fleet", "c2", deployment(image))
	w.ready("beside", "c2")
	stop()

	o.VerifyTimeout = time.Second
	stop = w.startWith(o)
	w.says("hangs0", "VerificationFailed", "apps/web.yaml:14: Deployment web: image \""+image+"\"",
		"deadline exceeded")
	stop()
	release()

	o.Dial = func(context.Context, string, string) (net.Conn, error) {
		return nil, errors.New("this address is forbidden")
	}
	w.startWith(o)
	w.says("hangs0", "VerificationFailed", image, "this address is forbidden")
	if got := w.published("hangs0"); got != nil {
		t.Errorf("published %v", got)
	}
}

// The API server refuses what demands nothing, or what nobody can judge.
func TestVerifyValidation(t *testing.T) {
	w := newWorld(t, shared.Get(t))
	for text, v := range map[string]*api.Verification{
		"should have at least 1 properties":     {},
		"verify.origin is for an OCIRepository": {Origin: &api.PolicyReference{Name: "policy"}},
		"should be at least 1 chars long":       {Images: &api.PolicyReference{}},
	} {
		s := &api.RenderedSource{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "app"}}
		s.Spec.SourceRef, s.Spec.Verify = api.SourceReference{Kind: "GitRepository", Name: "fleet"}, v
		if err := w.Create(t.Context(), s); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%+v: %v, want %q", v, err, text)
		}
	}
}
