package main

import (
	"bytes"
	"cmp"
	"context"
	"debug/buildinfo"
	"embed"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"text/template"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"

	"github.com/armature-dev/armature/builds/compose"
	"github.com/armature-dev/armature/e2e/base"
	"github.com/armature-dev/armature/templates"
)

// below reads the files of a folder, through links, and prefixes their names.
func below(folder, as string) (files []base.File, err error) {
	entries, err := os.ReadDir(folder)
	for _, entry := range entries {
		from, name := filepath.Join(folder, entry.Name()), as+entry.Name()
		info, err := os.Stat(from)
		if err != nil {
			return nil, err
		}
		if info.IsDir() {
			more, err := below(from, name+"/")
			if err != nil {
				return nil, err
			}
			files = append(files, more...)
			continue
		}
		data, err := os.ReadFile(from)
		if err != nil {
			return nil, err
		}
		files = append(files, base.File{Name: name, Mode: 0o644, Data: data})
	}
	return files, err
}

// archives writes the archives of each platform, with their bills of materials, and the manifests
// of package managers.
func (r *release) archives(ctx context.Context) error {
	docs, err := r.docs(ctx)
	if err != nil {
		return err
	}
	type packed struct{ URL, Sum string }
	type platform struct {
		OS, Arch          string
		Armature, Kubectl packed
	}
	var platforms []platform
	for _, p := range r.platforms {
		system, cpu, _ := strings.Cut(p, "/")
		made := map[string]packed{}
		// krew accepts archives with one program.
		for kind, programs := range map[string][]string{"armature": {"armature", "armature-fn"},
			"kubectl-armature": {"armature"}} {
			files := slices.Clone(docs)
			if kind != "armature" {
				files = slices.DeleteFunc(files, func(f base.File) bool { return f.Name != "LICENSE" })
			}
			for _, name := range programs {
				data, err := os.ReadFile(r.program(p, name))
				if err != nil {
					return err
				}
				files = append(files, base.File{Name: name, Mode: 0o755, Data: data})
			}
			data, err := base.Pack(files, r.time)
			if err != nil {
				return err
			}
			name := fmt.Sprintf("%s_%s_%s_%s.tar.gz", kind, r.number(), system, cpu)
			if err := r.write(name, data); err != nil {
				return err
			}
			if err := r.sbom(name, sum(data), p, programs...); err != nil {
				return err
			}
			made[kind] = packed{home + "/releases/download/" + r.version + "/" + name, sum(data)}
		}
		platforms = append(platforms,
			platform{system, cpu, made["armature"], made["kubectl-armature"]})
	}
	slices.SortFunc(platforms, func(a, b platform) int {
		return cmp.Compare(a.OS+a.Arch, b.OS+b.Arch)
	})
	var pages []string
	for _, f := range docs {
		if strings.HasPrefix(f.Name, "man/") {
			pages = append(pages, f.Name)
		}
	}
	all, err := template.ParseFS(packages, "packages/*")
	if err != nil {
		return err
	}
	for _, t := range all.Templates() {
		var text bytes.Buffer
		if err := t.Execute(&text, map[string]any{"Home": home, "Version": r.version,
			"Number": r.number(), "Platforms": platforms, "Pages": pages}); err != nil {
			return err
		}
		if err := r.write(t.Name(), text.Bytes()); err != nil {
			return err
		}
	}
	return nil
}

// packages holds the manifests for krew, Homebrew and the catalogs of plugins of Flux's
// CLI (RFC-0013).
//
//go:embed packages
var packages embed.FS

