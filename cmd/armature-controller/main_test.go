package main

import (
	"errors"
	"math"
	"net/netip"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/armature-dev/armature/builds/source/gitremote"
)

// A call that cannot work is refused before anything is asked of a cluster.
func TestUsage(t *testing.T) {
	t.Setenv("KUBECONFIG", "/nonexistent")
	for args, want := range map[string]string{
		"":                                      "--namespace is missing",
		"extra":                                 "only flags",
		"--nonsense":                            "unknown flag",
		"--namespace=Bad":                       "not a valid namespace",
		"--namespace=a --watch-namespaces=b,,c": `"" is not a valid namespace`,
		"--namespace=a --create-build-service-account": "requires --build-service-account",
		"--namespace=a --build-timeout=-1m":            "positive duration",
		"--namespace=a --concurrency=0":                "1 or more",
		"--namespace=a --qps=0":                        "positive number",
		"--namespace=a --max-running=-1":               "--max-running -1: use a positive number",
		"--namespace=a --max-running-per-namespace=-1": "--max-running-per-namespace -1: " +
			"use a positive number",
		"--namespace=a --queue-name=Team_A":                 "not the name of a LocalQueue",
		"--namespace=a --queue-name=builds --max-running=1": "use one of the two",
		"--namespace=a --log-lines=-1":                      "0 or more",
		"--namespace=a --image-mirror=https://mirror/hub":   "without a scheme",
		"--namespace=a " +
			"--max-isolated-per-namespace=few": `--max-isolated-per-namespace "few": write it like runs=8`,
		"--namespace=a --build-runtime-class=G_visor": "is not the name of a RuntimeClass",
		"--namespace=a --log-level=loud":              "use debug",
		"--namespace=a --shard=a": "write it as " +
			"sharding.fluxcd.io/key=a",
		"--namespace=a --shard=!k --max-running=1": "limit all with --queue-name",
		"--namespace=a --shard=k=Team_A":           "lower-case letters",
		"push-layout --layout=a --digest=b":        "--image are required",
		"--namespace=a --controllers=sources":      "requires --artifact-dir",
		"--namespace=a --controllers=sources --artifact-dir=d": "--artifact-advertised-address " +
			"is missing",
		"connect": "an address to connect to",
		"--namespace=a --controllers=sources --artifact-dir=d " +
			"--artifact-address=9090": "write it as :9090",
		"--namespace=a --controllers=sources --artifact-dir=d " +
			"--artifact-advertised-address=http://x": "write it as armature-sources",
		"--namespace=a --controllers=sources --artifact-dir=d --artifact-advertised-address=x " +
			"--source-hosts=": "--source-hosts is empty",
		"--namespace=a --controllers=catalog " +
			"--catalog-server-period=-1m": "--catalog-server-period -1m0s: use a positive duration",
		"--namespace=a --controllers=catalog " +
			"--catalog-concurrency=0": "--catalog-concurrency 0: use 1 or more",
		"--namespace=a --controllers=trees":           "use [builds catalog sources]",
		"push-layout extra":                           "only flags",
		"push-layout --nonsense":                      "unknown flag",
		"pack-source --from=a":                        "--digest-file are required",
		"pack-source extra":                           "only flags",
		"pack-source --keep-git=perhaps":              "invalid argument",
		"unpack-source --from=a --to=b":               "--digest are required",
		"base-images --record=a":                      "--result-file are required",
		"--namespace=a --git-allow-network=localhost": `--git-allow-network "localhost": write it as 10.0.0.0/8`,
		"--namespace=a --attest-key=k8s://a/b":        "is not the name of a Secret, nor a KMS URI",
		"--namespace=a --attest-key=../x://a":         "is not the name of a Secret, nor a KMS URI",
		"--namespace=a --attest-fulcio-url=https://f": "requires --attest-timestamp-url",
		"--namespace=a --attest-fulcio-url=https://f " +
			"--attest-timestamp-url=https://t": "requires --attest-trusted-root",
		"--namespace=a --attest-fulcio-url=f --attest-timestamp-url=https://t " +
			"--attest-trusted-root=r": "write it as https://HOST",
		"--namespace=a --attest-fulcio-url=https://f --attest-timestamp-url=https://t " +
			"--attest-trusted-root=r --attest-key=k": "either a key attests",
		"--namespace=a " +
			"--attest-trusted-root=r": "requires --attest-fulcio-url",
		"--namespace=a " +
			"--summary-policy=a/b": "is not the name of a ConfigMap",
	} {
		cmd := command()
		cmd.SetArgs(strings.Fields(args))
		if err := cmd.Execute(); !errors.As(err, new(usageError)) ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
}

// Git servers at the node itself or at a cloud's metadata are refused with the
// error that the controller reports; a network that was allowed is not.
func TestGitDial(t *testing.T) {
	for _, address := range []string{"127.0.0.1:1", "[::1]:1", "169.254.169.254:80"} {
		if _, err := gitDial(nil)(t.Context(), "tcp", address); !errors.Is(err,
			gitremote.ErrForbiddenAddress) {
			t.Errorf("%s: %v", address, err)
		}
	}
	allowed := []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	if _, err := gitDial(allowed)(t.Context(), "tcp", "127.0.0.1:1"); err == nil ||
		errors.Is(err, gitremote.ErrForbiddenAddress) {
		t.Errorf("an allowed network: %v", err)
	}
}

// The console shows the runs of the namespace that the kustomize bases make, whose catalog has no
// flag for it.
func TestIsolatedRuns(t *testing.T) {
	for _, c := range []struct {
		named   string
		watched []string
		want    string
	}{{"", nil, "armature-builds"}, {"other", nil, "other"}, {"", []string{"team1"}, ""},
		{"other", []string{"team1"}, "other"}} {
		if got := isolatedRuns(c.named, c.watched); got != c.want {
			t.Errorf("%q, %v: %q, want %q", c.named, c.watched, got, c.want)
		}
	}
}

// TestMemoryLimit expects four fifths of GOMEMLIMIT, and no limit without it.
func TestMemoryLimit(t *testing.T) {
	before := debug.SetMemoryLimit(-1)
	t.Cleanup(func() { debug.SetMemoryLimit(before) })
	for given, want := range map[int64]int64{500 << 20: 400 << 20, math.MaxInt64: math.MaxInt64} {
		debug.SetMemoryLimit(given)
		limitMemory()
		if got := debug.SetMemoryLimit(-1); got != want {
			t.Errorf("GOMEMLIMIT %d becomes %d, want %d", given, got, want)
		}
	}
}
