package discovery

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/fake"

	"github.com/armature-dev/armature/catalog/kinds"
	"github.com/armature-dev/armature/catalog/store"
)

// The kagenti operator's AgentCard has fields that the catalog does not know. They do not keep the
// console from opening.
func TestUnknownFields(t *testing.T) {
	card := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "agent.kagenti.dev/v1alpha1", "kind": "AgentCard",
		"metadata": map[string]any{"name": "weather", "namespace": "team1", "uid": "1"},
		"spec": map[string]any{"selector": map[string]any{
			"matchLabels": map[string]any{"app": "weather"}}},
		"status": map[string]any{"protocol": "a2a", "validSignature": true},
	}}
	lists := map[schema.GroupVersionResource]string{}
	for _, k := range kinds.All() {
		lists[k.GVR()] = k.ListKind().Kind
	}
	objects := fake.NewSimpleDynamicClientWithCustomListKinds(k8sruntime.NewScheme(), lists, card)
	s := store.NewMemory()
	if err := fillCatalog(t.Context(), s, objects, "team1"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get(t.Context(), store.Key{Resource: "agentcards.agent.kagenti.dev",
		Namespace: "team1", Name: "weather"}); err != nil {
		t.Error(err)
	}
}

// The address that lets its first reader in is in no argument of a process, where everybody on the
// machine reads it, but in a file of its owner.
func TestBrowse(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the browser is started by another program")
	}
	programs, noted := t.TempDir(), filepath.Join(t.TempDir(), "arguments")
	script := "#!/bin/sh\nfor a in \"$@\"; do echo \"$a\"; done > " + noted + ".new && mv " +
		noted + ".new " + noted + "\n"
	if err := os.WriteFile(filepath.Join(programs, "xdg-open"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", programs+":"+os.Getenv("PATH"))
	t.Setenv("TMPDIR", t.TempDir())
	const address = "http://127.0.0.1:1/login/console?token=SECRET&x=\"y"
	done, err := browse(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	var arguments []byte
	for deadline := time.Now().Add(time.Minute); len(arguments) == 0 &&
		time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		arguments, _ = os.ReadFile(noted)
	}
	file := strings.TrimSpace(string(arguments))
	if file == "" || strings.Contains(file, "SECRET") || strings.Contains(file, "\n") {
		t.Fatalf("the browser is started with %q", file)
	}
	text, err := os.ReadFile(file)
	if err != nil || !strings.Contains(string(text),
		`url=http://127.0.0.1:1/login/console?token=SECRET&amp;x=&#34;y"`) {
		t.Errorf("%s: %v", text, err)
	}
	for _, path := range []string{file, filepath.Dir(file)} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s: others may read it: %v %v", path, info, err)
		}
	}
	if err := done(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Dir(file)); !os.IsNotExist(err) {
		t.Errorf("it is left behind: %v", err)
	}
}
