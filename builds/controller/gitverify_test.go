package controller_test

import (
	"bytes"
	"compress/zlib"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/functions/api/keys"
)

// sourcePolicy is a ConfigMap with a policy for commits.
func sourcePolicy(namespace, name, source string, files ...string) *corev1.ConfigMap {
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Data: map[string]string{
			"policy.yaml": "apiVersion: armature.dev/v1alpha1\nkind: VerifyPolicy\n" +
				"spec:\n  source: " +
				source + "\n"}}
	for i := 0; i < len(files); i += 2 {
		cm.Data[files[i]] = files[i+1]
	}
	return cm
}

func (w *world) sourcePolicy(name, source string, files ...string) {
	w.Helper()
	w.must(w.Client.Create(w.Context(), sourcePolicy(w.namespace, name, source, files...)))
}

// under a policy for its commit.
func under(policy string) func(*api.AgentBuild) {
	return func(b *api.AgentBuild) {
		b.Spec.Source.Verify = &api.SourcePolicyReference{Name: policy}
	}
}

// person makes a key that signs commits, and returns the options of git and the line for allowed
// signers.
func (r *repository) person(name string) (options []string, line string) {
	r.Helper()
	if _, err := exec.LookPath("ssh-keygen"); err != nil {
		r.Skip("ssh-keygen, which git signs with, is not installed\n" +
			"  hint: apt-get install openssh-client")
	}
	signer, private := r.sshKey()
	file := filepath.Join(r.TempDir(), name)
	r.must(os.WriteFile(file, private, 0o600))
	public := string(ssh.MarshalAuthorizedKey(signer.PublicKey()))
	r.must(os.WriteFile(file+".pub", []byte(public), 0o600))
	return []string{"-c", "gpg.format=ssh", "-c", "user.signingkey=" + file, "-c",
		"commit.gpgsign=true"}, name + "@example.com " + public
}

func (r *repository) signed(options []string, message string) string {
	r.Helper()
	r.git(append(options, "commit", "-q", "--allow-empty", "-m", message)...)
	return r.git("rev-parse", "HEAD")
}

// waits until a build is refused by its policy, with a text.
func (w *world) refusedSource(name, reason, says string) {
	w.Helper()
	w.eventually(fmt.Sprintf("build %s is refused with %s", name, reason), func() string {
		b := w.build(name)
		ready, verified := condition(b, api.ConditionReady), condition(b, api.ConditionVerified)
		if b.Status.Phase != api.PhaseFailed || ready.Reason != reason ||
			!strings.Contains(ready.Message, says) || verified.Status != metav1.ConditionFalse ||
			verified.Reason != reason {
			return fmt.Sprintf("phase %s, %s %q, and SourceVerified is %s %s, want %q",
				b.Status.Phase, ready.Reason, ready.Message, verified.Status, verified.Reason, says)
		}
		return ""
	})
}

