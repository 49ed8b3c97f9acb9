package kinds

import (
	"bytes"
	"cmp"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/armature-dev/armature/catalog/api"
	"github.com/armature-dev/armature/functions/a2a"
	"github.com/armature-dev/armature/functions/multi"
)

// Limits of verification: a card has few signatures, and an issuer few keys.
const (
	maxSignatures = 8
	maxKeys       = 32
)

// algorithms that signatures may have.
var algorithms = []jose.SignatureAlgorithm{jose.ES256, jose.EdDSA, jose.RS256, jose.PS256}

// CardKeys verify the signatures of agent cards. The operator of the catalog configures them. A
// card never decides which key verifies it: its jku is not read, and its kid only says which key
// to try first. The zero value has no keys.
type CardKeys struct{ issuers []issuer }

type issuer struct {
	name      string
	namespace string // "" for the cards of every namespace
	keys      []jose.JSONWebKey
}

// ReadCardKeys reads keys by the names of their files. NAME.json is a JSON Web Key Set and NAME.pub
// a public key in PEM, of the issuer NAME. NAMESPACE.NAME.json and NAMESPACE.NAME.pub verify only
// the cards of one namespace. A file that cannot be read is an error, but the keys of the other
// files are still returned.
func ReadCardKeys(files map[string][]byte) (k CardKeys, err error) {
	for _, file := range slices.Sorted(maps.Keys(files)) {
		i, problem := readIssuer(file, files[file])
		if problem != nil {
			err = multi.Errors(err, fmt.Errorf("%s: %w", file, problem))
			continue
		}
		k.issuers = append(k.issuers, i)
	}
	return k, err
}

func readIssuer(file string, text []byte) (i issuer, err error) {
	ending := path.Ext(file)
	i.name = strings.TrimSuffix(file, ending)
	if namespace, name, ok := strings.Cut(i.name, "."); ok {
		i.namespace, i.name = namespace, name
	}
	if i.name == "" || strings.Contains(i.name, ".") || ending != ".json" && ending != ".pub" {
		return i, errors.New(
			"name it NAME.json, NAME.pub, NAMESPACE.NAME.json or NAMESPACE.NAME.pub")
	}
	if ending == ".pub" {
		key, err := cryptoutils.UnmarshalPEMToPublicKey(text)
		if err != nil {
			return i, fmt.Errorf("it is not a public key in PEM: %w", err)
		}
		i.keys = []jose.JSONWebKey{{Key: key}}
	} else {
		var set jose.JSONWebKeySet
		if err := json.Unmarshal(text, &set); err != nil {
			return i, fmt.Errorf("it is not a JSON Web Key Set: %w", err)
		}
		i.keys = set.Keys
	}
	if len(i.keys) == 0 || len(i.keys) > maxKeys {
		return i, fmt.Errorf("it has %d keys: give 1 to %d", len(i.keys), maxKeys)
	}
	for n := range i.keys {
		if err := check(&i.keys[n]); err != nil {
			return i, fmt.Errorf("key %d: %w", n+1, err)
		}
	}
	return i, nil
}

// check refuses keys that no allowed algorithm uses, and those that are not public. A key
// without a name gets its thumbprint (RFC 7638).
func check(key *jose.JSONWebKey) error {
	suits := false
	switch k := key.Key.(type) {
	case *ecdsa.PublicKey:
		suits = k.Curve == elliptic.P256()
	case ed25519.PublicKey:
		suits = true
	case *rsa.PublicKey:
		suits = k.N.BitLen() >= 2048
	}
	if !suits || !key.Valid() || key.Use != "" && key.Use != "sig" {
		return errors.New(
			"use a public key for signatures: P-256, Ed25519, or RSA of 2048 bits or more")
	}
	if key.KeyID == "" {
		thumbprint, err := key.Thumbprint(crypto.SHA256)
		if err != nil {
			return err
		}
		key.KeyID = base64.RawURLEncoding.EncodeToString(thumbprint)
	}
	return nil
}

// Verdict on the signatures of a card.
type Verdict struct {
	api.Signature
	// Reason says why a card is invalid, or its signer not known.
	Reason string
}

// Verify returns the verdict on a card, as it was answered, of a namespace.
func (k CardKeys) Verify(card []byte, namespace string) Verdict {
	invalid := func(reason string) Verdict {
		return Verdict{api.Signature{Verdict: api.SignatureInvalid}, reason}
	}
	signatures, err := a2a.Signatures(card)
	switch {
	case err != nil:
		return invalid("its signatures cannot be read")
	case len(signatures) == 0:
		return Verdict{Signature: api.Signature{Verdict: api.SignatureUnsigned}}
	case len(signatures) > maxSignatures:
		return invalid(fmt.Sprintf("it has more than %d signatures", maxSignatures))
	}
	payload, err := a2a.Payload(card)
	if err != nil {
		return invalid("it has no canonical form")
	}
	unknown := Verdict{api.Signature{Verdict: api.SignatureUnknownKey},
		"no configured key has signed it"}
	for _, s := range signatures {
		verdict, reason := k.verify(s, payload, namespace)
		switch {
		case verdict.Verdict == api.SignatureValid:
			if elsewhere := servedElsewhere(card, namespace); elsewhere != "" {
				return invalid("it names addresses in namespace " + elsewhere +
					": it is the card of an agent there")
			}
			return Verdict{Signature: verdict}
		case verdict.Verdict == api.SignatureInvalid && unknown.Verdict != api.SignatureInvalid:
			unknown = invalid(reason)
		}
	}
	return unknown
}

