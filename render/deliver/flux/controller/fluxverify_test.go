package controller_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/random"
	oci "github.com/google/go-containerregistry/pkg/v1/remote"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/e2e/controlplane"
	"github.com/armature-dev/armature/e2e/programs"
	"github.com/armature-dev/armature/render/deliver/sign"
)

// attach makes a session of the key do something about an artifact.
func (s *signed) attach(what ...func(*sign.Session) (string, error)) {
	s.Helper()
	session, err := s.signer.Open(s.Context())
	s.must(err)
	for _, do := range what {
		_, err := do(session)
		s.must(err)
	}
}

// image pushes an image, and signs and attests it as the controller of builds does.
func (s *signed) image(repository string) name.Digest {
	s.Helper()
	made, err := random.Image(64, 1)
	s.must(err)
	tag, err := name.NewTag(s.host + "/" + repository + ":v1")
	s.must(err)
	s.must(oci.Write(tag, made))
	hash, err := made.Digest()
	s.must(err)
	digest := tag.Context().Digest(hash.String())
	ctx := s.Context()
	s.attach(
		func(x *sign.Session) (string, error) {
			return x.Attest(ctx, digest, sign.SPDXType,
				map[string]string{"spdxVersion": "SPDX-2.3"})
		},
		func(x *sign.Session) (string, error) { return x.Sign(ctx, digest) },
		func(x *sign.Session) (string, error) {
			return x.Attest(ctx, digest, sign.PredicateType, sign.Provenance{})
		},
	)
	return digest
}

// ociRepository makes Flux fetch an artifact that has to be signed by the key of a Secret.
func (s *signed) ociRepository(object, secret string, artifact name.Digest) {
	s.Helper()
	o := s.object("OCIRepository", object)
	o.Object["spec"] = map[string]any{
		"url": "oci://" + artifact.Context().Name(), "interval": "10m", "insecure": true,
		"ref":           map[string]any{"digest": artifact.DigestStr()},
		"layerSelector": map[string]any{"operation": "copy"},
		"verify": map[string]any{"provider": "cosign",
			"secretRef": map[string]any{"name": secret}},
	}
	s.must(s.Create(s.Context(), o))
}

// fetched waits for Flux's verdict: "" is Ready and verified, all else is why not.
func (w *world) fetched(object string, artifact name.Digest) (refusal string) {
	w.Helper()
	w.eventually("Flux judges "+object, func() string {
		o := w.object("OCIRepository", object)
		w.must(w.Get(w.Context(), client.ObjectKeyFromObject(o), o))
		conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
		all := map[string]map[string]any{}
		for _, c := range conditions {
			all[c.(map[string]any)["type"].(string)] = c.(map[string]any)
		}
		ready, verified := all["Ready"], all["SourceVerified"]
		switch {
		case ready == nil || verified == nil:
			return fmt.Sprint(all)
		case ready["status"] == "True" && verified["status"] == "True":
			revision, _, _ := unstructured.NestedString(o.Object, "status", "artifact", "revision")
			if !strings.HasSuffix(revision, artifact.DigestStr()) {
				return "it has " + revision
			}
			refusal = ""
		case verified["status"] == "False" && ready["status"] == "False":
			refusal = fmt.Sprint(verified["message"])
		default:
			return fmt.Sprint(all)
		}
		return ""
	})
	return refusal
}

// Flux's own verifier, as its source-controller runs it, reads what we sign: packages that
// are pushed and images that are built, in registries with and without the referrers API. It
// takes the right key, and refuses another one. Any bundle counts, whatever it states: a key
// whose SBOM it finds has signed, for Flux.
func TestFluxVerifies(t *testing.T) {
	programs.Peer(t, "source-controller")
	plane := controlplane.Start(t)
	folders, err := crdFolders()
	if err == nil {
		err = plane.InstallCRDs(folders...)
	}
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, plane)
	flux(t, plane, "source-controller", append(storage(t, t.TempDir()), "--concurrent=8")...)
	ours, theirs := w.registry(nil), w.registry(nil)
	secret := func(named string, s *signed) {
		w.must(w.Create(t.Context(),
			&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: named},
				Data: map[string][]byte{"cosign.pub": s.public}}))
	}
	secret("right", ours)
	secret("wrong", theirs)
	type cell struct {
		name     string
		artifact name.Digest
		accepted bool
	}
	var cells []cell
	for _, referrers := range []bool{false, true} {
		s := w.registry(nil, registry.WithReferrersSupport(referrers))
		s.signer, s.public = ours.signer, ours.public
		stranger := *s
		stranger.signer = theirs.signer
		pushed := func(repository string) name.Digest {
			artifact := s.push(repository, repository)
			s.attach(func(x *sign.Session) (string, error) { return x.Sign(t.Context(), artifact) },
				func(x *sign.Session) (string, error) {
					return x.Attest(t.Context(), artifact, sign.PredicateType, sign.Provenance{})
				})
			return artifact
		}
		unrelated := func(artifact name.Digest) name.Digest {
			stranger.attach(func(x *sign.Session) (string, error) {
				return x.Attest(t.Context(), artifact, sign.SPDXType,
					map[string]string{"spdxVersion": "SPDX-2.3"})
			})
			return artifact
		}
		in := map[bool]string{false: "no-referrers", true: "referrers"}[referrers]
		add := func(what string, artifact name.Digest, accepted bool) {
			cells = append(cells, cell{what + "-" + in, artifact, accepted})
		}
		add("package", pushed("package"), true)
		add("package-unrelated", unrelated(pushed("package-unrelated")), true)
		add("package-unsigned", s.push("package-unsigned", "x"), false)
		add("package-another", unrelated(s.push("package-another", "x")), false)
		add("image", s.image("image"), true)
		add("image-unrelated", unrelated(s.image("image-unrelated")), true)
	}
	for _, c := range cells {
		ours.ociRepository(c.name, "right", c.artifact)
		ours.ociRepository(c.name+"-wrong", "wrong", c.artifact)
	}
	for _, c := range cells {
		right, wrong := w.fetched(c.name, c.artifact), w.fetched(c.name+"-wrong", c.artifact)
		t.Logf("%-42s right key: %-8s other key: %s", c.name, verdict(right), verdict(wrong))
		if (right == "") != c.accepted {
			t.Errorf("%s: with the right key %q, want it accepted: %t", c.name, right, c.accepted)
		}
		if strings.Contains(c.name, "unrelated") || strings.Contains(c.name, "another") {
			continue // the other key has attested an SBOM
		}
		if wrong == "" {
			t.Errorf("%s: another key is accepted", c.name)
		}
	}
}

func verdict(refusal string) string {
	if refusal == "" {
		return "Ready"
	}
	return "refused"
}