// TestReachableSource builds a commit that a branch or a tag of the policy contains, with and
// without partial clones, and reads the policy in the status and in the run. It expects a refusal
// of commits that only a pull request, a fork or a branch with the name of a tag contains.
func TestReachableSource(t *testing.T) {
	for _, server := range []string{"with-filters", "without-filters"} {
		t.Run(server, func(t *testing.T) {
			w := newWorld(t)
			r := w.serveGit("")
			r.git("config", "uploadpack.allowFilter", fmt.Sprint(server == "with-filters"))
			r.git("config", "uploadpack.allowAnySHA1InWant", "true") // as large hosts do
			first := r.git("rev-parse", "HEAD")
			r.must(os.WriteFile(filepath.Join(r.dir, "file"), bytes.Repeat([]byte("text\n"), 1000),
				0o644))
			r.git("add", "file")
			r.commit("a file")
			r.git("checkout", "-q", "-b", "topic")
			merged := r.commit("topic")
			r.git("checkout", "-q", "main")
			r.commit("third")
			r.git("merge", "-q", "--no-ff", "-m", "merge", "topic")
			r.git("branch", "-q", "-D", "topic")
			head := r.commit("fourth")
			r.git("checkout", "-q", "--detach", first)
			pull := r.commit("a pull request")
			r.git("update-ref", "refs/pull/1/head", pull)
			r.git("update-ref", "refs/heads/v2.0", r.commit("a branch like a tag"))
			dangling := r.commit("of nowhere")
			r.git("checkout", "-q", "main")
			w.sourcePolicy("main", "{branches: [main]}")
			w.sourcePolicy("tags", "{tags: ['v*']}")
			w.sourcePolicy("none", "{branches: [absent]}")
			w.start()
			for name, refusal := range map[string]struct{ revision, policy, says string }{
				"pull": {pull, "main",
					"is not reachable from branch main (policy " + w.namespace + "/main)"},
				"pull-ref": {"refs/pull/1/head", "main", "is not reachable from branch main"},
				"dangling": {dangling, "main", "is not reachable from branch main"},
				"nowhere": {strings.Repeat("d", 40), "main",
					"is not reachable from branch main"},
				"like-a-tag":   {"v2.0", "tags", "is not reachable from tag v*"},
				"ahead-of-tag": {head, "tags", "is not reachable from tag v*"},
				"no-branch":    {"main", "none", "is not reachable from branch absent"},
				"sha256":       {strings.Repeat("d", 64), "main", "is a commit of SHA-256"},
			} {
				w.create(name, r.source(refusal.revision), under(refusal.policy))
				w.refusedSource(name, api.ReasonNotReachable, refusal.says)
			}
			if n := len(w.runs()); n != 0 {
				t.Fatalf("%d runs exist", n)
			}
			runs := 0
			for name, accepted := range map[string]struct{ revision, policy, commit, ref string }{
				"branch": {"main", "main", head, "refs/heads/main"},
				"merged": {merged, "main", merged, "refs/heads/main"},
				"root":   {first, "main", first, "refs/heads/main"},
				"tag":    {"v1.0", "main", first, "refs/heads/main"},
				"tagged": {"v1.0", "tags", first, "refs/tags/v1.0"},
			} {
				w.create(name, r.source(accepted.revision), under(accepted.policy))
				runs++
				w.run(runs)
				got := w.phase(name, api.PhaseBuilding)
				verified := got.Status.Source.Git.Verified
				if c := condition(got,
					api.ConditionVerified); got.Status.Source.Git.CommitSHA != accepted.commit ||
					len(verified) != 1 || verified[0].Ref != accepted.ref || verified[0].Signer != "" ||
					verified[0].Policy != w.namespace+"/"+accepted.policy || verified[0].Platform ||
					c.Status != metav1.ConditionTrue || !strings.Contains(c.Message, accepted.ref) {
					t.Errorf("%s: %+v, %s %s", name, got.Status.Source.Git, c.Status, c.Message)
				}
			}
			w.create("without", r.source(pull))
			w.run(runs + 1)
			if got := w.phase("without",
				api.PhaseBuilding); condition(got, api.ConditionVerified).Type != "" ||
				got.Status.Source.Git.Verified != nil {
				t.Errorf("without a policy: %+v", got.Status)
			}
		})
	}
}

// A commit has to be signed by somebody whom the policy allows, also where it is not the
// head of a branch; the run for it says by whom.
func TestSignedSource(t *testing.T) {
	w := newWorld(t)
	r := w.serveGit("")
	alice, allowed := r.person("alice")
	mallory, _ := r.person("mallory")
	signed := r.signed(alice, "signed")
	foreign := r.signed(mallory, "signed by a stranger")
	unsigned := r.commit("unsigned")
	head := r.signed(alice, "head")
	w.sourcePolicy("people", "{branches: [main], allowedSigners: [people]}", "people", allowed)
	w.sourcePolicy("expired", "{branches: [main], allowedSigners: [people]}", "people",
		strings.Replace(allowed, " ", ` valid-before="20260101" `, 1))
	w.start()
	for name, refusal := range map[string]struct{ revision, policy, says string }{
		"foreign":  {foreign, "people", "which the policy does not allow"},
		"unsigned": {unsigned, "people", "it is not signed"},
		"expired":  {"main", "expired", "which the policy does not allow at this time"},
	} {
		w.create(name, r.source(refusal.revision), under(refusal.policy))
		w.refusedSource(name, api.ReasonNotSigned, refusal.says)
	}
	for i, commit := range []string{head, signed} {
		name := fmt.Sprint("good", i)
		w.create(name, r.source(commit), under("people"))
		run := w.run(i + 1)
		got := w.phase(name, api.PhaseBuilding)
		if v := got.Status.Source.Git.Verified; len(v) != 1 ||
			!strings.HasPrefix(v[0].Signer, "alice@example.com SHA256:") ||
			got.Status.Source.Git.CommitSHA != commit {
			t.Errorf("%s: %+v", name, got.Status.Source.Git)
		}
		var noted []api.SourceVerification
		if err := json.Unmarshal([]byte(run.Annotations[keys.AnnotationVerified]),
			&noted); err != nil || len(noted) != 1 {
			t.Errorf("the run says %q", run.Annotations[keys.AnnotationVerified])
		}
	}
}

