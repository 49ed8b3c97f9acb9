package apply

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/ext"
	"github.com/hashicorp/go-multierror"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"
)

// HealthChecks say of kinds by CEL how their objects fare, in place of kstatus.
type HealthChecks map[schema.GroupKind]*healthCheck

// healthCheck is one, compiled. An expression that was not given is nil.
type healthCheck struct{ inProgress, failed, current cel.Program }

// The limits of one evaluation: its cost in CEL's units, which is Kubernetes's own
// limit, and its time.
const (
	healthCost = 1_000_000
	healthTime = time.Second
)

// ReadHealthChecks reads a file with the list healthCheckExprs of a Kustomization of
// Flux (RFC-0009): apiVersion, kind, current, and optionally inProgress and failed,
// each a CEL expression over the fields of an object. Unknown fields are errors.
func ReadHealthChecks(file string, text []byte) (HealthChecks, error) {
	var list struct {
		HealthCheckExprs []struct {
			APIVersion string `json:"apiVersion"`
			Kind       string `json:"kind"`
			InProgress string `json:"inProgress"`
			Failed     string `json:"failed"`
			Current    string `json:"current"`
		} `json:"healthCheckExprs"`
	}
	if err := yaml.UnmarshalStrict(text, &list); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if len(list.HealthCheckExprs) == 0 {
		return nil, fmt.Errorf("%s: healthCheckExprs is missing or empty", file)
	}
	env, err := cel.NewEnv(cel.HomogeneousAggregateLiterals(), cel.EagerlyValidateDeclarations(true), cel.DefaultUTCTimeZone(true),
		cel.CrossTypeNumericComparisons(true), cel.OptionalTypes(), ext.Strings(), ext.Sets(), ext.Encoders())
	if err != nil {
		return nil, err
	}
	checks := make(HealthChecks)
	var failed *multierror.Error
	for i, e := range list.HealthCheckExprs {
		bad := func(field string, err error) {
			failed = multierror.Append(failed, fmt.Errorf("%s: healthCheckExprs[%d].%s: %w", file, i, field, err))
		}
		gv, err := schema.ParseGroupVersion(e.APIVersion)
		kind := gv.WithKind(e.Kind).GroupKind()
		switch {
		case err != nil || e.APIVersion == "":
			bad("apiVersion", fmt.Errorf("%q is not the version of an API, such as example.com/v1", e.APIVersion))
		case e.Kind == "":
			bad("kind", errors.New("it is missing"))
		case e.Current == "":
			bad("current", errors.New("it is missing: set an expression that is true of a healthy object"))
		case checks[kind] != nil:
			bad("kind", fmt.Errorf("%s has another check: make one of both", kind))
		}
		check := &healthCheck{}
		checks[kind] = check
		for _, x := range []struct {
			field, text string
			into        *cel.Program
		}{{"inProgress", e.InProgress, &check.inProgress}, {"failed", e.Failed, &check.failed}, {"current", e.Current, &check.current}} {
			if x.text == "" {
				continue
			}
			ast, issues := env.Parse(x.text) // what fields there are, only the object knows
			if issues.Err() != nil {
				bad(x.field, errors.New(oneLine(issues.Err().Error())))
				continue
			}
			program, err := env.Program(ast, cel.EvalOptions(cel.OptOptimize), cel.InterruptCheckFrequency(100), cel.CostLimit(healthCost))
			if err != nil {
				bad(x.field, err)
			}
			*x.into = program
		}
	}
	return checks, failed.ErrorOrNil()
}

// healthOf is how an object fares: by the check of its kind, else by kstatus. An
// expression that cannot be evaluated, since the object has no status yet, leaves it
// unknown.
func (h HealthChecks) healthOf(u liveObject) Health {
	check := (*healthCheck)(nil)
	if u != nil {
		check = h[u.GroupVersionKind().GroupKind()]
	}
	if check == nil {
		return healthOf(u)
	}
	if u.GetDeletionTimestamp() != nil {
		return Health{Status: string(status.TerminatingStatus)}
	}
	s, _ := u.Object["status"].(map[string]any)
	if seen, ok := s["observedGeneration"].(int64); ok && seen != u.GetGeneration() {
		return Health{Status: string(status.InProgressStatus), Message: "its controller has not seen the last change"}
	}
	ctx, cancel := context.WithTimeout(context.Background(), healthTime)
	defer cancel()
	for _, x := range []struct {
		program cel.Program
		is      status.Status
		name    string
	}{{check.inProgress, status.InProgressStatus, "inProgress"}, {check.failed, status.FailedStatus, "failed"}, {check.current, status.CurrentStatus, "current"}} {
		if x.program == nil {
			continue
		}
		value, _, err := x.program.ContextEval(ctx, u.Object)
		if err != nil {
			return Health{Status: string(status.UnknownStatus), Message: "expression " + x.name + ": " + oneLine(err.Error())}
		}
		is, ok := value.Value().(bool)
		if !ok {
			return Health{Status: string(status.UnknownStatus), Message: "expression " + x.name + " gives no bool"}
		}
		if is {
			return Health{Status: string(x.is), Message: "expression " + x.name + " is true"}
		}
	}
	return Health{Status: string(status.InProgressStatus), Message: "expression current is false"}
}
