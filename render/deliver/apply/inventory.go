package apply

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/fluxcd/cli-utils/pkg/object"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/multi"
	"github.com/armature-dev/armature/render/deliver/apply/fields"
	"github.com/armature-dev/armature/render/deliver/health"
)

// Package identifies objects that are applied and pruned together. Its inventory is the ConfigMap
// armature-<Name> in Namespace.
type Package struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

func (p Package) String() string { return p.Namespace + "/" + p.Name }

// Labels returns the labels that every object of the package carries.
func (p Package) Labels() map[string]string {
	return map[string]string{keys.LabelName: p.Name, keys.LabelNamespace: p.Namespace}
}

// owner returns the package that the labels of an object name, or the zero Package if a label is
// missing.
func owner(u *unstructured.Unstructured) Package {
	labels := u.GetLabels()
	p := Package{Namespace: labels[keys.LabelNamespace], Name: labels[keys.LabelName]}
	if p.Namespace == "" || p.Name == "" {
		return Package{}
	}
	return p
}

func (p Package) configMap() string { return "armature-" + p.Name }

// inventory returns the ID of the ConfigMap, or of the Lease with the same name.
func (p Package) inventory(kind schema.GroupKind) ID {
	return ID{Namespace: p.Namespace, Name: p.configMap(), GroupKind: kind}
}

// ownNamespace returns the ID of the namespace that contains the inventory.
func (p Package) ownNamespace() ID { return ID{Name: p.Namespace, GroupKind: namespaceKind} }

func (p Package) check() error {
	if wrong := validation.IsDNS1123Label(p.Name); len(wrong) > 0 {
		return fmt.Errorf("%q cannot be the name of a package: %s", p.Name, wrong[0])
	}
	return nil
}

// ID identifies an object in any version of its API.
type ID = object.ObjMetadata

// Entry is an object in an inventory.
type Entry struct {
	ID
	// Version of the API that it was last applied in.
	Version string
	// UID of the live object; "" if it has not been applied yet.
	UID types.UID
	// Seal is a digest of the applied object and of our fields after the apply. It is "" if that is
	// unknown, and always for a Secret, because users who may not read Secrets may read this
	// ConfigMap.
	Seal string
}

// Inventory lists the objects that a package has in the cluster, or may have if the last apply was
// interrupted.
type Inventory struct {
	Package
	Entries map[ID]Entry
	// Hooks that have completed, with a digest of the hook as the seal. Their Jobs are also
	// entries, except for Jobs that were deleted when they succeeded.
	Hooks map[ID]Entry
	// Complete means that the last apply finished.
	Complete bool
	// Deleting means that a delete has begun.
	Deleting bool

	stored *corev1.ConfigMap // nil if there is none yet
}

// Exists reports whether the inventory is stored in the cluster.
func (v *Inventory) Exists() bool { return v.stored != nil }

// version returns the resource version of the inventory, or "" if it is not stored.
func (v *Inventory) version() string {
	if v.stored == nil {
		return ""
	}
	return v.stored.ResourceVersion
}

// The format of the ConfigMap (docs/contributing/apply.md). Large inventories are gzipped, since a
// ConfigMap holds 1 MiB.
const (
	formatKey       = "format"
	format          = "1"
	stateKey        = "state"
	stateApplying   = "applying"
	stateApplied    = "applied"
	stateDeleting   = "deleting"
	objectsKey      = "objects"
	objectsGzipKey  = "objects.gz"
	hooksKey        = "hooks"
	plainLimit      = 256 << 10
	inventoryFields = 6
)

// Bounds of an inventory. A ConfigMap of 1 MiB has room for about 20,000 objects, whose UIDs and
// seals do not compress.
const (
	inventoryLimit = 8 << 20 // bytes, unpacked
	maxEntries     = 50_000  // objects, and hooks
)

// Inventory reads the inventory of a package. It is empty if there is none.
func (c *Cluster) Inventory(ctx context.Context, p Package) (*Inventory, error) {
	cm := &corev1.ConfigMap{}
	err := c.client.Get(ctx, types.NamespacedName{Namespace: p.Namespace, Name: p.configMap()}, cm)
	if apierrors.IsNotFound(err) {
		return &Inventory{Package: p, Entries: map[ID]Entry{}, Complete: true}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the inventory of %s: %w", p, err)
	}
	return ParseInventory(cm)
}

