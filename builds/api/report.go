package api

import corev1 "k8s.io/api/core/v1"

// Report shows what becomes of runs on their commit, and on its pull requests.
type Report struct {
	// Kind of the server of source.sourceRepository: github, gitlab or gitea
	// (Forgejo too). Default: by the name of its host.
	// +optional
	// +kubebuilder:validation:Enum=github;gitlab;gitea
	Kind string `json:"kind,omitempty"`

	// Credentials names a Secret in this namespace with a token that may set statuses and
	// write comments, or with a GitHub App under githubAppID, githubAppInstallationID and
	// githubAppPrivateKey. A Secret that is not of type kubernetes.io/basic-auth needs the
	// label armature.dev/credentials: git, and each the annotation tekton.dev/git-0 with
	// its host. No build is given it.
	Credentials corev1.LocalObjectReference `json:"credentials"`

	// Comment on open pull requests of the branch that was built: OnFailure says why a run
	// failed, and removes that once one succeeds; Always says that too. Default OnFailure.
	// +optional
	// +kubebuilder:default=OnFailure
	// +kubebuilder:validation:Enum=OnFailure;Always
	Comment string `json:"comment,omitempty"`
}

// ReportStatus is what was shown last.
type ReportStatus struct {
	// Commit and Run that the status is of.
	Commit string `json:"commit"`
	// +optional
	Run string `json:"run,omitempty"`
	// State that was shown. It is written before a state is sent that another one follows, so
	// that a status that is not final is known to be there.
	// +optional
	State string `json:"state,omitempty"`
	// Sum of what was sent: an equal status is not sent again.
	// +optional
	Sum string `json:"sum,omitempty"`
	// Skipped is the last commit that was shown as skipped.
	// +optional
	Skipped string `json:"skipped,omitempty"`
	// Problem that keeps the last status from being shown.
	// +optional
	Problem string `json:"problem,omitempty"`
}

// ReportFinalizer returns the finalizer of an AgentBuild of group until its last status on the
// forge is final.
func ReportFinalizer(group string) string { return group + "/report" }

// SkippedAnnotation returns the annotation of an AgentBuild of group that holds a commit which
// starts no run, a space, and the reason.
func SkippedAnnotation(group string) string { return group + "/skipped" }
