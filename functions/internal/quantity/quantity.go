// Package quantity parses Kubernetes quantities and multiplies them by a ratio.
package quantity

import (
	"fmt"
	"math/big"
	"strconv"
	"strings"
)

// Ratio is requests divided by limits: above 0 and at most 1, with at most four decimals.
type Ratio struct {
	parts int64 // of 10,000
}

const ratioParts = 10_000

// Whole is the ratio at which requests equal the limits.
var Whole = Ratio{ratioParts}

// ParseRatio reads a ratio from a decimal number.
func ParseRatio(text string) (Ratio, error) {
	if len(text) > maxDigits || strings.ContainsAny(text, "/xXbBoOpP_") {
		return Ratio{}, fmt.Errorf("%.*q is not a number", maxDigits, text)
	}
	r, ok := new(big.Rat).SetString(text)
	if !ok {
		return Ratio{}, fmt.Errorf("%q is not a number", text)
	}
	if r.Sign() <= 0 || r.Cmp(big.NewRat(1, 1)) > 0 {
		return Ratio{}, fmt.Errorf("%s is not above 0 and at most 1", text)
	}
	if r.Mul(r, big.NewRat(ratioParts, 1)); !r.IsInt() {
		return Ratio{}, fmt.Errorf("%s has more than four decimals", text)
	}
	return Ratio{r.Num().Int64()}, nil
}

// String returns the ratio with four decimals, as in the annotation.
func (r Ratio) String() string {
	return fmt.Sprintf("%d.%04d", r.parts/ratioParts, r.parts%ratioParts)
}

// Whole reports whether requests stay as they are.
func (r Ratio) Whole() bool { return r.parts == ratioParts }

// CPU returns limit times ratio, truncated to whole thousandths of a core, as Kubernetes writes
// them: "500m", "2", "1k".
//
// Source: 003, "Overcommit Calculation".
func CPU(limit string, ratio Ratio) (string, error) {
	v, err := Parse(limit)
	if err != nil {
		return "", err
	}
	return formatCPU(ratio.of(v.Mul(v, big.NewRat(1000, 1)))), nil
}

// Memory returns limit times ratio, truncated to whole bytes, as Kubernetes writes them with binary
// suffixes: "512Mi", "858993459".
func Memory(limit string, ratio Ratio) (string, error) {
	v, err := Parse(limit)
	if err != nil {
		return "", err
	}
	return formatMemory(ratio.of(v)), nil
}

// of multiplies v by the ratio and truncates the result.
func (r Ratio) of(v *big.Rat) *big.Int {
	v.Mul(v, big.NewRat(r.parts, ratioParts))
	return new(big.Int).Quo(v.Num(), v.Denom())
}

// suffixes are the suffixes of Kubernetes quantities.
var suffixes = map[string]struct {
	base, exponent int64
}{
	"": {10, 0}, "n": {10, -9}, "u": {10, -6}, "m": {10, -3},
	"k": {10, 3}, "M": {10, 6}, "G": {10, 9}, "T": {10, 12}, "P": {10, 15}, "E": {10, 18},
	"Ki": {2, 10}, "Mi": {2, 20}, "Gi": {2, 30}, "Ti": {2, 40}, "Pi": {2, 50}, "Ei": {2, 60},
}

// maxQuantity is the largest quantity of Kubernetes.
var maxQuantity = new(big.Rat).SetInt64(1<<63 - 1)

// maxDigits bounds the length of a number, because parsing takes time quadratic in it.
const maxDigits = 64

// Parse reads a Kubernetes quantity that is not negative: digits with an
// optional fraction, and a suffix or a decimal exponent.
func Parse(text string) (*big.Rat, error) {
	end := strings.IndexFunc(strings.TrimPrefix(text, "+"),
		func(r rune) bool { return r != '.' && (r < '0' || r > '9') })
	number, suffix := strings.TrimPrefix(text, "+"), ""
	if end >= 0 {
		number, suffix = number[:end], number[end:]
	}
	switch {
	case strings.HasPrefix(text, "-"):
		return nil, fmt.Errorf("%q is negative", text)
	case len(number) > maxDigits || strings.Trim(number, ".") == "":
		return nil, fmt.Errorf("%.*q is not a quantity", 2*maxDigits, text)
	}
	v, ok := new(big.Rat).SetString(number)
	if !ok {
		return nil, fmt.Errorf("%q is not a quantity", text)
	}
	scale, err := parseSuffix(suffix)
	if err != nil {
		return nil, fmt.Errorf("%q is not a quantity: %w", text, err)
	}
	if v.Mul(v, scale); v.Cmp(maxQuantity) > 0 {
		return nil, fmt.Errorf("%q is more than Kubernetes counts to", text)
	}
	return v, nil
}

func parseSuffix(suffix string) (*big.Rat, error) {
	s, known := suffixes[suffix]
	if !known {
		if !strings.HasPrefix(suffix, "e") && !strings.HasPrefix(suffix, "E") {
			return nil, fmt.Errorf("%q is not a suffix (m, k, M, G, Ki, Mi, Gi, e3, …)", suffix)
		}
		var err error
		if s.exponent, err = strconv.ParseInt(suffix[1:], 10, 64); err != nil ||
			s.exponent < -maxDigits ||
			s.exponent > maxDigits {
			return nil, fmt.Errorf("%q is not an exponent between -%d and %d", suffix, maxDigits,
				maxDigits)
		}
		s.base = 10
	}
	exponent := s.exponent
	if exponent < 0 {
		exponent = -exponent
	}
	power := new(big.Int).Exp(big.NewInt(s.base), big.NewInt(exponent), nil)
	if s.exponent < 0 {
		return new(big.Rat).SetFrac(big.NewInt(1), power), nil
	}
	return new(big.Rat).SetInt(power), nil
}

func formatCPU(thousandths *big.Int) string {
	return shorten(thousandths, 1000, "m", "", "k", "M", "G", "T", "P", "E")
}

// formatMemory uses decimal suffixes below 1024, as Kubernetes does.
func formatMemory(bytes *big.Int) string {
	if bytes.Cmp(big.NewInt(1024)) < 0 {
		return shorten(bytes, 1000, "", "k")
	}
	return shorten(bytes, 1024, "", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
}

// shorten writes v with the largest of the suffixes that leaves a whole number. Each suffix
// multiplies the previous one by base.
func shorten(v *big.Int, base int64, suffixes ...string) string {
	i := 0
	for ; i < len(suffixes)-1 && v.Sign() != 0; i++ {
		quotient, rest := new(big.Int).QuoRem(v, big.NewInt(base), new(big.Int))
		if rest.Sign() != 0 {
			break
		}
		v = quotient
	}
	if v.Sign() == 0 {
		return "0"
	}
	return v.String() + suffixes[i]
}
