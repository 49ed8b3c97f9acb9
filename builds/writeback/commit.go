package writeback

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"path"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/object"

	"github.com/armature-dev/armature/functions/api"
	"github.com/armature-dev/armature/functions/krm"
	"github.com/armature-dev/armature/functions/text"
	"github.com/armature-dev/armature/render/deliver/forge"
	"github.com/armature-dev/armature/render/deliver/pin"
)

// edit puts images into the text of a lock and changes only their lines. The text is nil if there
// is no lock yet.
func edit(text []byte, file string, changed []Built) ([]byte, error) {
	var before api.ImageLockSpec
	title := pin.Title
	var o *krm.Object
	var at krm.Document
	if text != nil {
		var err error
		if before, err = parse(text, file); err != nil {
			return nil, err
		}
		for d := range krm.Documents(text) {
			candidate := new(krm.Object)
			if is, err := candidate.Read(text, d, false, krm.Origin{File: file, Line: 1}); is &&
				err == nil {
				o, at, title = candidate, d, candidate.Name
			}
		}
	}
	after := before
	after.Builds = slices.Clone(before.Builds)
	for _, b := range changed {
		if i := slices.IndexFunc(after.Builds, func(l api.LockedBuild) bool {
			return l.Namespace == b.Namespace && l.Name == b.Name
		}); i >= 0 {
			after.Builds[i] = b.LockedBuild
		} else {
			after.Builds = append(after.Builds, b.LockedBuild)
		}
	}
	byKey := func(a, b api.LockedBuild) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	}
	slices.SortStableFunc(after.Builds, byKey)
	whole, err := pin.Format(title, after)
	if err != nil || o == nil {
		return whole, err
	}
	if was, err := pin.Format(title, before); err == nil && bytes.Equal(was, text) {
		return whole, nil
	}
	// A person formatted the lock: edit only the lines of the images.
	if err := editLines(o, changed); err != nil {
		return nil, fmt.Errorf("%s: %w\n  hint: run `armature pin`, which formats it", file, err)
	}
	out := o.Append(bytes.Clone(text[:at.Start]))
	out = append(out, text[at.End:]...)
	again, err := parse(out, file)
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(again.Builds, byKey)
	if !slices.Equal(again.Builds, after.Builds) || !slices.Equal(again.Images, before.Images) {
		return nil, fmt.Errorf(
			"%s has a layout that cannot be edited\n  hint: run `armature pin`, which formats it", file)
	}
	return out, nil
}

