package attest

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/render/deliver/sign"
)

// sbomResult is the result by which a step reports the digest of the bill of materials that it
// wrote. The document itself is in the registry, in the image's repository.
const sbomResult = "SBOM_DIGEST"

// SBOM is the type of a bill of materials and the image that it describes.
type SBOM struct {
	// Type of the predicate: sign.SPDXType or sign.CycloneDXType.
	Type string
	// Of is the digest of the described image: "sha256:" and 64 hexadecimal digits.
	Of string
}

// findBills sets the bills of materials that steps reported, at most one for each image.
func (i *inspection) findBills() error {
	for t, digest := range i.reports(sbomResult) {
		of := i.platformOf(t).Digest
		if slices.ContainsFunc(i.Bills, func(b Bill) bool { return b.Of == of }) {
			return i.invalid("two tasks give the result %s of one image, and at most one may", sbomResult)
		}
		if !api.IsDigest(digest) {
			return i.invalid("the result %s is not a digest", sbomResult)
		}
		i.Bills = append(i.Bills, Bill{Digest: digest, Of: of})
	}
	return nil
}

// document has the fields of both formats that ReadSBOM reads.
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

// ReadSBOM reads a bill of materials in JSON, SPDX 2 or CycloneDX. A document that is neither or
// both, or does not describe exactly one image by its digest, is an error. The error quotes nothing
// of the document, which is not trusted and may be long.
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

// describedBySPDX returns the SHA-256 digests of the packages that an SPDX 2 document describes,
// and "" for a package without a digest.
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
	sums := map[string][]string{} // by SPDXID
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

// describedByCycloneDX returns the digests of the component that a CycloneDX document describes:
// its hashes, and its version if that is a digest, as syft writes it.
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
