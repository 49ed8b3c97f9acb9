package registry

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/render/deliver/oci"
	"github.com/armature-dev/armature/render/deliver/sign"
	"github.com/armature-dev/armature/render/process/copies"
	"github.com/armature-dev/armature/render/process/managers"
)

// Pushes asks registries before a run whether the login of a build may push its image. Otherwise
// the run would fail after minutes. Only a refusal counts: a registry that the controller cannot
// reach may be reachable from the pods.
type Pushes struct {
	live      client.Reader // reads from the API server
	plainHTTP []string
	transport http.RoundTripper
	questions *managers.Questions[struct{}]
}

const (
	// pushTimeout bounds one question.
	pushTimeout = 5 * time.Second
	// pushWorkers is the number of workers, and pushWorkersOfOne the most for one namespace.
	pushWorkers, pushWorkersOfOne = 16, 2
)

// NewPushes returns Pushes that work until ctx ends and call wake with each build whose answer has
// arrived. plainHTTP lists hosts of registries without TLS.
func NewPushes(ctx context.Context, live client.Reader, plainHTTP []string,
	dial func(ctx context.Context, network, address string) (net.Conn, error),
	wake func(types.NamespacedName)) *Pushes {
	return &Pushes{live: live, plainHTTP: plainHTTP, transport: oci.TransportTo(dial),
		questions: managers.NewQuestions[struct{}](ctx, managers.QuestionOptions{
			Name: "push", Workers: pushWorkers, MostOfOne: pushWorkersOfOne, Timeout: pushTimeout,
			Shared: 2 * time.Second, Wake: wake,
		})}
}

// Forget drops the question of a build that was deleted or has its answer.
func (p *Pushes) Forget(build types.NamespacedName) { p.questions.Forget(build) }

// Check checks that the login of a build may push, once for its inputs until Forget. The error is a
// *finding.Finding if the registry refuses the login, and a *managers.NotYet until it has answered.
// A build without a login is not checked.
func (p *Pushes) Check(build *api.AgentBuild, inputs api.Inputs) error {
	out := build.Spec.BuildOutput
	if out == nil || out.ImageRepoCredentials == nil {
		return nil
	}
	copied := &api.AgentBuild{ObjectMeta: metav1.ObjectMeta{Namespace: build.Namespace,
		Name: build.Name}, Spec: api.AgentBuildSpec{BuildOutput: copies.Of(out)}}
	text := compose.Image(build) + " " + out.ImageRepoCredentials.Name
	_, err := p.questions.Get(client.ObjectKeyFromObject(build), text, inputs,
		func(ctx context.Context) (struct{}, error) {
			return struct{}{}, p.ask(ctx, copied)
		})
	return err
}

func (p *Pushes) ask(ctx context.Context, build *api.AgentBuild) error {
	login, err := Login(ctx, p.live, build)
	if err != nil {
		return nil // The start of a run reports a missing or unfit Secret.
	}
	tag, err := name.NewTag(compose.Image(build))
	if err == nil && IsPlainHTTP(p.plainHTTP, tag.RegistryStr()) {
		tag, err = name.NewTag(compose.Image(build), name.Insecure)
	}
	if err != nil {
		return nil // compose reports invalid names.
	}
	// CheckPushPermission cancels the upload after it returns, with this context.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pushTimeout)
	time.AfterFunc(pushTimeout, cancel)
	answer := (*transport.Error)(nil)
	if err := remote.CheckPushPermission(tag, login,
		within{ctx, sign.Bounded(p.transport)}); !errors.As(err, &answer) {
		return nil
	}
	if answer.StatusCode != http.StatusUnauthorized && answer.StatusCode != http.StatusForbidden {
		return nil
	}
	// The registry's text is left out: the tenant chose the server, and its answer may contain data
	// of another tenant.
	return compose.Place(build).At("spec.buildOutput.imageRepoCredentials").Fault(
		api.ReasonRegistryUnauthorized,
		fmt.Sprintf("the registry answers %d to a push to %s with the login of Secret %s",
			answer.StatusCode, tag.Context(), build.Spec.BuildOutput.ImageRepoCredentials.Name),
		"give the Secret a login that may push there; the controller checks it again automatically")
}

// within is a RoundTripper whose requests end with a context.
type within struct {
	ctx context.Context
	to  http.RoundTripper
}

func (w within) RoundTrip(request *http.Request) (*http.Response, error) {
	return w.to.RoundTrip(request.WithContext(w.ctx))
}

// IsPlainHTTP reports whether a registry, with or without its port, is one of hosts.
func IsPlainHTTP(hosts []string, registry string) bool {
	bare, _, _ := strings.Cut(registry, ":")
	return slices.Contains(hosts, registry) || slices.Contains(hosts, bare)
}
