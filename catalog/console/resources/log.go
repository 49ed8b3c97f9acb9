package resources

import (
	"strings"

	"github.com/armature-dev/armature/functions/text"
)

// Block is a piece of a log: lines as they are, or the frames of a stack trace.
type Block struct {
	Text string
	// Frames is how many lines of a stack trace these are; 0 for any other lines.
	Frames int
}

// minFrames is the smallest number of frames that is folded. Reading fewer is as fast as unfolding
// them.
const minFrames = 4

// Patterns of the frames of stack traces in Java, JavaScript, .NET, Python, Go and Rust. A call of
// Go is before the line with its file. BuildKit puts its step before each line.
var (
	frame  = text.Pattern(`^\s+at \S|^\s*\.{3} \d+ more|^\s+File "|^\s+\S+\.go:\d+( |$)|^\s+\d+: `)
	goCall = text.Pattern(`^(created by )?\S+[\w)](\(.*\)| in goroutine \d+)$`)
	prefix = text.Pattern(`^#\d+ (\d+\.\d+ )?`)
)

// Blocks returns the blocks of a log. The lines that name an error, before or after its frames, are
// not folded.
func Blocks(lines []string) (out []Block) {
	plain := 0 // where the lines begin that are not in a block yet
	flush := func(to int) {
		if plain < to {
			out = append(out, Block{Text: strings.Join(lines[plain:to], "\n")})
		}
	}
	for i := 0; i < len(lines); i++ {
		n := frames(lines[i:])
		if n < minFrames {
			i += max(0, n-1)
			continue
		}
		flush(i)
		out = append(out, Block{strings.Join(lines[i:i+n], "\n"), n})
		i += n - 1
		plain = i + 1
	}
	flush(len(lines))
	return out
}

// frames returns how many lines at the beginning belong to one stack trace.
func frames(lines []string) int {
	at := func(i int) string {
		if i >= len(lines) {
			return ""
		}
		return lines[i][len(prefix().FindString(lines[i])):]
	}
	n, python := 0, false
	for ; n < len(lines); n++ {
		text := at(n)
		switch {
		case frame().MatchString(text):
			python = strings.HasPrefix(strings.TrimLeft(text, " \t"), `File "`)
		case python && strings.HasPrefix(text, "  "): // the source, and marks below it
		case goCall().MatchString(text) && strings.Contains(at(n+1), ".go:") &&
			frame().MatchString(at(n+1)):
		default:
			return n
		}
	}
	return n
}
