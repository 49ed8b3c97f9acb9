package api

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Retries bounds the attempts at one build.
type Retries struct {
	// Limit is how often a failed run is tried again. Default 0.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10
	Limit int32 `json:"limit,omitempty"`

	// Backoff is the wait before the first retry; it doubles each time, to an
	// hour at most. Default 30s.
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="must be a duration such as 30s"
	Backoff *metav1.Duration `json:"backoff,omitempty"`

	// After lists the failures after which a run is tried again: Infrastructure is
	// an eviction, a lost node, a pod or an image that could not be had, or a
	// registry or Git server that answered 429 or 5xx (see
	// status.failureDetails.cause); Any is every failure, a compiler's or a test's
	// too. Omitted, Infrastructure.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:items:Enum=Infrastructure;Any
	After []RetryOn `json:"after,omitempty"`
}

// RetryOn is a kind of failure.
type RetryOn string

// The values of spec.retries.after.
const (
	RetryInfrastructure RetryOn = "Infrastructure"
	RetryAny            RetryOn = "Any"
)

// Covers reports whether a failure of an attempt is to be followed by another
// attempt. Nil covers nothing.
func (r *Retries) Covers(attempt int32, failure *FailureDetails) bool {
	return r != nil && attempt <= r.Limit && (slices.Contains(r.After, RetryAny) || failure != nil && failure.Cause != "")
}

// Retention bounds the finished runs of one build.
type Retention struct {
	// SucceededLimit keeps that many succeeded runs. Omitted, none with
	// cleanupAfterBuild, else all.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	SucceededLimit *int32 `json:"succeededLimit,omitempty"`

	// FailedLimit keeps that many failed or cancelled runs. Omitted, all.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	FailedLimit *int32 `json:"failedLimit,omitempty"`

	// TTLAfterSucceeded deletes a succeeded run that long after it finished.
	// Omitted, never.
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="must be a duration such as 24h"
	TTLAfterSucceeded *metav1.Duration `json:"ttlAfterSucceeded,omitempty"`

	// TTLAfterFailed deletes a failed or cancelled run that long after it
	// finished. Omitted, never.
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="must be a duration such as 72h"
	TTLAfterFailed *metav1.Duration `json:"ttlAfterFailed,omitempty"`
}

// ChangePolicy is what a spec change does to a run under way.
type ChangePolicy string

// The values of spec.onChange.
const (
	ChangeQueue  ChangePolicy = "Queue"
	ChangeCancel ChangePolicy = "Cancel"
	ChangeIgnore ChangePolicy = "Ignore"
)

// TemplatePolicy is what a change of the template does.
type TemplatePolicy string

// The values of spec.onTemplateChange.
const (
	TemplateRebuild TemplatePolicy = "Rebuild"
	TemplateIgnore  TemplatePolicy = "Ignore"
)
