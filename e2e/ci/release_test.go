package ci

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// releaser is what this test reads of .goreleaser.yaml.
type releaser struct {
	Before   struct{ Hooks []string }
	Builds   []struct{ ID, Main, Binary string }
	Archives []archive
	Krews    []struct{ IDs []string }
	Casks    []struct {
		IDs         []string
		Binaries    []string
		Manpages    []string
		Completions map[string]string
	} `json:"homebrew_casks"`
}

type archive struct {
	ID    string
	IDs   []string
	Name  string `json:"name_template"`
	Files []string
}

// goreleaser is .goreleaser.yaml.
func goreleaser(t *testing.T) (config releaser) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, ".goreleaser.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, &config); err != nil {
		t.Fatal(err)
	}
	return config
}

// The hooks of .goreleaser.yaml make what its archives ship, and the names in it lead
// to one another and to files.
func TestReleaseFiles(t *testing.T) {
	t.Parallel()
	config := goreleaser(t)
	dir := prepared(t, config.Before.Hooks)

	var builds, binaries, archives []string
	for _, b := range config.Builds {
		builds, binaries = append(builds, b.ID), append(binaries, b.Binary)
		if _, err := os.Stat(filepath.Join(root, b.Main, "main.go")); err != nil {
			t.Errorf("build %s: %v", b.ID, err)
		}
	}
	among := func(what string, names, of []string) {
		t.Helper()
		for _, name := range names {
			if len(of) == 0 || !slices.Contains(of, name) {
				t.Errorf("%s names %q, which is none of %q", what, name, of)
			}
		}
	}
	shipped := map[string]bool{}
	for _, a := range config.Archives {
		archives = append(archives, a.ID)
		among("archive "+a.ID, a.IDs, builds)
		for _, pattern := range a.Files {
			found := matches(t, dir, pattern)
			if len(found) == 0 {
				found = matches(t, root, pattern)
			}
			if len(found) == 0 {
				t.Errorf("archive %s: nothing is %s", a.ID, pattern)
			}
			for _, file := range found {
				shipped[file] = true
			}
		}
	}
	for _, k := range config.Krews {
		among("krew", k.IDs, archives)
	}
	if len(config.Casks) != 1 || len(config.Krews) != 1 {
		t.Fatalf("%d casks, %d plugins of krew", len(config.Casks), len(config.Krews))
	}
	cask := config.Casks[0]
	among("Homebrew", cask.IDs, archives)
	among("Homebrew", cask.Binaries, binaries)
	for shell, file := range cask.Completions {
		if !shipped[file] {
			t.Errorf("Homebrew: the completions of %s, %s, are in no archive", shell, file)
		}
		if text, err := os.ReadFile(filepath.Join(dir, file)); err != nil || !bytes.Contains(text, []byte("armature")) || !bytes.Contains(text, []byte(shell)) {
			t.Errorf("%s: %v, %d bytes", file, err, len(text))
		}
	}
	for _, pattern := range cask.Manpages {
		if pages := matches(t, dir, pattern); !slices.Contains(pages, "man/armature.1") || !shipped["man/armature.1"] {
			t.Errorf("Homebrew: the manual is %q, the archives have %v", pages, shipped)
		}
	}
	for _, file := range matches(t, dir, "man/*") {
		checkPage(t, filepath.Join(dir, file))
	}
}

// fluxPlugin is the manifest of a plugin in a catalog of Flux's CLI (RFC-0013).
type fluxPlugin struct {
	APIVersion, Kind, Name, Description, Homepage, Source, Bin string
	Versions                                                   []struct {
		Version   string
		Platforms []struct{ OS, Arch, URL, Checksum, ExtractPath string }
	}
}

// The manifest of flux-armature names the archives with one program that a release has,
// and the name of the program in them.
func TestFluxPluginManifest(t *testing.T) {
	t.Parallel()
	config := goreleaser(t)
	i := slices.IndexFunc(config.Archives, func(a archive) bool { return a.ID == "kubectl-armature" })
	if i < 0 {
		t.Fatal("no archive is kubectl-armature")
	}
	file := func(os, arch string) string {
		return strings.NewReplacer("{{ .Version }}", "0.9.1-rc.1", "{{ .Os }}", os, "{{ .Arch }}", arch).Replace(config.Archives[i].Name) + ".tar.gz"
	}
	manifest := func(checksums string) (out []byte, problem string, err error) {
		var errs bytes.Buffer
		cmd := exec.CommandContext(t.Context(), filepath.Join(root, ".github", "flux-plugin.sh"), "v0.9.1-rc.1")
		cmd.Stdin, cmd.Stderr = strings.NewReader(checksums), &errs
		out, err = cmd.Output()
		return out, errs.String(), err
	}
	sum := func(digit string) string { return strings.Repeat(digit, 64) }
	out, problem, err := manifest(sum("0") + "  armature_0.9.1-rc.1_linux_amd64.tar.gz\n" +
		sum("1") + "  " + file("linux", "amd64") + "\n" + sum("2") + "  " + file("linux", "amd64") + ".sbom.json\n" + sum("3") + "  " + file("darwin", "arm64") + "\n")
	if err != nil {
		t.Fatalf("%v\n%s", err, problem)
	}
	var got fluxPlugin
	if err := yaml.UnmarshalStrict(out, &got); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if got.APIVersion != "cli.fluxcd.io/v1beta1" || got.Kind != "Plugin" || got.Name != "armature" || got.Bin != "flux-armature" || len(got.Versions) != 1 || got.Versions[0].Version != "0.9.1-rc.1" {
		t.Errorf("the manifest is\n%s", out)
	}
	var want, platforms [][5]string
	for _, p := range []struct{ os, arch, digit string }{{"linux", "amd64", "1"}, {"darwin", "arm64", "3"}} {
		want = append(want, [5]string{p.os, p.arch, "https://github.com/armature-dev/armature/releases/download/v0.9.1-rc.1/" + file(p.os, p.arch), "sha256:" + sum(p.digit), "armature"})
	}
	for _, p := range got.Versions[0].Platforms {
		platforms = append(platforms, [5]string{p.OS, p.Arch, p.URL, p.Checksum, p.ExtractPath})
	}
	if !slices.Equal(platforms, want) {
		t.Errorf("platforms %q, want %q", platforms, want)
	}
	for _, checksums := range []string{"", sum("0") + "  armature_0.9.1-rc.1_linux_amd64.tar.gz\n"} {
		if out, problem, err := manifest(checksums); err == nil || len(out) > 0 || !strings.Contains(problem, "no archive of version 0.9.1-rc.1") {
			t.Errorf("of %q: %v, %s%s", checksums, err, out, problem)
		}
	}
}

