package attester

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"

	"github.com/google/go-containerregistry/pkg/name"
	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/render/deliver/sign"
	"github.com/armature-dev/armature/render/process"
)

// The signer is a key in a Secret of the controller's namespace, a key of a KMS, or the identity of
// the controller, which an authority certifies for a few minutes. A KMS or an authority may be
// down, slow or hostile: only the queue of attestations calls it, outside of reconciles, and its
// messages go to the controller's log and not to a tenant's status.

// Fields of the key's Secret in cosign's format.
const keyField, passwordField = "cosign.key", "cosign.password"

// signer returns the signer of a build before it is opened. A *finding.Finding is a task for the
// platform. It calls the API server only, and no KMS or authority.
func (a *Attester) signer(ctx context.Context, build *api.AgentBuild) (none sign.Signer, _ error) {
	reason := api.ReasonAttestKeyMissing
	missing := func(hint, format string, args ...any) error {
		return compose.Place(build).At("spec.mode").Fault(reason,
			fmt.Sprintf("mode %s is attested by the controller, and ",
				cmp.Or(build.Spec.Mode, "dev"))+fmt.Sprintf(format, args...), hint)
	}
	if k := a.options.Keyless; k.Fulcio != "" {
		reason = api.ReasonAttestIdentityMissing
		const hint = "let the platform install the controller with an identity, as " +
			"docs/builds-attest.md says"
		if token, err := os.ReadFile(k.Token); err != nil || len(bytes.TrimSpace(token)) == 0 {
			return none, missing(hint,
				"its identity token is missing: the file %s is not there, or is empty", k.Token)
		}
		vouches, err := os.ReadFile(k.TrustedRoot)
		if err == nil {
			err = sign.CheckRoot(vouches)
		}
		if err != nil {
			return none, missing(hint, "the trusted root of its identity cannot be used: %v", err)
		}
		return sign.Signer{IdentityToken: k.Token, Fulcio: k.Fulcio, Timestamps: k.Timestamps,
			TrustedRoot: vouches}, nil
	}
	if program := sign.KMSProgram(a.options.Key); program != "" {
		if _, err := exec.LookPath(program); err != nil {
			return none, missing("let the platform run the controller from an image that has it, "+
				"as docs/builds-attest.md says",
				"the program %s for its KMS is not on its PATH", program)
		}
		return sign.Signer{Key: a.options.Key}, nil
	}
	key := types.NamespacedName{Namespace: a.namespace, Name: a.options.Key}
	hint := fmt.Sprintf("let the platform make the key: cosign generate-key-pair k8s://%s", key)
	secret := &corev1.Secret{}
	switch err := a.live.Get(ctx, key, secret); {
	case apierrors.IsNotFound(err):
		return none, missing(hint, "the Secret %s with its key does not exist", key)
	case err != nil:
		return none, fmt.Errorf("reading the Secret %s: %w", key, err)
	case len(secret.Data[keyField]) == 0:
		return none, missing(hint, "the Secret %s lacks %s", key, keyField)
	}
	password := append([]byte{}, secret.Data[passwordField]...)
	return sign.Signer{PrivateKey: secret.Data[keyField],
		Password: func() ([]byte, error) { return password, nil }}, nil
}

// open returns a session that signs. It reads the public half of a KMS key once, and again after a
// failure. It decrypts the key of a Secret if the key changed, one goroutine at a time.
func (a *Attester) open(ctx context.Context, to sign.Signer) (*sign.Session, error) {
	if text := to.PrivateKey; text != nil {
		password, err := to.Password()
		if err != nil {
			return nil, &sign.KeyError{Err: err}
		}
		a.opening.Lock()
		key, err := sign.OpenKey(text, password, a.opened)
		if err == nil {
			a.opened = key
		}
		a.opening.Unlock()
		if err != nil {
			return nil, err
		}
		to.PrivateKey, to.Opened = nil, key
	}
	if sign.KMSProgram(to.Key) != "" {
		key := a.kms.Load()
		if key == nil {
			var err error
			if key, err = sign.OpenKMS(ctx, to.Key); err != nil {
				return nil, &sign.KeyError{Err: err}
			}
			a.kms.Store(key)
		}
		to.Key, to.Opened = "", key
	}
	return to.Open(ctx)
}

// keepFault is an error of the API server about the kept signatures of a run.
type keepFault struct{ error }

// signingFault returns the error of a failed signature or attachment. It is final only if
// registryFault returns a final error.
func (a *Attester) signingFault(ctx context.Context, build *api.AgentBuild, ref name.Reference,
	err error) error {
	var keep *keepFault
	switch {
	case errors.As(err, new(*sign.KeyError)):
		a.kms.Store(nil)
		who := "the platform's key"
		if a.options.Keyless.Fulcio != "" {
			who = "the platform's identity"
		}
		log.FromContext(ctx).Error(err, "a build is not signed", "build",
			client.ObjectKeyFromObject(build))
		return fmt.Errorf("%s does not sign; the log of the controller says why", who)
	case errors.As(err, &keep):
		return keep
	}
	return registryFault(build, ref, err)
}

// keepOn keeps the signatures of a run in an annotation of the run, so that a restarted or second
// controller attaches the same signatures. Invalid signatures in the annotation are not used.
func (a *Attester) keepOn(run *tektonv1.PipelineRun) sign.Keep {
	version, text := run.ResourceVersion, run.Annotations[keys.AnnotationSignatures]
	return func(ctx context.Context, name string, made []byte,
		valid func([]byte) bool) ([]byte, error) {
		for {
			var kept map[string]json.RawMessage
			if json.Unmarshal([]byte(text), &kept) != nil || kept == nil {
				kept = map[string]json.RawMessage{}
			}
			if have := kept[name]; have != nil && valid(have) {
				return have, nil
			}
			if made == nil {
				return nil, nil
			}
			kept[name] = made
			with, err := json.Marshal(kept)
			if err != nil {
				return nil, &keepFault{fmt.Errorf("keeping a signature: %w", err)}
			}
			now, err := a.runs.Patch(ctx, client.ObjectKeyFromObject(run),
				map[string]any{"metadata": map[string]any{
					"uid": run.UID, "resourceVersion": version,
					"annotations": map[string]string{keys.AnnotationSignatures: string(with)},
				}})
			if err == nil {
				version, text = now, string(with)
				return made, nil
			}
			if apierrors.IsConflict(err) { // another client changed the run, perhaps equally
				fresh := process.MetadataOf("tekton.dev/v1", "PipelineRun")
				if err = a.live.Get(ctx, client.ObjectKeyFromObject(run), fresh); err == nil &&
					fresh.UID == run.UID {
					version, text =
						fresh.ResourceVersion, fresh.Annotations[keys.AnnotationSignatures]
					continue
				}
			}
			return nil, &keepFault{fmt.Errorf("keeping a signature with run %s: %w", run.Name,
				cmp.Or(err, errors.New("it is another one now")))}
		}
	}
}
