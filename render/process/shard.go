package process

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Shard selects the objects of one of several controllers: the objects whose label Key has Value,
// or those without the label if Value is empty. The zero Shard selects all objects.
type Shard struct{ Key, Value string }

// ParseShard reads KEY=VALUE, or !KEY for the objects without the label.
func ParseShard(text string) (Shard, error) {
	requirements, err := labels.ParseToRequirements(text)
	if err == nil && len(requirements) == 1 {
		r := requirements[0]
		value, _ := r.Values().PopAny()
		switch r.Operator() {
		case selection.DoesNotExist:
			return Shard{Key: r.Key()}, nil
		case selection.Equals, selection.DoubleEquals:
			if len(validation.IsDNS1123Label(value)) == 0 { // It is a part of a lease's name.
				return Shard{r.Key(), value}, nil
			}
		}
	}
	return Shard{}, fmt.Errorf("%q: write it as sharding.fluxcd.io/key=a, with a value of "+
		"lower-case letters, digits and '-', or as !sharding.fluxcd.io/key", text)
}

// Selector returns the label selector of the shard, or nil for all objects.
func (s Shard) Selector() labels.Selector {
	if s.Key == "" {
		return nil
	}
	out, err := labels.Parse(s.String())
	if err != nil {
		return labels.Nothing()
	}
	return out
}

// Has reports whether an object is in the shard.
func (s Shard) Has(o metav1.Object) bool {
	value, labelled := o.GetLabels()[s.Key]
	return s.Key == "" || labelled == (s.Value != "") && value == s.Value
}

// Lease returns the name of the lease of the shard's leader.
func (s Shard) Lease(name string) string {
	if s.Value == "" {
		return name
	}
	return name + "-" + s.Value
}

func (s Shard) String() string {
	switch {
	case s.Key == "":
		return ""
	case s.Value == "":
		return "!" + s.Key
	}
	return s.Key + "=" + s.Value
}
