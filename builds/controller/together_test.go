package controller_test

import (
	"crypto/sha1"
	"encoding/binary"
	"fmt"
	"hash/adler32"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-git/go-git/v5/plumbing"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/armature-dev/armature/builds/api"
)

// tinyObjects is a pack of as many blobs of four bytes as a pack may have.
func tinyObjects() []byte {
	const n = 200_000
	out := binary.BigEndian.AppendUint32([]byte("PACK\x00\x00\x00\x02"), n)
	for i := range uint32(n) {
		data := binary.BigEndian.AppendUint32(nil, i)
		// zlib, stored
		out = append(out, byte(plumbing.BlobObject)<<4|4, 0x78, 1, 1, 4, 0, 0xfb, 0xff)
		out = append(out, data...)
		out = binary.BigEndian.AppendUint32(out, adler32.Checksum(data))
	}
	sum := sha1.Sum(out)
	return append(out, sum[:]...)
}

// mktree writes a tree that names one object many times.
func (r *repository) mktree(mode, kind, hash string, times int) string {
	r.Helper()
	var entries strings.Builder
	for i := range times {
		fmt.Fprintf(&entries, "%s %s %s\t%02d\n", mode, kind, hash, i)
	}
	cmd := exec.CommandContext(r.Context(), "git", "mktree")
	cmd.Dir, cmd.Stdin = r.dir, strings.NewReader(entries.String())
	out, err := cmd.Output()
	r.must(err)
	return strings.TrimSpace(string(out))
}

