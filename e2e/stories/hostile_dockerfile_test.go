package stories

import (
	"encoding/base64"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/render/deliver/sign"
)

// A Dockerfile that BuildKit builds for production looks for logins and tokens in its
// files, the environment and the processes that it sees, writes into Tekton's results and
// pushes another image to the build's tag. The tests look for logins, too, and edit the
// source. They find and change nothing: what was cloned is built, is what the tag names in
// the end, and is attested, with the digest of the image that the Dockerfile names by a tag.
func TestHostileDockerfile(t *testing.T) {
	t.Parallel()
	s := newStory(t, nil)
	s.installed(t)
	s.attestKey(t)
	s.push(t, "testdata/hostile", "private/"+s.namespace+".git")
	s.secret(t, "git-login", corev1.SecretTypeBasicAuth,
		map[string]string{"username": "story", "password": s.info.GitToken})
	const pushPassword = "push-canary-4711"
	auth := base64.StdEncoding.EncodeToString([]byte("robot:" + pushPassword))
	login, err := json.Marshal(
		map[string]any{
			"auths": map[string]any{"registry.example.com": map[string]string{"auth": auth}}})
	must(t, err)
	s.secret(t, "registry-login", corev1.SecretTypeDockerConfigJson,
		map[string]string{corev1.DockerConfigJsonKey: string(login)})
	repository := s.info.HostRegistry + "/" + s.namespace + "/hostile"
	other, err := remote.Image(reference(t, s.info.HostRegistry+"/armature/busybox:latest"))
	must(t, err)
	must(t, remote.Write(reference(t, repository+":other"), other))
	kind, err := other.MediaType()
	must(t, err)
	s.apply(t, strings.NewReplacer("MODE", s.briefProd(t), "KINDOF", string(kind)).Replace(`
apiVersion: agent.kagenti.dev/v1alpha1
kind: AgentBuild
metadata: {name: hostile}
spec:
  mode: MODE
  cleanupAfterBuild: false
  source: {sourceRepository: "${git}/private/${namespace}.git", sourceRevision: main, sourceCredentials: {name: git-login}}
  pod: {resources: {requests: {cpu: 50m, memory: 64Mi}}}
  pipeline:
    parameters:
    - {name: TEST_IMAGE, value: "docker.io/library/busybox:1.37.0"}
    - {name: PLAIN_HTTP, value: "true"}
  buildArgs:
  - {name: BASE, value: "${registry}/armature/busybox:latest"}
  - {name: REGISTRY, value: "${registry}"}
  - {name: REPOSITORY, value: "${namespace}/hostile"}
  - {name: KIND, value: "KINDOF"}
  buildOutput: {imageRegistry: "${registry}/${namespace}", image: hostile, imageTag: v1, imageRepoCredentials: {name: registry-login}}
`))
	build := s.succeeded(t, "hostile")
	image := strings.Replace(build.Status.BuiltImage, s.info.Registry, s.info.HostRegistry, 1)
	loot := s.fileOf(t, image, "loot")
	if !strings.Contains(loot, "planted-canary") || !strings.Contains(loot, "buildkitd") {
		t.Fatalf("the search finds neither its own canary nor the daemon, so that it proves "+
			"nothing:\n%.2000s", loot)
	}
	tests := s.logOf(t, build, "tests", "step-test")
	if !strings.Contains(tests, "planted-canary") {
		t.Fatalf(
			"the tests do not find their own canary, so that their search proves nothing:\n%.2000s",
			tests)
	}
	for what, secret := range map[string]string{
		"the push password": pushPassword, "the push login": auth, "the Git token": s.info.GitToken,
		"a ServiceAccount token": "eyJhbGciOi", "a result": "wrote-a-result",
	} {
		if strings.Contains(loot, secret) {
			t.Errorf("the Dockerfile reached %s", what)
		}
		if strings.Contains(tests, secret) {
			t.Errorf("the tests reached %s", what)
		}
	}
	if agent := s.fileOf(t, image, "agent.sh"); agent != "echo genuine\n" {
		t.Errorf("the tests changed what is built: %q", agent)
	}
	s.onlyWhatWasBuilt(t, build, repository)
	s.onlyTheirLogins(t, build)
	_, digest, _ := strings.Cut(build.Status.BuiltImage, "@")
	want := []string{"buildkit-build/base-image oci://" + s.info.Registry +
		"/armature/busybox:latest " + digestOf(t, s.info.HostRegistry+"/armature/busybox:latest")}
	if got := baseImages(t, reference(t, repository+"@"+digest).(name.Digest)); !slices.Equal(got, want) {
		t.Errorf("the provenance has the base images %q, want %q", got, want)
	}
}

