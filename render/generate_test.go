package render_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	yaml3 "go.yaml.in/yaml/v3"
)

// manifests writes YAML files in the style of many authors: seeds differ in indentation, quotes,
// comments, line endings and order, and equal seeds yield equal files.
type manifests struct {
	*rand.Rand
	step, list int // indentation of mappings and of lists below their key
	comments   bool
	flow       bool // writes small collections in brackets
	quotes     int  // of 10
	anchors    bool
}

type field struct {
	key   string
	value any
}

type (
	fields []field
	items  []any
	raw    string // a scalar that is not a string, as written
)

// manifest returns the file of a seed, and how many of its workloads opted in.
func manifest(seed uint64) (file string, workloads int) {
	r := rand.New(rand.NewPCG(seed, 7))
	m := &manifests{Rand: r, step: 2, comments: r.IntN(3) > 0, flow: r.IntN(3) == 0,
		quotes: r.IntN(10), anchors: r.IntN(12) == 0}
	if r.IntN(4) == 0 {
		m.step = 4
	}
	m.list = []int{0, 0, 2, m.step}[r.IntN(4)]
	var b strings.Builder
	if r.IntN(20) == 0 {
		b.WriteString("\ufeff")
	}
	for i := range 1 + r.IntN(4) {
		if i > 0 || r.IntN(3) == 0 {
			b.WriteString(pick(r, "---\n", "---\n", "---\n", "--- # next\n", "---  \n", "---\n---\n"))
		}
		if m.comments && r.IntN(3) == 0 {
			b.WriteString("# About what follows: it's \"quoted\" [text] {and more}\n\n")
		}
		switch r.IntN(8) {
		case 0:
			m.mapping(&b, m.bystander(i), 0, "")
		case 1:
			b.WriteString(pick(r, "", "# nothing but a comment\n", "\n\n",
				"replicas: 3\nimage: {tag: v1}\n", "- op: replace\n  path: /spec\n"))
		default:
			w, in := m.workload(i)
			workloads += in
			if r.IntN(40) == 0 {
				m.mapping(&b, fields{{"apiVersion", "v1"}, {"kind", "List"}, {"items", items{w}}}, 0, "")
			} else {
				m.mapping(&b, w, 0, "")
			}
		}
	}
	file = b.String()
	if r.IntN(6) == 0 {
		file = strings.TrimSuffix(file, "\n")
	}
	if r.IntN(6) == 0 {
		file = strings.ReplaceAll(file, "\n", "\r\n")
	}
	return file, workloads
}

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

// absent leaves a field out; it is dropped by optional.
type absent struct{}

func optional(all fields) (kept fields) {
	for _, f := range all {
		if _, gone := f.value.(absent); !gone {
			kept = append(kept, f)
		}
	}
	return kept
}

func (m *manifests) shuffled(all fields) fields {
	all = optional(all)
	if m.IntN(3) == 0 {
		m.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	}
	return all
}

