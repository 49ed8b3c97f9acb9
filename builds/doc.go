// Package builds says where the parts of a build are. An AgentBuild names a repository, a mode and
// an image; the controller composes a Tekton pipeline from the step ConfigMaps of the mode, creates
// its run, and reports in status what became of it.
//
// A build takes this way:
//
//	trigger     wakes a build: a webhook, a poll of the branch, or a changed template or step
//	controller  observes the build, its template, its steps and its runs, decides purely what is
//	            next, acts on it, and writes the result into status; queue limits how many runs
//	            there are at once, and runs names and finds them
//	source      resolves the revision to a commit, verifies who signed it, and packs local folders;
//	            gitremote speaks with Git servers, which are not trusted
//	compose     composes the pipeline and the run from the build, the template and the steps,
//	            without a cluster; templates reads templates and steps, tekton writes Tekton's types
//	registry    asks registries whether a login may push, and reads what was pushed
//	failure     says why a run failed, from one table of reasons, and whether it is tried again
//	attest      checks what a finished run was and did, and writes SBOM, test result and
//	            provenance; attester signs them
//	report      comments on the pull request, and sets the state of the commit
//	writeback   commits the image of a finished build to the repository that deploys it;
//	            imageupdate is the controller of ImageUpdates
//
// Beside it:
//
//	api         has the Go types of AgentBuild, from which the CRD and its reference are written
//	install     writes the manifests of the controller for a set of values
//	client      shows a run while it goes on, to the terminal and the console; graph draws a pipeline
//	local       runs a build without a cluster, by BuildKit or Docker
//
// To add a reason why runs fail, write a row of failure/reasons.go. To add a mode or a step, write
// its file in templates/modes or templates/steps. To add a field of AgentBuild, write it in
// api/agentbuild.go, run `make generate-builds`, and say in compose what it does.
package builds
