// Package inject puts the identity infrastructure of 001, "Injected Identity
// Infrastructure Components", around the containers of a workload that opted
// in, and takes it out again.
package inject

import (
	"errors"
	"fmt"

	"github.com/armature-dev/armature/functions/identity"
	"github.com/armature-dev/armature/functions/krm"
)

// Injector injects workloads one after the other; it keeps only scratch memory
// between them.
type Injector struct {
	// Version is recorded with what was injected.
	Version string
	// Classic makes the sidecars ordinary containers, for clusters older than
	// Kubernetes 1.29. By default they are init containers that keep running.
	Classic bool

	items, volumes, marker []byte
}

// Inject adds the containers, volumes, mounts and record by edits that wait to
// be applied. podAnnotations are further lines for the pod template
// ("key: value\n"), with their keys. The object must not be injected already.
func (in *Injector) Inject(o *krm.Object, s *identity.Settings, podAnnotations []byte, podAnnotationKeys []string) error {
	r := record{Version: in.Version}
	err := in.edit(o, s, &r, podAnnotations, podAnnotationKeys)
	if !errors.Is(err, krm.ErrUncertain) && !needsOriginal(o, err) {
		return err
	}
	if err != nil {
		if err := o.Canonicalize("a layout in which injected lines have no place"); err != nil {
			return err
		}
	}
	original, err := pack(o.Bytes())
	if err != nil {
		return fmt.Errorf("keeping the original of %s: %w", o.Ref, err)
	}
	o.Reset()
	r = record{Version: in.Version, Original: original}
	return in.edit(o, s, &r, podAnnotations, podAnnotationKeys)
}

// needsOriginal reports whether the edits are on a text that is not the author's.
func needsOriginal(o *krm.Object, err error) bool {
	_, rewritten := o.Rewritten()
	return rewritten && err == nil
}

func (in *Injector) edit(o *krm.Object, s *identity.Settings, r *record, podAnnotations []byte, podAnnotationKeys []string) error {
	pod, ok := o.PodTemplate()
	if !ok {
		return fmt.Errorf("%s has no pod template", o.Ref)
	}
	spec := pod.Spec()
	note := func(done krm.Insertion, name string) {
		if done.Created != "" {
			r.Created = append(r.Created, name)
		}
		if done.Was != "" {
			if r.Emptied == nil {
				r.Emptied = make(map[string]string)
			}
			r.Emptied[name] = done.Was
		}
	}
	put := func(parent krm.Node, key, name string, items []byte, first bool) error {
		if len(items) == 0 {
			return nil
		}
		done, err := o.Insert(parent, []string{key}, items, first)
		note(done, name)
		return err
	}

	in.items = in.items[:0]
	var proxyInit []byte
	for _, name := range identity.Components() {
		if !s.Component(name).Enabled {
			continue
		}
		in.items = AppendContainer(in.items, s, name, !in.Classic)
		switch {
		case !in.Classic || name == identity.ProxyInit:
			r.InitContainers = append(r.InitContainers, name)
		default:
			r.Containers = append(r.Containers, name)
		}
		if in.Classic && name == identity.ProxyInit {
			proxyInit, in.items = in.items, nil
		}
	}
	if in.Classic {
		// The author's init containers still reach the network directly: no
		// proxy runs before they are done.
		if err := put(spec, "initContainers", "initContainers", proxyInit, false); err != nil {
			return err
		}
		if err := put(spec, "containers", "containers", in.items, true); err != nil {
			return err
		}
		if pod.Template.Get("metadata", "annotations", defaultContainer).IsNull() {
			// kubectl logs and exec go on meaning the application.
			for c := range spec.Get("containers").Items() {
				podAnnotations = append(podAnnotations, defaultContainer+": "...)
				podAnnotations = append(podAnnotations, c.Get("name").Text()+"\n"...)
				podAnnotationKeys = append(podAnnotationKeys, defaultContainer)
				break
			}
		}
	} else if err := put(spec, "initContainers", "initContainers", in.items, true); err != nil {
		return err
	}

	in.marker = AppendTraceMount(in.marker[:0], s)
	for c := range spec.Get("containers").Items() {
		name := c.Get("name").Text()
		if err := put(c, "volumeMounts", "containers/"+name, in.marker, false); err != nil {
			return err
		}
		r.Mounts = append(r.Mounts, name)
	}

	in.volumes = AppendVolumes(in.volumes[:0], s)
	r.Volumes = VolumeNames(s)
	if err := put(spec, "volumes", "volumes", in.volumes, false); err != nil {
		return err
	}

	in.marker = in.marker[:0]
	switch {
	case len(podAnnotations) == 0:
	case pod.Path == "": // a Pod's annotations are the workload's own
		in.marker = append(in.marker, podAnnotations...)
		r.PodAnnotations = podAnnotationKeys
	default:
		name := "podAnnotations"
		metadata := pod.Template.Get("metadata")
		if !metadata.Exists() {
			name = "podMetadata"
		} else if metadata.Len() == 0 {
			note(krm.Insertion{Was: o.Plan(pod.Template, []string{"metadata"}).Was}, "podMetadata")
		}
		done, err := o.Insert(pod.Template, []string{"metadata", "annotations"}, podAnnotations, false)
		if err != nil {
			return err
		}
		note(done, name)
		r.PodAnnotations = podAnnotationKeys
	}

	annotations := []string{"annotations"}
	note(o.Plan(o.Get("metadata"), annotations), "annotations")
	in.marker = append(in.marker, RecordAnnotation+": '"...)
	in.marker = appendSingleQuoted(in.marker, r)
	in.marker = append(in.marker, "'\n"...)
	_, err := o.Insert(o.Get("metadata"), annotations, in.marker, false)
	return err
}

const defaultContainer = "kubectl.kubernetes.io/default-container"

func appendSingleQuoted(dst []byte, r *record) []byte {
	from := len(dst)
	dst = r.appendJSON(dst)
	for i := from; i < len(dst); i++ {
		if dst[i] == '\'' {
			dst = append(dst, 0)
			copy(dst[i+1:], dst[i:])
			i++
		}
	}
	return dst
}
