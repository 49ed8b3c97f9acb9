package gitremote

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/format/packfile"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/sideband"
	"github.com/go-git/go-git/v5/plumbing/storer"
	"github.com/go-git/go-git/v5/plumbing/transport"
	githttp "github.com/go-git/go-git/v5/plumbing/transport/http"
	"golang.org/x/sync/semaphore"

	"github.com/armature-dev/armature/builds/source/commit"
	"github.com/armature-dev/armature/functions/multi"
	"github.com/armature-dev/armature/functions/text"
	"github.com/armature-dev/armature/render/answers"
	"github.com/armature-dev/armature/render/deliver/gitrun"
)

// Repository is a repository on a server.
type Repository struct {
	// URL of the repository. Without Dial it may be a folder.
	URL string
	// Auth is the login, or nil for none.
	Auth transport.AuthMethod
	// Limit bounds a history with its trees, in bytes of packs. Zero means MaxFetch.
	Limit int64
	// Dial opens the connections of a controller, and refuses forbidden addresses. It is nil in a
	// user's command, which may contact any address and runs the user's ssh program.
	Dial Dial
}

const (
	// MaxFetch is the default limit of a history with its trees, in bytes of packs.
	MaxFetch = 256 << 20
	// timeout bounds one conversation with a server.
	timeout = 3 * time.Minute
)

// ErrMoved reports a push to a reference that another writer has changed.
var ErrMoved = errors.New("the branch has moved")

// RefusedError reports a push that the server does not accept. Text is the server's.
type RefusedError struct{ Text string }

func (e *RefusedError) Error() string { return "the server refuses the push: " + e.Text }

// errNoSHA1 reports a repository that go-git cannot read.
var errNoSHA1 = errors.New("the repository uses SHA-256, which is not supported here")

// Conversation is a connection to a server that has advertised its references.
type Conversation struct {
	Refs    *packp.AdvRefs
	upload  func(context.Context, *packp.UploadPackRequest) (io.ReadCloser, error)
	receive func(context.Context, *packp.ReferenceUpdateRequest) error
	close   func() error
}

// Connect opens a conversation that reads only commits, with History.
func (r Repository) Connect(ctx context.Context) (*Conversation, error) {
	return r.talk(ctx, transport.UploadPackServiceName, commit.MaxPack+1<<20)
}

// Close closes the conversation.
func (c *Conversation) Close() error { return c.close() }

// talk starts a conversation with a Git program, and reads at most limit bytes of objects from it.
func (r Repository) talk(ctx context.Context, program string, limit int64) (*Conversation, error) {
	endpoint, err := transport.NewEndpoint(r.URL)
	if err != nil {
		return nil, fmt.Errorf("reading the URL %s: %w", r.URL, err)
	}
	switch {
	case endpoint.Protocol == "http" || endpoint.Protocol == "https":
		return r.overHTTP(ctx, endpoint, program, limit)
	case endpoint.Protocol == "ssh" && r.Dial != nil:
		client, err := sshClient(ctx, r.Dial, endpoint, r.Auth, 4*(maxRefs+limit))
		if err != nil {
			return nil, err
		}
		return overPipes(limit, client.Close, func() (process, error) {
			return sshProcess(client, program, endpoint.Path)
		})
	case r.Dial == nil && (endpoint.Protocol == "ssh" || endpoint.Protocol == "file"):
		return overPipes(limit, func() error { return nil }, func() (process, error) {
			return localProcess(ctx, endpoint, program)
		})
	}
	return nil, fmt.Errorf("%s: the protocol %s is not supported: use https or ssh", r.URL,
		endpoint.Protocol)
}

