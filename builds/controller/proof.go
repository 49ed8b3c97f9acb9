package controller

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	tektonv1 "github.com/tektoncd/pipeline/pkg/apis/pipeline/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/functions/api/keys"
)

// Which run is a build's. A tenant can write all of a PipelineRun but its UID:
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

// readRunKey reads the key, and makes it where the Secret has none.
func readRunKey(ctx context.Context, c client.Client, namespace string) ([]byte, error) {
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

// prove says that a run is ours.
func (r *Reconciler) prove(run metav1.Object, build types.UID) string {
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
	mac := hmac.New(sha256.New, r.RunKey)
	mac.Write(text)
	return hex.EncodeToString(mac.Sum(nil))
}

// proven reports whether a run carries the proof for its build.
func (r *Reconciler) proven(run metav1.Object, build types.UID) bool {
	return hmac.Equal([]byte(run.GetAnnotations()[keys.AnnotationProof]), []byte(r.prove(run, build)))
}

// ours keeps of the runs that a build owns those that count.
func (r *Reconciler) ours(ctx context.Context, build *api.AgentBuild, owned []run) ([]run, error) {
	var out []run
	for _, run := range owned {
		known := build.Status.PipelineRunUID
		if earlier(build, run) {
			if err := r.takeOver(ctx, build, run); err != nil {
				return nil, err
			}
			out = append(out, run)
			continue
		}
		switch {
		case !r.proven(run, build.UID):
			continue
		case run.number == build.Status.RunNumber && known != "" && run.UID != known:
			continue
		case run.number > build.Status.RunNumber && run.Annotations[keys.AnnotationRunDigest] != "":
			if ok, err := r.made(ctx, build, run); err != nil {
				return nil, err
			} else if !ok {
				continue
			}
		}
		out = append(out, run)
	}
	return out, nil
}

// earlier reports whether a run is the last one that a release without proofs made:
// its status names the run and no UID. Attested modes came with the proofs, so that
// none of their runs is taken over.
func earlier(build *api.AgentBuild, run run) bool {
	status, a := build.Status, run.Annotations
	return status.PipelineRunUID == "" && status.PipelineRunName == run.Name && status.RunNumber == run.number &&
		a[keys.AnnotationProof] == "" && a[keys.AnnotationRunDigest] == ""
}

// takeOver gives such a run its proof, exactly as it was seen.
func (r *Reconciler) takeOver(ctx context.Context, build *api.AgentBuild, run run) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": run.UID, "resourceVersion": run.ResourceVersion, "annotations": map[string]string{keys.AnnotationProof: r.prove(run, build.UID)},
	}})
	if err != nil {
		return fmt.Errorf("taking over run %s: %w", run.Name, err)
	}
	target := &PipelineRun{ObjectMeta: metav1.ObjectMeta{Namespace: run.Namespace, Name: run.Name}}
	if err := r.Client.Patch(ctx, target, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return fmt.Errorf("taking over run %s, which an earlier release made: %w", run.Name, err)
	}
	return nil
}

// made reports whether a run that status does not know yet is what our create made.
func (r *Reconciler) made(ctx context.Context, build *api.AgentBuild, run run) (bool, error) {
	key := client.ObjectKeyFromObject(build)
	if uid, ok := r.created.Load(key); ok && uid == run.UID {
		return true, nil
	}
	whole, err := r.wholeRun(ctx, client.ObjectKeyFromObject(run))
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if whole.UID != run.UID || !asOrdered(whole) || !r.proven(whole, build.UID) {
		return false, nil
	}
	r.created.Store(key, run.UID)
	return true, nil
}

// wholeRun reads a run with its spec. The caches keep none of it.
func (r *Reconciler) wholeRun(ctx context.Context, key types.NamespacedName) (*tektonv1.PipelineRun, error) {
	run := &tektonv1.PipelineRun{}
	data, err := r.Runs.Get().Namespace(key.Namespace).Resource("pipelineruns").Name(key.Name).SetHeader("Accept", "application/json").Do(ctx).Raw()
	if err != nil {
		return nil, fmt.Errorf("reading run %s: %w", key, err)
	}
	if err := json.Unmarshal(data, run); err != nil {
		return nil, fmt.Errorf("reading run %s: %w", key, err)
	}
	return run, nil
}

// asOrdered reports whether a run's spec is the one that was composed.
func asOrdered(run *tektonv1.PipelineRun) bool {
	want := run.Annotations[keys.AnnotationRunDigest]
	return want != "" && compose.RunDigest(&run.Spec) == want
}

// confirmMissing asks the API server for a run that the cache lacks, since the
// cache may be behind.
func (r *Reconciler) confirmMissing(ctx context.Context, s *seen, v verdict) (verdict, error) {
	name := s.build.Status.PipelineRunName
	have := metadataOf("tekton.dev/v1", "PipelineRun")
	err := r.Live.Get(ctx, types.NamespacedName{Namespace: s.build.Namespace, Name: name}, have)
	switch {
	case err != nil && !apierrors.IsNotFound(err):
		return v, fmt.Errorf("looking for run %s: %w", name, err)
	case err != nil || s.build.Status.PipelineRunUID != "" && have.UID != s.build.Status.PipelineRunUID:
		v.phase, v.reason = api.PhaseFailed, api.ReasonRunDeleted
		v.message = fmt.Sprintf("run %s was deleted before it ended; start again with `armature build rerun %s`", name, s.build.Name)
	case !r.proven(have, s.build.UID) || !metav1.IsControlledBy(have, s.build) || have.Labels[compose.LabelManagedBy] != compose.ManagedBy:
		v.phase, v.reason = api.PhaseFailed, api.ReasonRunForeign
		v.message = fmt.Sprintf("somebody else changed run %s, so its result does not count; start again with `armature build rerun %s`", name, s.build.Name)
	}
	return v, nil
}