// podsOf a build's run, which it left, by their task.
func (s *story) podsOf(t *testing.T, build *api.AgentBuild) map[string]corev1.Pod {
	t.Helper()
	var list corev1.PodList
	must(t, s.List(t.Context(), &list, client.InNamespace(build.RunKey().Namespace),
		client.MatchingLabels{"tekton.dev/pipelineRun": build.Status.PipelineRunName}))
	pods := map[string]corev1.Pod{}
	for _, pod := range list.Items {
		pods[pod.Labels["tekton.dev/pipelineTask"]] = pod
	}
	return pods
}

// logOf a container of a task of a build.
func (s *story) logOf(t *testing.T, build *api.AgentBuild, task, container string) string {
	t.Helper()
	pod := s.podsOf(t, build)[task]
	text, err := s.logIn(t.Context(), pod.Namespace, pod.Name, container)
	must(t, err)
	return text
}

// baseImages in the provenance of an image: what builders report.
func baseImages(t *testing.T, image name.Digest) (out []string) {
	t.Helper()
	var statement struct{ Predicate sign.Provenance }
	must(t, json.Unmarshal([]byte(statementsOf(t, image)[sign.PredicateType]), &statement))
	for _, d := range statement.Predicate.BuildDefinition.ResolvedDependencies {
		if by, _ := d.Annotations.(map[string]any); by["armature_reportedBy"] == "builder" {
			out = append(out, d.Name+" "+d.URI+" sha256:"+d.Digest["sha256"])
		}
	}
	return out
}

// onlyWhatWasBuilt fails unless the tag names the image that was built, that one is attested,
// and the one that the Dockerfile pushed has no attestation.
func (s *story) onlyWhatWasBuilt(t *testing.T, build *api.AgentBuild, repository string) {
	t.Helper()
	_, digest, _ := strings.Cut(build.Status.BuiltImage, "@")
	pushed := s.fileOf(t, repository+"@"+digest, "pushed")
	if !strings.Contains(pushed, " 201 ") {
		t.Fatalf("the Dockerfile could not push, so that it proves nothing:\n%s", pushed)
	}
	other := digestOf(t, repository+":other")
	if c := meta.FindStatusCondition(build.Status.Conditions, api.ConditionAttested); c == nil ||
		c.Status != metav1.ConditionTrue {
		t.Errorf("it is not attested: %+v", c)
	}
	if now := digestOf(t, repository+":v1"); now != digest || now == other {
		t.Errorf("the tag is %s, built was %s, and the Dockerfile pushed %s", now, digest, other)
	}
	// its signature, its provenance and the verdict of its tests
	if n := s.bundles(t, repository, digest); n != 3 {
		t.Errorf("what was built has %d bundles, want 3", n)
	}
	if n := s.bundles(t, repository, other); n != 0 {
		t.Errorf("what the Dockerfile pushed has %d bundles", n)
	}
	tags, err := remote.List(reference(t, repository+":v1").Context())
	must(t, err)
	for _, tag := range tags {
		if strings.HasPrefix(tag, strings.Replace(other, ":", "-", 1)) {
			t.Errorf("what the Dockerfile pushed is signed: %s", tag)
		}
	}
}