func (r Repository) overHTTP(ctx context.Context, endpoint *transport.Endpoint, program string,
	limit int64) (*Conversation, error) {
	client := githttp.NewClient(httpClient(r.Dial, limit))
	if program == transport.ReceivePackServiceName {
		session, err := client.NewReceivePackSession(endpoint, r.Auth)
		if err != nil {
			return nil, err
		}
		refs, err := session.AdvertisedReferencesContext(ctx)
		receive := func(ctx context.Context, request *packp.ReferenceUpdateRequest) error {
			_, err := session.ReceivePack(ctx, request)
			return err
		}
		return &Conversation{Refs: refs, close: session.Close, receive: receive}, err
	}
	session, err := client.NewUploadPackSession(endpoint, r.Auth)
	if err != nil {
		return nil, err
	}
	refs, err := session.AdvertisedReferencesContext(ctx)
	upload := func(ctx context.Context, request *packp.UploadPackRequest) (io.ReadCloser, error) {
		return session.UploadPack(ctx, request)
	}
	return &Conversation{Refs: refs, close: session.Close, upload: upload}, err
}

// overPipes starts a process for each request. The first process advertises the references. The
// conversation calls end when it is closed.
func overPipes(limit int64, end func() error,
	start func() (process, error)) (*Conversation, error) {
	first, err := openPack(start())
	if err != nil {
		return nil, multi.Errors(err, end())
	}
	next := func() (p *pack, err error) {
		if p = first; p == nil {
			p, err = openPack(start())
		}
		first = nil
		return p, err
	}
	return &Conversation{Refs: first.refs,
		upload: func(_ context.Context, request *packp.UploadPackRequest) (io.ReadCloser, error) {
			p, err := next()
			if err != nil {
				return nil, err
			}
			return p.upload(request, limit)
		},
		receive: func(_ context.Context, request *packp.ReferenceUpdateRequest) error {
			p, err := next()
			if err != nil {
				return err
			}
			return multi.Errors(p.receive(request), p.close())
		},
		close: func() error {
			if first != nil {
				_ = first.close() // no request was sent to it
			}
			return end()
		}}, nil
}

// receive sends objects and updates references.
func (p *pack) receive(request *packp.ReferenceUpdateRequest) error {
	if err := multi.Errors(request.Encode(p.in), p.in.Close()); err != nil {
		return err
	}
	out := answers.AtMost(p.out, maxGitError, io.EOF)
	if request.Capabilities.Supports(capability.Sideband64k) {
		demuxer := sideband.NewDemuxer(sideband.Sideband64k, out)
		demuxer.Progress = request.Progress
		out = demuxer
	}
	report := packp.NewReportStatus()
	if err := report.Decode(out); err != nil {
		return err
	}
	return report.Error()
}

// localProcess starts a Git program on this machine, or through the user's ssh, as git does.
func localProcess(ctx context.Context, endpoint *transport.Endpoint,
	program string) (p process, err error) {
	cmd := gitrun.Command(ctx, "", strings.TrimPrefix(program, "git-"), "--", endpoint.Path)
	if endpoint.Protocol == "ssh" {
		words := []string{"-c", cmp.Or(os.Getenv("GIT_SSH_COMMAND"), "ssh") + ` "$@"`, "ssh"}
		if endpoint.Port != 0 {
			words = append(words, "-p", fmt.Sprint(endpoint.Port))
		}
		host := endpoint.Host
		if endpoint.User != "" {
			host = endpoint.User + "@" + host
		}
		cmd = exec.CommandContext(ctx, "sh",
			append(words, "--", host, remoteCommand(program, endpoint.Path))...)
	}
	cmd.WaitDelay = 10 * time.Second
	p = process{head: &text.Head{Most: maxWords}, wait: cmd.Wait}
	cmd.Stderr = p.head
	if p.in, err = cmd.StdinPipe(); err != nil {
		return p, err
	}
	if p.out, err = cmd.StdoutPipe(); err != nil {
		return p, err
	}
	p.close = func() error {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
		return nil
	}
	return p, cmd.Start()
}

// References returns the references of the remote by their full names.
func (r Repository) References(ctx context.Context) (map[string]plumbing.Hash, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	c, err := r.talk(ctx, transport.UploadPackServiceName, cmp.Or(r.Limit, MaxFetch))
	if err != nil {
		return nil, err
	}
	return c.Refs.References, c.close()
}