func (m *manifests) workload(i int) (w fields, optedIn int) {
	kind := pick(m.Rand, "Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Job", "CronJob",
		"Pod", "Rollout")
	apiVersion := map[string]string{"Job": "batch/v1", "CronJob": "batch/v1", "Pod": "v1",
		"Rollout": "argoproj.io/v1alpha1"}[kind]
	if apiVersion == "" {
		apiVersion = "apps/v1"
	}
	name := fmt.Sprintf("agent-%d", i)
	optIn := field{"kagenti.io/inject", "enabled"}
	own, template := fields{{"app", name}}, fields{{"app", name}}
	switch m.IntN(6) {
	case 0, 1, 2:
		own, optedIn = append(own, optIn), 1
	case 3:
		if kind == "Pod" {
			own = append(own, optIn)
		}
		template, optedIn = append(fields{optIn}, template...), 1
	case 4:
		own, template, optedIn = append(own, optIn), append(template, optIn), 1
	}
	if optedIn == 1 && m.IntN(4) == 0 {
		own = append(own, field{pick(m.Rand, "kagenti.io/spiffe", "kagenti.io/spire"), "disabled"})
	}
	var annotations any = pick[any](m.Rand, absent{}, absent{}, fields{}, nil,
		fields{{"example.com/note", "it's \"here\": yes # no comment"}},
		fields{{"example.com/text", "line one\n  line two\n"},
			{"kagenti.io/proxy-init", "disabled"}},
		fields{{"checksum/config", "0123456789"}, {"on", "yes"}})
	metadata := m.shuffled(fields{
		{"name", name},
		{"namespace", pick[any](m.Rand, absent{}, "default", "team-a")},
		{"labels", own},
		{"annotations", annotations},
	})
	spec := m.podSpec()
	pod := optional(fields{
		{"metadata",
			m.shuffled(fields{{"labels", template},
				{"annotations",
					pick[any](m.Rand, absent{}, absent{}, fields{}, nil, fields{{"a", "b"}})}})},
		{"spec", spec},
	})
	if kind != "Pod" && slices.Contains(own, optIn) && m.IntN(6) == 0 {
		if pod = pod[1:]; m.IntN(2) == 0 {
			pod = append(pod, field{"metadata", pick[any](m.Rand, nil, fields{})})
		}
	}
	var body fields
	switch kind {
	case "Pod":
		body = spec
	case "CronJob":
		body = fields{{"schedule", "*/5 * * * *"},
			{"jobTemplate", fields{{"spec", fields{{"template", pod}}}}}, {"suspend", raw("false")}}
	case "Job":
		body = fields{{"backoffLimit", raw("4")}, {"template", pod}}
	default:
		body = fields{{"replicas", raw("2")},
			{"selector", fields{{"matchLabels", fields{{"app", name}}}}}, {"template", pod}}
	}
	return m.shuffled(fields{{"apiVersion", apiVersion}, {"kind", kind}, {"metadata", metadata},
		{"spec", m.shuffled(body)}}), optedIn
}

func (m *manifests) podSpec() fields {
	volume := fields{{"name", "data"}, {"emptyDir", fields{}}}
	var containers items
	for i := range 1 + m.IntN(3) {
		containers = append(containers, m.container(fmt.Sprintf("app-%d", i)))
	}
	return m.shuffled(fields{
		{"serviceAccountName", pick[any](m.Rand, absent{}, "runner")},
		{"initContainers",
			pick[any](m.Rand, absent{}, absent{}, items{}, nil, items{m.container("prepare")})},
		{"containers", containers},
		{"volumes", pick[any](m.Rand, absent{}, absent{}, items{}, nil, items{volume},
			items{volume, fields{{"name", "config"}, {"configMap", fields{{"name", "c"}}}}})},
		{"tolerations",
			pick[any](m.Rand, absent{}, items{fields{{"key", "gpu"}, {"operator", "Exists"}}})},
		{"restartPolicy", pick[any](m.Rand, absent{}, "Always")},
	})
}

func (m *manifests) container(name string) fields {
	command := pick[any](m.Rand, absent{},
		items{"/bin/sh", "-c", "set -e\n\nif true; then\n  echo hello # not a comment\nfi\n"},
		items{"run", "--flag=a: b", "- dash", "#hash", "", "null", "8080", "ünï→🚀", "tab\there"},
		items{"python", "-c", "print('a')\n\n\n"},
		items{"sh", "-c", "one long line that a folded scalar would break"})
	return m.shuffled(fields{
		{"name", name},
		{"image", pick(m.Rand, "example/web:v1", "web@sha256:0011", "busybox")},
		{"command", command},
		{"env",
			pick[any](m.Rand, absent{}, items{fields{{"name", "A"}, {"value", "1"}},
				fields{{"name", "B"}, {"value", "x: y"}}})},
		{"ports", pick[any](m.Rand, absent{}, items{fields{{"containerPort", raw("8081")}}})},
		{"resources", pick[any](m.Rand, absent{},
			fields{{"limits", fields{{"cpu", "1"}, {"memory", "1Gi"}}}})},
		{"volumeMounts", pick[any](m.Rand, absent{}, absent{}, items{}, nil,
			items{fields{{"name", "data"}, {"mountPath", "/data"}}})},
		{"stdin", pick[any](m.Rand, absent{}, raw("true"))},
	})
}

