package render_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/render"
)

// A pod does not start without its ConfigMaps: they are created at the same time as
// their workload, and stay as long.
func TestReleasePhases(t *testing.T) {
	const workload = `apiVersion: batch/v1
kind: Job
metadata:
  name: migrate
  labels:
    kagenti.io/inject: enabled
  annotations:
    example.com/note: the author's
`
	const pod = `spec:
  template:
    spec:
      restartPolicy: Never
      containers:
      - name: migrate
        image: example/migrate:v1
`
	const exchange = `---
apiVersion: kagenti.io/v1alpha1
kind: TokenExchange
metadata:
  name: migrate
spec:
  targetRef: {kind: Job, name: migrate}
`
	for name, c := range map[string]struct {
		annotations, more string
		want              map[string]string
	}{
		"none": {"", "", map[string]string{}},
		"a hook of Helm": {`    "helm.sh/hook": pre-install,pre-upgrade
    "helm.sh/hook-weight": -5
    "helm.sh/hook-delete-policy": before-hook-creation,hook-succeeded
    "helm.sh/hook-output-log-policy": hook-failed
`, "", map[string]string{"helm.sh/hook": "pre-install,pre-upgrade", "helm.sh/hook-weight": "-5", "helm.sh/hook-delete-policy": "before-hook-creation,hook-succeeded"}},
		"kept by Helm": {"    helm.sh/resource-policy: keep\n", "",
			map[string]string{"helm.sh/resource-policy": "keep"}},
		"a wave of Argo CD": {
			"    argocd.argoproj.io/hook: PreSync\n    argocd.argoproj.io/sync-wave: \"-1\"\n", "",
			map[string]string{"argocd.argoproj.io/hook": "PreSync",
				"argocd.argoproj.io/sync-wave": "-1"}},
		"a value that would end the string": {"    helm.sh/hook: \"a\\\"\\nb: c\"\n", "",
			map[string]string{"helm.sh/hook": "a\"\nb: c"}},
		"beside what a ConfigMap remembers": {"    helm.sh/hook: test\n", exchange,
			map[string]string{"helm.sh/hook": "test"}},
	} {
		t.Run(name, func(t *testing.T) {
			first := streamed(t, workload+c.annotations+pod+c.more)
			if again := streamed(t, first); again != first {
				t.Errorf("the second render (-first +second):\n%s", cmp.Diff(first, again))
			}
			configMaps := 0
			render.Objects(render.File{Path: "-", Data: []byte(first)}, func(o *krm.Object) {
				if o.Kind != "ConfigMap" {
					return
				}
				configMaps++
				got := make(map[string]string)
				for key, value := range o.Get("metadata", "annotations").Fields() {
					if key != "armature.dev/rendered-for" && key != "armature.dev/source" {
						got[key] = value.Text()
					}
				}
				if diff := cmp.Diff(c.want, got); diff != "" {
					t.Errorf("annotations of ConfigMap %s (-want +got):\n%s", o.Name, diff)
				}
			})
			if configMaps != 2 {
				t.Errorf("%d ConfigMaps; want 2:\n%s", configMaps, first)
			}
		})
	}
}

// streamed returns the output for a stream.
func streamed(t *testing.T, stream string) string {
	t.Helper()
	r, err := render.Run(
		render.Source{Files: []render.File{{Path: "all.yaml", Data: []byte(stream)}}},
		render.Options{Config: config(t, `{profile: kagenti, trace: {enabled: true}}`)})
	if err != nil || finding.Failed(r.Findings) || len(r.Files) != 1 {
		t.Fatalf("%v, findings %v, %d files", err, r.Findings, len(r.Files))
	}
	return string(r.Files[0].Data)
}
