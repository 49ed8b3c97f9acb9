package runs

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/functions/api/keys"
)

// Which runs are a build's. A tenant can write all of a PipelineRun but its UID:
// name, labels, owner, annotations. So a run counts
//
//  1. when it carries a proof that only the controller can make: an HMAC over its
//     namespace, its name, its build's UID and the annotations that decisions read,
//     with a key in the controller's namespace; and
//  2. when its UID is the one that our create returned. status.pipelineRunUID holds
//     it from the first status on. Between the create and that status it is in
//     memory only, and a controller that was killed there has lost it: then the run
//     is looked at whole once, and its spec must have the digest that the proof
//     covers (attested modes; in others a tenant may run what it likes anyway).
//
// The last run of a build that a release without proofs made is given one, once.
//
// Nothing is written before the create, so that a burst costs no further requests;
// the run's name is a hash of its content, so that it is created once.

// runKeySecret in the controller's namespace holds the key of the proofs. The
// manifests bring it without data, and the controller fills it.
const (
	runKeySecret = "armature-run-key"
	runKeyField  = "key"
	runKeyBytes  = 32
)

// Key makes the proofs.
type Key []byte

// ReadKey reads the key from its Secret, and creates it if it is missing.
func ReadKey(ctx context.Context, c client.Client, namespace string) (Key, error) {
	name := types.NamespacedName{Namespace: namespace, Name: runKeySecret}
	for {
		var secret corev1.Secret
		if err := c.Get(ctx, name, &secret); err != nil {
			return nil, fmt.Errorf("reading Secret %s, which the manifests of `armature install` bring: %w", name, err)
		}
		if key := secret.Data[runKeyField]; len(key) >= runKeyBytes {
			return key, nil
		} else if len(key) > 0 {
			return nil, fmt.Errorf("the key %q of Secret %s has %d bytes: at least %d are demanded", runKeyField, name, len(key), runKeyBytes)
		}
		before := secret.DeepCopy()
		key := make([]byte, runKeyBytes)
		_, _ = rand.Read(key) // it never fails
		secret.Data = map[string][]byte{runKeyField: key}
		err := c.Patch(ctx, &secret, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
		if err == nil {
			return key, nil
		}
		if !apierrors.IsConflict(err) { // else another replica was first
			return nil, fmt.Errorf("writing a key into Secret %s: %w", name, err)
		}
	}
}

// Prove gives the proof that a run is a build's.
func (k Key) Prove(run metav1.Object, build types.UID) string {
	claims := map[string]string{}
	for _, key := range compose.RunAnnotations {
		if value, ok := run.GetAnnotations()[key]; ok && key != keys.AnnotationProof {
			claims[key] = value
		}
	}
	text, err := json.Marshal([]any{run.GetNamespace(), run.GetName(), build, claims})
	if err != nil {
		panic(fmt.Sprintf("marshalling texts: %v", err))
	}
	mac := hmac.New(sha256.New, k)
	mac.Write(text)
	return hex.EncodeToString(mac.Sum(nil))
}

// Proven reports whether a run carries the proof for its build.
func (k Key) Proven(run metav1.Object, build types.UID) bool {
	return hmac.Equal([]byte(run.GetAnnotations()[keys.AnnotationProof]), []byte(k.Prove(run, build)))
}

// isUnproven reports whether a run is the last one that a release without proofs made:
// its status names the run and no UID. Attested modes came with the proofs, so that
// none of their runs is adopted.
func isUnproven(build *api.AgentBuild, run Run) bool {
	status, a := build.Status, run.Annotations
	return status.PipelineRunUID == "" && status.PipelineRunName == run.Name && status.RunNumber == run.Number &&
		a[keys.AnnotationProof] == "" && a[keys.AnnotationRunDigest] == ""
}
