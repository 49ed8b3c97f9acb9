package delivery

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/armature-dev/armature/builds/api"
	updates "github.com/armature-dev/armature/builds/writeback/imageupdate/api"
)

const (
	older = "registry.example/weather:v1@sha256:1"
	newer = "registry.example/weather:v1@sha256:2"
)

// Where the chain stands still, and what helps.
func TestStop(t *testing.T) {
	condition := func(kind, reason string, status metav1.ConditionStatus,
		message string) []metav1.Condition {
		return []metav1.Condition{{Type: kind, Status: status, Reason: reason, Message: message}}
	}
	for name, c := range map[string]struct {
		edit      func(w *Workload, b *api.AgentBuild, u *updates.ImageUpdate)
		stop, why string
	}{
		"all done": {func(*Workload, *api.AgentBuild, *updates.ImageUpdate) {}, "", ""},
		"building": {func(_ *Workload, b *api.AgentBuild, _ *updates.ImageUpdate) {
			b.Status.Phase, b.Status.Message = api.PhaseBuilding, "run weather-2 is under way"
		}, "run", "under way"},
		"failed": {func(_ *Workload, b *api.AgentBuild, _ *updates.ImageUpdate) {
			b.Status.Phase, b.Status.Message =
				api.PhaseFailed, "Dockerfile:3: no such file\n  hint: add it"
		}, "run", "hint: add it"},
		"never resolved": {func(_ *Workload, b *api.AgentBuild, _ *updates.ImageUpdate) {
			b.Status = api.AgentBuildStatus{Phase: api.PhaseFailed, Message: "no such branch"}
		}, "commit", "no such branch"},
		"not attested": {func(_ *Workload, b *api.AgentBuild, _ *updates.ImageUpdate) {
			b.Status.Phase = api.PhaseFailed
			b.Status.Conditions = condition(api.ConditionAttested, api.ReasonNotAsOrdered,
				metav1.ConditionFalse, "a container was added")
		}, "attestation", "a container was added"},
		"held back": {func(w *Workload, _ *api.AgentBuild, u *updates.ImageUpdate) {
			w.Images = []string{older}
			u.Status.Held = []updates.HeldImage{{Build: "weather", Image: newer,
				Why: "commit 123 removed it from the lock"}}
			u.Status.Conditions = condition(updates.ConditionReady, updates.ReasonHeldBack,
				metav1.ConditionFalse, "x")
		}, "lock", "spec.accept of ImageUpdate apps"},
		"another image is held back": {func(_ *Workload, _ *api.AgentBuild, u *updates.ImageUpdate) {
			u.Status.Held = []updates.HeldImage{{Build: "other", Image: "x", Why: "y"}}
			u.Status.Conditions = condition(updates.ConditionReady, updates.ReasonHeldBack,
				metav1.ConditionFalse, "x")
		}, "", ""},
		"proposed": {func(_ *Workload, _ *api.AgentBuild, u *updates.ImageUpdate) {
			u.Status.PullRequest = "https://forge.example/1"
			u.Status.Conditions = condition(updates.ConditionReady, updates.ReasonProposed,
				metav1.ConditionTrue, "")
		}, "lock", "merge it: https://forge.example/1"},
		"refused": {func(_ *Workload, _ *api.AgentBuild, u *updates.ImageUpdate) {
			u.Status.Conditions = condition(updates.ConditionReady, updates.ReasonRefused,
				metav1.ConditionFalse, "GH006")
		}, "lock", "GH006"},
		"not applied": {func(w *Workload, _ *api.AgentBuild, _ *updates.ImageUpdate) {
			w.Images = []string{"sidecar:v1", older}
		}, "workload", "it has " + older},
		"not ready": {func(w *Workload, _ *api.AgentBuild, _ *updates.ImageUpdate) {
			w.Ready = 0
		}, "pods", "kubectl describe pods"},
	} {
		t.Run(name, func(t *testing.T) {
			w := Workload{Namespace: "team1", Kind: "Deployment", Name: "weather",
				Images: []string{newer}, Ready: 1, Desired: 1}
			b := &api.AgentBuild{ObjectMeta: metav1.ObjectMeta{Namespace: "team1", Name: "weather"},
				Status: api.AgentBuildStatus{Phase: api.PhaseSucceeded, BuiltImage: newer,
					PipelineRunName: "weather-2",
					Source: &api.SourceStatus{Git: api.GitStatus{CommitSHA: "abc",
						Ref: "refs/heads/main"}}}}
			u := &updates.ImageUpdate{ObjectMeta: metav1.ObjectMeta{Namespace: "team1",
				Name: "apps"}, Status: updates.ImageUpdateStatus{Commit: "def",
				Conditions: condition(updates.ConditionReady, updates.ReasonUpToDate,
					metav1.ConditionTrue, "")}}
			c.edit(&w, b, u)
			got := Of(w, b, u)
			stop := got.Stop()
			switch {
			case c.stop == "" && stop != nil,
				c.stop != "" &&
					(stop == nil || stop.Name != c.stop || !strings.Contains(stop.Why, c.why)):
				t.Errorf("it stops at %+v of %+v", stop, got.Links)
			}
		})
	}
}

// What status says of an attestation is a claim, and an image without one is unattested.
func TestClaim(t *testing.T) {
	b := &api.AgentBuild{Status: api.AgentBuildStatus{Phase: api.PhaseSucceeded, BuiltImage: newer}}
	what := func() string {
		for _, l := range Of(Workload{}, b, nil).Links {
			if l.Name == "attestation" {
				return l.What
			}
		}
		return "no link"
	}
	if got := what(); got != "unattested" {
		t.Error(got)
	}
	b.Status.Conditions = []metav1.Condition{{Type: api.ConditionAttested,
		Status: metav1.ConditionTrue}}
	b.Status.Attestation = &api.Attestation{Image: older, Level: 3, ProvenanceDigest: "sha256:5"}
	if got := what(); got != "unattested" {
		t.Errorf("the attestation of another image: %s", got)
	}
	b.Status.Attestation.Image = newer
	if got := what(); got != "SLSA level 3, sha256:5 (claimed by status, not verified)" {
		t.Error(got)
	}
	b.Status = api.AgentBuildStatus{Phase: api.PhaseBuilding}
	if got := what(); got != "no link" {
		t.Errorf("before the first image: %s", got)
	}
}

// The build of a workload is that of its image, or of its name.
func TestBuildOf(t *testing.T) {
	build := func(namespace, name, image string) api.AgentBuild {
		return api.AgentBuild{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			Status: api.AgentBuildStatus{BuiltImage: image}}
	}
	all := []api.AgentBuild{build("team2", "weather", newer), build("team1", "weather", ""),
		build("team1", "image", newer),
		build("team1", "port", "registry.example:5000/weather@sha256:2")}
	for image, want := range map[string]string{older: "image",
		"registry.example:5000/weather:v3": "port", "other": "weather",
		"registry.example/weather-2:v1": "weather"} {
		if got := BuildOf(Workload{Namespace: "team1", Name: "weather", Images: []string{image}},
			all); got == nil || got.Name != want || got.Namespace != "team1" {
			t.Errorf("%s is of %+v, want %s", image, got, want)
		}
	}
	if got := BuildOf(Workload{Namespace: "team3", Name: "weather", Images: []string{newer}},
		all); got != nil {
		t.Errorf("another namespace's: %+v", got)
	}
}