// servedElsewhere returns another namespace that the addresses of a card name, by the names that
// Services have in a cluster: an agent that serves a copy of a signed card is not the one that the
// card describes.
func servedElsewhere(card []byte, namespace string) string {
	var c struct {
		URL        string `json:"url"`
		Interfaces []struct {
			URL string `json:"url"`
		} `json:"supportedInterfaces"`
		Additional []struct {
			URL string `json:"url"`
		} `json:"additionalInterfaces"`
	}
	if json.Unmarshal(card, &c) != nil {
		return ""
	}
	addresses := []string{c.URL}
	for _, i := range slices.Concat(c.Interfaces, c.Additional) {
		addresses = append(addresses, i.URL)
	}
	for _, address := range addresses {
		u, err := url.Parse(address)
		if err != nil {
			continue
		}
		labels := strings.Split(strings.ToLower(u.Hostname()), ".")
		if at := slices.Index(labels, "svc"); at >= 2 && labels[at-1] != namespace {
			return labels[at-1]
		}
	}
	return ""
}

// verify verifies one signature of a card.
func (k CardKeys) verify(s a2a.Signature, payload []byte,
	namespace string) (verdict api.Signature, reason string) {
	compact := bytes.Join([][]byte{[]byte(s.Protected),
		[]byte(base64.RawURLEncoding.EncodeToString(payload)), []byte(s.Signature)}, []byte("."))
	parsed, err := jose.ParseSignedCompact(string(compact), algorithms)
	if err != nil || len(parsed.Signatures) != 1 {
		return api.Signature{Verdict: api.SignatureInvalid},
			"a signature is malformed, or its algorithm is not ES256, EdDSA, RS256 or PS256"
	}
	header := parsed.Signatures[0].Protected
	verdict.Verdict = api.SignatureUnknownKey
	for _, i := range k.of(namespace, header.KeyID) {
		for _, key := range i.keys {
			if key.Algorithm != "" && key.Algorithm != header.Algorithm {
				continue
			}
			if _, err := parsed.Verify(key.Key); err == nil {
				return api.Signature{Verdict: api.SignatureValid, SignedBy: i.name}, ""
			}
			if key.KeyID == header.KeyID {
				verdict.Verdict, reason =
					api.SignatureInvalid, "its signature does not match its content"
			}
		}
	}
	return verdict, reason
}

// of returns the issuers whose keys verify the cards of a namespace, those first that have a key
// of the name.
func (k CardKeys) of(namespace, kid string) []issuer {
	all := slices.Clone(k.issuers)
	all = slices.DeleteFunc(all, func(i issuer) bool {
		return i.namespace != "" && i.namespace != namespace
	})
	named := func(i issuer) int {
		if slices.ContainsFunc(i.keys, func(key jose.JSONWebKey) bool { return key.KeyID == kid }) {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(all, func(a, b issuer) int { return cmp.Compare(named(a), named(b)) })
	return all
}

// Limits of a folder with keys.
const (
	keyPeriod   = 10 * time.Second // how often it is read again
	maxKeyFiles = 256
	maxKeyFile  = 64 << 10 // bytes
)

// keyFolder has the keys of a folder, which changes when the ConfigMap behind it does.
type keyFolder struct {
	mu   sync.Mutex
	keys CardKeys
	read time.Time
	last string // the last error
}

// now returns the keys of a folder. An error of a file is logged once, and the other files count.
func (k *keyFolder) now(ctx context.Context, folder string) CardKeys {
	k.mu.Lock()
	defer k.mu.Unlock()
	if folder == "" || !k.read.IsZero() && time.Since(k.read) < keyPeriod {
		return k.keys
	}
	files, err := keyFiles(folder)
	keys, unread := ReadCardKeys(files)
	k.keys, k.read = keys, time.Now()
	err = multi.Errors(err, unread)
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && text != k.last {
		log.FromContext(ctx).Error(err, "reading the keys of agent cards", "folder", folder)
	}
	k.last = text
	return k.keys
}

// keyFiles reads a folder. Names that begin with a dot are those of the kubelet.
func keyFiles(folder string) (files map[string][]byte, err error) {
	list, err := os.ReadDir(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if len(list) > maxKeyFiles {
		return nil, fmt.Errorf("it has more than %d files", maxKeyFiles)
	}
	files = make(map[string][]byte)
	for _, e := range list {
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		info, problem := os.Stat(filepath.Join(folder, e.Name()))
		switch {
		case problem == nil && !info.Mode().IsRegular():
			problem = fmt.Errorf("%s: not a file", e.Name())
		case problem == nil && info.Size() > maxKeyFile:
			problem = fmt.Errorf("%s: more than %d bytes", e.Name(), maxKeyFile)
		case problem == nil:
			files[e.Name()], problem = os.ReadFile(filepath.Join(folder, e.Name()))
		}
		err = multi.Errors(err, problem)
	}
	return files, err
}
