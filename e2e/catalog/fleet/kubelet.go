package fleet

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/cert"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Kubelet serves the logs of the fleet's pods to the API server, as the kubelet of their node
// would.
type Kubelet struct {
	mu       sync.Mutex
	logs     map[string]string        // by pod/container
	followed map[string]chan struct{} // logs that are followed until they end
}

// node is the name of the node.
const node = "fleet"

// startKubelet listens on loopback until the process ends, and creates the node.
func startKubelet(ctx context.Context, c client.Client) (*Kubelet, error) {
	certPEM, keyPEM, err := cert.GenerateSelfSignedCertKey(node, []net.IP{net.IPv4(127, 0, 0, 1)}, nil)
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, err
	}
	listener, err := tls.Listen("tcp", "127.0.0.1:0",
		&tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12})
	if err != nil {
		return nil, fmt.Errorf("serving logs: %w", err)
	}
	k := &Kubelet{logs: map[string]string{}, followed: map[string]chan struct{}{}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", k.serve)
	go func() { _ = (&http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}).Serve(listener) }()

	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}
	if err := c.Create(ctx, n); err != nil {
		return nil, err
	}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}}
	n.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(listener.Addr().(*net.TCPAddr).Port)
	return k, c.Status().Update(ctx, n)
}

// Log sets the output of a container of a pod.
func (k *Kubelet) Log(pod, container, text string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.logs[pod+"/"+container] = text
}

// Hold keeps the log of a container open for clients that follow it, until end is called once.
func (k *Kubelet) Hold(pod, container string) (end func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	more := make(chan struct{})
	k.followed[pod+"/"+container] = more
	return func() { close(more) }
}

// serve serves a log, or its last lines.
func (k *Kubelet) serve(w http.ResponseWriter, r *http.Request) {
	k.mu.Lock()
	text, ok := k.logs[r.PathValue("pod")+"/"+r.PathValue("container")]
	more := k.followed[r.PathValue("pod")+"/"+r.PathValue("container")]
	k.mu.Unlock()
	if !ok {
		http.Error(w, "the container has no log", http.StatusNotFound)
		return
	}
	if most, err := strconv.Atoi(r.URL.Query().Get("tailLines")); err == nil {
		lines := strings.SplitAfter(strings.TrimSuffix(text, "\n"), "\n")
		text = strings.Join(lines[max(0, len(lines)-most):], "")
	}
	_, _ = w.Write([]byte(text)) // the API server may have disconnected
	if more != nil && r.URL.Query().Get("follow") == "true" {
		_ = http.NewResponseController(w).Flush()
		select {
		case <-more:
		case <-r.Context().Done():
		}
	}
}
