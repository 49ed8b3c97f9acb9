package controlplane

import (
	"context"
	"fmt"
	"path/filepath"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/armature-dev/armature/e2e/kubeconfig"
)

// Access is how a user connects to the API server.
type Access struct {
	Config     *rest.Config
	Kubeconfig string // path of a file with the same settings, for another process
}

// User creates a user with a client certificate. RBAC decides what the user may do.
func (c *ControlPlane) User(name string, groups ...string) (Access, error) {
	user, err := c.plane.AddUser(envtest.User{Name: name, Groups: groups}, nil)
	if err != nil {
		return Access{}, fmt.Errorf("making user %s: %w", name, err)
	}
	return c.access(name, user.Config())
}

// ServiceAccount returns an access with a token of the ServiceAccount that is valid for an hour,
// and creates the ServiceAccount first if it does not exist. Only what RBAC grants it is allowed.
func (c *ControlPlane) ServiceAccount(ctx context.Context, namespace, name string) (Access, error) {
	cs, err := kubernetes.NewForConfig(c.Admin.Config)
	if err != nil {
		return Access{}, err
	}
	accounts := cs.CoreV1().ServiceAccounts(namespace)
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := accounts.Create(ctx, account, metav1.CreateOptions{}); err != nil &&
		!apierrors.IsAlreadyExists(err) {
		return Access{}, fmt.Errorf("making ServiceAccount %s/%s: %w", namespace, name, err)
	}
	request, err := accounts.CreateToken(ctx, name, &authenticationv1.TokenRequest{},
		metav1.CreateOptions{})
	if err != nil {
		return Access{}, fmt.Errorf("requesting a token of ServiceAccount %s/%s: %w", namespace,
			name, err)
	}
	config := rest.AnonymousClientConfig(c.Admin.Config)
	config.BearerToken = request.Status.Token
	return c.access("system:serviceaccount:"+namespace+":"+name, config)
}

func (c *ControlPlane) access(name string, config *rest.Config) (Access, error) {
	// client-go's own limit of 5 requests a second would slow down every test.
	config.QPS, config.Burst = 1000, 2000

	path := filepath.Join(c.dir, name+".kubeconfig")
	return Access{Config: config, Kubeconfig: path}, kubeconfig.Write(path, config)
}