// Fetch fetches the objects that the named references reach, without blobs if the server supports
// that; Files fetches the blobs that are needed. It returns the hashes of the references, and omits
// those that the remote does not have.
func (r Repository) Fetch(ctx context.Context, into storer.Storer,
	names ...string) (map[string]plumbing.Hash, error) {
	var found map[string]plumbing.Hash
	err := r.fetch(ctx, into, func(c *Conversation) *packp.UploadPackRequest {
		found = make(map[string]plumbing.Hash)
		for _, name := range names {
			if hash, ok := c.Refs.References[name]; ok {
				found[name] = hash
			}
		}
		var filter packp.Filter
		if c.can(capability.AllowReachableSHA1InWant) || c.can("allow-any-sha1-in-want") {
			filter = packp.FilterBlobNone()
		}
		return c.Request(filter, 0, slices.Collect(maps.Values(found))...)
	})
	return found, err
}

// Files fetches blobs by their hashes, which Fetch left out.
func (r Repository) Files(ctx context.Context, into storer.Storer, hashes []plumbing.Hash) error {
	missing := slices.DeleteFunc(slices.Clone(hashes),
		func(hash plumbing.Hash) bool { return into.HasEncodedObject(hash) == nil })
	return r.fetch(ctx, into, func(c *Conversation) *packp.UploadPackRequest {
		return c.Request("", 0, missing...)
	})
}

func (r Repository) fetch(ctx context.Context, into storer.Storer,
	want func(*Conversation) *packp.UploadPackRequest) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return again(func() ([]plumbing.Hash, error) { return r.fetchOnce(ctx, into, want) })
}

// maxReads bounds the retries for a server whose branches are replaced all the time.
const maxReads = 5

// again calls once again as long as the server lacks a commit that it has just advertised, because
// a branch was replaced meanwhile. once returns the hashes that it requested.
func again(once func() ([]plumbing.Hash, error)) error {
	var before []plumbing.Hash
	for try := 1; ; try++ {
		wants, err := once()
		replaced := err != nil && strings.Contains(err.Error(), "not our ref") &&
			!slices.Equal(wants, before)
		if !replaced || try == maxReads {
			return err
		}
		before = wants
	}
}

func (r Repository) fetchOnce(ctx context.Context, into storer.Storer,
	want func(*Conversation) *packp.UploadPackRequest) (wants []plumbing.Hash, err error) {
	c, err := r.talk(ctx, transport.UploadPackServiceName, cmp.Or(r.Limit, MaxFetch))
	if err != nil {
		return nil, err
	}
	defer func() { err = multi.Errors(err, c.close()) }()
	format := strings.Join(c.Refs.Capabilities.Get("object-format"), "")
	if c.can("object-format") && !strings.EqualFold(format, "sha1") {
		return nil, errNoSHA1
	}
	request := want(c)
	if len(request.Wants) == 0 {
		return nil, nil
	}
	objects, err := c.upload(ctx, request)
	if err != nil {
		return request.Wants, err
	}
	most, share := uint32(maxOfUser), (*semaphore.Weighted)(nil)
	if r.Dial != nil {
		most, share = maxObjects, packs
	}
	err = store(ctx, into, objects, most, share)
	if errors.Is(err, commit.ErrTooLarge) {
		err = fmt.Errorf(
			"%s: its history has more than %d MiB or %d objects, or a file of more than %d MiB",
			r.URL, cmp.Or(r.Limit, MaxFetch)>>20, most, maxObject>>20)
	}
	return request.Wants, multi.Errors(err, objects.Close())
}

