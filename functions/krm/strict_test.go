package krm_test

import (
	"strings"
	"testing"

	"github.com/armature-dev/armature/functions/krm"
)

// A letter that is missing, too many, wrong, or swapped with its neighbour is one slip, and

// two are near.

// A field that a type does not have is an error with the nearest field of the struct that it is in.

func TestUnmarshalStrict(t *testing.T) {
	type Embedded struct {
		Limit int `json:"limit"`
	}
	type item struct {
		Name   string          `json:"name"`
		Nested map[string]*int `json:"nested"`
	}
	var into struct {
		Embedded `json:",inline"`
		Items    []*item         `json:"items"`
		By       map[string]item `json:"by"`
		Hidden   string          `json:"-"`
	}
	for text, want := range map[string]string{
		`{"items": [{"nmae": "a"}]}`:   "items[0].nmae: no such field\n  hint: did you mean name?",
		`{"by": {"x": {"naem": "a"}}}`: "by.x.naem: no such field\n  hint: did you mean name?",
		`{"limt": 1}`:                  "limt: no such field\n  hint: did you mean limit?",
		`{"hidden": "a"}`:              "hidden: no such field\n  hint: remove or correct it",
		`{"items": 1}`:                 "items: a number where ",
		`{"limit": "many"}`: "limit: a string where a whole number should be\n" +
			"  hint: correct the value",
	} {
		if err := krm.UnmarshalStrict([]byte(text), &into); err == nil ||
			!strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	if err := krm.UnmarshalStrict([]byte(`{"items": [{"name": "a"}], "limit": 1}`), &into); err != nil {
		t.Error(err)
	}
}
