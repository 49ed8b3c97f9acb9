package api

import corev1 "k8s.io/api/core/v1"

// SourceSpec names a Git revision.
type SourceSpec struct {
	// SourceRepository is a Git URL: https://host/path, ssh://git@host/path,
	// git@host:path, or host/path, which means https. Omitted, the parameter
	// repo-url (or SOURCE_REPO_URL) must be given.
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule="!self.matches('^([A-Za-z][-A-Za-z0-9+.]*://)?[^/@]*:[^/@]*@')",message="must not hold a password: put it in a Secret and name that in sourceCredentials"
	// +kubebuilder:validation:XValidation:rule="!self.contains(' ')",message="must not hold spaces"
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('-') && (!self.contains('://') || self.matches('^(https?|ssh)://'))",message="must be a Git URL over https or ssh, or host/path, which means https"
	SourceRepository string `json:"sourceRepository,omitempty"`

	// SourceRevision is a branch, a tag, a full ref or a full commit SHA. It is
	// resolved to a commit once, before the run. Omitted, the template's
	// default, then main.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('-')",message="must not begin with '-': write a branch, a tag, a full ref or a full commit SHA"
	SourceRevision string `json:"sourceRevision,omitempty"`

	// SourceSubfolder is the folder to build, relative to the repository's
	// root. Omitted, the root.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('/') && !self.split('/').exists(p, p == '..')",message="must be a path inside the repository: no leading '/' and no '..'"
	SourceSubfolder string `json:"sourceSubfolder,omitempty"`

	// RepoUser is the user name that goes with a token in sourceCredentials.
	// Omitted, the Secret's username, then git.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	RepoUser string `json:"repoUser,omitempty"`

	// SourceCredentials names a Secret in this namespace: kubernetes.io/basic-auth
	// (username, password), a token under the key token, or
	// kubernetes.io/ssh-auth (ssh-privatekey, known_hosts). Omitted, the
	// repository is read without credentials.
	// +optional
	SourceCredentials *corev1.LocalObjectReference `json:"sourceCredentials,omitempty"`

	// Verify names the policy that the commit has to satisfy, each time before a run
	// starts, also where sourceRevision is a full SHA. It adds to what the mode's template
	// demands, and takes nothing from it. Omitted, the template's policy alone counts.
	// (Armature)
	// +optional
	Verify *SourcePolicyReference `json:"verify,omitempty"`
}

// SourcePolicyReference names a ConfigMap in this namespace. Its key policy.yaml has a
// VerifyPolicy with spec.source: the branches and tags that the commit has to be reachable
// from, and who has to have signed it. Its other keys are the files that the policy names.
type SourcePolicyReference struct {
	// Name of the ConfigMap.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// SourceVerification is a policy, and how a commit was found to satisfy it.
type SourceVerification struct {
	// Policy is the ConfigMap, as NAMESPACE/NAME.
	Policy string `json:"policy"`
	// PolicyDigest is of all that the ConfigMap has: "sha256:" and 64 hexadecimal digits.
	PolicyDigest string `json:"policyDigest"`
	// Platform is true for the policy of the mode's template, which the tenant does not
	// write. Omitted, it is that of spec.source.verify.
	// +optional
	Platform bool `json:"platform,omitempty"`
	// Ref is a branch or tag of the policy, in full, that the commit was reachable from.
	Ref string `json:"ref"`
	// Signer is whom the policy names for the key that signed the commit, and the key's
	// fingerprint. Omitted, the policy demands no signature.
	// +optional
	Signer string `json:"signer,omitempty"`
}
