package controller_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/sigstore/cosign/v2/pkg/cosign"
	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/attest/attesttest"
	"github.com/armature-dev/armature/builds/source/gitremote"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/render/deliver/sign"
)

// platformKey is the key that the controllers of all tests attest with.
type platformKey struct {
	once  sync.Once
	keys  *cosign.KeysBytes
	fault error
}

var attestKey platformKey

func (k *platformKey) pair() *cosign.KeysBytes {
	k.once.Do(func() {
		k.keys, k.fault = cosign.GenerateKeyPair(func(bool) ([]byte, error) {
			return []byte("open sesame"), nil
		})
	})
	if k.fault != nil {
		panic(k.fault)
	}
	return k.keys
}

func (k *platformKey) secret() *corev1.Secret {
	pair := k.pair()
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: systemNamespace,
		Name: "armature-attest-key"},
		Data: map[string][]byte{"cosign.key": pair.PrivateBytes, "cosign.pub": pair.PublicBytes,
			"cosign.password": []byte("open sesame")}}
}

// shop is a registry, with a delay before each answer, and answers of 503.
type shop struct {
	host string
	// fails is how many requests are still answered with 503.
	fails atomic.Int64
	// served counts the controllers' requests.
	served atomic.Int64
	// busy is how many of a hundred requests are answered with 503.
	busy int
	slow time.Duration
	// instead answers a request of the controller's; false leaves it to the registry.
	instead func(http.ResponseWriter, *http.Request) bool
}

func newShop(t testing.TB, referrers bool) *shop {
	t.Helper()
	s := &shop{}
	next := registry.New(registry.Logger(log.New(io.Discard, "", 0)),
		registry.WithReferrersSupport(referrers))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// not the test itself, and not the first ping
		if strings.Contains(r.UserAgent(), "armature") {
			s.served.Add(1)
			time.Sleep(time.Duration(rand.Int64N(int64(s.slow) + 1)))
			if s.fails.Add(-1) >= 0 || rand.IntN(100) < s.busy {
				http.Error(w, "busy: secret-of-another-service", http.StatusServiceUnavailable)
				return
			}
			if s.instead != nil && s.instead(w, r) {
				return
			}
		}
		next.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	s.host = strings.TrimPrefix(server.URL, "http://")
	return s
}

func (s *shop) options() []remote.Option { return []remote.Option{remote.WithUserAgent("test")} }