// Inventories reads the inventories of a namespace, or of all namespaces if it is "". An inventory
// that cannot be read has no entries. The error is that of the first such inventory; the others are
// returned.
func (c *Cluster) Inventories(ctx context.Context, namespace string) (all []*Inventory, err error) {
	list := &corev1.ConfigMapList{}
	if err := c.client.List(ctx, list, client.InNamespace(namespace),
		client.HasLabels{keys.LabelInventory}); err != nil {
		return nil, fmt.Errorf("listing inventories: %w", err)
	}
	for i := range list.Items {
		v, unreadable := ParseInventory(&list.Items[i])
		all, err = append(all, v), cmp.Or(err, unreadable)
	}
	return all, err
}

// ParseInventory parses the ConfigMap of an inventory. If it cannot be read, the result has no
// entries.
func ParseInventory(cm *corev1.ConfigMap) (*Inventory, error) {
	v := &Inventory{Package: Package{Namespace: cm.Namespace, Name: cm.Labels[keys.LabelInventory]},
		stored: cm, Complete: cm.Data[stateKey] == stateApplied,
		Deleting: cm.Data[stateKey] == stateDeleting}
	broken := func(err error) (*Inventory, error) {
		return v, fmt.Errorf("ConfigMap %s/%s is not an inventory that this version can read: %w\n"+
			"  hint: use the version of armature that wrote it; without its inventory a package "+
			"cannot be pruned",
			cm.Namespace, cm.Name, err)
	}
	if cm.Data[formatKey] != format || v.configMap() != cm.Name {
		return broken(fmt.Errorf("format %q, label %s=%s", cm.Data[formatKey], keys.LabelInventory,
			v.Name))
	}
	text := []byte(cm.Data[objectsKey])
	if packed, ok := cm.BinaryData[objectsGzipKey]; ok {
		z, err := gzip.NewReader(bytes.NewReader(packed))
		if err == nil {
			text, err = io.ReadAll(io.LimitReader(z, inventoryLimit+1))
		}
		if err != nil {
			return broken(err)
		}
		if len(text) > inventoryLimit {
			return broken(fmt.Errorf("it unpacks to more than %d MiB", inventoryLimit>>20))
		}
	}
	var err, err2 error
	v.Entries, err = parseEntries(text)
	v.Hooks, err2 = parseEntries([]byte(cm.Data[hooksKey]))
	if err := cmp.Or(err, err2); err != nil {
		return broken(err)
	}
	return v, nil
}

// parseEntries parses one line per object:
//
//	apiVersion kind namespace name uid seal
//
// An empty word is "-". The name is escaped as in a URL.
func parseEntries(text []byte) (map[ID]Entry, error) {
	entries := make(map[ID]Entry)
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		words := strings.SplitN(lines.Text(), " ", inventoryFields+1)
		if len(words) != inventoryFields {
			return nil, fmt.Errorf("line %.200q", lines.Text())
		}
		for i, w := range words {
			if w == "-" {
				words[i] = ""
			}
		}
		gv, err := schema.ParseGroupVersion(words[0])
		name, escape := url.PathUnescape(words[3])
		if err := cmp.Or(err, escape); err != nil {
			return nil, fmt.Errorf("line %.200q: %w", lines.Text(), err)
		}
		id := ID{Namespace: words[2], Name: name,
			GroupKind: schema.GroupKind{Group: gv.Group, Kind: words[1]}}
		entries[id] = Entry{ID: id, Version: gv.Version, UID: types.UID(words[4]), Seal: words[5]}
		if len(entries) > maxEntries {
			return nil, fmt.Errorf("it has more than %d objects", maxEntries)
		}
	}
	return entries, lines.Err()
}

func formatEntries(entries map[ID]Entry) []byte {
	var out bytes.Buffer
	for _, e := range inOrder(entries) {
		fmt.Fprintln(&out, e.GroupKind.WithVersion(e.Version).GroupVersion(), e.GroupKind.Kind,
			cmp.Or(e.Namespace, "-"), url.PathEscape(e.Name), cmp.Or(e.UID, "-"), cmp.Or(e.Seal, "-"))
	}
	return out.Bytes()
}

// Sorted returns the entries in the order in which they are applied.
func (v *Inventory) Sorted() []Entry { return inOrder(v.Entries) }

// inOrder returns the values of a map in the order of the kinds and names of their objects.
func inOrder[T any](all map[ID]T) (out []T) {
	for _, id := range slices.SortedFunc(maps.Keys(all), compareIDs) {
		out = append(out, all[id])
	}
	return out
}

