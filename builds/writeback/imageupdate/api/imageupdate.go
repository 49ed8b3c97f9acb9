// Package api holds ImageUpdate, which puts the images of finished builds into the lock of a
// branch.
//
// +groupName=armature.dev
// +versionName=v1alpha1
package api

//go:generate go tool controller-gen crd:crdVersions=v1 paths=. output:crd:dir=../../../../templates/crds

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/render/process/copies"
)

// GroupVersion of ImageUpdate.
var GroupVersion = schema.GroupVersion{Group: keys.Group, Version: "v1alpha1"}

// Kind of ImageUpdate.
const Kind = "ImageUpdate"

// AddToScheme registers ImageUpdate.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion, &ImageUpdate{}, &ImageUpdateList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}

// ImageUpdate puts the images of finished AgentBuilds of its namespace into the
// armature.lock of a branch, as one commit for each set of images.
//
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=iu,categories=armature
// +kubebuilder:printcolumn:name="Branch",type=string,JSONPath=`.spec.branch`
// +kubebuilder:printcolumn:name="Policy",type=string,JSONPath=`.spec.policy`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:printcolumn:name="Commit",type=string,JSONPath=`.status.commit`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ImageUpdate struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   ImageUpdateSpec   `json:"spec"`
	Status ImageUpdateStatus `json:"status,omitempty"`
}

// ImageUpdateList is a list of them.
type ImageUpdateList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ImageUpdate `json:"items"`
}

// DeepCopy returns a copy that shares nothing with u.
func (u *ImageUpdate) DeepCopy() *ImageUpdate { return copies.Of(u) }

// DeepCopyObject returns a copy that shares nothing with u.
func (u *ImageUpdate) DeepCopyObject() runtime.Object { return copies.Of(u) }

// DeepCopyObject returns a copy that shares nothing with l.
func (l *ImageUpdateList) DeepCopyObject() runtime.Object { return copies.Of(l) }

// ImageUpdateSpec says which images are written where, and by whom.
//
// +kubebuilder:validation:XValidation:rule="self.via == 'api' ? !has(self.author) && !has(self.signingKey) : has(self.author)",message="via: git requires author; via: api has neither author nor signingKey, because the forge makes the commit by the account of credentials"
type ImageUpdateSpec struct {
	// Repository is the Git URL of the package: https://host/path or ssh://git@host/path.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule="self.matches('^(https?|ssh)://') && !self.matches('^[a-z]+://[^/@]*:[^/@]*@') && !self.contains(' ')",message="must be a Git URL over https or ssh, without a password: put that in a Secret and name it in credentials"
	Repository string `json:"repository"`
	// Branch that has the lock.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	Branch string `json:"branch"`
	// Path of the lock in the repository. Default: armature.lock at its root.
	// +optional
	// +kubebuilder:default="armature.lock"
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('/') && !self.split('/').exists(s, s == '..')",message="must be a file inside the repository: leave out the leading / and .."
	Path string `json:"path,omitempty"`
	// Builds are names of AgentBuilds of this namespace. If omitted, all are written.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:items:MaxLength=253
	Builds []string `json:"builds,omitempty"`
	// Policy is push, which writes the branch itself, or pullRequest, which writes a branch
	// of its own and opens a pull request. Default push.
	// +optional
	// +kubebuilder:default=push
	// +kubebuilder:validation:Enum=push;pullRequest
	Policy string `json:"policy,omitempty"`
	// Via is git, which pushes a commit, or api, which lets the forge make it: GitHub signs
	// such a commit of an App, which a branch that requires signed commits accepts. Default
	// git, which every server takes.
	// +optional
	// +kubebuilder:default=git
	// +kubebuilder:validation:Enum=git;api
	Via string `json:"via,omitempty"`
	// Forge is the kind of server of the repository, for policy pullRequest and via api:
	// github, gitlab or gitea (Forgejo too). Default: by the name of its host.
	// +optional
	// +kubebuilder:validation:Enum=github;gitlab;gitea
	Forge string `json:"forge,omitempty"`
	// Credentials names a Secret of this namespace with the login of an account that may
	// push: kubernetes.io/basic-auth (username, password), a token under the key token,
	// kubernetes.io/ssh-auth (ssh-privatekey, known_hosts), or a GitHub App under
	// githubAppID, githubAppInstallationID and githubAppPrivateKey. Its token, App or else
	// its password is for the API of the forge too. A Secret of another type needs the label
	// armature.dev/credentials: git, and each the annotation tekton.dev/git-0 with its host.
	Credentials SecretReference `json:"credentials"`
	// Author of the commits, for via git.
	// +optional
	Author *Author `json:"author,omitempty"`
	// SigningKey names a Secret of this namespace with the label
	// armature.dev/credentials: signing, and a private key that signs the commits: SSH
	// (ed25519 or RSA) under the key identity, or OpenPGP under git.asc. A passphrase is
	// under password or passphrase. If omitted, commits are not signed.
	// +optional
	SigningKey *SecretReference `json:"signingKey,omitempty"`
	// Verify names a ConfigMap of this namespace. Its key policy.yaml has a VerifyPolicy
	// that each image must satisfy before it is written. Its other keys are the files that
	// the policy names. If omitted, every image of a build that is Ready is written; the commit
	// calls images of modes that are not attested unattested.
	// +optional
	Verify *ConfigMapReference `json:"verify,omitempty"`
	// Accept are digests that are written although they are held back, because a person
	// took them out of the lock again, or because their commit is older.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:Pattern=`^sha256:[0-9a-f]{64}$`
	Accept []string `json:"accept,omitempty"`
	// Interval is how often the branch is looked at if no build finishes. Default 10m.
	// +optional
	// +kubebuilder:default="10m"
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('10s')",message="must be a duration of at least ten seconds, such as 30s or 10m"
	Interval string `json:"interval,omitempty"`
	// Suspend stops the updates. Default false.
	// +optional
	Suspend bool `json:"suspend,omitempty"`
}

