package main

import (
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/armature-dev/armature/render/apply"
)

// TestObjectImages finds what runs, in custom resources and lists, too.
func TestObjectImages(t *testing.T) {
	objects, err := apply.Read("all.yaml", []byte(`apiVersion: apps/v1
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
`))
	if err != nil {
		t.Fatal(err)
	}
	found := make(map[string]bool)
	for _, o := range objects {
		objectImages(o.Object, found)
	}
	want := []string{"cron", "ephemeral", "init", "main", "nested", "pod", "volume"}
	if diff := cmp.Diff(want, slices.Sorted(maps.Keys(found))); diff != "" {
		t.Error(diff)
	}
}
