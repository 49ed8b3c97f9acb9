package attest

import (
	"encoding/json"
	"errors"
	"fmt"
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
	// Of is the digest of the image that it describes, "sha256:" and 64 hexadecimal
	// digits.
	Of string
}

// findBills finds what steps reported of bills of materials, at most one for each image.
func (i *inspection) findBills() error {
	for t, digest := range i.reports(sbomResult) {
		bill := Bill{Digest: digest, Of: i.platformOf(t).Digest}
		if slices.ContainsFunc(i.Bills, func(b Bill) bool { return b.Of == bill.Of }) {
			return i.refuse(api.ReasonResultInvalid, wrongStep,
				"two tasks give the result %s of one image, and at most one may", sbomResult)
		}
		if !digestForm.MatchString(bill.Digest) {
			return i.refuse(api.ReasonResultInvalid, wrongStep, "the result %s is not a digest",
				sbomResult)
		}
		i.Bills = append(i.Bills, bill)
	}
	return nil
}

// ReadSBOM reads a bill of materials in JSON, SPDX 2 or CycloneDX. It is an error where
// it is neither or both, or does not say by digest which one image it describes. The
// error quotes nothing of the document, which may be anybody's and long.
func ReadSBOM(document []byte) (*SBOM, error) {
	var head struct {
		SPDXVersion string `json:"spdxVersion"`
		BOMFormat   string `json:"bomFormat"`
	}
	if err := json.Unmarshal(document, &head); err != nil {
		return nil, errors.New("it is not a document in JSON that names its format")
	}
	var sbom SBOM
	var described []string
	var err error
	switch spdx, cyclone :=
		strings.HasPrefix(head.SPDXVersion, "SPDX-2."), head.BOMFormat == "CycloneDX"; {
	case spdx && !cyclone:
		sbom.Type = sign.SPDXType
		described, err = describedBySPDX(document)
	case cyclone && head.SPDXVersion == "":
		sbom.Type = sign.CycloneDXType
		described, err = describedByCycloneDX(document)
	default:
		return nil, errors.New("it claims to be neither SPDX 2 nor CycloneDX alone")
	}
	if err != nil {
		return nil, fmt.Errorf("it is not a document of the type that it claims, %s", sbom.Type)
	}
	slices.Sort(described)
	if described = slices.Compact(described); len(described) != 1 ||
		!digestForm.MatchString(described[0]) {
		return nil, errors.New("it does not describe one image by its digest")
	}
	sbom.Of = described[0]
	return &sbom, nil
}

// describedBySPDX are the SHA-256 digests of the packages that a document of SPDX 2 is
// about, with "" for a package without a digest.
func describedBySPDX(document []byte) (digests []string, _ error) {
	var doc struct {
		ID        string   `json:"SPDXID"`
		Describes []string `json:"documentDescribes"`
		Packages  []struct {
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
	}
	if err := json.Unmarshal(document, &doc); err != nil {
		return nil, err
	}
	const itself = "SPDXRef-DOCUMENT"
	if doc.ID != itself {
		return nil, errors.New("its SPDXID is not " + itself)
	}
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
	return digests, nil
}

// describedByCycloneDX is the digest of the component that a document of CycloneDX is
// about: its hash, or its version where that is a digest, as syft writes it.
func describedByCycloneDX(document []byte) (digests []string, _ error) {
	var doc struct {
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
	if err := json.Unmarshal(document, &doc); err != nil {
		return nil, err
	}
	if doc.SpecVersion == "" {
		return nil, errors.New("it has no specVersion")
	}
	component := doc.Metadata.Component
	for _, hash := range component.Hashes {
		if hash.Algorithm == "SHA-256" {
			digests = append(digests, "sha256:"+hash.Content)
		}
	}
	if strings.HasPrefix(component.Version, "sha256:") {
		digests = append(digests, component.Version)
	}
	return digests, nil
}
