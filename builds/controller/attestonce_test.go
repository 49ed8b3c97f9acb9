package controller_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/armature-dev/armature/builds/api"
)

// Two controllers at once, as after a change of leaders that one did not notice, leave
// one statement of each kind, with a key, and with a KMS and an identity, whose signatures all
// differ.
func TestTwoControllersAttestOnce(t *testing.T) {
	t.Run("key", func(t *testing.T) { twoControllers(newWorld(t)) })
	t.Run("KMS", func(t *testing.T) {
		w := newWorld(t)
		w.options.Attest.Key, _ = w.kms()
		twoControllers(w)
	})
	t.Run("keyless", func(t *testing.T) {
		w := newWorld(t)
		w.keyless()
		twoControllers(w)
	})
}

func twoControllers(w *world) {
	t := w.TB
	shops := []*shop{newShop(t, true), newShop(t, false)}
	digests := map[string]string{}
	const builds = 6
	stop := w.start()
	for i := range builds {
		build := fmt.Sprintf("weather%d", i)
		w.create(build, shops[i%2].sold)
	}
	for i := range builds {
		w.runOf(fmt.Sprintf("weather%d", i))
	}
	stop()
	for i := range builds {
		build, s := fmt.Sprintf("weather%d", i), shops[i%2]
		s.slow = 20 * time.Millisecond
		digests[build] = s.push(t, build+":v1")
		w.play(w.runOf(build), digests[build])
	}
	w.start()
	w.start()
	for i := range builds {
		build := fmt.Sprintf("weather%d", i)
		w.phase(build, api.PhaseSucceeded)
	}
	w.never("a second statement", func() string {
		for i := range builds {
			build := fmt.Sprintf("weather%d", i)
			shops[i%2].once(t, build, digests[build])
		}
		return ""
	})
}

// The controller is killed at random moments between the end of a run and Attested:
// each image has exactly one statement of each kind. ATTEST_ROUNDS sets how often.
func TestKilledWhileAttesting(t *testing.T) {
	if testing.Short() {
		t.Skip("kills controllers; run it without -short")
	}
	t.Run("key", func(t *testing.T) { killedWhileAttesting(newWorld(t), 10) })
	t.Run("KMS", func(t *testing.T) {
		w := newWorld(t)
		key, _ := w.kms()
		killedWhileAttesting(w, 5, "--attest-key", key)
	})
	t.Run("keyless", func(t *testing.T) {
		w := newWorld(t)
		w.keyless()
		k := w.options.Attest.Keyless
		killedWhileAttesting(w, 5, "--attest-fulcio-url", k.Fulcio, "--attest-timestamp-url",
			k.Timestamps, "--attest-trusted-root", k.TrustedRoot, "--attest-identity-token", k.Token)
	})
}

func killedWhileAttesting(w *world, rounds int, flags ...string) {
	t := w.TB
	if text := os.Getenv("ATTEST_ROUNDS"); text != "" {
		if _, err := fmt.Sscan(text, &rounds); err != nil {
			t.Fatal(err)
		}
	}
	shops := []*shop{newShop(t, true), newShop(t, false)}
	for _, s := range shops {
		s.slow, s.busy = 30*time.Millisecond, 3
	}
	file := buildProgram(t)
	digests := map[string]string{}
	flags = append(flags, "--git-allow-network=127.0.0.0/8")
	cmd := w.spawn(file, flags...)
	defer func() { kill(cmd) }()
	unfinished, midway := 0, 0
	for i := range rounds {
		build, s := fmt.Sprintf("weather%d", i), shops[i%2]
		w.create(build, s.sold)
		run := w.runOf(build)
		digests[build] = s.push(t, build+":v1")
		w.play(run, digests[build])
		// After some requests to the registry. They are random, up to more than an attestation
		// takes.
		moment := s.served.Load() + rand.Int64N(100)
		w.eventually("the moment of the kill", func() string {
			if served := s.served.Load(); served < moment &&
				w.build(build).Status.Attestation == nil {
				return fmt.Sprintf("%d requests of %d", served, moment)
			}
			return ""
		})
		kill(cmd)
		if w.build(build).Status.Attestation == nil {
			unfinished++
			if bundles := s.statements(t, build, digests[build]); len(bundles) > 0 {
				midway++
			}
		}
		cmd = w.spawn(file, flags...)
	}
	for i := range rounds {
		build := fmt.Sprintf("weather%d", i)
		b := w.phase(build, api.PhaseSucceeded)
		if c := condition(b, api.ConditionAttested); c.Status != metav1.ConditionTrue {
			t.Errorf("build %s: %+v", build, c)
		}
		shops[i%2].once(t, build, digests[build])
	}
	if unfinished == 0 {
		t.Error("no kill came before the end: it proves nothing")
	}
	t.Logf("%d of %d kills came before Attested, %d of them between two writes to the registry",
		unfinished, rounds, midway)
}
