package source

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/armature-dev/armature/functions/multi"
	"github.com/armature-dev/armature/render"
)

// ListFile is the file in a rendered folder that lists the rendered files, so that the next render
// can remove files that are no longer rendered.
const ListFile = ".armature-files"

// Folder collects rendered files in a stage and moves them into a folder together. No file is
// visible before Commit, and none is left after Abort.
type Folder struct {
	path, stage string
	lock        io.Closer // of the stage
	fresh       bool      // the folder did not exist, or was empty
	within      bool      // the stage is in the folder, not in its parent
	inPlace     bool      // the folder is the author's
	pkg         string    // the rendered package, as the list names it

	mu      sync.Mutex
	files   []string        // rendered
	moved   []string        // rendered files that differ from the folder's
	removed []string        // files that became empty
	dirs    map[string]bool // created below stage
}

// NewFolder prepares to write to a folder, which need not exist. A folder with content has to be
// the output of an earlier render or, with inPlace, the source folder.
func NewFolder(path string, inPlace bool) (*Folder, error) {
	f := &Folder{path: filepath.Clean(path), dirs: make(map[string]bool)}
	removeStages(f.path)
	info, err := os.Stat(f.path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		f.fresh = true
	case err != nil:
		return nil, fmt.Errorf("%w: name a folder that exists or can be created", err)
	case !info.IsDir():
		return nil, notFolder(path)
	default:
		if f.fresh, err = empty(f.path); err != nil {
			return nil, err
		}
		if _, err := os.Stat(filepath.Join(f.path, ListFile)); err != nil && !f.fresh && !inPlace {
			return nil, fmt.Errorf(
				"%s holds files that no render wrote: name an empty or a new folder", path)
		}
	}
	f.inPlace, f.within = inPlace, info != nil
	parent, stage := filepath.Dir(f.path), stageBeside(f.path)
	if f.within { // files cannot be renamed into a mounted volume
		parent, stage = f.path, stageMark
	}
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return nil, err
	}
	if f.stage, f.lock, err = newStage(parent, stage); err != nil {
		var about *fs.PathError
		if errors.As(err, &about) {
			// Report the user's name, and not that of the stage.
			err = &fs.PathError{Op: about.Op, Path: path, Err: about.Err}
		}
		return nil, fmt.Errorf("preparing to write: %w", err)
	}
	if err := os.Chmod(f.stage, 0o755); err != nil {
		return nil, multi.Errors(err, f.Abort())
	}
	return f, nil
}

func notFolder(path string) error {
	return fmt.Errorf("%s is a file: name a folder to write to", path)
}

// empty reports whether a folder contains nothing but stages of renders that were killed.
func empty(folder string) (bool, error) {
	d, err := os.Open(folder)
	if err != nil {
		return false, err
	}
	defer d.Close()
	for {
		switch names, err := d.Readdirnames(1); {
		case errors.Is(err, io.EOF):
			return true, nil
		case err != nil || !strings.HasPrefix(names[0], stageMark):
			return false, err
		}
	}
}

// Write receives a rendered file, as a Sink. It may be called from many goroutines.
func (f *Folder) Write(file string, data []byte) error {
	if data == nil {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.removed = append(f.removed, file)
		return nil
	}
	changed := f.fresh || !f.holds(file, data)
	if changed {
		if err := f.put(file, data); err != nil {
			return err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.files = append(f.files, file)
	if changed && !f.fresh {
		f.moved = append(f.moved, filepath.FromSlash(file))
	}
	return nil
}

// put writes a file to the stage with the permissions of the file that it replaces.
func (f *Folder) put(file string, data []byte) error {
	if slash := strings.LastIndexByte(file, '/'); slash > 0 {
		if err := f.mkdir(file[:slash]); err != nil {
			return err
		}
	}
	staged := below(f.stage, file)
	if err := writeFile(staged, data); err != nil || !f.inPlace {
		return err
	}
	info, err := os.Stat(below(f.path, file))
	if err != nil {
		return nil // it replaces no file
	}
	return os.Chmod(staged, info.Mode().Perm())
}

// Files returns the number of files of this render.
func (f *Folder) Files() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.files)
}

