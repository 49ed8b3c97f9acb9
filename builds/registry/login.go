// Package registry reads the logins of builds, and asks registries whether they may push.
package registry

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
)

// Login reads the credentials that a build pushes with, which stay in memory. A build without
// credentials gets an anonymous login.
func Login(ctx context.Context, live client.Reader, build *api.AgentBuild) (authn.Keychain, error) {
	out := build.Spec.BuildOutput
	if out == nil || out.ImageRepoCredentials == nil {
		return logins{}, nil
	}
	key := types.NamespacedName{Namespace: build.Namespace, Name: out.ImageRepoCredentials.Name}
	problem := func(message string) error {
		return fmt.Errorf("Secret %s, which spec.buildOutput.imageRepoCredentials names, %s", key,
			message)
	}
	var secret corev1.Secret
	if err := live.Get(ctx, key, &secret); apierrors.IsNotFound(err) {
		return nil, problem("does not exist")
	} else if err != nil {
		return nil, fmt.Errorf("reading Secret %s: %w", key, err)
	}
	if !compose.PurposeRegistry.Fits(secret.Type, secret.Labels) {
		return nil, problem("is not a registry's login")
	}
	text := secret.Data[corev1.DockerConfigJsonKey]
	if config, ok := secret.Data["config.json"]; ok {
		text = config
	}
	all, err := readLogins(text)
	if err != nil {
		return nil, problem("is not a Docker configuration") // The cause could contain a password.
	}
	return all, nil
}

// logins are the logins of a Docker configuration by registry, or by registry and path. Credential
// helpers are programs and are not run.
type logins map[string]authn.AuthConfig

func readLogins(text []byte) (logins, error) {
	var config struct {
		Auths map[string]authn.AuthConfig `json:"auths"`
	}
	if err := json.Unmarshal(text, &config); err != nil {
		return nil, err
	}
	out := logins{}
	for address, login := range config.Auths {
		_, rest, ok := strings.Cut(address, "://")
		if !ok {
			rest = address
		}
		rest = strings.TrimRight(rest, "/")
		for _, version := range []string{"/v1", "/v2"} {
			rest = strings.TrimSuffix(rest, version)
		}
		if rest == "docker.io" {
			rest = name.DefaultRegistry
		}
		out[rest] = login
	}
	return out, nil
}

// Resolve returns the login with the longest path that contains the target.
func (l logins) Resolve(target authn.Resource) (authn.Authenticator, error) {
	for at := target.String(); at != ""; {
		if login, ok := l[at]; ok {
			return authn.FromConfig(login), nil
		}
		i := strings.LastIndexByte(at, '/')
		at = at[:max(i, 0)]
	}
	return authn.Anonymous, nil
}
