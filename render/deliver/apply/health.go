package apply

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"github.com/fluxcd/pkg/apis/kustomize"
	"github.com/fluxcd/pkg/runtime/cel"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/functions/multi"
)

// Health is how an object fares, in the words of kstatus: Current, InProgress,
// Failed, Terminating, NotFound, Unknown.
type Health struct {
	Status  string `json:"status"`
	Message string `json:"message,omitempty"`
}

func (h Health) good() bool { return h.Status == string(status.CurrentStatus) }
func (h Health) bad() bool  { return h.Status == string(status.FailedStatus) }

// HealthChecks decide by CEL how objects of some kinds fare, in place of kstatus.
type HealthChecks map[schema.GroupKind]*cel.StatusEvaluator

// healthTime is how long the expressions of one object may take.
const healthTime = time.Second

// ReadHealthChecks reads a file with the list healthCheckExprs of a Kustomization of
// Flux (RFC-0009). Unknown fields are errors.
func ReadHealthChecks(file string, text []byte) (HealthChecks, error) {
	var list struct {
		HealthCheckExprs []kustomize.CustomHealthCheck `json:"healthCheckExprs"`
	}
	if err := yaml.UnmarshalStrict(text, &list); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if len(list.HealthCheckExprs) == 0 {
		return nil, fmt.Errorf("%s: healthCheckExprs is missing or empty", file)
	}
	checks := make(HealthChecks)
	var failed []error
	for i, e := range list.HealthCheckExprs {
		bad := func(field string, err error) {
			failed = append(failed, fmt.Errorf("%s: healthCheckExprs[%d]%s: %w", file, i, field, err))
		}
		gv, err := schema.ParseGroupVersion(e.APIVersion)
		kind := gv.WithKind(e.Kind).GroupKind()
		switch {
		case err != nil || e.APIVersion == "":
			bad(".apiVersion", fmt.Errorf("%q is not the version of an API, such as example.com/v1", e.APIVersion))
		case e.Kind == "":
			bad(".kind", errors.New("it is missing"))
		case checks[kind] != nil:
			bad(".kind", fmt.Errorf("%s has another check: make one of both", kind))
		}
		if checks[kind], err = cel.NewStatusEvaluator(&e.HealthCheckExpressions); err != nil {
			bad("", errors.New(oneLine(err.Error())))
		}
	}
	return checks, multi.Errors(failed...)
}

// healthOf is how an object fares: by the check of its kind, else by kstatus. An
// expression that cannot be evaluated, since the object has no status yet, leaves it
// unknown.
func (h HealthChecks) healthOf(u liveObject) Health {
	if u == nil {
		return Health{Status: string(status.NotFoundStatus)}
	}
	compute := func() (*status.Result, error) { return status.Compute(u) }
	if check := h[u.GroupVersionKind().GroupKind()]; check != nil && u.GetDeletionTimestamp() == nil {
		ctx, cancel := context.WithTimeout(context.Background(), healthTime)
		defer cancel()
		compute = func() (*status.Result, error) { return check.Evaluate(ctx, u) }
	}
	r, err := compute()
	if err != nil {
		return Health{Status: string(status.UnknownStatus), Message: oneLine(err.Error())}
	}
	return Health{Status: string(r.Status), Message: r.Message}
}

// condition gives reason and message of a condition, and whether it is true.
func condition(u liveObject, kind string) (why string, is bool) {
	if u == nil {
		return "", false
	}
	conditions, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
	for _, c := range conditions {
		if one, _ := c.(map[string]any); one["type"] == kind && one["status"] == "True" {
			return oneLine(fmt.Sprintf("%v: %v", one["reason"], one["message"])), true
		}
	}
	return "", false
}
