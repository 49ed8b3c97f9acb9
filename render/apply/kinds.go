package apply

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/singleflight"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
)

// kinds finds where kinds are served. It asks for the API versions that a package uses,
// one at a time. (client-go's discovery asks for all that a cluster has, and brings
// client-go's scheme of all its kinds into the program, which every command would set
// up as it starts.)
type kinds struct {
	client rest.Interface
	asking singleflight.Group

	mu    sync.Mutex
	known map[schema.GroupVersion][]metav1.APIResource
}

// newKinds asks through client, whose transport is steady.
func newKinds(config *rest.Config, client *http.Client) (*kinds, error) {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"}) // what discovery answers
	config = rest.CopyConfig(config)
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	c, err := rest.UnversionedRESTClientForConfigAndClient(config, client)
	if err != nil {
		return nil, err
	}
	return &kinds{client: c, known: make(map[schema.GroupVersion][]metav1.APIResource)}, nil
}

// forget what is known, since kinds come and go.
func (k *kinds) forget() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.known = make(map[schema.GroupVersion][]metav1.APIResource)
}

// errNotServed says that the cluster has no such kind.
var errNotServed = errors.New("the cluster does not serve this kind")

// find where a kind is served. The error is errNotServed only where the API server
// says so, and says so now: where it cannot be asked, or the group's server is down,
// to take that for "gone" would lose objects.
func (k *kinds) find(kind schema.GroupVersionKind) (*meta.RESTMapping, error) {
	gv := kind.GroupVersion()
	k.mu.Lock()
	known := k.known
	list := known[gv]
	k.mu.Unlock()
	if m := mapping(list, kind); m != nil {
		return m, nil
	}
	asked, err, _ := k.asking.Do(gv.String(), func() (any, error) {
		var served metav1.APIResourceList
		path := "/apis/" + gv.String()
		if gv.Group == "" {
			path = "/api/" + gv.Version
		}
		if err := k.ask(path, &served); err != nil {
			return nil, err
		}
		k.mu.Lock()
		defer k.mu.Unlock()
		known[gv] = served.APIResources // which nobody sees if it was to be forgotten meanwhile
		return served.APIResources, nil
	})
	switch {
	case apierrors.IsNotFound(err):
		return nil, errNotServed
	case err != nil:
		return nil, fmt.Errorf("asking for the kinds of %s: %w", gv, err)
	}
	if m := mapping(asked.([]metav1.APIResource), kind); m != nil {
		return m, nil
	}
	return nil, errNotServed
}

// findAny finds a kind in the versions of its group, the preferred one first.
func (k *kinds) findAny(kind schema.GroupKind) (*meta.RESTMapping, error) {
	versions := []string{"v1"}
	if kind.Group != "" {
		var group metav1.APIGroup
		switch err := k.ask("/apis/"+kind.Group, &group); {
		case apierrors.IsNotFound(err):
			return nil, errNotServed
		case err != nil:
			return nil, fmt.Errorf("asking for the versions of %s: %w", kind.Group, err)
		}
		versions = []string{group.PreferredVersion.Version}
		for _, v := range group.Versions {
			if v.Version != group.PreferredVersion.Version {
				versions = append(versions, v.Version)
			}
		}
	}
	for _, v := range versions {
		if m, err := k.find(kind.WithVersion(v)); !errors.Is(err, errNotServed) {
			return m, err
		}
	}
	return nil, errNotServed
}

// ask the API server. steady bounds how long that takes.
func (k *kinds) ask(path string, into runtime.Object) error {
	return plain(k.client.Get().AbsPath(path).Do(context.Background()).Into(into))
}

// mapping of a kind in what an API version serves, nil if it is not in there.
func mapping(list []metav1.APIResource, kind schema.GroupVersionKind) *meta.RESTMapping {
	i := slices.IndexFunc(list, func(r metav1.APIResource) bool { return r.Kind == kind.Kind && !strings.Contains(r.Name, "/") })
	if i < 0 {
		return nil
	}
	scope := meta.RESTScopeRoot
	if list[i].Namespaced {
		scope = meta.RESTScopeNamespace
	}
	return &meta.RESTMapping{Resource: kind.GroupVersion().WithResource(list[i].Name), GroupVersionKind: kind, Scope: scope}
}
