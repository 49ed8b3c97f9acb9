package quantity

import (
	"math/big"
	"strings"
	"testing"
	"time"

	"gopkg.in/inf.v0"
	"k8s.io/apimachinery/pkg/api/resource"
)

// calculations are limits, ratios and the resulting requests, each calculated by hand after
// "Resource Management" of 003.
var calculations = []struct{ limit, ratio, cpu, memory string }{
	// The ratios of 003.
	{"1", "0.2", "200m", "0"},
	{"1", "0.5", "500m", "0"},
	{"1", "0.1", "100m", "0"},
	{"1Gi", "0.8", "858993459200m", "858993459"}, // 858993459.2
	{"512Mi", "0.9", "483183820800m", "483183820"},
	{"2", "0.2", "400m", "0"},
	{"10", "0.8", "8", "8"},
	// Units, and how they are written.
	{"4", "0.5", "2", "2"},
	{"5", "0.5", "2500m", "2"},
	{"2500m", "0.2", "500m", "0"},
	{"1500m", "1", "1500m", "1"},
	{"2000", "0.5", "1k", "1k"},
	{"4000000", "0.5", "2M", "2000000"},
	{"1023", "1", "1023", "1023"},
	{"1024", "1", "1024", "1Ki"},
	{"2048", "0.5", "1024", "1Ki"},
	{"1536", "1", "1536", "1536"},
	{"0", "0.5", "0", "0"},
	{"0.0", "0.5", "0", "0"},
	{"+3", "0.5", "1500m", "1"},
	// Milli and below.
	{"1m", "0.5", "0", "0"},
	{"3m", "0.5", "1m", "0"},
	{"7m", "0.3333", "2m", "0"}, // 2.3331
	{"999m", "0.9999", "998m", "0"},
	{"100m", "0.0001", "0", "0"},
	{"10000m", "0.0001", "1m", "0"},
	{"1u", "1", "0", "0"},
	{"1999u", "1", "1m", "0"},
	{"1000000n", "1", "1m", "0"},
	{"0.5", "0.5", "250m", "0"},
	{".5", "0.5", "250m", "0"},
	{"1.", "0.5", "500m", "0"},
	{"0.0015", "1", "1m", "0"},
	{"0.3", "0.1", "30m", "0"},
	{"0.7", "0.1", "70m", "0"},
	{"1.1", "0.7", "770m", "0"},
	{"700m", "0.7", "490m", "0"},   // binary fractions say 489
	{"100m", "0.29", "29m", "0"},   // 28
	{"1500m", "0.57", "855m", "0"}, // 854
	// Decimal suffixes.
	{"1k", "0.5", "500", "500"},
	{"1M", "0.5", "500k", "500000"},
	{"500M", "0.8", "400M", "390625Ki"},
	{"1G", "0.3", "300M", "300000000"},
	{"1T", "0.0001", "100M", "100000000"},
	{"1P", "0.25", "250T", "244140625000Ki"},
	{"1E", "0.5", "500P", "488281250000000Ki"},
	// Binary suffixes.
	{"1Ki", "0.5", "512", "512"},
	{"1Ki", "0.9999", "1023897m", "1023"},
	{"128Mi", "0.9", "120795955200m", "120795955"},
	{"64Mi", "0.5", "33554432", "32Mi"},
	{"3Gi", "0.5", "1610612736", "1536Mi"},
	{"1.5Gi", "0.5", "805306368", "768Mi"},
	{"0.5Ki", "0.5", "256", "256"},
	{"1Ti", "0.3333", "366467225537740m", "366467225537"},
	{"2Pi", "0.5", "1125899906842624", "1Pi"},
	{"4Ei", "0.5", "2305843009213693952", "2Ei"},
	{"7Ei", "0.8", "6456360425798343065600m", "6456360425798343065"},
	// Exponents.
	{"1e3", "0.5", "500", "500"},
	{"1E3", "0.5", "500", "500"},
	{"1e+3", "0.5", "500", "500"},
	{"12e6", "0.5", "6M", "6000000"},
	{"5e-1", "0.5", "250m", "0"},
	{"1e-9", "1", "0", "0"},
	{"1.5e9", "0.8", "1200M", "1171875Ki"},
	// Huge and tiny.
	{"9223372036854775807", "1", "9223372036854775807", "9223372036854775807"},
	{"9223372036854775807", "0.5", "4611686018427387903500m", "4611686018427387903"},
	{"9223372036854775807", "0.0001", "922337203685477580m", "922337203685477"},
	{"0.000000000000000000000000000001", "1", "0", "0"},
	{"1e-60", "0.9999", "0", "0"},
	{"9e18", "0.9999", "8999100T", "8788183593750000Ki"},
}

// TestCalculations holds the arithmetic to the table, which is held to exact
// arithmetic and to Kubernetes' own spelling of each result.
func TestCalculations(t *testing.T) {
	if len(calculations) < 50 {
		t.Fatalf("only %d quantities", len(calculations))
	}
	for _, c := range calculations {
		ratio, err := ParseRatio(c.ratio)
		if err != nil {
			t.Fatal(err)
		}
		cpu, err1 := CPU(c.limit, ratio)
		memory, err2 := Memory(c.limit, ratio)
		if err1 != nil || err2 != nil {
			t.Errorf("%s x %s: %v %v", c.limit, c.ratio, err1, err2)
			continue
		}
		if want := exactly(t, c.limit, c.ratio, 1000); cpu != want {
			t.Errorf("cpu %s x %s is %s, exactly %s", c.limit, c.ratio, cpu, want)
		}
		if want := exactly(t, c.limit, c.ratio, 1); memory != want {
			t.Errorf("memory %s x %s is %s, exactly %s", c.limit, c.ratio, memory, want)
		}
		if cpu != c.cpu {
			t.Errorf("cpu %s x %s is %s, want %s", c.limit, c.ratio, cpu, c.cpu)
		}
		if memory != c.memory {
			t.Errorf("memory %s x %s is %s, want %s", c.limit, c.ratio, memory, c.memory)
		}
	}
}

