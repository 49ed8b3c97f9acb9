package compare

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/armature-dev/armature/functions/tools"
)

// Formats returns the names of the formats of a report.
func Formats() []string { return []string{"text", "json", "markdown"} }

// Write writes a report as text for people, as JSON, or as Markdown for a pull request.
func (r *Report) Write(w io.Writer, format string) error {
	var b strings.Builder
	switch format {
	case "text":
		r.text(&b)
	case "json":
		out := *r
		out.Workloads, out.Objects = append([]Workload{}, r.Workloads...), append([]Object{},
			r.Objects...)
		e := json.NewEncoder(w)
		e.SetEscapeHTML(false)
		e.SetIndent("", "  ")
		return e.Encode(out)
	case "markdown":
		r.markdown(&b)
	default:
		return fmt.Errorf("unknown format %q: choose from %s", format,
			strings.Join(Formats(), ", "))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// maxFields is the maximum number of changed fields in a headline.
const maxFields = 8

// Headline describes the effect of the change in one line: "rolls: spec.template…image".
func (w *Workload) Headline() string {
	text := string(w.Effect)
	switch w.Effect {
	case Restart:
		text = "needs a restart for " + strings.Join(w.Restart, ", ")
	case Reloads:
		text = "reloads " + strings.Join(w.Reloads, ", ")
	case Rolls, Changed, Replaced:
		if w.Effect == Replaced {
			text = "to be replaced"
		}
		if len(w.Fields) > 0 {
			text += ": " + strings.Join(w.Fields[:min(len(w.Fields), maxFields)], ", ")
		}
		if more := len(w.Fields) - maxFields; more > 0 {
			text += fmt.Sprintf(" and %d more", more)
		}
	}
	if w.Note != "" {
		text += " (" + w.Note + ")"
	}
	return text
}

// Detail is a differing value of a kind, for example "image".
type Detail struct {
	Kind string
	Difference
}

// Details returns the differing identities, permissions, privileges and images.
func (w *Workload) Details() (all []Detail) {
	for i, differences := range [...][]Difference{w.Identity, w.Permissions, w.Pod, w.Images} {
		for _, d := range differences {
			all = append(all, Detail{[...]string{"identity", "rbac", "pod", "image"}[i], d})
		}
	}
	return all
}

// String returns "name: before -> after".
func (d Difference) String() string {
	switch {
	case d.Before == "":
		return "+ " + d.Name + ": " + d.After
	case d.After == "":
		return "- " + d.Name + ": " + d.Before
	}
	return "~ " + d.Name + ": " + d.Before + " => " + d.After
}

func (r *Report) text(b *strings.Builder) {
	for i := range r.Workloads {
		w := &r.Workloads[i]
		fmt.Fprintf(b, "%s  %s\n", w.Object, w.Headline())
		for _, d := range w.Details() {
			fmt.Fprintf(b, "    %-10s%s\n", d.Kind, d)
		}
	}
	for _, o := range r.Objects {
		fmt.Fprintf(b, "%s  %s\n", o.Object, o.Effect)
	}
	b.WriteString(tools.Text(r.Tools))
}

// Summary counts the differences in one line.
func (r *Report) Summary() string {
	if r.Empty() {
		return "nothing changes"
	}
	count := make(map[Effect]int)
	identities, permissions, images := 0, 0, 0
	for i := range r.Workloads {
		w := &r.Workloads[i]
		count[w.Effect]++
		identities += one(len(w.Identity))
		permissions += one(len(w.Permissions))
		images += len(w.Images)
	}
	var parts []string
	for _, e := range []struct {
		effect Effect
		text   string
	}{
		{Added, "added"}, {Removed, "removed"}, {Replaced, "to be replaced"}, {Rolls, "rolling"},
		{Restart, "to be restarted"}, {Reloads, "reloading"}, {Changed, "with other changes"},
	} {
		if n := count[e.effect]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, e.text))
		}
	}
	if len(parts) == 0 {
		parts = []string{"none"}
	}
	text := fmt.Sprintf(
		"workloads: %s; with other identities: %d, permissions: %d; images: %d; other objects: %d",
		strings.Join(parts, ", "), identities, permissions, images, len(r.Objects))
	if n := len(r.Tools); n > 0 {
		text += fmt.Sprintf("; tools: %d", n)
	}
	return text
}

func one(n int) int { return min(n, 1) }

func (r *Report) markdown(b *strings.Builder) {
	b.WriteString("### What this changes\n\n" + escape(r.Summary()) + "\n")
	if len(r.Workloads) > 0 {
		b.WriteString("\n| workload | pods | identity, permissions, images |\n|---|---|---|\n")
	}
	for i := range r.Workloads {
		w := &r.Workloads[i]
		var lines []string
		for _, d := range w.Details() {
			lines = append(lines, d.Kind+" "+code(d.String()))
		}
		fmt.Fprintf(b, "| %s | %s | %s |\n", code(w.Object.String()), emphasis(w),
			strings.Join(lines, "<br>"))
	}
	if len(r.Tools) > 0 {
		b.WriteString("\n| tool | what changes |\n|---|---|\n")
	}
	for _, c := range r.Tools {
		var lines []string
		for _, line := range c.Lines() {
			lines = append(lines, code(line))
		}
		fmt.Fprintf(b, "| %s | %s |\n", code(c.Headline()+" of "+c.Server.String()),
			strings.Join(lines, "<br>"))
	}
	if len(r.Objects) == 0 {
		return
	}
	b.WriteString("\n<details><summary>Other objects</summary>\n\n")
	for _, effect := range []Effect{Added, Changed, Removed} {
		for _, o := range r.Objects {
			if o.Effect == effect {
				fmt.Fprintf(b, "- %s %s\n", code(o.Object.String()), effect)
			}
		}
	}
	b.WriteString("\n</details>\n")
}

// emphasis returns the headline with an effect that interrupts service in bold.
func emphasis(w *Workload) string {
	text := w.Headline()
	if !slices.Contains([]Effect{Rolls, Replaced, Removed, Restart}, w.Effect) {
		return escape(text)
	}
	end := strings.IndexAny(text+":", ":(")
	return strings.TrimSpace("**" + escape(strings.TrimSpace(text[:end])) + "**" + escape(text[end:]))
}

// escape escapes a text for Markdown and HTML. Zero-width spaces prevent a forge from mentioning
// people and from linking issues and addresses.
func escape(text string) string {
	return strings.NewReplacer("@", "@\u200b", "#", "#\u200b", "://", ":\u200b//", "&", "&amp;",
		"](", `]\(`, "~", `\~`, "|", `\|`, "<", "&lt;", ">", "&gt;", "*", `\*`, "_", `\_`, "`", "'",
		"\n", " ").Replace(text)
}

func code(text string) string {
	return "`" + strings.NewReplacer("|", `\|`, "`", "'", "\n", " ").Replace(text) + "`"
}