// holds reports whether the folder has a file with the same content.
func (f *Folder) holds(file string, data []byte) bool {
	have, err := readFile(below(f.path, file), nil)
	return err == nil && bytes.Equal(have, data)
}

func (f *Folder) mkdir(folder string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.dirs[folder] {
		return nil
	}
	f.dirs[folder] = true
	return os.MkdirAll(below(f.stage, folder), 0o755)
}

// Commit moves the rendered files into the folder. It removes files that an earlier render wrote
// and this one did not, and leaves other files alone. It writes and removes nothing through a
// symbolic link below the folder. An error states how many files were moved; another render
// completes the work.
func (f *Folder) Commit() (written, removed int, err error) {
	slices.Sort(f.files)
	written, removed, err = f.commit()
	return written, removed, multi.Errors(err, f.Abort())
}

func (f *Folder) commit() (written, removed int, err error) {
	if f.inPlace {
		if err := f.reachable(append(slices.Clone(f.moved), f.removed...)); err != nil {
			return 0, 0, err
		}
		if written, err = f.move(f.moved); err == nil {
			removed, err = f.remove(f.removed)
		}
		return written, removed, err
	}
	before, err := readFile(filepath.Join(f.path, ListFile), nil)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return 0, 0, err
	}
	list := string(listOf(f.pkg, f.files))
	if f.fresh {
		if err := writeFile(filepath.Join(f.stage, ListFile), []byte(list)); err != nil {
			return 0, 0, err
		}
		return f.moveAll()
	}
	_, listed := readList(before)
	if err := f.reachable(append(slices.Clone(f.moved), dropped(listed, f.files)...)); err != nil {
		return 0, 0, err
	}
	if string(before) != list {
		// The list names old and new files until the commit ends. If it fails midway, the next
		// render knows which files it may remove.
		both := slices.Concat(listed, f.files)
		slices.Sort(both)
		if err := f.replaceList(string(listOf(f.pkg, slices.Compact(both)))); err != nil {
			return 0, 0, err
		}
	}
	if written, err = f.move(f.moved); err != nil {
		return written, 0, err
	}
	if removed, err = f.remove(listed); err == nil && string(before) != list {
		err = f.replaceList(list)
	}
	return written, removed, err
}

// moveAll renames the stage to the folder, or moves its entries into an empty folder.
func (f *Folder) moveAll() (written, removed int, err error) {
	if !f.within {
		if err := os.Remove(f.path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return 0, 0, err
		}
		return len(f.files), 0, os.Rename(f.stage, f.path)
	}
	entries, err := os.ReadDir(f.stage) // sorted: the list is among the first
	if err != nil {
		return 0, 0, err
	}
	i := slices.IndexFunc(entries, func(e os.DirEntry) bool { return e.Name() == ListFile })
	entries[0], entries[i] = entries[i], entries[0]
	for i, e := range entries {
		if err := os.Rename(filepath.Join(f.stage, e.Name()),
			filepath.Join(f.path, e.Name())); err != nil {
			return 0, 0, fmt.Errorf(
				"%w: %d of %d entries of %s are in place: render again to complete it", err, i,
				len(entries), f.path)
		}
	}
	return len(f.files), 0, nil
}

func (f *Folder) replaceList(list string) error {
	err := writeFile(filepath.Join(f.stage, ListFile), []byte(list))
	if err == nil {
		err = os.Rename(filepath.Join(f.stage, ListFile), filepath.Join(f.path, ListFile))
	}
	return err
}

// reachable returns an error if a symbolic link below the folder leads to one of the files.
func (f *Folder) reachable(files []string) error {
	known := make(map[string]bool)
	for _, file := range files {
		for at, c := range filepath.FromSlash(file) {
			if c != filepath.Separator || known[file[:at]] {
				continue
			}
			known[file[:at]] = true
			folder := filepath.Join(f.path, file[:at])
			info, err := os.Lstat(folder)
			if errors.Is(err, os.ErrNotExist) {
				break // it will be created
			} else if err != nil {
				return err
			}
			if info.Mode()&os.ModeSymlink != 0 {
				return fmt.Errorf(
					"%s is a symbolic link, through which nothing is written: remove the link", folder)
			}
		}
	}
	return nil
}

