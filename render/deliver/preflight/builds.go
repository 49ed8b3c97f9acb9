package preflight

import (
	"cmp"
	"context"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/render/needs"
)

// tektonNamespace is the namespace of the ConfigMaps with Tekton's version and flags.
const tektonNamespace = "tekton-pipelines"

// tektonFlags returns the data of a ConfigMap of Tekton. A missing one means the defaults.
func (c *cluster) tektonFlags(ctx context.Context, name string) (map[string]string, error) {
	flags := &corev1.ConfigMap{}
	err := c.get(ctx, tektonNamespace, name, flags)
	return flags.Data, client.IgnoreNotFound(err)
}

// tekton compares the API, the version and the flags of Tekton with the needs of every build.
func (c *cluster) tekton(ctx context.Context, n *needs.Need) (string, error) {
	if ok, err := c.serves(n.Name, "PipelineRun"); err != nil {
		return "", err
	} else if !ok {
		return lacks(n, "", "the cluster serves "+n.Name+" without PipelineRun")
	}
	info, err := c.tektonFlags(ctx, "pipelines-info")
	flags, err2 := c.tektonFlags(ctx, "feature-flags")
	if err := cmp.Or(err, err2); err != nil {
		return "", err
	}
	found := "it is there"
	if v := info["version"]; v != "" {
		found = "it exists, version " + v
	}
	if inline := flags["disable-inline-spec"]; slices.Contains(strings.Split(inline, ","),
		"pipelinerun") {
		d, err := c.controller(ctx)
		if err != nil && !apierrors.IsNotFound(err) {
			return "", err
		}
		if _, set := flag(d, "pipeline-objects"); !set {
			return lacks(n, "start the controller with --pipeline-objects, or remove pipelinerun "+
				"from disable-inline-spec of ConfigMap "+tektonNamespace+"/feature-flags",
				found+", and refuses Pipelines inside of runs")
		}
	}
	return found, nil
}

// controller returns the Deployment of Armature's controller in any namespace.
func (c *cluster) controller(ctx context.Context) (*appsv1.Deployment, error) {
	found := &appsv1.DeploymentList{}
	err := c.List(ctx, found,
		client.MatchingLabels{"app.kubernetes.io/name": "armature-controller"}, client.Limit(1))
	if err == nil && len(found.Items) == 0 {
		err = apierrors.NewNotFound(appsv1.Resource("deployments"), "armature-controller")
	}
	if err != nil {
		return nil, err
	}
	return &found.Items[0], nil
}

// flag returns the value of a flag of the controller.
func flag(d *appsv1.Deployment, name string) (value string, set bool) {
	if d == nil {
		return "", false
	}
	for _, container := range d.Spec.Template.Spec.Containers {
		for _, arg := range container.Args {
			if key, value, _ := strings.Cut(strings.TrimLeft(arg, "-"), "="); key == name {
				return value, value != "false"
			}
		}
	}
	return "", false
}

func (c *cluster) running(ctx context.Context, n *needs.Need) (string, error) {
	d, err := c.controller(ctx)
	if err != nil {
		return "", err
	}
	if d.Status.AvailableReplicas == 0 {
		return lacks(n, "kubectl describe deployment "+d.Name+" -n "+d.Namespace,
			"it is in namespace "+d.Namespace+", and no pod of it is available")
	}
	return "it is in namespace " + d.Namespace, nil
}

// attestKey checks the key with which the controller signs, and flags of Tekton with which it
// refuses to attest runs.
func (c *cluster) attestKey(ctx context.Context, n *needs.Need) (string, error) {
	flags, err := c.tektonFlags(ctx, "feature-flags")
	if err != nil {
		return "", err
	}
	for name, refused := range map[string]string{"results-from": "sidecar-logs",
		"coschedule": "pipelineruns"} {
		if flags[name] == refused {
			return lacks(n, "remove "+name+" from ConfigMap "+tektonNamespace+
				"/feature-flags: such runs are not attested", "Tekton has "+name+": "+refused)
		}
	}
	d, err := c.controller(ctx)
	if err != nil {
		return "", err
	}
	name := n.Name
	if authority, set := flag(d, "attest-fulcio-url"); set {
		return "its identity signs, which " + authority + " certifies", nil
	}
	if key, set := flag(d, "attest-key"); set {
		name = key
	}
	if strings.Contains(name, "://") {
		n.Status = needs.Unknown
		return "the key is " + name + ", which is not queried", nil
	}
	n.Remedy = "cosign generate-key-pair k8s://" + d.Namespace + "/" + name
	return "", c.secret(ctx, d.Namespace, name)
}
