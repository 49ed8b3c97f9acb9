package attest_test

import (
	"encoding/json"
	"errors"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/sigstore/cosign/v2/pkg/cosign"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/attest"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/render/deliver/sign"
)

// testdata/chains has what Tekton Chains v0.24.0 attested of a run of the story
// TestChains: the layer of the image's tag .att, byte for byte, and the public key. It is
// about this run.
const (
	chainsDigest     = "sha256:666963ea2236fa01e8768294dae5e66e7747fbaccbbe0966ef4612cf16f171f1"
	chainsRun        = "3b54633b-fbd1-4377-a24b-bebd0ac2da2e"
	chainsCommit     = "81689fcbcb2766be0a458c6c1670bc7b01bca8c2"
	chainsRepository = "git+http://10.88.0.1:3000/public/story-wmmvk.git"
)

// byChains is what Check finds of that run.
func byChains() attest.Built {
	return attest.Built{Image: "10.88.0.1:5000/story-wmmvk/signed:v1", Digest: chainsDigest, Bills: []attest.Bill{{Digest: digest}}, Provenance: sign.Provenance{
		BuildDefinition: sign.BuildDefinition{ResolvedDependencies: []sign.ResourceDescriptor{
			{Name: "source", URI: chainsRepository + "@refs/heads/main", Digest: map[string]string{"gitCommit": chainsCommit},
				Annotations: sign.SourceAnnotations{Repository: strings.TrimPrefix(chainsRepository, "git+"), Ref: "refs/heads/main"}}}},
		RunDetails: sign.RunDetails{Metadata: &sign.Metadata{InvocationID: chainsRun}},
	}}
}

func chainsFile(t *testing.T, file string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "chains", file))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// attestations reads what is attested of an image in a registry that has a layer in its
// tag .att.
func attestations(t *testing.T, of string, layer, key []byte, kind string) (predicates []json.RawMessage, refused []error) {
	t.Helper()
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0)), registry.WithReferrersSupport(true)))
	t.Cleanup(server.Close)
	repository, err := name.NewRepository(strings.TrimPrefix(server.URL, "http://") + "/team/signed")
	if err != nil {
		t.Fatal(err)
	}
	attached, err := mutate.Append(mutate.MediaType(empty.Image, types.OCIManifestSchema1), mutate.Addendum{
		Layer: static.NewLayer(layer, "application/vnd.dsse.envelope.v1+json"), Annotations: map[string]string{"dev.cosignproject.cosign/signature": ""}})
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(repository.Tag(strings.Replace(of, ":", "-", 1)+".att"), attached); err != nil {
		t.Fatal(err)
	}
	predicates, refused, err = sign.Attestations(t.Context(), repository.Digest(of), sign.Policy{
		Keys: []string{"cosign.pub"}, Files: map[string][]byte{"cosign.pub": key}, IgnoreTlog: true}, kind)
	if err != nil {
		t.Fatal(err)
	}
	return predicates, refused
}

// What Tekton Chains really attested counts for its run, with its builder.
func TestByChains(t *testing.T) {
	predicates, refused := attestations(t, chainsDigest, chainsFile(t, "envelope.json"), chainsFile(t, "cosign.pub"), sign.PredicateType)
	if len(predicates) != 1 || len(refused) != 0 {
		t.Fatalf("%d predicates, and refused %v", len(predicates), refused)
	}
	built, text, err := byChains().ByChains(&api.AgentBuild{}, predicates)
	if err != nil {
		t.Fatal(err)
	}
	if built.Digest != chainsDigest || built.Bills != nil || built.Provenance.RunDetails.Builder.ID != "https://builds.example/chains" || string(text) != string(predicates[0]) {
		t.Errorf("%+v", built)
	}
	// The repository may be written without .git, and the run made for a commit.
	short := byChains()
	short.Provenance.BuildDefinition.ResolvedDependencies[0].Annotations = sign.SourceAnnotations{Repository: strings.TrimSuffix(strings.TrimPrefix(chainsRepository, "git+"), ".git")}
	if _, _, err := short.ByChains(&api.AgentBuild{}, predicates); err != nil {
		t.Error(err)
	}
}

