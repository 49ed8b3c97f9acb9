package controller_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose/templates"
)

// A ConfigMap that the API server does not hand out delays its own builds, though
// there are more of them than workers, and no other.
func TestSlowTemplateRead(t *testing.T) {
	w := newWorld(t)
	w.own("pipeline-template-slow", templates.TemplateKeyYAML,
		"steps: [{name: only, configMap: own-step}]")
	w.own("pipeline-template-quick", templates.TemplateKeyYAML,
		"steps: [{name: only, configMap: own-step}]")
	w.own("own-step", templates.StepKey, followsStep)
	release := make(chan struct{})
	w.config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if strings.HasSuffix(r.URL.Path, "/configmaps/pipeline-template-slow") {
				select {
				case <-release:
				case <-r.Context().Done():
					return nil, r.Context().Err()
				}
			}
			return next.RoundTrip(r)
		})
	})
	w.start()
	mode := func(mode string) func(*api.AgentBuild) {
		return func(b *api.AgentBuild) { b.Spec.Mode = mode }
	}
	const slow = 40
	for i := range slow {
		w.create(fmt.Sprintf("slow%d", i), mode("slow"))
	}
	w.eventually("a slow build says what it waits for", func() string {
		if c := condition(w.build("slow0"), api.ConditionReady); c.Reason != api.ReasonRetrying ||
			!strings.Contains(c.Message, "pipeline-template-slow: no answer") {
			return c.Reason + " " + c.Message
		}
		return ""
	})
	for i := range 5 {
		name := fmt.Sprintf("quick%d", i)
		w.create(name, mode("quick"))
		w.phase(name, api.PhaseBuilding)
	}
	w.left(5)
	close(release)
	w.left(5 + slow)
}