// docs returns the files that archives have in addition to the programs. A program for this machine
// generates the completions and the manual.
func (r *release) docs(ctx context.Context) ([]base.File, error) {
	made := filepath.Join(r.programs, "docs")
	if err := r.build(ctx, host, filepath.Join(made, "bin"), "-tags", "man",
		"./cmd/armature"); err != nil {
		return nil, err
	}
	program := filepath.Join(made, "bin", "armature")
	if _, err := r.output(ctx, program, "man", filepath.Join(made, "man")); err != nil {
		return nil, err
	}
	files, err := below(filepath.Join(made, "man"), "man/")
	if err != nil {
		return nil, err
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		text, err := r.output(ctx, program, "completion", shell)
		if err != nil {
			return nil, err
		}
		files = append(files, base.File{Name: "completions/armature." + shell, Mode: 0o644,
			Data: []byte(text + "\n")})
	}
	for _, name := range []string{"LICENSE", "README.md", "CHANGELOG.md"} {
		data, err := os.ReadFile(filepath.Join(r.tree, name))
		if err != nil {
			return nil, err
		}
		files = append(files, base.File{Name: name, Mode: 0o644, Data: data})
	}
	return files, nil
}

// sbom writes the bill of materials of an archive or an image: the modules that its
// programs record, in SPDX 2.3.
func (r *release) sbom(name, sha256, platform string, programs ...string) error {
	type item = map[string]any
	const document, itself = "SPDXRef-DOCUMENT", "SPDXRef-artifact"
	all := []item{{"SPDXID": itself, "name": name, "versionInfo": r.version,
		"downloadLocation": "NOASSERTION",
		"checksums":        []item{{"algorithm": "SHA256", "checksumValue": sha256}}}}
	relations := []item{{"spdxElementId": document, "relationshipType": "DESCRIBES",
		"relatedSpdxElement": itself}}
	modules := map[string]string{}
	for _, program := range programs {
		info, err := buildinfo.ReadFile(r.program(platform, program))
		if err != nil {
			return err
		}
		modules["stdlib"] = strings.TrimPrefix(info.GoVersion, "go")
		modules[info.Main.Path] = r.version
		for _, m := range info.Deps {
			if m.Replace != nil {
				m = m.Replace
			}
			modules[m.Path] = m.Version
		}
	}
	for i, module := range slices.Sorted(maps.Keys(modules)) {
		id := fmt.Sprintf("SPDXRef-module-%d", i)
		all = append(all, item{"SPDXID": id, "name": module, "versionInfo": modules[module],
			"downloadLocation": "NOASSERTION",
			"externalRefs": []item{{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
				"referenceLocator": "pkg:golang/" + module + "@" + modules[module]}}})
		relations = append(relations, item{"spdxElementId": itself, "relationshipType": "CONTAINS",
			"relatedSpdxElement": id})
	}
	text, err := json.MarshalIndent(item{"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0",
		"SPDXID": document, "name": name, "documentNamespace": home + "/sbom/" + sha256,
		"creationInfo": item{"created": r.time.Format(time.RFC3339),
			"creators": []string{"Tool: armature-release"}}, "packages": all,
		"relationships": relations}, "", " ")
	if err != nil {
		return err
	}
	return r.write(name+".sbom.json", text)
}

// chartName is the repository of the chart in the registry.
const chartName = "charts/armature"

