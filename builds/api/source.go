package api

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// SourceSpec names a Git revision.
type SourceSpec struct {
	// SourceRepository is a Git URL: https://host/path, ssh://git@host/path,
	// git@host:path, or host/path, which means https. If omitted, set the parameter
	// repo-url (or SOURCE_REPO_URL).
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule="!self.matches('^([A-Za-z][-A-Za-z0-9+.]*://)?[^/@]*:[^/@]*@')",message="must not hold a password: put it in a Secret and name that in sourceCredentials"
	// +kubebuilder:validation:XValidation:rule="!self.contains(' ')",message="must not hold spaces"
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('-') && (!self.contains('://') || self.matches('^(https?|ssh)://'))",message="must be a Git URL over https or ssh, or host/path, which means https"
	SourceRepository string `json:"sourceRepository,omitempty"`

	// SourceRevision is a branch, a tag, a full ref or a full commit SHA. It is resolved
	// to a commit once, before the run. Default: the template's, otherwise main.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('-')",message="must not begin with '-': write a branch, a tag, a full ref or a full commit SHA"
	SourceRevision string `json:"sourceRevision,omitempty"`

	// SourceSubfolder is the folder to build, relative to the repository's root.
	// Default: the root.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('/') && !self.split('/').exists(p, p == '..')",message="must be a path inside the repository: no leading '/' and no '..'"
	SourceSubfolder string `json:"sourceSubfolder,omitempty"`

	// RepoUser is the user name for a token in sourceCredentials. Default: the Secret's
	// username, otherwise git.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	RepoUser string `json:"repoUser,omitempty"`

	// SourceCredentials names a Secret in this namespace: kubernetes.io/basic-auth
	// (username, password), a token under the key token, or kubernetes.io/ssh-auth
	// (ssh-privatekey, known_hosts), annotated with the host that it is for:
	// tekton.dev/git-0: https://github.com. If omitted, the repository is read without
	// credentials.
	// +optional
	SourceCredentials *corev1.LocalObjectReference `json:"sourceCredentials,omitempty"`

	// Verify names a policy that the commit must satisfy each time before a run starts,
	// also if sourceRevision is a full SHA. It applies in addition to the policy of the
	// mode's template. If omitted, only the template's policy applies. (Armature)
	// +optional
	Verify *SourcePolicyReference `json:"verify,omitempty"`

	// PullRequest that sourceRevision is the commit of. The controller sets it on the
	// AgentBuilds that it derives for spec.trigger.pullRequest. (Armature)
	// +optional
	PullRequest *SourcePullRequest `json:"pullRequest,omitempty"`
}

// SourcePullRequest says that a commit is proposed, and not accepted: its image is not attested,
// and no ImageUpdate writes it.
type SourcePullRequest struct {
	// Number of the pull request.
	// +kubebuilder:validation:Minimum=1
	Number int64 `json:"number"`

	// Fork is whether the commit is of another repository. Such a build is refused if its
	// pods would get a Secret, a ServiceAccount token, a volume that outlives the run, or a
	// cache. Default false.
	// +optional
	Fork bool `json:"fork,omitempty"`
}

