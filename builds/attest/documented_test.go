package attest_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	provenancev1 "github.com/in-toto/attestation/go/predicates/provenance/v1"
	intotov1 "github.com/in-toto/attestation/go/v1"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/armature-dev/armature/builds/attest"
	"github.com/armature-dev/armature/render/deliver/sign"
)

// documented is the statement that docs/contributing/provenance.md prints.
func documented(t *testing.T) []byte {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "contributing", "provenance.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, text, found := strings.Cut(string(page), "```json\n")
	text, _, ended := strings.Cut(text, "```")
	if !found || !ended {
		t.Fatal("docs/contributing/provenance.md prints no statement")
	}
	return []byte(text)
}

// intoto judges a statement by the types and rules of in-toto, which implement SLSA's:
// unknown fields are errors.
func intoto(t *testing.T, statement []byte) {
	t.Helper()
	var s intotov1.Statement
	if err := protojson.Unmarshal(statement, &s); err != nil {
		t.Fatalf("%v\n%s", err, statement)
	}
	if err := s.Validate(); err != nil {
		t.Error(err)
	}
	if s.PredicateType != sign.PredicateType {
		t.Errorf("predicate type %s", s.PredicateType)
	}
	text, err := protojson.Marshal(s.Predicate)
	if err != nil {
		t.Fatal(err)
	}
	var p provenancev1.Provenance
	if err := protojson.Unmarshal(text, &p); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	if err := p.Validate(); err != nil {
		t.Errorf("%v\n%s", err, text)
	}
}

// The provenance of a real run, as docs/contributing/provenance.md prints it, satisfies the rules
// of SLSA, and so does what the code says today, which has the same fields.
func TestDocumentedProvenance(t *testing.T) {
	printed := documented(t)
	intoto(t, printed)
	var statement struct {
		Subject   json.RawMessage `json:"subject"`
		Predicate map[string]any  `json:"predicate"`
	}
	if err := json.Unmarshal(printed, &statement); err != nil {
		t.Fatal(err)
	}
	built, err := attest.Check(*observe(t, false))
	if err != nil {
		t.Fatal(err)
	}
	var today map[string]any
	if err := json.Unmarshal([]byte(marshal(t, built.Provenance)), &today); err != nil {
		t.Fatal(err)
	}
	now, err := json.Marshal(map[string]any{"_type": "https://in-toto.io/Statement/v1",
		"subject": statement.Subject, "predicateType": sign.PredicateType, "predicate": today})
	if err != nil {
		t.Fatal(err)
	}
	intoto(t, now)
	if diff := cmp.Diff(fields(today), fields(statement.Predicate)); diff != "" {
		t.Errorf("docs/contributing/provenance.md prints other fields than there are (-today "+
			"+printed): print that of a new run, as story TestProductionImagesAreSigned logs it\n%s", diff)
	}
}

// fields are the paths of what a provenance has, without a build's own spec, the names of
// steps and the numbers of list items.
func fields(provenance map[string]any) map[string]bool {
	out := map[string]bool{}
	var walk func(at string, value any)
	walk = func(at string, value any) {
		out[at] = true
		if strings.HasSuffix(at, ".agentBuild.spec") {
			return
		}
		switch value := value.(type) {
		case map[string]any:
			for key, child := range value {
				if strings.HasSuffix(at, ".steps") {
					key = "*"
				}
				walk(at+"."+key, child)
			}
		case []any:
			for _, child := range value {
				walk(at+"[]", child)
			}
		}
	}
	walk("", provenance)
	return out
}
