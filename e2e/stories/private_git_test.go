package stories

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
)

// The source is private, once by token and once by SSH key, and so is
// the registry. Wrong and missing credentials are reported differently, and nothing runs.
func TestPrivateGitAndPrivateRegistry(t *testing.T) {
	t.Parallel()
	s := newStory(t, nil)
	s.installed(t)
	s.push(t, "testdata/hello", "private/"+s.namespace+".git")

	s.secret(t, "git-token", corev1.SecretTypeBasicAuth,
		map[string]string{"username": "robot", "password": s.info.GitToken})
	s.secret(t, "git-wrong", corev1.SecretTypeBasicAuth,
		map[string]string{"username": "robot", "password": "guess"})
	s.secret(t, "git-ssh", corev1.SecretTypeSSHAuth,
		map[string]string{"ssh-privatekey": s.info.SSHKey, "known_hosts": s.info.SSHKnownHosts})
	s.secret(t, "login", corev1.SecretTypeDockerConfigJson,
		map[string]string{corev1.DockerConfigJsonKey: s.registryLogin(t)})

	const build = `
---
apiVersion: agent.kagenti.dev/v1alpha1
kind: AgentBuild
metadata: {name: NAME}
spec:
  mode: dev-external
  cleanupAfterBuild: false
  source: {sourceRepository: "SOURCE/private/${namespace}.git", sourceRevision: mainCREDENTIALS}
  buildArgs: [{name: BASE, value: "${registry}/armature/busybox:latest"}]
  buildOutput:
    imageRegistry: ${privateRegistry}/${namespace}
    image: NAME
    imageTag: v1
    imageRepoCredentials: {name: login}
`
	for name, replace := range map[string][2]string{
		"by-token": {"${git}", ", sourceCredentials: {name: git-token}"},
		"by-ssh":   {"${gitSSH}", ", sourceCredentials: {name: git-ssh}"},
		"wrong":    {"${git}", ", sourceCredentials: {name: git-wrong}"},
		"missing":  {"${git}", ", sourceCredentials: {name: nowhere}"},
		"none":     {"${git}", ""},
	} {
		s.apply(t,
			strings.NewReplacer("NAME", name, "SOURCE", replace[0], "CREDENTIALS", replace[1]).
				Replace(build))
	}

	for _, name := range []string{"by-token", "by-ssh"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			image := s.succeeded(t, name).Status.BuiltImage
			must(t, s.Create(t.Context(), &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: s.namespace},
				Spec: corev1.PodSpec{
					ImagePullSecrets: []corev1.LocalObjectReference{{Name: "login"}},
					Containers:       []corev1.Container{{Name: "agent", Image: image}},
				},
			}))
			s.says(t, name, "hello from root")
			s.securityContexts(t)
		})
	}
	for name, reason := range map[string]string{
		"wrong":   api.ReasonGitAuthInvalid,
		"missing": api.ReasonSourceSecretNotFound,
		"none":    api.ReasonRepositoryPrivate,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eventually(t, 5*time.Minute, "the reason is "+reason, func(ctx context.Context) error {
				var build api.AgentBuild
				if err := s.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: name},
					&build); err != nil {
					return err
				}
				for _, condition := range build.Status.Conditions {
					if condition.Reason == reason && condition.Status == metav1.ConditionFalse {
						return nil
					}
				}
				return fmt.Errorf("the conditions are %v", build.Status.Conditions)
			})
			var build api.AgentBuild
			must(t, s.Get(t.Context(), client.ObjectKey{Namespace: s.namespace, Name: name}, &build))
			if build.Status.PipelineRunName != "" ||
				apimeta.IsStatusConditionTrue(build.Status.Conditions, "PipelineRunExists") {
				t.Errorf("run %s was started", build.Status.PipelineRunName)
			}
		})
	}
}