// images builds the images of the controllers and of the functions, and the files that name them by
// digest: the chart and the manifests. All images are in the OCI layout images, too.
func (r *release) images() ([]image, error) {
	to, err := layout.Write(filepath.Join(r.dir, "images"), empty.Index)
	if err != nil {
		return nil, err
	}
	var all []image
	for _, program := range []string{"armature-controller", "armature-fn"} {
		made, index := image{name: program, tag: r.version, sboms: map[string]v1.Hash{}},
			v1.ImageIndex(empty.Index)
		for _, platform := range r.platforms {
			system, cpu, _ := strings.Cut(platform, "/")
			if system != "linux" {
				continue
			}
			one, err := r.image(program, platform)
			if err != nil {
				return nil, err
			}
			digest, err := one.Digest()
			if err != nil {
				return nil, err
			}
			name := fmt.Sprintf("%s-image_%s_%s_%s", program, r.number(), system, cpu)
			if err := r.sbom(name, digest.Hex, platform, program); err != nil {
				return nil, err
			}
			made.sboms[name+".sbom.json"] = digest
			index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: one,
				Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: system, Architecture: cpu}}})
		}
		if len(made.sboms) == 0 {
			return nil, fmt.Errorf("none of the platforms %s has images\n  hint: add linux/amd64",
				strings.Join(r.platforms, " "))
		}
		made.content = index
		if made.digest, err = index.Digest(); err != nil {
			return nil, err
		}
		if err := to.AppendIndex(index, layout.WithAnnotations(r.published(made))); err != nil {
			return nil, err
		}
		all = append(all, made)
	}
	controller := compose.ControllerRepository + "@" + all[0].digest.String()
	manifests, err := manifests(controller)
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(manifests)) {
		if err := r.write(name, manifests[name]); err != nil {
			return nil, err
		}
	}
	packed, metadata, err := r.chart(controller)
	if err != nil {
		return nil, err
	}
	if err := r.write("armature-"+r.number()+".tgz", packed); err != nil {
		return nil, err
	}
	config, err := yaml.YAMLToJSON(metadata)
	if err != nil {
		return nil, err
	}
	chart, err := helmImage(packed, config)
	if err != nil {
		return nil, err
	}
	made := image{name: chartName, tag: r.number(), content: chart}
	if made.digest, err = chart.Digest(); err != nil {
		return nil, err
	}
	return append(all, made), to.AppendImage(chart, layout.WithAnnotations(r.published(made)))
}

// published adds an image to the subjects of the provenance, and returns its annotations in a
// layout.
func (r *release) published(i image) map[string]string {
	name := published + "/" + i.name
	r.subjects = append(r.subjects, subject{name, map[string]string{"sha256": i.digest.Hex}})
	return map[string]string{"org.opencontainers.image.ref.Name": name + ":" + i.tag}
}

// image builds the image of a program for a platform: the program where build steps expect it,
// certificates to verify servers, and a user without rights.
func (r *release) image(program, platform string) (v1.Image, error) {
	data, err := os.ReadFile(r.program(platform, program))
	if err != nil {
		return nil, err
	}
	at := "ko-app/" + program
	var layers []mutate.Addendum
	for _, files := range [][]base.File{base.Base(),
		{{Name: "ko-app/", Mode: 0o755}, {Name: at, Mode: 0o755, Data: data}}} {
		layer, err := base.Layer(files, r.time, tarball.WithMediaType(types.OCILayer))
		if err != nil {
			return nil, err
		}
		layers = append(layers, mutate.Addendum{Layer: layer,
			History: v1.History{Created: v1.Time{Time: r.time},
				CreatedBy: home + "/tree/main/e2e/release"}})
	}
	system, cpu, _ := strings.Cut(platform, "/")
	made, err := mutate.ConfigFile(mutate.ConfigMediaType(mutate.MediaType(empty.Image,
		types.OCIManifestSchema1), types.OCIConfigJSON), &v1.ConfigFile{
		OS: system, Architecture: cpu, Created: v1.Time{Time: r.time},
		RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{User: base.User, Entrypoint: []string{"/" + at},
			Env: []string{"PATH=/ko-app", "SSL_CERT_FILE=/" + base.Certificates},
			Labels: map[string]string{"org.opencontainers.image.source": home,
				"org.opencontainers.image.version":  r.version,
				"org.opencontainers.image.revision": r.commit}},
	})
	if err != nil {
		return nil, err
	}
	return mutate.Append(made, layers...)
}

