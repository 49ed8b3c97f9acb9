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
	"github.com/armature-dev/armature/builds/bases"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/render/deliver/sign"
	"github.com/armature-dev/armature/render/gitrepo"
)

// externalParameters are all that a tenant decided: the AgentBuild, less what does
// not shape a run.
type externalParameters struct {
	AgentBuild agentBuild `json:"agentBuild"`
}

type agentBuild struct {
	Namespace string             `json:"namespace"`
	Name      string             `json:"name"`
	Spec      api.AgentBuildSpec `json:"spec"`
}

// internalParameters are what the platform decided.
type internalParameters struct {
	compose.Materials
	// RunDigest is of the whole PipelineRun's spec as it was composed.
	RunDigest string `json:"runDigest"`
	// BuildUID tells the AgentBuild from others that had its name before or after it.
	BuildUID types.UID `json:"buildUID"`
}

// provenance of a run. Its times are the run's, so that it is the same whenever it
// is made.
func (i *inspection) provenance() (_ sign.Provenance, err error) {
	var materials compose.Materials
	if err := json.Unmarshal([]byte(i.Run.Annotations[keys.AnnotationMaterials]), &materials); err != nil || materials.Template.Digest == "" {
		return sign.Provenance{}, refuse(api.ReasonNotAsOrdered, tampered, "run %s does not say which template it was composed from", i.Run.Name)
	}
	at := slices.IndexFunc(i.Run.Spec.Params, func(p tektonv1.Param) bool { return p.Name == "repo-clone-url" })
	if at < 0 {
		return sign.Provenance{}, refuse(api.ReasonResultInvalid, wrongStep, "no step of run %s takes the parameter repo-clone-url, so that its source is not known", i.Run.Name)
	}
	url := i.Run.Spec.Params[at].Value.StringVal
	if repository, err := gitrepo.Parse(url); err != nil || repository.String() != url {
		return sign.Provenance{}, refuse(api.ReasonNotAsOrdered, rerun, "run %s takes a repository without a canonical form", i.Run.Name)
	}
	noted := sign.SourceAnnotations{Repository: url, Ref: i.Run.Annotations[keys.AnnotationRef]}
	if err := i.verifiedSource(&noted); err != nil {
		return sign.Provenance{}, err
	}
	source := sign.ResourceDescriptor{Name: "source", URI: "git+" + url, Digest: map[string]string{"gitCommit": i.commit}, Annotations: noted}
	if noted.Ref != "" {
		source.URI += "@" + noted.Ref // for people and others' tools: ours read the annotations
	}
	baseImages, err := i.baseImages()
	if err != nil {
		return sign.Provenance{}, err
	}
	started, finished := i.Run.Status.StartTime.UTC(), i.Run.Status.CompletionTime.UTC()
	return sign.Provenance{
		BuildDefinition: sign.BuildDefinition{
			BuildType:            keys.AgentBuildType,
			ExternalParameters:   externalParameters{agentBuild{i.Build.Namespace, i.Build.Name, i.ordered}},
			InternalParameters:   internalParameters{materials, i.Run.Annotations[keys.AnnotationRunDigest], i.Build.UID},
			ResolvedDependencies: slices.Concat([]sign.ResourceDescriptor{source}, i.stepImages(), baseImages),
		},
		RunDetails: sign.RunDetails{
			Builder:  sign.Builder{ID: BuilderID(i.ordered.Mode)},
			Metadata: &sign.Metadata{InvocationID: string(i.Run.UID), StartedOn: rounded(started), FinishedOn: rounded(finished)},
		},
	}, nil
}

// verifiedSource adds to the annotations of the source what the platform's policy found before
// the run. A policy of the tenant's proves nothing to others.
func (i *inspection) verifiedSource(noted *sign.SourceAnnotations) error {
	text := i.Run.Annotations[keys.AnnotationVerified]
	if text == "" {
		return nil
	}
	var verified []api.SourceVerification
	if err := json.Unmarshal([]byte(text), &verified); err != nil {
		return refuse(api.ReasonNotAsOrdered, tampered, "run %s does not say how its commit was verified", i.Run.Name)
	}
	if at := slices.IndexFunc(verified, func(v api.SourceVerification) bool { return v.Platform }); at >= 0 {
		v := verified[at]
		noted.SourceRefs, noted.Policy, noted.PolicyDigest, noted.Signer = []string{v.Ref}, v.Policy, v.PolicyDigest, v.Signer
	}
	return nil
}

func rounded(t time.Time) *time.Time {
	t = t.Truncate(time.Second)
	return &t
}

// BuilderID of a mode, as its provenance has it in runDetails.builder.id.
func BuilderID(mode string) string {
	return keys.Builders + cmp.Or(mode, "dev")
}

// stepImages are the images of what ran in the pods, Tekton's own among them, by the digest that the kubelet
// says; one whose digest it does not know is left out.
func (i *inspection) stepImages() (out []sign.ResourceDescriptor) {
	for _, t := range i.tasks {
		if t.run == nil {
			continue
		}
		for _, c := range slices.Concat(t.pod.Spec.InitContainers, t.pod.Spec.Containers) {
			state := t.state(c.Name)
			if state == nil {
				continue
			}
			id := state.ImageID
			if _, digest, ok := strings.Cut(id, "@"); ok {
				id = digest
			}
			if hex, ok := strings.CutPrefix(id, "sha256:"); ok && digestForm.MatchString(id) {
				out = append(out, sign.ResourceDescriptor{Name: t.ordered.Name + "/" + strings.TrimPrefix(c.Name, stepPrefix), URI: c.Image, Digest: map[string]string{"sha256": hex}})
			}
		}
	}
	return out
}

// baseImages are the base images that steps of tasks that ran report. The reports come from
// builders, which may have run a hostile Dockerfile, so they are separate from what the
// kubelet reports.
func (i *inspection) baseImages() (out []sign.ResourceDescriptor, _ error) {
	for _, t := range i.tasks {
		reports := slices.ContainsFunc(t.ordered.TaskSpec.Results, func(r tektonv1.TaskResult) bool { return r.Name == bases.Result })
		if t.run == nil || !reports {
			continue
		}
		images, err := bases.Parse(t.results[bases.Result].StringVal)
		switch {
		case errors.Is(err, bases.ErrTooMany):
			return nil, refuse(api.ReasonResultInvalid, "build what has so many in images of its own, and use those", "task %s cannot report the base images: %v", t.ordered.Name, err)
		case err != nil:
			return nil, refuse(api.ReasonResultInvalid, wrongStep, "the result %s of task %s is not a list of base images", bases.Result, t.ordered.Name)
		}
		for _, image := range images {
			out = append(out, sign.ResourceDescriptor{Name: t.ordered.Name + "/base-image", URI: "oci://" + image.Name,
				Digest:      map[string]string{"sha256": strings.TrimPrefix(image.Digest, "sha256:")},
				Annotations: map[string]string{"armature_reportedBy": "builder"}})
		}
	}
	return out, nil
}
