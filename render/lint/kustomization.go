package lint

import (
	"path"

	"sigs.k8s.io/kustomize/kyaml/yaml"

	"github.com/armature-dev/armature/functions/krm"
	rules "github.com/armature-dev/armature/functions/lint"
	"github.com/armature-dev/armature/render"
)

// kustomization are the fields of a kustomization that names depend on.
type kustomization struct {
	NamePrefix string      `yaml:"namePrefix"`
	NameSuffix string      `yaml:"nameSuffix"`
	Namespace  string      `yaml:"namespace"`
	Resources  []string    `yaml:"resources"`
	Bases      []string    `yaml:"bases"`
	Components []string    `yaml:"components"`
	ConfigMaps []generator `yaml:"configMapGenerator"`
	Secrets    []generator `yaml:"secretGenerator"`
	Images     []struct {
		Name    string `yaml:"name"`
		NewName string `yaml:"newName"`
		NewTag  string `yaml:"newTag"`
		Digest  string `yaml:"digest"`
	} `yaml:"images"`
}

type generator struct {
	Name      string `yaml:"name"`
	Namespace string `yaml:"namespace"`
}

// kustomizations reads those of a source. One that cannot be read, and what one
// names outside of the source, change nothing: findings stay.
func kustomizations(src render.Source) (all []*rules.Kustomization, err error) {
	folders, files := make(map[string]*rules.Kustomization), make(map[string]bool)
	names := make(map[*rules.Kustomization][]string)
	for _, f := range src.Files {
		files[f.Path] = true
		switch path.Base(f.Path) {
		case "kustomization.yaml", "kustomization.yml", "Kustomization":
		default:
			continue
		}
		data, err := src.Content(f.Path)
		if err != nil {
			return nil, err
		}
		var read kustomization
		if yaml.Unmarshal(data, &read) != nil {
			continue
		}
		k := read.names(f.Path)
		all, folders[path.Dir(f.Path)] = append(all, k), k
		for _, list := range [...][]string{read.Resources, read.Bases, read.Components} {
			names[k] = append(names[k], list...)
		}
	}
	for _, k := range all {
		for _, name := range names[k] {
			name = path.Join(path.Dir(k.File), name)
			if base := folders[name]; base != nil {
				k.Bases = append(k.Bases, base)
			} else if files[name] {
				k.Manifests = append(k.Manifests, name)
			}
		}
	}
	return all, nil
}

func (read *kustomization) names(file string) *rules.Kustomization {
	k := &rules.Kustomization{File: file, NamePrefix: read.NamePrefix, NameSuffix: read.NameSuffix, Namespace: read.Namespace}
	for _, g := range read.ConfigMaps {
		k.Generated = append(k.Generated, rules.Generated{Kind: "ConfigMap", Namespace: g.Namespace, Name: g.Name})
	}
	for _, g := range read.Secrets {
		k.Generated = append(k.Generated, rules.Generated{Kind: "Secret", Namespace: g.Namespace, Name: g.Name})
	}
	for _, i := range read.Images {
		k.Images = append(k.Images, rules.KustomizeImage{Name: i.Name, NewName: i.NewName, NewTag: i.NewTag, Digest: i.Digest})
	}
	return k
}

// unread gives the rules the text of files that the render could not read.
func (l *linter) unread(findings []krm.Finding) {
	seen := make(map[string]bool)
	for _, f := range findings {
		if f.Rule != render.SyntaxRule || seen[f.File] {
			continue
		}
		seen[f.File] = true
		if text, err := l.src.Content(f.File); err == nil {
			l.rules.Unread(text)
		}
	}
}
