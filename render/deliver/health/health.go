// Package health reports whether objects of a cluster are healthy, and what keeps pods from
// running.
package health

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"github.com/fluxcd/pkg/apis/kustomize"
	"github.com/fluxcd/pkg/runtime/cel"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/functions/multi"
)

// Health is the health of an object by kstatus: Current, InProgress, Failed, Terminating, NotFound,
// Unknown.
type Health struct {
	Status  string `json:"status"`
	Message string `json:"message,omitempty"`
}

// Good reports whether the object is healthy.
func (h Health) Good() bool { return h.Status == string(status.CurrentStatus) }

// Bad reports whether the object has failed.
func (h Health) Bad() bool { return h.Status == string(status.FailedStatus) }

// Checks are CEL expressions that replace kstatus for objects of some kinds.
type Checks map[schema.GroupKind]*cel.StatusEvaluator

// checkTime is the maximum time for evaluating the expressions of one object.
const checkTime = time.Second

// ReadChecks parses a file with the list healthCheckExprs of a Kustomization of Flux (RFC-0009).
// Unknown fields are errors.
func ReadChecks(file string, text []byte) (Checks, error) {
	var list struct {
		HealthCheckExprs []kustomize.CustomHealthCheck `json:"healthCheckExprs"`
	}
	if err := yaml.UnmarshalStrict(text, &list); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if len(list.HealthCheckExprs) == 0 {
		return nil, fmt.Errorf("%s: healthCheckExprs is missing or empty", file)
	}
	checks := make(Checks)
	var failed []error
	for i, e := range list.HealthCheckExprs {
		bad := func(field string, err error) {
			failed = append(failed, fmt.Errorf("%s: healthCheckExprs[%d]%s: %w", file, i, field, err))
		}
		gv, err := schema.ParseGroupVersion(e.APIVersion)
		kind := gv.WithKind(e.Kind).GroupKind()
		switch {
		case err != nil || e.APIVersion == "":
			bad(".apiVersion", fmt.Errorf("%q is not the version of an API, such as example.com/v1",
				e.APIVersion))
		case e.Kind == "":
			bad(".kind", errors.New("it is missing"))
		case checks[kind] != nil:
			bad(".kind", fmt.Errorf("%s has another check: combine both", kind))
		}
		if checks[kind], err = cel.NewStatusEvaluator(&e.HealthCheckExpressions); err != nil {
			bad("", errors.New(OneLine(err.Error())))
		}
	}
	return checks, multi.Errors(failed...)
}

// Of returns the health of an object, nil for one that does not exist: by the check of its kind,
// else by kstatus. It is Unknown if an expression cannot be evaluated because the object has no
// status yet.
func (c Checks) Of(u *unstructured.Unstructured) Health {
	if u == nil {
		return Health{Status: string(status.NotFoundStatus)}
	}
	compute := func() (*status.Result, error) { return status.Compute(u) }
	if check := c[u.GroupVersionKind().GroupKind()]; check != nil &&
		u.GetDeletionTimestamp() == nil {
		ctx, cancel := context.WithTimeout(context.Background(), checkTime)
		defer cancel()
		compute = func() (*status.Result, error) { return check.Evaluate(ctx, u) }
	}
	r, err := compute()
	if err != nil {
		return Health{Status: string(status.UnknownStatus), Message: OneLine(err.Error())}
	}
	return Health{Status: string(r.Status), Message: r.Message}
}

// Condition returns a condition of an object, or the zero value if the object is nil or does not
// have it.
func Condition(u *unstructured.Unstructured, kind string) status.BasicCondition {
	if u == nil {
		return status.BasicCondition{}
	}
	if of, err := status.GetObjectWithConditions(u.Object); err == nil {
		for _, c := range of.Status.Conditions {
			if c.Type == kind {
				return c
			}
		}
	}
	return status.BasicCondition{}
}

// OneLine returns a text as a single line.
func OneLine(text string) string { return strings.Join(strings.Fields(text), " ") }
