package stories

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
)

// Armature is removed as docs/operate.md says. The agents that it
// rendered and the images that it built run on, and an agent's pod that dies
// comes back. (No other story runs meanwhile.)
func TestUninstalledWorkloadsRunOn(t *testing.T) {
	s := enterForAgents(t)
	s.installed(t)
	s.push(t, "testdata/hello", "public/"+s.namespace+".git")
	s.apply(t, `
apiVersion: agent.kagenti.dev/v1alpha1
kind: AgentBuild
metadata: {name: hello}
spec:
  mode: dev
  source: {sourceRepository: "${git}/public/${namespace}.git", sourceRevision: main}
  buildArgs: [{name: BASE, value: "${registry}/armature/busybox:latest"}]
  buildOutput: {imageRegistry: "${registry}/${namespace}", image: hello, imageTag: v1}
`)
	s.applyObjects(t, s.rendered(t, s.agents(t, "deployment.yaml")))
	must(t, s.Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "hello", Namespace: s.namespace,
			Labels: map[string]string{"app": "hello"}},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "agent",
				Image: s.succeeded(t, "hello").Status.BuiltImage}}},
	}))
	before := []corev1.Pod{s.running(t, "hello"), s.running(t, "deployment")}

	theInstallation.Lock()
	defer theInstallation.Unlock()
	theInstallation.there = false
	kubectl(t, nil, "delete", "agentbuilds", "--all", "--all-namespaces")
	kubectl(t, armature(t, "install"), "delete", "--ignore-not-found", "-f", "-")

	if err := s.List(t.Context(), &api.AgentBuildList{}); !apimeta.IsNoMatchError(err) &&
		!apierrors.IsNotFound(err) {
		t.Errorf("AgentBuilds can still be listed: %v", err)
	}
	for _, namespace := range []string{"armature-system", buildNamespace} {
		if err := s.Get(t.Context(), client.ObjectKey{Name: namespace},
			&corev1.Namespace{}); !apierrors.IsNotFound(err) {
			t.Errorf("namespace %s is still there: %v", namespace, err)
		}
	}
	for _, pod := range before {
		s.stillRuns(t, pod)
	}

	must(t, s.Delete(t.Context(), &before[1]))
	eventually(t, 5*time.Minute, "the agent's pod comes back", func(ctx context.Context) error {
		var pods corev1.PodList
		if err := s.List(ctx, &pods, client.InNamespace(s.namespace),
			client.MatchingLabels{"app": "deployment"}); err != nil {
			return err
		}
		if len(pods.Items) == 0 {
			return errors.New("there is none")
		}
		pod := pods.Items[0]
		if pod.UID == before[1].UID || !ready(pod) {
			return fmt.Errorf("pod %s is the old one or not ready", pod.Name)
		}
		text, err := s.log(ctx, pod.Name, "envoy-proxy")
		if err == nil && !strings.Contains(text, "routes to first-audience") {
			err = fmt.Errorf("its sidecar has no routes: %q", text)
		}
		return err
	})
}
