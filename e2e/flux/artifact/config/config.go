// Package config has the settings of the storage of artifacts.
package config

import (
	"net"

	"github.com/spf13/pflag"
)

// Options of the storage. BindFlags sets the defaults.
type Options struct {
	// StoragePath is the folder of the archives.
	StoragePath string
	// StorageAddress is where they are served; a port 0 is a free one.
	StorageAddress string
	// StorageAdvAddress is the host, with or without a port, in the URLs of archives;
	// empty is the address of Listener.
	StorageAdvAddress string
	// Listener listens on StorageAddress. storage.New sets it, since the URLs of
	// archives may have its port, and server.Start serves on it.
	Listener net.Listener
	// ArtifactDigestAlgo is sha256, sha384 or sha512.
	ArtifactDigestAlgo string
}

// BindFlags adds the flags, whose names are Flux's.
func (o *Options) BindFlags(f *pflag.FlagSet) {
	f.StringVar(&o.StoragePath, "storage-path", "", "folder of the archives")
	f.StringVar(&o.StorageAddress, "storage-addr", ":9090", "where archives are served")
	f.StringVar(&o.StorageAdvAddress, "storage-adv-addr", "",
		"host in the URLs of archives; empty is the address where they are served")
	f.StringVar(&o.ArtifactDigestAlgo, "artifact-digest-algo", "sha256", "sha256, sha384 or sha512")
}
