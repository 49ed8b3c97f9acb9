// Package cause finds why a step of a build failed from what it printed last, in the words of
// the programs that the shipped steps run: git, BuildKit, kaniko, buildah, the lifecycle of
// buildpacks, and armature-controller, which pushes.
package cause

import (
	"cmp"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/armature-dev/armature/builds/api"
)

// Failure is why a step failed, as far as its log shows it. The zero value is a step whose
// output no rule knows.
type Failure struct {
	// Reason of the condition, such as DockerfileFailed; empty if no rule applies.
	Reason string
	// Place in the source: a file with its line, such as Dockerfile:3, and the instruction there.
	Place string
	// Line is what the step printed of the problem itself, at most maxLine bytes.
	Line string
	// Remedy is what a person can do; empty if the line says it.
	Remedy string
	// Server reports that a server did not answer, or answered that it cannot now, so that
	// another attempt may do better.
	Server bool
}

// String is place, line and remedy in one line; empty for the zero value.
func (f Failure) String() string {
	var parts []string
	for _, part := range []string{f.Place, f.Line, f.Remedy} {
		if part != "" {
			parts = append(parts, part)
		}
	}
	return strings.Join(parts, ": ")
}

// Lines is how many of the last lines of a log Of reads. BuildKit shows the output of the
// instruction that failed, and the Dockerfile around it, before its last line.
const Lines = 60

// maxLine bounds a line that is repeated in a status, in bytes.
const maxLine = 300

// Of reads the last lines of what the step printed. The first rule that knows its last line
// decides; a test's failure has no such line, and is known by the step's name.
func Of(step string, log []string) Failure {
	if len(log) > Lines {
		log = log[len(log)-Lines:]
	}
	for len(log) > 0 && strings.TrimSpace(log[len(log)-1]) == "" {
		log = log[:len(log)-1]
	}
	if len(log) == 0 {
		return Failure{}
	}
	last := strings.TrimSpace(log[len(log)-1])
	for _, rule := range rules() {
		if !rule.last.MatchString(last) {
			continue
		}
		f := Failure{Reason: rule.reason, Remedy: rule.remedy, Line: last}
		if rule.detail != nil {
			if place, line := rule.detail(log); place != "" || line != "" {
				f.Place, f.Line = place, cmp.Or(line, last)
			}
		}
		f.Line, f.Place, f.Server = clip(f.Line), clip(f.Place), serverFailed().MatchString(last)
		return f
	}
	if step == testStep {
		return Failure{Reason: api.ReasonTestsFailed, Line: clip(last)}
	}
	return Failure{Server: serverFailed().MatchString(last)}
}

// Explains reports whether a reason is one of those that Of gives.
func Explains(reason string) bool {
	return reason == api.ReasonTestsFailed || slices.ContainsFunc(rules(), func(r rule) bool { return r.reason == reason })
}

// testStep is the step of the shipped run-tests-step.
const testStep = "test"

type rule struct {
	last   *regexp.Regexp // what the last line matches
	reason string
	remedy string
	// detail finds the place and the telling line in the lines before; nil if the last one has all.
	detail func(log []string) (place, line string)
}

const (
	refused     = `(401 Unauthorized|403 Forbidden|UNAUTHORIZED|DENIED|failed to authorize|authorization failed|authentication required|access denied|insufficient_scope|no basic auth credentials)`
	unreachable = `(no such host|server misbehaving|connection refused|no route to host|network is unreachable|i/o timeout|TLS handshake timeout|connection reset by peer|context deadline exceeded)`
	plainHTTP   = `server gave HTTP response to HTTPS client`
	untrusted   = `x509: `
	// A line of BuildKit about an image, and not about what the Dockerfile runs.
	solve = `failed to solve: `
	// What pushes: kaniko, the lifecycle, buildah, and push-step, whose URLs have /v2/ in them.
	pushing = `(checking push permission|failed to push|pushing |failed to export|failed to initialize|creating image|https?://[^ ]+/v2/)`
)

