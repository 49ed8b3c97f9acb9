package failure

import (
	"cmp"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/functions/text"
)

// Step is how a step of a build ended.
type Step struct {
	Name string
	// Ended is the kubelet's reason for the end of the container, such as OOMKilled.
	Ended    string
	ExitCode int32
	// Log has the last lines that the step printed.
	Log []string
}

// Failure is the reason why a step failed. The zero value means that no row of the table matches.
type Failure struct {
	// Reason is the reason of the condition, such as DockerfileFailed. It is empty if no row
	// matches.
	Reason string
	// Place in the source: a file with its line, such as Dockerfile:3, and the instruction there.
	Place string
	// Line is the line of the log that describes the problem, at most maxLine bytes. It is empty if
	// the log does not matter.
	Line string
	// Remedy is the advice to the author; empty if the line contains it.
	Remedy string
	// Server is true if a server did not answer or reported a temporary problem, so that another
	// attempt may succeed.
	Server bool
}

// String returns place, line and remedy in one line; empty for the zero value.
func (f Failure) String() string {
	parts := slices.DeleteFunc([]string{f.Place, f.Line, f.Remedy},
		func(part string) bool { return part == "" })
	return strings.Join(parts, ": ")
}

// Lines is the number of last lines of a log that Of reads. BuildKit prints the output of the
// failed instruction, and the Dockerfile around it, before its last line.
const Lines = 60

// maxLine limits a log line in a status, in bytes.
const maxLine = 300

// Of returns why a step failed: the first row that matches the step decides.
func Of(step Step) Failure {
	log := step.Log[max(0, len(step.Log)-Lines):]
	for len(log) > 0 && strings.TrimSpace(log[len(log)-1]) == "" {
		log = log[:len(log)-1]
	}
	last := ""
	if len(log) > 0 {
		last = strings.TrimSpace(log[len(log)-1])
	}
	for _, r := range reasons() {
		if !r.matches(step, last) {
			continue
		}
		f := Failure{Reason: r.reason, Remedy: r.remedy,
			Server: r.step == "" && serverFailed().MatchString(last)}
		if r.last != nil {
			f.Line = last
		}
		if r.detail != nil {
			if place, line := r.detail(log); place != "" || line != "" {
				f.Place, f.Line = place, cmp.Or(line, last)
			}
		}
		f.Line, f.Place = text.Cut(f.Line, maxLine), text.Cut(f.Place, maxLine)
		return f
	}
	return Failure{Server: serverFailed().MatchString(last)}
}

// reason is a row of the table of reasons for which runs fail. A row without step, ended and last
// matches no step: code that reads the run sets its reason.
type reason struct {
	reason string
	// meaning is the text in docs/builds.md for this reason and for the next ones without a
	// meaning.
	meaning string
	remedy  string
	// author is true if the author of the build has to fix the problem; alerts do not count it.
	author bool
	step   string         // name of the step, or ""
	exit   int32          // exit code, or 0
	ended  string         // reason why the container ended, or ""
	last   *regexp.Regexp // matches the last line of the log, or nil
	// detail finds the place and the relevant line in the log; nil if the last line suffices.
	detail func(log []string) (place, line string)
}

func (r reason) matches(step Step, last string) bool {
	return (r.step != "" || r.ended != "" || r.last != nil) &&
		(r.step == "" || r.step == step.Name) &&
		(r.exit == 0 || r.exit == step.ExitCode) && (r.ended == "" || r.ended == step.Ended) &&
		(r.last == nil || last != "" && r.last.MatchString(last))
}

const (
	refused     = `(401 Unauthorized|403 Forbidden|UNAUTHORIZED|DENIED|failed to authorize|authorization failed|authentication required|access denied|insufficient_scope|no basic auth credentials)`
	unreachable = `(no such host|server misbehaving|connection refused|no route to host|network is unreachable|i/o timeout|TLS handshake timeout|connection reset by peer|context deadline exceeded)`
	plainHTTP   = `server gave HTTP response to HTTPS client`
	untrusted   = `x509: `
	// solve begins BuildKit's messages.
	solve = `failed to solve: `
	// pushing matches messages of kaniko, the lifecycle, buildah, and push-step, whose URLs contain
	// /v2/.
	pushing = `(checking push permission|failed to push|pushing |failed to export|failed to initialize|creating image|https?://[^ ]+/v2/)`
)

