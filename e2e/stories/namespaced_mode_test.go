package stories

import (
	"context"
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
)

// Two teams share a cluster. A controller in namespaced mode builds for
// one of them. Of the other's namespace it may read nothing, asks for nothing,
// and leaves a build there as it is. (No other story runs meanwhile, so that no
// controller of the whole cluster does.)
func TestNamespacedMode(t *testing.T) {
	s, other := newStory(t, nil), newStory(t, nil)
	s.withoutInstallation(t)
	home := s.namespace + "-home"
	s.install(t, home, "--scope=namespaced", "--watch-namespaces="+s.namespace)
	t.Cleanup(func() {
		if err := s.Delete(context.Background(),
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: home}}); err != nil {
			t.Error(err)
		}
	})
	s.push(t, "testdata/hello", "public/"+s.namespace+".git")
	for _, team := range []*story{s, other} {
		team.apply(t, `
apiVersion: agent.kagenti.dev/v1alpha1
kind: AgentBuild
metadata: {name: hello}
spec:
  mode: dev
  source: {sourceRepository: "${git}/public/`+s.namespace+`.git", sourceRevision: main}
  buildArgs: [{name: BASE, value: "${registry}/armature/busybox:latest"}]
  buildOutput: {imageRegistry: "${registry}/${namespace}", image: hello, imageTag: v1}
`)
	}
	s.succeeded(t, "hello")

	var untouched api.AgentBuild
	must(t, s.Get(t.Context(), client.ObjectKey{Namespace: other.namespace, Name: "hello"}, &untouched))
	if untouched.Status.Phase != "" || len(untouched.Finalizers) > 0 {
		t.Errorf("the other team's build was touched: phase %q, finalizers %v",
			untouched.Status.Phase, untouched.Finalizers)
	}
	account := "system:serviceaccount:" + home + ":armature-controller"
	for _, namespace := range []string{other.namespace, ""} { // the second is all of them
		for _, resource := range []string{"configmaps", "secrets", "pods", "serviceaccounts",
			"agentbuilds", "pipelineruns", "taskruns"} {
			for _, verb := range []string{"get", "list", "watch"} {
				if s.may(t, account, verb, resource, namespace) {
					t.Errorf("the controller may %s %s in namespace %q", verb, resource, namespace)
				}
			}
		}
	}

	if s.info.AuditLog == "" {
		t.Log("the cluster has no audit log, so what the controller asked for was not looked at")
		return
	}
	requests := map[string]int{}
	for _, asked := range s.auditLog(t, 0) {
		if asked.User.Username != account {
			continue
		}
		requests[asked.ObjectRef.Namespace]++
		if namespace := asked.ObjectRef.Namespace; namespace != home && namespace != s.namespace {
			t.Errorf("the controller asked for %s", asked.RequestURI)
		}
	}
	if requests[s.namespace] == 0 || requests[home] == 0 {
		t.Errorf("the audit log lacks what the controller has to have asked for: %v", requests)
	}
}

// withoutInstallation takes away the controller of the whole cluster.
func (s *story) withoutInstallation(t *testing.T) {
	t.Helper()
	theInstallation.Lock()
	defer theInstallation.Unlock()
	theInstallation.there = false
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "armature-system",
		Name: "armature-controller"}}
	must(t, client.IgnoreNotFound(s.Delete(t.Context(), deployment)))
	eventually(t, 5*time.Minute, "the cluster's controller is gone",
		func(ctx context.Context) error {
			var pods corev1.PodList
			if err := s.List(ctx, &pods, client.InNamespace(deployment.Namespace)); err != nil {
				return err
			}
			if len(pods.Items) > 0 {
				return fmt.Errorf("it has %d pods", len(pods.Items))
			}
			return nil
		})
}

// may says whether RBAC grants it. An empty namespace means all of them.
func (s *story) may(t *testing.T, account, verb, resource, namespace string) bool {
	t.Helper()
	group := map[string]string{"agentbuilds": api.DefaultGroup, "pipelineruns": "tekton.dev",
		"taskruns": "tekton.dev"}[resource]
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: account,
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: verb, Group: group, Resource: resource, Namespace: namespace,
		},
	}}
	must(t, s.Create(t.Context(), review))
	return review.Status.Allowed
}