// manifests returns the manifests of the controllers, which name their image, as files of a
// release.
func manifests(controller string) (map[string][]byte, error) {
	disk := filesys.MakeFsInMemory()
	err := fs.WalkDir(templates.Files, ".", func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := templates.Files.ReadFile(file)
		if err != nil {
			return err
		}
		return disk.WriteFile("/armature/"+file, data)
	})
	if err != nil {
		return nil, err
	}
	name, digest, _ := strings.Cut(controller, "@")
	all := map[string][]byte{}
	for _, part := range []string{"", "catalog", "sources"} {
		for _, scope := range []string{"cluster", "namespaced"} {
			overlay, err := yaml.Marshal(
				map[string]any{"resources": []string{path.Join("../install", part, scope)},
					"images": []map[string]string{{"name": name, "digest": digest}}})
			if err != nil {
				return nil, err
			}
			if err := disk.WriteFile("/armature/overlay/kustomization.yaml", overlay); err != nil {
				return nil, err
			}
			objects, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(disk,
				"/armature/overlay")
			if err != nil {
				return nil, fmt.Errorf("the manifests of %s %s: %w", part, scope, err)
			}
			text, err := objects.AsYaml()
			if err != nil {
				return nil, err
			}
			all[strings.ReplaceAll("install-"+part+"-"+scope+".yaml", "--", "-")] = text
		}
	}
	return all, nil
}

// chart packs Helm's chart, which names the controller's image, and returns its Chart.yaml as well.
func (r *release) chart(controller string) (packed, metadata []byte, err error) {
	files, err := below(filepath.Join(r.tree, "templates", "chart"), "armature/")
	if err != nil {
		return nil, nil, err
	}
	for at, lines := range map[string][]string{
		"armature/Chart.yaml": {"\nversion: 0.0.0\n", "\nversion: " + r.number() + "\n",
			"\nappVersion: 0.0.0\n", "\nappVersion: " + r.version + "\n"},
		"armature/values.yaml": {"\nimage: \"\"\n", "\nimage: \"" + controller + "\"\n"},
	} {
		i := slices.IndexFunc(files, func(f base.File) bool { return f.Name == at })
		if i < 0 {
			return nil, nil, fmt.Errorf("the chart has no %s", at)
		}
		for ; len(lines) > 0; lines = lines[2:] {
			if !bytes.Contains(files[i].Data, []byte(lines[0])) {
				return nil, nil, fmt.Errorf("%s lacks the line %q, which a release replaces", at,
					lines[0])
			}
			files[i].Data = bytes.Replace(files[i].Data, []byte(lines[0]), []byte(lines[1]), 1)
		}
		if at == "armature/Chart.yaml" {
			metadata = files[i].Data
		}
	}
	packed, err = base.Pack(files, r.time)
	return packed, metadata, err
}

// helmImage returns a chart as an image for a registry. Its config is the chart's metadata.
func helmImage(packed, metadata []byte) (v1.Image, error) {
	layer := static.NewLayer(packed, "application/vnd.cncf.helm.chart.content.v1.tar+gzip")
	config := static.NewLayer(metadata, "application/vnd.cncf.helm.config.v1+json")
	manifest := v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1}
	for _, part := range []struct {
		content v1.Layer
		to      func(v1.Descriptor)
	}{{config, func(d v1.Descriptor) { manifest.Config = d }},
		{layer, func(d v1.Descriptor) { manifest.Layers = []v1.Descriptor{d} }}} {
		d, err := partial.Descriptor(part.content)
		if err != nil {
			return nil, err
		}
		part.to(*d)
	}
	text, err := json.Marshal(manifest)
	if err != nil {
		return nil, err
	}
	return partial.CompressedToImage(helmCore{text, metadata, layer})
}

// helmCore is the input of partial.CompressedToImage.
type helmCore struct {
	manifest, config []byte
	layer            v1.Layer
}

func (c helmCore) RawManifest() ([]byte, error)   { return c.manifest, nil }
func (c helmCore) RawConfigFile() ([]byte, error) { return c.config, nil }
func (c helmCore) MediaType() (types.MediaType, error) {
	return types.OCIManifestSchema1, nil
}
func (c helmCore) LayerByDigest(v1.Hash) (partial.CompressedLayer, error) { return c.layer, nil }
