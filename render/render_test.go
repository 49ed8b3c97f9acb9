package render_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/host"
	"github.com/armature-dev/armature/render/source"
)

var update = flag.Bool("update", false, "write what was rendered into testdata/*.txtar")

// TestRender runs testdata/*.txtar. The sections of a case:
//
//	armature.yaml   the configuration, if any
//	armature.lock   the images' digests, if any
//	before.yaml     the configuration of an earlier version's render, whose
//	                output is rendered again
//	NAME            a file of the package; "NAME (crlf, unended, bom)" changes
//	                its line endings, its last line or its first bytes
//	edit            what the author changed in the rendered files before they
//	                are rendered again: lines of FILE "old" "new"
//	want/NAME       what NAME becomes, unless it stays as it is; what a
//	                component or generated object holds is left out
//	source/NAME     what uninject makes of an edited file
//	findings        as the command prints them
//
// In every case a second render changes nothing, uninject restores the package, and Flux's
// postBuild has nothing to replace but what the author wrote.
func TestRender(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal("no cases", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			t.Parallel()
			archive, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			want := slices.Clone(archive.Files)
			archive.Files = runCase(t, archive.Files)
			if t.Failed() {
				return
			}
			if *update {
				if err := os.WriteFile(file, txtar.Format(archive), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if diff := cmp.Diff(sections(want), sections(archive.Files)); diff != "" {
				t.Errorf("run with -update to accept (-want +got):\n%s", diff)
			}
		})
	}
}

func sections(files []txtar.File) map[string]string {
	m := make(map[string]string)
	for _, f := range files {
		m[f.Name] = string(f.Data)
	}
	return m
}

// runCase returns the sections of a case with the results of this run.
func runCase(t *testing.T, files []txtar.File) []txtar.File {
	root := t.TempDir()
	c := testCase{T: t, root: root, style: make(map[string]string)}
	var before []byte
	var edits string
	for _, f := range files {
		name, style, _ := strings.Cut(f.Name, " ")
		folder, _, _ := strings.Cut(name, "/")
		switch {
		case name == "armature.yaml":
			c.opt.Config = c.config(f.Data)
		case name == render.LockFile:
			lock, findings := render.ReadLock(f.Data, name)
			c.opt.Lock, c.findings = lock, append(c.findings, findings...)
		case name == "before.yaml":
			before = f.Data
		case name == "edit":
			edits = string(f.Data)
		case name == "findings" || folder == "want" || folder == "source":
			continue
		default:
			c.style[name] = style
			c.write(name, dress(f.Data, style))
		}
		c.kept = append(c.kept, f)
	}
	input := c.read()
	if before != nil {
		opt := render.Options{Version: "v0.0.1", Config: c.config(before)}
		c.replace(c.render(opt, true))
	}
	output := c.render(c.opt, false)
	if output == nil {
		return c.kept
	}
	c.replace(output)
	c.repeat(output)
	c.unsubstituted(output, input)
	if text := fmt.Sprint(input); !strings.Contains(text, "rendered-for") &&
		!strings.Contains(text, keys.Changed) {
		c.same("uninject", input, c.uninject())
	}
	if edits != "" {
		c.replace(output)
		c.edit(edits)
		edited := c.read()
		c.findings = nil
		if output = c.render(c.opt, false); output == nil {
			return c.kept
		}
		c.replace(edited)
		source := c.uninject()
		c.section("source/", source, input)
		c.replace(output)
		c.repeat(output)
		c.same("uninject after an edit", source, c.uninject())
	}
	c.section("want/", output, input)
	return append(c.kept, c.found()...)
}

type testCase struct {
	*testing.T
	root     string
	opt      render.Options
	style    map[string]string // of each file
	kept     []txtar.File
	findings []finding.Finding
}

func (c *testCase) config(data []byte) *api.RenderConfig {
	config, findings := render.ReadConfig(data, "armature.yaml")
	c.findings = append(c.findings, findings...)
	return config
}

