package main

import (
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The catalog of manifests alone: what their spec and status say, nobody asked.
func TestCatalogOffline(t *testing.T) {
	a := offline()
	file := filepath.Join(t.TempDir(), "catalog.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	// The card is that of source 001, "Pillar 2: AgentCard CR".
	write(`apiVersion: kagenti.io/v1alpha1
kind: AgentCard
metadata: {name: weather-agent-card, namespace: default}
spec:
  selector: {matchLabels: {app: weather-agent}}
  endpoint: {path: "/.well-known/agent.json", port: 8081, scheme: http}
  syncPeriod: 30s
  metadata:
    name: "Weather Intelligence Agent"
    description: "Production weather forecasting service"
    tags: [weather, forecast, production]
status:
  phase: Active
  lastSyncTime: "2026-01-13T16:10:00Z"
  discoveredPods: 3
  syncErrors: 0
  cards:
  - podName: weather-agent-7d5f8b9c4d-abc12
    podIP: 10.244.0.10
    url: "http://10.244.0.10:8081"
    lastFetchTime: "2026-01-13T16:10:00Z"
    fetchStatus: Success
    card:
      name: "Weather Intelligence Agent"
      version: "2.1.0"
      url: "http://weather-agent.default.svc.cluster.local"
      capabilities: {streaming: true, batchProcessing: true}
      skills:
      - {name: "get_forecast", description: "Get weather forecast for location"}
      - {name: "get_climate_data", description: "Get historical climate data"}
---
apiVersion: v1
kind: List
items:
- apiVersion: kagent.dev/v1alpha2
  kind: RemoteMCPServer
  metadata: {name: office, namespace: team1}
  spec: {url: "http://office:8080/mcp", description: "Office tools"}
  status:
    observedGeneration: 1
    conditions: []
    discoveredTools: [{name: book_room, description: "Book a room"}]
- {apiVersion: v1, kind: Service, metadata: {name: passed-over}}
`)
	for _, c := range []struct {
		args []string
		want []string
	}{
		{[]string{"list"}, []string{"weather-agent-card", "Weather Intelligence Agent", "Healthy",
			"2 skills", "office", "1 tool"}},
		{[]string{"list", "-o", "wide"},
			[]string{"2.1.0", "http://weather-agent.default.svc.cluster.local",
				"agentcards.kagenti.io"}},
		{[]string{"list", "--type", "server", "-o", "json"}, []string{`"name": "office"`}},
		{[]string{"search", "climate"},
			[]string{"get_climate_data", "skill", "default/weather-agent-card"}},
		{[]string{"search", "room", "--kind", "tool", "-o", "yaml"}, []string{"name: book_room"}},
		{[]string{"get", "default/weather-agent-card"},
			[]string{"get_forecast", "Get weather forecast for location"}},
		{[]string{"get", "weather-agent-card", "agentcards.kagenti.io"}, []string{"get_forecast"}},
		{[]string{"get", "office", "-n", "team1", "-o", "yaml"},
			[]string{"kind: tool", "description: Office tools"}},
	} {
		out, _ := a.run(t, 0, append(append([]string{"catalog"}, c.args...), "-f", file)...)
		for _, want := range c.want {
			if !strings.Contains(out, want) {
				t.Errorf("armature catalog %s: no %q in\n%s", strings.Join(c.args, " "), want, out)
			}
		}
	}
	if out, _ := a.run(t, 0, "catalog", "list", "--type", "server", "-f",
		file); strings.Contains(out, "weather") {
		t.Errorf("--type server lists\n%s", out)
	}
	for _, args := range [][]string{{"list", "-n", "nowhere"}, {"search", "nobody"}} {
		if _, errs := a.run(t, 0, append([]string{"catalog", "-f", file},
			args...)...); !strings.HasPrefix(errs, "nothing found") {
			t.Errorf("armature catalog %v: %q", args, errs)
		}
	}
	for want, args := range map[string][]string{
		"default/nobody: not in the catalog": {"get", "default/nobody", "-f", file},
		"office agentcards.kagenti.io: not in the catalog": {"get", "office",
			"agentcards.kagenti.io", "-f", file},
		"no such file": {"list", "-f", "nowhere"},
	} {
		if _, errs := a.run(t, 1, append([]string{"catalog"}, args...)...); !strings.Contains(errs,
			want) {
			t.Errorf("no %q in %s", want, errs)
		}
	}
	for want, args := range map[string][]string{
		"name a catalog":            {"list"},
		"exclude each other":        {"list", "-f", file, "--server", "https://localhost"},
		"choose from table":         {"list", "-f", file, "-o", "xml"},
		"choose from agent, server": {"list", "--type", "robot"},
		"choose from Healthy,":      {"list", "-f", file, "--health", "healthy"},
		"resource, prompt":          {"search", "x", "-f", file, "--kind", "tools"},
		"use 1 to 1000":             {"search", "x", "-f", file, "--limit", "0"},
		"write it as https":         {"list", "--server", "localhost:8443"},
	} {
		if _, errs := a.run(t, 2, append([]string{"catalog"}, args...)...); !strings.Contains(errs,
			want) {
			t.Errorf("no %q in %s", want, errs)
		}
	}
	write("apiVersion: kagenti.io/v1alpha1\nkind: AgentCard\nmetadata: {name: a}\n" +
		"spec: {selecter: {}}\n")
	if _, errs := a.run(t, 1, "catalog", "list", "-f", file); !strings.Contains(errs, "selecter") ||
		!strings.Contains(errs, file) {
		t.Errorf("an unknown field: %s", errs)
	}
}

// All manifests are listed and found, however many there are. An apiVersion that
// nobody knows does not justify a guess, and Ctrl-C ends the wait for more.
func TestCatalogOfManyManifests(t *testing.T) {
	a := buildArmature(t)
	var text strings.Builder
	card := func(namespace, name string) {
		fmt.Fprintf(&text,
			"---\napiVersion: kagenti.io/v1alpha1\nkind: AgentCard\n"+
				"metadata: {name: %s, namespace: %s}\nspec: {selector: {matchLabels: {app: "+
				"weather}}}\n", name, namespace)
	}
	for i := range 1100 {
		card("team1", fmt.Sprintf("weather-%d", i))
	}
	card("team2", "weather-of-team2")
	file := filepath.Join(t.TempDir(), "catalog.yaml")
	if err := os.WriteFile(file, []byte(text.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, _ := a.run(t, 0, "catalog", "list", "-f", file); strings.Count(out, "\n") != 1102 {
		t.Errorf("%d lines of a head and 1101 agents", strings.Count(out, "\n"))
	}
	for _, args := range [][]string{{"get", "weather-of-team2"},
		{"search", "weather", "-n", "team2"}} {
		if out, _ := a.run(t, 0, append([]string{"catalog", "-f", file},
			args...)...); !strings.Contains(out, "weather-of-team2") {
			t.Errorf("armature catalog %v finds\n%s", args, out)
		}
	}
	if err := os.WriteFile(file,
		[]byte("apiVersion: kagenti.io/v9\nkind: AgentCard\nmetadata: {name: a}\nspec: {}\n"),
		0o644); err != nil {
		t.Fatal(err)
	}
	if _, errs := a.run(t, 1, "catalog", "list", "-f", file); !strings.Contains(errs,
		"use kagenti.io/v1alpha1") {
		t.Errorf("an unknown apiVersion: %s", errs)
	}

	silent, end, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = silent.Close(), end.Close() }()
	cmd := exec.CommandContext(t.Context(), a.file, "catalog", "list", "-f", "-")
	cmd.Stdin = silent
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(time.Second, func() { _ = cmd.Process.Signal(os.Interrupt) })
	kill := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
	if _ = cmd.Wait(); !kill.Stop() || cmd.ProcessState.ExitCode() == 0 {
		t.Errorf("after Ctrl-C: %s", cmd.ProcessState)
	}
}

// The client trusts the given certificate, and sends its token only to that
// server.
func TestCatalogClient(t *testing.T) {
	a := offline()
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		t.Error("another host was asked")
	}))
	t.Cleanup(elsewhere.Close)
	redirect := false
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if redirect {
			http.Redirect(w, r, elsewhere.URL, http.StatusFound)
			return
		}
		if r.Header.Get("Authorization") != "Bearer token" {
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = w.Write([]byte(`{"error":"send a Kubernetes token"}`))
			return
		}
		next := `,"next":"ns/a/r"`
		if r.URL.Query().Get("after") != "" {
			next = ""
		}
		w.Header().Set("Warning", "299 - \"the store is away\"")
		_, _ = w.Write(
			[]byte(`{"items":[{"name":"agent","namespace":"ns","resource":"r","uid":"1"}]` + next + `}`))
	}))
	t.Cleanup(server.Close)
	dir := t.TempDir()
	ca, token, wrong, empty := filepath.Join(dir, "ca"), filepath.Join(dir, "token"),
		filepath.Join(dir, "wrong"), filepath.Join(dir, "empty")
	for file, data := range map[string][]byte{
		ca:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
		token: []byte("token\n"), wrong: []byte("s3cret"), empty: nil} {
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	args := []string{"catalog", "list", "--server", server.URL}
	out, errs := a.run(t, 0, append(args, "--certificate-authority", ca, "--token-file", token)...)
	if strings.Count(out, "agent") != 2 {
		t.Errorf("two pages: %s", out)
	}
	if strings.Count(errs, "Warning: the store is away") != 1 {
		t.Errorf("a warning on both pages: %q", errs)
	}
	if _, errs := a.run(t, 1, append(args, "--certificate-authority", ca, "--token-file",
		wrong)...); !strings.Contains(errs, "send a Kubernetes token") ||
		strings.Contains(errs, "s3cret") {
		t.Errorf("a wrong token: %s", errs)
	}
	if _, errs := a.run(t, 1, append(args, "--token-file", token)...); !strings.Contains(errs,
		"certificate") {
		t.Errorf("a certificate that nobody vouches for: %s", errs)
	}
	if _, errs := a.run(t, 1, append(args, "--certificate-authority", ca, "--token-file",
		empty)...); !strings.Contains(errs, empty+" is empty") {
		t.Errorf("an empty token: %s", errs)
	}
	redirect = true
	a.run(t, 1, append(args, "--certificate-authority", ca, "--token-file", token)...)
}
