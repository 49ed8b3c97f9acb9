package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/armature-dev/armature/cmd/internal/cli"
	"github.com/armature-dev/armature/functions/a2a"
	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/api/keys"
	"github.com/armature-dev/armature/functions/finding"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/text"
	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/deliver/pin"
	"github.com/armature-dev/armature/render/deliver/sign"
)

func cardCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "card", Short: "Sign agent cards",
		Example: "  armature card sign apps/ --key cosign.key"}
	cli.Group(cmd, cardSignCommand())
	return cmd
}

// cardSigning is `armature card sign`.
type cardSigning struct {
	cli.Input
	key string
}

func cardSignCommand() *cobra.Command {
	var s cardSigning
	cmd := &cobra.Command{
		Use:   "sign PATH|CARD.json",
		Short: "Sign the agent cards of a package, or a card in a file",
		Long: `Sign renders PATH and signs the generated agent cards (agent-card.json) as A2A 1.0 specifies:
with a JSON Web Signature over the card in canonical form. It writes the signatures to
armature.lock. Every render applies them, without a key. Signing again signs only cards that
have changed or that another key has signed, and removes the signatures of cards that no
longer exist.

If the argument is the file of a card, sign prints the signed card.`,
		Example: `  armature card sign apps/ --key cosign.key
  armature card sign apps/ --key awskms:///alias/cards
  armature card sign agent-card.json --key cosign.key > signed-card.json`,
		Args: cli.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, given []string) error {
			switch {
			case given[0] == "-":
				return cli.Usagef("standard input has no lock: name the folder of the package, " +
					"or the file of a card")
			case filepath.Ext(given[0]) == ".json":
				return s.file(cmd, given[0])
			}
			return s.packageCards(cmd, given[0])
		},
	}
	s.PackageFlags(cmd, "PATH")
	cmd.Flags().StringVar(&s.key, "key", "", "private key: a file, k8s://namespace/secret or KMS URI")
	return cmd
}

// file signs one card.
func (s *cardSigning) file(cmd *cobra.Command, file string) error {
	card, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	payload, err := a2a.Payload(card)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	session, err := cli.OpenKey(cmd.Context(), s.key)
	if err != nil {
		return err
	}
	made, err := session.Card(cmd.Context(), payload)
	if err != nil {
		return err
	}
	if card, err = a2a.Sign(card, []a2a.Signature{made}); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	_, err = cmd.OutOrStdout().Write(append(bytes.TrimSpace(card), '\n'))
	return err
}

func (s *cardSigning) packageCards(cmd *cobra.Command, path string) error {
	src, opt, _, activity, err := s.Load(cmd, path, "", "rendering")
	if err != nil {
		return err
	}
	cards, findings, err := cardsOf(src, opt)
	activity.End()
	if err != nil {
		return err
	}
	if err := s.Report(cmd, findings); err != nil {
		return err
	}
	before := api.ImageLockSpec{}
	if opt.Lock != nil {
		before = opt.Lock.Spec
	}
	session, err := cli.OpenKey(cmd.Context(), s.key)
	if err != nil {
		return err
	}
	after := before
	signed := 0
	if after.Cards, signed, err = signCards(cmd.Context(), session, cards, before.Cards); err != nil {
		return err
	}
	file, err := lockOf(path, s.Lock)
	if err != nil {
		return err
	}
	if !slices.Equal(before.Cards, after.Cards) {
		if err := pin.Write(file, opt.Lock, after); err != nil {
			return fmt.Errorf("writing %s: %w", file, err)
		}
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "%s: %s, %d signed now\n", file,
		text.Count(len(cards), "agent card"), signed)
	return nil
}

// packagedCard is a card in a ConfigMap of a package.
type packagedCard struct {
	name    string
	payload []byte
}

// cardsOf returns the agent cards that a render generates, without duplicates.
func cardsOf(src render.Source,
	opt render.Options) (cards []packagedCard, findings []finding.Finding, err error) {
	opt.ObjectsOnly = true
	result, err := render.Run(src, opt)
	if err != nil || finding.Failed(result.Findings) {
		return nil, result.Findings, err
	}
	known := make(map[string]bool)
	for _, f := range result.Files {
		render.Objects(f, func(o *krm.Object) {
			at := o.Get("data", a2a.CardFile)
			if o.Kind != "ConfigMap" || !at.IsScalar() {
				return
			}
			if !o.Get("metadata", "annotations", keys.RenderedFor).Exists() {
				findings = append(findings, o.Finding(finding.Info, "card/authored", at,
					"this agent card is not signed, because it is not generated",
					"sign its file: armature card sign FILE.json"))
				return
			}
			card := packagedCard{}
			var head struct{ Name string }
			var problem error
			if card.payload, problem = a2a.Payload([]byte(at.Text())); problem == nil {
				problem = json.Unmarshal(card.payload, &head)
			}
			if problem != nil {
				findings = append(findings, o.Finding(finding.Error, "card/payload", at,
					"this agent card cannot be signed: "+problem.Error(), "correct the card"))
				return
			}
			card.name = head.Name
			if digest := a2a.Digest(card.payload); !known[digest] {
				known[digest] = true
				cards = append(cards, card)
			}
		})
	}
	return cards, findings, nil
}

// signCards signs cards and returns their entries for the lock. Signatures by the same key stay.
func signCards(ctx context.Context, session *sign.Session, cards []packagedCard,
	before []api.LockedCard) (after []api.LockedCard, signed int, err error) {
	header, err := session.CardHeader()
	if err != nil {
		return nil, 0, err
	}
	for _, card := range cards {
		entry := api.LockedCard{Name: card.name, Payload: a2a.Digest(card.payload), Protected: header}
		i := slices.IndexFunc(before, func(have api.LockedCard) bool {
			return have.Payload == entry.Payload && have.Protected == header
		})
		if i >= 0 {
			after = append(after, before[i])
			continue
		}
		made, err := session.Card(ctx, card.payload)
		if err != nil {
			return nil, signed, err
		}
		entry.Signature = made.Signature
		after = append(after, entry)
		signed++
	}
	slices.SortFunc(after, func(a, b api.LockedCard) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Payload, b.Payload))
	})
	return after, signed, nil
}
