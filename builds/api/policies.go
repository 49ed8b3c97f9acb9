package api

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Retries limits the attempts at one build.
type Retries struct {
	// Limit is how often a failed run is retried. Default 0.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10
	Limit int32 `json:"limit,omitempty"`

	// Backoff is the wait before the first retry; it doubles each time, up to an hour.
	// Default 30s.
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="must be a duration such as 30s"
	Backoff *metav1.Duration `json:"backoff,omitempty"`

	// After lists the failures after which a run is retried: Infrastructure is an
	// eviction, a lost node, a pod that could not start, an image that could not be
	// pulled, or a registry or Git server that answered 429 or 5xx (see
	// status.failureDetails.cause); Any is every failure, including those of a compiler
	// or a test. Default Infrastructure.
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

// Covers reports whether another attempt follows the failure of an attempt. Nil covers no failure.
func (r *Retries) Covers(attempt int32, failure *FailureDetails) bool {
	return r != nil && attempt <= r.Limit &&
		(slices.Contains(r.After, RetryAny) || failure != nil && failure.Cause != "")
}

// Retention limits the finished runs of one build.
type Retention struct {
	// SucceededLimit keeps that many succeeded runs. Default: none with
	// cleanupAfterBuild, otherwise all.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	SucceededLimit *int32 `json:"succeededLimit,omitempty"`

	// FailedLimit keeps that many failed or cancelled runs. Default: all.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	FailedLimit *int32 `json:"failedLimit,omitempty"`

	// TTLAfterSucceeded deletes a succeeded run this long after it finished. Default:
	// never.
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="must be a duration such as 24h"
	TTLAfterSucceeded *metav1.Duration `json:"ttlAfterSucceeded,omitempty"`

	// TTLAfterFailed deletes a failed or cancelled run this long after it finished.
	// Default: never.
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="must be a duration such as 72h"
	TTLAfterFailed *metav1.Duration `json:"ttlAfterFailed,omitempty"`
}

// ChangePolicy is the effect of a spec change on a run under way.
type ChangePolicy string

// The values of spec.onChange.
const (
	ChangeQueue  ChangePolicy = "Queue"
	ChangeCancel ChangePolicy = "Cancel"
	ChangeIgnore ChangePolicy = "Ignore"
)

// TemplatePolicy is the effect of a change of the template.
type TemplatePolicy string

// The values of spec.onTemplateChange.
const (
	TemplateRebuild TemplatePolicy = "Rebuild"
	TemplateIgnore  TemplatePolicy = "Ignore"
)