// dress adds the ending and the beginning that a txtar archive cannot hold.
func dress(data []byte, style string) []byte {
	if strings.Contains(style, "unended") {
		data = bytes.TrimSuffix(data, []byte("\n"))
	}
	if strings.Contains(style, "crlf") {
		data = bytes.ReplaceAll(data, []byte("\n"), []byte("\r\n"))
	}
	if strings.Contains(style, "bom") {
		data = append([]byte("\ufeff"), data...)
	}
	return data
}

func (c *testCase) undress(name string, data []byte) []byte {
	plain := bytes.TrimPrefix(data, []byte("\ufeff"))
	plain = bytes.ReplaceAll(plain, []byte("\r\n"), []byte("\n"))
	if strings.Contains(c.style[name], "unended") {
		plain = append(plain, '\n')
	}
	if !bytes.Equal(dress(plain, c.style[name]), data) {
		c.Errorf("%s does not keep its line endings or byte order mark:\n%q", name, data)
	}
	return plain
}

func (c *testCase) write(name string, data []byte) {
	to := filepath.Join(c.root, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		c.Fatal(err)
	}
	if err := os.WriteFile(to, data, 0o644); err != nil {
		c.Fatal(err)
	}
}

func (c *testCase) read() map[string]string {
	src, _, err := source.Tree(c.root, "", nil)
	if err != nil {
		c.Fatal(err)
	}
	m := make(map[string]string)
	for _, f := range src.Files {
		data, err := os.ReadFile(filepath.Join(c.root, filepath.FromSlash(f.Path)))
		if err != nil {
			c.Fatal(err)
		}
		m[f.Path] = string(data)
	}
	return m
}

func (c *testCase) replace(files map[string]string) {
	if err := os.RemoveAll(c.root); err != nil {
		c.Fatal(err)
	}
	for name, data := range files {
		c.write(name, []byte(data))
	}
}

// render returns the rendered files, or nil if an error keeps them back.
func (c *testCase) render(opt render.Options, silent bool) map[string]string {
	src, findings, err := source.Tree(c.root, "", opt.Excludes)
	if err != nil {
		c.Fatal(err)
	}
	result, err := render.Run(src, opt)
	if err != nil {
		c.Fatal(err)
	}
	if !silent {
		c.findings = append(append(c.findings, findings...), result.Findings...)
	}
	if finding.Failed(c.findings) || finding.Failed(result.Findings) {
		if len(result.Files) > 0 && finding.Failed(result.Findings) {
			c.Error("an error finding, and yet there is output")
		}
		c.kept = append(c.kept, c.found()...)
		return nil
	}
	m := make(map[string]string)
	for _, f := range result.Files {
		m[f.Path] = string(f.Data)
	}
	return m
}

// repeat renders what was rendered.
func (c *testCase) repeat(output map[string]string) {
	findings := c.findings
	c.same("the second render", output, c.render(c.opt, true))
	c.findings = findings
}

// unsubstituted finds ${NAME} that a render adds to an object in which Flux replaces it.
func (c *testCase) unsubstituted(output, input map[string]string) {
	written := fmt.Sprint(input)
	for name, data := range output {
		for d := range krm.Documents([]byte(data)) {
			text := data[d.Start:d.End]
			for line := range strings.Lines(text) {
				if strings.Contains(line, "${") &&
					!strings.Contains(text, "kustomize.toolkit.fluxcd.io/substitute: disabled") &&
					!strings.Contains(written, "${") {
					c.Errorf("%s: Flux's postBuild replaces what is in braces here: %s", name, line)
				}
			}
		}
	}
}