func compareIDs(a, b ID) int {
	return cmp.Or(cmp.Compare(stageOf(a.GroupKind), stageOf(b.GroupKind)),
		cmp.Compare(a.GroupKind.Group, b.GroupKind.Group),
		cmp.Compare(a.GroupKind.Kind, b.GroupKind.Kind), cmp.Compare(a.Namespace, b.Namespace),
		cmp.Compare(a.Name, b.Name))
}

// toConfigMap returns the ConfigMap in which the inventory is stored.
func (v *Inventory) toConfigMap() (*corev1.ConfigMap, error) {
	cm := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: v.Namespace, Name: v.configMap(),
			Labels: map[string]string{keys.LabelInventory: v.Name,
				"app.kubernetes.io/managed-by": fields.Manager}},
		Data: map[string]string{formatKey: format, stateKey: stateApplying},
	}
	switch {
	case v.Deleting:
		cm.Data[stateKey] = stateDeleting
	case v.Complete:
		cm.Data[stateKey] = stateApplied
	}
	if len(v.Hooks) > 0 {
		cm.Data[hooksKey] = string(formatEntries(v.Hooks))
	}
	text := formatEntries(v.Entries)
	if len(v.Entries) > maxEntries || len(v.Hooks) > maxEntries || len(text) > inventoryLimit {
		return nil, fmt.Errorf("the package has %d objects, more than an inventory holds: split "+
			"it into several packages", len(v.Entries))
	}
	if len(text) <= plainLimit {
		cm.Data[objectsKey] = string(text)
		return cm, nil
	}
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, err := z.Write(text)
	if err := multi.Errors(err, z.Close()); err != nil {
		return nil, err
	}
	cm.BinaryData = map[string][]byte{objectsGzipKey: packed.Bytes()}
	return cm, nil
}

// save stores the inventory if it differs from the stored one. The lease keeps other clients from
// writing it at the same time, and the resource version ensures that.
func save(ctx context.Context, c *Cluster, v *Inventory) error {
	cm, err := v.toConfigMap()
	if err != nil {
		return fmt.Errorf("writing the inventory of %s: %w", v.Package, err)
	}
	same := func(stored *corev1.ConfigMap) bool {
		return stored != nil && maps.Equal(stored.Data, cm.Data) &&
			maps.EqualFunc(stored.BinaryData, cm.BinaryData, bytes.Equal)
	}
	switch {
	case same(v.stored):
		return nil
	case v.stored == nil:
		err = c.client.Create(ctx, cm)
	default:
		cm.ResourceVersion, cm.UID = v.stored.ResourceVersion, v.stored.UID
		err = c.client.Update(ctx, cm)
	}
	changed := ""
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		current, failed := c.Inventory(ctx, v.Package)
		if failed == nil && same(current.stored) {
			cm, err = current.stored, nil // the answer to our own request was lost
		}
		changed = "another client changed it: apply again: "
	}
	if err != nil {
		return fmt.Errorf("writing the inventory of %s: %s%w", v.Package, changed, brief{err})
	}
	v.stored = cm
	return nil
}

// Item is an object of an inventory with its health.
type Item struct {
	APIVersion string    `json:"apiVersion"`
	Kind       string    `json:"kind"`
	Namespace  string    `json:"namespace,omitempty"`
	Name       string    `json:"name"`
	UID        types.UID `json:"uid,omitempty"`
	health.Health
}

// Items returns the objects of an inventory with the health of their live objects.
func (c *Cluster) Items(ctx context.Context, v *Inventory) ([]Item, error) {
	steps, err := stepsOf(ctx, c, v.Entries)
	if err != nil {
		return nil, err
	}
	found, err := findLive(ctx, c, v.Package, steps)
	if err != nil {
		return nil, err
	}
	var items []Item
	for _, e := range v.Sorted() {
		if _, ran := v.Hooks[e.ID]; ran && found[e.ID] == nil {
			continue // it deleted itself after it completed
		}
		items = append(items,
			Item{APIVersion: e.GroupKind.WithVersion(e.Version).GroupVersion().String(),
				Kind: e.GroupKind.Kind, Namespace: e.Namespace, Name: e.Name, UID: e.UID,
				Health: health.Checks(nil).Of(found[e.ID])})
	}
	return items, nil
}
