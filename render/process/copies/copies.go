// Package copies copies objects of the Kubernetes API.
package copies

import (
	"reflect"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// List is a list of objects of a kind from the API server.
type List[T any] struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []T `json:"items"`
}

// DeepCopyObject returns a copy that shares nothing with l.
func (l *List[T]) DeepCopyObject() runtime.Object { return Of(l) }

// AddKind adds a kind with the name of its Go type, and its list, to a scheme.
func AddKind[T any, P interface {
	*T
	runtime.Object
}](scheme *runtime.Scheme, gv schema.GroupVersion) {
	scheme.AddKnownTypes(gv, P(new(T)))
	scheme.AddKnownTypeWithName(gv.WithKind(reflect.TypeFor[T]().Name()+"List"), &List[T]{})
	metav1.AddToGroupVersion(scheme, gv)
}

// Of returns a deep copy of what p points to, or nil for nil. Unexported fields are copied as they
// are: those of times are shared, which is safe because they do not change.
func Of[T any](p *T) *T {
	if p == nil {
		return nil
	}
	out := new(T)
	deep(reflect.ValueOf(out).Elem(), reflect.ValueOf(p).Elem())
	return out
}

var quantity = reflect.TypeFor[resource.Quantity]()

// deep copies a value into another of the same type.
func deep(out, in reflect.Value) {
	out.Set(in)
	switch kind := in.Kind(); {
	case in.Type() == quantity: // Its unexported digits would be shared.
		out.Set(reflect.ValueOf(in.Interface().(resource.Quantity).DeepCopy()))
	case kind == reflect.Struct:
		for i := range in.NumField() {
			if field := out.Field(i); field.CanSet() && !flat(field.Kind()) {
				deep(field, in.Field(i))
			}
		}
	case flat(kind) || in.IsZero():
	case kind == reflect.Pointer:
		out.Set(reflect.New(in.Type().Elem()))
		deep(out.Elem(), in.Elem())
	case kind == reflect.Slice:
		out.Set(reflect.MakeSlice(in.Type(), in.Len(), in.Len()))
		reflect.Copy(out, in)
		for i := 0; i < in.Len() && !flat(in.Type().Elem().Kind()); i++ {
			deep(out.Index(i), in.Index(i))
		}
	case kind == reflect.Map:
		out.Set(reflect.MakeMapWithSize(in.Type(), in.Len()))
		for key, value := range in.Seq2() {
			copied := reflect.New(in.Type().Elem()).Elem()
			deep(copied, value)
			out.SetMapIndex(key, copied)
		}
	}
}

// flat reports whether setting a value copies all of it.
func flat(kind reflect.Kind) bool {
	switch kind {
	case reflect.Struct, reflect.Pointer, reflect.Slice, reflect.Map:
		return false
	}
	return true
}
