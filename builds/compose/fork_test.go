package compose_test

import (
	"strings"
	"testing"
	"testing/fstest"

	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/builds/compose/tekton"
	"github.com/armature-dev/armature/builds/compose/templates"
	"github.com/armature-dev/armature/functions/api/keys"
)

// forkOf a build: of a pull request of another repository.
func forkOf(build string) string {
	return strings.Replace(build, "  source:\n",
		"  source:\n    sourceRevision: 0123456789abcdef0123456789abcdef01234567\n"+
			"    pullRequest: {number: 12, fork: true}\n", 1)
}

// The build of a fork has no cache and no proof, in every mode, and what a mode does besides
// is done.
func TestForks(t *testing.T) {
	for _, mode := range []string{"dev", "buildpack-dev", "dev-local", "preprod", "prod"} {
		build := strings.Replace(good, "mode: own", "mode: "+mode, 1)
		plain, err := plan(t, []byte(build), nil, compose.Settings{})
		if err != nil {
			t.Fatalf("%s: %v", mode, err)
		}
		out, err := plan(t, []byte(forkOf(build)), nil, compose.Settings{})
		if err != nil {
			t.Fatalf("%s: %v", mode, err)
		}
		if len(out.Pipeline.Spec.Tasks) != len(plain.Pipeline.Spec.Tasks) {
			t.Errorf("%s: %d tasks, want %d", mode, len(out.Pipeline.Spec.Tasks),
				len(plain.Pipeline.Spec.Tasks))
		}
		text := tekton.JSON(out.Run)
		for _, never := range []string{"weather-cache", "secretName", "secretKeyRef",
			"persistentVolumeClaim\"", keys.AnnotationRunDigest, keys.AnnotationMaterials} {
			if strings.Contains(text, never) {
				t.Errorf("%s has %s: %s", mode, never, text)
			}
		}
		if out.Run.Annotations[compose.ChainsSigned] == "" ||
			plain.Run.Annotations[compose.ChainsSigned] != "" {
			t.Errorf("%s: Chains would sign %v, and not %v", mode, out.Run.Annotations,
				plain.Run.Annotations)
		}
		if attested := plain.Run.Annotations[keys.AnnotationRunDigest] != ""; attested !=
			(mode == "prod") {
			t.Errorf("%s: attested %v", mode, attested)
		}
		// A pull request of the repository itself is not attested either, and may have a cache.
		own, err := plan(t, []byte(strings.Replace(forkOf(build), ", fork: true", "", 1)), nil,
			compose.Settings{})
		if err != nil {
			t.Fatalf("%s: %v", mode, err)
		}
		if given(own, "cache") != given(plain, "cache") ||
			own.Run.Annotations[keys.AnnotationRunDigest] != "" {
			t.Errorf("%s: %q, %v", mode, given(own, "cache"), own.Run.Annotations)
		}
	}
}

