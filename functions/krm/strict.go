package krm

import (
	"encoding/json"
	"errors"
	"fmt"

	kjson "sigs.k8s.io/json"

	"github.com/armature-dev/armature/functions/text"
)

const ignoredByMistake = "remove or correct it: unknown fields are errors, so that nothing is ignored " +
	"by mistake"

func fieldOf(strict error) string {
	var field kjson.FieldError
	if errors.As(strict, &field) {
		return field.FieldPath()
	}
	return ""
}

var embedded = text.Pattern(`\b[A-Z]\w*\.`)

func UnmarshalStrict(data []byte, into any) error {
	strict, err := kjson.UnmarshalStrict(data, into)
	if wrong := (*json.UnmarshalTypeError)(nil); errors.As(err, &wrong) {
		field := embedded().ReplaceAllString(wrong.Field, "")
		err = fmt.Errorf("%s: %s where %s should be\n  hint: correct the value", field, found(wrong.Value),
			article(wrong.Type.String()))
	}
	for _, e := range strict {
		problem := e.Error()
		if path := fieldOf(e); path != "" {
			problem = path + ": no such field\n  hint: " + text.UnknownField(into, path, ignoredByMistake)
		}
		err = errors.Join(err, errors.New(problem))
	}
	return err
}
