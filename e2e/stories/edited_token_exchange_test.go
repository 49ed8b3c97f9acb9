package stories

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"
)

// A user edits a TokenExchange and runs `armature apply`. The running sidecar sees its new routes,
// and nothing is started again. 001 allows ten seconds ("Configuration Change Latency"); the story
// prints how long it took, and its limit is for a machine that builds images at the same time.
func TestEditReachesTheRunningSidecar(t *testing.T) {
	t.Parallel()
	s := enterForAgents(t)
	folder := s.agents(t, "deployment.yaml")
	apply := func() {
		armature(t, "apply", folder, "--name=agents", "--namespace="+s.namespace, "--timeout=0")
	}
	apply()
	pod := s.running(t, "deployment")
	routesTo := func(audience string) func(context.Context) error {
		return func(ctx context.Context) error {
			text, err := s.log(ctx, pod.Name, "envoy-proxy")
			lines := strings.Split(strings.TrimSpace(text), "\n")
			if last := lines[len(lines)-1]; err == nil &&
				!strings.HasPrefix(last, "routes to "+audience) {
				err = fmt.Errorf("the sidecar says %q", last)
			}
			return err
		}
	}
	eventually(t, 5*time.Minute, "the sidecar has its first routes", routesTo("first-audience"))

	rewrite(t, folder, "deployment.yaml", "first-audience", "second-audience")
	began := time.Now()
	apply() // By itself the kubelet looks at a pod's files once a minute; apply nudges it.
	applied := time.Since(began)
	eventually(t, 2*time.Minute, "the sidecar has its new routes", routesTo("second-audience"))
	t.Logf("the edit took %.1f s to the running sidecar, %.1f s of it to render and apply",
		time.Since(began).Seconds(), applied.Seconds())
	s.stillRuns(t, pod)
}
