package controller_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/armature-dev/armature/render/deliver/flux/api"
	"github.com/armature-dev/armature/render/process"
)

// A RenderedSource that moves to another shard is published from there, with the same content, and
// from where it was for as long as a consumer may still fetch it.
func TestShards(t *testing.T) {
	w := newWorld(t, shared.Get(t))
	const key = "sharding.fluxcd.io/key"
	of := func(value string) func(*api.RenderedSource) {
		return func(s *api.RenderedSource) { metav1.SetMetaDataLabel(&s.ObjectMeta, key, value) }
	}
	for _, value := range []string{"a", "b"} {
		o := w.options()
		o.Dir, o.Shard = t.TempDir(), process.Shard{Key: key, Value: value}
		w.startWith(o)
	}
	w.repository("fleet", "aaaa", map[string]string{"settings.yaml": settings})
	w.rendered("none", "fleet")
	w.rendered("app", "fleet", of("a"))
	w.ready("app", "aaaa")
	first := w.published("app")
	w.change("app", of("b"))
	w.eventually("it is published by the other shard", func() string {
		if now := w.published("app"); now["url"] == first["url"] ||
			now["digest"] != first["digest"] || now["revision"] != first["revision"] {
			return fmt.Sprintf("%v, before %v", now, first)
		}
		return ""
	})
	time.Sleep(time.Second) // the shard that it left sees it go
	for _, url := range []any{first["url"], w.published("app")["url"]} {
		answer, err := http.Get(fmt.Sprint(url))
		w.must(err)
		w.must(answer.Body.Close())
		if answer.StatusCode != http.StatusOK {
			t.Errorf("%v: %s", url, answer.Status)
		}
	}
	w.repository("fleet", "bbbb", map[string]string{"settings.yaml": configMap("settings", "b")})
	w.ready("app", "bbbb")
	if got := w.published("none"); got != nil {
		t.Errorf("one of neither shard is published: %v", got)
	}
}

// TestUnclaimedShard expects the status of a RenderedSource to name its shard while the shard has no
// leader, and the source to be ready once its label is removed.
func TestUnclaimedShard(t *testing.T) {
	w := newWorld(t, shared.Get(t))
	const key = "sharding.fluxcd.io/key"
	o := w.options()
	o.Dir, o.Shard = t.TempDir(), process.Shard{Key: key}
	// a lease of its own
	o.Namespace, o.LeaderElection, o.UnclaimedAfter = w.namespace, true, time.Second
	w.startWith(o)
	w.repository("fleet", "aaaa", map[string]string{"settings.yaml": settings})
	w.rendered("app", "fleet", func(s *api.RenderedSource) {
		metav1.SetMetaDataLabel(&s.ObjectMeta, key, "nobody")
	})
	if message := w.fails("app", "NoShard"); !strings.Contains(message,
		"no controller looks after "+key+"=nobody") {
		t.Errorf("message %q", message)
	}
	w.change("app", func(s *api.RenderedSource) { delete(s.Labels, key) })
	w.ready("app", "aaaa")
}
