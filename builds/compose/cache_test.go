package compose_test

import (
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/builds/compose/tekton"
	"github.com/armature-dev/armature/builds/compose/templates"
)

// given is the value of a parameter of the composed run, empty for none.
func given(out *compose.Output, parameter string) string {
	for _, p := range out.Run.Spec.Params {
		if p.Name == parameter {
			return p.Value.StringVal
		}
	}
	return ""
}

// A build has a cache of its own beside its image, within it where that is pushed with a
// login; it names any other.
func TestCacheOfABuild(t *testing.T) {
	const own, login = "registry.local:5000/weather:team1.weather-cache",
		"    imageRepoCredentials: {name: login}\n"
	for what, c := range map[string]struct{ mode, spec, cache, cacheMode, imageCache string }{
		"no cache named": {"dev\n  builder: buildkit", "", own, "", ""},
		"off": {"dev\n  builder: buildkit", "  cache: {mode: 'off'}\n", "",
			"off", ""},
		"min": {"dev\n  builder: buildkit", "  cache: {mode: min}\n", own,
			"min", ""},
		"a login": {"dev\n  builder: buildkit", login, "", "", own},
		"a login, and off": {"dev\n  builder: buildkit",
			login + "  cache: {mode: 'off'}\n", "", "off", ""},
		"a login, and min": {"dev\n  builder: buildkit",
			login + "  cache: {mode: min}\n", "", "min", own},
		"a login, and max": {"dev\n  builder: buildkit",
			login + "  cache: {mode: max}\n", own, "max", ""},
		"a login, and a name": {"dev\n  builder: buildkit",
			login + "  cache: {registry: other.local/cache, mode: min}\n", "other.local/cache",
			"min", ""},
		"a name": {"dev\n  builder: buildkit",
			"  cache: {registry: other.local/cache}\n", "other.local/cache", "max", ""},
		"a builder without a cache":   {"dev-local\n  builder: kaniko", "", "", "", ""},
		"a builder without, a login":  {"dev-local\n  builder: kaniko", login, "", "", ""},
		"tests":                       {"preprod\n  builder: buildkit", "", own, "", ""},
		"a mode that takes no cache":  {"prod\n  builder: buildkit", "", "", "", ""},
		"no cache there with a login": {"prod\n  builder: buildkit", login, "", "", ""},
	} {
		build := strings.Replace(strings.Replace(good, "mode: own", "mode: "+c.mode, 1),
			"name: weather", "name: weather\n  namespace: team1", 1)
		out, err := plan(t, []byte(build+c.spec), nil, compose.Settings{})
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		cache, mode, image := given(out, "cache"), given(out, "cache-mode"), given(out, "image-cache")
		if cache != c.cache || mode != c.cacheMode || image != c.imageCache {
			t.Errorf(
				"%s: the cache is %q in mode %q, and %q with the image, want %q in mode %q, and %q",
				what, cache, mode, image, c.cache, c.cacheMode, c.imageCache)
		}
	}
}

// Buildpacks keep a cache beside the image, with or without a login, unless it is off.
func TestCacheOfBuildpacks(t *testing.T) {
	const own, login = "registry.local:5000/weather:default.weather-cache-buildpacks",
		"    imageRepoCredentials: {name: login}\n"
	for what, c := range map[string]struct{ mode, spec, cache, problem string }{
		"alone":        {"buildpack-dev", "", own, ""},
		"with a login": {"buildpack-dev", login, own, ""},
		"off":          {"buildpack-dev", "  cache: {mode: 'off'}\n", "", ""},
		"elsewhere": {"buildpack-dev",
			"  cache: {registry: other.local/cache}\n", "", "no step of this pipeline takes cache"},
		"where there is no Dockerfile": {"dev", "", own, ""},
		"beside kaniko":                {"dev\n  builder: kaniko", "", own, ""},
		"beside kaniko, off": {"dev\n  builder: kaniko", "  cache: {mode: 'off'}\n", "",
			""},
		"beside kaniko, which has none": {"dev\n  builder: kaniko", "  cache: {mode: max}\n", "",
			"no step of this pipeline takes cache"},
	} {
		out, err := plan(t, []byte(strings.Replace(good, "mode: own", "mode: "+c.mode, 1)+c.spec),
			nil, compose.Settings{})
		if c.problem != "" {
			if err == nil || !strings.Contains(err.Error(), c.problem) {
				t.Errorf("%s: the error is %v, want %q", what, err, c.problem)
			}
			continue
		}
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if cache := given(out, "buildpacks-cache"); cache != c.cache {
			t.Errorf("%s: the cache is %q, want %q", what, cache, c.cache)
		}
	}
}

