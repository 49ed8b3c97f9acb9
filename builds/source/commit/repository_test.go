package commit_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-git/go-git/v5/plumbing"
)

// repository is a real Git repository.
type repository struct {
	*testing.T
	dir, home string
}

func newRepository(t *testing.T) *repository {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("git is not installed\n  hint: apt-get install git")
	}
	r := &repository{t, t.TempDir(), t.TempDir()}
	r.git("init", "-q", "-b", "main")
	return r
}

// run a program in the repository, with a text for it to read.
func (r *repository) run(in []byte, name string, args ...string) []byte {
	r.Helper()
	cmd := exec.CommandContext(r.Context(), name, args...)
	cmd.Dir, cmd.Stdin = r.dir, bytes.NewReader(in)
	cmd.Env = append(os.Environ(), "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b",
		"GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@b", "GIT_CONFIG_GLOBAL=/dev/null",
		"GIT_CONFIG_SYSTEM=/dev/null", "HOME="+r.home, "GNUPGHOME="+r.home)
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		r.Fatalf("%s %s: %v\n%s%s", name, strings.Join(args, " "), err, out, complaint.Bytes())
	}
	return out
}

func (r *repository) git(args ...string) string {
	r.Helper()
	return strings.TrimSpace(string(r.run(nil, "git", args...)))
}

// commit something, with further options, and give the commit.
func (r *repository) commit(message string, options ...string) plumbing.Hash {
	r.Helper()
	r.git(append(options, "commit", "-q", "--allow-empty", "-m", message)...)
	return r.head()
}

func (r *repository) head() plumbing.Hash {
	r.Helper()
	return plumbing.NewHash(r.git("rev-parse", "HEAD"))
}

// object of a commit as Git stores it.
func (r *repository) object(commit plumbing.Hash) []byte {
	r.Helper()
	return r.run(nil, "git", "cat-file", "commit", commit.String())
}

// sshKey makes a key pair with the real program, and returns the file of the private half and the
// line of the public one.
func (r *repository) sshKey(kind ...string) (private, public string) {
	r.Helper()
	if _, err := exec.LookPath("ssh-keygen"); err != nil {
		r.Skip("ssh-keygen is not installed\n  hint: apt-get install openssh-client")
	}
	dir, err := os.MkdirTemp(r.home, "key")
	if err != nil {
		r.Fatal(err)
	}
	private = filepath.Join(dir, "id")
	r.run(nil, "ssh-keygen", append([]string{"-q", "-N", "", "-C", "comment", "-f", private, "-t"},
		kind...)...)
	line, err := os.ReadFile(private + ".pub")
	if err != nil {
		r.Fatal(err)
	}
	return private, strings.TrimSpace(string(line))
}

// withSSH are the options of git that sign with a key.
func withSSH(private string) []string {
	return []string{"-c", "gpg.format=ssh", "-c", "user.signingkey=" + private, "-c",
		"commit.gpgsign=true"}
}

// signSSH signs a text as ssh-keygen does, in a namespace.
func (r *repository) signSSH(private, namespace string, text []byte) string {
	r.Helper()
	return string(r.run(text, "ssh-keygen", "-Y", "sign", "-f", private, "-n", namespace))
}

// withHeader adds a header to a commit's object; each line of its text becomes a line of the
// header.
func withHeader(object []byte, key, text string) []byte {
	head, message, _ := bytes.Cut(object, []byte("\n\n"))
	value := strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n ")
	return []byte(string(head) + "\n" + key + " " + value + "\n\n" + string(message))
}
