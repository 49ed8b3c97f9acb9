package api

import "encoding/json"

// OvercommitGroup is the API group of Overcommit and OvercommitClass.
const OvercommitGroup = "overcommit.inditex.dev"

// Overcommit is the one object, named cluster, that turns overcommit on and says
// by which label pods and namespaces choose a class. Both versions read alike:
// v1alpha1 is the one of source 003, v1alphav1 the published one.
type Overcommit = Resource[OvercommitSpec]

// OvercommitSpec is the specification of an Overcommit.
type OvercommitSpec struct {
	// OvercommitLabel is the key of the label. Required.
	OvercommitLabel string `json:"overcommitLabel"`

	// The fields below configured the operator's own objects, which no longer
	// exist. They are accepted and ignored.

	Labels       map[string]string `json:"labels,omitempty"`
	Annotations  map[string]string `json:"annotations,omitempty"`
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	Tolerations  []any             `json:"tolerations,omitempty"`
}

// OvercommitClass says which part of their limits containers request.
type OvercommitClass = Resource[OvercommitClassSpec]

// OvercommitClassSpec is the specification of an OvercommitClass.
type OvercommitClassSpec struct {
	// CPUOvercommit and MemoryOvercommit are requests divided by limits: from
	// 0.0001 to 1, with at most four decimals. At 1 requests stay as they are.
	// Required.
	CPUOvercommit    *Number `json:"cpuOvercommit,omitempty"`
	MemoryOvercommit *Number `json:"memoryOvercommit,omitempty"`
	// IsDefault makes it the class of pods that neither their own label nor their
	// namespace's gives one. Default false; one class at most.
	IsDefault bool `json:"isDefault,omitempty"`
	// ExcludedNamespaces is a regular expression (RE2, at most 512 characters).
	// The class leaves alone the pods of namespaces in whose name it finds a match.
	// Default: none.
	ExcludedNamespaces string `json:"excludedNamespaces,omitempty"`

	// The fields below are accepted and ignored, as in an Overcommit.

	Labels       map[string]string `json:"labels,omitempty"`
	Annotations  map[string]string `json:"annotations,omitempty"`
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	Tolerations  []any             `json:"tolerations,omitempty"`
}

// Number is a JSON number in the digits of its author, so that nothing is lost
// to binary fractions.
type Number string

// UnmarshalJSON takes a number.
func (n *Number) UnmarshalJSON(b []byte) error {
	var number float64
	if err := json.Unmarshal(b, &number); err != nil {
		return err
	}
	*n = Number(b)
	return nil
}
