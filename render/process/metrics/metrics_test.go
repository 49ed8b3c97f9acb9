package metrics_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/builds/failure"
	"github.com/armature-dev/armature/e2e/programs"
	"github.com/armature-dev/armature/render/process/metrics"
)

const root = "../../.."

// written compares a file, or the part of it that is behind begin, with the list; UPDATE=1 writes
// it.
func written(t *testing.T, name, begin, end, want string) {
	t.Helper()
	file := filepath.Join(root, name)
	text, err := os.ReadFile(file)
	if err != nil && begin != "" {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(text), begin)
	got, after, ended := rest, "", true
	if begin == "" {
		before, got = "", string(text)
	} else if got, after, ended = strings.Cut(rest, end); !found || !ended {
		t.Fatalf("%s has no %q … %q", name, begin, end)
	}
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(file, []byte(before+begin+want+end+after), 0o600); err != nil {
			t.Fatal(err)
		}
	} else if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s is out of date: run this test with UPDATE=1 (-want +got):\n%s", name, diff)
	}
}

// manifest writes an object to templates/install/monitoring.
func manifest(t *testing.T, file string, object map[string]any) {
	t.Helper()
	text, err := yaml.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	written(t, "templates/install/monitoring/"+file, "", "",
		"# Written from render/process/metrics.\n"+string(text))
}

// named is the head of an object.
func named(apiVersion, kind string, labels map[string]string) map[string]any {
	metadata := map[string]any{"name": "armature", "namespace": "armature-system"}
	if labels != nil {
		metadata["labels"] = labels
	}
	return map[string]any{"apiVersion": apiVersion, "kind": kind, "metadata": metadata}
}

// templates of Prometheus, as people read them.
var templates = regexp.MustCompile(`\{\{ \$(?:labels\.)?(\w+)[^}]*\}\}`)

func plain(text string) string {
	return templates.ReplaceAllStringFunc(text, func(s string) string {
		if name := templates.FindStringSubmatch(s)[1]; name != "value" {
			return strings.ToUpper(name)
		}
		return "N"
	})
}

// TestPage: docs/operate.md and docs/reference/metrics.md have the tables of the list. UPDATE=1
// writes them.
func TestPage(t *testing.T) {
	var alerts, table strings.Builder
	alerts.WriteString("\n| alert | it means | do |\n|---|---|---|\n")
	table.WriteString("\n| metric | type | labels | value |\n|---|---|---|---|\n")
	for _, m := range metrics.All() {
		if m.Foreign == "" {
			fmt.Fprintf(&table, "| `%s` | %s | %s | %s |\n", m.Name, m.Type,
				strings.ReplaceAll(m.Labels, " ", ", "), m.Help)
		}
		for _, a := range m.Alerts {
			fmt.Fprintf(&alerts, "| `%s` (%s) | %s. | %s |\n", a.Name, a.Severity, plain(a.Summary),
				plain(a.Remedy))
		}
	}
	const begin, end = "<!-- %s: written from render/process/metrics by UPDATE=1 -->\n", "\n<!-- end -->"
	written(t, "docs/operate.md", fmt.Sprintf(begin, "alerts"), end, alerts.String())
	written(t, "docs/reference/metrics.md", fmt.Sprintf(begin, "metrics"), end, table.String())
}

// TestRules: the shipped rules have the alerts of the list, each once, and each is whole.
func TestRules(t *testing.T) {
	authors := strings.Join(failure.AuthorsReasons(), "|")
	var groups []any
	seen := make(map[string]bool)
	for _, group := range groupsOf() {
		var rules []any
		for _, m := range metrics.All() {
			if m.Group != group {
				continue
			}
			for _, a := range m.Alerts {
				rule := map[string]any{
					"alert":  a.Name,
					"expr":   strings.ReplaceAll(a.Expr, metrics.AuthorsReasons, authors),
					"labels": map[string]string{"severity": a.Severity},
					"annotations": map[string]string{"summary": a.Summary, "description": a.Remedy,
						"runbook_url": "https://github.com/armature-dev/armature/blob/main/docs/operate.md#alerts"},
				}
				if a.For != "" {
					rule["for"] = a.For
				}
				rules = append(rules, rule)
				if seen[a.Name] || !strings.HasPrefix(a.Name, "Armature") || a.Summary == "" ||
					a.Remedy == "" {
					t.Errorf("%s of %s: name it once, with summary and remedy", a.Name, m.Name)
				}
				if seen[a.Name] = true; a.Severity != "warning" && a.Severity != "critical" {
					t.Errorf("%s: severity %q", a.Name, a.Severity)
				}
				if !strings.Contains(a.Expr, strings.TrimSuffix(m.Name, "_seconds")) {
					t.Errorf("%s does not read %s, of which it is", a.Name, m.Name)
				}
			}
		}
		groups = append(groups, map[string]any{"name": "armature-" + group, "rules": rules})
	}
	rule := named("monitoring.coreos.com/v1", "PrometheusRule", nil)
	rule["spec"] = map[string]any{"groups": groups}
	manifest(t, "rules.yaml", rule)
}

