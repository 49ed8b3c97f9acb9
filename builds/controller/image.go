package controller

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// ownContainer is the controller's in its pod, which may have injected ones beside it.
const ownContainer = "controller"

// readImage returns the image that the controller runs as, as its pod names it. Steps that are a
// part of the controller run the same program, however it was installed.
func readImage(ctx context.Context, c client.Client, name types.NamespacedName) (string, error) {
	var pod corev1.Pod
	if err := c.Get(ctx, name, &pod); err != nil {
		return "", fmt.Errorf("reading the controller's own image from Pod %s, whose name is in POD_NAME: %w", name, err)
	}
	for _, container := range pod.Spec.Containers {
		if container.Name == ownContainer {
			return container.Image, nil
		}
	}
	return "", fmt.Errorf("Pod %s, whose name is in POD_NAME, has no container %q: give the controller's container that name", name, ownContainer)
}
