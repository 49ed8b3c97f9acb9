package status

import (
	"context"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/identity"
)

// lists are the lists that a report needs, and where they go. Secrets are never
// read.
func (l *Live) lists() []list {
	apps := schema.GroupVersion{Group: "apps", Version: "v1"}
	batch := schema.GroupVersion{Group: "batch", Version: "v1"}
	core := schema.GroupVersion{Version: "v1"}
	return []list{
		{apps.WithResource("deployments"), &l.Workloads, "", false},
		{apps.WithResource("statefulsets"), &l.Workloads, "", false},
		{apps.WithResource("daemonsets"), &l.Workloads, "", false},
		{batch.WithResource("jobs"), &l.Workloads, "", false},
		{batch.WithResource("cronjobs"), &l.Workloads, "", false},
		{core.WithResource("pods"), &l.Pods, "", false},
		{core.WithResource("configmaps"), &l.ConfigMaps, identity.ManagedBy + "=armature", false},
		{schema.GroupVersionResource{Group: "autoscaling", Version: "v2", Resource: "horizontalpodautoscalers"}, &l.Scalers, "", false},
		{schema.GroupVersionResource{Group: "keda.sh", Version: "v1alpha1", Resource: "scaledobjects"}, &l.Scalers, "", true},
		{schema.GroupVersionResource{Group: "rabbitmq.com", Version: "v1beta1", Resource: "queues"}, &l.Queues, "", true},
		{schema.GroupVersionResource{Group: "sqs.services.k8s.aws", Version: "v1alpha1", Resource: "queues"}, &l.Queues, "", true},
	}
}

type list struct {
	resource schema.GroupVersionResource
	into     *[]*unstructured.Unstructured
	labels   string
	optional bool // a cluster need not have it
}

// page bounds a request.
const page = 500

// Read lists what a report needs in a namespace, "" for all of them. Events are
// read only where there are actors, because they are part of the status of actors.
func Read(ctx context.Context, c dynamic.Interface, namespace string) (Live, error) {
	l := Live{Now: time.Now()}
	for _, w := range l.lists() {
		if err := w.read(ctx, c, namespace); err != nil {
			return Live{}, err
		}
	}
	for _, w := range l.Workloads {
		if !strings.HasPrefix(w.GetAnnotations()[keys.RenderedFor], "AsyncActor/") {
			continue
		}
		events := list{schema.GroupVersionResource{Version: "v1", Resource: "events"}, &l.Events, "", false}
		err := events.read(ctx, c, namespace) // into l
		return l, err
	}
	return l, nil
}

func (w list) read(ctx context.Context, c dynamic.Interface, namespace string) error {
	opt := metav1.ListOptions{LabelSelector: w.labels, Limit: page}
	from := len(*w.into)
	for {
		found, err := c.Resource(w.resource).Namespace(namespace).List(ctx, opt)
		switch {
		case w.optional && (apierrors.IsNotFound(err) || meta.IsNoMatchError(err)):
			return nil
		case apierrors.IsResourceExpired(err) && opt.Continue != "":
			*w.into, opt.Continue = (*w.into)[:from], "" // the list grew old while it was read
			continue
		case err != nil:
			return fmt.Errorf("listing %s: %w", w.resource.GroupResource(), err)
		}
		for i := range found.Items {
			*w.into = append(*w.into, &found.Items[i])
		}
		if opt.Continue = found.GetContinue(); opt.Continue == "" {
			return nil
		}
	}
}
