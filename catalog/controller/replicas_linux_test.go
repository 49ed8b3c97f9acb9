package controller_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/catalog/api"
	"github.com/armature-dev/armature/catalog/controller"
	"github.com/armature-dev/armature/catalog/store"
	"github.com/armature-dev/armature/catalog/store/database"
	pg "github.com/armature-dev/armature/e2e/catalog/postgres"
	"github.com/armature-dev/armature/render/process"
)

// Of two replicas that share a PostgreSQL one asks and writes. When it is killed, the other one
// goes on: what both serve loses nothing, and has nothing twice.
func TestTwoReplicasOfOneStore(t *testing.T) {
	server := pg.Own(t)
	address, err := server.Database()
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	served, err := database.Open(t.Context(), address) // as the API of either replica reads it
	w.must(err)
	t.Cleanup(func() { w.must(served.Close()) })
	var asked atomic.Int32
	counted := func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			asked.Add(1)
			h.ServeHTTP(rw, r)
		})
	}
	const cards = 5
	for i := range cards {
		name := fmt.Sprint("weather", i)
		w.pod(name, name, counted(weather("1")))
		w.card(name)
	}
	later := w.pod("later", "later", counted(weather("1")))
	replica := settings{Namespaces: []string{w.namespace}, Store: address, At: w.network.at, Elects: true}
	first := w.processOf(replica)
	entries := func(want int) {
		t.Helper()
		w.eventually(fmt.Sprintf("%d entries", want), func() string {
			all, err := served.List(t.Context(), store.Query{Scope: store.Everything()})
			if err != nil {
				return err.Error()
			}
			healthy := 0
			for _, e := range all {
				if e.Health == store.Healthy {
					healthy++
				}
			}
			if len(all) != want || healthy != want {
				return fmt.Sprintf("%d entries, %d healthy", len(all), healthy)
			}
			return ""
		})
	}
	entries(cards)
	var before int32
	w.eventually("the first has asked all that it wants", func() string {
		before = asked.Load()
		time.Sleep(3 * time.Second)
		return map[bool]string{false: "it asks"}[asked.Load() == before]
	})
	w.processOf(replica)
	time.Sleep(5 * time.Second)
	if n := asked.Load(); n != before {
		t.Errorf("the second replica asks beside the first: %d requests after %d", n, before)
	}
	w.must(first.Kill())
	w.card(later.Name) // while nobody leads
	entries(cards + 1)
}

// A replica whose store is a file serves nothing beside one that leads: it stays empty.
func TestSecondReplicaWithAFile(t *testing.T) {
	for _, shared := range []bool{false, true} {
		t.Run(fmt.Sprint(shared), func(t *testing.T) { secondReplica(newWorld(t), shared) })
	}
}

func secondReplica(w *world, shared bool) {
	elects := process.Options{LeaderElection: true}
	w.card("weather")
	w.startWith(controller.Options{Options: elects, Shared: shared})
	w.eventually("the first leads", func() string {
		if w.status("weather").Phase == "" {
			return "not yet"
		}
		return ""
	})
	free, err := net.Listen("tcp", "127.0.0.1:0")
	w.must(err)
	elects.HealthAddress = free.Addr().String()
	w.must(free.Close())
	w.startWith(controller.Options{Options: elects, Shared: shared})
	want := map[bool]int{false: http.StatusInternalServerError, true: http.StatusOK}[shared]
	w.eventually(fmt.Sprintf("shared %v: readiness %d", shared, want), func() string {
		answer, err := http.Get("http://" + elects.HealthAddress + "/readyz")
		if err != nil {
			return err.Error()
		}
		defer answer.Body.Close()
		if answer.StatusCode != want {
			text, _ := io.ReadAll(answer.Body)
			return string(text)
		}
		return ""
	})
}

// TestUnclaimedCard expects a card to be failing while its shard has no leader, with the reason, and
// healthy once its label is removed.
func TestUnclaimedCard(t *testing.T) {
	w := newWorld(t)
	const key = "sharding.fluxcd.io/key"
	w.pod("weather", "weather", weather("1"))
	c := w.card("weather", func(c *api.AgentCard) {
		metav1.SetMetaDataLabel(&c.ObjectMeta, key, "nobody")
	})
	w.startWith(controller.Options{Options: process.Options{
		Shard: process.Shard{Key: key}, LeaderElection: true, UnclaimedAfter: time.Second,
	}})
	says := func(want string) {
		t.Helper()
		w.eventually(want, func() string {
			e, err := w.store.Get(t.Context(),
				store.Key{Resource: cards, Namespace: w.namespace, Name: "weather"})
			if got := fmt.Sprint(e.Health, e.Message, err,
				w.status("weather").Conditions); !strings.Contains(got, want) {
				return got
			}
			return ""
		})
	}
	says("no controller looks after " + key + "=nobody")
	delete(c.Labels, key)
	w.must(w.Client.Patch(t.Context(), c,
		client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"`+key+`":null}}}`))))
	says(string(store.Healthy))
}

// A card that moves to another shard keeps its entry, and the other one asks for it from then on.
func TestCardsMoveBetweenShards(t *testing.T) {
	w := newWorld(t)
	const key = "sharding.fluxcd.io/key"
	for _, value := range []string{"a", ""} {
		w.startWith(
			controller.Options{
				Options: process.Options{Shard: process.Shard{Key: key, Value: value}}})
	}
	pod := w.pod("weather", "weather", weather("1"))
	c := w.card("weather", func(c *api.AgentCard) {
		metav1.SetMetaDataLabel(&c.ObjectMeta, key, "b")
	})
	stored := func() string {
		e, err := w.store.Get(t.Context(),
			store.Key{Resource: cards, Namespace: w.namespace, Name: "weather"})
		if err != nil {
			return err.Error()
		}
		return string(e.Health)
	}
	time.Sleep(time.Second)
	if got := stored(); got != store.ErrNotFound.Error() {
		t.Errorf("a card of no shard that runs: %s", got)
	}
	move := func(value string) {
		t.Helper()
		patch := fmt.Sprintf(`{"metadata":{"labels":{%q:%s}}}`, key, value)
		w.must(w.Patch(t.Context(), c, client.RawPatch(types.MergePatchType, []byte(patch))))
	}
	for _, value := range []string{`"a"`, "null", `"a"`} {
		move(value)
		w.eventually("it is asked for", func() string {
			if got := stored(); got != string(store.Healthy) {
				return got
			}
			return ""
		})
		time.Sleep(500 * time.Millisecond) // the shard that it left sees it go
		if got := stored(); got != string(store.Healthy) {
			t.Errorf("moved to %s: %s", value, got)
		}
	}
	w.remove(pod)
	w.must(w.Delete(t.Context(), c))
	w.eventually("it is gone", func() string {
		if got := stored(); got != store.ErrNotFound.Error() {
			return got
		}
		return ""
	})
}