func (c *testCase) uninject() map[string]string {
	src, _, err := source.Tree(c.root, "", nil)
	if err != nil {
		c.Fatal(err)
	}
	m := make(map[string]string)
	opt := c.opt
	opt.Workers = 1
	findings, _, err := render.Uninject(src, opt, func(file string, data []byte) error {
		if data != nil {
			m[file] = string(data)
		}
		return nil
	})
	if err != nil || finding.Failed(findings) {
		c.Fatalf("uninject: %v %v", err, findings)
	}
	return m
}

func (c *testCase) same(what string, want, have map[string]string) {
	if diff := cmp.Diff(want, have); diff != "" {
		c.Errorf("%s differs (-want +got):\n%s", what, diff)
	}
}

func (c *testCase) edit(script string) {
	line := regexp.MustCompile(`^(\S+) ("(?:[^"\\]|\\.)*") ("(?:[^"\\]|\\.)*")$`)
	for text := range strings.SplitSeq(strings.TrimSpace(script), "\n") {
		m := line.FindStringSubmatch(text)
		if m == nil {
			c.Fatalf("no edit: %s", text)
		}
		before, err1 := strconv.Unquote(m[2])
		after, err2 := strconv.Unquote(m[3])
		data, err := os.ReadFile(filepath.Join(c.root, m[1]))
		if err != nil || err1 != nil || err2 != nil || !strings.Contains(string(data), before) {
			c.Fatalf("%s: %v %v %v, or the text is not there", text, err, err1, err2)
		}
		c.write(m[1], []byte(strings.Replace(string(data), before, after, 1)))
	}
}

// section adds the files that differ from the input.
func (c *testCase) section(prefix string, have, input map[string]string) {
	var names []string
	for name := range have {
		names = append(names, name)
	}
	for name := range input {
		if _, ok := have[name]; !ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		data, ok := have[name]
		switch {
		case !ok:
			c.kept = append(c.kept, txtar.File{Name: prefix + name, Data: []byte("(gone)\n")})
		case data != input[name]:
			c.kept = append(c.kept,
				txtar.File{Name: prefix + name, Data: abridge(c.undress(name, []byte(data)))})
		}
	}
}

func (c *testCase) found() []txtar.File {
	if len(c.findings) == 0 {
		return nil
	}
	var b bytes.Buffer
	if err := host.WriteFindings(&b, "text", c.findings); err != nil {
		c.Fatal(err)
	}
	return []txtar.File{{Name: "findings", Data: b.Bytes()}}
}

var (
	component = regexp.MustCompile(
		`^( *)- name: (proxy-init|spiffe-helper|client-registration|auth-proxy|envoy-proxy)$`)
	generated = regexp.MustCompile(`(?m)^ +armature.dev/rendered-for: (.*)$`)
	name      = regexp.MustCompile(`(?m)^  name: (.*)$`)
)

// abridge leaves out what is other tests' matter: the content of components
// and of generated ConfigMaps, and packed originals.
func abridge(data []byte) []byte {
	var b bytes.Buffer
	for d := range krm.Documents(data) {
		text := data[d.Start:d.End]
		b.Write(data[d.Lead:d.Start])
		if m := generated.FindSubmatch(text); m != nil &&
			bytes.Contains(text, []byte("kind: ConfigMap\n")) &&
			!bytes.Contains(text, []byte("\nitems:")) {
			fmt.Fprintf(&b, "# %s for %s\n", name.FindSubmatch(text)[1], m[1])
			continue
		}
		skip := -1
		for line := range bytes.Lines(text) {
			indent := len(line) - len(bytes.TrimLeft(line, " "))
			if skip >= 0 && indent > skip {
				continue
			}
			skip = -1
			if m := component.FindSubmatch(bytes.TrimRight(line, "\n")); m != nil {
				skip = indent
				fmt.Fprintf(&b, "%s …\n", bytes.TrimRight(line, "\n"))
				continue
			}
			b.Write(line)
		}
	}
	return regexp.MustCompile(`(\\?"original\\?":\\?")[^"\\]*`).ReplaceAll(b.Bytes(), []byte(`${1}…`))
}