// reasons returns the table in the order in which the rows apply. It is built at the first failure.
var reasons = sync.OnceValue(func() []reason {
	re := regexp.MustCompile
	return []reason{
		// Reasons regardless of the log.
		{reason: "StepOutOfMemory", meaning: "the build exceeded its memory, its disk or its time",
			ended: "OOMKilled"},
		{reason: api.ReasonEvicted},
		{reason: api.ReasonTimeout},
		{reason: "VulnerabilitiesFound", author: true,
			meaning: "the scan found vulnerabilities of the mode's level",
			step:    "vulnerability-scan", exit: 2}, // of grype, at or above --fail-on

		{reason: "BuilderUnavailable",
			meaning: "the node does not allow user namespaces: see [BuildKit](#buildkit)",
			last:    re(`^BuildKit cannot make a user namespace`),
			remedy:  "set spec.builder to kaniko, or allow user namespaces on the build's nodes"},

		// git
		{reason: api.ReasonGitAuthInvalid,
			meaning: "the Git server refused the login, has no such revision, or did not respond",
			last: re(
				`^fatal: (Authentication failed|could not read (Username|Password))|^[^ ]*: Permission denied \(publickey`),
			remedy: "the Secret in spec.source.sourceCredentials has no login that may read " +
				"the repository"},
		{reason: api.ReasonRevisionNotFound,
			last: re(`^the repository has no such revision|^fatal: couldn't find remote ref`),
			remedy: "set spec.source.sourceRevision to a branch, a tag or a commit of " +
				"the repository"},
		{reason: api.ReasonRepositoryNotFound},
		{reason: "GitRemoteUnreachable", last: re(`^fatal: (unable to access|repository) '[^']*'`)},

		// Checks of the steps.
		{reason: "DockerfileNotFound", author: true,
			meaning: "the folder has no such Dockerfile, or the repository no such folder",
			last:    re(`^the folder \S+ has no \S+; `)},
		{reason: "DockerfileNotFound", author: true, last: re(`^the folder \S+ has no \S+$`),
			remedy: "set the parameter DOCKERFILE, or spec.source.sourceSubfolder, to its location"},
		{reason: "SubfolderNotFound", author: true,
			last: re(
				`^the folder \S+ leads out of the repository$|^the repository has no folder `)},
		{reason: "DockerfileNotFound", author: true,
			last: re(solve +
				`(failed to read dockerfile|.*failed to read dockerfile): .*no such file`),
			remedy: "set the parameter DOCKERFILE, or spec.source.sourceSubfolder, to its location"},

		// Registries, beginning with those of base images.
		{reason: api.ReasonRegistryUnreachable, meaning: "the registry refused or did not respond",
			last: re(solve + `.*` + plainHTTP),
			remedy: "the base image's registry speaks plain HTTP: set the parameter PLAIN_HTTP " +
				"if it is also the registry of the image, name a local registry in a build " +
				"argument, or set spec.builder to kaniko"},
		{reason: api.ReasonRegistryUnauthorized, last: re(solve + `.*` + refused),
			remedy: "the base image needs a login, and BuildKit does not have the push login: " +
				"bind a Secret that may pull it to the workspace pull-credentials in " +
				"spec.pipeline.workspaces, or set spec.builder to kaniko"},
		{reason: api.ReasonRegistryUnreachable, last: re(solve + `.*` + unreachable),
			detail: instruction},
		{reason: api.ReasonRegistryUnreachable, last: re(solve + `.*` + untrusted),
			remedy: "the registry's certificate is signed by an authority that the build " +
				"does not trust"},
		{reason: "BaseImageNotFound", meaning: "the Dockerfile names an image that does not exist",
			last: re(solve +
				`\S+: (\S+: )?(failed to resolve source metadata for .*)?(not found|manifest unknown)$`),
			detail: instruction},
		{reason: api.ReasonRegistryUnreachable, last: re(pushing + `.*` + plainHTTP),
			remedy: `the registry speaks plain HTTP: set the parameter PLAIN_HTTP to "true"`},
		{reason: api.ReasonRegistryUnauthorized, last: re(pushing + `.*` + refused),
			remedy: "the Secret in spec.buildOutput.imageRepoCredentials has no login that " +
				"may push there"},
		{reason: api.ReasonRegistryUnreachable,
			last: re(pushing + `.*(` + unreachable + `|` + untrusted +
				`|status code (429|5\d\d)|TOOMANYREQUESTS)`)},

		// The author's code.
		{reason: "DockerfileFailed", author: true,
			meaning: "an instruction, a buildpack or the tests failed", last: re(solve),
			detail: instruction},
		{reason: "DockerfileFailed", author: true, last: re(`^error building image: `),
			detail: kaniko},
		{reason: "DockerfileFailed", author: true, last: re(`^Error: building at STEP "`),
			detail: buildah},
		{reason: "BuildpacksFailed", author: true,
			last: re(`^ERROR: (failed to detect|No buildpack groups passed detection)`),
			remedy: "no buildpack supports the content of the folder: add a Dockerfile, or set " +
				"spec.source.sourceSubfolder to the folder of the application"},
		{reason: "BuildpacksFailed", author: true, last: re(`^ERROR: failed to build: `),
			detail: before},
		{reason: "TestsFailed", author: true, step: "test", last: re(`.`)},
		{reason: api.ReasonFailed, meaning: "something else: read the last lines of the log"},
	}
})