// A policy that cannot be used keeps the build from starting, and the build goes on when it
// is put right.
func TestSourcePolicyThatCannotBeUsed(t *testing.T) {
	w := newWorld(t)
	r := w.serveGit("")
	w.own("empty", "policy.yaml",
		"apiVersion: armature.dev/v1alpha1\nkind: VerifyPolicy\nspec: {source: {}}")
	w.own("images", "policy.yaml",
		"apiVersion: armature.dev/v1alpha1\nkind: VerifyPolicy\nspec: {keys: [cosign.pub]}")
	w.start()
	for name, says := range map[string]string{
		"absent": "ConfigMap " + w.namespace + "/absent, cannot be used: it does not exist",
		"empty":  "names neither a branch nor a tag", "images": `unknown field "keys"`} {
		w.create(name, r.source("main"), under(name))
		w.refusedSource(name, api.ReasonSourcePolicy, says)
	}
	w.sourcePolicy("absent", "{branches: [main]}")
	w.run(1)
}

// A retry and a rebuild of a known commit are judged again: what a policy no longer allows
// is not built again.
func TestSourceIsVerifiedForEachRun(t *testing.T) {
	w := newWorld(t)
	r := w.serveGit("")
	w.sourcePolicy("main", "{branches: [main]}")
	w.start()
	b := w.create("weather", r.source("main"), under("main"), func(b *api.AgentBuild) {
		b.Spec.Retries = &api.Retries{Limit: 1, Backoff: &metav1.Duration{},
			After: []api.RetryOn{api.RetryAny}}
	})
	run := w.run(1)
	other := sourcePolicy(w.namespace, "main", "{branches: [other]}")
	w.must(w.Update(w.Context(), other))
	w.fail(run)
	w.refusedSource(b.Name, api.ReasonNotReachable, "is not reachable from branch other")
	if n := len(w.runs()); n != 1 {
		t.Errorf("%d runs exist", n)
	}
}

// A step that clones another commit than the verified one makes the condition false.
func TestVerifiedSourceIsReplaced(t *testing.T) {
	w := newWorld(t)
	r := w.serveGit("")
	w.sourcePolicy("main", "{branches: [main]}")
	w.start()
	w.create("own", r.source("main"), under("main"))
	w.finish(w.run(1), corev1.ConditionTrue, "Succeeded", "done",
		func(s *tektonv1.PipelineRunStatus) {
			s.Results = []tektonv1.PipelineRunResult{{Name: "CHAINS-GIT_COMMIT",
				Value: *tektonv1.NewStructuredValues(strings.Repeat("c", 40))}}
		})
	got := w.phase("own", api.PhaseSucceeded)
	if c := condition(got, api.ConditionVerified); c.Status != metav1.ConditionFalse ||
		c.Reason != api.ReasonSourceReplaced || got.Status.Source.Git.Verified != nil {
		t.Errorf("%s %s %+v", c.Status, c.Reason, got.Status.Source.Git)
	}
}

// modeThatVerifies is prod with a policy of the platform's for the source, which has the
// name of the mode and does not exist yet.
func (w *world) modeThatVerifies() (mode string) {
	w.Helper()
	mode = "verified-" + w.namespace
	for _, cm := range shippedConfigMaps() {
		if cm.Name == "pipeline-template-prod" {
			cm.Namespace, cm.Name = systemNamespace, "pipeline-template-"+mode
			cm.Data["template.yaml"] += "\nverifySource: " + mode + "\n"
			w.must(w.Client.Create(w.Context(), cm))
		}
	}
	return mode
}