// Neither another key, nor the attestation of another image, nor an envelope that was
// changed, nor a right signature of another type is an attestation by Chains.
func TestNotSignedByChains(t *testing.T) {
	envelope, key := chainsFile(t, "envelope.json"), chainsFile(t, "cosign.pub")
	another, err := cosign.GenerateKeyPair(func(bool) ([]byte, error) { return []byte("open sesame"), nil })
	if err != nil {
		t.Fatal(err)
	}
	var parts map[string]any
	if err := json.Unmarshal(envelope, &parts); err != nil {
		t.Fatal(err)
	}
	payload, _ := parts["payload"].(string)
	parts["payload"] = payload[:len(payload)-8] + "fX0K" + "fX0K"
	changed, err := json.Marshal(parts)
	if err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		of         string
		layer, key []byte
		kind       string
	}{
		"another key":           {chainsDigest, envelope, another.PublicBytes, sign.PredicateType},
		"another image":         {other, envelope, key, sign.PredicateType},
		"a changed envelope":    {chainsDigest, changed, key, sign.PredicateType},
		"another type demanded": {chainsDigest, envelope, key, sign.SPDXType},
	} {
		t.Run(what, func(t *testing.T) {
			predicates, refused := attestations(t, c.of, c.layer, c.key, c.kind)
			if len(predicates) != 0 || len(refused) != 1 {
				t.Errorf("%d predicates, and refused %v", len(predicates), refused)
			}
		})
	}
}

// Of what Chains' key signed about the image, a statement about another run or TaskRun is
// passed over, and one about this run that names something else is a refusal.
func TestChainsNamesTheRun(t *testing.T) {
	predicates, _ := attestations(t, chainsDigest, chainsFile(t, "envelope.json"), chainsFile(t, "cosign.pub"), sign.PredicateType)
	const source = `"uri":"` + chainsRepository + `"`
	replaced := func(old, new string) json.RawMessage {
		t.Helper()
		var value any
		if err := json.Unmarshal(predicates[0], &value); err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(value) // without the spaces of protojson, which vary
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), old) {
			t.Fatalf("%s is not in %s", old, text)
		}
		return json.RawMessage(strings.ReplaceAll(string(text), old, new))
	}
	anotherRun := replaced(`"invocationId":"`+chainsRun+`"`, `"invocationId":"11111111-2222-3333-4444-555555555555"`)
	for what, list := range map[string][]json.RawMessage{
		"nothing":                 nil,
		"another run":             {anotherRun},
		"a predicate without one": {json.RawMessage(`{}`), json.RawMessage(`null`), json.RawMessage(`[]`), nil},
	} {
		if _, _, err := byChains().ByChains(&api.AgentBuild{}, list); !errors.Is(err, attest.ErrNotByChains) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, _, err := byChains().ByChains(&api.AgentBuild{}, []json.RawMessage{anotherRun, predicates[0]}); err != nil {
		t.Errorf("beside another run's: %v", err)
	}
	for what, edited := range map[string]json.RawMessage{
		"another commit":     replaced(`"sha1":"`+chainsCommit+`"`, `"sha1":"`+strings.Repeat("c", 40)+`"`),
		"another repository": replaced(source, `"uri":"git+http://10.88.0.1:3000/public/other.git"`),
		"no commit":          replaced(`{"sha1":"`+chainsCommit+`"}`, `{}`),
		"two commits":        replaced(`"resolvedDependencies":[`, `"resolvedDependencies":[{`+source+`,"digest":{"sha1":"`+strings.Repeat("c", 40)+`"}},`),
		"another build type": replaced(`"https://tekton.dev/chains/v2/slsa"`, `"https://armature.dev/agent-build/v1"`),
		"no builder":         replaced(`"builder":{"id":"https://builds.example/chains"}`, `"builder":{}`),
	} {
		for _, list := range [][]json.RawMessage{{edited}, {predicates[0], edited}, {edited, predicates[0]}} {
			_, _, err := byChains().ByChains(&api.AgentBuild{}, list)
			var refusal *krm.Finding
			if !errors.As(err, &refusal) || refusal.Rule != api.ReasonChainsMismatch {
				t.Errorf("%s of %d: %v", what, len(list), err)
			}
		}
	}
}