// What servers and tenants of one namespace decide, all at once, leaves the controller below
// half of the memory that its Deployment allows (1 GiB), and builds of another namespace start
// meanwhile: branches that move to packs of tiny objects and to bombs of trees, forges with
// long lists, and 2,000 webhooks whose Secrets somebody makes the controller read.
func TestMemoryOfHostileInputsTogether(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a minute; run it without -short")
	}
	if runtime.GOOS != "linux" {
		t.Skip("the peak of a process's memory is read from Linux's /proc")
	}
	const limitMiB, many, hooks = 512, 6, 2000
	w := newWorld(t)
	other := w.namespace + "-other"
	w.must(w.Client.Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: other}}))
	good := w.serveGit("")

	var asked, packs, lists atomic.Int64
	pack, list := tinyObjects(), "["+strings.Repeat("{},", 8<<20/3-10)+"{}]"
	server := httptest.NewServer(
		http.HandlerFunc(func(rw http.ResponseWriter, request *http.Request) {
			switch path := request.URL.Path; {
			case strings.HasPrefix(path, "/api/"):
				lists.Add(1)
				rw.Header().Set("Content-Type", "application/json")
				_, _ = io.WriteString(rw, list)
			case strings.HasSuffix(path, "/git-upload-pack"):
				packs.Add(1)
				rw.Header().Set("Content-Type", "application/x-git-upload-pack-result")
				_, _ = io.WriteString(rw, "0008NAK\n")
				_, _ = rw.Write(pack)
			case strings.HasSuffix(path, "/info/refs"): // a branch that moves with each question
				rw.Header().Set("Content-Type", "application/x-git-upload-pack-advertisement")
				line := fmt.Sprintf("%040x refs/heads/main\x00ofs-delta filter\n", asked.Add(1))
				_, _ = fmt.Fprintf(rw, "001e# service=git-upload-pack\n0000%04x%s0000", len(line)+4, line)
			}
		}))
	t.Cleanup(server.Close)
	w.must(w.Client.Create(t.Context(),
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "forge",
			Annotations: hostsOfTests}, Type: corev1.SecretTypeBasicAuth,
			StringData: map[string]string{"username": "robot", "password": "a-token"}}))
	free, err := net.Listen("tcp", "127.0.0.1:0")
	w.must(err)
	webhooks := free.Addr().String()
	w.must(free.Close())
	cmd := w.spawn(buildProgram(t), "--watch-namespaces", other, "--git-allow-network",
		"127.0.0.0/8", "--webhook-address", webhooks)
	defer func() { kill(cmd) }()

	poll := &metav1.Duration{Duration: 10 * time.Second}
	var bombs []*repository
	for i := range many {
		from := func(kind string) func(*api.AgentBuild) {
			return func(b *api.AgentBuild) {
				b.Spec.Source.SourceRepository, b.Spec.Source.SourceRevision =
					fmt.Sprintf("%s/%s/%d", server.URL, kind, i), "main"
			}
		}
		w.create(fmt.Sprint("pack-", i), from("pack"),
			func(b *api.AgentBuild) { b.Spec.Trigger = &api.SourceTrigger{Poll: poll} })
		w.create(fmt.Sprint("forge-", i), from("forge"), func(b *api.AgentBuild) {
			b.Spec.Trigger = &api.SourceTrigger{Poll: poll, PullRequest: &api.PullRequestTrigger{}}
			b.Spec.Report = &api.Report{Kind: "gitea",
				Credentials: corev1.LocalObjectReference{Name: "forge"}}
		})
		bombs = append(bombs, w.serveGit(""))
		w.triggered(fmt.Sprint("trees-", i), bombs[i], &api.SourceTrigger{Poll: poll})
	}
	w.inParallel(users, hooks, func(i int) error {
		return w.Client.Create(w.Context(), w.newBuild(fmt.Sprint("hook-", i), good.source("main"),
			func(b *api.AgentBuild) {
				b.Spec.Trigger = &api.SourceTrigger{
					Webhook: &corev1.LocalObjectReference{Name: b.Name}}
			}))
	})
	for i, r := range bombs {
		name := fmt.Sprint("trees-", i)
		w.eventually(name+" has the first commit", func() string {
			if b := w.build(name); b.Status.Source == nil || b.Status.Source.Git.CommitSHA == "" {
				return fmt.Sprintf("it is %q", b.Status.Phase)
			}
			return ""
		})
		tree := r.mktree("100644", "blob", r.git("hash-object", "-w", "-t", "blob", "/dev/null"), 16)
		for range 10 {
			tree = r.mktree("040000", "tree", tree, 16)
		}
		r.git("update-ref", "refs/heads/main",
			r.git("commit-tree", "-p", "main", "-m", "a bomb", tree))
	}
	stop := make(chan struct{})
	defer close(stop)
	go func() { // somebody without the token, at all webhooks
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			request, _ := http.NewRequest(http.MethodPost, fmt.Sprintf("http://%s/hook/%s/hook-%d",
				webhooks, w.namespace, i%hooks), strings.NewReader("{}"))
			request.Header.Set("X-Gitea-Signature", strings.Repeat("0", 64))
			if answer, err := http.DefaultClient.Do(request); err == nil {
				_ = answer.Body.Close()
			}
		}
	}()

	var took []time.Duration
	quick := func() {
		t.Helper()
		b := w.newBuild(fmt.Sprint("quick", len(took)), good.source("main"))
		b.Namespace = other
		began := time.Now()
		w.must(w.Client.Create(t.Context(), b))
		w.eventually("a build of another namespace runs", func() string {
			w.must(w.Client.Get(t.Context(), client.ObjectKeyFromObject(b), b))
			if b.Status.Phase != api.PhaseBuilding {
				return fmt.Sprintf("it is %q", b.Status.Phase)
			}
			return ""
		})
		took = append(took, time.Since(began).Round(time.Millisecond))
	}
	quick()
	w.eventually("everything hostile is met", func() string {
		known := 0
		for i, r := range bombs {
			b := w.build(fmt.Sprint("trees-", i))
			// what differs is unknown: it is built
			if b.Annotations["agent.kagenti.dev/rerun"] == r.git("rev-parse", "main") {
				known++
			}
		}
		if packs.Load() < 2*many || lists.Load() < 2*many || known < many {
			return fmt.Sprintf("%d packs, %d lists, %d bombs", packs.Load(), lists.Load(), known)
		}
		return ""
	})
	quick()
	peak := statusMiB(t, cmd.Process.Pid, "VmHWM:")
	t.Logf("peak of the controller's memory %.0f MiB, of 1024: %d packs of tiny objects, %d "+
		"lists of a forge, %d bombs of trees, %d webhooks; builds of another namespace "+
		"began after %v",
		peak, packs.Load(), lists.Load(), many, hooks, took)
	if peak > limitMiB {
		t.Errorf("the controller took %.0f MiB, and at most %d are allowed", peak, limitMiB)
	}
}
