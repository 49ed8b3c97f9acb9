package stories

import (
	"context"
	"encoding/json"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/builds/api"
)

// A tenant has two specs whose hashes begin with the same 64 bits. It orders the one, and shows
// the other as soon as there is a run. What was ordered is not attested; what is shown is built
// by a run of its own, and that is attested.
func TestCollidingSpecs(t *testing.T) {
	t.Parallel()
	s := newStory(t, nil)
	s.installed(t)
	s.push(t, "testdata/hello", "public/collision.git")
	s.attestKey(t)
	// The specs name their mode.
	brief, mode := &corev1.ConfigMap{}, &corev1.ConfigMap{}
	must(t,
		s.Get(t.Context(), client.ObjectKey{Namespace: s.platform,
			Name: "pipeline-template-" + s.briefProd(t)}, brief))
	mode.Namespace, mode.Name, mode.Data = s.platform, "pipeline-template-collision", brief.Data
	must(t, s.Create(t.Context(), mode))
	t.Cleanup(func() {
		if err := s.Delete(context.Background(), mode); err != nil {
			t.Error(err)
		}
	})
	tenant := s.asTenant(t)
	read := func(name string) *api.AgentBuild {
		text, err := os.ReadFile("../../builds/attest/testdata/collision/" + name + ".yaml")
		must(t, err)
		build := &api.AgentBuild{}
		must(t, yaml.UnmarshalStrict(text, build))
		build.Namespace = s.namespace
		return build
	}
	must(t, tenant.Create(t.Context(), read("ordered")))
	first := s.runOf(t, "collision")
	build := &api.AgentBuild{}
	must(t, tenant.Get(t.Context(), client.ObjectKey{Namespace: s.namespace, Name: "collision"}, build))
	before := build.DeepCopy()
	build.Spec.BuildArgs, build.Spec.BuildOutput =
		read("shown").Spec.BuildArgs, read("shown").Spec.BuildOutput
	must(t, tenant.Patch(t.Context(), build, client.MergeFrom(before)))

	build = s.succeeded(t, "collision")
	if a := build.Status.Attestation; build.Status.RunNumber != 2 || a == nil ||
		a.RunUID != build.Status.PipelineRunUID || a.RunUID == first.UID {
		t.Fatalf("run %d of UID %s, attestation %+v: what was shown is to be built by a second "+
			"run, and that alone attested", build.Status.RunNumber, build.Status.PipelineRunUID, a)
	}
	must(t, s.Get(t.Context(), client.ObjectKeyFromObject(first), first))
	repository := s.info.HostRegistry + "/collision/collision"
	for _, result := range first.Status.Results {
		if digest := strings.TrimSpace(result.Value.StringVal); strings.HasSuffix(result.Name,
			"IMAGE_DIGEST") {
			if n := s.bundles(t, repository, digest); n != 0 {
				t.Errorf("%d bundles refer to the image %s of what was ordered", n, digest)
			}
		}
	}
	if text, err := json.Marshal(build.Status); err != nil ||
		strings.Contains(string(text), "evil") {
		t.Errorf("%v: the status names what was ordered first: %s", err, text)
	}
}
