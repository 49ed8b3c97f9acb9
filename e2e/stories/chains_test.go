package stories

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/sigstore/cosign/v2/pkg/cosign"
	ociremote "github.com/sigstore/cosign/v2/pkg/oci/remote"
	"github.com/sigstore/sigstore/pkg/signature"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/render/deliver/sign"
)

// Tekton Chains attests what mode prod builds, with a key that the controller does not have.
// The controller has the public one, looks at the run as it does before it signs, and the
// build is Ready when Chains' provenance of this run is in the registry. A tenant that marks
// a run as signed, and a Chains that may not push, leave the build unattested with what to
// look at; it goes on when the mark is gone and Chains may push. (No other story runs
// meanwhile, so that no controller of the whole cluster does.)
func TestChains(t *testing.T) {
	s := newStory(t, nil)
	if s.info.Images["chains-controller"] == "" {
		t.Skip("it takes the image of Tekton Chains of `make cluster-up`")
	}
	s.withoutInstallation(t)
	s.platform = s.namespace + "-home"
	s.install(t, s.platform, "--scope=namespaced", "--watch-namespaces="+s.namespace, "--attest=chains")
	t.Cleanup(func() {
		if err := s.Delete(context.Background(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.platform}}); err != nil {
			t.Error(err)
		}
	})
	public, key := s.chains(t)
	commit := s.push(t, "testdata/hello", "public/"+s.namespace+".git")
	s.secret(t, "login", corev1.SecretTypeDockerConfigJson, map[string]string{corev1.DockerConfigJsonKey: s.registryLogin(t)})
	tenant, mode := s.asTenant(t), s.briefProd(t)
	for name, registry := range map[string]string{
		"signed":   "${registry}/${namespace}, image: signed",
		"marked":   "${registry}/${namespace}, image: marked",
		"unpushed": "${privateRegistry}/${namespace}, image: unpushed, imageRepoCredentials: {name: login}",
	} {
		tenant.apply(t, strings.NewReplacer("MODE", mode, "NAME", name, "REGISTRY", registry).Replace(`
apiVersion: agent.kagenti.dev/v1alpha1
kind: AgentBuild
metadata: {name: NAME}
spec:
  mode: MODE
  builder: kaniko
  source: {sourceRepository: "${git}/public/${namespace}.git", sourceRevision: main}
  pod: {resources: {requests: {cpu: 50m, memory: 64Mi}}}
  pipeline:
    parameters:
    - {name: TEST_IMAGE, value: "docker.io/library/busybox:1.37.0"}
    - {name: TEST_COMMAND, value: "true"}
  buildArgs: [{name: BASE, value: "${registry}/armature/busybox:latest"}]
  buildOutput: {imageRegistry: REGISTRY, imageTag: v1}
`))
	}
	const mark = "chains.tekton.dev/signed"
	annotate := func(as *story, run client.Object, value string) {
		t.Helper()
		patch := fmt.Appendf(nil, `{"metadata": {"annotations": {%q: %s}}}`, mark, value)
		must(t, as.Patch(t.Context(), run, client.RawPatch("application/merge-patch+json", patch)))
	}
	marked := tenant.runOf(t, "marked")
	annotate(tenant, marked.DeepCopy(), `"true"`)

	build := s.succeeded(t, "signed")
	c, a := meta.FindStatusCondition(build.Status.Conditions, api.ConditionAttested), build.Status.Attestation
	if c == nil || c.Status != metav1.ConditionTrue || a == nil || a.BuilderID != chainsBuilder || a.Level != 2 || a.Signature != "" || a.SBOM != "" || a.Image != build.Status.BuiltImage {
		t.Fatalf("condition %+v, attestation %+v", c, a)
	}
	_, digest, _ := strings.Cut(build.Status.BuiltImage, "@")
	image := reference(t, s.info.HostRegistry+"/"+s.namespace+"/signed@"+digest).(name.Digest)
	statement := s.provenanceByChains(t, image, key)
	if !strings.Contains(statement, string(a.RunUID)) || !strings.Contains(statement, `"sha1":"`+commit+`"`) {
		t.Errorf("it names another run or commit than %s and %s:\n%s", a.RunUID, commit, statement)
	}
	if n := s.bundles(t, s.info.HostRegistry+"/"+s.namespace+"/signed", digest); n != 0 {
		t.Errorf("%d bundles refer to the image: the controller signed by itself", n)
	}
	// What docs/builds-attest.md says that consumers can demand of it.
	policy := sign.Policy{Keys: []string{public}, IgnoreTlog: true, Builds: &sign.Builds{MinimumLevel: 2, Builders: []sign.TrustedBuilder{{ID: chainsBuilder, Level: 2}}}}
	if _, err := sign.Verify(t.Context(), image, policy); err != nil {
		t.Errorf("a policy that names Chains' key and builder: %v", err)
	}

	for name, value := range map[string]string{"marked": "true", "unpushed": "failed"} {
		s.unattested(t, name, fmt.Sprintf("%s: %q", mark, value))
	}
	none, err := ociremote.SignedImage(reference(t, s.info.HostRegistry+"/"+s.namespace+"/marked:v1"))
	must(t, err)
	if attested, err := none.Attestations(); err == nil {
		if list, err := attested.Get(); err != nil || len(list) > 0 {
			t.Errorf("%d attestations of the marked run's image: %v", len(list), err)
		}
	}

	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "default"}}
	must(t, s.Patch(t.Context(), account, client.RawPatch("application/merge-patch+json", []byte(`{"imagePullSecrets": [{"name": "login"}]}`))))
	for _, name := range []string{"marked", "unpushed"} {
		run := s.runOf(t, name)
		annotate(s, run.DeepCopy(), "null")
		if build := s.succeeded(t, name); build.Status.Attestation == nil || build.Status.Attestation.RunUID != run.UID {
			t.Errorf("%s: attestation %+v", name, build.Status.Attestation)
		}
	}
}

