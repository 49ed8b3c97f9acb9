package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sigstore/cosign/v2/pkg/cosign"

	"github.com/armature-dev/armature/catalog/api"
	"github.com/armature-dev/armature/catalog/kinds"
	"github.com/armature-dev/armature/functions/a2a"
	"github.com/armature-dev/armature/render"
)

const cardPackage = `apiVersion: kagent.dev/v1alpha2
kind: ModelConfig
metadata: {name: default-model-config, namespace: team1}
spec: {provider: Ollama, model: llama3.2, ollama: {host: http://ollama.ollama:11434}}
---
apiVersion: kagent.dev/v1alpha2
kind: Agent
metadata: {name: weather, namespace: team1}
spec:
  type: Declarative
  description: Forecasts for <you> & me.
  declarative: {systemMessage: Be brief., modelConfig: default-model-config}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: written, namespace: team1}
data: {agent-card.json: '{"name":"Written"}'}
`

// The cards that a package generates are signed into the lock, the render puts the
// signatures in, and the catalog verifies them with the public key. A key that signs with
// another signature each time, as a KMS does, is not asked again.
func TestCardSign(t *testing.T) {
	a := offline()
	dir := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	newKey := func(name string) (key string, public []byte) {
		t.Helper()
		pair, err := cosign.GenerateKeyPair(func(bool) ([]byte, error) {
			return []byte("a password"), nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return write(name, string(pair.PrivateBytes)), pair.PublicBytes
	}
	a.env = append(a.env, "COSIGN_PASSWORD=a password")
	key, public := newKey("cosign.key")
	apps := filepath.Join(dir, "apps")
	if err := os.Mkdir(apps, 0o755); err != nil {
		t.Fatal(err)
	}
	write("apps/agents.yaml", cardPackage)
	verdict := func(card string) kinds.Verdict {
		t.Helper()
		keys, err := kinds.ReadCardKeys(map[string][]byte{"ci.pub": public})
		if err != nil {
			t.Fatal(err)
		}
		return keys.Verify([]byte(card), "team1")
	}
	rendered := func() (card, findings string) {
		t.Helper()
		out, findings := a.run(t, 0, "render", apps, "-d", filepath.Join(dir, "rendered"))
		_ = out
		text, err := os.ReadFile(filepath.Join(dir, "rendered", "agents.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		_, rest, ok := strings.Cut(string(text), "agent-card.json: |")
		if !ok {
			t.Fatalf("no card in\n%s", text)
		}
		lines := strings.Split(rest[strings.Index(rest, "\n")+1:], "\n")
		for _, line := range lines {
			if !strings.HasPrefix(line, "    ") {
				break
			}
			card += line + "\n"
		}
		return card, findings
	}

	if card, _ := rendered(); verdict(card).Verdict != api.SignatureUnsigned {
		t.Errorf("before signing: %+v of %s", verdict(card), card)
	}
	_, printed := a.run(t, 0, "card", "sign", apps, "--key", key)
	if !strings.Contains(printed, "1 agent card, 1 signed now") ||
		!strings.Contains(printed, "sign its file") {
		t.Errorf("signing says %s", printed)
	}
	lock, err := os.ReadFile(filepath.Join(apps, render.LockFile))
	if err != nil || !bytes.Contains(lock, []byte("name: weather")) {
		t.Fatalf("the lock is %s (%v)", lock, err)
	}
	card, _ := rendered()
	if v := verdict(card); v.Verdict != api.SignatureValid || v.SignedBy != "ci" {
		t.Errorf("%+v of %s", v, card)
	}
	if v := verdict(strings.Replace(card, "Forecasts", "Orders", 1)); v.Verdict != api.SignatureInvalid {
		t.Errorf("a forged card is %+v", v)
	}
	if _, printed := a.run(t, 0, "card", "sign", apps, "--key", key); !strings.Contains(printed,
		"0 signed now") {
		t.Errorf("signing again says %s", printed)
	}
	if again, err := os.ReadFile(filepath.Join(apps, render.LockFile)); err != nil ||
		!bytes.Equal(again, lock) {
		t.Errorf("signing again writes %s (%v)", again, err)
	}

	write("apps/agents.yaml", strings.Replace(cardPackage, "Forecasts", "Weather", 1))
	if card, findings := rendered(); verdict(card).Verdict != api.SignatureUnsigned ||
		!strings.Contains(findings, "run `armature card sign`") {
		t.Errorf("a changed card: %+v, %s", verdict(card), findings)
	}
	other, otherPublic := newKey("other.key")
	a.run(t, 0, "card", "sign", apps, "--key", other)
	card, _ = rendered()
	if v := verdict(card); v.Verdict != api.SignatureUnknownKey {
		t.Errorf("by another key: %+v", v)
	}
	public = otherPublic
	if v := verdict(card); v.Verdict != api.SignatureValid {
		t.Errorf("by the other key: %+v", v)
	}

	file := write("card.json", `{"name":"Written","supportedInterfaces":[],"x":"<>"}`)
	signed, _ := a.run(t, 0, "card", "sign", file, "--key", other)
	if v := verdict(signed); v.Verdict != api.SignatureValid ||
		!strings.HasPrefix(signed,
			`{"name":"Written","supportedInterfaces":[],"x":"<>","signatures":`) {
		t.Errorf("%+v of %s", v, signed)
	}
	if signatures, err := a2a.Signatures([]byte(signed)); err != nil || len(signatures) != 1 {
		t.Errorf("%d signatures (%v)", len(signatures), err)
	}
	for want, text := range map[string]string{"duplicate": `{"name":"a","name":"b"}`,
		"not a JSON object": `[]`} {
		if _, printed := a.run(t, 1, "card", "sign", write("bad.json", text), "--key",
			other); !strings.Contains(printed, want) {
			t.Errorf("%s: %s", text, printed)
		}
	}
	a.run(t, 2, "card", "sign", apps)
	a.run(t, 2, "card", "sign", "-", "--key", other)
}
