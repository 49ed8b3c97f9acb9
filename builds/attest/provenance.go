package attest

import (
	"cmp"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/builds/compose/templates"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/render/deliver/sign"
	"github.com/armature-dev/armature/render/gitrepo"
)

// ExternalParameters are the decisions of the tenant: the AgentBuild without the fields that do not
// affect a run.
type ExternalParameters struct {
	AgentBuild struct {
		Namespace string             `json:"namespace"`
		Name      string             `json:"name"`
		Spec      api.AgentBuildSpec `json:"spec"`
	} `json:"agentBuild"`
	// WorkingTree is true if a folder was built instead of the revision, without a cluster.
	WorkingTree bool `json:"workingTree,omitempty"`
}

// ExternalOf returns the external parameters of a build.
func ExternalOf(build *api.AgentBuild) (out ExternalParameters) {
	out.AgentBuild.Namespace, out.AgentBuild.Name, out.AgentBuild.Spec =
		build.Namespace, build.Name, compose.Shape(build)
	return out
}

// internalParameters are the decisions of the platform.
type internalParameters struct {
	compose.Materials
	// RunDigest is the digest of the composed PipelineRun's spec.
	RunDigest string `json:"runDigest"`
	// BuildUID distinguishes the AgentBuild from earlier and later ones of its name.
	BuildUID types.UID `json:"buildUID"`
}

// makeProvenance sets the provenance. Its times are those of the run, so that a repetition produces
// an equal provenance.
func (i *inspection) makeProvenance() error {
	at := slices.IndexFunc(i.Run.Spec.Params,
		func(p tektonv1.Param) bool { return p.Name == "repo-clone-url" })
	if at < 0 {
		return i.invalid("no step of run %s takes the parameter repo-clone-url, so that its source is "+
			"not known", i.Run.Name)
	}
	url := i.Run.Spec.Params[at].Value.StringVal
	if repository, err := gitrepo.Parse(url); err != nil || repository.String() != url {
		return i.refuse(api.ReasonNotAsOrdered, rerun,
			"run %s takes a repository without a canonical form", i.Run.Name)
	}
	noted := sign.SourceAnnotations{Repository: url, Ref: i.Run.Annotations[keys.AnnotationRef]}
	var verified []api.SourceVerification
	if text := i.Run.Annotations[keys.AnnotationVerified]; text != "" &&
		json.Unmarshal([]byte(text), &verified) != nil {
		return i.refuse(api.ReasonNotAsOrdered, changed,
			"run %s does not say how its commit was verified", i.Run.Name)
	}
	// A tenant's own policy proves nothing to consumers.
	if at := slices.IndexFunc(verified,
		func(v api.SourceVerification) bool { return v.Platform }); at >= 0 {
		v := verified[at]
		noted.SourceRefs, noted.Policy, noted.PolicyDigest, noted.Signer =
			[]string{v.Ref}, v.Policy, v.PolicyDigest, v.Signer
	}
	source := sign.ResourceDescriptor{Name: "source", URI: "git+" + url,
		Digest: map[string]string{"gitCommit": i.commit}, Annotations: noted}
	if noted.Ref != "" {
		source.URI += "@" + noted.Ref // for people and other tools; Armature reads the annotations
	}
	baseImages, err := i.baseImages()
	if err != nil {
		return err
	}
	started, finished := i.Run.Status.StartTime.UTC(), i.Run.Status.CompletionTime.UTC()
	i.Provenance = sign.Provenance{
		BuildDefinition: sign.BuildDefinition{
			BuildType:          keys.AgentBuildType,
			ExternalParameters: ExternalOf(i.Build),
			InternalParameters: internalParameters{i.materials,
				i.Run.Annotations[keys.AnnotationRunDigest], i.Build.UID},
			ResolvedDependencies: slices.Concat([]sign.ResourceDescriptor{source}, i.stepImages(),
				baseImages),
		},
		RunDetails: sign.RunDetails{
			Builder: sign.Builder{ID: BuilderID(i.Build.Spec.Mode)},
			Metadata: &sign.Metadata{InvocationID: string(i.Run.UID),
				StartedOn:  new(started.Truncate(time.Second)),
				FinishedOn: new(finished.Truncate(time.Second))},
		},
	}
	return nil
}

// BuilderID returns the value of runDetails.builder.id in the provenance of a mode.
func BuilderID(mode string) string { return keys.Builders + cmp.Or(mode, templates.UsualMode) }

// stepImages returns the images of the containers of steps and sidecars with the digests that the
// kubelet reports. It omits images whose digest the kubelet does not know.
func (i *inspection) stepImages() (out []sign.ResourceDescriptor) {
	for _, t := range i.tasks {
		// In the spec of the status, parameters are replaced by their values.
		spec := cmp.Or(t.run.Status.TaskSpec, &t.ordered.TaskSpec.TaskSpec)
		template := cmp.Or(spec.StepTemplate, &tektonv1.StepTemplate{})
		names := map[string]string{} // names of images by the container
		for _, s := range spec.Steps {
			names["step-"+s.Name] = cmp.Or(s.Image, template.Image)
		}
		for _, s := range spec.Sidecars {
			names["sidecar-"+s.Name] = s.Image
		}
		add := func(container, id string) {
			if _, hex, _ := strings.Cut(id, "sha256:"); api.IsDigest("sha256:" + hex) {
				out = append(out, sign.ResourceDescriptor{
					Name: t.ordered.Name + "/" + strings.TrimPrefix(container, "step-"),
					URI:  names[container], Digest: map[string]string{"sha256": hex}})
			}
		}
		for _, s := range t.run.Status.Steps {
			add(s.Container, s.ImageID)
		}
		for _, s := range t.run.Status.Sidecars {
			add(s.Container, s.ImageID)
		}
	}
	return out
}

// baseImages returns the base images that steps report. The reports come from builders, which may
// have run a hostile Dockerfile, so they are marked and separate from the kubelet's reports.
func (i *inspection) baseImages() (out []sign.ResourceDescriptor, _ error) {
	for t, text := range i.reports(BaseImagesResult) {
		images, err := ParseBaseImages(text)
		switch {
		case errors.Is(err, ErrTooManyBaseImages):
			return nil, i.refuse(api.ReasonResultInvalid,
				"build what has so many in images of its own, and use those",
				"task %s cannot report the base images: %v", t.ordered.Name, err)
		case err != nil:
			return nil, i.invalid("the result %s of task %s is not a list of base images",
				BaseImagesResult, t.ordered.Name)
		}
		for _, image := range images {
			out = append(out, sign.ResourceDescriptor{Name: t.ordered.Name + "/base-image",
				URI: "oci://" + image.Name, Digest: map[string]string{
					"sha256": strings.TrimPrefix(image.Digest, "sha256:")},
				Annotations: map[string]string{"armature_reportedBy": "builder"}})
		}
	}
	return out, nil
}