// SourcePolicyReference names a ConfigMap in this namespace. Its key policy.yaml has a
// VerifyPolicy with spec.source: the branches and tags from which the commit must be
// reachable, and who must have signed it. Its other keys are the files that the policy
// names.
type SourcePolicyReference struct {
	// Name of the ConfigMap.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// SourceVerification is a policy, and how a commit satisfies it.
type SourceVerification struct {
	// Policy is the ConfigMap, as NAMESPACE/NAME.
	Policy string `json:"policy"`
	// PolicyDigest is the digest of everything in the ConfigMap: "sha256:" and 64
	// hexadecimal digits.
	PolicyDigest string `json:"policyDigest"`
	// Platform is true for the policy of the mode's template, which the tenant does not
	// write. If omitted, it is that of spec.source.verify.
	// +optional
	Platform bool `json:"platform,omitempty"`
	// Ref is the full name of the branch or tag of the policy from which the commit was
	// reachable.
	Ref string `json:"ref"`
	// Signer is the name in the policy of the key that signed the commit, and the key's
	// fingerprint. It is omitted if the policy does not require a signature.
	// +optional
	Signer string `json:"signer,omitempty"`
}

// SourceTrigger says what starts runs: the branch of sourceRevision when it moves, and
// further branches, tags and pull requests. Each of these further ones is built by an
// AgentBuild of its own, which the controller derives from this one and deletes with what
// it builds.
type SourceTrigger struct {
	// Push adds branches and tags, and limits the pushes that start a run. A push whose last
	// commit has [skip ci], [ci skip], [skip tkn] or [tkn skip] in its message starts none.
	// +optional
	Push *PushTrigger `json:"push,omitempty"`

	// PullRequest adds the pull requests that are open. It requires spec.report, whose server
	// is asked for them and who may start a build. If omitted, none is built.
	// +optional
	PullRequest *PullRequestTrigger `json:"pullRequest,omitempty"`

	// Poll is how often the Git server is asked for the branch. If a webhook delivers, the
	// server is asked ten times less often beside it. Default 5m.
	// +optional
	// +kubebuilder:default="5m"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('10s')",message="must be a duration of at least ten seconds, such as 30s or 5m"
	Poll *metav1.Duration `json:"poll,omitempty"`

	// Webhook names a Secret in this namespace. Its keys token and, during a rotation,
	// previous sign the deliveries to /hook/NAMESPACE/SECRET of the controller. A delivery
	// makes the controller ask the Git server at once; nothing else is taken from it. If
	// omitted, the server is only polled.
	// +optional
	Webhook *corev1.LocalObjectReference `json:"webhook,omitempty"`
}

// PullRequestTrigger adds the pull requests that are open. Their images have the tag pr-NUMBER,
// are never attested, and are not written back by an ImageUpdate.
type PullRequestTrigger struct {
	// Branches are patterns of the branches that pull requests are to be merged into. * does
	// not match a slash, ** matches everything. Default: the branch of source.sourceRevision.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=255
	// +kubebuilder:validation:items:MinLength=1
	Branches []string `json:"branches,omitempty"`

	// Paths, as in push.paths: one of them must differ from the branch that the pull request
	// is to be merged into. Default: all.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=255
	// +kubebuilder:validation:items:MinLength=1
	Paths []string `json:"paths,omitempty"`

	// Forks adds pull requests of other repositories. If omitted, none of these is built.
	// +optional
	Forks *ForkTrigger `json:"forks,omitempty"`
}

// ForkTrigger adds pull requests of other repositories. Such a commit is built if its author may
// push to source.sourceRepository, or if somebody who may push approved exactly this commit: by
// the comment "/ok-to-test SHA", or in the annotation armature.dev/approved-commits. The build
// has no Secret, no ServiceAccount token, no volume that outlives the run and no cache.
type ForkTrigger struct {
	// Repository that images of forks are pushed to, with its registry and without a login,
	// such as registry.example.com/throwaway/weather.
	// +kubebuilder:validation:MinLength=3
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9][A-Za-z0-9.-]*(:[0-9]+)?/[a-z0-9][a-z0-9._/-]*$')",message="must be a repository with its registry, such as registry.example.com/throwaway/weather"
	Repository string `json:"repository"`
}

// PushTrigger adds branches and tags, and limits the pushes that start a run.
type PushTrigger struct {
	// Branches are patterns of further branches, such as release/*. * does not match a slash,
	// ** matches everything. At most 50 are built. Default: none but that of
	// source.sourceRevision.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=255
	// +kubebuilder:validation:items:MinLength=1
	Branches []string `json:"branches,omitempty"`

	// Tags are patterns of tags, such as v*. Each is built once. Those that the repository has
	// when the patterns are set are not built. Default: none.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=255
	// +kubebuilder:validation:items:MinLength=1
	Tags []string `json:"tags,omitempty"`

	// Paths, such as api/** or go.mod: one of them must have changed since the last run that
	// succeeded. * does not match a slash, ** matches everything. Default: all.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=255
	// +kubebuilder:validation:items:MinLength=1
	Paths []string `json:"paths,omitempty"`
}
