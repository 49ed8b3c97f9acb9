package attester

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sigstore/sigstore/pkg/cryptoutils"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/attest"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/builds/registry"
	"github.com/armature-dev/armature/builds/runs"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/render/deliver/sign"
)

// Tekton Chains may attest instead of the controller, which then signs nothing. It looks
// at the run as it does before it signs, and looks in the registry for what Chains signed
// of this run. Nobody waits in between: each look is a question of the queue, and one that
// finds nothing asks again later.
//
// The annotation chains.tekton.dev/signed never counts as proof: everybody who may patch the
// run can write it, and Chains writes it after a failure too. It only says earlier that
// nothing more is to be expected.

const (
	// chainsPatience is how long after the end of a run Chains may take before the build
	// says what to look at. Chains goes through the TaskRuns of a run first, and retries.
	chainsPatience = 10 * time.Minute
	// chainsKeyField is the public key in its ConfigMap, as cosign names the file.
	chainsKeyField = "cosign.pub"
)

// ChainsSilent is that Chains should have attested a run by now, and has not. It may
// still do so.
type ChainsSilent struct{ message string }

func (e *ChainsSilent) Error() string { return e.message }

// awaitChains looks whether Chains has attested a run that was checked. A *krm.Finding is
// final for the run; every other error may pass.
func (a *Attester) awaitChains(ctx context.Context, observed *attest.Observed, built *attest.Built) (api.Attestation, error) {
	var none api.Attestation
	build := observed.Build
	key, problem, err := a.chainsKey(ctx, build)
	if err != nil {
		return none, err
	}
	if problem != nil {
		return none, errors.New(problem.Error()) // the platform can still give one
	}
	login, err := registry.Login(ctx, a.live, build)
	if err != nil {
		return none, err
	}
	pushed, err := findImages(ctx, build, built, access{keychain: login, transport: a.transport, plainHTTP: a.plainHTTP})
	if err != nil {
		return none, err
	}
	artifact := pushed.artifact
	predicates, refused, err := sign.Attestations(ctx, artifact, sign.Policy{
		Keys: []string{chainsKeyField}, Files: map[string][]byte{chainsKeyField: key}, IgnoreTlog: true,
		Keychain: login, Transport: a.transport,
	}, sign.PredicateType)
	if err != nil {
		return none, registryFault(build, artifact, err)
	}
	ours, text, err := built.ByChains(build, predicates)
	if errors.Is(err, attest.ErrNotByChains) {
		there := fmt.Sprintf("of the provenances at %s, %d by the key in ConfigMap %s/%s are of other runs, and %d are not by this key",
			attachedTag(artifact)+".att", len(predicates), a.namespace, a.options.ChainsKey, len(refused))
		return none, notByChains(observed, there, time.Now())
	}
	if err != nil {
		return none, err
	}
	return attestedProvenance(observed.RunUID, ours, artifact, text), nil
}

// notByChains says of a run that Chains has not attested whether to wait, or what to look
// at; there is what the registry has.
func notByChains(observed *attest.Observed, there string, now time.Time) error {
	run := observed.Run
	look := fmt.Sprintf("%s; look at the log of Chains' controller for run %s, whether its chains-config has artifacts.pipelinerun.storage oci and the format slsa/v2alpha4, and whether the imagePullSecrets of ServiceAccount %s may push to the registry",
		there, run.Name, cmp.Or(run.Spec.TaskRunTemplate.ServiceAccountName, "default"))
	if mark, marked := run.Annotations[runs.ChainsSigned]; marked {
		return &ChainsSilent{fmt.Sprintf("Tekton Chains has not attested run %s, which is marked %s: %q, by Chains or by somebody else, so that Chains passes over it; %s. Chains tries again when the annotation is removed",
			run.Name, runs.ChainsSigned, clipped(mark), look)}
	}
	if run.Status.CompletionTime != nil && now.Sub(run.Status.CompletionTime.Time) > chainsPatience {
		return &ChainsSilent{fmt.Sprintf("Tekton Chains has not attested run %s within %s of its end; %s", run.Name, chainsPatience, look)}
	}
	return fmt.Errorf("Tekton Chains has not attested run %s yet", run.Name)
}

// clipped is what somebody wrote, in a length that fits into a message.
func clipped(text string) string {
	if short := []rune(text); len(short) > 20 {
		return string(short[:20]) + "…"
	}
	return text
}

// chainsKey reads the public key of Chains. The problem says how to give it.
func (a *Attester) chainsKey(ctx context.Context, build *api.AgentBuild) (key []byte, problem *krm.Finding, err error) {
	at := types.NamespacedName{Namespace: a.namespace, Name: a.options.ChainsKey}
	config := &corev1.ConfigMap{}
	switch err := a.live.Get(ctx, at, config); {
	case err != nil && !apierrors.IsNotFound(err):
		return nil, nil, fmt.Errorf("reading the ConfigMap %s: %w", at, err)
	case err == nil:
		key = []byte(config.Data[chainsKeyField])
	}
	if _, err := cryptoutils.UnmarshalPEMToPublicKey(key); err != nil {
		return nil, compose.Place(build).At("spec.mode").Fault(api.ReasonAttestKeyMissing,
			fmt.Sprintf("mode %s is attested by Tekton Chains, and the ConfigMap %s does not have its public key, in PEM, as %s", cmp.Or(build.Spec.Mode, "dev"), at, chainsKeyField),
			fmt.Sprintf("let the platform give it: kubectl create configmap -n %s %s --from-file=%s", at.Namespace, at.Name, chainsKeyField)), nil
	}
	return key, nil, nil
}
