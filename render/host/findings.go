package host

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/kustomize/kyaml/yaml"

	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/text"
	"github.com/armature-dev/armature/render"
)

// Formats returns the names of the formats of findings.
func Formats() []string { return []string{"text", "json", "sarif", "github", "gitlab"} }

// WriteFindings writes findings as text for people, as JSON, as SARIF 2.1.0 for code scanning, as
// GitHub workflow commands that annotate a pull request, or as GitLab's Code Quality report.
func WriteFindings(w io.Writer, format string, findings []finding.Finding) error {
	switch format {
	case "text":
		for _, f := range findings {
			if _, err := fmt.Fprintf(w, "%s: %s\n", f.Severity, f); err != nil {
				return err
			}
		}
		return nil
	case "json":
		if findings == nil {
			findings = []finding.Finding{}
		}
		return writeJSON(w, findings)
	case "sarif":
		return writeJSON(w, sarif(findings))
	case "gitlab":
		return writeJSON(w, codeQuality(findings))
	case "github":
		for _, f := range findings {
			if _, err := io.WriteString(w, workflowCommand(f)); err != nil {
				return err
			}
		}
		return nil
	}
	return fmt.Errorf("unknown format %q: choose from %s", format, strings.Join(Formats(), ", "))
}

// place matches a line of a file in a message, such as another object's.
var place = text.Pattern(`(\(?)([^\s():]+):(\d+)\b`)

// namesPlace reports whether a text may contain a place. Most do not, and the pattern takes longer
// than all other processing of a finding.
func namesPlace(text string) bool {
	for i := 1; i < len(text); i++ {
		if text[i-1] == ':' && '0' <= text[i] && text[i] <= '9' {
			return true
		}
	}
	return false
}

// From renames the files of a package in findings for a reader in another folder, from which the
// path folder leads to the package's root. Other files, for example a configuration, keep their
// names.
func From(folder string, files []render.File, findings []finding.Finding) []finding.Finding {
	own := make(map[string]bool, len(files))
	for _, f := range files {
		own[f.Path] = true
	}
	relative := func(file string) string {
		return filepath.ToSlash(filepath.Join(folder, filepath.FromSlash(file)))
	}
	moved := func(text string) string {
		if !namesPlace(text) {
			return text
		}
		return place().ReplaceAllStringFunc(text, func(p string) string {
			m := place().FindStringSubmatch(p)
			if !own[m[2]] {
				return p
			}
			return m[1] + relative(m[2]) + ":" + m[3]
		})
	}
	findings = slices.Clone(findings)
	for i := range findings {
		f := &findings[i]
		if own[f.File] {
			f.File = relative(f.File)
		}
		f.Message, f.Hint = moved(f.Message), moved(f.Hint)
	}
	return findings
}

// withoutLines removes the lines of a host's stream from findings, because the author never sees
// that stream. The file is the one that the host names, or none.
func withoutLines(findings []finding.Finding) {
	without := func(text string) string {
		text = inStream().ReplaceAllString(text, "")
		return place().ReplaceAllStringFunc(text, func(p string) string {
			m := place().FindStringSubmatch(p)
			switch path.Ext(m[2]) {
			case ".yaml", ".yml", ".json":
				return m[1] + m[2]
			}
			return p
		})
	}
	for i := range findings {
		f := &findings[i]
		if f.File == "-" {
			f.File = ""
		}
		f.Line = 0
		f.Message, f.Hint = without(f.Message), without(f.Hint)
	}
}

// inStream matches the place of an item for which the host names no file.
var inStream = text.Pattern(` \(-:\d+\)|(?: in|:)? -:\d+\b`)

func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// textOf returns the text of a finding without its file; hint separates its hint.
func textOf(f finding.Finding, hint string) string {
	text := f.Message
	if f.Field != "" {
		text = f.Field + ": " + text
	}
	if f.Hint != "" {
		text += hint + f.Hint
	}
	return text
}

// workflowCommand returns a finding as a GitHub workflow command, escaped as GitHub requires.
func workflowCommand(f finding.Finding) string {
	level := map[finding.Severity]string{finding.Error: "error", finding.Warning: "warning",
		finding.Info: "notice"}[f.Severity]
	data := strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A")
	property := strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A", ":", "%3A", ",", "%2C")
	return fmt.Sprintf("::%s file=%s,line=%d,title=%s::%s\n",
		level, property.Replace(f.File), max(f.Line, 1), property.Replace(f.Rule),
		data.Replace(textOf(f, "\nhint: ")))
}

