package lint

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	psapi "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/functions/krm"
)

// fragments are parts of a pod that some level of Pod Security has an opinion
// about. Each is tried alone and together with each other one.
var fragments = []string{
	"spec: {hostNetwork: true}",
	"spec: {hostPID: true}",
	"spec: {hostIPC: true}",
	"spec: {hostUsers: false}",
	"spec: {volumes: [{name: v, hostPath: {path: /}}]}",
	"spec: {volumes: [{name: v, nfs: {server: a, path: /}}]}",
	"spec: {volumes: [{name: v, csi: {driver: a}}, {name: w, emptyDir: {}}, {name: x, projected: {}}, {name: y, ephemeral: {}}]}",
	"spec: {volumes: [{name: v, image: {reference: a}}]}",
	"spec: {volumes: [{name: v, iscsi: {targetPortal: a, iqn: b, lun: 0}}]}",
	"spec: {securityContext: {sysctls: [{name: net.ipv4.tcp_syncookies, value: '1'}]}}",
	"spec: {securityContext: {sysctls: [{name: kernel.msgmax, value: '1'}]}}",
	"spec: {securityContext: {runAsUser: 0}}",
	"spec: {securityContext: {runAsNonRoot: false}}",
	"spec: {securityContext: {runAsNonRoot: true}}",
	"spec: {securityContext: {seccompProfile: {type: Unconfined}}}",
	"spec: {securityContext: {seccompProfile: {type: RuntimeDefault}}}",
	"spec: {securityContext: {appArmorProfile: {type: Unconfined}}}",
	"spec: {securityContext: {seLinuxOptions: {type: spc_t}}}",
	"spec: {securityContext: {seLinuxOptions: {type: container_t, user: root}}}",
	"spec: {securityContext: {windowsOptions: {hostProcess: true}}}",
	"metadata: {annotations: {container.apparmor.security.beta.kubernetes.io/app: unconfined}}",
	"metadata: {annotations: {container.apparmor.security.beta.kubernetes.io/app: runtime/default}}",
	"container: {securityContext: {privileged: true}}",
	"container: {securityContext: {capabilities: {add: [NET_ADMIN]}}}",
	"container: {securityContext: {capabilities: {add: [CHOWN], drop: [ALL]}}}",
	"container: {securityContext: {capabilities: {add: [NET_BIND_SERVICE], drop: [ALL]}}}",
	"container: {securityContext: {capabilities: {drop: [NET_RAW]}}}",
	"container: {securityContext: {procMount: Unmasked}}",
	"container: {securityContext: {runAsUser: 0}}",
	"container: {securityContext: {runAsNonRoot: false}}",
	"container: {securityContext: {allowPrivilegeEscalation: true}}",
	"container: {securityContext: {seccompProfile: {type: Localhost, localhostProfile: a}}}",
	"container: {securityContext: {seccompProfile: {type: Unconfined}}}",
	"container: {securityContext: {appArmorProfile: {type: RuntimeDefault}}}",
	"container: {securityContext: {seLinuxOptions: {role: a}}}",
	"container: {securityContext: {windowsOptions: {hostProcess: false}}}",
	"container: {ports: [{containerPort: 80, hostPort: 80}]}",
	"container: {ports: [{containerPort: 80, hostPort: 0}]}",
	"container: {livenessProbe: {httpGet: {port: 80, host: example.com}}}",
	"container: {readinessProbe: {httpGet: {port: 80}}}",
	"container: {lifecycle: {preStop: {tcpSocket: {port: 80, host: example.com}}}}",
}

// starts are the pods that fragments are put into: one that says nothing, one
// that passes every level, and that with the container as an init container.
var starts = []string{
	"spec: {containers: [{name: app}]}",
	"spec: {securityContext: {runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}, containers: [{name: app, securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}}]}",
	"spec: {securityContext: {runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}, initContainers: [{name: app, securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}}], containers: []}",
}

// TestPodSecurityAgreesWithKubernetes asks Kubernetes' own evaluator about the
// same pods.
func TestPodSecurityAgreesWithKubernetes(t *testing.T) {
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	refused := 0
	for _, start := range starts {
		for i, one := range fragments {
			for _, two := range append([]string{""}, fragments[i+1:]...) {
				text := podWith(t, start, one, two)
				for _, level := range []psapi.Level{psapi.LevelBaseline, psapi.LevelRestricted} {
					var pod corev1.Pod
					if err := yaml.UnmarshalStrict(text, &pod); err != nil {
						t.Fatalf("%v\n%s", err, text)
					}
					r := policy.AggregateCheckResults(evaluator.EvaluatePod(
						psapi.LevelVersion{Level: level, Version: psapi.LatestVersion()}, &pod.ObjectMeta, &pod.Spec))
					got := judge(t, text, string(level))
					if r.Allowed != (len(got) == 0) {
						t.Errorf("%s: Kubernetes says %v (%s), lint %v\n%s", level, r.Allowed, r.ForbiddenDetail(), got, text)
					}
					if !r.Allowed {
						refused++
					}
				}
			}
		}
	}
	if refused < 1000 {
		t.Errorf("only %d pods were refused", refused)
	}
}

// podWith merges fragments into a pod.
func podWith(t *testing.T, parts ...string) []byte {
	t.Helper()
	pod := map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": "web", "namespace": "team"}}
	for _, part := range parts {
		var value map[string]any
		if err := yaml.Unmarshal([]byte(part), &value); err != nil {
			t.Fatal(err)
		}
		if c, ok := value["container"]; ok {
			spec := pod["spec"].(map[string]any)
			for _, list := range []string{"containers", "initContainers"} {
				if items, _ := spec[list].([]any); len(items) > 0 {
					merge(items[0].(map[string]any), c.(map[string]any))
				}
			}
			delete(value, "container")
		}
		merge(pod, value)
	}
	text, err := yaml.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func merge(into, from map[string]any) {
	for key, value := range from {
		a, ok1 := into[key].(map[string]any)
		b, ok2 := value.(map[string]any)
		if ok1 && ok2 {
			merge(a, b)
		} else {
			into[key] = value
		}
	}
}

func judge(t *testing.T, text []byte, level string) (messages []string) {
	t.Helper()
	var ns, pod krm.Object
	namespace := []byte(fmt.Sprintf("apiVersion: v1\nkind: Namespace\nmetadata: {name: team, labels: {pod-security.kubernetes.io/enforce: %s}}\n", level))
	for o, data := range map[*krm.Object][]byte{&ns: namespace, &pod: text} {
		if isObject, err := o.Read(data, krm.Document{End: len(data)}, false, krm.Origin{}); err != nil || !isObject {
			t.Fatal(isObject, err)
		}
	}
	p := New(nil, "kagenti.io")
	p.Collect(&ns)
	p.Collect(&pod)
	p.Link()
	for _, f := range p.Check(&pod, func() (*krm.Object, bool) { return nil, false }) {
		if strings.HasPrefix(f.Rule, "lint/pod-security") {
			messages = append(messages, f.Message)
		}
	}
	return messages
}
