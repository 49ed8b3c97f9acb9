package attest_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/armature-dev/armature/builds/attest"
)

var (
	one = "sha256:9cb61ec46a8d566a2cda09b1d5a8f0702b4fad9ee06680d7145d92ca291aae12"
	two = "sha256:9567aab18a2145726cd9267560645f24c0e6ed551153dc33bdacf0d4ccd5c34f"
)

// The record is BuildKit v0.33.1's of
//
//	# syntax=registry.invalid/evil
//	FROM 127.0.0.1:35739/base:one AS a
//	FROM 127.0.0.1:35739/base:one@TWO AS b
//	FROM 127.0.0.1:35739/base:two
//	COPY --from=a /one /three
//	COPY --from=b /two /four
//
// The digest that a tag had is in it, and the stage b, which BuildKit's list of
// dependencies lacks.
func TestRead(t *testing.T) {
	file, err := os.Open("testdata/record.json")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	got, err := attest.ReadBaseImages(file)
	if err != nil {
		t.Fatal(err)
	}
	const base = "127.0.0.1:35739/base:"
	want := []attest.BaseImage{{Name: base + "one", Digest: two}, {Name: base + "one", Digest: one},
		{Name: base + "two", Digest: two}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("images (-want +got):\n%s", diff)
	}
}

// recordOf sources is a record as BuildKit writes it.
func recordOf(sources ...string) string {
	var steps []string
	for i, source := range sources {
		steps = append(steps,
			fmt.Sprintf(`{"id":"step%d","op":{"Op":{"source":{"identifier":%q}}}}`, i, source))
	}
	return `{"buildDefinition":{"buildType":"https://github.com/moby/buildkit/blob/master/docs/attestations/slsa-definitions.md",` +
		`"externalParameters":{"request":{"frontend":"dockerfile.v0"}},"internalParameters":{"buildConfig":{"llbDefinition":[` + strings.Join(steps, ",") + `]}}}}`
}

func TestReadImagesAlone(t *testing.T) {
	got, err := attest.ReadBaseImages(strings.NewReader(recordOf("local://context",
		"docker-image://docker.io/library/busybox:1.37.0@"+two,
		"https://example.com/docker-image://x@"+one, "git://example.com/x",
		"docker-image://[::1]:5000/team/base@"+one,
		"docker-image://docker.io/library/busybox:1.37.0@"+two)))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]attest.BaseImage{{Name: "[::1]:5000/team/base", Digest: one},
		{Name: "docker.io/library/busybox:1.37.0", Digest: two}}, got); diff != "" {
		t.Errorf("images (-want +got):\n%s", diff)
	}
}

// What is not a record of what BuildKit's own frontend did is refused, and the error does
// not repeat all of it.
func TestReadRefuses(t *testing.T) {
	good := recordOf("docker-image://docker.io/library/busybox:1.37.0@" + one)
	long := strings.Repeat("x", 1<<20)
	for what, record := range map[string]string{
		"nothing":                 "",
		"cut":                     good[:len(good)-1],
		"a list":                  "[" + good + "]",
		"two":                     good + good,
		"of 16 MiB":               strings.Repeat(" ", 16<<20) + good,
		"another build type":      strings.Replace(good, "https://github.com", long, 1),
		"a frontend of an image":  strings.Replace(good, "dockerfile.v0", "gateway.v0", 1),
		"no frontend":             strings.Replace(good, "dockerfile.v0", "", 1),
		"no definition":           recordOf(),
		"an image by tag":         recordOf("docker-image://docker.io/library/busybox:1.37.0"),
		"an image without a name": recordOf("docker-image://@" + one),
		"a short digest":          recordOf("docker-image://docker.io/library/busybox@" + one[:70]),
		"another algorithm": recordOf("docker-image://docker.io/library/busybox@sha512:" +
			strings.Repeat("0a", 64)),
		"two digests": recordOf("docker-image://docker.io/library/busybox@" + two +
			"@" + one),
		"two images in one": recordOf("docker-image://docker.io/library/good@" + two +
			" docker.io/library/busybox@" + one),
		"a line break": recordOf(
			"docker-image://docker.io/library/good\ndocker.io/library/busybox@" + one),
		"a control character": recordOf("docker-image://docker.io/library/busy\u001b[2Jbox@" +
			one),
		"a query": recordOf("docker-image://docker.io/library/busybox?digest=" +
			two + "@" + one),
		"another scheme in it": recordOf("docker-image://docker.io/pkg:docker/busybox@" + one),
		"a path upwards":       recordOf("docker-image://docker.io/../busybox@" + one),
		"a long name":          recordOf("docker-image://docker.io/" + long + "@" + one),
	} {
		images, err := attest.ReadBaseImages(strings.NewReader(record))
		if err == nil || images != nil {
			t.Errorf("%s: it is taken: %v", what, images)
		} else if len(err.Error()) > 400 {
			t.Errorf("%s: the error has %d bytes", what, len(err.Error()))
		}
	}
}

// A hundred thousand images are as quick to report as none, and none of them is.
func TestTooManyImages(t *testing.T) {
	var sources []string
	for i := range 100_000 {
		sources = append(sources, fmt.Sprintf("docker-image://r.example/b%d@%s", i, one))
	}
	images, err := attest.ReadBaseImages(strings.NewReader(recordOf(sources...)))
	if err != nil {
		t.Fatal(err)
	}
	text := attest.FormatBaseImages(images)
	if len(images) != len(sources) || len(text) > 100 {
		t.Errorf("of %d images it reports %.200q", len(images), text)
	}
	if images, err := attest.ParseBaseImages(text); !errors.Is(err, attest.ErrTooManyBaseImages) ||
		images != nil {
		t.Errorf("they are taken for %v, %v", images, err)
	}
}

func TestParse(t *testing.T) {
	a, b := attest.BaseImage{Name: "docker.io/library/a:v1", Digest: one},
		attest.BaseImage{Name: "r.example:5000/b", Digest: two}
	for text, want := range map[string][]attest.BaseImage{
		"none": nil, a.String(): {a}, a.String() + " " + b.String(): {a, b},
	} {
		got, err := attest.ParseBaseImages(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q (-want +got):\n%s", text, diff)
		}
		if back := attest.FormatBaseImages(want); back != text {
			t.Errorf("%q is formatted as %q", text, back)
		}
	}
	for what, text := range map[string]string{
		"nothing":            "",
		"a tag":              a.Name,
		"a digest":           one,
		"two spaces":         a.String() + "  " + b.String(),
		"a line break":       a.String() + "\n" + b.String(),
		"not sorted":         b.String() + " " + a.String(),
		"one twice":          a.String() + " " + a.String(),
		"none and one":       "none " + a.String(),
		"more than can be":   strings.TrimSpace(strings.Repeat(a.String()+" ", 20)),
		"an upper case name": strings.ToUpper(a.Name) + "@" + one,
	} {
		if got, err := attest.ParseBaseImages(text); err == nil || got != nil {
			t.Errorf("%s: it is taken: %v", what, got)
		}
	}
}

// What is parsed is formatted as it was.
func FuzzParse(f *testing.F) {
	f.Add("docker.io/library/a:v1@" + one + " r.example:5000/b@" + two)
	f.Add("none")
	f.Fuzz(func(t *testing.T, text string) {
		images, err := attest.ParseBaseImages(text)
		if err == nil && attest.FormatBaseImages(images) != text {
			t.Errorf("%q is %q", text, attest.FormatBaseImages(images))
		}
	})
}