// What a template demands, a tenant can neither switch off nor weaken by a policy of its
// own; it can demand more.
func TestTemplateDemandsVerifiedSource(t *testing.T) {
	w := newWorld(t)
	r := w.serveGit("")
	alice, allowed := r.person("alice")
	head := r.git("rev-parse", "HEAD")
	mode := w.modeThatVerifies()
	inMode := func(b *api.AgentBuild) {
		b.Spec.Mode, b.Spec.Timeout = mode, &metav1.Duration{Duration: 3600e9}
	}
	w.sourcePolicy("lax", "{branches: ['*']}")
	w.sourcePolicy(mode, "{branches: ['*']}") // the platform's is in its own namespace
	w.start()
	w.create("absent", r.source("main"), inMode, under("lax"))
	w.refusedSource("absent", api.ReasonSourcePolicy,
		"ConfigMap "+systemNamespace+"/"+mode+", cannot be used: it does not exist")
	w.must(w.Client.Create(w.Context(), sourcePolicy(systemNamespace, mode,
		"{branches: [main], allowedSigners: [people]}", "people", allowed)))
	w.create("unsigned", r.source(head), inMode, under("lax"))
	w.refusedSource("unsigned", api.ReasonNotSigned, "(policy "+systemNamespace+"/"+mode+")")
	signed := r.signed(alice, "signed")
	w.sourcePolicy("strict", "{tags: ['v*']}")
	w.create("stricter", r.source(signed), inMode, under("strict"))
	w.refusedSource("stricter", api.ReasonNotReachable, "(policy "+w.namespace+"/strict)")
	w.create("good", r.source(signed), inMode, under("lax"))
	w.eventually("the signed commit is built", func() string {
		b := w.build("good")
		if b.Status.Source == nil {
			return b.Status.Message
		}
		v := b.Status.Source.Git.Verified
		if len(v) != 2 || !v[0].Platform || v[1].Platform || v[0].Signer == "" || v[1].Signer != "" {
			return fmt.Sprintf("%+v", v)
		}
		return ""
	})
}

// Over SSH a policy is judged as over HTTP.
func TestVerifiedSourceOverSSH(t *testing.T) {
	w := newWorld(t)
	r := w.serveGit("")
	alice, allowed := r.person("alice")
	signed := r.signed(alice, "signed")
	r.commit("head")
	r.git("checkout", "-q", "--detach")
	pull := r.commit("a pull request")
	r.git("update-ref", "refs/pull/1/head", pull)
	r.git("checkout", "-q", "main")
	host, _ := w.sshKey()
	user, private := w.sshKey()
	address := w.serveSSH(host, user, filepath.Dir(r.dir))
	w.must(w.Client.Create(w.Context(),
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "key",
			Annotations: hostsOfTests}, Type: corev1.SecretTypeSSHAuth,
			Data: map[string][]byte{"ssh-privatekey": private,
				"known_hosts": []byte(knownhosts.Line([]string{address}, host.PublicKey()))}}))
	w.sourcePolicy("people", "{branches: [main], allowedSigners: [people]}", "people", allowed)
	from := func(revision string) func(*api.AgentBuild) {
		return func(b *api.AgentBuild) {
			b.Spec.Source = api.SourceSpec{
				SourceRepository:  "ssh://git@" + address + "/agent.git/.git",
				SourceRevision:    revision,
				SourceCredentials: &corev1.LocalObjectReference{Name: "key"}}
		}
	}
	w.start()
	w.create("pull", from(pull), under("people"))
	w.refusedSource("pull", api.ReasonNotReachable, "is not reachable from branch main")
	w.create("head", from("main"), under("people"))
	w.refusedSource("head", api.ReasonNotSigned, "it is not signed")
	w.create("good", from(signed), under("people"))
	if got := w.run(1).Annotations[keys.AnnotationCommit]; got != signed {
		t.Errorf("%s is built, want %s", got, signed)
	}
}