// exactly works a request out with fractions, in parts of a unit, and has
// Kubernetes write it.
func exactly(t *testing.T, limit, ratio string, parts int64) string {
	t.Helper()
	number := strings.TrimRight(limit, "KMGTPEiknum")
	suffix := strings.TrimPrefix(limit, number)
	scale := map[string]string{
		"": "1", "n": "1e-9", "u": "1e-6", "m": "1e-3", "k": "1e3", "M": "1e6", "G": "1e9",
		"T": "1e12", "P": "1e15", "E": "1e18", "Ki": "1024", "Mi": "1048576", "Gi": "1073741824",
		"Ti": "1099511627776", "Pi": "1125899906842624", "Ei": "1152921504606846976",
	}[suffix]
	product := big.NewRat(parts, 1)
	for _, factor := range []string{strings.TrimSuffix(number, "."), scale, ratio} {
		r, ok := new(big.Rat).SetString(factor)
		if !ok {
			t.Fatalf("%q of %q", factor, limit)
		}
		product.Mul(product, r)
	}
	whole := new(big.Int).Quo(product.Num(), product.Denom())
	if parts == 1000 {
		return resource.NewDecimalQuantity(*inf.NewDecBig(whole, 3), resource.DecimalSI).String()
	}
	return resource.NewDecimalQuantity(*inf.NewDecBig(whole, 0), resource.BinarySI).String()
}

// TestSpelling compares the spelling of many numbers with Kubernetes'.
func TestSpelling(t *testing.T) {
	var numbers []int64
	for _, n := range []int64{0, 1, 9, 10, 999, 1000, 1001, 1023, 1024, 1025, 1500, 2048, 1e6,
		1 << 20, 3 << 29, 1e9, 1 << 30, 123456789012345, 1e15, 1 << 50, 1e18, 1 << 60, 1<<63 - 1} {
		numbers = append(numbers, n, n*3/2, n/7)
	}
	for _, n := range numbers {
		if n < 0 {
			continue
		}
		if have, want := formatCPU(big.NewInt(n)),
			resource.NewMilliQuantity(n, resource.DecimalSI).String(); have != want {
			t.Errorf("%d milli: %s, Kubernetes writes %s", n, have, want)
		}
		if have, want := formatMemory(big.NewInt(n)),
			resource.NewQuantity(n, resource.BinarySI).String(); have != want {
			t.Errorf("%d bytes: %s, Kubernetes writes %s", n, have, want)
		}
	}
}

func TestBadQuantities(t *testing.T) {
	half, _ := ParseRatio("0.5")
	for _, text := range []string{"", " ", ".", "m", "1 core", "1KB", "-1", "--1", "0x10", "1_000",
		"1e", "1e3m", "1e99999999999", "1e65", "NaN", "Inf", "1/2", "9223372036854775808", "8Ei",
		"1ki", "١", strings.Repeat("1", 65)} {
		if have, err := CPU(text, half); err == nil {
			t.Errorf("%q gives %s", text, have)
		}
	}
}

// TestLongNumbers: a long number is refused before it is parsed, which takes time quadratic in its
// length.
func TestLongNumbers(t *testing.T) {
	start := time.Now()
	long := strings.Repeat("9", 4<<20)
	if _, err := Parse(long); err == nil {
		t.Error("a quantity of 4 million digits is accepted")
	}
	if _, err := ParseRatio("0." + long); err == nil {
		t.Error("a ratio of 4 million digits is accepted")
	}
	if took := time.Since(start); took > 3*time.Second {
		t.Errorf("refusing long numbers took %s", took)
	}
}

func TestRatios(t *testing.T) {
	for text, want := range map[string]string{"0.2": "0.2000", "1": "1.0000", "1.0": "1.0000",
		"0.0001": "0.0001", "1e-4": "0.0001", "0.33330": "0.3333", "5e-1": "0.5000"} {
		if r, err := ParseRatio(text); err != nil || r.String() != want {
			t.Errorf("%s: %s %v, want %s", text, r, err, want)
		}
	}
	for _, text := range []string{"", "0", "-0.1", "1.0001", "2", "0.00001", "0.12345", "1/2",
		"0x1p-1", "half", "NaN", "0.1_0"} {
		if r, err := ParseRatio(text); err == nil {
			t.Errorf("%q gives %s", text, r)
		}
	}
}

// FuzzCPU checks that no input panics and that no result exceeds the limit.
func FuzzCPU(f *testing.F) {
	for _, c := range calculations {
		f.Add(c.limit)
	}
	half, _ := ParseRatio("0.5")
	whole, _ := ParseRatio("1")
	f.Fuzz(func(t *testing.T, limit string) {
		request, err := CPU(limit, half)
		if err != nil {
			return
		}
		all, err := CPU(limit, whole)
		if err != nil {
			t.Fatal(err)
		}
		r, l := resource.MustParse(request), resource.MustParse(all)
		if r.Cmp(l) > 0 {
			t.Errorf("%s of %s", request, limit)
		}
	})
}