const (
	// maxObject is the largest size of a blob, tree or commit, in bytes.
	maxObject = 32 << 20
	// maxObjects is the largest number of objects in a pack for a controller, and maxOfUser for a
	// user's command. An object takes few bytes of a pack, but perObject bytes of memory while the
	// pack is stored.
	maxObjects, maxOfUser = 200_000, 4_000_000
	perObject             = 600
	// maxUnpacked bounds the unpacked size of all objects of a pack, in bytes, and thereby the
	// time. maxBases bytes of them stay in memory while deltas are resolved.
	maxUnpacked, maxBases = 16 << 30, 96 << 20
	// maxPacks is the memory for all packs that a controller stores at the same time, in bytes.
	maxPacks = maxObjects*perObject + maxBases
)

var packs = semaphore.NewWeighted(maxPacks)

// store stores the objects of a pack of at most most objects. It measures the pack
// first, because go-git keeps part of each object in memory and unpacks the bases of deltas,
// whatever their size. It acquires the memory from share, unless that is nil.
func store(ctx context.Context, into storer.Storer, objects io.Reader, most uint32,
	share *semaphore.Weighted) (err error) {
	objects = &interruptible{ctx, objects}
	var head [12]byte
	if _, err := io.ReadFull(objects, head[:]); err != nil {
		return fmt.Errorf("reading a pack: %w", err)
	}
	if binary.BigEndian.Uint32(head[8:]) > most {
		return commit.ErrTooLarge
	}
	file, err := os.CreateTemp("", "armature-pack-")
	if err != nil {
		return err
	}
	defer func() { err = multi.Errors(err, file.Close(), os.Remove(file.Name())) }()
	if _, err := io.Copy(file, io.MultiReader(bytes.NewReader(head[:]), objects)); err != nil {
		return err
	}
	memory, err := measure(ctx, file)
	if err != nil {
		return err
	}
	if share != nil {
		if err := share.Acquire(ctx, memory); err != nil {
			return err
		}
		defer share.Release(memory)
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	return packfile.UpdateObjectStorage(into, &interruptible{ctx, file})
}

// measure reads a pack and returns how many bytes of memory it takes to store it.
func measure(ctx context.Context, file io.ReadSeeker) (memory int64, err error) {
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return 0, err
	}
	scanner := packfile.NewScanner(file)
	_, count, err := scanner.Header()
	if err != nil {
		return 0, fmt.Errorf("reading a pack: %w", err)
	}
	unpacked := int64(0)
	for range count {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		header, err := scanner.NextObjectHeader()
		if err != nil {
			return 0, fmt.Errorf("reading a pack: %w", err)
		}
		if header.Length > maxObject {
			return 0, commit.ErrTooLarge
		}
		start := &text.Head{Most: 32} // the scanner compares the size with the header's
		if _, _, err := scanner.NextObject(start); err != nil {
			return 0, fmt.Errorf("reading a pack: %w", err)
		}
		unpacked += header.Length
		if header.Type.IsDelta() {
			target := commit.DeltaTarget(start.Kept)
			if target > maxObject {
				return 0, commit.ErrTooLarge
			}
			unpacked += int64(target)
		}
		if unpacked > maxUnpacked {
			return 0, commit.ErrTooLarge
		}
	}
	return int64(count)*perObject + min(unpacked, maxBases), nil
}

// interruptible is a reader that fails when its context has ended.
type interruptible struct {
	ctx  context.Context
	from io.Reader
}

func (r *interruptible) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.from.Read(p)
}

