package stories

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
)

// The mistakes that people make first. Each has its cause, place and remedy in the condition,
// the event and the command line, and the story prints after which time.
func TestMistakes(t *testing.T) {
	t.Parallel()
	s := newStory(t, nil)
	s.installed(t)
	s.push(t, "testdata/hello", "public/"+s.namespace+".git")
	s.push(t, "testdata/broken", "public/"+s.namespace+"-broken.git")
	inAFolder := t.TempDir()
	must(t, os.CopyFS(filepath.Join(inAFolder, "api"), os.DirFS("testdata/hello")))
	s.push(t, inAFolder, "public/"+s.namespace+"-folder.git")
	wrong, err := json.Marshal(
		map[string]any{
			"auths": map[string]any{
				s.info.PrivateRegistry: map[string]string{"username": s.info.RegistryUser,
					"password": "guess"}}})
	must(t, err)
	s.secret(t, "wrong", corev1.SecretTypeDockerConfigJson,
		map[string]string{corev1.DockerConfigJsonKey: string(wrong)})

	const good = `mode: dev, source: {sourceRepository: "${git}/public/${namespace}.git", sourceRevision: main}, buildArgs: [{name: BASE, value: "${registry}/armature/busybox:latest"}]`
	const output = `, buildOutput: {imageRegistry: "${registry}/${namespace}", image: NAME, imageTag: v1}`
	mistakes := map[string]struct{ spec, reason, says string }{
		"wrong-url": {strings.Replace(good, "${namespace}.git", "${namespace}-nowhere.git",
			1) + output, "GitRemoteRepository(NotFound|Private)",
			`spec\.source\.sourceRepository: .*does not exist.*correct the URL`},
		"wrong-branch": {strings.Replace(good, "main", "mian", 1) + output,
			api.ReasonRevisionNotFound,
			`spec\.source\.sourceRevision: .*has no revision "mian".*did you mean main\?`},
		"wrong-folder": {strings.Replace(good, "main", "main, sourceSubfolder: agents/nowhere",
			1) + output, "SubfolderNotFound",
			`task github-clone, step check-subfolder: the repository has no folder agents/nowhere; it has `},
		"no-dockerfile": {strings.Replace(good, "${namespace}.git", "${namespace}-folder.git",
			1) + output, "BuildpacksFailed",
			`the folder has no Dockerfile, so buildpacks build it; the repository has api/Dockerfile: set spec\.source\.sourceSubfolder to api`},
		"broken-dockerfile": {strings.Replace(good, "${namespace}.git", "${namespace}-broken.git",
			1) + output, "DockerfileFailed",
			`task buildkit-build, step build: Dockerfile:\d+: RUN .*: the cupboard is bare`},
		"wrong-mode": {strings.Replace(good, "mode: dev", "mode: porduction", 1) + output,
			api.ReasonTemplateNotFound, `pipeline-template-porduction.*hint: .*use one of `},
		"refused-push": {strings.Replace(good, "mode: dev", "mode: dev-external", 1) +
			`, buildOutput: {imageRegistry: "${privateRegistry}/${namespace}", image: NAME, imageTag: v1, imageRepoCredentials: {name: wrong}}`,
			api.ReasonRegistryUnauthorized,
			`spec\.buildOutput\.imageRepoCredentials: the registry answers 401 .*Secret wrong.*give the Secret a login that may push`},
		"missing-secret": {strings.Replace(good, "mode: dev", "mode: dev-external", 1) +
			`, buildOutput: {imageRegistry: "${privateRegistry}/${namespace}", image: NAME, imageTag: v1, imageRepoCredentials: {name: nowhere}}`,
			api.ReasonOutputSecretNotFound, `Secret "nowhere" does not exist .*create the Secret`},
	}
	began := map[string]time.Time{}
	for name, mistake := range mistakes {
		began[name] = time.Now()
		s.apply(t, "apiVersion: agent.kagenti.dev/v1alpha1\nkind: AgentBuild\nmetadata: {name: "+
			name+"}\nspec: {"+strings.ReplaceAll(mistake.spec, "NAME", name)+"}\n")
	}
	for name, mistake := range mistakes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			says := regexp.MustCompile(`(?s)` + mistake.says)
			build := s.refused(t, name)
			known := time.Since(began[name])
			c := meta.FindStatusCondition(build.Status.Conditions, api.ConditionReady)
			if c == nil || !regexp.MustCompile("^"+mistake.reason+"$").MatchString(c.Reason) ||
				!says.MatchString(c.Message) {
				t.Fatalf("the condition is %+v, want %s: %s", c, mistake.reason, mistake.says)
			}
			t.Logf("known after %s: %s: %s", known.Round(100*time.Millisecond), c.Reason, c.Message)
			eventually(t, time.Minute, "an event says so", func(ctx context.Context) error {
				var events eventsv1.EventList
				if err := s.List(ctx, &events, client.InNamespace(s.namespace)); err != nil {
					return err
				}
				for _, e := range events.Items {
					if e.Regarding.Name == name && e.Reason == c.Reason && says.MatchString(e.Note) {
						return nil
					}
				}
				return fmt.Errorf("none of %d does", len(events.Items))
			})
			if out := string(armature(t, "build", "describe", name, "-n",
				s.namespace)); !says.MatchString(strings.Join(strings.Fields(out), " ")) &&
				!says.MatchString(out) {
				t.Errorf("armature build describe prints\n%s", out)
			}
			if out := string(armature(t, "build", "list", "-n", s.namespace)); !strings.Contains(
				out, c.Reason) {
				t.Errorf("armature build list has no %s:\n%s", c.Reason, out)
			}
		})
	}
	t.Run("render", func(t *testing.T) {
		for name, test := range map[string]struct{ text, says string }{
			"targetRef": {"apiVersion: kagenti.io/v1alpha1\nkind: TokenExchange\n" +
				"metadata: {name: web}\nspec: {targetRef: {apiVersion: apps/v1, kind: " +
				"Deployment, name: waether}}\n",
				`a\.yaml:\d+: TokenExchange web: spec\.targetRef: the package has no Deployment waether\n  hint: did you mean weather\?`},
			"label": {"apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: other, labels: " +
				"{kagenti.io/inejct: enabled}}\nspec: {template: {spec: {containers: [{name: a, " +
				"image: b}]}}}\n",
				`a\.yaml:\d+: Deployment other: metadata\.labels\[kagenti\.io/inejct\]: nothing reads this label here\n  hint: did you mean kagenti\.io/inject\?`},
		} {
			folder := t.TempDir()
			workload := "apiVersion: apps/v1\nkind: Deployment\n" +
				"metadata: {name: weather, labels: {kagenti.io/inject: enabled}}\n" +
				"spec: {template: {spec: {containers: [{name: a, image: b}]}}}\n---\n"
			must(t, os.WriteFile(filepath.Join(folder, "a.yaml"), []byte(workload+test.text), 0o644))
			before := time.Now()
			out, _ := exec.CommandContext(t.Context(), "armature", "render", folder).CombinedOutput()
			t.Logf("%s: known after %s", name, time.Since(before).Round(time.Millisecond))
			if !regexp.MustCompile(test.says).Match(out) {
				t.Errorf("%s: armature render prints\n%s", name, out)
			}
		}
		// kubectl and the API server name a field that does not exist.
		cmd := exec.CommandContext(t.Context(), "kubectl", "--kubeconfig",
			os.Getenv("E2E_KUBECONFIG"), "create", "--namespace", s.namespace, "-f", "-")
		cmd.Stdin = strings.NewReader("apiVersion: agent.kagenti.dev/v1alpha1\nkind: AgentBuild\n" +
			"metadata: {name: field}\nspec: {mdoe: dev, source: {sourceRepository: " +
			"github.com/a/b}}\n")
		if out, err := cmd.CombinedOutput(); err == nil ||
			!strings.Contains(string(out), `unknown field "spec.mdoe"`) {
			t.Errorf("a misspelt field: %v\n%s", err, out)
		}
	})
}
