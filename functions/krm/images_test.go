package krm_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/armature-dev/armature/functions/krm"
)

// What runs is found in custom resources and lists, too.
func TestImages(t *testing.T) {
	stream := []byte(`apiVersion: apps/v1
kind: Deployment
metadata: {name: a}
spec:
  template:
    spec:
      initContainers: [{name: a, image: init}]
      containers: [{name: a, image: main}, {name: b}]
      volumes:
      - name: plain
        emptyDir: {}
      - name: v
        image: {reference: volume}
---
apiVersion: v1
kind: Pod
metadata: {name: b}
spec:
  containers: [{name: a, image: pod}]
  ephemeralContainers: [{name: a, image: ephemeral}]
---
apiVersion: example.com/v1
kind: Fleet
metadata: {name: c}
spec:
  members:
  - workload: {template: {spec: {containers: [{name: a, image: nested}]}}}
---
apiVersion: batch/v1
kind: CronJob
metadata: {name: d}
spec: {jobTemplate: {spec: {template: {spec: {containers: [{name: a, image: cron}]}}}}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: e}
data: {image: text, containers: "- image: text"}
`)
	var found []string
	for d := range krm.Documents(stream) {
		var o krm.Object
		if _, err := o.Read(stream, d, false, krm.Origin{}); err != nil {
			t.Fatal(err)
		}
		value, err := o.Value()
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, krm.Images(value)...)
	}
	slices.Sort(found)
	want := []string{"cron", "ephemeral", "init", "main", "nested", "pod", "volume"}
	if diff := cmp.Diff(want, found); diff != "" {
		t.Error(diff)
	}
}