// bystander is an object or text that no function reads.
func (m *manifests) bystander(i int) fields {
	name := fmt.Sprintf("other-%d", i)
	switch m.IntN(4) {
	case 0:
		return fields{{"apiVersion", "v1"}, {"kind", "Service"},
			{"metadata", fields{{"name", name}}},
			{"spec", fields{{"ports", items{fields{{"port", raw("80")}, {"targetPort", "http"}}}},
				{"selector", fields{{"app", name}}}}}}
	case 1:
		return fields{{"apiVersion", "v1"}, {"kind", "ConfigMap"},
			{"metadata", fields{{"name", name}}},
			{"data", fields{{"a.yaml", "apiVersion: v1\nkind: Pod\n---\nmore: text\n"}, {"b", "{}"},
				{"c", ""}}}}
	case 2:
		return fields{{"image", "x"}, {"replicas", raw("3")},
			{"list", items{"a", items{"b", "c"}, fields{}}}}
	}
	return fields{{"apiVersion", "rbac.authorization.k8s.io/v1"}, {"kind", "Role"},
		{"metadata", fields{{"name", name}}},
		{"rules",
			items{fields{{"apiGroups", items{""}}, {"resources", items{"pods", "pods/log"}},
				{"verbs", items{"get", "list"}}}}}}
}

func (m *manifests) comment(b *strings.Builder, col int) {
	if !m.comments {
		return
	}
	switch m.IntN(14) {
	case 0:
		fmt.Fprintf(b, "%s# a comment: with - all {kinds} of 'marks'\n", strings.Repeat(" ", col))
	case 1:
		b.WriteString("\n")
	case 2:
		b.WriteString("# at the margin\n")
	}
}

func (m *manifests) end(b *strings.Builder) {
	if m.comments && m.IntN(12) == 0 {
		b.WriteString(pick(m.Rand, " # why", "  #why: because", " "))
	}
	b.WriteString("\n")
}

// mapping writes fields in a column. The first line's indentation is lead.
func (m *manifests) mapping(b *strings.Builder, all fields, col int, lead string) {
	indent := strings.Repeat(" ", col)
	anchor := ""
	for i, f := range all {
		if i > 0 || lead == "" {
			if i > 0 {
				m.comment(b, col)
			}
			b.WriteString(indent)
		}
		key := f.key
		if m.IntN(60) == 0 || !m.plain(key) {
			key = `"` + key + `"`
		}
		b.WriteString(key + ":")
		if labels, ok := f.value.(fields); ok && m.anchors && f.key == "labels" && anchor == "" &&
			len(labels) > 0 && m.IntN(2) == 0 {
			anchor = fmt.Sprintf("l%d", m.IntN(1000))
			b.WriteString(" &" + anchor)
			b.WriteString("\n")
			m.mapping(b, labels, col+m.step, "")
			continue
		}
		m.value(b, f.value, col)
	}
}

func (m *manifests) value(b *strings.Builder, value any, col int) {
	switch v := value.(type) {
	case nil:
		b.WriteString(pick(m.Rand, "", " null", " ~"))
		m.end(b)
	case fields:
		if len(v) == 0 || m.flow && m.IntN(3) == 0 && m.small(v) {
			b.WriteString(" " + m.flowed(v))
			m.end(b)
			return
		}
		m.end(b)
		m.mapping(b, v, col+m.step, "")
	case items:
		if len(v) == 0 || m.flow && m.IntN(3) == 0 && m.small(v) {
			b.WriteString(" " + m.flowed(v))
			m.end(b)
			return
		}
		m.end(b)
		m.sequence(b, v, col+m.list)
	default:
		b.WriteString(" ")
		m.scalar(b, value, col)
	}
}

func (m *manifests) sequence(b *strings.Builder, all items, col int) {
	for i, item := range all {
		if i > 0 {
			m.comment(b, col)
		}
		b.WriteString(strings.Repeat(" ", col) + "-")
		switch v := item.(type) {
		case fields:
			if len(v) == 0 {
				b.WriteString(" {}\n")
				continue
			}
			if m.IntN(30) == 0 {
				b.WriteString("\n")
				m.mapping(b, v, col+m.step, "")
				continue
			}
			b.WriteString(strings.Repeat(" ", m.step-1))
			m.mapping(b, v, col+m.step, "-")
		case items:
			b.WriteString(" " + m.flowed(v) + "\n")
		default:
			b.WriteString(" ")
			m.scalar(b, item, col)
		}
	}
}

