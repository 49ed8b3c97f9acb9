package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	buildapi "github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/live/chain"
	updates "github.com/armature-dev/armature/builds/writeback/imageupdate/api"
	"github.com/armature-dev/armature/render/deliver/status"
)

// chains of the workloads that are called the one name that was given. A cluster without
// AgentBuilds, or a user who may not read them, has none.
func (s *statusOf) chains(ctx context.Context, live status.Live,
	report status.Report) (all []chain.Chain, err error) {
	if len(s.names) != 1 {
		return nil, nil
	}
	var builds buildapi.AgentBuildList
	found, err := s.list(ctx,
		buildapi.GroupVersion(buildapi.DefaultGroup).WithResource("agentbuilds"), &builds)
	if err != nil || !found {
		return nil, err
	}
	var writes updates.ImageUpdateList
	if _, err := s.list(ctx, updates.GroupVersion.WithResource("imageupdates"), &writes); err != nil {
		return nil, err
	}
	for _, o := range live.Workloads {
		if o.GetName() != s.names[0] {
			continue
		}
		w := chain.WorkloadOf(o, report)
		if b := chain.BuildOf(w, builds.Items); b != nil {
			all = append(all, chain.Of(w, b, chain.UpdateOf(b, writes.Items)))
		}
	}
	return all, nil
}

// list objects of a kind that the cluster need not have.
func (s *statusOf) list(ctx context.Context, resource schema.GroupVersionResource,
	into any) (found bool, err error) {
	list, err := s.c.Resource(resource).Namespace(s.namespace).List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("listing %s: %w", resource.GroupResource(), err)
	}
	return true, runtime.DefaultUnstructuredConverter.FromUnstructured(list.UnstructuredContent(), into)
}

// writeChains below the tables: a line for each link, then where it stands still.
func writeChains(out io.Writer, chains []chain.Chain) error {
	for _, c := range chains {
		fmt.Fprintf(out, "\nfrom build %s to %s\n", c.Build, c.Workload)
		table := tabwriter.NewWriter(out, 0, 4, 3, ' ', 0)
		for _, l := range c.Links {
			fmt.Fprintf(table, "  %s\t%s\t%s\n", l.Name, l.State, l.What)
		}
		if err := table.Flush(); err != nil {
			return err
		}
		if stop := c.Stop(); stop != nil {
			fmt.Fprintf(out, "it stops at %s: %s\n", stop.Name, strings.TrimSpace(stop.Why))
		}
	}
	return nil
}
