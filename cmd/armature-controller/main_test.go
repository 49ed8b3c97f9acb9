package main

import (
	"errors"
	"strings"
	"testing"
)

// A call that cannot work is refused before anything is asked of a cluster.
func TestUsage(t *testing.T) {
	t.Setenv("KUBECONFIG", "/nonexistent")
	for args, want := range map[string]string{
		"":                                      "--namespace is missing",
		"extra":                                 "flags alone",
		"--nonsense":                            "unknown flag",
		"--namespace=Bad":                       "no name of a namespace",
		"--namespace=a --watch-namespaces=b,,c": `"" is no name`,
		"--namespace=a --create-build-service-account":    "goes with --build-service-account",
		"--namespace=a --build-timeout=-1m":               "positive duration",
		"--namespace=a --concurrency=0":                   "1 or more",
		"--namespace=a --qps=0":                           "positive number",
		"--namespace=a --log-lines=-1":                    "0 or more",
		"--namespace=a --image-mirror=https://mirror/hub": "without a scheme",
		"--namespace=a --log-level=loud":                  "use debug",
	} {
		cmd := command()
		cmd.SetArgs(strings.Fields(args))
		if err := cmd.Execute(); !errors.As(err, new(usageError)) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
}