// SecretReference names a Secret of the same namespace.
type SecretReference struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// ConfigMapReference names a ConfigMap of the same namespace.
type ConfigMapReference struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// Author of commits.
type Author struct {
	// Name such as Armature.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Name string `json:"name"`
	// Email of an account that the forge knows, or its commits are not shown as verified.
	// +kubebuilder:validation:MinLength=3
	// +kubebuilder:validation:MaxLength=256
	Email string `json:"email"`
}

// ConditionReady is True when the lock has the image of every build that is Ready, or a
// pull request proposes it.
const ConditionReady = "Ready"

// The reasons of Ready.
const (
	ReasonUpToDate  = "UpToDate"
	ReasonProposed  = "Proposed"
	ReasonHeldBack  = "HeldBack"
	ReasonSuspended = "Suspended"
	// ReasonRefused: the server does not accept the push, as for a protected branch.
	ReasonRefused = "PushRefused"
	// ReasonNotAttested: the registry has no statement of the platform that confirms the status
	// of a build, so that its image is not written.
	ReasonNotAttested = "NotAttested"
	// ReasonForeign: somebody else committed to the branch of the pull request.
	ReasonForeign = "BranchNotOurs"
	// ReasonInvalid: the spec, a Secret or the policy has to be corrected.
	ReasonInvalid = "Invalid"
	// ReasonFailed: it is tried again by itself.
	ReasonFailed = "Failed"
)

// ImageUpdateStatus holds observations only.
type ImageUpdateStatus struct {
	// ObservedGeneration is the generation of the spec that the status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Conditions are Ready.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Set is the digest of the images that were last looked at, and LastChecked when.
	// +optional
	Set string `json:"set,omitempty"`
	// +optional
	LastChecked *metav1.Time `json:"lastChecked,omitempty"`
	// Commit that was written last.
	// +optional
	Commit string `json:"commit,omitempty"`
	// PullRequest is the URL of the one that has the commit.
	// +optional
	PullRequest string `json:"pullRequest,omitempty"`
	// Written are the images that were last written to the branch, at most 100: one that the
	// history of the branch no longer has was taken back.
	// +optional
	// +listType=atomic
	Written []string `json:"written,omitempty"`
	// Held are the images that are not written, at most 100.
	// +optional
	// +listType=atomic
	Held []HeldImage `json:"held,omitempty"`
}

// HeldImage is an image that is not written.
type HeldImage struct {
	// Build is its AgentBuild.
	Build string `json:"build"`
	Image string `json:"image"`
	// Why, for people.
	Why string `json:"why"`
}
