package apply

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"sync"

	"github.com/hashicorp/go-multierror"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/functions/krm"
)

// Object is one object of a package, as its rendered text has it.
type Object struct {
	*unstructured.Unstructured
	// File that it stands in, for messages; "-" is standard input.
	File string
}

// Read decodes the objects of a rendered file. Lists give their items. Documents
// that are no Kubernetes objects are errors, empty ones are passed over.
func Read(file string, text []byte) ([]Object, error) {
	var documents [][]byte
	for d := range krm.Documents(text) {
		documents = append(documents, text[d.Start:d.End])
	}
	decoded := make([][]Object, len(documents))
	problems := make([]error, len(documents))
	var workers sync.WaitGroup
	n := runtime.GOMAXPROCS(0)
	for w := range n {
		workers.Go(func() {
			for i := w; i < len(documents); i += n {
				decoded[i], problems[i] = decode(file, documents[i])
			}
		})
	}
	workers.Wait()
	var all []Object
	var failed *multierror.Error
	for i := range documents {
		all = append(all, decoded[i]...)
		failed = multierror.Append(failed, problems[i])
	}
	return all, failed.ErrorOrNil()
}

func decode(file string, document []byte) ([]Object, error) {
	text, err := yaml.YAMLToJSONStrict(document)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if bytes.Equal(text, []byte("null")) {
		return nil, nil
	}
	u := &unstructured.Unstructured{}
	if err := u.UnmarshalJSON(text); err != nil || u.GetAPIVersion() == "" {
		// The error has the document in it, which may be a Secret.
		return nil, fmt.Errorf("%s: a document is no Kubernetes object: apiVersion or kind is missing, or metadata is no map", file)
	}
	if !u.IsList() {
		if u.GetName() == "" {
			return nil, fmt.Errorf("%s: %s has no metadata.name, which server-side apply needs", file, u.GetKind())
		}
		return []Object{{u, file}}, nil
	}
	var items []Object
	err = u.EachListItem(func(item runtimeObject) error {
		o, ok := item.(*unstructured.Unstructured)
		if !ok || o.GetName() == "" {
			return errors.New("an item of a list has no metadata.name")
		}
		items = append(items, Object{o, file})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return items, nil
}