// prepared is a folder in which the hooks have run. The `go run` in them takes
// programs that are built already, with the tags that it names.
func prepared(t *testing.T, hooks []string) string {
	t.Helper()
	dir, stub := t.TempDir(), t.TempDir()
	build := exec.Command("go", "build", "-tags", "man", "-o", filepath.Join(stub, "armature-man"), "./cmd/armature")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building armature with the tag man: %v\n%s", err, out)
	}
	if err := os.Symlink(filepath.Join(bin, "armature"), filepath.Join(stub, "armature-")); err != nil {
		t.Fatal(err)
	}
	script := "#!/bin/sh\n[ \"$1\" = run ] && shift\ntags=\n[ \"$1\" = -tags ] && tags=$2 && shift 2\n" +
		"[ \"$1\" = ./cmd/armature ] && shift && exec \"" + stub + "/armature-$tags\" \"$@\"\necho \"go run $*: it is not prepared\"; exit 1\n"
	if err := os.WriteFile(filepath.Join(stub, "go"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, hook := range hooks {
		hook = strings.ReplaceAll(hook, "{{ .CommitTimestamp }}", "1700000000")
		if strings.Contains(hook, "{{") {
			t.Errorf("the test does not know all fields of the hook %s", hook)
		}
		if out, err := shell(t, dir, map[string]string{"PATH": stub + ":" + os.Getenv("PATH")}, "sh", "-c", hook); err != nil {
			t.Fatalf("hook %s: %v\n%s", hook, err, out)
		}
	}
	return dir
}

// matches are the files of a folder, as goreleaser's patterns name them.
func matches(t *testing.T, dir, pattern string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, filepath.FromSlash(pattern)))
	if err != nil {
		t.Fatal(err)
	}
	for i, file := range found {
		if found[i], err = filepath.Rel(dir, file); err != nil {
			t.Fatal(err)
		}
		found[i] = filepath.ToSlash(found[i])
	}
	return found
}

// checkPage compares a page of the manual with what --help of its command says, word
// by word, and lets groff format it, where there is one.
func checkPage(t *testing.T, file string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Base(file)
	if !bytes.HasPrefix(text, []byte(".nh\n.TH ")) || !bytes.Contains(text, []byte(`"Nov 2023"`)) {
		t.Errorf("%s begins with\n%.200s", name, text)
	}
	for _, section := range []string{"NAME", "SYNOPSIS", "DESCRIPTION"} {
		if !bytes.Contains(text, []byte("\n.SH "+section+"\n")) {
			t.Errorf("%s has no section %s", name, section)
		}
	}
	command := strings.Split(strings.TrimSuffix(name, ".1"), "-")[1:]
	if whole := strings.Join(command, "-"); whole == "test-function" || whole == "pin-builds" { // names with a hyphen
		command = []string{whole}
	}
	help, err := exec.CommandContext(t.Context(), filepath.Join(bin, "armature"), append(command, "--help")...).Output()
	if err != nil {
		t.Fatalf("%s: --help: %v", name, err)
	}
	page := words(roff.ReplaceAllString(strings.NewReplacer(`\-`, "-", `\&`, "", `\(aq`, "'", `\\`, `\`).Replace(string(text)), ""))
	for _, section := range helpSections(string(help)) {
		for word := range words(section) {
			if !page[word] && strings.Trim(word, "#") != "" {
				t.Errorf("%s lacks the word %q of --help", name, word)
			}
		}
	}
	if groff, err := exec.LookPath("groff"); err == nil {
		out, err := exec.CommandContext(t.Context(), groff, "-k", "-man", "-ww", "-Tutf8", "-z", file).CombinedOutput()
		if err != nil || len(out) > 0 {
			t.Errorf("groff on %s: %v\n%s", name, err, out)
		}
	}
}

// roff is what steers a formatter inside of a line.
var roff = regexp.MustCompile(`\\f[A-Z]|\\f\[[A-Z]*\]`)

// helpSections are the description and the examples of a command's --help.
func helpSections(help string) []string {
	description, rest, _ := strings.Cut(help, "\nUsage:\n")
	sections := []string{description}
	if _, examples, ok := strings.Cut(rest, "\nExamples:\n"); ok {
		examples, _, _ = strings.Cut(examples, "\n\n")
		sections = append(sections, examples)
	}
	return sections
}

func words(text string) map[string]bool {
	all := map[string]bool{}
	for _, word := range strings.Fields(text) {
		all[word] = true
	}
	return all
}
