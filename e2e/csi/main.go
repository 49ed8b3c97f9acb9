// Csi replaces SPIFFE's CSI driver, csi.spiffe.io: it mounts a folder of the node with sockets of
// the Workload API into pods, read-only. Its own socket, agent.sock, issues no identities; it
// accepts connections and closes them. SPIRE's agent may add another socket. (The driver's own
// module cannot be downloaded.)
//
//	csi KUBELET-ROOT FOLDER
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"
	"syscall"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

const name = "csi.spiffe.io"

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: csi KUBELET-ROOT FOLDER")
		os.Exit(2)
	}
	log.Fatal(run(os.Args[1], os.Args[2]))
}

func run(kubelet, folder string) error {
	api, err := listen(filepath.Join(folder, "agent.sock"))
	if err != nil {
		return err
	}
	if err := os.Chmod(api.Addr().String(), 0o777); err != nil { // pods of any user may connect
		return err
	}
	go func() {
		for {
			conn, err := api.Accept()
			if err != nil {
				log.Fatal(err)
			}
			conn.Close()
		}
	}()

	d := &driver{folder: folder, socket: filepath.Join(kubelet, "plugins", name, "csi.sock")}
	plugin, err := listen(d.socket)
	if err != nil {
		return err
	}
	register, err := listen(filepath.Join(kubelet, "plugins_registry", name+"-reg.sock"))
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	csi.RegisterIdentityServer(server, d)
	csi.RegisterNodeServer(server, d)
	registration.RegisterRegistrationServer(server, d)
	go func() { log.Fatal(server.Serve(register)) }()
	return server.Serve(plugin)
}

// listen listens on a new socket, and creates its folder.
func listen(socket string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(socket), 0o755); err != nil {
		return nil, err
	}
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	return net.Listen("unix", socket)
}

type driver struct {
	folder, socket string
	csi.UnimplementedIdentityServer
	csi.UnimplementedNodeServer
	registration.UnimplementedRegistrationServer
}

func (d *driver) GetInfo(context.Context,
	*registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{Type: registration.CSIPlugin, Name: name, Endpoint: d.socket,
		SupportedVersions: []string{"1.0.0"}}, nil
}

func (*driver) NotifyRegistrationStatus(_ context.Context,
	status *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	if !status.PluginRegistered {
		log.Fatalf("the kubelet did not take the driver: %s", status.Error)
	}
	return &registration.RegistrationStatusResponse{}, nil
}

func (*driver) GetPluginInfo(context.Context,
	*csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: name, VendorVersion: "stand-in"}, nil
}

func (*driver) GetPluginCapabilities(context.Context,
	*csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	return &csi.GetPluginCapabilitiesResponse{}, nil
}

func (*driver) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{}, nil
}

func (*driver) NodeGetInfo(context.Context,
	*csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	node, err := os.Hostname()
	return &csi.NodeGetInfoResponse{NodeId: node, MaxVolumesPerNode: 1000}, err
}

func (*driver) NodeGetCapabilities(context.Context,
	*csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	return &csi.NodeGetCapabilitiesResponse{}, nil
}

// NodePublishVolume mounts the folder at the pod's path.
func (d *driver) NodePublishVolume(_ context.Context,
	r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	if !r.GetReadonly() {
		return nil, errors.New("the volume is to be read-only: set readOnly: true")
	}
	if err := os.MkdirAll(r.GetTargetPath(), 0o755); err != nil {
		return nil, err
	}
	for _, flags := range []uintptr{syscall.MS_BIND,
		syscall.MS_BIND | syscall.MS_REMOUNT | syscall.MS_RDONLY} {
		if err := syscall.Mount(d.folder, r.GetTargetPath(), "", flags, ""); err != nil {
			return nil, fmt.Errorf("mounting %s on %s: %w", d.folder, r.GetTargetPath(), err)
		}
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

func (*driver) NodeUnpublishVolume(_ context.Context,
	r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	// The kubelet repeats calls whose result it does not know.
	if err := syscall.Unmount(r.GetTargetPath(), 0); err != nil &&
		!errors.Is(err, syscall.EINVAL) && !errors.Is(err, syscall.ENOENT) {
		return nil, fmt.Errorf("unmounting %s: %w", r.GetTargetPath(), err)
	}
	return &csi.NodeUnpublishVolumeResponse{}, os.RemoveAll(r.GetTargetPath())
}
