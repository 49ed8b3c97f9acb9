package lint_test

import (
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
)

// TestGeneratedObject: a finding on a generated object names it, and the line
// and field of the author's that lead to it, or what it was made for.
func TestGeneratedObject(t *testing.T) {
	a := txtar.Parse([]byte(`-- app/armature.yaml --
apiVersion: armature.dev/v1alpha1
kind: RenderConfig
spec:
  lint: {missing-secret: info}
  asya:
    transports:
      rabbitmq:
        enabled: true
        type: rabbitmq
        config:
          host: rabbitmq
          port: 5672
          username: guest
          passwordSecretRef: {name: rabbitmq-secret, key: password}
          queues: {autoCreate: false}
    sidecarImage: ghcr.io/example/asya-sidecar:v1
    runtimeScript: print("it runs")
-- app/actor.yaml --
# Where finished messages end up.
apiVersion: asya.sh/v1alpha1
kind: AsyncActor
metadata:
  name: ends
  namespace: pipeline
spec:
  transport: rabbitmq
  workload:
    template:
      spec:
        serviceAccountName: writer
        containers:
        - name: asya-runtime
          image: ghcr.io/example/ends
          env:
          - name: ASYA_HANDLER
            value: ends.store
          - name: A
            value: same
          - name: B
            value: same
          envFrom:
          - configMapRef: {name: same}
`))
	_, findings := linted(t, a, "app")
	for _, want := range []struct {
		rule, object string
		line         int
		hint         string
	}{
		{"lint/latest-image", "Deployment pipeline/ends", 15,
			"; spec.workload.template.spec.containers[0].image of AsyncActor pipeline/ends " +
				"leads to it"},
		{"lint/dangling-reference", "Deployment pipeline/ends", 12,
			"; spec.workload.template.spec.serviceAccountName of AsyncActor pipeline/ends " +
				"leads to it"},
		{"lint/missing-secret", "Deployment pipeline/ends", 1,
			"; the object is generated for AsyncActor pipeline/ends"},
	} {
		found := false
		for _, f := range findings {
			if f.Rule == want.rule && f.Object.String() == want.object && f.Line == want.line &&
				strings.HasSuffix(f.Hint, want.hint) {
				found = true
			}
		}
		if !found {
			t.Errorf("no finding %+v", want)
			for _, f := range findings {
				t.Logf("%s %s", f.Rule, f)
			}
		}
	}
}