// AuthorsReasons returns the reasons that the author of a build has to fix, without duplicates.
func AuthorsReasons() (names []string) {
	for _, r := range reasons() {
		if r.author && !slices.Contains(names, r.reason) {
			names = append(names, r.reason)
		}
	}
	return names
}

// serverFailed matches the last line of git, BuildKit, buildah and the steps' registry libraries
// after a server failed. It does not match an author's program: a registry's address contains /v2/.
var serverFailed = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(
		`^fatal: unable to access '[^']*': (The requested URL returned error: (429|5\d\d)|Could not resolve host|Failed to connect|.*([Tt]imed out|[Cc]onnection reset))` +
			`|^error: RPC failed; HTTP (429|5\d\d)` +
			`|https?://\S+/v2/\S*:? .*(unexpected status code (429|5\d\d)|TOOMANYREQUESTS|i/o timeout|TLS handshake timeout|connection reset by peer|connection refused)` +
			`|unexpected status from (HEAD|GET) request to https?://\S+/v2/\S*: (429|5\d\d)` +
			`|received unexpected HTTP status: (429|5\d\d)|toomanyrequests: `)
})

var (
	filePlace = regexp.MustCompile(`^([^\s:]+):(\d+)$`)
	pointed   = regexp.MustCompile(`^\s*\d+ \| >>> (.*)$`)
	// progress matches the number of the vertex and the seconds that BuildKit prints before output.
	progress = regexp.MustCompile(`^(#\d+ )?\d+\.\d+( |$)`)
)

// instruction parses the end of BuildKit's log: the output of the instruction between lines of
// dashes, the file with its line, and an excerpt in which >>> marks the instruction.
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

// outputBefore returns the last line of the output that BuildKit repeats between lines of dashes.
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

// kaniko parses the end of kaniko's log, which has each instruction before its output.
func kaniko(log []string) (place, line string) {
	last := log[len(log)-1]
	if !strings.Contains(last, "waiting for process to exit") {
		return "", strings.TrimPrefix(last, "error building image: ")
	}
	for i := len(log) - 2; i >= 0; i-- {
		if m := kanikoStep.FindStringSubmatch(log[i]); m != nil {
			return m[1], line
		}
		if text := strings.TrimSpace(log[i]); line == "" && text != "" &&
			!kanikoLog.MatchString(text) {
			line = text
		}
	}
	return "", line
}

var buildahStep = regexp.MustCompile(`^Error: building at STEP "((?:[^"\\]|\\.)*)": (.*)$`)

// buildah parses the end of buildah's log, which names the instruction after its output.
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

// before returns the line before the program's own last line, which often only counts problems.
func before(log []string) (place, line string) {
	for i := len(log) - 2; i >= 0; i-- {
		if line := strings.TrimSpace(log[i]); line != "" {
			return "", line
		}
	}
	return "", ""
}