// scalar writes a scalar that belongs to a collection in a column, to the end
// of its line.
func (m *manifests) scalar(b *strings.Builder, value any, col int) {
	if r, ok := value.(raw); ok {
		b.WriteString(string(r))
		m.end(b)
		return
	}
	s := value.(string)
	if strings.Contains(s, "\n") && !strings.ContainsAny(s[:1], " \n") ||
		m.IntN(40) == 0 && s != "" && !strings.ContainsAny(s[:1], " \n") {
		body := strings.TrimRight(s, "\n")
		chomp := map[int]string{0: "-", 1: ""}[len(s)-len(body)]
		if len(s)-len(body) > 1 {
			chomp = "+"
		}
		if m.IntN(2) == 0 || strings.Contains(body, "\n") || strings.Contains(s, "\n\n") {
			m.block(b, "|"+chomp, s, col)
			return
		}
		if broken := strings.SplitN(body, " ", 4); len(broken) == 4 &&
			!strings.HasPrefix(broken[3], " ") {
			s = strings.Join(broken[:3], " ") + "\n" + broken[3] + s[len(body):]
		}
		m.block(b, ">"+chomp, s, col)
		return
	}
	b.WriteString(m.inline(s))
	m.end(b)
}

func (m *manifests) block(b *strings.Builder, header, s string, col int) {
	indent := col + pick(m.Rand, 1, 2, 2, 4)
	if m.IntN(4) == 0 {
		header = header[:1] + fmt.Sprint(indent-col) + header[1:]
	}
	b.WriteString(header)
	m.end(b)
	for line := range strings.Lines(s) {
		if line != "\n" || m.IntN(8) == 0 {
			b.WriteString(strings.Repeat(" ", indent))
		}
		b.WriteString(line)
	}
	if !strings.HasSuffix(s, "\n") {
		b.WriteString("\n")
	}
}

func (m *manifests) plain(s string) bool {
	var v map[string]any
	err := yaml3.Unmarshal([]byte("k: "+s+"\n"), &v)
	var again map[string]any
	err2 := yaml3.Unmarshal([]byte(s+": k\n"), &again)
	return err == nil && err2 == nil && v["k"] == s && again[s] == "k" && s != "on" && s != "yes"
}

func (m *manifests) inline(s string) string {
	single := "'" + strings.ReplaceAll(s, "'", "''") + "'"
	switch {
	case strings.ContainsAny(s, "\n\t") || m.IntN(10) < m.quotes/3:
		return fmt.Sprintf("%q", s)
	case !m.plain(s) || m.IntN(10) < m.quotes/3:
		return single
	}
	return s
}

func (m *manifests) small(value any) bool {
	switch v := value.(type) {
	case fields:
		for _, f := range v {
			if !m.small(f.value) {
				return false
			}
		}
		return len(v) < 4
	case items:
		for _, e := range v {
			if !m.small(e) {
				return false
			}
		}
		return len(v) < 4
	case string:
		return len(v) < 40 && !strings.Contains(v, "\n")
	}
	return true
}

func (m *manifests) flowed(value any) string {
	var parts []string
	space := pick(m.Rand, "", "", " ")
	switch v := value.(type) {
	case fields:
		for _, f := range v {
			parts = append(parts, f.key+": "+m.flowed(f.value))
		}
		if len(parts) == 0 {
			space = ""
		}
		return "{" + space + strings.Join(parts, ", ") + space + "}"
	case items:
		for _, e := range v {
			parts = append(parts, m.flowed(e))
		}
		if len(parts) == 0 {
			space = ""
		}
		return "[" + space + strings.Join(parts, ", ") + space + "]"
	case raw:
		return string(v)
	case string:
		if s := m.inline(v); s[0] == '"' || s[0] == '\'' ||
			!strings.ContainsAny(s, ",[]{}#:&*!|>%@`") {
			return s
		}
		return fmt.Sprintf("%q", v)
	}
	return "null"
}
