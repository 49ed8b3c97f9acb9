package controller_test

import (
	"fmt"
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/armature-dev/armature/render/archive"
	"github.com/armature-dev/armature/render/deliver/flux/api"
)

// packed serves an archive of a source with one manifest, and returns the artifact that names it.
func (w *world) packed(kind, name, revision, value string) map[string]any {
	w.Helper()
	data := pack(w, map[string]string{"settings.yaml": configMap("settings", value)})
	path := w.path(kind, name, value+".tar.gz")
	w.serve(path, data)
	return map[string]any{"digest": archive.Digest(data), "path": path, "url": w.host.URL + path,
		"revision": revision, "lastUpdateTime": "2026-11-22T20:00:00Z"}
}

// publishes waits until what is published has a revision of the source, and the value in
// its manifest.
func (w *world) publishes(name, revision, value string) {
	w.Helper()
	w.eventually(name+" publishes "+revision, func() string {
		if a := w.get(name).Status.Artifact; a == nil || a.OriginRevision != revision {
			_, reason, message := w.condition(name, "Ready")
			return fmt.Sprintf("%+v, %s: %s", a, reason, message)
		}
		return ""
	})
	artifact := w.published(name)
	if want := revision + "+" + artifact["digest"].(string); artifact["revision"] != want {
		w.Errorf("%s has the revision %v, want %s", name, artifact["revision"], want)
	}
	if text := string(w.fetch(artifact)["settings.yaml"]); !strings.Contains(text, "key: "+value+"\n") {
		w.Errorf("%s publishes\n%s", name, text)
	}
}

// Each kind of Flux's sources can be rendered, and its next revision is.
func TestOriginKinds(t *testing.T) {
	w := newWorld(t, shared.Get(t))
	w.start()
	for kind, c := range map[string]struct {
		spec      map[string]any
		revisions [2]string
	}{
		"Bucket": {map[string]any{"bucketName": "fleet", "endpoint": "minio.example",
			"interval": "1m"}, [2]string{"sha256:" + strings.Repeat("a", 64),
			"sha256:" + strings.Repeat("b", 64)}},
		"OCIRepository": {map[string]any{"url": "oci://registry.example/fleet",
			"interval": "1m"}, [2]string{"v1@sha256:" + strings.Repeat("a", 64),
			"v2@sha256:" + strings.Repeat("b", 64)}},
		"ExternalArtifact": {map[string]any{}, [2]string{"latest@sha256:" + strings.Repeat("a", 64),
			"latest@sha256:" + strings.Repeat("b", 64)}},
	} {
		name, from := strings.ToLower(kind), strings.ToLower(kind)+"-source"
		w.rendered(name, from, func(s *api.RenderedSource) { s.Spec.SourceRef.Kind = kind })
		for i, revision := range c.revisions {
			value := fmt.Sprint(name, i)
			w.source(kind, from, c.spec, w.packed(kind, from, revision, value))
			w.publishes(name, revision, value)
		}
	}
}

// A source of another namespace is rendered where the operator allows it, and a new
// revision of it wakes the RenderedSource. What is published is in its own namespace.
func TestCrossNamespace(t *testing.T) {
	w := newWorld(t, shared.Get(t))
	other := newWorld(t, shared.Get(t))
	o := w.options()
	o.Namespaces = append(o.Namespaces, other.namespace)
	elsewhere := func(s *api.RenderedSource) { s.Spec.SourceRef.Namespace = other.namespace }
	other.repository("fleet", "aaaa", map[string]string{"settings.yaml": settings})
	w.rendered("app", "fleet", elsewhere)

	stop := w.startWith(o)
	if message := w.fails("app", "AccessDenied"); !strings.Contains(message,
		"GitRepository "+other.namespace+"/fleet is in another namespace") {
		t.Errorf("message: %s", message)
	}
	stop()
	o.CrossNamespace = true
	w.startWith(o)
	w.ready("app", "aaaa")
	other.repository("fleet", "bbbb",
		map[string]string{"settings.yaml": configMap("settings", "b")})
	w.ready("app", "bbbb")
	if got := other.published("app"); got != nil {
		t.Errorf("it is published beside its source: %v", got)
	}
	// A RenderedSource and its source may have one name.
	w.source("ExternalArtifact", "made", map[string]any{},
		w.packed("ExternalArtifact", "made", "latest@sha256:"+strings.Repeat("a", 64), "made"))
	other.rendered("made", "made", func(s *api.RenderedSource) {
		s.Spec.SourceRef.Kind, s.Spec.SourceRef.Namespace = "ExternalArtifact", w.namespace
	})
	other.publishes("made", "latest@sha256:"+strings.Repeat("a", 64), "made")
}