type object map[string]any

// sarif returns findings in the schema of SARIF 2.1.0.
func sarif(findings []finding.Finding) object {
	level := map[finding.Severity]string{finding.Error: "error", finding.Warning: "warning",
		finding.Info: "note"}
	results := []object{}
	rules := []object{}
	index := make(map[string]int)
	for _, f := range findings {
		if _, ok := index[f.Rule]; !ok {
			index[f.Rule] = len(rules)
			rules = append(rules, object{"id": f.Rule})
		}
		location := object{"artifactLocation": object{"uri": (&url.URL{Path: f.File}).String()}}
		if f.Line > 0 {
			location["region"] = object{"startLine": f.Line}
		}
		result := object{"ruleId": f.Rule, "ruleIndex": index[f.Rule], "level": level[f.Severity],
			"message": object{"text": textOf(f, " Hint: ")}}
		if f.File != "" {
			result["locations"] = []object{{"physicalLocation": location}}
		}
		results = append(results, result)
	}
	return object{
		"$schema": "https://json.schemastore.org/sarif-2.1.0.json",
		"version": "2.1.0",
		"runs": []object{{
			"tool":    object{"driver": object{"name": "armature", "rules": rules}},
			"results": results,
		}},
	}
}

// codeQuality returns findings as GitLab's Code Quality report, a subset of Code Climate's. A
// fingerprint has no line number, so that a finding that moves stays the same. Equal findings are
// numbered. Every entry needs a path, which is "." for findings without a file.
func codeQuality(findings []finding.Finding) []object {
	severity := map[finding.Severity]string{finding.Error: "critical", finding.Warning: "minor",
		finding.Info: "info"}
	entries := []object{}
	count := make(map[string]int)
	for _, f := range findings {
		text, file := textOf(f, " Hint: "), cmp.Or(f.File, ".")
		key := fmt.Sprintf("%q",
			[]string{f.Rule, file, f.Object.String(), place().ReplaceAllString(text, "$1$2")})
		count[key]++
		sum := sha256.Sum256(fmt.Appendf(nil, "%s %d", key, count[key]))
		entries = append(entries, object{
			"description": text, "check_name": f.Rule, "fingerprint": hex.EncodeToString(sum[:]),
			"severity": severity[f.Severity],
			"location": object{"path": file, "lines": object{"begin": max(f.Line, 1)}},
		})
	}
	return entries
}

// result is a finding in a ResourceList by the KRM Functions Specification. It has no line number,
// which is in the tags.
type result struct {
	Message     string            `yaml:"message"`
	Severity    string            `yaml:"severity"`
	ResourceRef *resourceRef      `yaml:"resourceRef,omitempty"`
	Field       map[string]string `yaml:"field,omitempty"` // its path
	File        map[string]string `yaml:"file,omitempty"`  // its path
	Tags        map[string]string `yaml:"tags,omitempty"`
}

type resourceRef struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string `yaml:"kind"`
	Name       string `yaml:"name"`
	Namespace  string `yaml:"namespace,omitempty"`
}

func results(findings []finding.Finding) ([]byte, error) {
	list := make([]result, 0, len(findings))
	for _, f := range findings {
		r := result{Message: f.Message, Severity: string(f.Severity),
			Tags: map[string]string{"rule": f.Rule}}
		if f.Hint != "" {
			r.Message += "\nhint: " + f.Hint
		}
		if f.Object.Kind != "" {
			r.ResourceRef = &resourceRef{f.Object.APIVersion, f.Object.Kind, f.Object.Name,
				f.Object.Namespace}
		}
		if f.Field != "" {
			r.Field = map[string]string{"path": f.Field}
		}
		if f.File != "" && f.File != "-" {
			r.File = map[string]string{"path": f.File}
		}
		if f.Line > 0 {
			r.Tags["line"] = strconv.Itoa(f.Line)
		}
		list = append(list, r)
	}
	return yaml.Marshal(map[string]any{"results": list})
}
