package failure

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/armature-dev/armature/builds/api"
)

// What programs print when they fail, and what is made of it.
func TestOf(t *testing.T) {
	for name, test := range map[string]struct {
		step, log string
		want      Failure // of Remedy, a part
	}{
		"BuildKit, a command": {"build", `
#6 [3/3] RUN make all
#6 0.231 make: *** No rule to make target 'all'.  Stop.
#6 ERROR: process "/bin/sh -c make all" did not complete successfully: exit code: 2
------
 > [3/3] RUN make all:
0.231 make: *** No rule to make target 'all'.  Stop.
------
Dockerfile:4
--------------------
   2 |     
   3 |     COPY . .
   4 | >>> RUN make all
   5 |     
--------------------
error: failed to solve: process "/bin/sh -c make all" did not complete successfully: exit code: 2
`, Failure{Reason: "DockerfileFailed", Place: "Dockerfile:4: RUN make all", Line: "make: *** No rule to make target 'all'.  Stop."}},
		"BuildKit, a command over several lines": {"build", `
------
 > [2/2] RUN pip install --no-cache-dir     -r requirements.txt:
1.020 ERROR: Could not open requirements file: [Errno 2] No such file or directory: 'requirements.txt'
1.103 
------
build/Dockerfile.prod:7
--------------------
   6 |     WORKDIR /app
   7 | >>> RUN pip install --no-cache-dir \
   8 | >>>     -r requirements.txt
   9 |     
--------------------
error: failed to solve: process "/bin/sh -c pip install --no-cache-dir     -r requirements.txt" did not complete successfully: exit code: 1
`, Failure{Reason: "DockerfileFailed", Place: `build/Dockerfile.prod:7: RUN pip install --no-cache-dir \`, Line: "ERROR: Could not open requirements file: [Errno 2] No such file or directory: 'requirements.txt'"}},
		"BuildKit, a command that prints nothing": {"build", `
------
 > [2/2] RUN false:
------
Dockerfile:2
--------------------
   1 |     FROM busybox
   2 | >>> RUN false
--------------------
error: failed to solve: process "/bin/sh -c false" did not complete successfully: exit code: 1
`, Failure{Reason: "DockerfileFailed", Place: "Dockerfile:2: RUN false", Line: `process "/bin/sh -c false" did not complete successfully: exit code: 1`}},
		"BuildKit, a file that is not there": {"build", `
#5 ERROR: failed to calculate checksum of ref 5xk::9a7: "/nope.py": not found
------
 > [2/2] COPY nope.py /app/:
------
Dockerfile:2
--------------------
   1 |     FROM busybox
   2 | >>> COPY nope.py /app/
--------------------
error: failed to solve: failed to compute cache key: failed to calculate checksum of ref 5xk::9a7: "/nope.py": not found
`, Failure{Reason: "DockerfileFailed", Place: "Dockerfile:2: COPY nope.py /app/", Line: `failed to compute cache key: failed to calculate checksum of ref 5xk::9a7: "/nope.py": not found`}},
		"BuildKit, a misspelt instruction": {"build", `
#1 [internal] load build definition from Dockerfile
#1 DONE 0.0s
Dockerfile:3
--------------------
   1 |     FROM busybox
   2 |     
   3 | >>> RUNN true
   4 |     
--------------------
error: failed to solve: dockerfile parse error on line 3: unknown instruction: RUNN (did you mean RUN?)
`, Failure{Reason: "DockerfileFailed", Place: "Dockerfile:3: RUNN true", Line: "dockerfile parse error on line 3: unknown instruction: RUNN (did you mean RUN?)"}},
		"BuildKit, no Dockerfile": {"build",
			"error: failed to solve: failed to read dockerfile: open Dockerfile: no such file " +
				"or directory",
			Failure{Reason: "DockerfileNotFound",
				Line: "error: failed to solve: failed to read dockerfile: open Dockerfile: no " +
					"such file or directory", Remedy: "sourceSubfolder"}},
		"BuildKit, a base image that is private": {"build",
			"error: failed to solve: ghcr.io/team/base:v1: failed to resolve source metadata for " +
				"ghcr.io/team/base:v1: failed to authorize: failed to fetch anonymous token: " +
				"unexpected status from GET request to https://ghcr.io/token: 401 Unauthorized",
			Failure{Reason: api.ReasonRegistryUnauthorized,
				Line: "error: failed to solve: ghcr.io/team/base:v1: failed to resolve " +
					"source metadata", Remedy: "pull-credentials"}},
		"BuildKit, a base image of Docker Hub that is private": {"build",
			"error: failed to solve: team/base:v1: failed to resolve source metadata for " +
				"docker.io/team/base:v1: pull access denied, repository does not exist or may " +
				"require authorization: server message: insufficient_scope: authorization failed",
			Failure{Reason: api.ReasonRegistryUnauthorized,
				Line: "error: failed to solve: team/base:v1", Remedy: "pull-credentials"}},
		"BuildKit, a registry without TLS": {"build",
			`error: failed to solve: r.io/base:v1: failed to do request: Head "https://r.io/v2/base/manifests/v1": http: server gave HTTP response to HTTPS client`,
			Failure{Reason: api.ReasonRegistryUnreachable,
				Line: "error: failed to solve: r.io/base:v1", Remedy: "PLAIN_HTTP"}},
		"BuildKit, no such base image": {"build", `
Dockerfile:1
--------------------
   1 | >>> FROM r.io/base:v1
--------------------
error: failed to solve: r.io/base:v1: failed to resolve source metadata for r.io/base:v1: r.io/base:v1: not found`,
			Failure{Reason: "BaseImageNotFound", Place: "Dockerfile:1: FROM r.io/base:v1",
				Line: "r.io/base:v1: failed to resolve source metadata for r.io/base:v1: " +
					"r.io/base:v1: not found"}},
		"BuildKit, a registry that nobody knows": {"build",
			`error: failed to solve: r.invalid/base:v1: failed to resolve source metadata for r.invalid/base:v1: failed to do request: Head "https://r.invalid/v2/base/manifests/v1": dial tcp: lookup r.invalid on 10.96.0.10:53: no such host`,
			Failure{Reason: api.ReasonRegistryUnreachable,
				Line: "r.invalid/base:v1: failed to resolve source metadata"}},
		"BuildKit, no user namespace": {"build",
			"BuildKit cannot make a user namespace on this node: choose another builder, such as " +
				"builder: kaniko, or allow user namespaces on the node",
			Failure{Reason: "BuilderUnavailable", Line: "BuildKit cannot make",
				Remedy: "spec.builder to kaniko"}},
		"push, no login": {"push",
			"armature-controller: pushing r.io/team/app:v1: PUT " +
				"https://r.io/v2/team/app/manifests/v1: UNAUTHORIZED: authentication required; " +
				"[map[Action:push]]",
			Failure{Reason: api.ReasonRegistryUnauthorized, Line: "armature-controller: pushing",
				Remedy: "imageRepoCredentials"}},
		"push, a login without the right": {"push",
			"pushing r.io/team/app:v1: POST https://r.io/v2/team/app/blobs/uploads/: unexpected " +
				"status code 403 Forbidden",
			Failure{Reason: api.ReasonRegistryUnauthorized, Line: "pushing r.io",
				Remedy: "imageRepoCredentials"}},
		"push, the registry is away": {"push",
			"pushing r.io/team/app:v1: Get \"https://r.io/v2/\": dial tcp 10.0.0.1:443: connect: " +
				"connection refused",
			Failure{Reason: api.ReasonRegistryUnreachable, Line: "pushing r.io", Server: true}},
		"push, the registry has too much to do": {"push",
			"error pushing image: failed to push to destination r.io/x:v1: PUT " +
				"https://r.io/v2/x/manifests/v1: unexpected status code 503 Service Unavailable",
			Failure{Reason: api.ReasonRegistryUnreachable, Line: "error pushing", Server: true}},
		"kaniko, a command": {"build-and-push", `
INFO[0002] RUN make all
INFO[0002] Cmd: /bin/sh
INFO[0002] Args: [-c make all]
INFO[0002] Running: [/bin/sh -c make all]
make: *** No rule to make target 'all'.  Stop.
error building image: error building stage: failed to execute command: waiting for process to exit: exit status 2
`, Failure{Reason: "DockerfileFailed", Place: "RUN make all", Line: "make: *** No rule to make target 'all'.  Stop."}},
		"kaniko, a misspelt instruction": {"build-and-push",
			"error building image: parsing dockerfile: dockerfile parse error on line 3: unknown " +
				"instruction: RUNN (did you mean RUN?)",
			Failure{Reason: "DockerfileFailed",
				Line: "parsing dockerfile: dockerfile parse error on line 3: unknown " +
					"instruction: RUNN (did you mean RUN?)"}},
		"kaniko, no login": {"build-and-push",
			`error checking push permissions -- make sure you entered the correct tag name, and that you are authenticated correctly, and try again: checking push permission for "r.io/x:v1": creating push check transport for r.io failed: GET https://r.io/token: UNAUTHORIZED: authentication required`,
			Failure{Reason: api.ReasonRegistryUnauthorized, Line: "error checking push permissions",
				Remedy: "imageRepoCredentials"}},
		"buildah": {"build", `
STEP 3/3: RUN make all
make: *** No rule to make target 'all'.  Stop.
Error: building at STEP "RUN make all": while running runtime: exit status 2
`, Failure{Reason: "DockerfileFailed", Place: "RUN make all", Line: "make: *** No rule to make target 'all'.  Stop."}},
		"buildpacks, nothing that they know": {"create",
			"======== Output: \nERROR: No buildpack groups passed detection.\n" +
				"ERROR: failed to detect: no buildpacks participating",
			Failure{Reason: "BuildpacksFailed", Line: "ERROR: failed to detect",
				Remedy: "Dockerfile"}},
		"buildpacks, a build": {"create",
			"  ERROR: Could not find a version that satisfies the requirement nope\n" +
				"ERROR: failed to build: exit status 1",
			Failure{Reason: "BuildpacksFailed",
				Line: "ERROR: Could not find a version that satisfies the requirement nope"}},
		"tests": {"test", "--- FAIL: TestGreeting\nFAIL\n\n",
			Failure{Reason: "TestsFailed", Line: "FAIL"}},
		"tests that speak of push": {"test",
			"FAIL: TestServer: GET https://api.example.com/users: 503 Service Unavailable",
			Failure{Reason: "TestsFailed", Line: "FAIL: TestServer"}},
		"git, no login": {"clone",
			"fatal: could not read Username for 'https://git.example.com': terminal " +
				"prompts disabled", Failure{Reason: api.ReasonGitAuthInvalid,
				Line: "fatal: could not read Username", Remedy: "spec.source"}},
		"git, the server is away": {"clone",
			"fatal: unable to access 'https://git.example.com/x/': The requested URL " +
				"returned error: 503", Failure{Reason: "GitRemoteUnreachable",
				Line: "fatal: unable to access", Server: true}},
		"git, no such repository": {"clone",
			"fatal: unable to access 'https://git.example.com/x/': The requested URL " +
				"returned error: 404",
			Failure{Reason: "GitRemoteUnreachable", Line: "fatal: unable to access"}},
		"git, no such revision": {"clone", "the repository has no such revision",
			Failure{Reason: api.ReasonRevisionNotFound, Line: "the repository",
				Remedy: "sourceRevision"}},
		"git breaks off": {"clone", "error: RPC failed; HTTP 502 curl 22",
			Failure{Server: true}},
		"no Dockerfile": {"check-dockerfile", "the folder api has no Dockerfile.prod",
			Failure{Reason: "DockerfileNotFound", Line: "the folder api", Remedy: "DOCKERFILE"}},
		"a Dockerfile elsewhere": {"check-dockerfile",
			"the folder . has no Dockerfile.prod; the repository has api/Dockerfile.prod: set " +
				"spec.source.sourceSubfolder to api", Failure{Reason: "DockerfileNotFound",
				Line: "the folder . has no Dockerfile.prod; the repository has api"}},
		"an author's program": {"lint", "main.go:7:2: undefined: x", Failure{}},
		"an author's program, again": {"lint",
			"dial tcp 127.0.0.1:5432: connect: connection refused", Failure{}},
		"nothing": {"lint", "", Failure{}},
	} {
		got := Of(Step{Name: test.step, Log: strings.Split(test.log, "\n")})
		if got.Reason != test.want.Reason || got.Place != test.want.Place ||
			!strings.HasPrefix(got.Line, test.want.Line) ||
			(test.want.Line == "") != (got.Line == "") ||
			!strings.Contains(got.Remedy, test.want.Remedy) || got.Server != test.want.Server {
			t.Errorf("%s:\n  got  %+v\n  want %+v", name, got, test.want)
		}
		// The same text before other output decides nothing.
		if got := Of(Step{Name: "lint",
			Log: append(strings.Split(test.log, "\n"), "exit status 1")}); got != (Failure{}) {
			t.Errorf("%s, then others: %+v", name, got)
		}
	}
}

// A build's author decides what a step prints.
func TestOfHostile(t *testing.T) {
	for name, log := range map[string][]string{
		"one long line": {strings.Repeat("é", 1<<16) + ">>>",
			"error: failed to solve: " + strings.Repeat("é", 1<<16)},
		"an excerpt alone": {"   1 | >>> RUN x", "error: failed to solve: x"},
		"dashes alone": {"------", "------", "Dockerfile:1", "   1 | >>> RUN x",
			"error: failed to solve: x"},
		"a place and no more": {"Dockerfile:1", "error: failed to solve: ."},
		"kaniko":              {"error building image: waiting for process to exit"},
		"buildah":             {`Error: building at STEP "`},
	} {
		f := Of(Step{Name: "build", Log: log})
		if f.Reason == "" || len(f.String()) > 3*maxLine || strings.Contains(f.String(), "\n") {
			t.Errorf("%s: %+v", name, f)
		}
	}
}

func FuzzOf(f *testing.F) {
	f.Add("build",
		"------\n > [2/2] RUN x:\n0.1 y\n------\nDockerfile:2\n   2 | >>> RUN x\n"+
			"error: failed to solve: x")
	f.Fuzz(func(t *testing.T, step, log string) {
		if got := Of(Step{Name: step, Log: strings.Split(log, "\n")}); len(got.Line) >
			maxLine+len("…") || len(got.Place) > maxLine+len("…") {
			t.Errorf("%d and %d bytes", len(got.Line), len(got.Place))
		}
	})
}

// A server that does not answer is not the build's fault, and nothing that an author's program
// prints is mistaken for it.
func TestServer(t *testing.T) {
	for line, want := range map[string]bool{
		"fatal: unable to access 'https://git.example.com/x/': The requested URL " +
			"returned error: 503": true,
		"fatal: unable to access 'https://git.example.com/x/': The requested URL " +
			"returned error: 404": false,
		"fatal: unable to access 'https://git.example.com/x/': Could not resolve host: " +
			"git.example.com": true,
		"fatal: unable to access 'https://git.example.com/x/': Recv failure: Connection " +
			"reset by peer": true,
		"fatal: Authentication failed for " +
			"'https://git.example.com/x/'": false,
		"error pushing image: failed to push to destination r.io/x:v1: PUT " +
			"https://r.io/v2/x/manifests/v1: unexpected status code 503 Service Unavailable": true,
		"error pushing image: failed to push to destination r.io/x:v1: PUT " +
			"https://r.io/v2/x/manifests/v1: unexpected status code 403 Forbidden": false,
		`error checking push permissions: POST https://r.io/v2/x/blobs/uploads/: dial tcp 10.0.0.1:443: connect: connection refused`: true,
		`Error: pushing image: writing blob: received unexpected HTTP status: 502 Bad Gateway`:                                       true,
		"error building image: error building stage: failed to execute command: waiting for " +
			"process to exit: exit status 1": false,
		`error: failed to solve: r.io/x:v1: failed to resolve source metadata for r.io/x:v1: unexpected status from HEAD request to https://r.io/v2/x/manifests/v1: 503 Service Unavailable`: true,
		`error: failed to solve: r.io/x:v1: failed to resolve source metadata for r.io/x:v1: unexpected status from HEAD request to https://r.io/v2/x/manifests/v1: 403 Forbidden`:           false,
		`error: failed to solve: r.io/x:v1: failed to do request: Head "https://r.io/v2/x/manifests/v1": dial tcp 10.0.0.1:443: connect: connection refused`:                                 true,
		`error: failed to solve: process "/bin/sh -c go test ./..." did not complete successfully: exit code: 1`:                                                                             false,
		"FAIL: TestServer: GET https://api.example.com/users: 503 Service " +
			"Unavailable": false,
		"dial tcp 127.0.0.1:5432: connect: " +
			"connection refused": false,
		"main.go:7:2: undefined: x": false,
		"":                          false,
	} {
		if got := Of(Step{Name: "some",
			Log: []string{"something before", line, "", " "}}); got.Server != want {
			t.Errorf("%s\n  %+v, want %v", line, got, want)
		}
	}
}

// TestDocs compares the page of builds with the table of reasons. UPDATE=1 writes it.
func TestDocs(t *testing.T) {
	const file, begin = "../../docs/builds.md", "| reason | meaning |\n|---|---|\n"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(text), begin)
	_, after, ended := strings.Cut(rest, "\n\n")
	if !found || !ended {
		t.Fatalf("%s has no table of reasons", file)
	}
	var rows []string
	known := map[string]bool{}
	for _, r := range reasons() {
		switch {
		case r.meaning != "":
			rows = append(rows, fmt.Sprintf("| `%s` | %s |", r.reason, r.meaning))
		case !known[r.reason]:
			last := &rows[len(rows)-1]
			*last = strings.Replace(*last, "` | ", "`, `"+r.reason+"` | ", 1)
		}
		known[r.reason] = true
	}
	want := before + begin + strings.Join(rows, "\n") + "\n\n" + after
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(file, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
	} else if diff := cmp.Diff(want, string(text)); diff != "" {
		t.Errorf("%s is out of date: run this test with UPDATE=1 (-want +got):\n%s", file, diff)
	}
}
