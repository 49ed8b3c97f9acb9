package attest_test

import (
	"strings"
	"testing"

	"github.com/armature-dev/armature/builds/attest"
	"github.com/armature-dev/armature/builds/attest/attesttest"
	"github.com/armature-dev/armature/render/deliver/sign"
)

// A bill of materials counts where it is of one format, and says by digest which image
// it describes.
func TestReadSBOM(t *testing.T) {
	hex := strings.TrimPrefix(digest, "sha256:")
	spdx := string(attesttest.SBOM(digest))
	describes := `"relationships":[{"spdxElementId":"SPDXRef-DOCUMENT","relationshipType":"DESCRIBES","relatedSpdxElement":"SPDXRef-Root"}]`
	cyclone := `{"bomFormat":"CycloneDX","specVersion":"1.6","metadata":{"component":{"type":"container","name":"weather","version":"` + digest + `"}}}`
	hashed := strings.Replace(cyclone, `"version":"`+digest+`"`,
		`"version":"v1","hashes":[{"alg":"SHA-256","content":"`+hex+`"}]`, 1)
	replaced := func(document, old, new string) string {
		t.Helper()
		if !strings.Contains(document, old) {
			t.Fatalf("%s is not in %s", old, document)
		}
		return strings.Replace(document, old, new, 1)
	}
	for name, c := range map[string]struct{ document, kind string }{
		"SPDX": {spdx, sign.SPDXType},
		"SPDX by documentDescribes": {replaced(spdx, describes,
			`"documentDescribes":["SPDXRef-Root"]`), sign.SPDXType},
		"SPDX, described by": {replaced(spdx, describes,
			`"relationships":[{"spdxElementId":"SPDXRef-Root","relationshipType":"DESCRIBED_BY","relatedSpdxElement":"SPDXRef-DOCUMENT"}]`), sign.SPDXType},
		"CycloneDX as syft writes it": {cyclone, sign.CycloneDXType},
		"CycloneDX by hash":           {hashed, sign.CycloneDXType},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := attest.ReadSBOM([]byte(c.document))
			if err != nil {
				t.Fatal(err)
			}
			if got.Type != c.kind || got.Of != digest {
				t.Errorf("type %s, of %s", got.Type, got.Of)
			}
		})
	}
	long := strings.Repeat("x", 1<<20)
	for name, document := range map[string]string{
		"nothing":             "",
		"no JSON":             "SPDXVersion: SPDX-2.3",
		"a list":              "[" + spdx + "]",
		"something behind it": spdx + spdx,
		"null":                "null",
		"no format":           `{}`,
		"another format":      replaced(spdx, "SPDX-2.3", "SPDX-3.0"),
		"a provenance":        `{"buildDefinition":{},"runDetails":{}}`,
		"both formats": replaced(spdx, "{",
			`{"bomFormat":"CycloneDX","specVersion":"1.6",`),
		"SPDX of another id": replaced(spdx, `"SPDXID":"SPDXRef-DOCUMENT"`,
			`"SPDXID":"`+long+`"`),
		"SPDX of another shape":       replaced(spdx, `"packages":[`, `"packages":[7,`),
		"SPDX that describes nothing": replaced(spdx, "DESCRIBES", "CONTAINS"),
		"SPDX that describes a package": replaced(spdx, `"relatedSpdxElement":"SPDXRef-Root"`,
			`"relatedSpdxElement":"SPDXRef-Package"`),
		"SPDX that describes two": replaced(spdx, `"relationships":[`,
			`"documentDescribes":["SPDXRef-Package"],"relationships":[`),
		"SPDX with another digest beside": replaced(spdx, `"checksums":[`,
			`"checksums":[{"algorithm":"SHA256","checksumValue":"`+strings.Repeat("b", 64)+`"},`),
		"SPDX by another algorithm":    replaced(spdx, "SHA256", "SHA1"),
		"SPDX with a malformed digest": replaced(spdx, hex, hex[1:]+"A"),
		"CycloneDX without version":    replaced(cyclone, `"specVersion":"1.6",`, ""),
		"CycloneDX of a tag":           replaced(cyclone, digest, "v1"),
		"CycloneDX that contradicts": replaced(hashed, `"version":"v1"`,
			`"version":"sha256:`+strings.Repeat("b", 64)+`"`),
	} {
		t.Run(name, func(t *testing.T) {
			got, err := attest.ReadSBOM([]byte(document))
			if err == nil || got != nil {
				t.Fatalf("it is taken: %+v", got)
			}
			if len(err.Error()) > 200 {
				t.Errorf("the error has %d bytes", len(err.Error()))
			}
		})
	}
}

// Documents with very many elements are judged at once.
func TestReadLongSBOM(t *testing.T) {
	const many = 100_000
	document := `{"spdxVersion":"SPDX-2.3","SPDXID":"SPDXRef-DOCUMENT","packages":[` +
		strings.Repeat(`{"SPDXID":"a"},`, many) + `{}],"documentDescribes":[` +
		strings.Repeat(`"b",`, many) + `"b"]}`
	if got, err := attest.ReadSBOM([]byte(document)); err == nil {
		t.Errorf("it is taken: %+v", got)
	}
}

// FuzzReadSBOM looks for documents that are taken and describe no digest.
func FuzzReadSBOM(f *testing.F) {
	f.Add(attesttest.SBOM(digest))
	f.Add(
		[]byte(`{"bomFormat":"CycloneDX","specVersion":"1.6","metadata":{"component":{"version":"` +
			digest + `"}}}`))
	f.Fuzz(func(t *testing.T, document []byte) {
		got, err := attest.ReadSBOM(document)
		if err == nil && (len(got.Of) != len(digest) || !strings.HasPrefix(got.Of, "sha256:")) {
			t.Errorf("%s describes %q", document, got.Of)
		}
	})
}