// Two RenderedSources of different namespaces that render each other stop.
func TestCrossNamespaceCycle(t *testing.T) {
	w := newWorld(t, shared.Get(t))
	other := newWorld(t, shared.Get(t))
	o := w.options()
	o.Namespaces, o.CrossNamespace = append(o.Namespaces, other.namespace), true
	w.startWith(o)
	from := func(namespace string) func(*api.RenderedSource) {
		return func(s *api.RenderedSource) {
			s.Spec.SourceRef.Kind, s.Spec.SourceRef.Namespace = "ExternalArtifact", namespace
		}
	}
	w.rendered("loop", "loop", from(other.namespace))
	other.rendered("loop", "loop", from(w.namespace))
	if message := w.fails("loop", "CyclicSource"); !strings.Contains(message,
		"loop → "+other.namespace+
			"/loop → loop: a RenderedSource cannot render what it publishes") {
		t.Errorf("message: %s", message)
	}
	other.fails("loop", "CyclicSource")
}

// Metrics count reconciliations by outcome, as Flux's dashboards read them, and forget
// what is gone.
func TestMetrics(t *testing.T) {
	w := newWorld(t, shared.Get(t))
	w.start()
	w.repository("fleet", "aaaa", map[string]string{"settings.yaml": settings})
	w.rendered("app", "fleet")
	w.ready("app", "aaaa")
	w.rendered("lost", "nobody")
	w.fails("lost", "SourceNotReady")
	value := func(metric, name string, labels map[string]string) (found float64) {
		t.Helper()
		families, err := ctrlmetrics.Registry.Gather()
		w.must(err)
		labels["name"], labels["namespace"] = name, w.namespace
		for _, f := range families {
			if f.GetName() != metric {
				continue
			}
			for _, m := range f.Metric {
				matching := 0
				for _, l := range m.Label {
					if value, ok := labels[l.GetName()]; ok && value == l.GetValue() {
						matching++
					}
				}
				if matching == len(labels) {
					found += m.GetCounter().GetValue() + m.GetGauge().GetValue() +
						float64(m.GetHistogram().GetSampleCount())
				}
			}
		}
		return found
	}
	counted := func(what string, metric, name string, labels map[string]string, want bool) {
		t.Helper()
		w.eventually(what, func() string {
			if got := value(metric, name, labels); (got > 0) != want {
				return fmt.Sprintf("%s of %s %v is %v", metric, name, labels, got)
			}
			return ""
		})
	}
	const durations, attempts, size = "gotk_reconcile_duration_seconds",
		"armature_rendered_source_attempts_total", "armature_rendered_source_archive_bytes"
	const ready = "armature_rendered_source_ready"
	counted("durations", durations, "app", map[string]string{"kind": "RenderedSource"}, true)
	counted("success", attempts, "app", map[string]string{"reason": "Succeeded"}, true)
	counted("failure", attempts, "lost", map[string]string{"reason": "SourceNotReady"}, true)
	counted("ready", ready, "app", map[string]string{}, true)
	counted("not ready", ready, "lost", map[string]string{}, false)
	counted("no success", attempts, "lost", map[string]string{"reason": "Succeeded"}, false)
	if got, want := value(size, "app", map[string]string{}),
		float64(w.get("app").Status.Artifact.Size); got != want {
		t.Errorf("the archive has %v bytes, want %v", got, want)
	}
	w.must(w.Delete(t.Context(), w.get("app")))
	w.eventually("it is gone", func() string {
		err := w.Get(t.Context(), client.ObjectKey{Namespace: w.namespace, Name: "app"},
			&api.RenderedSource{})
		if err == nil || client.IgnoreNotFound(err) != nil {
			return fmt.Sprint(err)
		}
		return ""
	})
	for _, metric := range []string{durations, attempts, size, ready} {
		counted("forgotten", metric, "app", map[string]string{}, false)
	}
}