// What a fork's build must not have is refused, whoever named it.
func TestForkRestricted(t *testing.T) {
	step := func(more string) string {
		return "params: [{name: image, default: x}, {name: cache, default: y}]\nsteps:\n" +
			"- name: say\n  image: busybox:1.37.0\n  command: [echo, \"$(params.image) " +
			"$(params.cache)\"]\n" + more
	}
	const volume = "  volumeMounts: [{name: v, mountPath: /v}]\nvolumes:\n- name: v\n"
	for name, c := range map[string]struct{ build, step, want string }{
		"nothing of it": {step: step(volume + "  emptyDir: {}\n")},
		"a ConfigMap":   {step: step(volume + "  configMap: {name: settings}\n")},
		"a projected ConfigMap": {
			step: step(volume + "  projected: {sources: [{configMap: {name: settings}}]}\n")},
		"a Secret as a volume": {step: step(volume + "  secret: {secretName: login}\n"),
			want: "kind secret"},
		"an optional one": {
			step: step(volume + "  secret: {secretName: login, optional: true}\n"),
			want: "kind secret"},
		"a projected one": {
			step: step(volume + "  projected: {sources: [{secret: {name: login}}]}\n"),
			want: "kind secret"},
		"a ServiceAccount token": {
			step: step(volume +
				"  projected: {sources: [{serviceAccountToken: {path: t, audience: cloud}}]}\n"),
			want: "kind serviceAccountToken"},
		"a folder of the node": {step: step(volume + "  hostPath: {path: /var}\n"),
			want: "kind hostPath"},
		"a volume that stays": {
			step: step(volume + "  persistentVolumeClaim: {claimName: kept}\n"),
			want: "kind persistentVolumeClaim"},
		"a CSI volume": {
			step: step(volume + "  csi: {driver: secrets-store.csi.k8s.io}\n"), want: "kind csi"},
		"a Secret in the environment": {
			step: step("  env: [{name: T, valueFrom: {secretKeyRef: {name: login, key: t, " +
				"optional: true}}}]\n"), want: "a Secret in its environment"},
		"all of a Secret": {step: step("  envFrom: [{secretRef: {name: login}}]\n"),
			want: "a Secret in its environment"},
		"a Secret of a sidecar": {
			step: step("sidecars: [{name: s, image: busybox:1.37.0, env: [{name: T, valueFrom: " +
				"{secretKeyRef: {name: login, key: t}}}]}]\n"),
			want: "a Secret in its environment"},
		"its name in a script": {
			step: step("- name: script\n  image: busybox:1.37.0\n  script: |\n" +
				"    echo '\"secretKeyRef\":'\n")},
		"a token, by the build": {build: "  pod: {automountServiceAccountToken: true}\n",
			step: step(""), want: "a ServiceAccount or its token"},
		"a ServiceAccount": {build: "  serviceAccountName: deployer\n", step: step(""),
			want: "a ServiceAccount or its token"},
		"a kept workspace": {build: "  workspace: {keep: true}\n",
			step: step("workspaces: [{name: source}]\n"), want: "the workspace"},
		"a login, by a workspace": {
			build: "  pipeline: {workspaces: [{name: w, secret: {name: login}}]}\n",
			step:  step("workspaces: [{name: w}]\n"), want: "the workspace"},
		"a volume, by a workspace": {
			build: "  pipeline: {workspaces: [{name: w, persistentVolumeClaim: {name: kept}}]}\n",
			step:  step("workspaces: [{name: w}]\n"), want: "the workspace"},
		"a cache, as a parameter": {
			build: "  pipeline: {parameters: [{name: cache, value: registry.local/cache}]}\n",
			step:  step("")},
		"a cache, for one step": {
			build: "  pipeline: {steps: [{name: first, parameters: [{name: cache, value: " +
				"registry.local/cache}]}]}\n", step: step("")},
		"a cache, as the spec has it": {build: "  cache: {registry: registry.local/cache}\n",
			step: strings.Replace(step(""), "params: [",
				"params: [{name: cache-mode, default: x}, ", 1)},
		"a cache that a step defaults": {step: step("")},
	} {
		t.Run(name, func(t *testing.T) {
			folder := fstest.MapFS{
				"template.yaml": configMap("pipeline-template-own", templates.TemplateKeyYAML,
					"steps:\n  - name: first\n    configMap: first-step\n"),
				"first.yaml": configMap("first-step", templates.StepKey, c.step),
			}
			out, err := plan(t, []byte(forkOf(good+c.build)), folder, compose.Settings{})
			switch {
			case c.want != "" &&
				(err == nil || !strings.Contains(err.Error(), c.want) ||
					!strings.Contains(err.Error(), "is of another repository")):
				t.Errorf("%v", err)
			case c.want == "" && err != nil:
				t.Error(err)
			case c.want == "":
				for _, p := range out.Pipeline.Spec.Tasks[0].Params {
					if p.Name == "cache" && p.Value.StringVal != "" {
						t.Errorf("the cache is %q", p.Value.StringVal)
					}
				}
				if text := tekton.JSON(out.Run); strings.Contains(text, "registry.local/cache") {
					t.Errorf("the cache: %s", text)
				}
			}
			// The same build of somebody who may push is not restricted.
			if _, err := plan(t, []byte(good+c.build), folder, compose.Settings{}); err != nil &&
				strings.Contains(err.Error(), "another repository") {
				t.Error(err)
			}
		})
	}
}