// rules in the order in which they apply. They are made when the first build has failed.
var rules = sync.OnceValue(func() []rule {
	return []rule{
		{last: regexp.MustCompile(`^BuildKit cannot make a user namespace`), reason: api.ReasonBuilderUnavailable,
			remedy: "set spec.builder to kaniko, or allow user namespaces on the build's nodes"},

		// git
		{last: regexp.MustCompile(`^fatal: (Authentication failed|could not read (Username|Password))|^[^ ]*: Permission denied \(publickey`), reason: api.ReasonGitAuthInvalid,
			remedy: "the Secret in spec.source.sourceCredentials has no login that may read the repository"},
		{last: regexp.MustCompile(`^the repository has no such revision|^fatal: couldn't find remote ref`), reason: api.ReasonRevisionNotFound,
			remedy: "set spec.source.sourceRevision to a branch, a tag or a commit of the repository"},
		{last: regexp.MustCompile(`^fatal: (unable to access|repository) '[^']*'`), reason: api.ReasonSourceUnreachable},

		// What the steps check themselves.
		{last: regexp.MustCompile(`^the folder \S+ has no \S+; `), reason: api.ReasonDockerfileNotFound},
		{last: regexp.MustCompile(`^the folder \S+ has no \S+$`), reason: api.ReasonDockerfileNotFound,
			remedy: "set the parameter DOCKERFILE, or spec.source.sourceSubfolder, to its location"},
		{last: regexp.MustCompile(`^the folder \S+ leads out of the repository$|^the repository has no folder `), reason: api.ReasonSubfolderNotFound},
		{last: regexp.MustCompile(solve + `(failed to read dockerfile|.*failed to read dockerfile): .*no such file`), reason: api.ReasonDockerfileNotFound,
			remedy: "set the parameter DOCKERFILE, or spec.source.sourceSubfolder, to its location"},

		// Registries, of base images first.
		{last: regexp.MustCompile(solve + `.*` + plainHTTP), reason: api.ReasonRegistryUnreachable,
			remedy: "the base image's registry speaks plain HTTP: set the parameter PLAIN_HTTP if it is also the registry of the image, name a local registry in a build argument, or set spec.builder to kaniko"},
		{last: regexp.MustCompile(solve + `.*` + refused), reason: api.ReasonRegistryUnauthorized,
			remedy: "the base image needs a login, and BuildKit does not have the push login: bind a Secret that may pull it to the workspace pull-credentials in spec.pipeline.workspaces, or set spec.builder to kaniko"},
		{last: regexp.MustCompile(solve + `.*` + unreachable), reason: api.ReasonRegistryUnreachable, detail: instruction},
		{last: regexp.MustCompile(solve + `.*` + untrusted), reason: api.ReasonRegistryUnreachable,
			remedy: "the registry's certificate is signed by an authority that the build does not trust"},
		{last: regexp.MustCompile(solve + `\S+: (\S+: )?(failed to resolve source metadata for .*)?(not found|manifest unknown)$`), reason: api.ReasonBaseImageNotFound, detail: instruction},
		{last: regexp.MustCompile(pushing + `.*` + plainHTTP), reason: api.ReasonRegistryUnreachable,
			remedy: `the registry speaks plain HTTP: set the parameter PLAIN_HTTP to "true"`},
		{last: regexp.MustCompile(pushing + `.*` + refused), reason: api.ReasonRegistryUnauthorized,
			remedy: "the Secret in spec.buildOutput.imageRepoCredentials has no login that may push there"},
		{last: regexp.MustCompile(pushing + `.*(` + unreachable + `|` + untrusted + `|status code (429|5\d\d)|TOOMANYREQUESTS)`), reason: api.ReasonRegistryUnreachable},

		// What the author wrote.
		{last: regexp.MustCompile(solve), reason: api.ReasonDockerfileFailed, detail: instruction},
		{last: regexp.MustCompile(`^error building image: `), reason: api.ReasonDockerfileFailed, detail: kaniko},
		{last: regexp.MustCompile(`^Error: building at STEP "`), reason: api.ReasonDockerfileFailed, detail: buildah},
		{last: regexp.MustCompile(`^ERROR: (failed to detect|No buildpack groups passed detection)`), reason: api.ReasonBuildpacksFailed,
			remedy: "no buildpack supports the content of the folder: add a Dockerfile, or set spec.source.sourceSubfolder to the folder of the application"},
		{last: regexp.MustCompile(`^ERROR: failed to build: `), reason: api.ReasonBuildpacksFailed, detail: before},
	}
})

