//go:build linux

package cluster

import (
	"bytes"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// controllerImage is that of armature-controller as e2e/release makes it for a release:
// the program, certificates and a user without rights.
func controllerImage() image { return staticImage("armature-controller", "armature-controller") }

// staticImage is that of a controller.
func staticImage(name, source string) image {
	program := "/ko-app/" + name
	return image{
		name: name, static: true,
		programs: map[string]string{program: source},
		config: v1.Config{User: "65532", Entrypoint: []string{program},
			Env: []string{searchPath, "SSL_CERT_FILE=" + certificatesFile}},
	}
}

const certificatesFile = "/etc/ssl/certs/ca-certificates.crt"

// addBase adds what a static base image has.
func addBase(cache string, files *archive) error {
	certificates, err := certificates(cache)
	if err != nil {
		return err
	}
	files.dir("/tmp", 0o1777)
	files.file("/etc/passwd", 0o644,
		[]byte("root:x:0:0:root:/root:/sbin/nologin\n"+
			"nonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin\n"))
	files.file("/etc/group", 0o644, []byte("root:x:0:\nnonroot:x:65532:\n"))
	files.file(certificatesFile, 0o644, certificates)
	return nil
}

// certificates are those of the public authorities, as Debian's package has them: one
// after the other, in the order of their names.
func certificates(cache string) ([]byte, error) {
	// as for the image of git
	root, err := debianFiles(cache, "git", "ca-certificates", "openssh-client")
	if err != nil {
		return nil, err
	}
	found, err := fromTar(root, func(name string) bool {
		return strings.HasPrefix(name, "usr/share/ca-certificates/mozilla/") && path.Ext(name) == ".crt"
	})
	if err != nil {
		return nil, err
	}
	var all bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(found)) {
		fmt.Fprintf(&all, "%s\n", bytes.TrimSpace(found[name]))
	}
	return all.Bytes(), nil
}
