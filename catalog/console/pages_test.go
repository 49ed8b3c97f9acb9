package console_test

import (
	"html"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"
)

// words of a page without its tags.
func words(body string) string {
	body = regexp.MustCompile(`(?s)<head>.*?</head>|<svg.*?</svg>`).ReplaceAllString(body, " ")
	body = regexp.MustCompile(`<wbr>|</?bdi>|</?code>`).ReplaceAllString(body, "")
	body = regexp.MustCompile(`<[^>]*>`).ReplaceAllString(body, " ")
	return html.UnescapeString(strings.Join(strings.Fields(body), " "))
}

// Each page answers what people look for on it.
func TestPages(t *testing.T) {
	w := newWorld(t)
	token := w.token("*")
	for path, texts := range map[string][]string{
		"/": {" things to look at; everything else is as it should be.",
			"its tools differ from armature.lock", "What to look at", "Concierge agent in travel",
			"no pod is ready", "concierge build in travel", "go.sum does not match",
			"Remedy: run go mod tidy and commit go.sum", "Timetables tool server in travel",
			"travel package in travel", "Recent changes", "planner is building"},
		"/agents": {"5 agents", "Trip Planner 1.4.2", "2 skills",
			"Healthy", "Failing"},
		"/agents?q=forecast":                      {"1 agent for “forecast”", "skill get_forecast"},
		"/agents?skill=forecast":                  {"1 agent", "skill: forecast", "Weather"},
		"/agents?tag=rooms":                       {"1 agent", "Secretary"},
		"/agents?health=Failing&namespace=travel": {"1 agent", "Concierge", "no pod is ready"},
		"/agents?q=nothing-like-this": {"Nothing that you may see matches.",
			"Show all"},
		"/tools": {"3 tool servers", "Booking", "6 tools"},
		"/entries/" + cards + "/travel/weather": {"Weather Healthy", "Healthy since 3 h ago",
			"Signature of its card Valid travel-team", "Last good answer 2 min ago",
			"From the commit to the pods", "3f1c9b7a52d0 refs/heads/main", "weather-6f2c81d0",
			"SLSA level 3", "Deployment/weather of package travel", "1 of 1 ready", "get_forecast",
			"message/send", "curl -sS http://weather.travel.svc:8081/", "10.20.0.0/16, port 443",
			"limited by NetworkPolicies", "Edit in Git"},
		"/entries/" + cards + "/travel/concierge": {"Failing", "no pod is ready",
			"It stands still at run.", "go.sum does not match", "Remedy: run go mod tidy",
			"ImagePullBackOff", "pull access denied"},
		"/entries/" + agents + "/office/assistant": {"Assistant", "What it may reach",
			"RemoteMCPServer mail in office send_mail", "booking in office book_table"},
		"/entries/" + remotes + "/office/booking": {"Booking Healthy",
			"restaurant string required Name of the restaurant",
			"guests integer ≥ 1 ≤ 20 required How many people come", "inside outside any",
			"phone string", "may destroy", "Which agents use it", "assistant in office book_table",
			`"url": "http://booking.office.svc:8080/mcp"`},
		"/entries/" + remotes + "/office/mail": {"Tools drifted", "armature tools pin"},
		"/packages": {"1 package", "travel", "Failed",
			"objects healthy"},
		"/packages/travel/travel": {"Written by armature", "Drift",
			"Deployment weather", `UNITS`, "imperial", "kubectl-edit", "Inventory",
			"ServiceAccount weather", "What rendering added", "init container",
			"args: - -config - /etc/spiffe-helper/helper.conf", "variable of container agent",
			"value: http://otel.observability:4317", "emptyDir: medium: Memory", "pin-images"},
	} {
		status, _, body := w.get(token, path)
		text := words(body)
		if status != http.StatusOK {
			t.Errorf("%s: %d %s", path, status, text)
			continue
		}
		for _, want := range texts {
			if !strings.Contains(text, want) {
				t.Errorf("%s has no %q:\n%s", path, want, text)
			}
		}
		if strings.Contains(text, "<no value>") || strings.Contains(text, "%!") {
			t.Errorf("%s: %s", path, text)
		}
	}
	if logged := w.logged.text(); strings.Contains(logged, "error") {
		t.Error(logged)
	}
}

