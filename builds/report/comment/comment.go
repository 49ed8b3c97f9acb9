// Package comment formats reports as Markdown, for the controller of reports and `armature report`.
package comment

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/text"
	"github.com/armature-dev/armature/render/compare"
)

const (
	maxRows = 50     // findings in a comment
	maxText = 20_000 // bytes in a part of a comment
)

// Build describes the end of a build in Markdown. For a failure it has the cause, place and remedy,
// and the last lines of the step's log.
func Build(b *api.AgentBuild) string {
	s, d := b.Status, b.Status.FailureDetails
	name, commit := b.Namespace+"/"+b.Name, ""
	if s.Source != nil {
		commit = s.Source.Git.CommitSHA
	}
	var out strings.Builder
	if s.Phase != api.PhaseFailed || d == nil {
		fmt.Fprintf(&out, "### Build %s\n\n%s\n", code(name), code(s.Message))
		if s.Phase == api.PhaseSucceeded && s.BuiltImage != "" {
			fmt.Fprintf(&out, "\nImage %s, %s\n", code(s.BuiltImage), code(b.Claim()))
		}
		return out.String()
	}
	fmt.Fprintf(&out, "### Build %s failed: %s\n\n", code(name), code(d.Reason))
	if d.Message != "" {
		for line := range strings.Lines(d.Message) {
			fmt.Fprintf(&out, "%s\n\n", code(line))
		}
	}
	if d.Cause != "" {
		fmt.Fprintf(&out, "The build did not cause it: %s.\n\n", code(string(d.Cause)))
	}
	if len(d.LogTail) > 0 {
		at := ""
		if d.Step != "" {
			at = " of the step " + code(d.Step)
		}
		fmt.Fprintf(&out, "The last lines%s:\n\n%s\n", at, fenced(d.LogTail))
	}
	again := fmt.Sprintf("armature build rerun %s -n %s", b.Name, b.Namespace)
	fmt.Fprintf(&out, "Run %s, commit %s. To build it again: %s\n", code(s.PipelineRunName),
		code(commit), code(again))
	return out.String()
}

// Package describes in Markdown the lint findings of a package and the effect of its changes.
// changes is nil if the two sides could not be compared. quiet reports that a reviewer needs to
// know none of it.
func Package(name string, findings []finding.Finding,
	changes *compare.Report) (body string, quiet bool) {
	var out strings.Builder
	fmt.Fprintf(&out, "### Package %s\n\n", code(name))
	rows := slices.DeleteFunc(slices.Clone(findings),
		func(f finding.Finding) bool { return f.Severity == finding.Info })
	fmt.Fprintf(&out, "Lint: %s\n", Counts(findings))
	if len(rows) > 0 {
		out.WriteString("\n| severity | where | finding |\n|---|---|---|\n")
	}
	for _, f := range rows[:min(len(rows), maxRows)] {
		text := code(f.Message)
		if f.Hint != "" {
			text += "<br>" + code("hint: "+f.Hint)
		}
		fmt.Fprintf(&out, "| %s | %s | %s %s |\n", f.Severity, code(f.Place.String()), code(f.Rule), text)
	}
	if more := len(rows) - maxRows; more > 0 {
		fmt.Fprintf(&out, "\nand %d more\n", more)
	}
	if changes == nil {
		out.WriteString(
			"\nWhat this changes is not known, because one of the two sides does not render.\n")
	} else {
		var text strings.Builder
		if err := changes.Write(&text, "markdown"); err != nil || text.Len() > maxText {
			text.Reset()
			fmt.Fprintf(&text,
				"### What this changes\n\n%s\n\nThe list is too long for a comment: see %s\n",
				code(changes.Summary()), code("armature diff --against"))
		}
		out.WriteString("\n" + text.String())
	}
	return out.String(), len(rows) == 0 && changes != nil && changes.Empty()
}

// Counts returns the numbers of errors and warnings.
func Counts(findings []finding.Finding) string {
	count := make(map[finding.Severity]int)
	for _, f := range findings {
		count[f.Severity]++
	}
	return text.Count(count[finding.Error], "error") + ", " +
		text.Count(count[finding.Warning], "warning")
}

// code returns a text as a code span, in which nothing is a mention, a link or an image.
func code(content string) string {
	content = text.Cut(strings.Join(strings.Fields(text.Printable(strings.TrimSpace(content))), " "),
		1000)
	return "`" + strings.NewReplacer("|", `\|`, "`", "'").Replace(content) + "`"
}

var backticks = regexp.MustCompile("`+")

// fenced returns lines as a code block whose fence is longer than any in them. Each line begins
// with a bar, because bots read a line that begins with a slash as a command of this account.
func fenced(lines []string) string {
	var content strings.Builder
	for _, line := range lines {
		if content.Len()+len(line) > maxText/2 {
			content.WriteString("…\n")
			break
		}
		content.WriteString("| " + text.Printable(line) + "\n")
	}
	fence := "```"
	for _, run := range backticks.FindAllString(content.String(), -1) {
		if len(run) >= len(fence) {
			fence = run + "`"
		}
	}
	return fence + "\n" + content.String() + fence + "\n"
}
