package resources

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"

	"golang.org/x/sync/semaphore"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/armature-dev/armature/render/process"
)

// Bounds for reading objects that tenants write. The memory limit of the console and the catalog
// together is 256 MiB.
const (
	maxObject   = 3 << 20  // bytes of one object; the API server stores 1.5 MiB
	maxDecoding = 32 << 20 // memory of all objects that are decoded at the same time
	maxAsked    = 50       // objects that are asked for at once
)

// Reasons for which a list is not read to its end.
var (
	ErrTooLarge = fmt.Errorf("one of them has more than %d MiB", maxObject>>20)
	ErrSpent    = errors.New("they are more or larger than the console reads of one namespace")
)

// Reader reads objects of any kind that tenants write, one after the other, so that neither their
// size nor their number decides how much memory the console takes.
type Reader struct {
	objects *rest.RESTClient
	memory  *semaphore.Weighted // of objects that are decoded
}

// NewReader returns a reader of a cluster.
func NewReader(cfg *rest.Config) (*Reader, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.QPS = -1 // the API server's own fairness
	objects, err := process.RESTClient(cfg, "/", schema.GroupVersion{})
	return &Reader{objects, semaphore.NewWeighted(maxDecoding)}, err
}

// allowance counts the bytes that may still be read of an object, and of all objects.
type allowance struct {
	io.Reader
	object int64
	all    *int64
}

func (a *allowance) Read(p []byte) (int, error) {
	switch {
	case *a.all <= 0:
		return 0, ErrSpent
	case a.object <= 0:
		return 0, ErrTooLarge
	}
	n, err := a.Reader.Read(p[:min(int64(len(p)), a.object)])
	a.object -= int64(n)
	*a.all -= int64(n)
	return n, err
}

// Each visits the objects of a list, one after the other, until all bytes are spent. An object is
// valid only during its visit, and the objects that are decoded at the same time take at most
// maxDecoding together.
func (r *Reader) Each(ctx context.Context, resource schema.GroupVersionResource,
	namespace, selector string, all *int64, visit func(raw []byte) error) error {
	next := ""
	for {
		request := r.objects.Get().SetHeader("Accept", "application/json").Param("labelSelector",
			selector).Param("limit", fmt.Sprint(maxAsked))
		if resource.Group == "" {
			request.AbsPath("/api", resource.Version)
		} else {
			request.AbsPath("/apis", resource.Group, resource.Version)
		}
		if next != "" {
			request.Param("continue", next)
		}
		body, err := request.NamespaceIfScoped(namespace, namespace != metav1.NamespaceAll).
			Resource(resource.Resource).Stream(ctx)
		if err != nil {
			return err
		}
		next, err = r.page(ctx, &allowance{body, maxObject, all}, visit)
		_ = body.Close() // it was only read
		if err != nil || next == "" {
			return err
		}
	}
}

// page reads one page of a list, and returns how to continue.
func (r *Reader) page(ctx context.Context, body *allowance,
	visit func(raw []byte) error) (next string, err error) {
	list := json.NewDecoder(body)
	open := func(want json.Delim) (bool, error) {
		got, err := list.Token()
		if err == nil && got != nil && got != want {
			err = fmt.Errorf("the API server answers %v in a list", got)
		}
		return got != nil, err
	}
	if _, err := open('{'); err != nil {
		return "", err
	}
	for list.More() {
		body.object = maxObject
		name, err := list.Token()
		if err != nil {
			return "", err
		}
		switch name {
		case "metadata":
			var about metav1.ListMeta
			if err := list.Decode(&about); err != nil {
				return "", err
			}
			next = about.Continue
		case "items":
			is, err := open('[')
			for is && err == nil && list.More() {
				body.object = maxObject
				var raw json.RawMessage
				if err = list.Decode(&raw); err == nil {
					err = r.decoding(ctx, raw, visit)
				}
			}
			if is && err == nil {
				_, err = open(']')
			}
			if err != nil {
				return "", err
			}
		default:
			var skipped json.RawMessage
			if err := list.Decode(&skipped); err != nil {
				return "", err
			}
		}
	}
	_, err = open('}')
	return next, err
}

// decoding waits until there is memory for an object, and visits it. If the object takes too much,
// only its name and namespace are visited.
func (r *Reader) decoding(ctx context.Context, raw []byte, visit func(raw []byte) error) error {
	takes := decodingCost(raw)
	if takes > maxDecoding {
		var named struct {
			Metadata struct {
				Name      string `json:"name"`
				Namespace string `json:"namespace,omitempty"`
			} `json:"metadata"`
		}
		err := json.Unmarshal(raw, &named)
		if err != nil {
			return err
		}
		if raw, err = json.Marshal(named); err != nil {
			return err
		}
		takes = decodingCost(raw)
	}
	if err := r.memory.Acquire(ctx, takes); err != nil {
		return err
	}
	defer r.memory.Release(takes)
	return visit(raw)
}

// decodingCost returns the memory that decoding an object takes at most: each byte is copied, and
// objects, lists and values take more than they are long.
func decodingCost(raw []byte) (takes int64) {
	takes = 3 * int64(len(raw))
	for i := 0; i < len(raw); i++ {
		switch raw[i] {
		case '"': // up to its end
			for i++; i < len(raw) && raw[i] != '"'; i++ {
				if raw[i] == '\\' {
					i++
				}
			}
		case '{', '[':
			takes += 512
		case ',':
			takes += 64
		}
	}
	return takes
}

// IsWhole reports whether an object is more than its name.
func IsWhole(raw []byte) bool { return bytes.Contains(raw, []byte(`"uid":`)) }

// VersionsOf returns for each namespace a number that changes with its objects and is never zero.
func VersionsOf(all []metav1.PartialObjectMetadata) map[string]uint64 {
	out := map[string]uint64{}
	for i := range all {
		sum := fnv.New64a()
		// Writing to a hash never fails.
		_, _ = sum.Write([]byte(string(all[i].UID) + "/" + all[i].ResourceVersion))
		out[all[i].Namespace] += sum.Sum64() | 1
	}
	for namespace, version := range out {
		out[namespace] = max(version, 1)
	}
	return out
}