// ofPackage is the prefix of the line of ListFile with the path of the package from the folder.
const ofPackage = "# package: "

// listOf returns the content of ListFile.
func listOf(pkg string, files []string) []byte {
	list := strings.Join(files, "\n") + "\n"
	if pkg != "" {
		list = ofPackage + pkg + "\n" + list
	}
	return []byte(list)
}

// readList parses the content of ListFile.
func readList(list []byte) (pkg string, files []string) {
	text := strings.TrimSpace(string(list))
	if rest, ok := strings.CutPrefix(text, ofPackage); ok {
		pkg, text, _ = strings.Cut(rest, "\n")
	}
	return pkg, strings.Split(text, "\n")
}

// packageFor returns the name of a package in a folder's list; "-" for standard input. It returns
// an error if the folder was rendered from another package.
func packageFor(folder, path string) (string, error) {
	pkg := path
	if path != "-" {
		from, err1 := filepath.Abs(folder)
		to, err2 := filepath.Abs(path)
		relative, err3 := filepath.Rel(from, to)
		if err := multi.Errors(err1, err2, err3); err != nil {
			return "", err
		}
		pkg = filepath.ToSlash(relative)
	}
	list, err := readFile(filepath.Join(folder, ListFile), nil)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	if was, _ := readList(list); was != "" && was != pkg {
		if was == "-" {
			was = "standard input"
		} else {
			was = filepath.Join(folder, filepath.FromSlash(was))
		}
		return "", fmt.Errorf("%s was rendered from %s, whose files a render of %s would remove\n"+
			"  hint: name another folder, or remove %s first", folder, was, path, folder)
	}
	return pkg, nil
}

// For sets the package that is rendered to the folder.
func (f *Folder) For(path string) (err error) {
	if !f.inPlace {
		f.pkg, err = packageFor(f.path, path)
	}
	return err
}

// dropped returns the files of an earlier render that are not among the sorted files of this one.
func dropped(earlier, files []string) (dropped []string) {
	for _, file := range earlier {
		if _, kept := slices.BinarySearch(files, file); !kept && file != "" &&
			filepath.IsLocal(filepath.FromSlash(file)) {
			dropped = append(dropped, file)
		}
	}
	return dropped
}

// remove removes files that were not rendered from the folder.
func (f *Folder) remove(files []string) (removed int, err error) {
	for _, file := range dropped(files, f.files) {
		switch err := os.Remove(filepath.Join(f.path, filepath.FromSlash(file))); {
		case err == nil:
			removed++
		case !errors.Is(err, os.ErrNotExist):
			return removed, fmt.Errorf(
				"%w: all rendered files are in place, but this one of an earlier render: remove it", err)
		}
	}
	return removed, nil
}

// move moves files from the stage into the folder.
func (f *Folder) move(files []string) (written int, err error) {
	for i, relative := range files {
		to := filepath.Join(f.path, relative)
		if f.inPlace {
			if to, err = f.target(to); err != nil {
				return written, err
			}
		}
		if err = os.MkdirAll(filepath.Dir(to), 0o755); err == nil {
			err = os.Rename(filepath.Join(f.stage, relative), to)
		}
		if err != nil {
			return written, fmt.Errorf("%w: %d of %d files are replaced, and %s and those after "+
				"it are as they were: render again to complete it", err, i, len(files), relative)
		}
		written++
	}
	return written, nil
}

// target returns the file to write: the target of an author's link to another file of the folder,
// so that the link stays a link, or the file itself.
func (f *Folder) target(file string) (string, error) {
	info, err := os.Lstat(file)
	if err != nil || info.Mode()&os.ModeSymlink == 0 {
		return file, nil
	}
	target, err := filepath.EvalSymlinks(file)
	if err != nil {
		return "", err
	}
	root, err := filepath.EvalSymlinks(f.path)
	if err != nil {
		return "", err
	}
	if inside, err := filepath.Rel(root, target); err != nil || !filepath.IsLocal(inside) {
		return "", fmt.Errorf(
			"the link %s leads out of %s, where nothing is written: remove the link", file, f.path)
	}
	return target, nil
}

