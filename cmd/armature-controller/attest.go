package main

import (
	"errors"
	"fmt"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/armature-dev/armature/builds/attest/attester"
	"github.com/armature-dev/armature/render/deliver/sign"
)

// attestFlags adds the flags that say who attests the images of modes with attest: true.
func attestFlags(f *pflag.FlagSet, o *attester.Options) {
	f.StringVar(&o.Key, "attest-key", attester.DefaultKey,
		"key that attests: a Secret in the controller's namespace, as cosign generate-key-pair "+
			"makes it, or a KMS URI, such as awskms:///alias/attest, whose program "+
			"sigstore-kms-awskms is on the PATH")
	f.StringVar(&o.Keyless.Fulcio, "attest-fulcio-url", "",
		"authority that certifies the controller's identity, which then attests instead of a "+
			"key; requires --attest-timestamp-url and --attest-trusted-root")
	f.StringVar(&o.Keyless.Timestamps, "attest-timestamp-url", "",
		"timestamp authority (RFC 3161) that says when the identity signed")
	f.StringVar(&o.Keyless.TrustedRoot, "attest-trusted-root", "",
		"file with a trusted root of Sigstore in JSON, which vouches for both authorities")
	f.StringVar(&o.Keyless.Token, "attest-identity-token", "/var/run/secrets/sigstore/token",
		"file with the controller's OpenID token for the audience sigstore, which is read "+
			"for each run")
	f.StringVar(&o.SummaryPolicy, "summary-policy", "",
		"ConfigMap in the controller's namespace with a VerifyPolicy; attested images that it "+
			"accepts get a verification summary (VSA)")
}

// checkAttest refuses flags of attestFlags that are wrong or have no effect.
func checkAttest(given *pflag.FlagSet, o attester.Options) error {
	switch {
	case sign.KMSProgram(o.Key) == "" && len(validation.IsDNS1123Subdomain(o.Key)) > 0:
		return fmt.Errorf("--attest-key %q is not the name of a Secret, nor a KMS URI such as "+
			"awskms:///alias/attest", o.Key)
	case o.SummaryPolicy != "" && len(validation.IsDNS1123Subdomain(o.SummaryPolicy)) > 0:
		return fmt.Errorf("--summary-policy %q is not the name of a ConfigMap", o.SummaryPolicy)
	}
	k := o.Keyless
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
	return nil
}