// editLines edits the entries of a lock. It quotes commits, since one of digits is a number in
// YAML.
func editLines(o *krm.Object, changed []Built) error {
	for _, b := range changed {
		var found krm.Node
		for item := range o.Get("spec", "builds").Items() {
			if item.Get("namespace").Text() == b.Namespace && item.Get("name").Text() == b.Name {
				found = item
			}
		}
		var err error
		switch commit := found.Get("commit"); {
		case !found.Exists():
			entry := fmt.Sprintf("- commit: %q\n  image: %s\n  name: %s\n  namespace: %s\n",
				b.Commit, b.Image, b.Name, b.Namespace)
			_, err = o.Insert(o.Root(), []string{"spec", "builds"}, []byte(entry), false)
		case commit.Exists():
			if _, err = o.ReplaceField(commit, "commit", strconv.Quote(b.Commit)); err == nil {
				_, err = o.ReplaceField(found.Get("image"), "image", b.Image)
			}
		default:
			if _, err = o.ReplaceField(found.Get("image"), "image", b.Image); err == nil {
				_, err = o.Insert(found, nil,
					[]byte("commit: "+strconv.Quote(b.Commit)+"\n"), false)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// message returns the message of a commit. Its last paragraph has a group of trailers for each
// image.
func message(lock string, changed []Built) string {
	var out strings.Builder
	if b := changed[0]; len(changed) == 1 {
		fmt.Fprintf(&out, "Pin %s to %.12s\n\n", b.key(), b.Commit)
	} else {
		fmt.Fprintf(&out, "Pin %d builds in %s\n\n", len(changed), lock)
	}
	for _, b := range changed {
		fmt.Fprintf(&out, "%s: %s\n", b.key(), b.Image)
	}
	out.WriteString("\n")
	for _, b := range changed {
		fmt.Fprintf(&out, "%s: %s\nArmature-Run: %s\nArmature-Source: %s@%s\n", trailer, b.key(),
			b.Run, b.Repository, b.Commit)
		fmt.Fprintf(&out, "Armature-Attestation: %s\n", cmp.Or(b.Attestation, "unattested"))
	}
	return out.String()
}

// trailer is in each commit of a write-back.
const trailer = "Armature-Build"

// setTrailer returns a trailer that identifies the set of images for a reader, because the hash of
// a commit that a forge creates cannot be predicted.
func setTrailer(changed []Built) string {
	hash := sha256.New()
	for _, b := range changed { // sorted by name
		fmt.Fprintf(hash, "%s %s %s\n", b.key(), b.Image, b.Commit)
	}
	return fmt.Sprintf("Armature-Set: sha256:%x\n", hash.Sum(nil))
}

// push commits a lock on top of head, and pushes it to a branch that is at onto. Equal locks on
// equal heads are equal commits, whose time is that of the newest image.
func (u *Update) push(ctx context.Context, c *clone, head, onto plumbing.Hash, want forge.Commit,
	changed []Built) (string, error) {
	parent, err := object.GetCommit(c.objects, head)
	if err != nil {
		return "", err
	}
	var objects []plumbing.Hash
	put := func(encode func(plumbing.EncodedObject) error) (plumbing.Hash, error) {
		encoded := &plumbing.MemoryObject{}
		if err := encode(encoded); err != nil {
			return plumbing.ZeroHash, err
		}
		hash, err := c.objects.SetEncodedObject(encoded)
		objects = append(objects, hash)
		return hash, err
	}
	entry := object.TreeEntry{Name: path.Base(c.path), Mode: filemode.Regular}
	if entry.Hash, err = put(func(o plumbing.EncodedObject) error {
		o.SetType(plumbing.BlobObject)
		_, err := o.(io.Writer).Write(want.Files[c.path])
		return err
	}); err != nil {
		return "", err
	}
	folders := strings.Split(path.Dir(c.path), "/")
	if folders[0] == "." {
		folders = nil
	}
	for i := len(folders); i >= 0; i-- {
		tree, err := object.GetTree(c.objects, parent.TreeHash)
		if err == nil && i > 0 {
			tree, err = tree.Tree(strings.Join(folders[:i], "/"))
		}
		if err != nil {
			return "", fmt.Errorf("%s: the branch has no folder %s: %w", c.path,
				strings.Join(folders[:i], "/"), err)
		}
		next := &object.Tree{Entries: slices.DeleteFunc(slices.Clone(tree.Entries),
			func(e object.TreeEntry) bool { return e.Name == entry.Name })}
		next.Entries = append(next.Entries, entry)
		sort.Sort(object.TreeEntrySorter(next.Entries))
		hash, err := put(next.Encode)
		if err != nil {
			return "", err
		}
		if i > 0 {
			entry = object.TreeEntry{Name: folders[i-1], Mode: filemode.Dir, Hash: hash}
		} else {
			entry.Hash = hash
		}
	}
	newest := slices.MaxFunc(changed, func(a, b Built) int { return a.Finished.Compare(b.Finished) })
	by := object.Signature{Name: u.Name, Email: u.Email, When: newest.Finished.UTC()}
	made := &object.Commit{Author: by, Committer: by, Message: want.Message, TreeHash: entry.Hash,
		ParentHashes: []plumbing.Hash{head}}
	if made.PGPSignature, err = u.signature(made); err != nil {
		return "", fmt.Errorf("signing the commit: %w", err)
	}
	commit, err := put(made.Encode)
	if err == nil {
		err = u.Remote.Push(ctx, c.objects, objects, want.Branch, onto, commit)
	}
	return commit.String(), err
}

// signature returns the signature of a commit, or "" if commits are not signed.
func (u *Update) signature(c *object.Commit) (string, error) {
	encoded := &plumbing.MemoryObject{}
	if err := c.EncodeWithoutSignature(encoded); err != nil || u.Sign == nil {
		return "", err
	}
	from, err := encoded.Reader()
	if err != nil {
		return "", err
	}
	payload, err := io.ReadAll(from)
	if err != nil {
		return "", err
	}
	return u.Sign(payload, c.Committer.When)
}

// proposed checks the branch of a pull request. same reports that the branch already brings this
// lock to head. A commit of another author is a *ForeignError.
func (u *Update) proposed(ctx context.Context, c *clone, head, tip plumbing.Hash,
	content []byte) (same bool, err error) {
	if tip.IsZero() {
		return false, nil
	}
	base, err := object.GetCommit(c.objects, head)
	if err != nil {
		return false, err
	}
	at, err := object.GetCommit(c.objects, tip)
	if err != nil {
		return false, err
	}
	if merged, err := at.IsAncestor(base); err != nil || merged {
		return false, err
	}
	// A write-back adds one commit to a former head of the branch, which changes images in the
	// lock.
	foreign := func(c *object.Commit) error {
		return &ForeignError{u.Proposal, c.Hash.String(), text.Plain(c.Author.Name)}
	}
	if len(at.ParentHashes) != 1 {
		return false, foreign(at)
	}
	parent, err := at.Parent(0)
	if err != nil {
		return false, err
	}
	if own, err := u.wrote(ctx, at); err != nil {
		return false, err
	} else if !own {
		return false, foreign(at)
	}
	if known, err := parent.IsAncestor(base); err != nil {
		return false, err
	} else if !known {
		return false, foreign(parent)
	}
	if images, err := c.imagesAlone(ctx, parent, at); err != nil {
		return false, err
	} else if !images {
		return false, foreign(at)
	}
	blob, err := c.blob(at)
	if err != nil || blob.IsZero() {
		return false, err
	}
	has, err := c.read(blob)
	return bytes.Equal(has, content), err
}

// wrote reports whether a commit has the author of this Update's commits, and the signature of its
// key if it signs. The message is no evidence, because any author can copy it.
func (u *Update) wrote(ctx context.Context, c *object.Commit) (bool, error) {
	if u.API != nil {
		return u.API.Wrote(ctx, c.Hash.String())
	}
	if c.Author.Name != u.Name || c.Author.Email != u.Email || c.Committer.Email != u.Email {
		return false, nil
	}
	signature, err := u.signature(c)
	return strings.TrimSpace(signature) == strings.TrimSpace(c.PGPSignature), err
}

// imagesMark begins the line of a pull request's body that lists its digests.
const imagesMark = "<!-- armature-images: "

// Text returns the text of the pull request for the commit. Rejected reads the images from its
// body.
func (r Result) Text() (title, body string) {
	var digests strings.Builder
	for _, b := range r.Changed {
		fmt.Fprintf(&digests, "%s ", b.digest())
	}
	title, _, _ = strings.Cut(r.Message, "\n")
	return title, fmt.Sprintf("%s%s-->\nArmature keeps this branch up to date until it is "+
		"merged. If you close it, these images are not proposed again.\n\n```\n%s```\n", imagesMark,
		digests.String(), r.Message)
}

// Rejected returns the digests of the images in pull requests between two branches that were closed
// without a merge. It considers only pull requests of the account itself, because any user who can
// read a branch may open a pull request for it with any text, and close it.
func Rejected(ctx context.Context, f forge.Forge, head, base string) (digests []string, err error) {
	pulls, err := f.PullRequests(ctx, head)
	if err != nil {
		return nil, fmt.Errorf("looking for closed pull requests: %w", err)
	}
	account := ""
	for _, p := range pulls {
		if p.Open || p.Merged || p.Fork || p.Base != base || !strings.Contains(p.Body, imagesMark) {
			continue
		}
		if account == "" {
			if account, err = f.Account(ctx); err != nil {
				return nil, fmt.Errorf("looking for closed pull requests: %w", err)
			}
		}
		if !p.By(account) {
			continue
		}
		for line := range strings.Lines(p.Body) {
			if rest, ok := strings.CutPrefix(line, imagesMark); ok {
				digests = append(digests,
					strings.Fields(strings.TrimSuffix(strings.TrimSpace(rest), "-->"))...)
			}
		}
	}
	return digests, nil
}
