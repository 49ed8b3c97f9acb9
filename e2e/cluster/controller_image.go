//go:build linux

package cluster

import (
	"archive/tar"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// controllerImage is that of armature-controller as .ko.yaml makes it for a release:
// the program where ko puts it, on a base that has certificates and a user without
// rights.
func controllerImage() image { return staticImage("armature-controller", "armature-controller") }

// staticImage is that of a controller, where ko would put it.
func staticImage(name, source string) image {
	program := "/ko-app/" + name
	return image{
		name: name, static: true,
		programs: map[string]string{program: source},
		config:   v1.Config{User: "65532", Entrypoint: []string{program}, Env: []string{searchPath, "SSL_CERT_FILE=" + certificatesFile}},
	}
}

const certificatesFile = "/etc/ssl/certs/ca-certificates.crt"

// addBase adds what a static base image has.
func (c Cluster) addBase(files *archive) error {
	certificates, err := c.certificates()
	if err != nil {
		return err
	}
	files.dir("/tmp", 0o1777)
	files.file("/etc/passwd", 0o644, []byte("root:x:0:0:root:/root:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin\n"))
	files.file("/etc/group", 0o644, []byte("root:x:0:\nnonroot:x:65532:\n"))
	files.file(certificatesFile, 0o644, certificates)
	return nil
}

// certificates are those of the public authorities, as Debian's package has them: one
// after the other, in the order of their names.
func (c Cluster) certificates() ([]byte, error) {
	root, err := c.debian("git", "ca-certificates", "openssh-client") // as for the image of git
	if err != nil {
		return nil, err
	}
	f, err := os.Open(root)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	found := map[string]string{}
	var names []string
	for entries := tar.NewReader(f); ; {
		entry, err := entries.Next()
		if err == io.EOF {
			break
		} else if err != nil {
			return nil, fmt.Errorf("looking for certificates in %s: %w", root, err)
		}
		name := path.Clean(entry.Name)
		if !strings.HasPrefix(name, "usr/share/ca-certificates/mozilla/") || path.Ext(name) != ".crt" {
			continue
		}
		text, err := io.ReadAll(entries)
		if err != nil {
			return nil, fmt.Errorf("reading %s of %s: %w", name, root, err)
		}
		found[name], names = string(text), append(names, name)
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("%s has no certificates", root)
	}
	slices.Sort(names)
	var all strings.Builder
	for _, name := range names {
		all.WriteString(strings.TrimSpace(found[name]) + "\n")
	}
	return []byte(all.String()), nil
}