// A history without end is read to a bound, and refused; a server that sends nothing is asked
// again.
func TestEndlessHistory(t *testing.T) {
	w := newWorld(t)
	line := func(text string) string { return fmt.Sprintf("%04x%s", len(text)+4, text) }
	var sent atomic.Int64
	answers := func(pack func(http.ResponseWriter)) string {
		server := httptest.NewServer(
			http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodGet {
					rw.Header().Set("Content-Type", "application/x-git-upload-pack-advertisement")
					fmt.Fprint(rw,
						line("# service=git-upload-pack\n")+"0000"+
							line(strings.Repeat("a", 40)+
								" refs/heads/main\x00shallow filter ofs-delta\n")+"0000")
					return
				}
				rw.Header().Set("Content-Type", "application/x-git-upload-pack-result")
				pack(rw)
			}))
		t.Cleanup(server.Close)
		return server.URL + "/x"
	}
	urls := map[string]string{
		"endless": answers(func(rw http.ResponseWriter) {
			fmt.Fprint(rw, line("NAK\n")+"PACK\x00\x00\x00\x02\xff\xff\xff\xff")
			for {
				text := make([]byte, 64<<10)
				for i := range text {
					text[i] = byte(rand.IntN(256))
				}
				object := append([]byte("tree "+strings.Repeat("b", 40)+"\n\n"), text...)
				var entry bytes.Buffer
				entry.Write([]byte{0x90 | byte(len(object)&15), 0x80 | byte(len(object)>>4&0x7f),
					byte(len(object) >> 11 & 0x7f)})
				z := zlib.NewWriter(&entry)
				_, _ = z.Write(object)
				_ = z.Close()
				if n, err := rw.Write(entry.Bytes()); err != nil {
					return
				} else if sent.Add(int64(n)) > 1<<30 {
					return
				}
			}
		}),
		"silent": answers(func(rw http.ResponseWriter) { fmt.Fprint(rw, line("ERR try later\n")) }),
	}
	w.sourcePolicy("main", "{branches: [main]}")
	w.start()
	for name, url := range urls {
		w.create(name, under("main"), func(b *api.AgentBuild) {
			b.Spec.Source.SourceRepository = url
		})
	}
	w.refusedSource("endless", api.ReasonHistoryTooLarge, "at most 32 MiB of history are searched")
	if sent.Load() > 64<<20 {
		t.Errorf("%d MiB were taken", sent.Load()>>20)
	}
	w.eventually("the other server is asked again", func() string {
		if c := condition(w.build("silent"), api.ConditionReady); c.Reason != api.ReasonRetrying ||
			!strings.Contains(c.Message, "try later") {
			return c.Reason + " " + c.Message
		}
		return ""
	})
	if n := len(w.runs()); n != 0 {
		t.Errorf("%d runs exist", n)
	}
}

// A login for one host is not sent to another that the server leads to.
func TestVerifiedSourceKeepsTheLogin(t *testing.T) {
	w := newWorld(t)
	w.options.Settings.PlainHTTPHosts = []string{"127.0.0.1"}
	r := w.serveGit("") // anybody may read it
	first := r.git("rev-parse", "HEAD")
	r.commit("second")
	root, err := url.Parse(strings.TrimSuffix(r.url, "/agent.git/.git"))
	w.must(err)
	next := httputil.NewSingleHostReverseProxy(root)
	var logins, posts atomic.Int32
	stranger := httptest.NewServer(
		http.HandlerFunc(func(rw http.ResponseWriter, request *http.Request) {
			if request.Header.Get("Authorization") != "" {
				logins.Add(1)
			}
			if request.Method == http.MethodPost {
				posts.Add(1)
			}
			next.ServeHTTP(rw, request)
		}))
	t.Cleanup(stranger.Close)
	elsewhere := strings.Replace(stranger.URL, "127.0.0.1", "localhost", 1)
	server := httptest.NewServer(
		http.HandlerFunc(func(rw http.ResponseWriter, request *http.Request) {
			http.Redirect(rw, request, elsewhere+request.URL.String(), http.StatusFound)
		}))
	t.Cleanup(server.Close)
	w.login("git", compose.PurposeGit, map[string]string{"token": "secret-token"})
	w.sourcePolicy("main", "{branches: [main]}")
	w.start()
	w.create("weather", r.source(first), under("main"), func(b *api.AgentBuild) {
		b.Spec.Source.SourceRepository, b.Spec.Source.SourceCredentials =
			server.URL+"/agent.git/.git", &corev1.LocalObjectReference{Name: "git"}
	})
	w.run(1)
	if posts.Load() == 0 || logins.Load() != 0 {
		t.Errorf("the other host was sent the login in %d requests; of %d with POST", logins.Load(),
			posts.Load())
	}
}
