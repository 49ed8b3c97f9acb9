package graph

import (
	"fmt"
	"strings"
	"unicode"
)

// mermaid draws a flowchart. The rules are from Mermaid's page on flowcharts: text in quotes, and
// special characters as decimal entities, #34; for a quote.
func mermaid(b *strings.Builder, pipelines []Pipeline) {
	b.WriteString("flowchart TD\n")
	for n, p := range pipelines {
		indent, prefix := "  ", ""
		if len(pipelines) > 1 {
			prefix = fmt.Sprintf("b%d_", n+1)
			fmt.Fprintf(b, "  subgraph %sbuild[\"%s\"]\n", prefix, entities(p.Name))
			indent = "    "
		}
		for i, t := range p.Tasks {
			fmt.Fprintf(b, "%s%s[\"%s\"]\n", indent, prefix+p.id(i), entities(t.Name))
		}
		for i, t := range p.Tasks {
			label := ""
			if len(t.When) > 0 {
				label = "|\"" + entities(strings.Join(t.When, " and ")) + "\"|"
			}
			for _, from := range t.from {
				fmt.Fprintf(b, "%s%s -->%s %s\n", indent, prefix+p.id(from), label, prefix+p.id(i))
			}
			if t.Finally {
				fmt.Fprintf(b, "%s%sfinally((finally)) -.->%s %s\n", indent, prefix, label,
					prefix+p.id(i))
			}
		}
		if len(pipelines) > 1 {
			b.WriteString("  end\n")
		}
	}
}

// id of a task in Mermaid: its name, if that is valid in Kubernetes, with a prefix so that
// it is not a keyword of Mermaid such as end.
func (p *Pipeline) id(task int) string {
	name := p.Tasks[task].Name
	other := func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' }
	if strings.ContainsFunc(name, other) || name == "" {
		return fmt.Sprintf("n_%d", task+1)
	}
	return "t_" + strings.ReplaceAll(name, "-", "_")
}

// entities leaves what has a meaning neither to Mermaid, nor to the Markdown and HTML
// in its labels.
func entities(text string) string {
	var b strings.Builder
	for _, r := range text {
		if unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune(" -.,:/()", r) {
			b.WriteRune(r)
		} else {
			fmt.Fprintf(&b, "#%d;", r)
		}
	}
	return b.String()
}
