package install

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"
)

// maxShard limits the length of a shard's name, which is a suffix of the names of Services.
const maxShard = validation.DNS1123LabelMaxLength - len("armature-controller-metrics-")

// checkShards returns an error for invalid shards, and for shards that lack a shared quota or
// store.
func (i Options) checkShards() error {
	for n, s := range i.Shards {
		switch {
		case len(validation.IsDNS1123Label(s)) > 0 || len(s) > maxShard:
			return fmt.Errorf("shards %q: use lower-case letters, digits and '-', at most %d", s,
				maxShard)
		case s == "metrics": // a Service of all shards has this name
			return errors.New("shards: a shard cannot be named metrics: use another name")
		case slices.Contains(i.Shards[:n], s):
			return fmt.Errorf("shards has %s twice: name each shard once", s)
		}
	}
	switch {
	case len(i.Shards) == 0:
	case i.Queue.MaxRunning > 0 || i.Queue.MaxRunningPerNamespace > 0:
		return errors.New("shards and maxRunning: a shard does not see the runs of others; limit " +
			"all with queueName, by a quota of Kueue")
	case i.Catalog.Install && i.Catalog.Secret == "":
		return errors.New("shards of the catalog share a PostgreSQL: set catalog.storeSecret")
	}
	return nil
}

var (
	healthArg  = regexp.MustCompile(`(?m)^( *)- --health-address=.*\n`)
	ownName    = regexp.MustCompile(`(?m)^  name: .*$`)
	webhookArg = regexp.MustCompile(`(?m)^ *- --webhook-address=.*\n`)
)

// sharded returns the manifests and those of each shard. Only the default shard serves webhooks.
func (i Options) sharded(manifests string) (string, error) {
	if len(i.Shards) == 0 {
		return manifests, nil
	}
	var out []string
	for doc := range strings.SplitSeq(manifests, "\n---\n") {
		var o struct {
			Kind     string
			Metadata struct{ Name string }
		}
		if err := yaml.Unmarshal([]byte(doc), &o); err != nil {
			return "", fmt.Errorf("reading a manifest: %w", err)
		}
		program := strings.TrimSuffix(o.Metadata.Name, "-metrics")
		if !slices.Contains([]string{"armature-controller", "armature-catalog", "armature-sources"},
			program) ||
			!slices.Contains([]string{"Deployment", "Service", "NetworkPolicy",
				"PodDisruptionBudget"}, o.Kind) {
			out = append(out, doc)
			continue
		}
		arg := func(text, shard string) string {
			return healthArg.ReplaceAllString(text, "${0}${1}- --shard="+shard+"\n")
		}
		out = append(out, arg(doc, "!sharding.fluxcd.io/key"))
		metadata, spec, _ := strings.Cut(webhookArg.ReplaceAllString(doc, ""), "\nspec:\n")
		for _, s := range i.Shards {
			named := ownName.ReplaceAllString(metadata, "${0}-"+s)
			pods := strings.NewReplacer("/name: "+program+"\n", "/name: "+program+"-"+s+"\n",
				"armature-sources.$", "armature-sources-"+s+".$").Replace(spec + "\n")
			out = append(out,
				arg(named+"\nspec:\n"+strings.TrimSuffix(pods, "\n"), "sharding.fluxcd.io/key="+s))
		}
	}
	return strings.Join(out, "\n---\n"), nil
}
