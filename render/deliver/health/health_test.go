package health_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/render/deliver/health"
)

const checks = `healthCheckExprs:
  - apiVersion: health.example.com/v1
    kind: Widget
    inProgress: spec.phase == 'Starting'
    failed: spec.phase == 'Broken'
    current: spec.phase == 'Running' && spec.nodes.all(n, n.ready)
`

// What is wrong with a file of health checks is an error with its place in it.
func TestReadChecks(t *testing.T) {
	for words, change := range map[string][2]string{
		"healthCheckExprs[0]: failed to parse the expression Current: ": {"all(n, n.ready)",
			"all(n, n.ready"},
		"healthCheckExprs[0]: failed to parse the expression Failed: ": {"'Broken'", "'Broken"},
		"healthCheckExprs[0]: expression Current not specified": {
			checks[strings.Index(checks, "    current:"):], ""},
		"healthCheckExprs[0].kind: it is missing": {"kind: Widget",
			"kind: ''"},
		`healthCheckExprs[0].apiVersion: "a/b/c" is not`: {"health.example.com/v1",
			"a/b/c"},
		"healthCheckExprs is missing or empty": {checks,
			"healthCheckExprs: []"},
		"healthCheckExprs[1].kind: Widget.health.example.com has": {checks,
			checks + strings.TrimPrefix(checks, "healthCheckExprs:\n")},
		`unknown field "degraded"`: {"    failed:",
			"    degraded:"},
	} {
		_, err := health.ReadChecks("health.yaml",
			[]byte(strings.Replace(checks, change[0], change[1], 1)))
		if err == nil || !strings.Contains(err.Error(), "health.yaml: ") ||
			!strings.Contains(err.Error(), words) {
			t.Errorf("error %v, want %q", err, words)
		}
	}
}

// Each cause that keeps a pod from running is found, and only what stays until somebody
// changes something counts as stuck.
func TestTroubles(t *testing.T) {
	for _, c := range []struct {
		status, want string
		stuck        bool
	}{
		{"{phase: Pending, conditions: [{type: PodScheduled, status: 'False', reason: " +
			"Unschedulable, message: 0 nodes}]}", "pod web: Unschedulable: 0 nodes", false},
		{"{phase: Pending, containerStatuses: [{name: a, state: {waiting: {reason: " +
			"ContainerCreating}}}]}", "", false},
		{"{phase: Pending, initContainerStatuses: [{name: i, state: {waiting: {reason: " +
			"ErrImagePull, message: \"no such\\nimage\"}}}], containerStatuses: [{name: a, " +
			"state: {waiting: {reason: PodInitializing}}}]}",
			"pod web: ErrImagePull: container i: no such image", true},
		{"{containerStatuses: [{name: a, state: {waiting: {reason: CrashLoopBackOff}}, " +
			"lastState: {terminated: {exitCode: 137, reason: OOMKilled}}}]}",
			"pod web: CrashLoopBackOff: container a, exit code 137 (OOMKilled)", true},
		{"{containerStatuses: [{name: a, state: {terminated: {exitCode: 2, reason: Error, " +
			"message: bad flag}}}]}", "pod web: Error: container a, exit code 2: bad flag", false},
		{"{phase: Failed, reason: Evicted, message: out of disk}", "pod web: Evicted: out of disk",
			false},
	} {
		var pod corev1.Pod
		if err := yaml.UnmarshalStrict([]byte("{metadata: {name: web}, status: "+c.status+"}"),
			&pod); err != nil {
			t.Fatal(err)
		}
		var got string
		stuck := false
		for _, trouble := range health.Troubles(&pod) {
			got, stuck = got+trouble.String(), stuck || trouble.Stuck()
		}
		if got != c.want || stuck != c.stuck {
			t.Errorf("%s: %q, stuck %v; want %q, %v", c.status, got, stuck, c.want, c.stuck)
		}
	}
}