// TestAlerts: promtool reads the shipped rules and the queries of the dashboard, and the tests in
// testdata show each alert fire and stay silent.
func TestAlerts(t *testing.T) {
	promtool, dir := programs.Peer(t, "promtool"), t.TempDir()
	var rule struct{ Spec json.RawMessage }
	shipped(t, "rules.yaml", &rule)
	save(t, filepath.Join(dir, "rules.yaml"), rule.Spec)

	var dashboard struct{ Data map[string]string }
	shipped(t, "dashboard.yaml", &dashboard)
	var queries []any
	for i, m := range regexp.MustCompile(`"expr": (".*")`).FindAllStringSubmatch(
		dashboard.Data["armature.json"], -1) {
		var expr string
		if err := json.Unmarshal([]byte(m[1]), &expr); err != nil {
			t.Fatal(err)
		}
		queries = append(queries, map[string]any{"record": fmt.Sprintf("query:%d", i),
			"expr": strings.ReplaceAll(expr, "$__rate_interval", "5m")})
	}
	if len(queries) < len(metrics.All()) {
		t.Errorf("the dashboard has %d queries", len(queries))
	}
	text, err := json.Marshal(
		map[string]any{"groups": []any{map[string]any{"name": "dashboard", "rules": queries}}})
	if err != nil {
		t.Fatal(err)
	}
	save(t, filepath.Join(dir, "dashboard.yaml"), text)

	tests := ""
	for _, name := range []string{"alerts.yaml", "alerts-day.yaml"} {
		text, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		tests += string(text)
		save(t, filepath.Join(dir, name), text)
	}
	for _, m := range metrics.All() {
		for _, a := range m.Alerts {
			if !strings.Contains(tests, `alertname="`+a.Name+`"`) {
				t.Errorf("no test in testdata shows %s", a.Name)
			}
		}
	}
	for _, args := range [][]string{{"check", "rules", "rules.yaml", "dashboard.yaml"},
		{"test", "rules", "alerts.yaml", "alerts-day.yaml"}} {
		cmd := exec.CommandContext(t.Context(), promtool, args...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %v: %v\n%s", args, err, out)
		}
	}
}