// A console of a store alone has every page: what only a cluster has does not exist.
func TestStoreAlone(t *testing.T) {
	w := bare(t, "")
	w.put(catalog()[0])
	token := w.token("*")
	for path, want := range map[string]string{"/": "Agents 1", "/agents": "Weather",
		"/builds": "No build that you may see", "/packages": "no package",
		"/rights":                               "What the console may do",
		"/entries/" + cards + "/travel/weather": "get_forecast"} {
		if status, _, body := w.get(token, path); status != http.StatusOK ||
			!strings.Contains(words(body), want) {
			t.Errorf("%s: %d %s", path, status, words(body))
		}
	}
	for _, path := range []string{"/builds/travel/weather", "/packages/travel/travel",
		"/builds/travel/weather/log/a/b"} {
		if status, _, _ := w.get(token, path); status != http.StatusNotFound {
			t.Errorf("%s: %d", path, status)
		}
	}
}

// A console that may list little shows that: what it may list in a namespace of its own, and
// the catalog alone where it may list nothing.
func TestNarrowConsole(t *testing.T) {
	plane := shared.Get(t)
	admin := newWorld(t)
	config := func(token string) *rest.Config {
		cfg := rest.AnonymousClientConfig(plane.Admin.Config)
		cfg.BearerToken, cfg.QPS = token, -1
		return cfg
	}
	person := admin.token("*")
	narrow := newWorldAs(t, filepath.Join(t.TempDir(), "catalog.db"),
		config(admin.tokenFor(shipped(t, "namespaced"), "travel")), "travel")
	narrow.eventually("builds of travel are watched", func() bool {
		return narrow.cluster.Watches(narrow.cluster.Builds()) &&
			narrow.cluster.Watches("configmaps")
	})
	narrow.eventually("the package is shown", func() bool {
		_, _, body := narrow.get(person, "/")
		return regexp.MustCompile(`Builds [1-9]\d* \d+ to look at`).MatchString(words(body)) &&
			strings.Contains(words(body), "Packages 1")
	})
	if logged := narrow.logged.text(); strings.Contains(logged, "forbidden") {
		t.Errorf("the role that is shipped lacks something: %s", logged)
	}
	wide := newWorldAs(t, filepath.Join(t.TempDir(), "catalog.db"),
		config(admin.tokenFor(shipped(t, "cluster"), "*")))
	wide.eventually("all is shown", func() bool {
		_, _, body := wide.get(person, "/packages/travel/travel")
		return strings.Contains(words(body), "4 of 6 healthy")
	})
	if _, _, body := wide.get(person,
		"/entries/"+cards+"/travel/weather"); !strings.Contains(words(body),
		"Deployment/weather of package travel") ||
		!strings.Contains(words(body), "limited by NetworkPolicies") {
		t.Errorf("with the role that is shipped, the page of an agent is %s", words(body))
	}
	if logged := wide.logged.text(); strings.Contains(logged, "forbidden") {
		t.Errorf("the role that is shipped lacks something: %s", logged)
	}
	blind := newWorldAs(t, filepath.Join(t.TempDir(), "catalog.db"), config(admin.token()))
	for path := range map[string]bool{"/": true, "/packages": true,
		"/entries/" + cards + "/travel/weather":   true,
		"/entries/" + remotes + "/office/booking": true} {
		status, _, body := blind.get(person, path)
		if status != http.StatusOK || strings.Contains(words(body), "go.sum") {
			t.Errorf("%s: %d %s", path, status, words(body))
		}
	}
	blind.eventually("the reason is logged",
		func() bool { return strings.Contains(blind.logged.text(), "is forbidden") })
}

// shipped are the rules of the console's role that armature install --catalog creates.
func shipped(t *testing.T, scope string) []rbacv1.PolicyRule {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../templates/install/catalog", scope, "role.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	first, _, _ := strings.Cut(string(text), "\n---\n")
	var role rbacv1.Role
	if err := yaml.Unmarshal([]byte(first), &role); err != nil || len(role.Rules) < 5 {
		t.Fatalf("%d rules: %v", len(role.Rules), err)
	}
	return role.Rules
}
