//go:build linux

package cluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"

	"github.com/armature-dev/armature/functions/api/keys"
)

// volumes makes the volumes that claims ask for: folders of the state folder, as
// volumes of kind local. Unlike hostPath volumes, which the controller manager
// can make, they behave as most clusters' do: they belong to root until a pod
// names an fsGroup.
type volumes struct{}

const volumeDir = state + "/volumes"

// serveVolumes runs until the cluster ends.
func serveVolumes() error {
	config, err := clientcmd.BuildConfigFromFlags("", pki+"/admin.kubeconfig")
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(volumeDir, 0o755); err != nil {
		return err
	}
	ctx := context.Background()
	go controller.NewProvisionController(ctx, client, keys.Own+"local", volumes{}, controller.LeaderElection(false)).Run(ctx)
	return nil
}

func (volumes) Provision(_ context.Context, o controller.ProvisionOptions) (*corev1.PersistentVolume, controller.ProvisioningState, error) {
	path := filepath.Join(volumeDir, o.PVName)
	if err := os.Mkdir(path, 0o755); err != nil && !os.IsExist(err) {
		return nil, controller.ProvisioningFinished, fmt.Errorf("making a volume: %w", err)
	}
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: o.PVName},
		Spec: corev1.PersistentVolumeSpec{
			PersistentVolumeReclaimPolicy: *o.StorageClass.ReclaimPolicy,
			AccessModes:                   o.PVC.Spec.AccessModes,
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: o.PVC.Spec.Resources.Requests[corev1.ResourceStorage]},
			PersistentVolumeSource:        corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: path}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{
					Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{node},
				}},
			}}}},
		},
	}, controller.ProvisioningFinished, nil
}

func (volumes) Delete(_ context.Context, volume *corev1.PersistentVolume) error {
	return os.RemoveAll(volume.Spec.Local.Path)
}
