package main

import (
	"errors"
	"fmt"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/armature-dev/armature/builds/attest/attester"
	"github.com/armature-dev/armature/render/deliver/sign"
)

// attestOptions say who attests what builds of modes with attest: true have made.
type attestOptions struct {
	key, summaryPolicy string
	keyless            attester.Keyless
}

func (a *attestOptions) flags(f *pflag.FlagSet) {
	f.StringVar(&a.key, "attest-key", attester.DefaultKey,
		"key that attests: a Secret in the controller's namespace, as cosign generate-key-pair "+
			"makes it, or a KMS URI, such as awskms:///alias/attest, whose program "+
			"sigstore-kms-awskms is on the PATH")
	f.StringVar(&a.keyless.Fulcio, "attest-fulcio-url", "",
		"authority that certifies the controller's identity, which then attests instead of a "+
			"key; requires --attest-timestamp-url and --attest-trusted-root")
	f.StringVar(&a.keyless.Timestamps, "attest-timestamp-url", "",
		"timestamp authority (RFC 3161) that says when the identity signed")
	f.StringVar(&a.keyless.TrustedRoot, "attest-trusted-root", "",
		"file with a trusted root of Sigstore in JSON, which vouches for both authorities")
	f.StringVar(&a.keyless.Token, "attest-identity-token", "/var/run/secrets/sigstore/token",
		"file with the controller's OpenID token for the audience sigstore, which is read "+
			"for each run")
	f.StringVar(&a.summaryPolicy, "summary-policy", "",
		"ConfigMap in the controller's namespace with a VerifyPolicy; attested images that it "+
			"accepts get a verification summary (VSA)")
}

// set says in o who attests. A flag that would do nothing is an error.
func (a *attestOptions) set(given *pflag.FlagSet, o *attester.Options) error {
	switch {
	case sign.KMSProgram(a.key) == "" && len(validation.IsDNS1123Subdomain(a.key)) > 0:
		return fmt.Errorf("--attest-key %q is not the name of a Secret, nor a KMS URI such as "+
			"awskms:///alias/attest", a.key)
	case a.summaryPolicy != "" && len(validation.IsDNS1123Subdomain(a.summaryPolicy)) > 0:
		return fmt.Errorf("--summary-policy %q is not the name of a ConfigMap", a.summaryPolicy)
	}
	o.Key, o.SummaryPolicy = a.key, a.summaryPolicy
	return a.setKeyless(given, o)
}

// setKeyless says in o that an identity attests, where one is given with all that it needs.
func (a *attestOptions) setKeyless(given *pflag.FlagSet, o *attester.Options) error {
	k := a.keyless
	if k.Fulcio == "" {
		for _, name := range []string{"attest-timestamp-url", "attest-trusted-root",
			"attest-identity-token"} {
			if given.Changed(name) {
				return fmt.Errorf("--%s requires --attest-fulcio-url", name)
			}
		}
		return nil
	}
	switch {
	case given.Changed("attest-key"):
		return errors.New(
			"--attest-key and --attest-fulcio-url: either a key attests or the identity")
	case k.Timestamps == "":
		return errors.New("--attest-fulcio-url requires --attest-timestamp-url: without a " +
			"timestamp nobody accepts a signature once its certificate ends, after minutes")
	case k.TrustedRoot == "" || k.Token == "":
		return errors.New(
			"--attest-fulcio-url requires --attest-trusted-root and --attest-identity-token")
	}
	for _, authority := range [][2]string{{"attest-fulcio-url", k.Fulcio},
		{"attest-timestamp-url", k.Timestamps}} {
		if err := sign.CheckAuthority(authority[1]); err != nil {
			return fmt.Errorf("--%s %w", authority[0], err)
		}
	}
	o.Keyless = &k
	return nil
}
