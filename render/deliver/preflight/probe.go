package preflight

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/render/deliver/isolation"
	"github.com/armature-dev/armature/render/needs"
)

const (
	probePort = "8080"
	// probePatience is the maximum time for a pod to start.
	probePatience = 2 * time.Minute
	// cleanupPatience is the maximum time to delete both pods.
	cleanupPatience = 15 * time.Second
)

// Probe checks whether the network enforces NetworkPolicies. A pod in the namespace of attested
// runs connects to another one there, which the shipped policy refuses. Probe deletes both before
// it returns, even if ctx ends.
func Probe(ctx context.Context, config *rest.Config, all []needs.Need) error {
	for i := range all {
		n := &all[i]
		if n.Kind != needs.Enforced || n.Status != needs.Unknown || n.Unread {
			continue
		}
		c, err := connect(config, "")
		if err != nil {
			return err
		}
		d, err := c.controller(ctx)
		if err != nil {
			return fmt.Errorf("probing the network: %w", err)
		}
		connected, err := c.probe(ctx, d, n.Name)
		switch {
		case ctx.Err() != nil:
			return cmp.Or(err, ctx.Err())
		case err != nil:
			n.Found, n.Unread, n.Remedy = err.Error(), true, "see the events of namespace "+n.Name
		case connected:
			n.Status, n.Found, n.Remedy = needs.Missing, "not enforced: in namespace "+n.Name+
				" a pod connected to another one, which the NetworkPolicy refuses",
				"use a network plugin that enforces NetworkPolicies, such as Calico or Cilium"
		default:
			n.Status, n.Found =
				needs.OK, "enforced: in namespace "+n.Name+" no pod connects to another one"
		}
	}
	return nil
}

// probe reports whether one pod of a namespace can connect to another, listening one.
func (c *cluster) probe(ctx context.Context, d *appsv1.Deployment,
	namespace string) (connected bool, err error) {
	name := "armature-probe-" + rand.String(8)
	server, caller := probePod(d, namespace, name+"-server", "--listen", ":"+probePort), probePod(d,
		namespace, name+"-client")
	server.Spec.Containers[0].ReadinessProbe = &corev1.Probe{PeriodSeconds: 1, TimeoutSeconds: 5,
		ProbeHandler: corev1.ProbeHandler{
			// NetworkPolicies do not apply to a connection inside of the pod.
			Exec: &corev1.ExecAction{Command: append(server.Spec.Containers[0].Command,
				"127.0.0.1:"+probePort)}}}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupPatience)
		defer cancel()
		for _, pod := range []*corev1.Pod{server, caller} {
			if failed := c.Delete(ctx, pod,
				client.GracePeriodSeconds(0)); client.IgnoreNotFound(failed) != nil {
				err = errors.Join(err,
					fmt.Errorf(
						"removing what the probe made: %w\n  hint: kubectl delete pod %s -n %s",
						failed, pod.Name, namespace))
			}
		}
	}()
	// start creates a pod and waits until it is done or has ended.
	start := func(pod *corev1.Pod, done func(*corev1.Pod) bool) error {
		// The request is not canceled, so that it is known whether there is a pod to delete.
		if err := c.Create(context.WithoutCancel(ctx), pod); err != nil {
			return fmt.Errorf("starting pod %s: %w", pod.Name, err)
		}
		err := wait.PollUntilContextTimeout(ctx, 300*time.Millisecond, probePatience, true,
			func(ctx context.Context) (bool, error) {
				now := &corev1.Pod{}
				if err := c.get(ctx, namespace, pod.Name, now); err != nil {
					return false, err
				}
				now.DeepCopyInto(pod)
				return done(pod) || pod.Status.Phase == corev1.PodFailed ||
					pod.Status.Phase == corev1.PodSucceeded, nil
			})
		if err != nil {
			return fmt.Errorf("pod %s, whose image is %s, is %s: %w", pod.Name,
				pod.Spec.Containers[0].Image, pod.Status.Phase, err)
		}
		return nil
	}
	ready := func(pod *corev1.Pod) bool {
		return pod.Status.PodIP != "" && slices.ContainsFunc(pod.Status.ContainerStatuses,
			func(s corev1.ContainerStatus) bool { return s.Ready })
	}
	if err := start(server, ready); err != nil {
		return false, err
	}
	if !ready(server) {
		return false, fmt.Errorf("pod %s ended before anybody connected to it", server.Name)
	}
	container := &caller.Spec.Containers[0]
	container.Args = append(container.Args, "--for", "10s",
		net.JoinHostPort(server.Status.PodIP, probePort))
	if err := start(caller, func(*corev1.Pod) bool { return false }); err != nil {
		return false, err
	}
	for _, c := range caller.Status.ContainerStatuses {
		if t := c.State.Terminated; t != nil && t.ExitCode <= 1 {
			return t.ExitCode == 0, nil
		}
	}
	return false, fmt.Errorf("pod %s ended without an answer: %s", caller.Name, caller.Status.Message)
}

// probePod returns a pod that runs connect of the controller's image, in the same way as isolated
// runs.
func probePod(d *appsv1.Deployment, namespace, name string, args ...string) *corev1.Pod {
	user := int64(65532)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name,
			Labels: map[string]string{"app.kubernetes.io/name": "armature-probe"}},
		Spec: corev1.PodSpec{
			ServiceAccountName: isolation.Account, AutomountServiceAccountToken: new(false),
			EnableServiceLinks: new(false), RestartPolicy: corev1.RestartPolicyNever,
			ActiveDeadlineSeconds: new(int64(2 * probePatience / time.Second)),
			SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: new(true), RunAsUser: &user,
				RunAsGroup: &user,
				SeccompProfile: &corev1.SeccompProfile{
					Type: corev1.SeccompProfileTypeRuntimeDefault}},
			Containers: []corev1.Container{{
				Name: "probe", Image: d.Spec.Template.Spec.Containers[0].Image,
				Command: []string{"/ko-app/armature-controller", "connect"}, Args: args,
				Resources: corev1.ResourceRequirements{
					Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m"),
						corev1.ResourceMemory: resource.MustParse("32Mi")},
					Limits: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"),
						corev1.ResourceMemory: resource.MustParse("128Mi")},
				},
				SecurityContext: &corev1.SecurityContext{AllowPrivilegeEscalation: new(false),
					ReadOnlyRootFilesystem: new(true),
					Capabilities:           &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}},
			}},
		},
	}
}
