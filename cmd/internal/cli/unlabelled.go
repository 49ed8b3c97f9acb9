package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/armature-dev/armature/functions/images"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/sidecars"
	"github.com/armature-dev/armature/functions/text"
	"github.com/armature-dev/armature/render"
)

// NextStep names the workloads of a folder that are not labelled, and what to do with them.
func NextStep(cmd *cobra.Command, folder string) error {
	var in Input
	src, opt, _, err := in.Open(cmd, folder, "")
	if err != nil {
		return err
	}
	workloads, label, err := in.unlabelled(src, opt)
	for _, w := range workloads[:min(len(workloads), 10)] {
		fmt.Fprintf(cmd.ErrOrStderr(), "not labelled: %s\n", w)
	}
	if more := len(workloads) - 10; more > 0 {
		fmt.Fprintf(cmd.ErrOrStderr(), "not labelled: %s\n", text.Count(more, "more workload"))
	}
	fmt.Fprintf(cmd.ErrOrStderr(),
		"next: label each agent %s: enabled, then run armature render %s -d FOLDER, and armature "+
			"check %[2]s\n", label, folder)
	return err
}

// unlabelled returns the workloads of a source that say neither that they are to be injected
// nor that they are not, each with its file and line, and the label by which they say so.
func (in *Input) unlabelled(src render.Source,
	opt render.Options) (workloads []string, label string, err error) {
	settings, _ := sidecars.All().Base(opt.Config)
	label = settings.Prefix + "/inject"
	for _, f := range src.Files {
		if f.AsIs || !render.IsManifest(f.Path) {
			continue
		}
		data, err := src.Content(f.Path)
		if err != nil {
			return nil, "", err
		}
		render.Objects(render.File{Path: f.Path, Data: data}, func(o *krm.Object) {
			template, ok := o.PodTemplate()
			if ok && images.OfKubernetes(o.Group()) &&
				!o.Get("metadata", "labels", label).Exists() &&
				!template.Template.Get("metadata", "labels", label).Exists() {
				workloads = append(workloads,
					fmt.Sprintf("%s (%s:%d)", o.Ref, in.File(f.Path), o.Origin.Line))
			}
		})
	}
	return workloads, label, nil
}
