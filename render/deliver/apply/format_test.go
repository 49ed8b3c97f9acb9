package apply

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"maps"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/uuid"
)

// Ten thousand objects fit into a ConfigMap, and every name comes back as it was.
func TestInventoryRoundTrip(t *testing.T) {
	for _, n := range []int{0, 3, 10_000} {
		v := &Inventory{Package: Package{Namespace: "team1", Name: "weather"},
			Entries: make(map[ID]Entry), Complete: n > 0}
		for i := range n {
			seal := make([]byte, 15)
			rand.Read(seal)
			e := Entry{
				ID: ID{Namespace: "team1", Name: fmt.Sprintf("an agent:%d_x%%", i),
					GroupKind: schema.GroupKind{Group: "rbac.authorization.k8s.io", Kind: "Role"}},
				Version: "v1", UID: uuid.NewUUID(),
				Seal: base64.RawURLEncoding.EncodeToString(seal),
			}
			if i == 1 {
				e.Namespace, e.GroupKind, e.UID, e.Seal =
					"", schema.GroupKind{Kind: "Namespace"}, "", ""
			}
			v.Entries[e.ID] = e
		}
		cm, err := v.toConfigMap()
		if err != nil {
			t.Fatal(err)
		}
		if size := cm.Size(); size > 1<<20 {
			t.Errorf("%d objects take %d bytes", n, size)
		}
		back, err := ParseInventory(cm)
		if err != nil {
			t.Fatal(err)
		}
		if !maps.Equal(back.Entries, v.Entries) || back.Package != v.Package ||
			back.Complete != v.Complete {
			t.Errorf("%d objects do not come back as they were", n)
		}
	}
}
