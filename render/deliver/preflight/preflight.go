// Package preflight compares the needs of a package with a cluster. It only reads, and never the
// values of Secrets.
package preflight

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	psapi "k8s.io/pod-security-admission/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/functions/multi"
	"github.com/armature-dev/armature/render/needs"
)

// deadline is the timeout of a request.
const deadline = time.Minute

type cluster struct {
	client.Client
	discovery *discovery.DiscoveryClient
	namespace string // for objects without one
}

func connect(config *rest.Config, namespace string) (*cluster, error) {
	config = rest.CopyConfig(config)
	config.Timeout = deadline
	direct, err := client.New(config, client.Options{})
	served, err2 := discovery.NewDiscoveryClientForConfig(config)
	if err := multi.Errors(err, err2); err != nil {
		return nil, fmt.Errorf("connecting to the cluster: %w", err)
	}
	return &cluster{direct, served, namespace}, nil
}

// lacks marks a need as missing, and returns what was found.
func lacks(n *needs.Need, remedy, found string) (string, error) {
	n.Status, n.Remedy = needs.Missing, cmp.Or(remedy, n.Remedy)
	return found, nil
}

// serves reports whether the cluster serves a kind.
func (c *cluster) serves(apiVersion, kind string) (bool, error) {
	served, err := c.discovery.ServerResourcesForGroupVersion(apiVersion)
	return err == nil && slices.ContainsFunc(served.APIResources,
		func(r metav1.APIResource) bool { return r.Kind == kind }), err
}

// get reads an object by its name.
func (c *cluster) get(ctx context.Context, namespace, name string, into client.Object) error {
	return c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, into)
}

// Compare sets the status of each need and what the cluster has for it. It returns an error if the
// cluster does not answer.
func Compare(ctx context.Context, config *rest.Config, namespace string, all []needs.Need) error {
	c, err := connect(config, namespace)
	if err != nil {
		return err
	}
	if _, err := c.discovery.ServerVersion(); err != nil &&
		apierrors.ReasonForError(err) == metav1.StatusReasonUnknown {
		return fmt.Errorf("connecting to the cluster: %w", err)
	}
	for i := range all {
		n := &all[i]
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if n.Status == needs.Unknown {
			continue // it could not be read
		}
		found, err := c.find(ctx, n)
		switch {
		case err == nil:
			n.Found = found
		case apierrors.IsNotFound(err):
			n.Status, n.Found = needs.Missing, "the cluster does not have it"
		default:
			n.Status, n.Found, n.Unread = needs.Unknown, err.Error(), true
		}
	}
	return nil
}

// find sets the status of a need and describes what was found.
func (c *cluster) find(ctx context.Context, n *needs.Need) (found string, err error) {
	n.Status = needs.OK
	namespace := cmp.Or(n.Namespace, c.namespace)
	switch n.Kind {
	case needs.Version:
		info, err := c.discovery.ServerVersion()
		if err != nil {
			return "", err
		}
		is, err := version.ParseGeneric(info.GitVersion)
		if err == nil && !is.AtLeast(version.MustParseGeneric(n.Name)) {
			n.Status = needs.Missing
		}
		return info.GitVersion, err
	case needs.CSIDriver:
		return "", c.get(ctx, "", n.Name, &storagev1.CSIDriver{})
	case needs.API:
		apiVersion, kind, _ := strings.Cut(n.Name, " ")
		if ok, err := c.serves(apiVersion, kind); ok || err != nil {
			return "", err
		}
		return lacks(n, "", "the cluster serves "+apiVersion+" without it")
	case needs.PodSecurity:
		return c.podSecurity(ctx, n, namespace)
	case needs.ServiceAccount:
		account, fallback := &corev1.ServiceAccount{}, &corev1.ServiceAccount{}
		err := c.get(ctx, namespace, n.Name, account)
		if err == nil && len(account.ImagePullSecrets) > 0 {
			return "it exists, with pull secrets", nil
		}
		if err != nil && !apierrors.IsNotFound(err) {
			return "", err
		}
		err = c.get(ctx, namespace, "default", fallback)
		if apierrors.IsNotFound(err) {
			return "the ServiceAccount default does not exist, so it has no pull secrets", nil
		}
		if err == nil && len(fallback.ImagePullSecrets) > 0 {
			return lacks(n, "", "default has the pull secret "+fallback.ImagePullSecrets[0].Name)
		}
		return "default has no pull secrets either", err
	case needs.Tekton:
		return c.tekton(ctx, n)
	case needs.Controller:
		return c.running(ctx, n)
	case needs.AttestKey:
		return c.attestKey(ctx, n)
	case needs.BuildNamespace, needs.Writers, needs.Enforced:
		return c.isolation(ctx, n)
	case needs.Requests:
		return c.quota(ctx, n, namespace)
	case needs.Secret:
		return "", c.secret(ctx, namespace, n.Name)
	}
	n.Status = needs.Unknown
	if n.Kind == needs.Keycloak {
		return c.service(ctx, n)
	}
	return "the Kubernetes API does not report it", nil
}