// shipped reads a file of templates/install/monitoring.
func shipped(t *testing.T, file string, into any) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "templates/install/monitoring", file))
	if err == nil {
		err = yaml.Unmarshal(text, into)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func save(t *testing.T, file string, text []byte) {
	t.Helper()
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

func groupsOf() []string { return []string{"builds", "sources", "catalog", "controllers"} }

// TestServiceMonitor: Prometheus finds the port metrics of each shipped Service that has one.
func TestServiceMonitor(t *testing.T) {
	jobs := []any{"armature-controller", "armature-catalog", "armature-sources"}
	monitor := named("monitoring.coreos.com/v1", "ServiceMonitor", nil)
	monitor["spec"] = map[string]any{
		"jobLabel": "app.kubernetes.io/name",
		"selector": map[string]any{"matchExpressions": []any{
			map[string]any{"key": "app.kubernetes.io/name", "operator": "In", "values": jobs}}},
		// The label namespace is that of a build, not that of the controller.
		"endpoints": []any{map[string]any{"port": "metrics", "honorLabels": true}},
	}
	manifest(t, "service-monitor.yaml", monitor)
	var found []any
	for _, folder := range []string{"base", "catalog/base", "sources/base"} {
		text, err := os.ReadFile(filepath.Join(root, "templates/install", folder, "service.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		for _, document := range strings.Split(string(text), "\n---\n") {
			var service struct {
				Metadata struct{ Labels map[string]string }
				Spec     struct{ Ports []struct{ Name string } }
			}
			if err := yaml.Unmarshal([]byte(document), &service); err != nil {
				t.Fatal(err)
			}
			for _, port := range service.Spec.Ports {
				if port.Name == "metrics" {
					found = append(found, service.Metadata.Labels["app.kubernetes.io/name"])
				}
			}
		}
	}
	if diff := cmp.Diff(jobs, found); diff != "" {
		t.Errorf("Services with the port metrics, by label (-monitor +shipped):\n%s", diff)
	}
}

// TestDashboard: a panel shows each metric of the list.
func TestDashboard(t *testing.T) {
	source := map[string]any{"type": "prometheus", "uid": "${datasource}"}
	var panels []any
	y := 0
	add := func(title, kind string, width, height, x int, more map[string]any) {
		panel := map[string]any{"id": len(panels) + 1, "title": title, "type": kind,
			"gridPos": map[string]int{"x": x, "y": y, "w": width, "h": height}}
		if kind != "row" {
			panel["datasource"] = source
		}
		for key, value := range more {
			panel[key] = value
		}
		panels = append(panels, panel)
	}
	target := func(ref, expr, legend string) map[string]any {
		return map[string]any{"refId": ref, "datasource": source, "expr": expr, "legendFormat": legend}
	}
	firing := target("A", `ALERTS{alertname=~"Armature.+", alertstate="firing"}`, "")
	firing["instant"], firing["format"] = true, "table"
	add("Alerts that fire", "table", 24, 6, 0, map[string]any{"targets": []any{firing}})
	y += 6
	for _, group := range groupsOf() {
		add(group, "row", 24, 1, 0, map[string]any{"collapsed": false, "panels": []any{}})
		y++
		x := 0
		for _, m := range metrics.All() {
			if m.Group != group {
				continue
			}
			of := strings.Fields(m.Labels)
			selector := m.Name
			series := func(suffix string) string {
				if m.Foreign == "Flux" {
					return selector + suffix + `{kind="RenderedSource", namespace=~"$namespace"}`
				} else if slices.Contains(of, "namespace") {
					return selector + suffix + `{namespace=~"$namespace"}`
				} else if m.Foreign != "" {
					return selector + suffix + `{job=~"armature-.+"}`
				}
				return selector + suffix
			}
			var legend []string
			shown := slices.DeleteFunc(slices.Clone(of),
				func(l string) bool { return l == "mode" || l == "kind" })
			for _, l := range shown {
				legend = append(legend, "{{"+l+"}}")
			}
			by, unit := "", "short"
			if len(shown) > 0 {
				by = "by (" + strings.Join(shown, ", ") + ") "
			}
			switch {
			case strings.Contains(m.Name, "_seconds"):
				unit = "s"
			case strings.HasSuffix(m.Name, "_bytes"):
				unit = "bytes"
			case m.Type == "counter":
				unit = "cps"
			}
			var targets []any
			switch m.Type {
			case "counter":
				targets = append(targets,
					target("A", "sum "+by+"(rate("+series("")+"[$__rate_interval]))",
						strings.Join(legend, " ")))
			case "gauge":
				targets = append(targets,
					target("A", "max "+by+"("+series("")+")", strings.Join(legend, " ")))
			case "histogram":
				for i, q := range []string{"0.5", "0.9", "0.99"} {
					expr := "histogram_quantile(" + q + ", sum by (le) (rate(" + series("_bucket") +
						"[$__rate_interval])))"
					targets = append(targets, target(string(rune('A'+i)), expr, q))
				}
			}
			add(m.Name, "timeseries", 8, 7, x,
				map[string]any{"description": m.Help, "targets": targets,
					"fieldConfig": map[string]any{"defaults": map[string]any{"unit": unit,
						"min": 0},
						"overrides": []any{}}})
			if x += 8; x == 24 {
				x, y = 0, y+7
			}
		}
		if x > 0 {
			y += 7
		}
	}
	variable := func(name, kind string, more map[string]any) map[string]any {
		more["name"], more["type"], more["label"] = name, kind, name
		return more
	}
	board := map[string]any{
		"title": "Armature", "uid": "armature", "schemaVersion": 38, "editable": true,
		"tags": []string{"armature"}, "time": map[string]string{"from": "now-6h", "to": "now"},
		"refresh": "1m", "panels": panels,
		"templating": map[string]any{"list": []any{
			variable("datasource", "datasource", map[string]any{"query": "prometheus"}),
			variable("namespace", "query", map[string]any{"datasource": source, "refresh": 2,
				"includeAll": true, "multi": true, "allValue": ".*",
				"query": map[string]string{"query": "label_values(armature_builds, namespace)",
					"refId": "namespace"}}),
		}},
	}
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", " ")
	if err := encoder.Encode(board); err != nil {
		t.Fatal(err)
	}
	dashboard := named("v1", "ConfigMap", map[string]string{"grafana_dashboard": "1"})
	dashboard["metadata"].(map[string]any)["name"] = "armature-dashboard"
	dashboard["data"] = map[string]string{"armature.json": text.String()}
	manifest(t, "dashboard.yaml", dashboard)
}

// TestRegistered: each metric of the list is made by a controller, from the list.
func TestRegistered(t *testing.T) {
	registry := prometheus.NewRegistry()
	for _, m := range metrics.All() {
		if m.Foreign != "" {
			continue
		}
		out, err := exec.CommandContext(t.Context(), "git", "-C", root, "grep", "-hoE",
			`((metrics|set|Set\))\.(Counter|Gauge|Histogram)\(|Gauge +=) ?"`+m.Name+`"`, "--", "*.go",
			":!*_test.go").CombinedOutput()
		if calls := strings.Split(strings.TrimSpace(string(out)), "\n"); err != nil ||
			len(calls) != 1 {
			t.Errorf("%s is made by %q, want one call (%v)", m.Name, calls, err)
			continue
		}
		switch m.Type {
		case "counter":
			registry.MustRegister(new(metrics.Set).Counter(m.Name))
		case "gauge":
			registry.MustRegister(new(metrics.Set).Gauge(m.Name))
		case "histogram":
			registry.MustRegister(new(metrics.Set).Histogram(m.Name))
			if len(m.Buckets) == 0 {
				t.Errorf("%s has no buckets", m.Name)
			}
		}
	}
	defer func() {
		if recover() == nil {
			t.Error("a metric that is not in the list can be made")
		}
	}()
	new(metrics.Set).Counter("armature_unknown_total")
}
