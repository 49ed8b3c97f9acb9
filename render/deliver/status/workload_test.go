package status_test

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/render/deliver/status"
)

// TestWorkload: kstatus judges, and a pod that cannot start says why.
func TestWorkload(t *testing.T) {
	w := newWorld(t)
	deployment := w.apply(kagenti, web)["Deployment/web"]
	expect := func(want, message string) {
		t.Helper()
		if x := w.report().Workloads; len(x) != 1 || x[0].Status != want ||
			!strings.Contains(x[0].Message, message) {
			t.Errorf("%+v, want %s: %s", x, want, message)
		}
	}
	expect("InProgress", "")
	pod := w.pod(deployment, "web-1")
	w.podStatus(pod, map[string]string{"web": "CreateContainerConfigError"})
	expect("Failed", "pod web-1: CreateContainerConfigError: container web: why")
	w.podStatus(pod, nil)
	w.status(deployment,
		"{observedGeneration: 1, replicas: 1, updatedReplicas: 1, readyReplicas: 1, "+
			"availableReplicas: 1, conditions: [{type: Available, status: 'True'}, {type: "+
			"Progressing, status: 'True', reason: NewReplicaSetAvailable}]}")
	expect("Current", "")
	if r := w.report(); r.Health() != status.Well {
		t.Errorf("of health %d: %+v", r.Health(), r)
	}
}

// TestSelectors: pods are found by expressions, too, and those of a CronJob by its
// Jobs. The reported container is the same each time.
func TestSelectors(t *testing.T) {
	w := newWorld(t)
	byExpression := strings.Replace(web, "matchLabels: {app: web}",
		"matchExpressions: [{key: app, operator: In, values: [web]}]", 1)
	if byExpression == web {
		t.Fatal("web has another selector")
	}
	pod := w.pod(w.apply(kagenti, byExpression)["Deployment/web"], "web-1")
	w.podStatus(pod, map[string]string{"web": "ImagePullBackOff", "envoy-proxy": "CrashLoopBackOff",
		"spiffe-helper": "CrashLoopBackOff"})
	for range 20 {
		r := w.report()
		if x := r.Workloads[0]; x.Pods != 1 ||
			!strings.Contains(x.Message, "CrashLoopBackOff: container spiffe-helper") {
			t.Fatalf("%+v", x)
		}
		if x := r.TokenExchanges[0]; x.Phase != status.Failed ||
			!strings.Contains(x.Message, "CrashLoopBackOff: container spiffe-helper") {
			t.Fatalf("%+v", x)
		}
	}
	w.podStatus(pod,
		map[string]string{"web": "ImagePullBackOff", "envoy-proxy": "CrashLoopBackOff"})
	for range 20 {
		if x := w.report().TokenExchanges[0]; x.Phase != status.Failed ||
			!strings.Contains(x.Message, "CrashLoopBackOff: container envoy-proxy") {
			t.Fatalf("%+v", x)
		}
	}
}

func TestCronJob(t *testing.T) {
	w := newWorld(t)
	cron := w.apply(kagenti, `apiVersion: batch/v1
kind: CronJob
metadata: {name: nightly, namespace: NS, labels: {kagenti.io/inject: enabled}}
spec:
  schedule: "0 0 * * *"
  jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: run, image: "run:v1"}]}}}}
`)["CronJob/nightly"]
	template, _, err := unstructured.NestedMap(cron.Object, "spec", "jobTemplate", "spec")
	w.must(err)
	job := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "batch/v1",
		"kind": "Job", "metadata": map[string]any{
			"name": "nightly-1",
			"ownerReferences": []any{map[string]any{"apiVersion": "batch/v1", "kind": "CronJob",
				"name": "nightly", "uid": string(cron.GetUID()), "controller": true}},
		}, "spec": template}}
	text, err := yaml.Marshal(job.Object)
	w.must(err)
	pod := w.pod(w.create(string(text)), "nightly-1-abc")
	w.podStatus(pod, map[string]string{"run": "ErrImagePull"})
	if x := w.report().Workloads; len(x) != 1 || x[0].Status != "Failed" || x[0].Pods != 1 ||
		!strings.Contains(x[0].Message, "ErrImagePull: container run") {
		t.Errorf("%+v", x)
	}
}

// TestReadsOnly: every request is a GET, and none is for Secrets.
func TestReadsOnly(t *testing.T) {
	w := newWorld(t)
	w.apply(kagenti, web)
	w.report()
	if len(w.requests.all) < 8 {
		t.Errorf("only %d requests were seen", len(w.requests.all))
	}
	for _, r := range w.requests.all {
		if !strings.HasPrefix(r, "GET ") || strings.Contains(r, "secrets") {
			t.Error(r)
		}
	}
}

// TestOnly keeps what was asked for, and says what there is of it.
func TestOnly(t *testing.T) {
	w := newWorld(t)
	w.apply(kagenti, web)
	r := w.report()
	if found := r.Only([]string{"web-auth", "nothing"}); !slices.Equal(found,
		[]string{"web-auth"}) || len(r.TokenExchanges) != 1 || len(r.Workloads) != 0 {
		t.Errorf("found %v: %+v", found, r)
	}
}

// TestTable: the columns that people see.
func TestTable(t *testing.T) {
	w := newWorld(t)
	deployment := w.apply(kagenti, web)["Deployment/web"]
	w.podStatus(w.pod(deployment, "web-1"), nil)
	w.status(deployment,
		"{observedGeneration: 1, replicas: 1, updatedReplicas: 1, readyReplicas: 1, "+
			"availableReplicas: 1, conditions: [{type: Available, status: 'True'}, {type: "+
			"Progressing, status: 'True', reason: NewReplicaSetAvailable}]}")
	r := w.report()
	var got bytes.Buffer
	w.must(r.Write(&got, false, false))
	want := `WORKLOAD   KIND         STATUS    PODS
web        Deployment   Current   1/1

TOKENEXCHANGE   TARGET           PHASE    CONFIGMAP            PODS   SPIFFE   REGISTERED   INBOUND   OUTBOUND
web-auth        Deployment/web   Active   web-token-exchange   1      yes      yes          yes       yes

AGENTCARD   PHASE    CONFIGMAP            PODS
web-card    Active   web-card-discovery   1
`
	if got.String() != want {
		t.Errorf("got\n%s\nwant\n%s", got.String(), want)
	}
	got.Reset()
	w.must(r.Write(&got, true, true))
	if text := got.String(); !strings.HasPrefix(text, "NAMESPACE") ||
		!strings.Contains(text, "AGENTTRACE") {
		t.Error(text)
	}
}