// serverFailed are the last words of git, of the libraries that steps speak to registries with,
// of BuildKit and of buildah. A program that an author wrote does not end like that: a
// registry's address has /v2/ in it.
var serverFailed = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^fatal: unable to access '[^']*': (The requested URL returned error: (429|5\d\d)|Could not resolve host|Failed to connect|.*([Tt]imed out|[Cc]onnection reset))` +
		`|^error: RPC failed; HTTP (429|5\d\d)` +
		`|https?://\S+/v2/\S*:? .*(unexpected status code (429|5\d\d)|TOOMANYREQUESTS|i/o timeout|TLS handshake timeout|connection reset by peer|connection refused)` +
		`|unexpected status from (HEAD|GET) request to https?://\S+/v2/\S*: (429|5\d\d)` +
		`|received unexpected HTTP status: (429|5\d\d)|toomanyrequests: `)
})

var (
	filePlace = regexp.MustCompile(`^([^\s:]+):(\d+)$`)
	pointed   = regexp.MustCompile(`^\s*\d+ \| >>> (.*)$`)
	// The number of the vertex and the seconds, which BuildKit puts in front of output.
	progress = regexp.MustCompile(`^(#\d+ )?\d+\.\d+( |$)`)
)

// instruction reads how BuildKit ends: between lines of dashes the output of the instruction,
// then the file with its line, and an excerpt in which >>> points at the instruction.
func instruction(log []string) (place, line string) {
	for i := len(log) - 1; i >= 0 && place == ""; i-- {
		m := pointed.FindStringSubmatch(log[i])
		if m == nil {
			continue
		}
		for j := i - 1; j >= 0; j-- {
			if at := strings.TrimSpace(log[j]); filePlace.MatchString(at) {
				place = at + ": " + strings.TrimSpace(m[1])
				if first := firstPointed(log[j:i]); first != "" { // an instruction of several lines
					place = at + ": " + first
				}
				line = outputBefore(log[:j])
				break
			}
		}
	}
	if line == "" {
		_, line, _ = strings.Cut(log[len(log)-1], solve)
	}
	return place, line
}

func firstPointed(log []string) string {
	for _, line := range log {
		if m := pointed.FindStringSubmatch(line); m != nil {
			return strings.TrimSpace(m[1])
		}
	}
	return ""
}

// outputBefore is the last line of the output that BuildKit repeats between lines of dashes.
func outputBefore(log []string) string {
	const dashes = "------"
	end := len(log) - 1
	for end >= 0 && strings.TrimSpace(log[end]) != dashes {
		if strings.TrimSpace(log[end]) != "" {
			return "" // no instruction printed anything
		}
		end--
	}
	for i := end - 1; i >= 0; i-- {
		line := strings.TrimSpace(log[i])
		if line == dashes || strings.HasPrefix(line, "> ") {
			return ""
		}
		if line = strings.TrimSpace(progress.ReplaceAllString(line, "")); line != "" {
			return line
		}
	}
	return ""
}

var (
	kanikoStep = regexp.MustCompile(`^INFO\[\d+\] ((?:RUN|COPY|ADD|FROM|WORKDIR|USER) .*)$`)
	kanikoLog  = regexp.MustCompile(`^(INFO|WARN|DEBU|ERRO|TRAC|FATA)\[\d+\] `)
)

// kaniko logs each instruction before it runs it, and what it prints between.
func kaniko(log []string) (place, line string) {
	last := log[len(log)-1]
	if !strings.Contains(last, "waiting for process to exit") {
		return "", strings.TrimPrefix(last, "error building image: ")
	}
	for i := len(log) - 2; i >= 0; i-- {
		if m := kanikoStep.FindStringSubmatch(log[i]); m != nil {
			return m[1], line
		}
		if text := strings.TrimSpace(log[i]); line == "" && text != "" && !kanikoLog.MatchString(text) {
			line = text
		}
	}
	return "", line
}

var buildahStep = regexp.MustCompile(`^Error: building at STEP "((?:[^"\\]|\\.)*)": (.*)$`)

// buildah names the instruction in its last line, and prints what it ran before.
func buildah(log []string) (place, line string) {
	m := buildahStep.FindStringSubmatch(strings.TrimSpace(log[len(log)-1]))
	if m == nil {
		return "", ""
	}
	if _, line = before(log); line == "" || strings.HasPrefix(line, "STEP ") {
		line = m[2]
	}
	return m[1], line
}

// before is the last line before the program's own, which often only counts.
func before(log []string) (place, line string) {
	for i := len(log) - 2; i >= 0; i-- {
		if line := strings.TrimSpace(log[i]); line != "" {
			return "", line
		}
	}
	return "", ""
}

// clip shortens a text to maxLine bytes, at a rune.
func clip(text string) string {
	if len(text) <= maxLine {
		return text
	}
	return strings.ToValidUTF8(text[:maxLine], "") + "…"
}