// An isolated run has no cache, whoever asks for one, and no volume that was there before it or
// is there after it.
func TestIsolatedVolumes(t *testing.T) {
	const step = "params: [{name: cache, default: none}, {name: cache-mode, default: max}]\n" +
		"steps: [{name: say, image: a, command: [a, $(params.cache)]}]\n"
	settings := compose.Settings{BuildNamespace: "armature-builds", RuntimeClass: "gvisor"}
	for _, c := range []struct{ template, spec, problem string }{
		{"attest: true\n", "", ""},
		{"attest: true\n", "  cache: {registry: other.local/cache}\n", "takes no cache"},
		{"attest: true\n", "  cache: {mode: max}\n", "takes no cache"},
		{"attest: true\n",
			"  pipeline: {workspaces: [{name: source, persistentVolumeClaim: {name: mine}}]}\n",
			"spec.pipeline.workspaces[0]"},
		{"attest: true\n", "  workspace: {keep: true}\n", "spec.workspace.keep"},
		{"attest: true\ncache: true\n", "", "a writer of the cache decides what is built"},
	} {
		out, err := plan(t, []byte(good+"  timeout: 5m\n"+c.spec), fstest.MapFS{
			"template.yaml": configMap("pipeline-template-own", templates.TemplateKeyYAML,
				c.template+"steps: [{name: only, configMap: own-step}]\n"),
			"step.yaml": configMap("own-step", templates.StepKey, step),
		}, settings)
		if (err == nil) != (c.problem == "") ||
			err != nil && !strings.Contains(err.Error(), c.problem) {
			t.Errorf("%s%s: the error is %v, want %q", c.template, c.spec, err, c.problem)
		} else if err == nil && given(out, "cache") != "" {
			t.Errorf("the cache is %s", given(out, "cache"))
		}
	}
	out, err := plan(t,
		[]byte(strings.Replace(good, "mode: own", "mode: prod\n  builder: buildkit", 1)+
			"    imageRepoCredentials: {name: login}\n"), nil, settings)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range out.Run.Spec.Workspaces {
		if w.PersistentVolumeClaim != nil || w.ConfigMap != nil || w.CSI != nil || w.Projected != nil {
			t.Errorf("workspace %s is not the run's own: %+v", w.Name, w)
		}
	}
	if pod := out.Run.Spec.TaskRunTemplate.PodTemplate; pod.RuntimeClassName == nil ||
		*pod.RuntimeClassName != "gvisor" || len(pod.Volumes) > 0 {
		t.Errorf("pods are %+v", pod)
	}
	if strings.Contains(tekton.JSON(out.Pipeline), `"persistentVolumeClaim"`) || len(out.Apply) > 0 {
		t.Errorf("a claim is in the pipeline, or %d objects are applied before it", len(out.Apply))
	}
	if out, err = plan(t, []byte(strings.Replace(good, "mode: own", "mode: dev", 1)), nil,
		settings); err != nil || out.Run.Spec.TaskRunTemplate.PodTemplate.RuntimeClassName != nil {
		t.Errorf("a run of mode dev has the RuntimeClass of isolated ones, or %v", err)
	}
}

// The tag of a cache is one for each namespace and name, however long they are, with room
// for a platform.
func TestCacheTags(t *testing.T) {
	long := strings.Repeat("n", 120)
	seen := map[string]bool{}
	for _, at := range []string{"name: b\n  namespace: team-a", "name: a-b\n  namespace: team",
		"name: a.b\n  namespace: team", "name: b", "name: " + long + "1\n  namespace: team",
		"name: " + long + "2\n  namespace: team"} {
		build := strings.Replace(strings.Replace(good, "mode: own",
			"mode: dev\n  builder: buildkit", 1), "name: weather", at, 1)
		out, err := plan(t, []byte(build), nil, compose.Settings{})
		if err != nil {
			t.Fatal(err)
		}
		cache := given(out, "cache")
		if _, err := name.NewTag(cache+"-linux-riscv64", name.StrictValidation); err != nil ||
			seen[cache] {
			t.Errorf("%s: the cache is %s: %v", at, cache, err)
		}
		seen[cache] = true
	}
}

// A template whose runs are isolated takes no cache, and no step is given one by default because of
// the name of a parameter.
func TestCacheOfATemplate(t *testing.T) {
	const step = "params: [{name: cache, default: none}, {name: cache-mode, default: max}]\n" +
		"steps: [{name: say, image: a, command: [a, $(params.cache)]}]\n"
	for what, c := range map[string]struct{ template, step, spec, cache, problem string }{
		"attests": {"attest: true\n", step, "", "", ""},
		"attests, build asks": {"attest: true\n", step,
			"  cache: {registry: other.local/cache}\n", "", "takes no cache"},
		"attests with cache": {"attest: true\ncache: true\n", step, "", "",
			"a writer of the cache decides what is built"},
		"isolates": {"isolate: true\n", step, "", "", ""},
		"isolates, build asks": {"isolate: true\n", step,
			"  cache: {registry: other.local/cache}\n", "", "takes no cache"},
		"plain": {"", step, "",
			"registry.local:5000/weather:default.weather-cache", ""},
		"refuses": {"cache: false\n", step, "", "", ""},
		"another cache": {"", strings.Replace(step, ", {name: cache-mode, default: max}",
			"", 1), "", "", ""},
		"another cache, was set": {"", strings.Replace(step, ", {name: cache-mode, default: max}",
			"", 1), "  cache: {registry: other.local/cache}\n", "",
			"no step of this pipeline takes cache-mode"},
	} {
		out, err := plan(t, []byte(good+"  timeout: 5m\n"+c.spec), fstest.MapFS{
			"template.yaml": configMap("pipeline-template-own", templates.TemplateKeyYAML,
				c.template+"steps: [{name: only, configMap: own-step}]\n"),
			"step.yaml": configMap("own-step", templates.StepKey, c.step),
		}, compose.Settings{})
		if c.problem != "" {
			if err == nil || !strings.Contains(err.Error(), c.problem) {
				t.Errorf("%s: the error is %v, want %q", what, err, c.problem)
			}
			continue
		}
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if cache := given(out, "cache"); cache != c.cache {
			t.Errorf("%s: the cache is %q, want %q", what, cache, c.cache)
		}
	}
}