// Push sends objects of a storage and moves a branch from one commit to another. The zero hash is a
// branch that does not exist. The server compares the old commit when it moves the branch. Errors
// other than ErrMoved and *RefusedError may be temporary.
func (r Repository) Push(ctx context.Context, from storer.EncodedObjectStorer,
	objects []plumbing.Hash, branch string, before, after plumbing.Hash) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	c, err := r.talk(ctx, transport.ReceivePackServiceName, MaxFetch)
	if err != nil {
		return err
	}
	name := plumbing.NewBranchReferenceName(branch)
	if c.Refs.References[string(name)] != before {
		return multi.Errors(ErrMoved, c.close())
	}
	var packed bytes.Buffer
	if _, err := packfile.NewEncoder(&packed, from, false).Encode(objects, 0); err != nil {
		return multi.Errors(err, c.close())
	}
	request, progress := packp.NewReferenceUpdateRequestFromCapabilities(c.Refs.Capabilities),
		&text.Head{Most: maxWords}
	if c.can(capability.Sideband64k) {
		_ = request.Capabilities.Set(capability.Sideband64k)
		request.Progress = progress
	}
	request.Commands = []*packp.Command{{Name: name, Old: before, New: after}}
	request.Packfile = io.NopCloser(&packed)
	pushErr := c.receive(ctx, request)
	_ = c.close()
	if pushErr == nil {
		return nil
	}
	// The answer may have been lost, and each server words its refusal of a moved branch
	// differently.
	refs, err := r.References(ctx)
	if err != nil {
		return multi.Errors(pushErr, err)
	}
	switch refs[string(name)] {
	case after:
		return nil
	case before:
		content := strings.TrimSpace(string(progress.Kept))
		return &RefusedError{text.Plain(strings.TrimSpace(pushErr.Error() + "\n" + content))}
	}
	return ErrMoved
}

// Descends reports whether the history of newer contains older. Both are full SHA-1 hashes. A
// commit that the server no longer has is in no history.
func (r Repository) Descends(ctx context.Context, newer, older string) (descends bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err = again(func() (wants []plumbing.Hash, err error) {
		wants, descends, err = r.descendsOnce(ctx, plumbing.NewHash(newer), plumbing.NewHash(older))
		return wants, err
	})
	return descends, err
}

func (r Repository) descendsOnce(ctx context.Context,
	to, from plumbing.Hash) ([]plumbing.Hash, bool, error) {
	history := &commit.History{}
	c, err := r.Connect(ctx)
	if err != nil {
		return nil, false, err
	}
	wants := slices.Collect(maps.Values(c.Refs.References))
	if slices.Contains(wants, to) || c.can(capability.AllowReachableSHA1InWant) {
		wants = []plumbing.Hash{to}
	}
	plumbing.HashesSort(wants) // again compares them with those of the next attempt
	if wants = slices.Compact(wants); len(wants) > MaxTips {
		err := fmt.Errorf("%s has more than %d branches and tags, and sends no commit by its hash",
			r.URL, MaxTips)
		return nil, false, multi.Errors(err, c.Close())
	}
	request := c.Request(packp.FilterTreeDepth(0), 0, wants...)
	request.Haves = []plumbing.Hash{from}
	err = c.History(ctx, history, request, func(hash plumbing.Hash) bool { return hash.IsZero() })
	_ = c.Close() // the answer was read
	if _, found := history.Reaches(to, from); found {
		return nil, true, nil
	}
	return request.Wants, false, err
}

// MaxTips is the largest number of branches and tags in one request.
const MaxTips = 256

// Request returns a request for objects with their history to a depth, or all of it if depth is
// zero. It applies the filter if the server supports that.
func (c *Conversation) Request(filter packp.Filter, depth int,
	wants ...plumbing.Hash) *packp.UploadPackRequest {
	request := packp.NewUploadPackRequest()
	can := func(name capability.Capability) bool {
		return c.can(name) && request.Capabilities.Set(name) == nil
	}
	can(capability.OFSDelta)
	can(capability.NoProgress)
	if filter != "" && can(capability.Filter) {
		request.Filter = filter
	}
	if depth > 0 && can(capability.Shallow) {
		request.Depth = packp.DepthCommits(depth)
	}
	request.Wants = wants
	return request
}

// can reports whether the server has a capability.
func (c *Conversation) can(name capability.Capability) bool {
	return c.Refs.Capabilities.Supports(name)
}

// History reads the objects of a request into a history until enough returns true.
func (c *Conversation) History(ctx context.Context, into *commit.History,
	request *packp.UploadPackRequest, enough func(plumbing.Hash) bool) error {
	pack, err := c.upload(ctx, request)
	if err != nil {
		return err
	}
	err = into.Read(pack, enough)
	_ = pack.Close() // the rest of the pack is not needed
	return err
}