// onlyTheirLogins fails unless clone and push alone have a login, and no pod has a token.
func (s *story) onlyTheirLogins(t *testing.T, build *api.AgentBuild) {
	t.Helper()
	var pushed []string
	logins := map[string][]string{} // containers by the purpose of the Secret that they mount
	for task, pod := range s.podsOf(t, build) {
		secrets := map[string]string{}
		for _, volume := range pod.Spec.Volumes {
			if volume.Secret != nil {
				secrets[volume.Name], _, _ = strings.Cut(volume.Secret.SecretName, "-")
			}
		}
		for _, container := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
			for _, mount := range container.VolumeMounts {
				if secret := secrets[mount.Name]; secret != "" {
					logins[secret] = append(logins[secret], task+"/"+container.Name)
				}
			}
			if task == "push" && container.Name == "step-push" {
				pushed = append(pushed, container.Image)
			}
		}
		for _, volume := range pod.Spec.Volumes {
			if volume.Projected == nil {
				continue
			}
			for _, source := range volume.Projected.Sources {
				if source.ServiceAccountToken != nil {
					t.Errorf("pod %s has a ServiceAccount token", pod.Name)
				}
			}
		}
	}
	if want := map[string][]string{"git": {"github-clone/step-clone"},
		"registry": {"push/step-push"}}; !maps.EqualFunc(logins, want, slices.Equal) {
		t.Errorf("containers with a login are %v, want %v", logins, want)
	}
	// It is the program of the controller that was installed, by --image.
	if want := s.info.Images["armature-controller"]; !slices.Equal(pushed, []string{want}) {
		t.Errorf("push runs %q, want %s", pushed, want)
	}
}

// A Dockerfile that is built without a network reaches neither the registry nor the
// node's metadata service, as pods do.
func TestDockerfileWithoutNetwork(t *testing.T) {
	t.Parallel()
	s := newStory(t, nil)
	s.installed(t)
	s.push(t, "testdata/isolated", "public/"+s.namespace+".git")
	if s.info.Metadata != "" {
		must(t, s.Create(t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "control", Namespace: s.namespace},
			Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever,
				Containers: []corev1.Container{
					{Name: "agent", Image: s.info.Images["busybox"],
						Command: []string{"wget", "-q", "-O", "-", s.info.Metadata}}}},
		}))
	}
	s.apply(t, strings.ReplaceAll(`
apiVersion: agent.kagenti.dev/v1alpha1
kind: AgentBuild
metadata: {name: isolated}
spec:
  mode: dev-local
  cleanupAfterBuild: false
  network: none
  source: {sourceRepository: "${git}/public/${namespace}.git", sourceRevision: main}
  pod: {resources: {requests: {cpu: 50m, memory: 64Mi}}}
  buildArgs:
  - {name: BASE, value: "${registry}/armature/busybox:latest"}
  - {name: PLACES, value: "http://${registry}/v2/ METADATA"}
  buildOutput: {imageRegistry: "${registry}/${namespace}", image: isolated, imageTag: v1}
`, "METADATA", s.info.Metadata))
	image := s.succeeded(t, "isolated").Status.BuiltImage
	got := s.fileOf(t, strings.Replace(image, s.info.Registry, s.info.HostRegistry, 1), "reached")
	if !strings.Contains(got, "looked for http://"+s.info.Registry) ||
		strings.Contains(got, "reached ") {
		t.Errorf("without a network it reaches:\n%s", got)
	}
	if s.info.Metadata != "" {
		s.says(t, "control", s.info.MetadataToken)
		if !strings.Contains(got, "looked for "+s.info.Metadata) ||
			strings.Contains(got, s.info.MetadataToken) {
			t.Errorf("without a network it reaches the metadata service, or does not try:\n%s", got)
		}
	}
	s.securityContexts(t)
}