// secret reads the metadata of a Secret.
func (c *cluster) secret(ctx context.Context, namespace, name string) error {
	secret := &metav1.PartialObjectMetadata{}
	secret.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))
	return c.get(ctx, namespace, name, secret)
}

// service finds the Service of an address inside of the cluster.
func (c *cluster) service(ctx context.Context, n *needs.Need) (string, error) {
	address, err := url.Parse(n.Name)
	if err != nil {
		return "", err
	}
	name, rest, _ := strings.Cut(address.Hostname(), ".")
	namespace, rest, _ := strings.Cut(rest, ".")
	if rest != "svc" && !strings.HasPrefix(rest, "svc.") {
		return "an address outside of the cluster, which is not queried", nil
	}
	if err := c.get(ctx, namespace, name, &corev1.Service{}); err != nil {
		return "", err
	}
	n.Status = needs.OK
	return "the Service exists; its realm is not queried", nil
}

func (c *cluster) podSecurity(ctx context.Context, n *needs.Need,
	namespace string) (string, error) {
	live := &corev1.Namespace{}
	err := c.get(ctx, "", namespace, live)
	level := live.Labels[psapi.EnforceLevelLabel]
	switch {
	case n.Packaged != nil && (err == nil || apierrors.IsNotFound(err)):
		level = n.Packaged.Enforce
	case apierrors.IsNotFound(err):
		if n.Name != needs.Levels[0] {
			n.Remedy = "kubectl create namespace " + namespace + ", then " + n.Remedy
		}
		return lacks(n, "", "the namespace does not exist")
	case err != nil:
		return "", err
	}
	if level == "" {
		return "it has no label " + psapi.EnforceLevelLabel +
			": only the default of the API server applies", nil
	}
	if slices.Index(needs.Levels, level) < slices.Index(needs.Levels, n.Name) {
		n.Status = needs.Missing
	}
	return "it enforces " + level, nil
}

// quota compares requests with the namespace's ResourceQuotas. The package itself may use what they
// have left, so only a limit below the requests is a missing need.
func (c *cluster) quota(ctx context.Context, n *needs.Need, namespace string) (string, error) {
	n.Status = needs.Unknown
	quotas := &corev1.ResourceQuotaList{}
	if err := c.List(ctx, quotas, client.InNamespace(namespace)); err != nil {
		return "", err
	}
	var left []string
	for _, quota := range quotas.Items {
		for _, name := range [...]corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			for _, key := range [...]corev1.ResourceName{name, "requests." + name} {
				hard, limited := quota.Status.Hard[key]
				if !limited {
					continue
				}
				if wanted := n.Requests[name]; hard.Cmp(wanted) < 0 {
					return lacks(n, "raise ResourceQuota "+quota.Name+
						", or lower spec.components.NAME.resources of armature.yaml",
						fmt.Sprintf("ResourceQuota %s allows %s %s", quota.Name, name, &hard))
				}
				hard.Sub(quota.Status.Used[key])
				left = append(left,
					fmt.Sprintf("ResourceQuota %s has %s %s left", quota.Name, name, &hard))
			}
		}
	}
	if len(left) == 0 {
		return "the namespace has no ResourceQuota for them; nodes are not queried", nil
	}
	return strings.Join(left, ", "), nil
}
