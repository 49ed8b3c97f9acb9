package stories

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Story 11: an agent gets its sidecars, whatever kind of workload it is. They
// start one after the other, in 001's order, before the agent does; and a Job
// ends although its sidecars would run for ever.
func TestStory11SidecarsStartInOrderAndJobsEnd(t *testing.T) {
	t.Parallel()
	s := enter(t, map[string]string{"pod-security.kubernetes.io/enforce": "restricted"})

	const stays, ends = corev1.RestartPolicyAlways, corev1.RestartPolicyNever
	labels := func(name string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}
	}
	workloads := map[string]client.Object{
		"deployment":  &appsv1.Deployment{Spec: appsv1.DeploymentSpec{Selector: labels("deployment"), Template: s.agentPod("deployment", stays)}},
		"statefulset": &appsv1.StatefulSet{Spec: appsv1.StatefulSetSpec{Selector: labels("statefulset"), Template: s.agentPod("statefulset", stays)}},
		"daemonset":   &appsv1.DaemonSet{Spec: appsv1.DaemonSetSpec{Selector: labels("daemonset"), Template: s.agentPod("daemonset", stays)}},
		"job":         &batchv1.Job{Spec: batchv1.JobSpec{Template: s.agentPod("job", ends)}},
		"cronjob": &batchv1.CronJob{Spec: batchv1.CronJobSpec{
			Schedule:    "* * * * *",
			JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: s.agentPod("cronjob", ends)}},
		}},
	}
	for name, workload := range workloads {
		workload.SetName(name)
		workload.SetNamespace(s.namespace)
		must(t, s.Create(t.Context(), workload))
	}
	for name := range workloads {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			jobEnds := name == "job" || name == "cronjob"
			// The CronJob waits for the minute to begin.
			eventually(t, 3*time.Minute, name+" has started in order", func(ctx context.Context) error {
				var pods corev1.PodList
				if err := s.List(ctx, &pods, client.InNamespace(s.namespace), client.MatchingLabels{"app": name}); err != nil {
					return err
				}
				if len(pods.Items) == 0 {
					return fmt.Errorf("no pod yet")
				}
				pod := pods.Items[0]
				switch {
				case jobEnds && pod.Status.Phase != corev1.PodSucceeded:
					return fmt.Errorf("pod %s is %s, not yet done", pod.Name, pod.Status.Phase)
				case !jobEnds && !ready(pod):
					return fmt.Errorf("pod %s is not ready", pod.Name)
				}
				order, err := s.log(ctx, pod.Name, "agent")
				if err != nil {
					return err
				}
				want := append(append([]string{}, sidecars...), "agent")
				if diff := cmp.Diff(want, strings.Fields(order)); diff != "" {
					t.Fatalf("start order (-want +got):\n%s", diff)
				}
				return nil
			})
		})
	}
}

// sidecars in 001's order; the first one is done before the second starts.
var sidecars = []string{"proxy-init", "spiffe-helper", "client-registration", "auth-proxy", "envoy-proxy"}

// agentPod is an agent with stand-ins for its sidecars. Each writes its name to
// a file that they share, and is started when it has; the agent prints the file.
func (s *stage) agentPod(app string, restart corev1.RestartPolicy) corev1.PodTemplateSpec {
	container := func(name, script string) corev1.Container {
		return corev1.Container{
			Name: name, Image: s.info.Images["busybox"],
			Command:      []string{"sh", "-c", "echo " + name + " >> /shared/order; " + script},
			VolumeMounts: []corev1.VolumeMount{{Name: "shared", MountPath: "/shared"}},
			SecurityContext: &corev1.SecurityContext{
				AllowPrivilegeEscalation: new(false),
				Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			},
		}
	}
	agent := "cat /shared/order"
	if restart == corev1.RestartPolicyAlways {
		agent += "; exec sleep 3600"
	}
	spec := corev1.PodSpec{
		RestartPolicy:                 restart,
		TerminationGracePeriodSeconds: new(int64(0)),
		Containers:                    []corev1.Container{container("agent", agent)},
		Volumes:                       []corev1.Volume{{Name: "shared", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
		SecurityContext: &corev1.PodSecurityContext{
			RunAsNonRoot: new(true), RunAsUser: new(int64(65532)),
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
	}
	for i, name := range sidecars {
		if i == 0 {
			spec.InitContainers = append(spec.InitContainers, container(name, "true"))
			continue
		}
		sidecar := container(name, "exec sleep 3600")
		sidecar.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
		sidecar.StartupProbe = &corev1.Probe{
			PeriodSeconds: 1,
			ProbeHandler:  corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"grep", "-qx", name, "/shared/order"}}},
		}
		spec.InitContainers = append(spec.InitContainers, sidecar)
	}
	return corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": app}}, Spec: spec}
}

func ready(pod corev1.Pod) bool {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}