// Abort removes the stage.
func (f *Folder) Abort() error { return multi.Errors(os.RemoveAll(f.stage), f.lock.Close()) }

// Spool collects a stream until WriteTo, in memory up to 32 MiB and then in a file.
type Spool struct {
	blocks [][]byte // of at most blockSize
	file   *os.File
	last   byte   // the last byte; 0 before the first
	name   string // of the last file
	json   bool   // it begins as JSON
	joined bool   // it consists of several files
	size   int    // in bytes
}

const (
	spoolMemory = 32 << 20
	blockSize   = 4 << 20
)

// Write joins files, or pieces of them, to one YAML stream, as a Sink.
func (s *Spool) Write(file string, data []byte) error {
	if len(data) == 0 {
		return nil
	}
	join := ""
	if s.last == 0 {
		s.json = render.BeginsJSON(data)
	}
	if s.last != 0 && s.name != file {
		s.joined = true
		if s.last != '\n' {
			join = "\n"
		}
		if !bytes.HasPrefix(data, []byte("---")) {
			join += "---\n"
		}
	}
	s.name = file
	s.last = data[len(data)-1]
	if err := s.append([]byte(join)); err != nil {
		return err
	}
	return s.append(data)
}

// append appends data to the blocks.
func (s *Spool) append(data []byte) error {
	for len(data) > 0 {
		n := len(s.blocks)
		if n == 0 || len(s.blocks[n-1]) == cap(s.blocks[n-1]) {
			if s.file != nil || s.size >= spoolMemory {
				if err := s.spill(); err != nil {
					return err
				}
			} else {
				s.blocks = append(s.blocks, make([]byte, 0, min(blockSize, max(64<<10, s.size))))
			}
			n = len(s.blocks)
		}
		block := &s.blocks[n-1]
		fits := min(len(data), cap(*block)-len(*block))
		*block = append(*block, data[:fits]...)
		data = data[fits:]
		s.size += fits
	}
	return nil
}

// spill moves the blocks to a file, and keeps one empty block.
func (s *Spool) spill() error {
	if s.file == nil {
		spool, err := os.CreateTemp("", "armature-spool-")
		if err != nil {
			return err
		}
		s.file = spool
		if err := os.Remove(spool.Name()); err != nil { // it exists as long as it is open
			return err
		}
	}
	if _, err := s.writeBlocks(s.file); err != nil {
		return err
	}
	last := s.blocks[len(s.blocks)-1]
	s.blocks = append(s.blocks[:0:0], last[:0])
	return nil
}

func (s *Spool) writeBlocks(w io.Writer) (written int64, err error) {
	for _, block := range s.blocks {
		n, err := w.Write(block)
		written += int64(n)
		if err != nil {
			return written, err
		}
	}
	return written, nil
}

// WriteTo writes the stream.
func (s *Spool) WriteTo(w io.Writer) (written int64, err error) {
	if s.json && s.joined { // kubectl would read all of it as JSON
		n, err := io.WriteString(w, "---\n")
		if written = int64(n); err != nil {
			return written, err
		}
	}
	n, err := s.writeTo(w)
	return written + n, err
}

func (s *Spool) writeTo(w io.Writer) (int64, error) {
	if s.file == nil {
		return s.writeBlocks(w)
	}
	if _, err := s.writeBlocks(s.file); err != nil {
		return 0, err
	}
	if _, err := s.file.Seek(0, io.SeekStart); err != nil {
		return 0, err
	}
	n, err := io.Copy(w, s.file)
	return n, multi.Errors(err, s.file.Close())
}

// writeFile writes a new file.
func writeFile(name string, data []byte) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if about := (*fs.PathError)(nil); errors.As(err, &about) {
		about.Op = "create" // see Explain
	}
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return multi.Errors(err, f.Close())
}
