package controller_test

import (
	"testing"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/render/deliver/sign"
)

// What the platform's policy found is in the attested provenance, so that a consumer's
// policy can demand it; each single change of that policy is refused.
func TestVerifiedSourceIsAttested(t *testing.T) {
	w, s := newWorld(t), newShop(t, true)
	r := w.serveGit("")
	alice, allowed := r.person("alice")
	commit := r.signed(alice, "signed")
	r.commit("head")
	mode := w.modeThatVerifies()
	w.must(w.Client.Create(w.Context(), sourcePolicy(systemNamespace, mode,
		"{branches: [main], allowedSigners: [people]}", "people", allowed)))
	w.start()
	w.create("weather", s.sold, r.source(commit), func(b *api.AgentBuild) { b.Spec.Mode = mode })
	run := w.run(1)
	digest := s.push(t, "weather:v1")
	w.play(run, digest)
	b := w.phase("weather", api.PhaseSucceeded)
	if b.Status.Attestation == nil || len(b.Status.Source.Git.Verified) != 1 {
		t.Fatalf("status %+v", b.Status)
	}
	policy := func() sign.Policy {
		p := s.policy(t, b.Status.Attestation.BuilderID)
		p.Builds.Sources = []sign.Source{{Repository: r.url, Branches: []string{"main"},
			Verified: sign.VerifiedSigned}}
		return p
	}
	artifact := s.ref(t, "weather@"+digest).(name.Digest)
	if _, err := sign.Verify(t.Context(), artifact, policy()); err != nil {
		t.Error(err)
	}
	for change, edit := range map[string]func(*sign.Source){
		"branch":     func(s *sign.Source) { s.Branches = []string{"release"} },
		"repository": func(s *sign.Source) { s.Repository += "2" },
		// a commit was ordered, and no branch
		"verification": func(s *sign.Source) { s.Verified = "" },
	} {
		p := policy()
		edit(&p.Builds.Sources[0])
		if _, err := sign.Verify(t.Context(), artifact, p); err == nil {
			t.Errorf("with another %s it passes", change)
		}
	}
}
