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

// Pushes asks registries, before a run starts, whether the login of a build may push its
// image: else the run ends with that after minutes. Only a registry that refuses counts. One
// that does not answer the controller may answer the pods.
type Pushes struct {
	live      client.Reader // of the API server
	plainHTTP []string
	transport http.RoundTripper
	questions *managers.Questions[struct{}]
}

const (
	// pushTimeout bounds one question.
	pushTimeout = 5 * time.Second
	// pushWorkers ask at once, and pushWorkersOfOne of them for one namespace.
	pushWorkers, pushWorkersOfOne = 16, 2
)

// NewPushes asks until ctx ends, and calls wake with each build whose answer has arrived.
// plainHTTP are hosts of registries that are asked without TLS.
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

// Check that the login of a build may push, once for inputs until it is forgotten. The error is a
// *finding.Finding if the registry refuses it, and a *managers.NotYet while it is asked. A build
// without a login is not checked.
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
		return nil // what is missing or unfit was judged before
	}
	tag, err := name.NewTag(compose.Image(build))
	if err == nil && IsPlainHTTP(p.plainHTTP, tag.RegistryStr()) {
		tag, err = name.NewTag(compose.Image(build), name.Insecure)
	}
	if err != nil {
		return nil // compose judges names
	}
	// The upload that was begun is cancelled after the answer.
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
	// Without the registry's text: the tenant chose the server, and what it says may be another's.
	return compose.Place(build).At("spec.buildOutput.imageRepoCredentials").Fault(
		api.ReasonRegistryUnauthorized,
		fmt.Sprintf("the registry answers %d to a push to %s with the login of Secret %s",
			answer.StatusCode, tag.Context(), build.Spec.BuildOutput.ImageRepoCredentials.Name),
		"give the Secret a login that may push there; the controller checks it again automatically")
}

// within ends requests with a context.
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
