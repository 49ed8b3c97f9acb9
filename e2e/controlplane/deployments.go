package controlplane

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/functions/multi"
)

// RunDeployments reports Deployments as available if their spec changed: there is no Deployment
// controller and no node. A test calls it while it waits. A Deployment that is changed or deleted
// meanwhile is left to the next call.
func RunDeployments(ctx context.Context, c client.Client, in ...client.ListOption) error {
	var all appsv1.DeploymentList
	if err := c.List(ctx, &all, in...); err != nil {
		return err
	}
	var failed []error
	for i := range all.Items {
		d := &all.Items[i]
		if d.Status.ObservedGeneration == d.Generation {
			continue
		}
		d.Status = appsv1.DeploymentStatus{
			ObservedGeneration: d.Generation, Replicas: *d.Spec.Replicas,
			UpdatedReplicas: *d.Spec.Replicas, ReadyReplicas: *d.Spec.Replicas,
			AvailableReplicas: *d.Spec.Replicas,
			Conditions: []appsv1.DeploymentCondition{
				{Type: appsv1.DeploymentAvailable, Status: corev1.ConditionTrue,
					Reason: "MinimumReplicasAvailable"},
				{Type: appsv1.DeploymentProgressing, Status: corev1.ConditionTrue,
					Reason: "NewReplicaSetAvailable"},
			},
		}
		if err := c.Status().Update(ctx, d); err != nil && !apierrors.IsConflict(err) &&
			!apierrors.IsNotFound(err) {
			failed = append(failed, err)
		}
	}
	return multi.Errors(failed...)
}
