package attest

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/render/deliver/sign"
)

// sbomResult is the result by which a step reports the digest of the bill of materials
// that it wrote. The document itself is in the registry, beside the image.
const sbomResult = "SBOM_DIGEST"

// SBOM is a bill of materials that says which image it describes.
type SBOM struct {
	// Type of the predicate that it is: sign.SPDXType or sign.CycloneDXType.
	Type string
	// Of is the digest of the image that it describes, "sha256:" and 64 hexadecimal digits.
	Of string
}

// findBills finds what steps reported of bills of materials, at most one for each image.
func (i *inspection) findBills() error {
	for t, digest := range i.reports(sbomResult) {
		bill := Bill{Digest: digest, Of: i.platformOf(t).Digest}
		if slices.ContainsFunc(i.Bills, func(b Bill) bool { return b.Of == bill.Of }) {
			return i.invalid("two tasks give the result %s of one image, and at most one may", sbomResult)
		}
		if !api.IsDigest(bill.Digest) {
			return i.invalid("the result %s is not a digest", sbomResult)
		}
		i.Bills = append(i.Bills, bill)
	}
	return nil
}

// document is what is read of a bill of materials, of both formats.
type document struct {
	SPDXVersion string   `json:"spdxVersion"`
	ID          string   `json:"SPDXID"`
	Describes   []string `json:"documentDescribes"`
	Packages    []struct {
		ID        string `json:"SPDXID"`
		Checksums []struct {
			Algorithm string `json:"algorithm"`
			Value     string `json:"checksumValue"`
		} `json:"checksums"`
	} `json:"packages"`
	Relationships []struct {
		From string `json:"spdxElementId"`
		Type string `json:"relationshipType"`
		To   string `json:"relatedSpdxElement"`
	} `json:"relationships"`

	BOMFormat   string `json:"bomFormat"`
	SpecVersion string `json:"specVersion"`
	Metadata    struct {
		Component struct {
			Version string `json:"version"`
			Hashes  []struct {
				Algorithm string `json:"alg"`
				Content   string `json:"content"`
			} `json:"hashes"`
		} `json:"component"`
	} `json:"metadata"`
}

// ReadSBOM reads a bill of materials in JSON, SPDX 2 or CycloneDX. It is an error where
// it is neither or both, or does not say by digest which one image it describes. The
// error quotes nothing of the document, which may be anybody's and long.
func ReadSBOM(text []byte) (*SBOM, error) {
	var doc document
	if err := json.Unmarshal(text, &doc); err != nil {
		return nil, errors.New("it is not a document in JSON of SPDX 2 or CycloneDX")
	}
	var sbom SBOM
	var described []string
	switch spdx, cyclone :=
		strings.HasPrefix(doc.SPDXVersion, "SPDX-2."), doc.BOMFormat == "CycloneDX"; {
	case spdx && !cyclone && doc.ID == itself:
		sbom.Type, described = sign.SPDXType, doc.describedBySPDX()
	case cyclone && doc.SPDXVersion == "" && doc.SpecVersion != "":
		sbom.Type, described = sign.CycloneDXType, doc.describedByCycloneDX()
	default:
		return nil, errors.New("it claims to be neither SPDX 2 nor CycloneDX alone, or lacks the " +
			"SPDXID or the specVersion of one")
	}
	slices.Sort(described)
	if described = slices.Compact(described); len(described) != 1 || !api.IsDigest(described[0]) {
		return nil, errors.New("it does not describe one image by its digest")
	}
	sbom.Of = described[0]
	return &sbom, nil
}

// itself is the SPDXID of a document of SPDX 2.
const itself = "SPDXRef-DOCUMENT"

// describedBySPDX are the SHA-256 digests of the packages that a document of SPDX 2 is
// about, with "" for a package without a digest.
func (doc *document) describedBySPDX() (digests []string) {
	about := doc.Describes
	for _, r := range doc.Relationships {
		switch {
		case r.From == itself && r.Type == "DESCRIBES":
			about = append(about, r.To)
		case r.To == itself && r.Type == "DESCRIBED_BY":
			about = append(about, r.From)
		}
	}
	sums := map[string][]string{} // by the package's id
	for _, p := range doc.Packages {
		for _, sum := range p.Checksums {
			if sum.Algorithm == "SHA256" {
				sums[p.ID] = append(sums[p.ID], "sha256:"+sum.Value)
			}
		}
	}
	slices.Sort(about)
	for _, id := range slices.Compact(about) {
		if len(sums[id]) == 0 {
			digests = append(digests, "")
		}
		digests = append(digests, sums[id]...)
	}
	return digests
}

// describedByCycloneDX is the digest of the component that a document of CycloneDX is
// about: its hash, or its version where that is a digest, as syft writes it.
func (doc *document) describedByCycloneDX() (digests []string) {
	component := doc.Metadata.Component
	for _, hash := range component.Hashes {
		if hash.Algorithm == "SHA-256" {
			digests = append(digests, "sha256:"+hash.Content)
		}
	}
	if strings.HasPrefix(component.Version, "sha256:") {
		digests = append(digests, component.Version)
	}
	return digests
}