func (s *shop) ref(t testing.TB, text string) name.Reference {
	t.Helper()
	ref, err := name.ParseReference(s.host + "/" + text)
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

// push an image of its own with its bill of materials, and give its digest.
func (s *shop) push(t testing.TB, tag string) string {
	t.Helper()
	img, err := random.Image(64, 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(s.ref(t, tag), img, s.options()...); err != nil {
		t.Fatal(err)
	}
	digest, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	s.keep(t, tag, attesttest.SBOM(digest.String()))
	return digest.String()
}

// keep a bill of materials as the step sbom-attach does, beside its image.
func (s *shop) keep(t testing.TB, tag string, document []byte) {
	t.Helper()
	layer := static.NewLayer(document, "application/spdx+json")
	if err := remote.WriteLayer(s.ref(t, tag).Context(), layer, s.options()...); err != nil {
		t.Fatal(err)
	}
}

// attachments are the bundles of an image: the type and the predicate of each statement.
func (s *shop) attachments(t testing.TB, repository, digest string) (all []attached) {
	t.Helper()
	index, err := remote.Referrers(s.ref(t, repository+"@"+digest).(name.Digest), s.options()...)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range manifest.Manifests {
		if a := s.attachment(t, repository+"@"+d.Digest.String()); a.kind != "" {
			all = append(all, a)
		}
	}
	return all
}

type attached struct{ kind, predicate string }

// attachment reads a bundle. It returns the zero value for anything else.
func (s *shop) attachment(t testing.TB, bundle string) attached {
	t.Helper()
	image, err := remote.Image(s.ref(t, bundle), s.options()...)
	if err != nil {
		t.Fatal(err)
	}
	layers, err := image.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatal(len(layers), err)
	}
	content, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	var read struct{ DSSEEnvelope struct{ Payload []byte } }
	var statement struct {
		PredicateType string
		Predicate     json.RawMessage
	}
	if err := json.NewDecoder(content).Decode(&read); err != nil {
		t.Fatal(err)
	}
	if len(read.DSSEEnvelope.Payload) == 0 {
		return attached{}
	}
	if err := json.Unmarshal(read.DSSEEnvelope.Payload, &statement); err != nil {
		t.Fatal(err)
	}
	return attached{statement.PredicateType, string(statement.Predicate)}
}

// statements counts the bundles of an image by the type of their statement.
func (s *shop) statements(t testing.TB, repository, digest string) map[string]int {
	t.Helper()
	bundles := map[string]int{}
	for _, a := range s.attachments(t, repository, digest) {
		bundles[a.kind]++
	}
	return bundles
}

// attested returns the predicates of a type that are attested of an image.
func (s *shop) attested(t testing.TB, repository, digest, kind string) (predicates []string) {
	t.Helper()
	for _, a := range s.attachments(t, repository, digest) {
		if a.kind == kind {
			predicates = append(predicates, a.predicate)
		}
	}
	return predicates
}

// once fails unless an image has exactly one signature, one bill of materials, one test
// result and one provenance, all as bundles.
func (s *shop) once(t testing.TB, repository, digest string) {
	t.Helper()
	want := map[string]int{"https://sigstore.dev/cosign/sign/v1": 1, sign.TestResultType: 1,
		sign.PredicateType: 1, sign.SPDXType: 1}
	if diff := cmp.Diff(want, s.statements(t, repository, digest)); diff != "" {
		t.Errorf("bundles of %s (-want +got):\n%s", repository, diff)
	}
}

// nothing fails if anything is attached to an image.
func (s *shop) nothing(t testing.TB, repository, digest string) {
	t.Helper()
	if bundles := s.statements(t, repository, digest); len(bundles) != 0 {
		t.Errorf("%s has bundles %v, want nothing", repository, bundles)
	}
}

// policy demands what the controller attests of builds of https://github.com/org/weather by
// a builder.
func (s *shop) policy(t testing.TB, builder string) sign.Policy {
	t.Helper()
	public := filepath.Join(t.TempDir(), "cosign.pub")
	if err := os.WriteFile(public, attestKey.pair().PublicBytes, 0o600); err != nil {
		t.Fatal(err)
	}
	return sign.Policy{Keys: []string{public}, IgnoreTlog: true,
		Builds: &sign.Builds{MinimumLevel: 3, SBOM: true,
			Builders: []sign.TrustedBuilder{{ID: builder, Level: 3}},
			Sources:  []sign.Source{{Repository: "https://github.com/org/weather"}}}}
}

// sold makes a build of mode prod whose image goes to a registry.
func (s *shop) sold(b *api.AgentBuild) {
	attestedMode(b)
	b.Spec.BuildOutput.ImageRegistry = s.host
}

// ended is what a run left on the API server.
type ended struct {
	run      *tektonv1.PipelineRun
	taskRuns map[string]*tektonv1.TaskRun // by task
}

// play a run to its end as Tekton does; edit changes what is left of it,
// before the run says that it succeeded.
func (w *world) play(run *tektonv1.PipelineRun, digest string, edit ...func(*ended)) {
	w.Helper()
	w.playParts(run, digest, nil, edit...)
}

// playParts plays a run for several platforms, whose images have those digests.
func (w *world) playParts(run *tektonv1.PipelineRun, digest string, parts []string,
	edit ...func(*ended)) {
	w.Helper()
	fresh := &tektonv1.PipelineRun{}
	w.must(w.Get(w.Context(), client.ObjectKeyFromObject(run), fresh))
	pipeline := fresh.Spec.PipelineSpec
	if ref := fresh.Spec.PipelineRef; pipeline == nil && ref != nil {
		var object tektonv1.Pipeline
		w.must(w.Get(w.Context(), client.ObjectKey{Namespace: run.Namespace, Name: ref.Name}, &object))
		pipeline = &object.Spec
	}
	left := &ended{fresh, attesttest.Succeed(fresh, pipeline, digest, parts...)}
	for _, tr := range left.taskRuns {
		status := tr.Status
		tr.UID, tr.CreationTimestamp = "", metav1.Time{}
		w.must(w.Client.Create(w.Context(), tr))
		tr.Status = status
	}
	for _, e := range edit {
		e(left)
	}
	for _, tr := range left.taskRuns {
		w.must(w.Status().Update(w.Context(), tr))
	}
	w.must(w.Status().Update(w.Context(), left.run))
}

// runOf a build.
func (w *world) runOf(build string) *tektonv1.PipelineRun {
	w.Helper()
	var out *tektonv1.PipelineRun
	w.eventually("build "+build+" has a run", func() string {
		for _, run := range w.runs() {
			if run.Annotations[keys.AnnotationBuild] == build {
				out = &run
				return ""
			}
		}
		return "none"
	})
	return out
}

// A run of prod is attested before the build is Ready: signature, bill of materials and
// provenance, which a policy that demands an SBOM and names builder, source
// and level accepts, and each single change of it refuses.
func TestAttested(t *testing.T) {
	for what, referrers := range map[string]bool{"referrers": true, "no referrers": false} {
		t.Run(what, func(t *testing.T) {
			w, s := newWorld(t), newShop(t, referrers)
			w.start()
			w.create("weather", s.sold)
			run := w.run(1)
			b := w.phase("weather", api.PhaseBuilding)
			if c := condition(b, api.ConditionAttested); c.Status != metav1.ConditionUnknown {
				t.Errorf("condition %+v", c)
			}
			digest := s.push(t, "weather:v1")
			w.play(run, digest)
			b = w.phase("weather", api.PhaseSucceeded)
			image := s.host + "/weather:v1@" + digest
			a := b.Status.Attestation
			if b.Status.BuiltImage != image || a == nil || a.Image != image ||
				a.RunUID != run.UID ||
				a.SBOMDigest != attesttest.DigestOf(attesttest.SBOM(digest)) || a.Level != 3 ||
				a.BuilderID != "https://armature.dev/builders/prod" {
				t.Fatalf("builtImage %s, attestation %+v", b.Status.BuiltImage, a)
			}
			for ref, kind := range map[string]string{
				a.Signature:  "https://sigstore.dev/cosign/sign/v1",
				a.Provenance: sign.PredicateType, a.SBOM: sign.SPDXType} {
				if at := s.attachment(t, strings.TrimPrefix(ref, s.host+"/")); at.kind != kind {
					t.Errorf("%s is of type %q, want %s", ref, at.kind, kind)
				}
			}
			if c := condition(b, api.ConditionAttested); c.Status != metav1.ConditionTrue ||
				condition(b, api.ConditionReady).Status != metav1.ConditionTrue {
				t.Errorf("conditions %+v", b.Status.Conditions)
			}
			s.once(t, "weather", digest)

			artifact := s.ref(t, "weather@"+digest).(name.Digest)
			// A platform finds the template's digest so.
			var template corev1.ConfigMap
			w.must(w.Get(t.Context(), client.ObjectKey{Namespace: systemNamespace,
				Name: "pipeline-template-prod"}, &template))
			var step corev1.ConfigMap
			w.must(w.Get(t.Context(),
				client.ObjectKey{Namespace: systemNamespace, Name: "run-tests-step"}, &step))
			if len(a.Tests) != 1 ||
				a.Tests[0] != (api.TestVerdict{Step: "tests", Result: sign.Passed}) {
				t.Errorf("tests %+v", a.Tests)
			}
			policy := func() sign.Policy {
				p := s.policy(t, a.BuilderID)
				p.Builds.Tests = []sign.RequiredTest{{Step: "tests",
					Digests:    []string{"sha256:" + sum(step.Data["task-spec.yaml"])},
					Parameters: map[string]string{"TEST_COMMAND": ""}}}
				p.Builds.Templates = []string{"sha256:" + sum(template.Data["template.yaml"])}
				p.Builds.MaxAge = &metav1.Duration{Duration: 24 * time.Hour}
				return p
			}
			if _, err := sign.Verify(t.Context(), artifact, policy()); err != nil {
				t.Error(err)
			}
			for change, edit := range map[string]func(*sign.Builds){
				"builder": func(b *sign.Builds) { b.Builders[0].ID += "2" },
				"level": func(b *sign.Builds) {
					b.Builders[0].Level = 2
					b.Builders = append(b.Builders, sign.TrustedBuilder{ID: "x", Level: 3})
				},
				"source": func(b *sign.Builds) { b.Sources[0].Repository += "2" },
				// a commit was ordered
				"branch": func(b *sign.Builds) { b.Sources[0].Branches = []string{"main"} },
				"template": func(b *sign.Builds) {
					b.Templates = []string{"sha256:" + sum("another")}
				},
				"test": func(b *sign.Builds) { b.Tests[0].Step = "evaluate" },
				"test definition": func(b *sign.Builds) {
					b.Tests[0].Digests = []string{"sha256:" + sum("another")}
				},
				"test command": func(b *sign.Builds) {
					b.Tests[0].Parameters = map[string]string{"TEST_COMMAND": "make evaluate"}
				},
				// no scan is attested
				"scan": func(b *sign.Builds) { b.MaxSeverity = "high" },
			} {
				p := policy()
				edit(p.Builds)
				if _, err := sign.Verify(t.Context(), artifact, p); err == nil {
					t.Errorf("with another %s it passes", change)
				}
			}
		})
	}
}

// What a step reports wrongly, or a tenant forges in the registry, is refused for good, with
// a condition that says what, and nothing is signed.
func TestForgedIsNotAttested(t *testing.T) {
	const other = "sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
	report := func(name, value string) func(*world, *shop, *ended) {
		return func(_ *world, _ *shop, e *ended) {
			for i := range e.run.Status.Results {
				if r := &e.run.Status.Results[i]; strings.HasSuffix(r.Name, name) {
					r.Value = *tektonv1.NewStructuredValues(value)
				}
			}
		}
	}
	for what, attack := range map[string]struct {
		edit   func(*world, *shop, *ended)
		reason string
	}{
		"another digest than was pushed": {report("IMAGE_DIGEST", other), api.ReasonImageMismatch},
		"no digest": {report("IMAGE_DIGEST", "latest"),
			api.ReasonResultInvalid},
		"another commit": {report("CHAINS-GIT_COMMIT", strings.Repeat("b", 40)),
			api.ReasonResultInvalid},
		"a verdict that an earlier container left": {func(_ *world, _ *shop, e *ended) {
			e.verdict(sign.Failed)
			e.taskRuns["tests"].Status.Steps[0].Terminated.Message = `[{"key":"TEST_RESULT","value":"PASSED","type":1}]`
		}, api.ReasonResultsForged},
		"no verdict": {func(_ *world, _ *shop, e *ended) { e.verdict("SUCCESS") },
			api.ReasonResultInvalid},
		"a TaskRun that is gone": {func(w *world, _ *shop, e *ended) {
			w.must(w.Client.Delete(w.Context(), e.taskRuns["tests"]))
			delete(e.taskRuns, "tests")
		}, api.ReasonRunForeign},
		"a run that was changed": {func(w *world, _ *shop, e *ended) {
			status := e.run.Status
			e.run.Spec.Params[0].Value = *tektonv1.NewStructuredValues("evil")
			w.must(w.Update(w.Context(), e.run))
			e.run.Status = status
		}, api.ReasonNotAsOrdered},
		"another image at the tag": {func(w *world, s *shop, _ *ended) { s.push(w, "weather:v1") },
			api.ReasonImageMismatch},
		"an image at another tag": {func(w *world, s *shop, _ *ended) {
			w.must(remote.Delete(s.ref(w, "weather:v1"), s.options()...))
		}, api.ReasonImageMismatch},
	} {
		t.Run(what, func(t *testing.T) {
			w, s := newWorld(t), newShop(t, true)
			w.start()
			w.create("weather", s.sold, func(b *api.AgentBuild) {
				b.Spec.CleanupAfterBuild = nil
				b.Spec.Retries = &api.Retries{Limit: 3, Backoff: &metav1.Duration{},
					After: []api.RetryOn{api.RetryAny}}
			})
			run := w.run(1)
			digest := s.push(t, "weather:v1")
			w.play(run, digest, func(e *ended) { attack.edit(w, s, e) })
			b := w.phase("weather", api.PhaseFailed)
			c, ready := condition(b, api.ConditionAttested), condition(b, api.ConditionReady)
			if c.Status != metav1.ConditionFalse || c.Reason != attack.reason ||
				!strings.Contains(c.Message, "hint: ") || ready.Status != metav1.ConditionFalse ||
				ready.Reason != attack.reason {
				t.Errorf("Attested %+v, Ready %+v", c, ready)
			}
			if b.Status.BuiltImage != "" || b.Status.Attestation != nil ||
				b.Status.LastRunPhase != api.PhaseFailed || !b.Over() {
				t.Errorf("status %+v", b.Status)
			}
			w.never("another run, or none", func() string {
				if n := len(w.runs()); n != 1 {
					return fmt.Sprintf("%d runs", n)
				}
				return ""
			})
			for _, d := range []string{digest, other} {
				s.nothing(t, "weather", d)
			}
			// A spec that is broken and then put right does not make it a success.
			w.change(b, func(b *api.AgentBuild) { b.Spec.Mode = "absent" })
			w.phase("weather", api.PhaseFailed)
			w.change(b, func(b *api.AgentBuild) { b.Spec.Mode = "prod" })
			w.eventually("the refusal is reported again", func() string {
				if c := condition(w.build("weather"),
					api.ConditionReady); c.Reason != attack.reason {
					return c.Reason
				}
				return ""
			})
		})
	}
}

// verdict of the step tests, as its last container wrote it.
func (e *ended) verdict(verdict string) {
	status := &e.taskRuns["tests"].Status
	for i := range status.Results {
		if r := &status.Results[i]; r.Name == "TEST_RESULT" {
			last := status.Steps[len(status.Steps)-1].Terminated
			last.Message = strings.ReplaceAll(last.Message, r.Value.StringVal, verdict)
			r.Value = *tektonv1.NewStructuredValues(verdict)
		}
	}
}

// A test that failed is attested as such where the step reports it and goes on, and policies
// refuse the image.
func TestFailedTestIsAttested(t *testing.T) {
	w, s := newWorld(t), newShop(t, true)
	w.start()
	w.create("weather", s.sold)
	run := w.run(1)
	digest := s.push(t, "weather:v1")
	w.play(run, digest, func(e *ended) { e.verdict(sign.Failed) })
	a := w.phase("weather", api.PhaseSucceeded).Status.Attestation
	if len(a.Tests) != 1 || a.Tests[0].Result != sign.Failed {
		t.Errorf("tests %+v", a.Tests)
	}
	var result sign.TestResult
	w.must(json.Unmarshal([]byte(s.attested(t, "weather", digest, sign.TestResultType)[0]), &result))
	if result.Result != sign.Failed || len(result.FailedTests) != 1 ||
		result.FailedTests[0] != "tests" {
		t.Errorf("%+v", result)
	}
	artifact := s.ref(t, "weather@"+digest).(name.Digest)
	p := s.policy(t, a.BuilderID)
	if _, err := sign.Verify(t.Context(), artifact, p); err != nil {
		t.Error(err)
	}
	p.Builds.Tests = []sign.RequiredTest{{Step: "tests", MaxResult: sign.Warned}}
	if _, err := sign.Verify(t.Context(), artifact, p); err == nil ||
		!strings.Contains(err.Error(), `ended with "FAILED"`) {
		t.Errorf("a policy that demands the test: %v", err)
	}
}

// attestWaits expects the build weather to wait for its attestation, without an image, and
// to say why in words of its own.
func (w *world) attestWaits(why, not string) {
	w.Helper()
	w.eventually("the build says that it waits", func() string {
		b := w.build("weather")
		c := condition(b, api.ConditionAttested)
		if c.Reason != api.ReasonRetrying || c.Status != metav1.ConditionUnknown ||
			!strings.Contains(c.Message, why) || strings.Contains(c.Message, not) ||
			b.Status.BuiltImage != "" || b.Status.Attestation != nil {
			return fmt.Sprintf("%+v", c)
		}
		return ""
	})
}

// While the registry does not answer, the build waits and says why, without the
// registry's own text, and goes on when it does.
func TestAttestWaitsForTheRegistry(t *testing.T) {
	w, s := newWorld(t), newShop(t, true)
	s.fails.Store(1 << 40)
	w.start()
	w.create("weather", s.sold)
	run := w.run(1)
	digest := s.push(t, "weather:v1")
	w.play(run, digest)
	w.attestWaits("503", "secret")
	s.nothing(t, "weather", digest)
	s.fails.Store(0)
	w.phase("weather", api.PhaseSucceeded)
	s.once(t, "weather", digest)
}

// Without a key no attested build runs, and the build says how to make one. When it is
// there, the build goes on.
func TestNoAttestKey(t *testing.T) {
	w, s := newWorld(t), newShop(t, true)
	w.options.Attest.Key = "absent-" + w.namespace
	w.start()
	w.create("weather", s.sold)
	b := w.phase("weather", api.PhaseFailed)
	c := condition(b, api.ConditionReady)
	if c.Reason != api.ReasonAttestKeyMissing ||
		!strings.Contains(c.Message, "cosign generate-key-pair k8s://"+systemNamespace+"/"+
			w.options.Attest.Key) || len(w.runs()) != 0 {
		t.Errorf("%d runs, condition %+v", len(w.runs()), c)
	}
	secret := attestKey.secret()
	secret.Name = w.options.Attest.Key
	w.must(w.Client.Create(t.Context(), secret))
	w.run(1)
}

// A registry on an address that tenants may not have asked is not asked.
func TestAttestGuardsAddresses(t *testing.T) {
	w, s := newWorld(t), newShop(t, true)
	w.options.Dial = func(context.Context, string, string) (net.Conn, error) {
		return nil, gitremote.ErrForbiddenAddress
	}
	w.start()
	w.create("weather", s.sold)
	run := w.run(1)
	digest := s.push(t, "weather:v1")
	w.play(run, digest)
	b := w.phase("weather", api.PhaseFailed)
	if c := condition(b, api.ConditionAttested); c.Reason != api.ReasonRegistryRefused {
		t.Errorf("condition %+v", c)
	}
	s.nothing(t, "weather", digest)
}