// chainsBuilder is what Chains is configured to call itself in its provenance.
const chainsBuilder = "https://builds.example/chains"

// chains installs Tekton Chains for the story's namespace, as its module does and with a
// new key, and gives the public key to the story's controller; it takes Chains away when the
// story ends.
func (s *story) chains(t *testing.T) (public string, verifier signature.Verifier) {
	t.Helper()
	module := strings.TrimSpace(string(run(t, nil, "go", "-C", "../chains", "list", "-m", "-f", "{{.Dir}}", "github.com/tektoncd/chains")))
	pair := newKey(t)
	var objects []*unstructured.Unstructured
	files, err := filepath.Glob(filepath.Join(module, "config", "*.yaml"))
	must(t, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		must(t, err)
		const image = "image: ko://github.com/tektoncd/chains/cmd/controller\n"
		manifest := strings.Replace(string(text), image, "image: "+s.info.Images["chains-controller"]+"\n          args: [--namespace="+s.namespace+"]\n", 1)
		for _, o := range readObjects(t, []byte(manifest)) {
			set := map[string]any{}
			switch o.GetKind() + "/" + o.GetName() {
			case "ConfigMap/chains-config":
				set["data"] = map[string]any{
					"artifacts.taskrun.storage":    "", // attestations of one image at once lose each other
					"artifacts.pipelinerun.format": "slsa/v2alpha4", "artifacts.pipelinerun.storage": "oci",
					"artifacts.oci.storage": "oci", "transparency.enabled": "false", "builder.id": chainsBuilder,
				}
			case "Secret/signing-secrets":
				set["stringData"] = map[string]any{"cosign.key": string(pair.PrivateBytes), "cosign.password": keyPassword}
			}
			for field, value := range set {
				must(t, unstructured.SetNestedField(o.Object, value, field))
			}
			objects = append(objects, o)
		}
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s", kubectl(t, nil, "logs", "--namespace=tekton-chains", "--selector=app=tekton-chains-controller", "--tail=60", "--ignore-errors"))
		}
		// Finalizers go while their controllers run.
		kubectl(t, nil, "delete", "--namespace="+s.namespace, "--timeout=3m", "--all", "agentbuilds,pipelineruns,taskruns")
		for _, o := range objects {
			if err := client.IgnoreNotFound(s.Delete(context.Background(), o)); err != nil {
				t.Error(err)
			}
		}
	})
	s.applyObjects(t, objects)
	s.available(t, "tekton-chains", "tekton-chains-controller")
	must(t, s.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: s.platform, Name: "armature-chains-key"},
		Data: map[string]string{"cosign.pub": string(pair.PublicBytes)}}))
	public = filepath.Join(t.TempDir(), "cosign.pub")
	must(t, os.WriteFile(public, pair.PublicBytes, 0o600))
	return public, pair.verifier
}

// provenanceByChains of an image, as cosign verifies it: there is one.
func (s *story) provenanceByChains(t *testing.T, image name.Digest, key signature.Verifier) string {
	t.Helper()
	attestations, _, err := cosign.VerifyImageAttestations(t.Context(), image, &cosign.CheckOpts{SigVerifier: key, ClaimVerifier: cosign.IntotoSubjectClaimVerifier, IgnoreTlog: true})
	must(t, err)
	if len(attestations) != 1 {
		t.Fatalf("%d attestations, want one", len(attestations))
	}
	kind, statement := statementOf(t, attestations[0])
	if kind != sign.PredicateType {
		t.Errorf("it is of type %s", kind)
	}
	return statement
}

// unattested waits until a build reports that Chains has not attested its run, and why.
func (s *story) unattested(t *testing.T, name, why string) {
	t.Helper()
	eventually(t, 15*time.Minute, name+" says what to look at", func(ctx context.Context) error {
		var build api.AgentBuild
		if err := s.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: name}, &build); err != nil {
			return err
		}
		c := meta.FindStatusCondition(build.Status.Conditions, api.ConditionAttested)
		if c == nil || c.Reason != api.ReasonChainsNotSigned || c.Status != metav1.ConditionUnknown || !strings.Contains(c.Message, why) || build.Status.BuiltImage != "" {
			return fmt.Errorf("phase %s, image %q, condition %+v", build.Status.Phase, build.Status.BuiltImage, c)
		}
		return nil
	})
}
