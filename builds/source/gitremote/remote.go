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

// Repository on a server, which is read with its history, and written.
type Repository struct {
	// URL of the repository; without Dial it may be a folder.
	URL string
	// Auth is nil for none.
	Auth transport.AuthMethod
	// Limit of a history with its folders, in bytes of packs; zero means MaxFetch.
	Limit int64
	// Dial guards the network of a controller. It is nil for the program of a user, who may
	// ask any address, and whose ssh program is used.
	Dial Dial
}

const (
	// MaxFetch is how much a history with its folders may have, in bytes of packs.
	MaxFetch = 256 << 20
	// timeout bounds one conversation.
	timeout = 3 * time.Minute
)

// ErrMoved is a push to a reference that another writer has changed.
var ErrMoved = errors.New("the branch has moved")

// RefusedError is a push that the server does not accept, by its own words.
type RefusedError struct{ Text string }

func (e *RefusedError) Error() string { return "the server refuses the push: " + e.Text }

// errNoSHA1 is a repository that go-git cannot read.
var errNoSHA1 = errors.New("the repository uses SHA-256, which is not supported here")

// Conversation with a server that has advertised its references.
type Conversation struct {
	Refs    *packp.AdvRefs
	upload  func(context.Context, *packp.UploadPackRequest) (io.ReadCloser, error)
	receive func(context.Context, *packp.ReferenceUpdateRequest) error
	close   func() error
}

// Connect to read commits alone; History asks for them.
func (r Repository) Connect(ctx context.Context) (*Conversation, error) {
	return r.talk(ctx, transport.UploadPackServiceName, commit.MaxPack+1<<20)
}

// Close the conversation.
func (c *Conversation) Close() error { return c.close() }

// talk to a program of Git, which answers with at most limit bytes of objects.
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

func (r Repository) overHTTP(
	ctx context.Context, endpoint *transport.Endpoint, program string, limit int64,
) (*Conversation, error) {
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

// overPipes starts a process for each request: the first has advertised the references. end
// comes after all of them.
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
				_ = first.close() // it waits for a request
			}
			return end()
		}}, nil
}

// receive sends objects and moves references.
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

// localProcess starts a program of Git on this machine, or by the user's ssh, as git does.
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

// References of the remote, by their full names.
func (r Repository) References(ctx context.Context) (map[string]plumbing.Hash, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	c, err := r.talk(ctx, transport.UploadPackServiceName, cmp.Or(r.Limit, MaxFetch))
	if err != nil {
		return nil, err
	}
	return c.Refs.References, c.close()
}

// Fetch what references of the remote lead to, without files if the server can leave them
// out; Files brings those that are needed. It returns the hashes of the references; one that
// the remote does not have is left out.
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

// Files brings objects by their hashes, which a Fetch without files left out.
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

// again reads a server once more as long as it no longer has what it listed a moment ago,
// because a branch was replaced meanwhile. once returns what it asked for.
func again(once func() ([]plumbing.Hash, error)) error {
	var before []plumbing.Hash
	for try := 1; ; try++ {
		asked, err := once()
		replaced := err != nil && strings.Contains(err.Error(), "not our ref") &&
			!slices.Equal(asked, before)
		if !replaced || try == maxReads {
			return err
		}
		before = asked
	}
}

// maxReads of a server whose branches are replaced all the time.
const maxReads = 5

func (r Repository) fetchOnce(ctx context.Context, into storer.Storer,
	want func(*Conversation) *packp.UploadPackRequest) (asked []plumbing.Hash, err error) {
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
	// maxObject is how much a file, a folder or a commit may have, in bytes.
	maxObject = 32 << 20
	// maxObjects is how many a pack of a controller may have, and maxOfUser one of a user's
	// program. Each takes perObject bytes of memory while its pack is stored, and a few
	// bytes of a pack.
	maxObjects, maxOfUser = 200_000, 4_000_000
	perObject             = 600
	// maxUnpacked is how much all objects of a pack may have, in bytes, which is a bound of
	// the time; maxBases of them are kept in memory while deltas are resolved.
	maxUnpacked, maxBases = 16 << 30, 96 << 20
	// maxPacks is the memory of the packs of a controller that are stored at once.
	maxPacks = maxObjects*perObject + maxBases
)

var packs = semaphore.NewWeighted(maxPacks)

// store the objects of a pack, which may be most in number. It looks through the pack first:
// go-git keeps something of each object in memory, and unpacks what deltas build upon,
// whatever size it has. Where share is not nil, the memory is taken of it.
func store(
	ctx context.Context, into storer.Storer, objects io.Reader, most uint32,
	share *semaphore.Weighted,
) (err error) {
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

// interruptible reads until a context ends.
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

// Push objects of a storage and move a branch from one commit to another; the zero hash is
// none. The server compares the old one as it moves the branch. The errors are ErrMoved, a
// *RefusedError, or what may pass.
func (r Repository) Push(
	ctx context.Context, from storer.EncodedObjectStorer, objects []plumbing.Hash, branch string,
	before, after plumbing.Hash,
) error {
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
	// The answer may have been lost, and servers have many words for a branch that moved.
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

// Descends reports whether a commit has another one in its history. Both are full hashes of
// SHA-1. A commit that the server no longer has is in no history.
func (r Repository) Descends(ctx context.Context, newer, older string) (descends bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err = again(func() (asked []plumbing.Hash, err error) {
		asked, descends, err = r.descendsOnce(ctx, plumbing.NewHash(newer), plumbing.NewHash(older))
		return asked, err
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
	plumbing.HashesSort(wants) // as they are compared with those of the next time
	if wants = slices.Compact(wants); len(wants) > MaxTips {
		err := fmt.Errorf("%s has more than %d branches and tags, and sends no commit by its hash",
			r.URL, MaxTips)
		return nil, false, multi.Errors(err, c.Close())
	}
	request := c.Request(packp.FilterTreeDepth(0), 0, wants...)
	request.Haves = []plumbing.Hash{from}
	err = c.History(ctx, history, request, func(hash plumbing.Hash) bool { return hash.IsZero() })
	_ = c.Close() // the answer is here
	if _, found := history.Reaches(to, from); found {
		return nil, true, nil
	}
	return request.Wants, false, err
}

// MaxTips is how many branches and tags are asked for at once.
const MaxTips = 256

// Request returns a request for objects, and what they lead to in so many commits; zero is all. If
// the server can, it leaves out what the filter says.
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

// History reads what a request brings, until enough returns true.
func (c *Conversation) History(
	ctx context.Context, into *commit.History, request *packp.UploadPackRequest,
	enough func(plumbing.Hash) bool,
) error {
	pack, err := c.upload(ctx, request)
	if err != nil {
		return err
	}
	err = into.Read(pack, enough)
	_ = pack.Close() // what it still has is not of interest
	return err
}
